package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// Program describes the program that ran, for the report.
type Program struct {
	Version string
	Args    []string
	Threads int // goroutine ranks in this process
}

// ErrFailed means that a run found wrong data, or too low a bandwidth. The run's error wraps it.
var ErrFailed = errors.New("failed")

// Run measures what cfg says. Collective: all ranks of c call it with the same cfg. Rank 0 writes the table to out as
// it grows. If progress is not nil, rank 0 writes a line to it that says what is being measured. Only rank 0's report
// is complete. With an error the report has what was measured so far; it is nil if cfg is not valid for this job. Run
// frees its buffers.
func Run(ctx context.Context, c *ubcoll.Comm, cfg Config, p Program, out, progress io.Writer) (*Report, error) {
	return run(ctx, c, cfg, p, out, progress, nil)
}

// RunAll measures several operations as Run does, each with a table and a report of its own. It prints the version and
// the devices only once. After an error that wraps ErrFailed it goes on; after any other error it returns the reports
// so far. Collective.
func RunAll(ctx context.Context, c *ubcoll.Comm, all []Config, p Program, out, progress io.Writer) ([]*Report, error) {
	var reports []*Report
	var errs []error
	for _, cfg := range all {
		var first *Report
		if len(reports) > 0 {
			first = reports[0]
		}
		rep, err := run(ctx, c, cfg, p, out, progress, first)
		if rep != nil {
			reports = append(reports, rep)
		}
		if err != nil && len(all) > 1 {
			err = fmt.Errorf("%s: %w", cfg.Op, err)
		}
		if errs = append(errs, err); err != nil && !errors.Is(err, ErrFailed) {
			break
		}
	}
	return reports, errors.Join(errs...)
}

// run is Run for one of several operations. first is the report of the first operation, or nil if this is the first.
func run(ctx context.Context, c *ubcoll.Comm, cfg Config, p Program, out, progress io.Writer, first *Report) (*Report, error) {
	if err := errors.Join(cfg.Validate(), cfg.fits(c.Size())); err != nil {
		return nil, err
	}
	if c.Rank() != 0 {
		out, progress = io.Discard, nil
	}
	r := &runner{c: c, cfg: &cfg, op: operationOf(cfg.Op), rep: newReport(c, &cfg, p),
		text: &text{w: out, progress: progress, cfg: &cfg, later: first != nil}}
	err := r.run(ctx)
	if d := r.rep.Device; d != nil && first != nil && first.Device != nil {
		d.Open = first.Device.Open
	}
	if err != nil {
		r.rep.Errors = append(r.rep.Errors, err.Error())
		r.rep.End = time.Now().UTC()
		return r.rep, err
	}
	return r.rep, errors.Join(r.text.err, r.verdict())
}

type runner struct {
	c      *ubcoll.Comm
	cfg    *Config
	op     *operation
	rep    *Report
	text   *text
	clock  time.Duration
	dev    ubcoll.Device  // where the buffers are
	stream *ubcoll.Stream // calls are queued here; if nil, they block
	cu     *cuda.Stream   // the same stream, for one-sided operations
	side   *ubcoll.Stream // calls that run beside a computation are queued here
	a, b   *memory
	went   went // how the last measured call went
	mapped int  // how often ranks had mapped memory of each other's devices before the run
	seed   uint64
	busBW  []float64

	computation computation // runs beside calls, for Config.Overlap
}

// went is how a measured call went, and what the registration cache had counted by then. It is taken before the library's
// own calls on the communicator, such as those that combine the ranks' times.
type went struct {
	op    ubcoll.OpInfo
	cache ubcoll.CacheStats
}

func (r *runner) note() { r.went = went{r.c.LastOp(), r.c.Stats().Cache} }

func newReport(c *ubcoll.Comm, cfg *Config, p Program) *Report {
	s := Settings{Op: cfg.Op, Ranks: c.Size(), Threads: p.Threads, MinBytes: cfg.MinBytes, MaxBytes: cfg.MaxBytes,
		StepBytes: cfg.StepBytes, StepFactor: cfg.StepFactor, Iterations: cfg.Iterations, Warmup: cfg.Warmup,
		Aggregate: cfg.Aggregate, Graphs: cfg.Graphs, Checks: cfg.Checks, Algorithm: (*inside.Comm)(c).View().Options().Algorithm,
		Registration: []string{"none", "local", "", "none"}[cfg.Buffers],
		Protocol:     "each", Average: []string{"rank0", "avg", "min", "max"}[cfg.Average], Level: cpu.Level()}
	if nvls() {
		s.NVLS = "on"
	}
	if operationOf(cfg.Op).window {
		s.Window = cfg.Window
	}
	return &Report{Schema: SchemaVersion, Version: p.Version, Args: p.Args, Env: Environment(), Config: s,
		Start: time.Now().UTC(), Results: []Row{}, Errors: []string{}}
}

