// Command 12-metrics serves what Stats counts over HTTP: /metrics in Prometheus' text format, and /debug/vars by
// expvar. It needs the standard library only.
//
//	NTHREADS=4 go run ./examples/12-metrics -serve 127.0.0.1:9464   # and: curl http://127.0.0.1:9464/metrics
package main

import (
	"bufio"
	"context"
	"expvar"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

func main() {
	address := flag.String("serve", "", "serve on this `address`, until a signal comes; without it the program asks itself")
	flag.Parse()
	on := *address
	if on == "" {
		on = "127.0.0.1:0"
	}
	// There is one endpoint for each process, whatever the number of its ranks. If a host has several processes, each
	// needs a port of its own.
	l, err := net.Listen("tcp", on)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	expvar.Publish("ubcoll", expvar.Func(func() any { return collect() }))
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		write(w, collect())
	})
	go http.Serve(l, nil) // with /debug/vars, which package expvar adds by itself
	url := fmt.Sprintf("http://%v/metrics", l.Addr())
	if *address != "" {
		fmt.Println("serving", url)
	}
	ubcoll.Main(ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		defer publish(c)()
		if err := work(ctx, c); err != nil {
			return err
		}
		if *address != "" {
			<-ctx.Done() // Main cancels ctx at a signal
			return nil
		}
		if c.Rank() == 0 {
			return show(url)
		}
		return nil
	})
}

// sample has what one rank has counted. A program with several communicators needs a sample for each, with a label that
// tells them apart.
type sample struct {
	Rank  int
	Host  string
	Stats ubcoll.Stats
}

// published are the communicators of this process's ranks.
var published = struct {
	sync.Mutex
	comms []*ubcoll.Comm
}{}

// publish shows c's Stats on the endpoint until end is called.
func publish(c *ubcoll.Comm) (end func()) {
	published.Lock()
	defer published.Unlock()
	published.comms = append(published.comms, c)
	return func() {
		published.Lock()
		defer published.Unlock()
		for i := range published.comms {
			if published.comms[i] == c {
				published.comms = append(published.comms[:i], published.comms[i+1:]...)
				return
			}
		}
	}
}

// collect asks all communicators. Stats may be called at any time from any goroutine: it waits for no operation.
func collect() []sample {
	published.Lock()
	defer published.Unlock()
	all := []sample{}
	for _, c := range published.comms {
		all = append(all, sample{c.Rank(), c.Hostname(c.Rank()), c.Stats()})
	}
	return all
}

// metrics are the metrics that /metrics shows. Values that only grow are counters, with names that end in _total. The
// others are gauges. Units are seconds and bytes.
var metrics = []struct {
	name, help string
	value      func(s *ubcoll.Stats) float64
}{
	{"ubcoll_operations_total", "Collectives, failed ones included.", func(s *ubcoll.Stats) float64 { return float64(s.Operations) }},
	{"ubcoll_operation_bytes_total", "Bytes of the operations' larger buffers.", func(s *ubcoll.Stats) float64 { return float64(s.Bytes) }},
	{"ubcoll_staged_buffers_total", "Buffers that were copied by way of staging memory.", func(s *ubcoll.Stats) float64 { return float64(s.Staged) }},
	{"ubcoll_puts_total", "Puts of channels and windows.", func(s *ubcoll.Stats) float64 { return float64(s.Puts) }},
	{"ubcoll_gets_total", "Gets of channels and windows.", func(s *ubcoll.Stats) float64 { return float64(s.Gets) }},
	{"ubcoll_one_sided_bytes_total", "Bytes that puts and gets moved.", func(s *ubcoll.Stats) float64 { return float64(s.OneSided) }},
	{"ubcoll_cache_hits_total", "Lookups in the registration cache that found a registration.", func(s *ubcoll.Stats) float64 { return float64(s.Cache.Hits) }},
	{"ubcoll_cache_misses_total", "Lookups in the registration cache that found none.", func(s *ubcoll.Stats) float64 { return float64(s.Cache.Misses) }},
	{"ubcoll_register_seconds_total", "Time that registering took.", func(s *ubcoll.Stats) float64 { return s.Cache.RegisterTime.Seconds() }},
	{"ubcoll_registered_regions", "Registrations alive.", func(s *ubcoll.Stats) float64 { return float64(s.Cache.Regions) }},
	{"ubcoll_registered_bytes", "Bytes registered, in whole pages.", func(s *ubcoll.Stats) float64 { return float64(s.Cache.RegisteredBytes) }},
	{"ubcoll_host_bytes", "Host memory of buffers that are alive.", func(s *ubcoll.Stats) float64 { return float64(s.Memory.LiveBytes) }},
	{"ubcoll_device_bytes", "Device memory of buffers that are alive.", func(s *ubcoll.Stats) float64 { return float64(s.Memory.DeviceBytes) }},
}

