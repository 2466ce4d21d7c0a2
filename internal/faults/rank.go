package faults

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Rank makes the faults of one rank happen. The nil Rank has none.
type Rank struct {
	rank  int
	log   *slog.Logger
	cut   func() error
	all   []*pending
	count atomic.Int64 // operations begun
	began time.Time
	over  chan struct{}
	timed sync.WaitGroup

	process process
}

// process is what signals do to this process. Tests have their own.
type process struct {
	kill func()                      // does not return
	stop func(d time.Duration) error // returns when the process goes on, at the latest d later unless that is 0
}

// pending is a fault that may happen, or does.
type pending struct {
	Fault
	since atomic.Int64 // of Slow by count: when the first operation was slowed, from Rank.began, and 1; 0: not yet
	said  atomic.Bool
}

// Arm begins to make those of all happen that are rank's. cut cuts the rank's connections to other hosts; nil: there are
// none. It logs a warning. Without any it returns nil. The caller calls End.
func Arm(all []Fault, rank int, log *slog.Logger, cut func() error) *Rank {
	return arm(all, rank, log, cut, process{kill, stop})
}

func arm(all []Fault, rank int, log *slog.Logger, cut func() error, p process) *Rank {
	r := &Rank{rank: rank, log: log, cut: cut, began: time.Now(), over: make(chan struct{}), process: p}
	for _, f := range all {
		if f.Rank == rank {
			r.all = append(r.all, &pending{Fault: f})
		}
	}
	if r.all == nil {
		return nil
	}
	var what []string
	for _, f := range r.all {
		what = append(what, f.String())
	}
	log.Warn("ubcoll: UBCOLL_FAULT is set: this rank fails on request", "rank", rank, "faults", what)
	for _, f := range r.all {
		if f.Timed && f.Action != Slow {
			r.timed.Go(func() { r.await(f) })
		}
	}
	return r
}

// await makes f happen at its time, unless End comes first.
func (r *Rank) await(f *pending) {
	t := time.NewTimer(f.Time - time.Since(r.began))
	defer t.Stop()
	select {
	case <-t.C:
		r.happen(f)
	case <-r.over:
	}
}

// Begin is called before each of the rank's operations, from any goroutine. It makes happen what is to happen then, and
// returns when the operation may begin.
func (r *Rank) Begin() {
	n := int(r.count.Add(1)) - 1
	for _, f := range r.all {
		switch {
		case f.Action == Slow:
			if f.slows(n, time.Since(r.began)) {
				r.say(f)
				time.Sleep(f.By)
			}
		case !f.Timed && n == f.Operations:
			r.happen(f)
		}
	}
}

// slows reports whether f, which is Slow, slows operation n down, which begins at now.
func (f *pending) slows(n int, now time.Duration) bool {
	from := f.Time
	if !f.Timed {
		if n < f.Operations {
			return false
		}
		f.since.CompareAndSwap(0, int64(now)+1)
		from = time.Duration(f.since.Load() - 1)
	}
	return now >= from && (f.For == 0 || now-from < f.For)
}

// say logs f, once.
func (r *Rank) say(f *pending) {
	if !f.said.Swap(true) {
		r.log.Warn("ubcoll: a fault on request happens", "rank", r.rank, "fault", f.String())
	}
}

func (r *Rank) happen(f *pending) {
	r.say(f)
	var err error
	switch f.Action {
	case Kill:
		r.process.kill()
	case Stop:
		err = r.process.stop(f.For)
	case Cut:
		if r.cut == nil {
			r.log.Warn("ubcoll: nothing is cut, since all ranks are on one host", "rank", r.rank)
			return
		}
		err = r.cut()
	}
	if err != nil {
		r.log.Warn("ubcoll: a fault on request did not happen", "rank", r.rank, "fault", f.String(), "error", err)
	}
}

// End ends what waits for its time. No operation of the rank runs any more.
func (r *Rank) End() {
	if r == nil {
		return
	}
	close(r.over)
	r.timed.Wait()
}
