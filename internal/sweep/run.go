package sweep

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// Job is a run of an experiment file.
type Job struct {
	Spec    *Spec
	Config  string         // the file's text
	Dir     string         // of the results
	Fresh   bool           // start anew if Dir has another run's results
	Options ubcoll.Options // of the job's communicator
	Program bench.Program
	Out     io.Writer
	Progress
}

// Measure measures all points of j that are not in its folder yet. Collective: all ranks of c call it with the same j.
// Only rank 0 writes, to files and to Out. Every measurement is in the folder before the next one starts, so after an
// error, a signal or a crash the same call continues the run. The error wraps bench.ErrFailed if all points were
// measured and some had wrong elements.
func Measure(ctx context.Context, c *ubcoll.Comm, j *Job) (err error) {
	plan, err := j.Spec.Plan(c.Size())
	if err != nil {
		return err
	}
	hosts, err := bench.Gather(ctx, c, c.Hostname(c.Rank()))
	if err != nil {
		return err
	}
	r := &run{Job: j, c: c, plan: plan, turns: plan.Turns()}
	if c.Rank() != 0 {
		r.Out, r.Progress.W = io.Discard, nil
	}
	if err := r.agree(ctx); err != nil {
		return err
	}
	done := make([]uint8, len(r.turns)+1) // one more, so that it is never empty
	if c.Rank() == 0 {
		start := j.start(c.Size(), hosts)
		if r.store, err = Open(j.Dir, start, j.Fresh); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.store.Close()) }()
		r.mark(done)
		if err := r.store.Write(start); err != nil {
			return err
		}
	}
	if err := coll.Broadcast(ctx, c, ubcoll.Of(done), 0); err != nil {
		return err
	}
	if _, err := io.WriteString(r.Out, plan.Print(false)); err != nil {
		return err
	}
	err = r.all(ctx, done)
	r.Progress.clear()
	if r.store == nil {
		return err
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%d of %d measurements are in %s: the same command goes on\n", len(r.store.Records),
			len(r.turns), j.Dir)
		if !errors.Is(err, bench.ErrFailed) {
			return err
		}
	}
	return errors.Join(err, r.store.WriteCSV(plan), r.summary())
}

type run struct {
	*Job
	c     *ubcoll.Comm
	plan  *Plan
	turns []Turn
	store *Store // on rank 0 only
	wrong int    // how many elements were wrong

	worlds map[string]*ubcoll.Comm // of all ranks, by the network that was asked for; the job's own is not among them
	child  *ubcoll.Comm            // for the ranks that take part in the current point; nil on others
	open   family                  // the family of child
}

// family is what the communicator of a point depends on.
type family struct {
	ranks     int
	net       string
	algorithm string
	policy    ubcoll.Policy
}

// settings returns the values in force, by their keys.
func (s *Spec) settings() map[string]string {
	all := map[string]string{}
	var walk func(v reflect.Value, prefix string)
	walk = func(v reflect.Value, prefix string) {
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("toml"), ",")
			if f := v.Field(i); f.Kind() == reflect.Struct {
				walk(f, prefix+name+".")
			} else {
				all[prefix+name] = text(f)
			}
		}
	}
	walk(reflect.ValueOf(s).Elem(), "")
	delete(all, "title")
	return all
}

