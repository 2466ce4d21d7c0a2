// Package rdma measures RDMA verbs between two ranks, by the method and in the columns of perftest; and what it costs
// to register memory with an RDMA device.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strconv"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// Config says what to measure. Both ranks need the same.
type Config struct {
	MinBytes, MaxBytes int // for messages; each size is twice the one before
	Iterations         int // 0 = by size: 2000 below 64 KiB, 400 below 4 MiB, else 20
	// MaxRegion is the largest region to register: 0 = none, -1 = 256 MiB, or less if the limits of the process or the
	// machine allow less.
	MaxRegion int
	Devices   string // see verbs.ParseSelection: the first active port selected is used
	GID       int    // index in the port's table; -1 = see verbs.ChooseGID
}

// Default is 8 bytes to 1 MiB, on the first device.
func Default() Config { return Config{MinBytes: 8, MaxBytes: 1 << 20, MaxRegion: -1, GID: -1} }

// Limits on values that determine the length of lists, and on the messages of an InfiniBand port.
const (
	mostIterations = 1_000_000
	mostBytes      = 1 << 30
	mostRegion     = 1 << 40
)

// Validate reports everything that is wrong with c.
func (c *Config) Validate() error {
	var errs []error
	bad := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, ubcoll.ErrArgument)...))
		}
	}
	bad(c.MinBytes < 8 || c.MinBytes%8 != 0, "messages from %d bytes (-b): want a multiple of 8, since the last word is what the "+
		"peer waits for", c.MinBytes)
	bad(c.MaxBytes < c.MinBytes || c.MaxBytes > mostBytes, "messages from %d to %d bytes (-b, -e): want more at the end, 1G at most",
		c.MinBytes, c.MaxBytes)
	bad(c.Iterations < 0 || c.Iterations > mostIterations, "%d iterations (-n): want 1 to %d", c.Iterations, mostIterations)
	bad(c.MaxRegion < -1 || c.MaxRegion > 0 && c.MaxRegion < leastRegion || c.MaxRegion > mostRegion,
		"regions of %d bytes (-max): want %d at least, or 0 for none", c.MaxRegion, leastRegion)
	bad(c.GID < -1, "row %d of the table of GIDs (-gid): want 0 or more, or -1, which takes the best", c.GID)
	_, err := verbs.ParseSelection(c.Devices)
	return errors.Join(append(errs, err)...)
}

// sizes returns the message sizes.
func (c *Config) sizes() (all []int) {
	for n := c.MinBytes; n <= c.MaxBytes; n *= 2 {
		all = append(all, n)
	}
	return all
}

// calls returns how many operations of a size are timed, and a tenth as many before that are not.
func (c *Config) calls(bytes int) (warmup, timed int) {
	if timed = c.Iterations; timed == 0 {
		timed = bench.Iterations(bytes)
	}
	return max(1, timed/10), timed
}

// SchemaVersion is the version of files with a Report. It changes when a key changes its meaning or is removed.
const SchemaVersion = 1

// Report is all that a run has found.
type Report struct {
	Schema  int               `json:"schema_version"`
	Version string            `json:"ubcoll_version"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"` // the project's variables that are set, except secrets
	Start   time.Time         `json:"start_time"`
	End     time.Time         `json:"end_time"`
	Ranks   []Side            `json:"ranks"`

	Registration []Registration `json:"registration"`
	Limit        string         `json:"registration_limit"` // why there is no larger region, if the largest is not the one asked for
	Latency      []Latency      `json:"latency"`
	Bandwidth    []Bandwidth    `json:"bandwidth"`
	Wrong        int            `json:"wrong"` // words that did not arrive as they were sent
	Errors       []string       `json:"errors"`
}

// Registration is the cost of one region. Nothing is transferred, and only rank 0 works.
type Registration struct {
	Bytes     int   `json:"bytes"`
	Resident  Cost  `json:"resident"`  // memory whose pages all exist
	Untouched Cost  `json:"untouched"` // memory without pages: the kernel makes and clears them
	Hit       Times `json:"cache_hit"` // looking the region up in the registration cache
}

// Cost is the cost of making and of closing a region.
type Cost struct {
	Register   stats.Spread `json:"register"`
	Deregister stats.Spread `json:"deregister"`
}

