package team

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// How a wait goes: it looks at its word; every LooksPerPoll looks it passes Poll, a real Go call, so that a
// stop-the-world is never held up; Poll looks after abort, deadline and dead peers, runs pending control work, and
// gives the processor away the more readily the longer the wait lasts.
const (
	LooksPerPoll  = 256
	looksCrowded  = 32                    // more ranks than processors: the peer needs this processor
	yieldAfter    = 10 * time.Microsecond // processes: then sched_yield
	SleepAfter    = 5 * time.Millisecond  // then sleep, ever longer
	longestSleep  = time.Millisecond      //
	healthEvery   = 20 * time.Millisecond // between looks at the peers' processes
	PollsPerClock = 8                     // polls between looks at the clock while a wait is young
	goschedOften  = 4                     // polls between yields to this process' goroutines, which need this processor
	goschedLong   = 64                    // the same where they have others
)

// ReportAfter is when a wait says once who is missing, in nanoseconds. A variable for tests.
var ReportAfter atomic.Int64

func init() { ReportAfter.Store(int64(10 * time.Second)) }

// Reached compares words that may wrap around.
func Reached(have, target uint64) bool { return int64(have-target) >= 0 }

// Wait waits until *w is at least target, for peer, a rank of the team, to do what step says. It ends early with an error, which breaks the
// communicator: the peer is lost, the deadline passed, somebody aborted, ctx ended.
func (t *Team) Wait(ctx context.Context, w *atomic.Uint64, target uint64, peer int, step string) error {
	looks := t.Looks()
	for i := 0; i < looks; i++ {
		if Reached(w.Load(), target) {
			return nil
		}
	}
	return t.waitLong(ctx, w, target, peer, step, looks)
}

// Looks is how often a wait looks before it polls.
func (t *Team) Looks() int {
	if t.Crowded {
		return looksCrowded
	}
	return LooksPerPoll
}

// WaitState is the state of one long wait.
type WaitState struct {
	Op       string // beside the collectives; "" = the running one
	Ctx      context.Context
	Peer     int  // rank of the team
	PassOn   bool // what a peer has said is for others: it stays about this rank if it is
	Far      int  // 1 + the communicator's rank that it waits for, if on another host; Peer is this rank itself then
	Step     string
	Polls    uint
	start    time.Time     // of the first look at the clock
	now      time.Duration // since start, as of the last look at the clock
	health   time.Duration // when to look at the processes next
	behind   time.Duration // until when Behind was set
	reported bool
	Lost     bool     // a peer has said that the communicator broke
	Kind     OpKind   // what it is for, unless Op is "": KindRefused for what is neither a collective nor a message
	Item     numbered // that, if it has a number; or nil
	Several  bool     // and others with it
	Behind   bool     // something of this rank's own comes first: neither the peer's close nor a deadline counts
	Said     said     // in the area
}

// numbered is an operation with a place in an order: 0 if that cannot be told now.
type numbered interface{ Number() uint64 }

func (t *Team) waitLong(ctx context.Context, w *atomic.Uint64, target uint64, peer int, step string, looks int) error {
	s := WaitState{Ctx: ctx, Peer: peer, Step: step}
	for {
		if err := t.Poll(&s); err != nil {
			if Reached(w.Load(), target) {
				t.EndWait(&s)
				return nil // it came all the same, as the last thing its peer did
			}
			return t.comm.Fail(err)
		}
		for i := 0; i < looks; i++ {
			if Reached(w.Load(), target) {
				t.EndWait(&s)
				return nil
			}
		}
	}
}

// Poll is one step of a wait's housekeeping, which gives the processor away. The error it returns has not broken the
// communicator yet.
//
//go:noinline
func (t *Team) Poll(s *WaitState) *fault.Error {
	if err := t.Check(s); err != nil {
		return err
	}
	t.yield(s)
	return nil
}

// Check is Poll for who waits in a way of his own.
func (t *Team) Check(s *WaitState) *fault.Error {
	s.Polls++
	// One peer's abort word a round, and that of the peer we wait for.
	for _, r := range [2]int{s.Peer, int(s.Polls) % t.size} {
		if v := t.Peers[r].Lost(); v != 0 && r != t.rank {
			return t.LostError(s, r, v)
		}
	}
	if e := t.comm.Broken(); e != nil { // this rank's own Abort, from another goroutine
		return e
	}
	if s.start.IsZero() {
		s.health = healthEvery
	}
	if s.Polls%PollsPerClock == 0 || s.now > yieldAfter {
		if err := t.PollClock(s); err != nil {
			return err
		}
	}
	return nil
}

