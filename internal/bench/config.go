// Package bench measures the collectives. It has the loop, the columns and the files of nccl-tests. For host memory it
// adds a protocol in which the data really move between cores.
package bench

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/nearest"
	"github.com/ubcoll/ubcoll/internal/schedule"
)

// How the ranks' times of one call are combined: nccl-tests' -a.
const (
	FromRank0 = iota
	Mean
	Min
	Max // the slowest rank counts
)

// Kinds of buffers: nccl-tests' -R.
const (
	GoSlices   = iota // not registered: on the Go heap, or from Alloc on a device
	Registered        // from Alloc, registered once over their whole length
	Symmetric         // in symmetric windows; not in this version
	Allocated         // from Alloc; Options.Register decides whether the library registers them
)

// Where the buffers are. Auto takes each rank's GPU if all ranks have one, and the operation runs on GPUs. Otherwise it
// takes host memory.
const (
	Auto = "auto"
	Host = "host"
	CUDA = "cuda"
)

var devices = []string{Auto, Host, CUDA}

// Which of the two variants is measured. The empty string means both.
const (
	OutOfPlace = "out"
	InPlace    = "in"
)

// Config says what to measure. All ranks pass the same one. Default returns the defaults of nccl-tests, with two
// differences: buffers are registered, and the slowest rank's time counts. Unregistered device memory can be measured
// only if the job's Options.Register is not Auto: with Auto the library registers memory of Alloc at its first use.
type Config struct {
	Op         string // "all_reduce", ...; see Names
	MinBytes   int    // of the larger of a rank's two buffers, as nccl-tests counts
	MaxBytes   int
	StepBytes  int
	StepFactor int   // if over 1, each size is multiplied by it, and StepBytes is ignored
	Also       []int // more sizes, between MinBytes and MaxBytes

	Device string // Auto, Host, CUDA

	// Timed calls of each size. 0 = 2000 below 64 KiB, 400 below 4 MiB, else 20, and then more until they have taken
	// MinTime. A MinTime below the default makes that number smaller in proportion, down to 5; 0 leaves it, and adds no
	// more. Queued calls: 20, whatever MinTime is.
	Iterations int
	MinTime    time.Duration

	// How long the calls of a size may take, untimed ones and what lies between calls included; 0 = no limit. At least one
	// call is timed. Checks, and the calls of Overlap, come on top.
	MaxTime time.Duration

	Warmup    int  // untimed calls first; -1 = a tenth of the timed ones; queued calls: 5
	Graphs    int  // launches of a graph that holds the timed calls, a quarter as many from 64 MiB on; 0 = no graph
	Skip      int  // how many of the first timed calls the statistics leave out
	Aggregate int  // operations in one timed call, as one group
	Window    int  // messages in flight in each pair, for mbw_mr; puts, for put_bw
	Cycles    int  // how often to go through all sizes; 0 = until interrupted
	Loop      bool // time calls back to back, not each by itself
	Checks    int  // how often to check every element, each time with other data; 0 = never

	Types      []dtype.Type // each is measured
	Reductions []ubcoll.Op  // each is measured, by operations that reduce
	Variants   []string     // of one-sided operations; nil = all
	Only       string       // OutOfPlace, InPlace; "" = both
	Root       int          // -1: every rank in turn
	Buffers    int          // GoSlices, Registered, Allocated
	Average    int          // FromRank0, Mean, Min, Max
	MinBusBW   float64      // the run fails if the average is lower, in GB/s; 0 = no minimum
	Seed       uint64       // of the data

	PerCall    bool // add columns with the spread of single calls: nccl-tests' -I
	Timestamps bool
	Overlap    bool // also measure how much of a queued call overlaps with computation
	Paths      bool // print a comment after each size that says which path it took
	Explain    bool // add columns that say how the data moved: see explained
	Cache      bool // measure the registration cache too
}

// Default returns a Config that measures op on 32 MiB of registered float32, with sums. One-sided operations take 1 KiB
// to 128 MiB, a range with the three sizes of MSCCL++'s tutorial in it. mbw_mr, put_bw and accumulate take 8 bytes to 4 MiB,
// the largest size of OSU's.
func Default(op string) Config {
	c := Config{Op: op, MinBytes: 32 << 20, MaxBytes: 32 << 20, StepBytes: 1 << 20, StepFactor: 1, Warmup: -1,
		Aggregate: 1, Window: defaultWindow, Cycles: 1, Checks: 1, Device: Host, Types: []dtype.Type{dtype.Float32},
		Reductions: []ubcoll.Op{ubcoll.Sum}, Buffers: Registered, Average: Max, Seed: 1, MinTime: usualTime}
	switch o := operationOf(op); {
	case o == nil:
	case o.bytes > 0:
		c.MinBytes, c.MaxBytes = o.bytes, o.bytes
	case o.window || o.combines:
		c.MinBytes, c.MaxBytes, c.StepFactor = 8, 4<<20, 2
	case o.open != nil:
		c.MinBytes, c.MaxBytes, c.StepFactor = 1<<10, 128<<20, 2
	}
	return c
}

