package bench

import (
	"context"
	"time"
)

// pace makes calls in batches, and ends them when their time is over. A batch is four times as long as all before it at
// most, since the first calls are a poor measure of the next ones.
type pace struct {
	limit time.Duration // 0 = none: one batch
	made  int
	took  float64 // of the slowest rank, with what lies between the calls, in microseconds
	over  bool
}

// next returns how many of want calls to make next; 0 = their time is over.
func (p *pace) next(want int) int {
	switch {
	case p.limit == 0:
		return want
	case p.made == 0:
		return min(1, want)
	}
	left := float64(p.limit)/1e3 - p.took
	fit := left / max(p.took, 1e-3) * float64(p.made)
	return min(want, 4*p.made, int(min(max(0, fit), mostByTime)))
}

// batches has call make want calls, or as many as p allows, the same number on all ranks. Collective.
func (r *runner) batches(ctx context.Context, p *pace, want int, call func(n int) error) error {
	for want > 0 {
		n := p.next(want)
		if p.over = n == 0; p.over {
			return nil
		}
		start := time.Since(epoch)
		if err := call(n); err != nil {
			return err
		}
		p.made, want = p.made+n, want-n
		if p.limit == 0 {
			continue
		}
		took := []float64{float64(time.Since(epoch)-start) / 1e3}
		if err := combine(ctx, r.c, took, Max); err != nil {
			return err
		}
		p.took += took[0]
	}
	return nil
}

// fit returns how many queued calls, and launches of a graph of them, MaxTime allows if a call takes us microseconds. The
// calls in a graph stay, and one launch more is made, which is not timed.
func (c *Config) fit(us float64, warmup, timed, launches int) (int, int, int) {
	calls := int(min(float64(c.MaxTime)/1e3/max(us, 1e-3), mostByTime))
	warmup = min(warmup, max(1, calls/10))
	if launches == 0 {
		return warmup, max(1, min(timed, calls-warmup)), 0
	}
	return warmup, timed, max(1, min(launches, (calls-warmup)/timed-1))
}

// paces returns the pace of untimed calls, which get a tenth of MaxTime, and that of timed ones.
func (c *Config) paces() (untimed, timed pace) {
	if c.MaxTime == 0 {
		return
	}
	tenth := max(1, c.MaxTime/10)
	return pace{limit: tenth}, pace{limit: max(1, c.MaxTime-tenth)}
}
