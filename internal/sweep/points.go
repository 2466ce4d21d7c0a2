package sweep

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/experiment"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/register"
)

// Point is one combination: all that a result depends on. An axis that an operation does not have is "".
type Point struct {
	Operation    string `json:"operation"`
	Bytes        int    `json:"bytes"`
	Type         string `json:"type"`
	Reduction    string `json:"reduction"`
	Variant      string `json:"variant"`
	Algorithm    string `json:"requested_algorithm"`
	Registration string `json:"registration"`
	Device       string `json:"device"`
	Graph        int    `json:"graph"`
	Ranks        int    `json:"ranks"`
	Net          string `json:"net"` // as ubcoll.Net
	InPlace      bool   `json:"in_place"`
}

// String returns the point in one line for people, without the axes that it does not have.
func (p Point) String() string {
	words := []string{p.Operation, experiment.Size(p.Bytes).String(), p.Type, p.Reduction, p.Variant, p.Algorithm, p.Registration,
		p.Device, p.Net}
	if p.Graph > 0 {
		words = append(words, fmt.Sprintf("graph=%d", p.Graph))
	}
	words = append(words, fmt.Sprintf("ranks=%d", p.Ranks))
	if p.InPlace {
		words = append(words, "in_place")
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

// Skipped are combinations that cannot be measured, with the reason.
type Skipped struct {
	Why   string
	Count int
	First Point
}

// Plan is what a run measures.
type Plan struct {
	Points  []Point
	Skipped []Skipped // one for each reason
	Repeats int
	seed    uint64
}

// Plan returns the plan of s in a job of that many ranks: every combination once, in the order of the lists. It fails
// if none is possible.
func (s *Spec) Plan(ranks int) (*Plan, error) {
	p := &Plan{Repeats: s.Run.Repeats, seed: uint64(s.Run.Seed)}
	seen := map[Point]bool{}
	s.each(ranks, func(x Point) {
		if seen[x] {
			return
		}
		seen[x] = true
		if why := s.impossible(x, ranks); why != nil {
			p.skip(x, why)
			return
		}
		p.Points = append(p.Points, x)
	})
	if len(p.Points) == 0 {
		return nil, fmt.Errorf("no combination of the lists is possible:\n%s%w", p.skips(), ubcoll.ErrArgument)
	}
	return p, nil
}

func (p *Plan) skip(x Point, why error) {
	text, _, _ := strings.Cut(why.Error(), "\n")
	text = strings.TrimSuffix(text, ": "+ubcoll.ErrArgument.Error())
	for i := range p.Skipped {
		if p.Skipped[i].Why == text {
			p.Skipped[i].Count++
			return
		}
	}
	p.Skipped = append(p.Skipped, Skipped{text, 1, x})
}

// skips returns a line for each reason.
func (p *Plan) skips() string {
	var b strings.Builder
	for _, s := range p.Skipped {
		fmt.Fprintf(&b, "  skipped %d: %s (%v)\n", s.Count, s.Why, s.First)
	}
	return b.String()
}

// each calls do for every combination.
func (s *Spec) each(ranks int, do func(Point)) {
	x := &s.Sweep
	var sizes []int
	for _, b := range x.Bytes {
		sizes = append(sizes, b.list()...)
	}
	for _, op := range x.Operation {
		reduces, _, variants := bench.Has(op)
		only := func(has bool, l []string) []string {
			if !has {
				return []string{""}
			}
			return l
		}
		vs := only(variants != nil, x.Variant)
		if variants != nil && slices.Contains(vs, all) {
			vs = variants
		}
		types, of := x.Type, sizes
		t, bytes := bench.Fixed(op)
		if bytes >= 0 {
			of, types = []int{bytes}, types[:1]
		}
		if t.Valid() { // one-sided operations have their own
			types = []dtype.Type{t}
		}
		for _, n := range x.Ranks {
			n = cmp.Or(n, ranks)
			for _, t := range types {
				for _, red := range only(reduces, x.Reduction) {
					for _, v := range vs {
						for _, bytes := range of {
							s.ways(Point{Operation: op, Bytes: bytes, Type: t.String(), Reduction: red, Variant: v, Ranks: n},
								algorithmsOf(op, x.Algorithm), do)
						}
					}
				}
			}
		}
	}
}

// algorithmsOf returns which of a list of algorithms an operation can be asked for, where it has a choice; the library's choice
// if it can be asked for none. For all but all-reduces, that is "".
func algorithmsOf(op string, list []string) (of []string) {
	own := ""
	if op == "all_reduce" {
		own = auto
	}
	has := bench.Algorithms(op)
	for _, a := range list {
		switch {
		case a == auto:
			of = append(of, own)
		case slices.Contains(has, a):
			of = append(of, a)
		}
	}
	if of == nil {
		of = []string{own}
	}
	return of
}

// ways calls do for p with every way to make its calls.
func (s *Spec) ways(p Point, algorithms []string, do func(Point)) {
	x := &s.Sweep
	for _, p.Algorithm = range algorithms {
		for _, p.Registration = range x.Registration {
			for _, p.Device = range x.Device {
				for _, p.Graph = range x.Graph {
					for _, p.InPlace = range x.InPlace {
						for _, net := range x.Net {
							p.Net = strings.TrimPrefix(net, auto)
							do(p)
						}
					}
				}
			}
		}
	}
}

// impossible returns why p cannot be measured in a job of that many ranks, or nil.
func (s *Spec) impossible(p Point, ranks int) error {
	if p.Ranks > ranks {
		return fmt.Errorf("%s in a job of %d", plural.Count(p.Ranks, "rank"), ranks)
	}
	cfg, err := s.config(p)
	if err == nil {
		err = cfg.Validate()
	}
	if err == nil {
		err = cfg.Fits(p.Ranks)
	}
	if err == nil && p.Registration == goSlices && p.Device == bench.CUDA {
		err = errors.New("slices of Go are not on devices")
	}
	return err
}

// config returns the bench configuration for p.
func (s *Spec) config(p Point) (bench.Config, error) {
	c := bench.Default(p.Operation)
	t, err := dtype.Parse(p.Type)
	if err != nil {
		return c, err
	}
	c.Types = []dtype.Type{t}
	switch p.Reduction {
	case "":
	case "mulsum":
		c.Reductions = []ubcoll.Op{bench.MulSum}
	default:
		op, err := ubcoll.ParseOp(p.Reduction)
		if err != nil {
			return c, err
		}
		c.Reductions = []ubcoll.Op{op}
	}
	if p.Variant != "" {
		c.Variants = []string{p.Variant}
	}
	if c.Only = bench.OutOfPlace; p.InPlace {
		c.Only = bench.InPlace
	}
	c.Buffers = map[string]int{explicit: bench.Registered, auto: bench.Allocated, off: bench.Allocated,
		goSlices: bench.GoSlices}[p.Registration]
	c.MinBytes, c.MaxBytes, c.StepFactor, c.Device, c.Graphs = p.Bytes, p.Bytes, 1, p.Device, p.Graph
	r := &s.Run
	c.Iterations, c.Warmup, c.Checks, c.Loop = r.Iterations, r.Warmup, r.Checks, r.Loop
	// For bench, 0 is the number of calls by size alone, which takes longer than any short time.
	c.MinTime, c.MaxTime = max(1, time.Duration(r.MinTime)), time.Duration(r.MaxTime)
	c.Cache, c.Paths, c.Root, c.Seed = r.Churn, r.Churn, r.Root, uint64(r.Seed)
	return c, nil
}

// policy returns the library's registration policy for p.
func (p *Point) policy() register.Policy {
	switch p.Registration {
	case auto:
		return register.Auto
	case off:
		return register.Off
	}
	return register.Explicit
}

// Turn is one measurement of a run.
type Turn struct {
	Point  int // index in Plan.Points
	Repeat int // from 0
}

// Turns returns the order of a run, the same for the same plan. It has all points once for each repeat, each time in
// another order, so that a drift of the machine affects all of them.
func (p *Plan) Turns() []Turn {
	var all []Turn
	for r := range p.Repeats {
		rnd := rand.New(rand.NewPCG(p.seed, uint64(r)))
		for _, i := range rnd.Perm(len(p.Points)) {
			all = append(all, Turn{i, r})
		}
	}
	return all
}

// guessedStart is what Estimate takes the start of a job to cost.
const guessedStart = 300 * time.Millisecond

// Estimate says how long measuring all of p, a plan of s, probably takes, and what that is a guess of.
func (s *Spec) Estimate(p *Plan) string {
	took := guessedStart
	for _, x := range p.Points {
		c, err := s.config(x)
		if err != nil {
			continue // Plan has left those out
		}
		took += time.Duration(p.Repeats) * c.Estimate(x.Bytes)
	}
	calls := "calls of " + s.Run.MinTime.String() + " at least (min_time)"
	if n := s.Run.Iterations; n > 0 {
		calls = plural.Count(n, "call")
	}
	if s.Run.MaxTime > 0 {
		calls += ", " + s.Run.MaxTime.String() + " at most (max_time),"
	}
	return fmt.Sprintf("about %v, if each rank has an idle processor: estimated from sizes and %s for each measurement, not tried here\n",
		max(time.Second, took.Round(time.Second)), calls)
}

// Print describes what is skipped and, with points set, every point.
func (p *Plan) Print(points bool) string {
	var b strings.Builder
	if points {
		for _, x := range p.Points {
			fmt.Fprintln(&b, x)
		}
	}
	b.WriteString(p.skips())
	fmt.Fprintf(&b, "%s, %s: %s\n", plural.Count(len(p.Points), "point"), plural.Count(p.Repeats, "repeat"),
		plural.Count(len(p.Points)*p.Repeats, "measurement"))
	return b.String()
}