// lateMetrics are the metrics of a rank and another one that arrives last at collectives, whose number is the label last.
var lateMetrics = []struct {
	name, help string
	value      func(l *ubcoll.LastArrival) float64
}{
	{"ubcoll_last_arrivals_total", "Collectives in which this rank has waited for another as the last one.", func(l *ubcoll.LastArrival) float64 { return float64(l.Calls) }},
	{"ubcoll_last_arrival_seconds", "Median of those waits.", func(l *ubcoll.LastArrival) float64 { return l.Median.Seconds() }},
}

// hostMetrics are the metrics of a rank and another host, whose name is the label peer. Only ranks that have connections to
// other hosts have them. What a host sends to all others is their sum over its ranks and over peer.
var hostMetrics = []struct {
	name, help string
	value      func(h *ubcoll.HostStats) uint64
}{
	{"ubcoll_host_sent_bytes_total", "Bytes sent to another host.", func(h *ubcoll.HostStats) uint64 { return h.SentBytes }},
	{"ubcoll_host_received_bytes_total", "Bytes received from another host.", func(h *ubcoll.HostStats) uint64 { return h.ReceivedBytes }},
	{"ubcoll_host_sent_messages_total", "Messages sent to another host.", func(h *ubcoll.HostStats) uint64 { return h.SentMessages }},
	{"ubcoll_host_received_messages_total", "Messages received from another host.", func(h *ubcoll.HostStats) uint64 { return h.ReceivedMessages }},
	{"ubcoll_host_retries_total", "Segments that were sent to another host again, as when they get lost.", func(h *ubcoll.HostStats) uint64 { return h.Retries }},
}

// write writes samples in Prometheus' text format, version 0.0.4: for each metric its help, its type, and a line for
// each sample. https://prometheus.io/docs/instrumenting/exposition_formats says how values are escaped.
func write(w io.Writer, samples []sample) {
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	head := func(name, help string) {
		kind := "gauge"
		if strings.HasSuffix(name, "_total") {
			kind = "counter"
		}
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	for _, m := range metrics {
		head(m.name, m.help)
		for _, s := range samples {
			fmt.Fprintf(w, "%s{rank=\"%d\",host=\"%s\"} %s\n", m.name, s.Rank, escape.Replace(s.Host),
				strconv.FormatFloat(m.value(&s.Stats), 'g', -1, 64))
		}
	}
	for _, m := range lateMetrics {
		head(m.name, m.help)
		for _, s := range samples {
			for _, l := range s.Stats.LastArrivals {
				fmt.Fprintf(w, "%s{rank=\"%d\",host=\"%s\",last=\"%d\"} %s\n", m.name, s.Rank, escape.Replace(s.Host), l.Rank,
					strconv.FormatFloat(m.value(&l), 'g', -1, 64))
			}
		}
	}
	for _, m := range hostMetrics {
		head(m.name, m.help)
		for _, s := range samples {
			for _, h := range s.Stats.Hosts {
				fmt.Fprintf(w, "%s{rank=\"%d\",host=\"%s\",peer=\"%s\"} %d\n", m.name, s.Rank, escape.Replace(s.Host),
					escape.Replace(h.Host), m.value(&h))
			}
		}
	}
}

// work does something to count: ten all-reduces of a registered buffer, and one of a Go slice, which is copied.
func work(ctx context.Context, c *ubcoll.Comm) error {
	buf, err := ubcoll.Alloc[float32](c, ubcoll.Host, 1<<16)
	if err != nil {
		return err
	}
	reg, err := buf.Register(c)
	if err != nil {
		return err
	}
	for range 10 {
		if err := coll.AllReduce(ctx, c, buf.Vec(), buf.Vec(), ubcoll.Max); err != nil {
			return err
		}
	}
	slice := make([]float32, 1<<16)
	if err := coll.AllReduce(ctx, c, ubcoll.Of(slice), ubcoll.Of(slice), ubcoll.Max); err != nil {
		return err
	}
	if err := reg.Close(); err != nil {
		return err
	}
	return buf.Free()
}

// show asks the endpoint, and prints what rank 0 has done.
func show(url string) error {
	r, err := http.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, r.Status)
	}
	lines, found := bufio.NewScanner(r.Body), 0
	for lines.Scan() {
		for _, name := range []string{"ubcoll_operations_total", "ubcoll_operation_bytes_total", "ubcoll_staged_buffers_total"} {
			if strings.HasPrefix(lines.Text(), name+`{rank="0",`) {
				fmt.Println(lines.Text())
				found++
			}
		}
	}
	if found != 3 {
		return fmt.Errorf("%s has %d of 3 lines", url, found)
	}
	return lines.Err()
}
