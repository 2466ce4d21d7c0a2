package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/ubcoll/ubcoll/dtype"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/experiment"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/model"
	"github.com/ubcoll/ubcoll/internal/nearest"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

const modelUsage = `model [OP ...] [flags]

Says which way each collective takes between hosts, about how long each way takes, and at which sizes the way changes: for up
to 4096 hosts, by what moving data costs. It measures nothing and starts no job. The costs are those of the table that
UBCOLL_TUNING names, which ubcoll tune measures, or defaults. OP is one of all_reduce, broadcast, reduce, all_gather,
reduce_scatter, gather, scatter, alltoall; all of them without.

Sizes are those of ubcoll bench. Times are in microseconds; the way that the library takes has a star.`

// The most that can be asked of the model.
const (
	mostModelHosts = 4096
	mostModelRanks = 64 // of a host
)

// collectives are the operations that have ways between hosts.
var collectives = []struct {
	name string
	kind team.OpKind
}{{"all_reduce", team.KindAllReduce}, {"broadcast", team.KindBroadcast}, {"reduce", team.KindReduce}, {"all_gather", team.KindAllGather},
	{"reduce_scatter", team.KindReduceScatter}, {"gather", team.KindGather}, {"scatter", team.KindScatter},
	{"alltoall", team.KindAllToAll}}

// modelJob is the command line of model.
type modelJob struct {
	ops          []string
	hosts        []int
	ranks        int
	first, last  int
	factor       int
	costs        schedule.Model
	link         model.Link
	source, file string
}

// priceModel is the command model.
func priceModel(args []string, out io.Writer) error {
	j, err := parseModel(args, out)
	if err != nil {
		return err
	}
	rows := j.rows()
	if j.file != "" {
		f, err := os.Create(j.file)
		if err == nil {
			err = errors.Join(writeModel(f, rows), f.Close())
		}
		if err != nil {
			return fmt.Errorf("model: %w", err)
		}
	}
	return j.print(out, rows)
}

func parseModel(args []string, help io.Writer) (*modelJob, error) {
	fs := newFlags("model")
	counts := fs.String("hosts", "2,4,8,16,64,256,1024,4096", "numbers of hosts")
	ranks := fs.Int("ranks", 1, "ranks of each host")
	first := fs.String("b", "64", "smallest size")
	last := fs.String("e", "64M", "largest size")
	factor := fs.Int("f", 4, "from one size to the next")
	rate := fs.String("rate", "", "of each host's link, which its ranks share, as 25gbit or 800mbit (limits nothing)")
	net := fs.String("net", "tcp", "by what data go, as tcp or verbs")
	file := fs.String("o", "", "a CSV `file` for all times, which ubcoll plot draws")
	names, err := parseMixed(fs, args, modelUsage, help)
	if err != nil {
		return nil, err
	}
	j := &modelJob{ranks: *ranks, factor: *factor, file: *file}
	var faults []error
	bad := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	known := []string{}
	for _, k := range collectives {
		known = append(known, k.name)
	}
	j.ops = known
	if len(names) > 0 {
		j.ops, _ = operations(names, known)
	}
	for _, op := range j.ops {
		if !slices.Contains(known, op) {
			bad(errors.New(nearest.Unknown("operation", op, known)))
		}
	}
	for word := range strings.SplitSeq(*counts, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 2 || n > mostModelHosts {
			bad(fmt.Errorf("-hosts: %q: want numbers from 2 to %d", word, mostModelHosts))
		}
		j.hosts = append(j.hosts, n)
	}
	if *ranks < 1 || *ranks > mostModelRanks {
		bad(fmt.Errorf("-ranks: %d: want 1 to %d", *ranks, mostModelRanks))
	}
	if *factor < 2 {
		bad(fmt.Errorf("-f: %d: want 2 or more", *factor))
	}
	for _, s := range []struct {
		name, text string
		to         *int
	}{{"-b", *first, &j.first}, {"-e", *last, &j.last}} {
		n, err := experiment.ParseSize(s.text)
		if err == nil && (n < 1 || n > 1<<40) {
			err = fmt.Errorf("%q: want 1 to 1024G", s.text)
		}
		if err != nil {
			bad(fmt.Errorf("%s: %w", s.name, err))
		}
		*s.to = int(n)
	}
	if j.first > j.last {
		bad(fmt.Errorf("-b %s is more than -e %s", *first, *last))
	}
	j.link, err = parseRate(*rate)
	bad(err)
	t, _, err := tuning.Load()
	bad(err)
	if *net != "tcp" && *net != "verbs" {
		bad(errors.New("-net: " + nearest.Unknown("network", *net, []string{"tcp", "verbs"})))
	}
	rdma := *net == "verbs"
	if j.costs = *t.Between(rdma); t.Assumed(rdma) {
		j.source = "default costs; ubcoll tune measures those of your hosts"
	} else {
		j.source = "the costs of " + t.Machine
	}
	if len(faults) > 0 {
		return nil, usageError("model: %w", errors.Join(faults...))
	}
	return j, nil
}