// Validate reports everything that is wrong with c in a job of any size.
func (c *Config) Validate() error {
	var errs []error
	bad := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, ubcoll.ErrArgument)...))
		}
	}
	bad(operationOf(c.Op) == nil, "%s", nearest.Unknown("operation", c.Op, Names()))
	bad(c.MinBytes < 0 || c.MaxBytes < c.MinBytes, "sizes from %d to %d bytes (-b, -e): want the larger one last", c.MinBytes, c.MaxBytes)
	bad(c.StepFactor < 1, "step factor %d (-f): want 1 or more", c.StepFactor)
	bad(c.StepFactor == 1 && c.StepBytes < 1, "step of %d bytes (-i): want 1 or more", c.StepBytes)
	bad(c.StepFactor > 1 && c.MinBytes == 0, "a step factor (-f) never gets beyond size 0 (-b)")
	for _, n := range c.Also {
		bad(n < c.MinBytes || n > c.MaxBytes, "a size of %d bytes (--also): want one between %d and %d (-b, -e)", n, c.MinBytes,
			c.MaxBytes)
	}
	bad(!slices.Contains(devices, c.Device), "%s", nearest.Unknown("device", c.Device, devices))
	bad(c.Iterations < 0, "%d iterations (-n): want 1 or more, or 0, which is by size", c.Iterations)
	bad(c.MinTime < 0 || c.MaxTime < 0, "calls of %v to %v: want times of 0 or more", c.MinTime, c.MaxTime)
	bad(c.Iterations == 0 && c.MaxTime > 0 && c.MaxTime < c.MinTime, "calls of %v at least and %v at most", c.MinTime, c.MaxTime)
	bad(c.Graphs < 0, "%d launches of a graph (-G): want 1 or more, or 0 for no graph", c.Graphs)
	bad(c.Warmup < -1, "%d warm-up calls (-w): want 0 or more", c.Warmup)
	bad(c.Skip < 0 || c.Iterations > 0 && c.Skip >= c.Iterations, "%d calls to skip of %d (-K, -n): want 0 or more, and fewer than are timed", c.Skip, c.Iterations)
	_, timed := c.calls(c.MaxBytes)
	bad(c.Iterations == 0 && c.Skip >= timed, "%d calls to skip of %d (-K, -n): want 0 or more, and fewer than are timed", c.Skip, timed)
	bad(c.Aggregate < 1, "%d operations in a call (-m): want 1 or more", c.Aggregate)
	bad(c.Window < 1, "a window of %d messages (-W): want 1 or more", c.Window)
	bad(c.Cycles < 0, "%d cycles (-N): want 1 or more, or 0, which is for ever", c.Cycles)
	bad(c.Checks < 0, "%d checks (-c): want 1 or more, or 0 for none", c.Checks)
	bad(len(c.Types) == 0, "no element type")
	bad(len(c.Reductions) == 0, "no reduction")
	bad(c.Root < -1, "root %d (-r): want a rank, or -1 for each in turn", c.Root)
	bad(c.Buffers < GoSlices || c.Buffers > Allocated, "buffers of kind %d (-R): want 0, 1 or 3", c.Buffers)
	bad(c.Average < FromRank0 || c.Average > Max, "average of kind %d (-a): want 0, 1, 2 or 3", c.Average)
	bad(c.PerCall && (c.Loop || c.queued()), "a loop has no times of single calls (-I beside --loop, on devices or in graphs)")
	most := func(n, limit int, format string) {
		if n > limit {
			errs = append(errs, fmt.Errorf(format+", more than %d: ask for less: %w", n, limit, ubcoll.ErrLimit))
		}
	}
	most(c.Window, maxWindow, "a window of %d messages (-W)")
	most(timed, maxIterations, "%d timed calls (-n)")
	if c.StepBytes > 0 && c.StepFactor == 1 {
		most((c.MaxBytes-c.MinBytes)/c.StepBytes, maxSizes, "%d sizes (-b, -e, -i, -f)")
	}
	most(c.held(c.MaxBytes), maxQueued, "%d operations at once (-m, and in graphs -n and -G times that)")
	if c.Buffers == Symmetric {
		errs = append(errs, fmt.Errorf("symmetric windows in this version: %w", fault.ErrNotSupported))
	}
	o := operationOf(c.Op)
	bad(o != nil && len(c.Types) > 0 && len(c.Reductions) > 0 && !c.exists(o), "no %v of %v: only max and min (-o, -d)",
		c.Reductions, c.Types)
	bad(o != nil && o.outOfPlace && c.Only == InPlace, "%s has no variant that is in place", c.Op)
	if o != nil {
		for _, v := range c.Variants {
			bad(!slices.Contains(o.variants, v), "%s has no variant %q%s", c.Op, v, nearest.Hint(v, o.variants))
		}
	}
	bad(o != nil && c.Overlap && o.trips > 0, "overlap is measured of collectives, not of %s (--overlap)", c.Op)
	oneSided := o != nil && o.open != nil
	bad(oneSided && c.Buffers != Registered, "%s moves registered memory only (-R 1)", c.Op)
	// Calls use two areas for packets in turn. Each launch of a graph must begin with the area that the launch before
	// it did not end with.
	bad(oneSided && c.Graphs > 0 && timed*c.Aggregate%2 == 1, "%d calls in a graph: -n times -m must be even", timed*c.Aggregate)
	if o != nil && o.trips > 0 && (c.Device == Host && c.Graphs > 0 || c.queued() && !o.device) {
		errs = append(errs, fmt.Errorf("%s on devices or in graphs: %w", c.Op, fault.ErrNotSupported))
	}
	return errors.Join(errs...)
}

