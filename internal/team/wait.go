package team

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// A wait reads its word in a loop. After every LooksPerPoll reads it calls Poll, a real Go call, so that it never
// delays a stop-the-world. Poll checks for abort, deadline and dead peers and runs pending control work. It yields the
// processor more readily the longer the wait lasts.
const (
	LooksPerPoll  = 256
	looksCrowded  = 32                     // more ranks than processors: the peer needs this processor
	yieldAfter    = 10 * time.Microsecond  // between processes: then sched_yield
	SleepAfter    = 5 * time.Millisecond   // then sleep, ever longer
	longestSleep  = time.Millisecond       //
	healthEvery   = 20 * time.Millisecond  // between checks of the peers' processes
	PollsPerClock = 8                      // polls between reads of the clock while a wait is young
	lateAfter     = 20 * time.Microsecond  // then who is awaited is late, and the flight recorder is told when the wait began
	reportAfter   = 10 * time.Second       // then it logs once who is missing
	goschedOften  = 4                      // polls between yields to goroutines that need this processor
	goschedEvery  = 200 * time.Microsecond // the same if they have other processors
)

// Reached reports whether have is at least target; the words may wrap around.
func Reached(have, target uint64) bool { return int64(have-target) >= 0 }

// Wait waits until *w is at least target: until peer, a rank of the team, has done step. It ends early with an error,
// which breaks the communicator, if the peer is lost, the deadline passes, some rank aborts, or ctx ends.
func (t *Team) Wait(ctx context.Context, w *atomic.Uint64, target uint64, peer int, step string) error {
	looks := t.Looks()
	for i := 0; i < looks; i++ {
		if Reached(w.Load(), target) {
			return nil
		}
	}
	return t.waitLong(ctx, w, target, peer, step, looks)
}

// Looks is how often a wait reads its word before it polls.
func (t *Team) Looks() int {
	if t.Crowded {
		return looksCrowded
	}
	return LooksPerPoll
}

// WaitState is the state of one long wait.
type WaitState struct {
	Op   string // an operation that is no collective; "" = the running collective
	Ctx  context.Context
	Peer int // rank of the team
	// PassOn says that the error which ends this wait is passed on to other ranks: an error about this rank then stays
	// about this rank.
	PassOn bool
	// Far is 1 + the rank, in the communicator, that it waits for if that is on another host; Peer is this rank then. 0 if
	// it waits for Peer.
	Far      int
	Step     string
	Polls    uint
	start    time.Time     // first read of the clock
	now      time.Duration // since start, at the last read of the clock
	health   time.Duration // when to check the processes next
	gosched  time.Duration // when it last let other goroutines run
	behind   time.Duration // until when Behind was set
	stopped  time.Duration // how much of the time since then this process was stopped
	reported bool
	Lost     bool     // a peer has published that the communicator broke
	Kind     OpKind   // kind of Op, if that is set; KindRefused: neither a collective nor a message
	Item     numbered // what the wait is for, if it has a number; or nil
	Several  bool     // it waits for several of them
	// Behind says that an operation of this rank must run before this wait can end. Meanwhile neither a deadline nor that
	// the peer has closed its communicator ends the wait.
	Behind    bool
	Published waitWord // what this rank's control area tells the others of this wait; 0: nothing
}

// numbered is an operation with a place in an order, or 0 if the place is not known now.
type numbered interface{ Number() uint64 }

