package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// Overlap has the times of a call on a stream, alone and beside a computation that is made to take as long, in
// microseconds. They are the columns of OSU's benchmarks of nonblocking collectives. The computation runs on the host,
// even if the stream is a device's.
type Overlap struct {
	Overall float64 `json:"overall_us"`   // from the call's queuing, over the computation, to the call's end
	Compute float64 `json:"compute_us"`   // the computation alone, on all ranks at once
	Comm    float64 `json:"pure_comm_us"` // the call alone, from its queuing to its end
	Percent float64 `json:"percent"`      // how much of Comm the computation hides
}

// newOverlap computes the percentage as OSU's benchmarks do: 100 if the computation hides the whole call, 0 if the two
// follow one another or take even longer. It is a little above 100 if Overall happens to be less than Compute.
func newOverlap(overall, compute, comm float64) *Overlap {
	o := &Overlap{Overall: overall, Compute: compute, Comm: comm}
	if comm > 0 {
		o.Percent = max(0, 100*(1-(overall-compute)/comm))
	}
	return o
}

// overlap measures how much of k's call proceeds while the ranks compute, for as long as the call takes alone. bytes is
// the size of the call. Collective.
func (r *runner) overlap(ctx context.Context, k *task, bytes int) (_ *Overlap, err error) {
	q := k.c.On(r.side)
	start := func() error { return k.call(ctx, q, k.shifts[:1]) }
	if r.cfg.Graphs > 0 {
		launch, end, err := k.graph(ctx, q, func(c *ubcoll.Comm) error { return k.call(ctx, c, k.shifts[:1]) })
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, end()) }()
		start = launch
	}
	median := func(call func() error) (us float64, err error) {
		warmup, timed := r.cfg.calls(bytes)
		all := make([]float64, timed)
		if err := k.each(ctx, warmup, all, r.clock, call); err != nil {
			return 0, err
		}
		err = combine(ctx, r.c, all, r.cfg.Average)
		return stats.SpreadOf(all).Median, err
	}
	comm, err := median(func() error { return errors.Join(start(), r.side.Sync(ctx)) })
	if err != nil {
		return nil, err
	}
	if r.computation.speed == 0 {
		r.computation.calibrate()
	}
	n := int(comm * r.computation.speed)
	only, err := median(func() error {
		r.computation.run(n)
		return nil
	})
	if err != nil {
		return nil, err
	}
	both, err := median(func() error {
		err := start()
		r.computation.run(n)
		return errors.Join(err, r.side.Sync(ctx))
	})
	m := float64(r.cfg.Aggregate)
	return newOverlap(both/m, only/m, comm/m), err
}

// computation is the work that ranks do beside communication: steps in registers, each of which depends on the one
// before.
type computation struct {
	speed float64 // steps in a microsecond; 0 = not known yet
	x     float64
}

func (c *computation) run(steps int) {
	x := c.x
	for range steps {
		x = x*0.999 + 0.001 // towards 1
	}
	c.x = x
}

// calibrate measures how fast this processor computes if nothing else runs on it: the best of several attempts.
func (c *computation) calibrate() {
	const n = 100_000
	best := time.Duration(math.MaxInt64)
	for range 10 {
		start := time.Since(epoch)
		c.run(n)
		best = min(best, time.Since(epoch)-start)
	}
	c.speed = n / max(float64(best)/1e3, 1)
}

// overlaps prints a line for each row, in the columns of OSU's benchmarks of nonblocking collectives.
func (t *text) overlaps(r *Report) {
	if !t.cfg.Overlap || len(r.Results) == 0 {
		return
	}
	names, in := fmt.Sprintf("  %10s  %10s  %13s  %10s", "overall", "compute", "pure comm.", "overlap(%)"), ""
	if r.Results[0].In != nil {
		in = "  in-place:" + names
	}
	t.printf("#\n# Overlap with computation (us)\n# %10s  %8s  %6s  %4s%s%s\n", "size", "type", "redop", "root", names, in)
	for _, row := range r.Results {
		line := fmt.Sprintf("# %10d  %8s  %6s  %4d", row.Size, row.Type, row.Reduction, row.Root)
		for i, v := range []*Result{row.Out, row.In} {
			if v == nil || v.Overlap == nil {
				continue
			}
			if i > 0 {
				line += "           "
			}
			o := v.Overlap
			line += fmt.Sprintf("  %10.2f  %10.2f  %13.2f  %10.2f", o.Overall, o.Compute, o.Comm, o.Percent)
		}
		t.printf("%s\n", line)
	}
	t.printf("#\n")
}