// parseRate parses a rate of bits in a second, as tc has it.
func parseRate(text string) (model.Link, error) {
	if text == "" {
		return 0, nil
	}
	for _, u := range []struct {
		name  string
		scale float64
	}{{"gbit", 1e9}, {"mbit", 1e6}} {
		if number, is := strings.CutSuffix(text, u.name); is {
			if x, err := strconv.ParseFloat(number, 64); err == nil && x > 0 && x < 1e6 {
				return model.Link(8e12 / (x * u.scale)), nil
			}
		}
	}
	return 0, fmt.Errorf("-rate: %q: want a rate as 25gbit or 800mbit", text)
}

// priced is what one operation of one size takes between so many hosts.
type priced struct {
	op      string
	layout  team.Layout
	size    int
	chosen  schedule.Way
	ways    []schedule.Way
	ns      []float64 // by ways
	beyond  bool      // no communicator has so many ranks
	crossed bool      // the way is another than that of the size before
	from    int       // from this size on, if it is
}

// modelOp is an operation of float32 that has so many bytes as ubcoll bench counts them.
func modelOp(l *team.Layout, kind team.OpKind, bytes int) model.Op {
	o := model.Op{Kind: kind, Size: dtype.Float32.Size(), Count: bytes / dtype.Float32.Size()}
	switch kind {
	case team.KindAllReduce, team.KindBroadcast, team.KindReduce:
	default:
		o.Count /= l.Ranks
	}
	return o
}

// rows prices all that was asked for.
func (j *modelJob) rows() (all []priced) {
	for _, op := range collectives {
		if !slices.Contains(j.ops, op.name) {
			continue
		}
		for _, n := range j.hosts {
			l := hosts.LayoutOf(slices.Repeat([]int{j.ranks}, n))
			before, below := schedule.Way(0), 0
			for size := j.first; size <= j.last; size *= j.factor {
				o := modelOp(&l, op.kind, size)
				if o.Count == 0 {
					continue
				}
				p := priced{op: op.name, layout: l, size: size, beyond: l.Ranks > team.MaxRanks, chosen: model.Chosen(&l, &j.costs, "", o)}
				if way := model.Small(&l, o); way != 0 {
					p.ways = append(p.ways, way)
				}
				for _, way := range append(p.ways, model.Ways(&l, o)...) {
					if !slices.Contains(p.ways, way) {
						p.ways = append(p.ways, way)
					}
				}
				for _, way := range p.ways {
					p.ns = append(p.ns, model.Time(&l, &j.costs, j.link, o, way))
				}
				if p.crossed = before != 0 && p.chosen != before; p.crossed {
					p.from = j.crossing(&l, op.kind, below, size)
				}
				before, below = p.chosen, size
				all = append(all, p)
			}
		}
	}
	return all
}