// exists reports whether o works with at least one of the types and one of the reductions.
func (c *Config) exists(o *operation) bool {
	return slices.ContainsFunc(c.Types, func(t dtype.Type) bool {
		return slices.ContainsFunc(c.Reductions, func(red ubcoll.Op) bool { return o.takes(t, red) })
	})
}

// sizes returns the sizes in bytes, in ascending order.
func (c *Config) sizes() []int {
	all := slices.Clone(c.Also)
	for n := c.MinBytes; n <= c.MaxBytes; {
		all = append(all, n)
		if c.StepFactor > 1 && n > c.MaxBytes/c.StepFactor || c.StepFactor <= 1 && c.StepBytes > c.MaxBytes-n {
			break // the next size would be too large, perhaps for an int
		}
		if c.StepFactor > 1 {
			n *= c.StepFactor
		} else {
			n += c.StepBytes
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Iterations returns how many calls of a size give a steady median.
func Iterations(bytes int) int {
	switch {
	case bytes < 64<<10:
		return 2000
	case bytes < 4<<20:
		return 400
	}
	return 20
}

// more returns how many calls to make after n calls, so that all together take MinTime. us is the time of the n calls,
// in microseconds. more returns 0 if Iterations is set.
func (c *Config) more(n int, us float64) int {
	least := float64(c.MinTime) / 1e3
	if c.Iterations > 0 || us >= least || n >= mostByTime {
		return 0
	}
	want := 1.1 * least / max(us, 1e-3) * float64(n) // 10 % more, or another round would often follow
	return min(max(int(want), n+n/10+1), mostByTime) - n
}

// usualTime is the default of MinTime. Iterations are for it.
const usualTime = 50 * time.Millisecond

// fewest is the least number of timed calls that MinTime leads to.
const fewest = 5

// mostByTime is the largest number of calls that MinTime leads to. It bounds the list of times, and the time that
// barriers and rewriting take between the calls.
const mostByTime = 1_000_000

// calls returns how many untimed and timed calls of this size are made. MinTime may add timed ones.
func (c *Config) calls(bytes int) (warmup, timed int) {
	timed, warmup = c.Iterations, c.Warmup
	if c.queued() { // nccl-tests' numbers
		if timed == 0 {
			timed = 20
		}
		if warmup < 0 {
			warmup = 5
		}
		return warmup, timed
	}
	if timed == 0 {
		timed = Iterations(product(bytes, c.messages()))
		if c.MinTime > 0 && c.MinTime < usualTime {
			timed = max(fewest, int(float64(timed)*float64(c.MinTime)/float64(usualTime)))
		}
	}
	if warmup < 0 {
		warmup = max(1, timed/10)
	}
	return warmup, timed
}

// launches returns how often the graph of a size is launched.
func (c *Config) launches(bytes int) int {
	if bytes < 64<<20 {
		return c.Graphs
	}
	return max(min(c.Graphs, 2), c.Graphs/4)
}

// queued reports whether calls go to a stream, back to back, and are timed together. On a device, the time of a single
// call would include how long the host takes to notice its end.
func (c *Config) queued() bool { return c.Device == CUDA || c.Graphs > 0 }

// Names returns the names of the operations that can be measured.
func Names() []string {
	var all []string
	for _, o := range slices.Concat(operations, oneSided) {
		all = append(all, o.name)
	}
	return all
}

// Has reports whether the named operation reduces and whether it runs in place, and returns its variants if it is
// one-sided. For an unknown operation it returns false, false, nil.
func Has(name string) (reduces, inPlace bool, variants []string) {
	o := operationOf(name)
	if o == nil {
		return false, false, nil
	}
	return o.reduces, !o.outOfPlace, o.variants
}

// Fixed returns what the named operation has only one of: its element type, if that is valid, and its size in bytes, if that
// is not negative.
func Fixed(name string) (t dtype.Type, bytes int) {
	switch o := operationOf(name); {
	case o == nil:
	case name == barrier:
		return dtype.Invalid, 0
	case o.bytes > 0:
		return o.elements, o.bytes
	default:
		return o.elements, -1
	}
	return dtype.Invalid, -1
}

// Algorithms returns the names of the algorithms that the named operation can be asked for: those of all-reduces on one host, and
// the ways between hosts. An operation with one way has none to ask for.
func Algorithms(name string) []string {
	var all []string
	for _, a := range ubcoll.Algorithms() {
		if name == "all_reduce" && !BetweenHosts(string(a)) {
			all = append(all, string(a))
		}
	}
	ways := schedule.Ways(name)
	for _, w := range ways {
		if s := w.String(); len(ways) > 1 && !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// BetweenHosts reports whether an algorithm of that name is for data that move between hosts alone. A ring is also one of
// the ranks of a host.
func BetweenHosts(algorithm string) bool {
	if algorithm == schedule.Ring.String() {
		return false
	}
	for _, o := range operations {
		for _, w := range schedule.Ways(o.name) {
			if w.String() == algorithm {
				return true
			}
		}
	}
	return false
}

// Fits returns an error if c, which is valid, cannot be measured on this many ranks: there is no such root, mbw_mr or put_bw
// lacks an even number of ranks, or the smallest size gives some rank no element.
func (c *Config) Fits(ranks int) error {
	o := operationOf(c.Op)
	if err := c.fits(ranks); err != nil {
		return err
	}
	types := c.Types
	switch {
	case o.elements == dtype.Uint8 || o.bytes > 0 || o.name == barrier:
		return nil
	case o.elements.Valid():
		types = []dtype.Type{o.elements}
	}
	for _, t := range types {
		if s := o.shape(place{ranks: ranks, root: max(0, c.Root)}, c.MinBytes/t.Size()); s.param == 0 {
			return fmt.Errorf("%d bytes have no %v for each of %d ranks: %w", c.MinBytes, t, ranks, ubcoll.ErrArgument)
		}
	}
	return nil
}

// fits checks the root and the number of ranks, not the sizes.
func (c *Config) fits(ranks int) error {
	if c.Root >= ranks {
		return fmt.Errorf("root %d of %d ranks: %w", c.Root, ranks, ubcoll.ErrArgument)
	}
	if o := operationOf(c.Op); o != nil && o.window && ranks%2 == 1 {
		return fmt.Errorf("%s has rank i send to rank i+n/2: want an even number of ranks, not %d: %w", c.Op, ranks,
			ubcoll.ErrArgument)
	}
	return nil
}

// Possible returns the configurations that can be measured on this many ranks, and for each other one the reason why it
// cannot.
func Possible(all []Config, ranks int) (can []Config, why []error) {
	for _, c := range all {
		if err := errors.Join(c.Validate(), c.fits(ranks)); err != nil {
			why = append(why, err)
		} else {
			can = append(can, c)
		}
	}
	return can, why
}

// Bandwidth returns two bandwidths of an operation, in GB/s. us is the time of a call that moves this many bytes, in
// microseconds. alg counts the bytes once, bus counts them as often as they cross the busiest link. Both are 0 if us is
// 0 or less, or if the operation is unknown.
func Bandwidth(op string, ranks, bytes int, us float64) (alg, bus float64) {
	o := operationOf(op)
	if o == nil || us <= 0 {
		return 0, 0
	}
	alg = float64(bytes) / 1e3 / us
	return alg, alg * o.bus(float64(ranks))
}

// Verifiable returns the names of the operations that Verify takes: operations whose results can be checked.
func Verifiable() []string {
	var all []string
	for _, o := range operations {
		if o.name != barrier && o.name != multiPair { // mbw_mr sends the same messages as sendrecv
			all = append(all, o.name)
		}
	}
	return all
}

func operationOf(name string) *operation {
	for _, table := range [][]operation{operations, oneSided} {
		for i := range table {
			if table[i].name == name {
				return &table[i]
			}
		}
	}
	return nil
}