// nvls reports whether multicast objects may be made on GPUs.
func nvls() bool {
	v, err := env.NVLS.Get()
	return err == nil && v == "on" // Open reports a malformed value
}

// Environment returns the project's variables that were set when this program started, without secrets: programs set
// some themselves, such as NTHREADS.
func Environment() map[string]string { return maps.Clone(environment) }

var environment = environmentNow()

func environmentNow() map[string]string {
	set := map[string]string{}
	for _, v := range env.All() {
		if s, ok := os.LookupEnv(v.Name); ok && !v.Secret {
			set[v.Name] = s
		}
	}
	return set
}

func (r *runner) run(ctx context.Context) (err error) {
	if err := r.place(ctx); err != nil {
		return err
	}
	if err := CheckMemory(ctx, r.c, "buffers of "+strconv.Itoa(r.cfg.MaxBytes)+" bytes (-e), and lists of calls (-n, -m, -G)",
		r.cfg.memory(r.op)); err != nil {
		return err
	}
	if err := r.ranks(ctx); err != nil {
		return err
	}
	switch {
	case r.cfg.queued() && r.op.open != nil:
		var end func() error
		if end, err = r.ownStream(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
	case r.cfg.queued():
		if r.stream, err = ubcoll.NewStream(r.dev); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.stream.Close()) }()
	}
	if r.side = r.stream; r.cfg.Overlap && r.side == nil {
		if r.side, err = ubcoll.NewStream(r.dev); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.side.Close()) }()
	}
	r.clock = clockCost()
	r.rep.ClockCost = float64(r.clock)
	r.text.header(r.rep)
	if r.op.open != nil {
		return r.oneSided(ctx)
	}
	if r.mapped, err = r.opened(ctx); err != nil {
		return err
	}
	if err := r.buffers(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.a.close(), r.b.close()) }()

	r.text.columns()
	for cycle := 0; r.cfg.Cycles == 0 || cycle < r.cfg.Cycles; cycle++ {
		if err := r.cycle(ctx); err != nil {
			return err
		}
	}
	if r.rep.Setup != nil && !r.dev.IsHost() {
		all, err := r.opened(ctx)
		if err != nil {
			return err
		}
		r.rep.Setup.OpenedLater = all - r.mapped - r.rep.Setup.Opened
	}
	if r.cfg.Cache && (r.dev.IsHost() || r.cfg.Paths) { // making and freeing device memory takes long
		if r.rep.Cache, err = cacheTimes(ctx, r.c, r.dev, r.a); err != nil {
			return err
		}
	}
	r.finish()
	return nil
}

