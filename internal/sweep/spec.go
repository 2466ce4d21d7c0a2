// Package sweep runs experiments. A TOML file lists operations, sizes, types and ways to make calls. Every combination
// is a point, which internal/bench measures. Each result is written to a file at once, so an interrupted run can
// continue.
package sweep

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/experiment"
	"github.com/ubcoll/ubcoll/internal/nearest"
)

// Spec is the contents of one file. Default has the values for what a file leaves out.
type Spec struct {
	Title string `toml:"title,omitempty"`
	Sweep Axes   `toml:"sweep"`
	Run   Run    `toml:"run"`
}

// Axes are lists. Every combination of their values is a point.
type Axes struct {
	Operation    []string     `toml:"operation"`
	Bytes        []Sizes      `toml:"bytes"`
	Type         []dtype.Type `toml:"type"`
	Reduction    []string     `toml:"reduction"`
	Variant      []string     `toml:"variant"`      // for one-sided operations; "all"
	Algorithm    []string     `toml:"algorithm"`    // for operations that have it; "auto": the library chooses
	Registration []string     `toml:"registration"` // explicit, auto, off, slices
	Device       []string     `toml:"device"`
	Graph        []int        `toml:"graph"` // launches of the graph; 0: no graph
	Ranks        []int        `toml:"ranks"` // only the first ranks; 0: all
	InPlace      []bool       `toml:"in_place"`
	Net          []string     `toml:"net"` // between hosts: auto, tcp, verbs, ofi, ofi:PROVIDER
}

// Run is how each point is measured.
type Run struct {
	Repeats    int                 `toml:"repeats"`
	Seed       int                 `toml:"seed"`       // for the order and the data
	Iterations int                 `toml:"iterations"` // 0: from size and time, as in ubcoll bench
	Warmup     int                 `toml:"warmup"`     // -1: a tenth of Iterations
	MinTime    experiment.Duration `toml:"min_time"`
	MaxTime    experiment.Duration `toml:"max_time"` // 0: no limit
	Checks     int                 `toml:"checks"`
	Loop       bool                `toml:"loop"`  // calls back to back on untouched buffers
	Churn      bool                `toml:"churn"` // also measure registering
	Root       int                 `toml:"root"`
	Timeout    experiment.Duration `toml:"timeout"`     // 0: the library's default
	NetTimeout experiment.Duration `toml:"net_timeout"` // how long another host may be silent; 0: the same
	Devices    ubcoll.DevicePolicy `toml:"devices"`     // of the job: whether its ranks use GPUs, and may share them
	NVLS       string              `toml:"nvls"`        // likewise: whether multicast objects may be made on GPUs: off, on
}

// The values of Axes.Registration.
const (
	explicit = "explicit" // buffers of Alloc; the job registers them
	auto     = "auto"     // buffers of Alloc; the library registers them
	off      = "off"      // buffers of Alloc; calls stage them
	goSlices = "slices"   // Go slices
)

var registrations = []string{explicit, auto, off, goSlices}

// auto is also the value of Axes.Algorithm, and of Net, for the library's choice. all is the value of Axes.Variant for all variants.
const all = "all"

const (
	maxPoints  = 100_000
	maxRepeats = 10_000
	maxCalls   = 10_000_000
)

// Default is the sweep of an empty file: one point, with the defaults of ubcoll bench all_reduce.
func Default() *Spec {
	d := bench.Default("all_reduce")
	return &Spec{
		Sweep: Axes{Operation: []string{"all_reduce"}, Bytes: []Sizes{{32 << 20, 32 << 20, 1}},
			Type: []dtype.Type{dtype.Float32}, Reduction: []string{"sum"}, Variant: []string{all}, Algorithm: []string{auto},
			Registration: []string{explicit}, Device: []string{bench.Host}, Graph: []int{0}, Ranks: []int{0}, InPlace: []bool{false},
			Net: []string{auto}},
		Run: Run{Repeats: 1, Seed: 1, Warmup: d.Warmup, MinTime: experiment.Duration(d.MinTime), Checks: d.Checks,
			NVLS: experiment.NVLS[0]},
	}
}

// Sizes is one size, or the sizes from one to another by a factor: "8", "64K", "8..64M x4".
type Sizes struct {
	From, To experiment.Size
	Factor   int
}