func (t *Team) waitLong(ctx context.Context, w *atomic.Uint64, target uint64, peer int, step string, looks int) error {
	s := WaitState{Ctx: ctx, Peer: peer, Step: step}
	for {
		if err := t.Poll(&s); err != nil {
			if Reached(w.Load(), target) {
				t.EndWait(&s)
				return nil // the word came after all, as the last thing that the peer did
			}
			return t.comm.Fail(err)
		}
		for i := 0; i < looks; i++ {
			if Reached(w.Load(), target) {
				t.EndWait(&s)
				if s.now > lateAfter && step == StepAgree {
					t.Late = Late{peer, s.now}
				}
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

// Check is Poll without the yield, for callers with a wait loop of their own.
func (t *Team) Check(s *WaitState) *fault.Error {
	s.Polls++
	// Each round reads the abort word of one peer in turn, and that of the peer that this rank waits for.
	for _, r := range [2]int{s.Peer, int(s.Polls) % t.size} {
		if v := t.Peers[r].Lost(); v != 0 && r != t.rank {
			return t.LostError(s, r, v)
		}
	}
	if e := t.comm.Broken(); e != nil { // Abort by another goroutine of this rank
		return e
	}
	if s.start.IsZero() {
		s.health = healthEvery
	}
	if s.Polls%PollsPerClock == 0 || s.now > yieldAfter {
		if err := t.pollClock(s, clock.Gap); err != nil {
			return err
		}
	}
	return nil
}

// PollClock is the part of Poll that reads the clock and makes the expensive checks. A caller that only polls, and
// calls nothing else, checks the processes in the first call, too.
func (t *Team) PollClock(s *WaitState) *fault.Error { return t.pollClock(s, math.MaxInt64) }

// pollClock is PollClock for a caller that looks at least every gap, unless its process is stopped: that time does not
// count against the deadline.
func (t *Team) pollClock(s *WaitState, gap time.Duration) *fault.Error {
	if s.start.IsZero() {
		s.start = time.Now()
	}
	last := s.now
	if s.now = time.Since(s.start); s.now-last > gap {
		s.stopped += s.now - last
	}
	if s.now > lateAfter && last <= lateAfter && s.Op == "" && !t.Flight.Known() {
		t.Flight.Began(flight.AtTime(s.start))
	}
	if err := s.Ctx.Err(); err != nil {
		about := t.absent(s)
		if s.Far != 0 {
			_, about = t.account(s)
		}
		return t.errorAt(s, about, fmt.Errorf("waiting for rank %d: %w", about, reason.Ended(s.Ctx)))
	}
	p := &t.Peers[s.Peer] // this rank itself if it waits for another host's; it has not closed
	if s.Behind {
		s.behind, s.stopped = s.now, 0
	} else if p.Closed() {
		if v := p.Lost(); v != 0 { // written before the close, and perhaps after Check read it
			return t.LostError(s, s.Peer, v)
		}
		return t.ClosedError(s, s.Peer)
	}
	t.comm.Advance()
	if t.Hosts != nil && s.Far == 0 && s.now > yieldAfter { // a wait for another host does it
		t.Hosts.Progress()
	}
	if s.now < s.health {
		return nil
	}
	s.health = s.now + healthEvery
	if err := t.PollHealth(s); err != nil {
		return err
	}
	t.publishWait(s)
	limit := time.Duration(t.Timeout.Load())
	waited := s.now - s.behind - s.stopped
	if waited > limit {
		text, about := t.account(s)
		return t.errorAt(s, about, fmt.Errorf("nothing from rank %d for %v%s: %w", about, limit, text, fault.ErrTimeout))
	}
	if int64(waited) > t.ReportAfter.Load() && !s.reported {
		s.reported = true
		text, about := t.account(s)
		e := t.errorAt(s, about, nil)
		t.comm.Log().Warn("ubcoll: still waiting", "op", e.Op, "seq", e.Seq, "rank", e.Rank,
			"host", t.comm.Hostname(about), "step", s.Step, "missing", e.Peer, "for", waited.Round(time.Second),
			"timeout", limit, "all", strings.TrimPrefix(text, "; "), "arrivals", t.arrivals())
	}
	return nil
}

// PollHealth checks all peers, because a dead peer that no operation waits for yet will soon be missed.
func (t *Team) PollHealth(s *WaitState) *fault.Error {
	if e := t.lost(s); e != nil {
		return e
	}
	return t.diverged(s)
}

// lost returns an error about a peer that has failed or died; nil if there is none. What a rank published before it died
// counts first, so that errors name the first rank that died, not those that followed.
func (t *Team) lost(s *WaitState) *fault.Error {
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
		return t.errorAt(s, t.Name(r), fmt.Errorf("the process of rank %d (%v) died: %w", t.Name(r),
			p.Proc, fault.ErrPeerLost))
	}
	return nil
}

// errorAt makes the error of a wait, about a rank of the communicator. If the wait is not part of the running
// operation, errorAt must not read that.
func (t *Team) errorAt(s *WaitState, about int, err error) *fault.Error {
	if s.Op == "" {
		return t.Errorf(s.Step, about, err)
	}
	return &fault.Error{Op: s.Op, Rank: t.Name(t.rank), Peer: about, Host: t.Peers[t.rank].Host, Step: s.Step, Err: err}
}

// yield gives the processor away. Gosched also wakes a thread on an idle processor of Go's to look for work. With one
// process for each rank this thread takes the processor of another rank: 16 ranks on 16 processors took twice as long for
// small operations between hosts. So yield calls it often only if goroutines have no other processor, and otherwise only
// in long waits.
func (t *Team) yield(s *WaitState) {
	often := t.inProcess || t.oneP && s.Polls%goschedOften == 0
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
		if often || s.now-s.gosched >= goschedEvery {
			s.gosched = s.now
			runtime.Gosched()
		}
	case often && s.Polls%goschedOften == 0:
		runtime.Gosched()
	}
}

// Rest gives the processor away in a wait that began at since, which is no operation's.
func (t *Team) Rest(since time.Time) { t.yield(&WaitState{now: time.Since(since)}) }

// SleepFor sleeps, longer the longer a wait has lasted.
func SleepFor(waited time.Duration) { time.Sleep(min(waited/64, longestSleep)) }