// Times are times of lookups, in nanoseconds.
type Times struct {
	P50 float64 `json:"p50_ns"`
	P99 float64 `json:"p99_ns"`
}

// Latency is how long one operation takes with no other under way. For put it is half the time until the peer, which
// polls for its last word, has answered with the same. For others it is the time until completion.
type Latency struct {
	Op    string `json:"operation"`
	Bytes int    `json:"bytes"`
	stats.Spread
}

// Bandwidth is the throughput with several operations under way.
type Bandwidth struct {
	Op          string  `json:"operation"`
	Bytes       int     `json:"bytes"`
	Iterations  int     `json:"iterations"`
	Outstanding int     `json:"outstanding"`
	Peak        float64 `json:"peak_mib_s"` // of the fastest sequence of consecutive operations; 0 = not computed
	Average     float64 `json:"average_mib_s"`
	Rate        float64 `json:"rate_mpps"` // million operations per second
}

// The operations. The atomic ones have 8 bytes.
const (
	put         = "put"
	get         = "get"
	fetchAdd    = "fetch_add"
	compareSwap = "compare_swap"
)

var operations = []struct {
	name     string
	op       verbs.Op
	atomic   bool
	latency  string // perftest's programs for it
	transfer string
}{
	{put, verbs.Write, false, "ib_write_lat", "ib_write_bw"},
	{get, verbs.Read, false, "ib_read_lat", "ib_read_bw"},
	{fetchAdd, verbs.FetchAdd, true, "ib_atomic_lat", "ib_atomic_bw"},
	{compareSwap, verbs.CompareSwap, true, "ib_atomic_lat -A CMP_AND_SWAP", "ib_atomic_bw -A CMP_AND_SWAP"},
}

// Run measures what cfg says between the two ranks of c. Rank 0 registers, puts and gets. Rank 1 answers puts where
// they are timed, and otherwise sleeps. Collective: both call it with the same cfg. Rank 0 writes the table to out as
// it grows, and returns the report. With an error the report has what was measured before; it is nil if nothing was.
// The error wraps fault.ErrNotSupported if either rank has no RDMA device, and bench.ErrFailed if data did not arrive
// as they were sent.
func Run(ctx context.Context, c *ubcoll.Comm, cfg Config, p bench.Program, out io.Writer) (_ *Report, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if c.Size() != 2 {
		return nil, fmt.Errorf("bench mr measures between 2 ranks, and the job has %d: %w", c.Size(), ubcoll.ErrArgument)
	}
	if c.Rank() != 0 {
		out = io.Discard
	}
	if err := bench.CheckMemory(ctx, c, "messages of "+strconv.Itoa(cfg.MaxBytes)+" bytes (-e)", 2*cfg.MaxBytes); err != nil {
		return nil, err
	}
	r := &runner{c: c, cfg: &cfg, text: &text{w: out}, rep: &Report{Schema: SchemaVersion, Version: p.Version, Args: p.Args,
		Env: bench.Environment(), Start: time.Now().UTC(), Registration: []Registration{}, Latency: []Latency{},
		Bandwidth: []Bandwidth{}, Errors: []string{}}}
	if r.end, r.rep.Ranks, err = connect(ctx, c, &cfg); err != nil {
		return nil, err
	}
	err = errors.Join(r.run(ctx), r.end.close(), r.text.err)
	r.rep.End = time.Now().UTC()
	if err == nil && r.rep.Wrong > 0 {
		err = fmt.Errorf("%s: %w", plural.Count(r.rep.Wrong, "wrong word"), bench.ErrFailed)
	}
	if err != nil {
		r.rep.Errors = append(r.rep.Errors, err.Error())
	}
	return r.rep, err
}

type runner struct {
	c    *ubcoll.Comm
	cfg  *Config
	rep  *Report
	text *text
	end  *end
}