// UnmarshalText parses "FROM", or "FROM..TO xFACTOR", where the factor is 2 if left out.
func (s *Sizes) UnmarshalText(b []byte) error {
	from, rest, many := strings.Cut(string(b), "..")
	var err error
	if s.From, err = experiment.ParseSize(strings.TrimSpace(from)); err != nil {
		return err
	}
	if s.To, s.Factor = s.From, 1; !many {
		return nil
	}
	to, factor, given := strings.Cut(rest, "x")
	if s.To, err = experiment.ParseSize(strings.TrimSpace(to)); err != nil {
		return fmt.Errorf("%w; a range is FROM..TO xFACTOR, as in 8..64M x4", err)
	}
	if s.Factor = 2; given {
		f, err := experiment.ParseSize(strings.TrimSpace(factor))
		if err != nil || f < 2 || f > math.MaxInt32 {
			return fmt.Errorf("%q is no factor from 2 on; a range is FROM..TO xFACTOR, as in 8..64M x4", strings.TrimSpace(factor))
		}
		s.Factor = int(f)
	}
	switch {
	case s.From > s.To:
		return fmt.Errorf("%s goes down: want the smaller size first", b)
	case s.From == 0:
		return errors.New("a range from 0 never gets beyond it: want 1 or more")
	}
	return nil
}

// MarshalText writes the form that UnmarshalText parses.
func (s Sizes) MarshalText() ([]byte, error) {
	if s.Factor == 1 {
		return s.From.MarshalText()
	}
	return fmt.Appendf(nil, "%v..%v x%d", s.From, s.To, s.Factor), nil
}

// list returns the sizes.
func (s Sizes) list() []int {
	var l []int
	for n := s.From; ; n *= experiment.Size(s.Factor) {
		l = append(l, int(n))
		if s.Factor < 2 || n > s.To/experiment.Size(s.Factor) {
			return l
		}
	}
}

// Parse reads a sweep from data. name is the file name in its faults. The error, if any, is experiment.Faults.
func Parse(name string, data []byte) (*Spec, error) {
	s := Default()
	if err := experiment.ParseInto(name, data, s); err != nil {
		return nil, err
	}
	return s, nil
}

// FromEnvironment replaces values of s by UBCOLL_ALGO, UBCOLL_REGISTER, UBCOLL_TIMEOUT, UBCOLL_CUDA and UBCOLL_NVLS, as
// far as they are set. Devices that s requires stay required: UBCOLL_CUDA then says whether ranks may share them.
func (s *Spec) FromEnvironment() error {
	var errs []error
	set := func(is bool, key, value string, err error) {
		if is {
			errs = append(errs, err)
			if err == nil {
				errs = append(errs, experiment.Set(s, key, value))
			}
		}
	}
	a, err := env.Algorithm.Get()
	set(env.Algorithm.IsSet(), "sweep.algorithm", a, err)
	r, err := env.Register.Get()
	set(env.Register.IsSet(), "sweep.registration", r, err)
	d, err := env.Timeout.Get()
	set(env.Timeout.IsSet(), "run.timeout", d.String(), err)
	n, err := env.NetTimeout.Get()
	set(env.NetTimeout.IsSet(), "run.net_timeout", n.String(), err)
	c, err := env.CUDA.Get()
	set(env.CUDA.IsSet() && s.Run.Devices != ubcoll.DevicesRequired, "run.devices", c, err)
	v, err := env.NVLS.Get()
	set(env.NVLS.IsSet(), "run.nvls", v, err)
	return errors.Join(errs...)
}