// PollClock is the part of Poll that looks at the clock, and at what cannot be looked at often: but who does not wait,
// and calls nothing but this, has the processes looked at the first time, too.
func (t *Team) PollClock(s *WaitState) *fault.Error {
	if s.start.IsZero() {
		s.start = time.Now()
	}
	s.now = time.Since(s.start)
	if err := s.Ctx.Err(); err != nil {
		return t.errorAt(s, t.absent(s), reason.Ended(s.Ctx))
	}
	p := &t.Peers[s.Peer] // for a rank of another host, this one itself, which has not closed
	if s.Behind {
		s.behind = s.now
	} else if p.Closed() {
		if v := p.Lost(); v != 0 { // written before the close, and perhaps after poll looked
			return t.LostError(s, s.Peer, v)
		}
		return t.ClosedError(s, s.Peer)
	}
	t.comm.Advance()
	if s.now < s.health {
		return nil
	}
	s.health = s.now + healthEvery
	if err := t.PollHealth(s); err != nil {
		return err
	}
	t.say(s)
	limit := time.Duration(t.Timeout.Load())
	if s.now-s.behind > limit {
		text, about := t.account(s)
		return t.errorAt(s, about, fmt.Errorf("nothing from it for %v%s: %w", limit, text, fault.ErrTimeout))
	}
	if int64(s.now-s.behind) > ReportAfter.Load() && !s.reported {
		s.reported = true
		text, about := t.account(s)
		e := t.errorAt(s, about, nil)
		t.comm.Log().Warn("ubcoll: still waiting", "op", e.Op, "seq", e.Seq, "rank", e.Rank,
			"host", t.comm.Hostname(about), "step", s.Step, "missing", e.Peer, "for", s.now.Round(time.Second),
			"timeout", limit, "all", strings.TrimPrefix(text, "; "))
	}
	return nil
}

// PollHealth looks at all peers: a dead one that no operation waits for yet will be missed soon. What a rank published
// before it died comes first, so that the first to die is named, not those that followed it.
func (t *Team) PollHealth(s *WaitState) *fault.Error {
	for r := range t.Peers {
		if v := t.Peers[r].Lost(); v != 0 && r != t.rank {
			return t.LostError(s, r, v)
		}
	}
	t.comm.Look()
	for r := range t.Peers {
		p := &t.Peers[r]
		if p.Mem == nil || !p.Mem.Dead() || p.Closed() {
			continue
		}
		if v := p.Lost(); v != 0 {
			return t.LostError(s, r, v)
		}
		return t.errorAt(s, t.Name(r), fmt.Errorf("its process (%v) died: %w", p.Proc, fault.ErrPeerLost))
	}
	return t.diverged(s)
}

// errorAt is an error of a wait, about one of the communicator's ranks: it must not look at the running operation if that is another one.
func (t *Team) errorAt(s *WaitState, about int, err error) *fault.Error {
	if s.Op == "" {
		return t.Errorf(s.Step, about, err)
	}
	return &fault.Error{Op: s.Op, Rank: t.Name(t.rank), Peer: about, Host: t.Peers[t.rank].Host, Step: s.Step, Err: err}
}

// yield gives the processor away. Gosched also wakes a thread to look for work on each processor that Go has idle: with
// a process for each rank these take the processors of the other ranks (16 ranks that are not bound, 512 bytes: 8.5 us,
// not 3.8). So it is for what has no other processor to run on, and for waits that are long anyway.
func (t *Team) yield(s *WaitState) {
	goschedAfter := uint(goschedLong)
	if t.inProcess || t.oneP {
		goschedAfter = goschedOften
	}
	switch {
	case s.now > SleepAfter:
		SleepFor(s.now)
	case t.Crowded || s.now > yieldAfter:
		switch {
		case !t.outside:
		case t.Crowded && t.apart:
			shm.Nap()
		default:
			shm.Yield()
		}
		if t.inProcess || s.Polls%goschedAfter == 0 {
			runtime.Gosched()
		}
	case s.Polls%goschedAfter == 0:
		runtime.Gosched()
	}
}

// SleepFor sleeps, the longer the longer a wait has lasted.
func SleepFor(waited time.Duration) { time.Sleep(min(waited/64, longestSleep)) }