// crossing is about the least size at which the way of a larger size is taken, after one at which another is.
func (j *modelJob) crossing(l *team.Layout, kind team.OpKind, below, size int) int {
	way := func(size int) schedule.Way { return model.Chosen(l, &j.costs, "", modelOp(l, kind, size)) }
	for want := way(size); size-below > 1+below/1000; {
		if mid := below + (size-below)/2; way(mid) == want {
			size = mid
		} else {
			below = mid
		}
	}
	return size
}

// print writes the tables.
func (j *modelJob) print(out io.Writer, rows []priced) error {
	fmt.Fprintf(out, "# by %s\n# a round of agreement %d ns, a message %d ns; a byte sent %d ps, exchanged %d, combined %d, relayed %d, around a ring %d\n",
		j.source, j.costs.Agree, j.costs.Message, j.costs.Send, j.costs.Swap, j.costs.Combine, j.costs.Relay, j.costs.Around)
	if j.link > 0 {
		fmt.Fprintf(out, "# links of %.4g GB/s, which the ranks of a host share\n", 1000/float64(j.link))
	}
	for len(rows) > 0 {
		n := slices.IndexFunc(rows, func(p priced) bool { return p.op != rows[0].op || p.layout != rows[0].layout })
		if n < 0 {
			n = len(rows)
		}
		if err := printModel(out, rows[:n]); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// printModel writes the table of one operation between so many hosts.
func printModel(out io.Writer, rows []priced) error {
	l := &rows[0].layout
	fmt.Fprintf(out, "\n%s, %s", rows[0].op, plural.Count(l.Hosts, "host"))
	if l.Most > 1 {
		fmt.Fprintf(out, " of %d ranks, %s", l.Most, plural.Count(l.Lanes, "lane"))
	}
	if rows[0].beyond {
		fmt.Fprintf(out, " (the model's alone: a communicator has %d ranks at most)", team.MaxRanks)
	}
	fmt.Fprintln(out)
	var names []string
	for _, p := range rows {
		for _, way := range p.ways {
			if !slices.Contains(names, way.String()) {
				names = append(names, way.String())
			}
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "size\t%s\t\n", strings.Join(names, "\t"))
	for _, p := range rows {
		fmt.Fprintf(w, "%d\t", p.size)
		for _, name := range names {
			i := slices.IndexFunc(p.ways, func(way schedule.Way) bool { return way.String() == name })
			if i < 0 {
				fmt.Fprint(w, "\t")
				continue
			}
			star := " "
			if p.ways[i] == p.chosen {
				star = "*"
			}
			fmt.Fprintf(w, "%.4g%s\t", p.ns[i]/1e3, star)
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	text := rows[0].chosen.String()
	for _, p := range rows {
		if p.crossed {
			text += fmt.Sprintf(", %v from %d bytes", p.chosen, p.from)
		}
	}
	_, err := fmt.Fprintf(out, "takes %s\n", text)
	return err
}

// writeModel writes all times as CSV, which ubcoll plot reads.
func writeModel(w io.Writer, rows []priced) error {
	c := csv.NewWriter(w)
	_ = c.Write(strings.Split("operation,hosts,ranks,lanes,requested_algorithm,size,time,bus_bw,algorithm,chosen,model_only", ",")) // Error tells
	for _, p := range rows {
		for i, way := range p.ways {
			us := p.ns[i] / 1e3
			_, bus := measure.Bandwidth(p.op, p.layout.Ranks, p.size, us)
			_ = c.Write([]string{p.op, fmt.Sprint(p.layout.Hosts), fmt.Sprint(p.layout.Ranks), fmt.Sprint(p.layout.Lanes), way.String(),
				fmt.Sprint(p.size), fmt.Sprintf("%.6g", us), fmt.Sprintf("%.6g", bus), way.String(), fmt.Sprint(way == p.chosen),
				fmt.Sprint(p.beyond)})
		}
	}
	c.Flush()
	return c.Error()
}