func (r *runner) run(ctx context.Context) error {
	runtime.LockOSThread() // changing the thread in between would cost more than a message
	defer runtime.UnlockOSThread()
	r.text.header(r.rep)
	if r.cfg.MaxRegion != 0 {
		one := r.registrations
		if r.c.Rank() != 0 {
			one = r.end.idle
			if err := r.end.rest(); err != nil {
				return err
			}
		}
		if err := one(ctx); err != nil {
			return err
		}
		if r.c.Rank() == 0 {
			if err := r.end.wake(ctx); err != nil {
				return err
			}
		}
	}
	atomics := true
	for _, s := range r.rep.Ranks {
		atomics = atomics && s.Atomics
	}
	for _, bandwidth := range []bool{false, true} {
		for _, o := range operations {
			sizes := r.cfg.sizes()
			if o.atomic {
				sizes = []int{8}
			}
			if o.atomic && !atomics {
				r.text.printf("# %s: a device has no atomic operations\n", o.name)
				continue
			}
			if bandwidth {
				r.text.bandwidths(o.name, o.transfer)
			} else {
				r.text.latencies(o.name, o.latency)
			}
			for _, n := range sizes {
				if err := r.measure(ctx, o.name, o.op, n, bandwidth); err != nil {
					return fmt.Errorf("%s of %d bytes: %w", o.name, n, err)
				}
			}
		}
	}
	r.text.footer(r.rep)
	return nil
}

// measure times one operation at one size, and checks what has arrived.
func (r *runner) measure(ctx context.Context, name string, op verbs.Op, n int, bandwidth bool) error {
	e, sends := r.end, r.c.Rank() == 0
	warmup, timed := r.cfg.calls(n)
	e.prepare(op, n)
	pingPong := !bandwidth && op == verbs.Write
	if !sends && !pingPong {
		if err := e.rest(); err != nil {
			return err
		}
	}
	runtime.GC() // so that nothing is left to collect during the calls, which allocate nothing
	if err := coll.Barrier(ctx, r.c); err != nil {
		return err
	}
	var err error
	checked, answered := n, false
	switch us := []float64(nil); {
	case pingPong:
		checked, answered = n-8, true // the last word has been waited for
		if us, err = e.pingPong(ctx, warmup+timed); err == nil && sends {
			r.latency(name, n, us[warmup:])
		}
	case !sends:
		err = e.idle(ctx)
	case bandwidth:
		if _, _, err = e.stream(ctx, warmup); err != nil {
			break
		}
		var began, ended []time.Duration
		if began, ended, err = e.stream(ctx, timed); err == nil {
			r.bandwidth(name, n, began, ended)
			err = e.wake(ctx)
		}
	default:
		if us, err = e.oneByOne(ctx, warmup+timed); err == nil {
			r.latency(name, n, us[warmup:])
			err = e.wake(ctx)
		}
	}
	if err != nil {
		return err
	}
	if err := coll.Barrier(ctx, r.c); err != nil {
		return err
	}
	wrong := []int64{int64(e.wrong(op, checked, warmup+timed, answered))}
	if err := coll.AllReduce(ctx, r.c, ubcoll.Of(wrong), ubcoll.Of(wrong), ubcoll.Sum); err != nil {
		return err
	}
	r.rep.Wrong += int(wrong[0])
	return nil
}

func (r *runner) latency(name string, n int, us []float64) {
	l := Latency{name, n, stats.SpreadOf(us)}
	r.rep.Latency = append(r.rep.Latency, l)
	r.text.latency(&l)
}

func (r *runner) bandwidth(name string, n int, began, ended []time.Duration) {
	count := len(began)
	seconds := (ended[count-1] - began[0]).Seconds()
	b := Bandwidth{Op: name, Bytes: n, Iterations: count, Outstanding: outstanding,
		Average: float64(count) * float64(n) / mib / seconds, Rate: float64(count) / seconds / 1e6}
	if best := shortest(began, ended); best > 0 {
		b.Peak = float64(n) / mib / best.Seconds()
	}
	r.rep.Bandwidth = append(r.rep.Bandwidth, b)
	r.text.bandwidth(&b)
}

const mib = 1 << 20

// mostPeak is the most operations for which the fastest sequence is searched, since that takes quadratic time. It is
// perftest's limit.
const mostPeak = 20_000

// shortest returns the least average time of an operation over any consecutive operations, from when the first was
// posted until the last was seen to be complete.
func shortest(began, ended []time.Duration) time.Duration {
	if len(began) > mostPeak {
		return 0
	}
	best := time.Duration(math.MaxInt64)
	for j, end := range ended {
		if j+1 < len(ended) && ended[j+1] == end {
			continue // seen together
		}
		for i := range j + 1 {
			best = min(best, (end-began[i])/time.Duration(j-i+1))
		}
	}
	return best
}