// cycle measures every size once.
func (r *runner) cycle(ctx context.Context) error {
	reductions, roots, types := r.cfg.Reductions, []int{r.cfg.Root}, r.cfg.Types
	if !r.op.reduces {
		reductions = reductions[:1]
	}
	switch {
	case !r.op.rooted:
		roots = []int{-1}
	case r.cfg.Root < 0:
		roots = nil
		for i := range r.c.Size() {
			roots = append(roots, i)
		}
	}
	sizes := r.cfg.sizes()
	if r.op.name == barrier {
		sizes, types = []int{0}, types[:1]
	}
	for _, t := range types {
		for _, red := range reductions {
			if !r.op.takes(t, red) {
				continue // with -d all or -o all
			}
			for _, root := range roots {
				for i, bytes := range sizes {
					r.text.heartbeat("%s: %d bytes, size %d of %d, %v", r.op.name, bytes, i+1, len(sizes),
						time.Since(r.rep.Start).Round(time.Second))
					if err := r.row(ctx, bytes, t, red, root); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (r *runner) row(ctx context.Context, bytes int, t dtype.Type, red ubcoll.Op, root int) error {
	s := r.op.shape(placeOf(r.c, root), bytes/t.Size())
	row := Row{Size: s.size * t.Size(), Count: s.param, Type: typeName(t), Reduction: "none", Root: root,
		Model: modelled(r.c, r.op, s.param, t)}
	if r.op.reduces {
		row.Reduction = red.String()
		if red == MulSum {
			row.Reduction = "mulsum"
		}
	}
	var err error
	if r.cfg.Only != InPlace {
		k := newTask(r.c, r.cfg, r.op, s, t, red, root, r.a, r.b, false)
		if row.Out, err = r.result(ctx, k, row.Size); err != nil {
			return err
		}
	}
	if !r.op.outOfPlace && r.cfg.Only != OutOfPlace {
		k := newTask(r.c, r.cfg, r.op, s, t, red, root, r.a, r.b, true)
		if row.In, err = r.result(ctx, k, row.Size); err != nil {
			return err
		}
	}
	r.rep.Results = append(r.rep.Results, row)
	r.text.row(&row)
	return nil
}

// result checks and times one task.
func (r *runner) result(ctx context.Context, k *task, bytes int) (*Result, error) {
	res := &Result{}
	wrong := []uint64{0}
	k.stream = r.stream
	checks := r.cfg.Checks
	if r.dev.IsHost() {
		checks = max(1, checks) // so that the timed calls get sensible numbers
	}
	for range checks {
		r.seed++
		n, err := k.check(ctx, r.cfg.Seed<<32+r.seed)
		if err != nil {
			return nil, err
		}
		wrong[0] += uint64(n)
	}
	if err := coll.AllReduce(ctx, r.c, ubcoll.Of(wrong), ubcoll.Of(wrong), ubcoll.Sum); err != nil {
		return nil, err
	}
	if n := int(wrong[0]); r.cfg.Checks > 0 && r.op.name != barrier {
		res.Wrong = &n
		r.rep.Wrong.Count += n
	}

	runtime.GC() // garbage of the checks must not be collected during the timed calls
	warmup, timed := r.cfg.calls(bytes)
	before := r.c.Stats().Cache
	us := make([]float64, 1)
	var err error
	if r.cfg.queued() {
		us[0], err = r.queue(ctx, k, warmup, timed, r.cfg.launches(bytes))
		r.note()
	} else if r.cfg.Loop {
		us[0], err = r.loop(ctx, k, warmup, timed)
	} else {
		us, err = r.each(ctx, k, warmup, timed)
	}
	if err != nil {
		return nil, err
	}
	after, op := r.went.cache, r.went.op
	res.Hits, res.Misses = after.Hits-before.Hits, after.Misses-before.Misses
	res.moved(op)
	res.crossed(r.c, r.op)
	if err := combine(ctx, r.c, us, r.cfg.Average); err != nil {
		return nil, err
	}
	for i := range us {
		us[i] /= float64(r.cfg.Aggregate * max(1, r.op.trips) * r.cfg.messages())
	}
	s := stats.SpreadOf(us)
	if r.rep.Config.Protocol == "each" {
		res.Spread = &s
	}
	res.Time = s.Median
	res.AlgBW, res.BusBW = Bandwidth(r.op.name, r.c.Size(), bytes, res.Time)
	r.busBW = append(r.busBW, res.BusBW)
	if r.op.window {
		res.Rate = messageRate(r.c.Size()/2, res.Time)
	}
	if r.cfg.Overlap {
		res.Overlap, err = r.overlap(ctx, k, bytes)
	}
	return res, err
}

// each times calls one by one, as many as cfg asks for, and returns their times in microseconds.
func (r *runner) each(ctx context.Context, k *task, warmup, timed int) ([]float64, error) {
	var us []float64
	call := func() error { return k.call(ctx, k.c, k.shifts[:1]) }
	first, then := r.cfg.paces()
	if err := r.batches(ctx, &first, warmup, func(n int) error {
		return k.each(ctx, n, nil, r.clock, call)
	}); err != nil {
		return nil, err
	}
	for more := timed; more > 0 && !then.over; {
		err := r.batches(ctx, &then, more, func(n int) error {
			us = slices.Grow(us, n)[:len(us)+n]
			err := k.each(ctx, 0, us[len(us)-n:], r.clock, call)
			r.note()
			return err
		})
		if err != nil {
			return nil, err
		}
		if more, err = r.more(ctx, len(us), us...); err != nil {
			return nil, err
		}
	}
	return us[min(r.cfg.Skip, len(us)-1):], nil // MaxTime may leave fewer than there are to skip
}

// loop times calls back to back, as many as cfg asks for, and returns their mean.
func (r *runner) loop(ctx context.Context, k *task, warmup, timed int) (us float64, err error) {
	first, then := r.cfg.paces()
	if err := r.batches(ctx, &first, warmup, func(n int) error { return k.untimed(ctx, n) }); err != nil {
		return 0, err
	}
	made := 0
	for more := timed; more > 0 && !then.over; {
		err := r.batches(ctx, &then, more, func(n int) error {
			mean, err := k.loop(ctx, n)
			us, made = us+mean*float64(n), made+n
			r.note()
			return err
		})
		if err != nil {
			return 0, err
		}
		if more, err = r.more(ctx, made, us); err != nil {
			return 0, err
		}
	}
	return us / float64(made), nil
}

// queue times calls back to back on the stream, and returns their mean. Nothing stops queued calls, so a single call
// that is not timed tells how many MaxTime allows: of the launches, if there is a graph.
func (r *runner) queue(ctx context.Context, k *task, warmup, timed, launches int) (us float64, err error) {
	if r.cfg.MaxTime > 0 {
		one := []float64{0}
		if one[0], err = k.queue(ctx, 0, 1, 0); err != nil {
			return 0, err
		}
		if err := combine(ctx, r.c, one, Max); err != nil {
			return 0, err
		}
		warmup, timed, launches = r.cfg.fit(one[0], warmup, timed, launches)
	}
	return k.queue(ctx, warmup, timed, launches)
}

// more returns what Config.more returns after n calls, the same on all ranks. us are this rank's times of these calls,
// or their sum. Collective.
func (r *runner) more(ctx context.Context, n int, us ...float64) (int, error) {
	if r.cfg.Iterations > 0 {
		return 0, nil
	}
	sum := []float64{0}
	for _, t := range us {
		sum[0] += t
	}
	err := combine(ctx, r.c, sum, Max)
	return r.cfg.more(n, sum[0]), err
}

// combine replaces each of values by one that it makes of all ranks' values, the same on all ranks. how is
// Config.Average. Collective.
func combine(ctx context.Context, c *ubcoll.Comm, values []float64, how int) error {
	op := ubcoll.Sum
	switch {
	case how == Min:
		op = ubcoll.Min
	case how == Max:
		op = ubcoll.Max
	case how == Mean:
		op = ubcoll.Avg
	case c.Rank() != 0:
		clear(values)
	}
	return coll.AllReduce(ctx, c, ubcoll.Of(values), ubcoll.Of(values), op)
}

// finish completes the report and prints the table's footer.
func (r *runner) finish() {
	r.rep.End = time.Now().UTC()
	r.rep.Wrong.OK = r.rep.Wrong.Count == 0
	for _, b := range r.busBW {
		r.rep.Average.Bandwidth += b / float64(len(r.busBW))
	}
	if r.cfg.MinBusBW > 0 {
		ok := r.rep.Average.Bandwidth >= r.cfg.MinBusBW
		r.rep.Average.OK = &ok
	}
	if d := r.rep.Device; d != nil {
		d.End = r.c.Stats().Memory.OwnBytes
	}
	r.text.footer(r.rep)
}

// verdict returns an error if data were wrong or the bandwidth was too low. All ranks return the same.
func (r *runner) verdict() error {
	var errs []error
	if n := r.rep.Wrong.Count; n > 0 {
		errs = append(errs, fmt.Errorf("%s: %w", plural.Count(n, "wrong element"), ErrFailed))
	}
	if ok := r.rep.Average.OK; ok != nil && !*ok {
		errs = append(errs, fmt.Errorf("the average bus bandwidth is %.6g GB/s, less than %g: %w",
			r.rep.Average.Bandwidth, r.cfg.MinBusBW, ErrFailed))
	}
	return errors.Join(errs...)
}

// typeName returns the name of t, nccl-tests' name if it has one.
func typeName(t dtype.Type) string {
	if i := slices.Index([]dtype.Type{dtype.Float16, dtype.Float32, dtype.Float64}, t); i >= 0 {
		return []string{"half", "float", "double"}[i]
	}
	return t.String()
}