// Validate reports every value that is out of range, as experiment.Faults without lines; nil if there is none.
func (s *Spec) Validate() error {
	var faults experiment.Faults
	bad := func(is bool, key, format string, args ...any) {
		if is {
			faults = append(faults, experiment.Fault{Key: key, Msg: fmt.Sprintf(format, args...)})
		}
	}
	oneOf := func(key string, values, words []string) {
		for _, v := range values {
			bad(!slices.Contains(words, v), key, "%s", nearest.Unknown("value", v, words))
		}
	}
	x := &s.Sweep
	oneOf("sweep.operation", x.Operation, bench.Names())
	for _, b := range x.Bytes {
		bad(b.To > 1<<40, "sweep.bytes", "must be 1024G at most, not %v", b.To)
	}
	for _, t := range x.Type {
		bad(!t.Valid(), "sweep.type", "missing")
	}
	oneOf("sweep.reduction", x.Reduction, reductions())
	oneOf("sweep.variant", x.Variant, append([]string{all}, variants()...))
	oneOf("sweep.algorithm", x.Algorithm, algorithms())
	oneOf("sweep.registration", x.Registration, registrations)
	oneOf("sweep.device", x.Device, []string{bench.Auto, bench.Host, bench.CUDA})
	for _, n := range x.Net {
		err := ubcoll.Options{Net: ubcoll.Net(n)}.Validate()
		bad(n == "" || n != auto && err != nil, "sweep.net", "%s", nearest.Unknown("value", n, nets()))
	}
	for _, n := range x.Graph {
		bad(n < 0 || n > maxRepeats, "sweep.graph", "must be 0 (no graph) to %d launches, not %d", maxRepeats, n)
	}
	for _, n := range x.Ranks {
		bad(n < 0, "sweep.ranks", "must be 0 (all) or more, not %d", n)
	}
	r := &s.Run
	bad(r.Repeats < 1 || r.Repeats > maxRepeats, "run.repeats", "must be 1 to %d, not %d", maxRepeats, r.Repeats)
	bad(r.Seed < 0 || int64(r.Seed) > math.MaxUint32, "run.seed", "must be 0 to %d, not %d", uint32(math.MaxUint32), r.Seed)
	bad(r.Iterations < 0 || r.Iterations > maxCalls, "run.iterations", "must be 0 (by size) to %d, not %d", maxCalls, r.Iterations)
	bad(r.Warmup < -1 || r.Warmup > maxCalls, "run.warmup", "must be -1 (a tenth) to %d, not %d", maxCalls, r.Warmup)
	bad(r.MinTime < 0, "run.min_time", "must be 0 or longer, not %v", r.MinTime)
	bad(r.MaxTime < 0, "run.max_time", "must be 0 (no limit) or longer, not %v", r.MaxTime)
	bad(r.Iterations == 0 && r.MaxTime > 0 && r.MaxTime < r.MinTime, "run.max_time",
		"must be 0 (no limit) or at least run.min_time, which is %v, not %v", r.MinTime, r.MaxTime)
	bad(r.Checks < 0 || r.Checks > maxRepeats, "run.checks", "must be 0 (never) to %d, not %d", maxRepeats, r.Checks)
	bad(r.Root < 0, "run.root", "must be 0 or more, not %d", r.Root)
	bad(r.Timeout < 0, "run.timeout", "must be 0 (the library's default) or longer, not %v", r.Timeout)
	err := ubcoll.Options{NetTimeout: time.Duration(r.NetTimeout)}.Validate()
	bad(err != nil, "run.net_timeout", "%v", err)
	_, err = r.Devices.MarshalText()
	bad(err != nil, "run.devices", "%v", err)
	oneOf("run.nvls", []string{r.NVLS}, experiment.NVLS)
	if n := s.product(); n > maxPoints || n*float64(r.Repeats) > 10*maxPoints {
		bad(true, "sweep", "the lists have %.3g combinations, and %.3g with repeats, more than %d and %d", n, n*float64(r.Repeats),
			maxPoints, 10*maxPoints)
	}
	if len(faults) == 0 {
		return nil
	}
	return faults
}

// product returns the number of combinations.
func (s *Spec) product() float64 {
	x, sizes := &s.Sweep, 0
	for _, b := range x.Bytes {
		sizes += len(b.list())
	}
	n := float64(sizes)
	for _, k := range []int{len(x.Operation), len(x.Type), len(x.Reduction), len(x.Algorithm), len(x.Registration),
		len(x.Device), len(x.Graph), len(x.Ranks), len(x.InPlace), len(x.Net)} {
		n *= float64(k)
	}
	return n
}

func reductions() []string { return append(slices.Clone(experiment.Ops), "mulsum") }

func algorithms() []string {
	names := []string{auto}
	for _, a := range ubcoll.Algorithms() {
		names = append(names, string(a))
	}
	return names
}

func nets() []string {
	names := []string{auto}
	for _, n := range ubcoll.Nets() {
		names = append(names, string(n))
	}
	return names
}

// variants returns the variants of all one-sided operations.
func variants() []string {
	var names []string
	for _, op := range bench.Names() {
		_, _, of := bench.Has(op)
		names = append(names, of...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
