package engine

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/logs"
)

// How a wait goes: it looks at its word; every looksPerPoll looks it passes poll, a real Go call, so that a
// stop-the-world is never held up; poll looks after abort, deadline and dead peers, runs pending control work, and
// gives the processor away the more readily the longer the wait lasts.
const (
	looksPerPoll  = 256
	looksCrowded  = 32                    // more ranks than processors: the peer needs this processor
	yieldAfter    = 10 * time.Microsecond // processes: then sched_yield
	sleepAfter    = 5 * time.Millisecond  // then sleep, ever longer
	longestSleep  = time.Millisecond      //
	healthEvery   = 20 * time.Millisecond // between looks at the peers' processes
	pollsPerClock = 8                     // polls between looks at the clock while a wait is young
	goschedOften  = 4                     // polls between yields to this process' goroutines, which need this processor
	goschedLong   = 64                    // the same where they have others
)

// reportAfter is when a wait says once who is missing, in nanoseconds. A variable for tests.
var reportAfter atomic.Int64

func init() { reportAfter.Store(int64(10 * time.Second)) }

// reached compares words that may wrap around.
func reached(have, target uint64) bool { return int64(have-target) >= 0 }

// ended is why ctx ended.
func ended(ctx context.Context) error { return fault.Ended(ctx) }

// Wait waits until *w is at least target, for peer to do what step says. It ends early with an error, which breaks the
// communicator: the peer is lost, the deadline passed, somebody aborted, ctx ended.
func (c *Comm) Wait(ctx context.Context, w *atomic.Uint64, target uint64, peer int, step string) error {
	looks := looksPerPoll
	if c.crowded {
		looks = looksCrowded
	}
	for i := 0; i < looks; i++ {
		if reached(w.Load(), target) {
			return nil
		}
	}
	return c.waitLong(ctx, w, target, peer, step, looks)
}

// waiting is the state of one long wait.
type waiting struct {
	op       string // beside the collectives; "" = the running one
	ctx      context.Context
	peer     int
	step     string
	polls    uint
	start    time.Time     // of the first look at the clock
	now      time.Duration // since start, as of the last look at the clock
	health   time.Duration // when to look at the processes next
	reported bool
	lost     bool     // a peer has said that the communicator broke
	message  *Message // that it is for, if that is what it is
	several  bool     // and others with it
	said     said     // in the area
}

func (c *Comm) waitLong(ctx context.Context, w *atomic.Uint64, target uint64, peer int, step string, looks int) error {
	s := waiting{ctx: ctx, peer: peer, step: step, health: healthEvery}
	for {
		if err := c.poll(&s); err != nil {
			if reached(w.Load(), target) {
				c.waited(&s)
				return nil // it came all the same, as the last thing its peer did
			}
			return c.fail(err)
		}
		for i := 0; i < looks; i++ {
			if reached(w.Load(), target) {
				c.waited(&s)
				return nil
			}
		}
	}
}

// poll is one step of a wait's housekeeping. The error it returns has not broken the communicator yet.
//
//go:noinline
func (c *Comm) poll(s *waiting) *fault.Error {
	s.polls++
	// One peer's abort word a round, and that of the peer we wait for.
	for _, r := range [2]int{s.peer, int(s.polls) % c.size} {
		if v := c.peers[r].area.lost.Load(); v != 0 && r != c.rank {
			return c.lostError(s, r, v)
		}
	}
	if e := c.broken.Load(); e != nil { // this rank's own Abort, from another goroutine
		return e
	}
	if s.polls%pollsPerClock == 0 || s.now > yieldAfter {
		if err := c.pollClock(s); err != nil {
			return err
		}
	}
	c.yield(s)
	return nil
}

func (c *Comm) pollClock(s *waiting) *fault.Error {
	if s.start.IsZero() {
		s.start = time.Now()
	}
	s.now = time.Since(s.start)
	if err := s.ctx.Err(); err != nil {
		return c.errorAt(s, c.absent(s), ended(s.ctx))
	}
	p := &c.peers[s.peer]
	if p.area.state.Load() == stateClosed {
		if v := p.area.lost.Load(); v != 0 { // written before the close, and perhaps after poll looked
			return c.lostError(s, s.peer, v)
		}
		return c.errorAt(s, s.peer, fmt.Errorf("it closed its communicator: %w", fault.ErrPeerLost))
	}
	c.dom.IPC.Progress()
	c.dom.mailroom.move()
	if s.now < s.health {
		return nil
	}
	s.health = s.now + healthEvery
	if err := c.pollHealth(s); err != nil {
		return err
	}
	c.say(s)
	t := time.Duration(c.timeout.Load())
	if s.now > t {
		text, about := c.account(s)
		return c.errorAt(s, about, fmt.Errorf("nothing from it for %v%s: %w", t, text, fault.ErrTimeout))
	}
	if int64(s.now) > reportAfter.Load() && !s.reported {
		s.reported = true
		text, about := c.account(s)
		e := c.errorAt(s, about, nil)
		logs.Warn("still waiting", "op", e.Op, "seq", e.Seq, "rank", c.rank,
			"host", p.host, "step", s.step, "missing", e.Peer, "for", s.now.Round(time.Second),
			"timeout", t, "all", strings.TrimPrefix(text, "; "))
	}
	return nil
}

// pollHealth looks at all peers: a dead one that no operation waits for yet will be missed soon. What a rank published
// before it died comes first, so that the first to die is named, not those that followed it.
func (c *Comm) pollHealth(s *waiting) *fault.Error {
	for r := range c.peers {
		if v := c.peers[r].area.lost.Load(); v != 0 && r != c.rank {
			return c.lostError(s, r, v)
		}
	}
	c.dom.IPC.Look()
	for r := range c.peers {
		p := &c.peers[r]
		if p.mem == nil || !p.mem.Dead() || p.area.state.Load() == stateClosed {
			continue
		}
		if v := p.area.lost.Load(); v != 0 {
			return c.lostError(s, r, v)
		}
		return c.errorAt(s, r, fmt.Errorf("its process (%v) died: %w", p.proc, fault.ErrPeerLost))
	}
	return c.diverged(s)
}

// errorAt is an error of a wait: it must not look at the running operation if that is another one.
func (c *Comm) errorAt(s *waiting, about int, err error) *fault.Error {
	if s.op == "" {
		return c.errorf(s.step, about, err)
	}
	return &fault.Error{Op: s.op, Rank: c.rank, Peer: about, Host: c.peers[c.rank].host, Step: s.step, Err: err}
}

// yield gives the processor away. Gosched also wakes a thread to look for work on each processor that Go has idle: with
// a process for each rank these take the processors of the other ranks (16 ranks that are not bound, 512 bytes: 8.5 us,
// not 3.8). So it is for what has no other processor to run on, and for waits that are long anyway.
func (c *Comm) yield(s *waiting) {
	goschedAfter := uint(goschedLong)
	if c.inProcess || c.oneP {
		goschedAfter = goschedOften
	}
	switch {
	case s.now > sleepAfter:
		time.Sleep(min(s.now/64, longestSleep))
	case c.crowded || s.now > yieldAfter:
		switch {
		case !c.outside:
		case c.crowded && c.apart:
			shm.Nap()
		default:
			shm.Yield()
		}
		if c.inProcess || s.polls%goschedAfter == 0 {
			runtime.Gosched()
		}
	case s.polls%goschedAfter == 0:
		runtime.Gosched()
	}
}