// text returns a value in a flag's form.
func text(v reflect.Value) string {
	if v.Kind() == reflect.Slice {
		var parts []string
		for i := range v.Len() {
			parts = append(parts, text(v.Index(i)))
		}
		return strings.Join(parts, ",")
	}
	if m, ok := v.Interface().(interface{ MarshalText() ([]byte, error) }); ok {
		b, err := m.MarshalText()
		if err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(v.Interface())
}

// agree returns an error if the ranks have different plans.
func (r *run) agree(ctx context.Context) error {
	sum := sha256.Sum256(fmt.Append(nil, r.Spec.settings()))
	mine, first := sum[:], make([]byte, len(sum))
	copy(first, mine)
	if err := coll.Broadcast(ctx, r.c, ubcoll.Of(first), 0); err != nil {
		return err
	}
	differ := []int32{0}
	if string(first) != string(mine) {
		differ[0] = int32(r.c.Rank())
	}
	if err := coll.AllReduce(ctx, r.c, ubcoll.Of(differ), ubcoll.Of(differ), ubcoll.Max); err != nil {
		return err
	}
	if differ[0] > 0 {
		return fmt.Errorf("rank %d has another experiment than rank 0: the file, the flags or the environment differ: %w", differ[0],
			fault.ErrMismatch)
	}
	return nil
}

// start describes this start of the run.
func (j *Job) start(ranks int, hosts []string) Start {
	launcher, _ := bootstrap.Launcher()
	sum := sha256.Sum256([]byte(j.Config))
	env := bench.Environment()
	for _, name := range []string{"GOMAXPROCS", "GOGC", "GODEBUG", "GOMEMLIMIT", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES",
		"CUDA_VISIBLE_DEVICES"} {
		if v, ok := os.LookupEnv(name); ok {
			env[name] = v
		}
	}
	return Start{Kind: "run", Schema: Schema, Title: j.Spec.Title, Time: time.Now().UTC().Format(time.RFC3339),
		Args: j.Program.Args, Config: j.Config, SHA256: hex.EncodeToString(sum[:]), Settings: j.Spec.settings(), Ranks: ranks,
		Version: j.Program.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		MPI: bootstrap.UsesMPI(), Launcher: launcher, Hosts: hosts, Environment: env}
}

// mark marks in done the turns that are in the folder.
func (r *run) mark(done []uint8) {
	type key struct {
		Point
		repeat int
	}
	have := map[key]bool{}
	for _, x := range r.store.Records {
		have[key{x.Point, x.Repeat}] = true
		if x.Wrong != nil {
			r.wrong += *x.Wrong
		}
	}
	for i, t := range r.turns {
		if have[key{r.plan.Points[t.Point], t.Repeat}] {
			done[i] = 1
		}
	}
}

// all measures the turns that are not done.
func (r *run) all(ctx context.Context, done []uint8) (err error) {
	defer func() { err = errors.Join(err, r.close(), r.closeWorlds()) }()
	ready, skipped := 0, map[int]bool{}
	for _, d := range done {
		ready += int(d)
	}
	for i, t := range r.turns {
		if done[i] != 0 || skipped[t.Point] {
			continue
		}
		p := r.plan.Points[t.Point]
		r.Progress.step(time.Now(), ready, len(r.turns), p.String())
		why, err := r.point(ctx, p, t.Repeat)
		if err != nil {
			return err
		}
		if ready++; why != nil { // other repeats would be skipped, too
			skipped[t.Point] = true
			r.Progress.clear()
			fmt.Fprintf(r.Out, "skipped %v: %v\n", p, why)
		}
	}
	switch {
	case len(skipped) == len(r.plan.Points):
		return fmt.Errorf("nothing can be measured here: %w", fault.ErrNotSupported)
	case r.wrong > 0:
		return fmt.Errorf("%s: %w", plural.Count(r.wrong, "wrong element"), bench.ErrFailed)
	}
	return nil
}

// point measures p on the ranks that take part, and writes the result. why says what this machine lacks for it; it is
// the same on all ranks.
func (r *run) point(ctx context.Context, p Point, repeat int) (why, err error) {
	if bench.BetweenHosts(p.Algorithm) && !r.spans(p.Ranks) {
		return fmt.Errorf("%s is between hosts, and these ranks are on one: %w", p.Algorithm, fault.ErrNotSupported), nil
	}
	if p.Net != "" && !r.spans(p.Ranks) {
		return fmt.Errorf("%s is between hosts, and these ranks are on one: %w", p.Net, fault.ErrNotSupported), nil
	}
	world, err := r.world(ctx, p.Net)
	switch {
	case errors.Is(err, fault.ErrNotSupported), errors.Is(err, fault.ErrLimit): // all ranks have that
		return err, r.close()
	case err != nil:
		return nil, err
	}
	if err := r.split(ctx, world, family{p.Ranks, p.Net, strings.TrimPrefix(p.Algorithm, auto), p.policy()}); err != nil {
		return nil, err
	}
	var rep *bench.Report
	cfg, failed := r.Spec.config(p)
	if r.child != nil && failed == nil {
		rep, failed = bench.Run(ctx, r.child, cfg, r.Program, io.Discard, nil)
	}
	if errors.Is(failed, bench.ErrFailed) { // the record says so
		failed = nil
	}
	// If the machine lacks something, all ranks of the point have that error. The ranks that waited learn it here.
	verdict := []int32{0}
	switch {
	case errors.Is(failed, fault.ErrNotSupported), errors.Is(failed, fault.ErrLimit):
		verdict[0] = 1
	case failed != nil:
		return nil, fmt.Errorf("%v: %w", p, failed)
	}
	if err := coll.AllReduce(ctx, r.c, ubcoll.Of(verdict), ubcoll.Of(verdict), ubcoll.Max); err != nil {
		return nil, err
	}
	if verdict[0] > 0 {
		if failed == nil {
			failed = fault.ErrNotSupported
		}
		return failed, r.close()
	}
	if r.store == nil {
		return nil, nil
	}
	return nil, r.record(p, repeat, rep)
}

// spans reports whether the first ranks of the job are on several hosts.
func (r *run) spans(ranks int) bool {
	for rank := range ranks {
		if r.c.Hostname(rank) != r.c.Hostname(0) {
			return true
		}
	}
	return false
}

// record writes the report of one point.
func (r *run) record(p Point, repeat int, rep *bench.Report) error {
	if len(rep.Results) != 1 {
		return fmt.Errorf("%v: %d results of one point", p, len(rep.Results))
	}
	row := rep.Results[0]
	x := Record{Kind: "point", Repeat: repeat, At: rep.End.Format(time.RFC3339), Point: p, Size: row.Size,
		Placed: rep.Config.Device, Result: row.Out}
	if p.InPlace {
		x.Result = row.In
	}
	if x.Wrong != nil {
		r.wrong += *x.Wrong
	}
	x.Setup = rep.Setup
	if r.Spec.Run.Churn {
		x.Cache = rep.Cache
	}
	return r.store.Write(x)
}

// split makes child a communicator of family f, of a world's ranks. All ranks of the job call it.
func (r *run) split(ctx context.Context, world *ubcoll.Comm, f family) (err error) {
	if r.open == f {
		return nil
	}
	if err := r.close(); err != nil {
		return err
	}
	color := 0
	if r.c.Rank() >= f.ranks {
		color = ubcoll.NoColor
	}
	child, err := (*inside.Comm)(world).View().SplitAs(ctx, color, f.algorithm, f.policy)
	r.child, r.open = (*ubcoll.Comm)(child), f
	return err
}

// close closes child.
func (r *run) close() error {
	c := r.child
	r.child, r.open = nil, family{}
	if c == nil {
		return nil
	}
	return c.Close()
}

// summary prints each point's median over the repeats.
func (r *run) summary() error {
	times, rates := map[Point][]float64{}, map[Point][]float64{}
	for _, x := range r.store.Records {
		times[x.Point], rates[x.Point] = append(times[x.Point], x.Result.Time), append(rates[x.Point], x.BusBW)
	}
	w := &strings.Builder{}
	fmt.Fprintf(w, "%12s  %12s  %s\n", "time (us)", "busbw (GB/s)", "point, medians of the repeats")
	for _, p := range r.plan.Points {
		if ts := times[p]; ts != nil {
			fmt.Fprintf(w, "%12.2f  %12.3f  %v\n", stats.Median(ts), stats.Median(rates[p]), p)
		}
	}
	fmt.Fprintf(w, "%s in %s\n", plural.Count(len(r.store.Records), "measurement"), r.Dir)
	_, err := io.WriteString(r.Out, w.String())
	return err
}
