package onesided

import (
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// signals are one end of counted signals each way between two ranks: those of one channel, or of a semaphore, whose
// channels share them. They have a slot in the table of ends, which they leave when both ends are closed.
type signals struct {
	sp     *Space
	c      *engine.Comm
	peer   int
	slot   int // in the table of ends
	key    uint64
	mine   *channelEnd
	theirs *channelEnd // nil until the other end has been found
	far    *far        // the peer is on another host; else nil
	number uint64      // among the ends made with that peer
	late   atomic.Bool // signals were not sent, for want of room

	out, in       *atomic.Uint64 // counters of signals
	sent, awaited uint64
}

// Signal lets one Wait of the other end go on. That end then sees all that this rank wrote before. Call it within a
// use.
func (s *signals) Signal() {
	if s.far != nil {
		s.signalFar()
		return
	}
	s.sent++
	spin.Release(s.out, s.sent)
}

// signalFar tells a peer on another host. Without room for that, it learns of it with a later mark.
func (s *signals) signalFar() {
	s.sent++
	s.out.Store(s.sent)
	if s.late.Load() || !s.far.paced(0) {
		s.far.later(s)
		return
	}
	s.far.send(&call{Kind: callSignal, ID: s.number, A: s.sent}, nil)
}

// take takes a signal if there is one. Call it within a use.
func (s *signals) take() bool {
	next := s.awaited + 1
	if !team.Reached(s.in.Load(), next) {
		return false
	}
	s.awaited = next
	return true
}

// open takes a slot, publishes what this end is, and begins a use of `of`, which has the signals. If there is an error,
// refused or a new one, it still reports whether it could take a slot, which tells the peer the error.
func (s *signals) open(of closable, what exportWords, refused error) (opened bool, err error) {
	c, sp := s.c, s.sp
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if c.Closing() {
		return false, engine.ErrCommClosed
	}
	if s.far != nil {
		return s.openFar(of, what, refused)
	}
	if err := sp.makeTable(); err != nil {
		return false, err
	}
	if s.slot, err = sp.take(s, what.onDevice() && refused == nil); refused == nil {
		refused = err
	}
	if s.slot < 0 {
		return false, refused
	}
	made := sp.table.made(sp.local(s.peer))
	n := made.Load()
	s.key = channelKey(s.peer, uint32(n))
	s.mine = &sp.table.ends[s.slot]
	s.out = s.mine.word(c.Rank() > s.peer)
	s.out.Store(0)
	s.mine.met.Store(0)
	s.mine.export = what
	if refused != nil {
		s.mine.export = exportWords{slot: uint64(reason.Code(refused))}
	}
	s.mine.key.Store(s.key)
	made.Store(n + 1)
	sp.put(of)
	of.use().Enter()
	return true, refused
}

// openFar is open for a peer on another host. The slot only counts.
func (s *signals) openFar(of closable, what exportWords, refused error) (opened bool, err error) {
	f, sp := s.far, s.sp
	slot := sp.freeSlot(false)
	if slot < 0 {
		return false, errNoEnd
	}
	if slot >= maxEnds && refused == nil {
		refused = errNoEnd
	}
	s.slot = slot
	sp.used[slot] = s
	if refused != nil {
		what = exportWords{slot: uint64(reason.Code(refused))}
	}
	f.mu.Lock()
	f.made++
	s.number = f.made
	end := f.end(s.number)
	f.mu.Unlock()
	s.mine = &end.mine
	s.out = &s.mine.signals[0].Uint64
	s.mine.state.Store(team.StateOpen)
	s.mine.export = what
	s.key = channelKey(s.peer, uint32(s.number-1))
	sp.put(of)
	of.use().Enter()
	if !what.semaphore() && what.generation != 0 {
		f.tells(mem.Location{Slot: uint32(what.slot), Generation: what.generation})
	}
	f.send(&call{Kind: callEnd, ID: s.number, A: what.bytes, B: what.slot, C: what.generation, D: what.at.Offset}, nil)
	return true, refused
}

func (s *signals) otherKey() uint64 { return channelKey(s.c.Rank(), uint32(s.key)-1) }

// otherEnd finds the other end's words and its slot. They are nil if the end does not exist yet, or, with gone, any
// more.
func (s *signals) otherEnd() (e *channelEnd, slot int, gone bool, err error) {
	if s.far != nil {
		return s.far.otherEnd(s.number), 0, false, nil
	}
	t, err := s.sp.tableOf(s.peer)
	if t == nil {
		return nil, 0, false, err
	}
	key := s.otherKey()
	gone = t.made(s.c.Team().Rank()).Load() > uint64(uint32(key)-1) // loaded before the slots are searched
	for i := range t.ends {
		if t.ends[i].key.Load() == key {
			return &t.ends[i], i, false, nil
		}
	}
	return nil, 0, gone, nil
}

// tell tells a peer on another host what has become of this end.
func (s *signals) tell(kind callKind) {
	if s.far != nil {
		s.far.send(&call{Kind: kind, ID: s.number}, nil)
	}
}

// found keeps where the other end is.
func (s *signals) found(theirs *channelEnd) {
	s.sp.mu.Lock()
	s.theirs, s.in = theirs, theirs.word(s.far == nil && s.peer > s.c.Rank())
	s.sp.mu.Unlock()
}

// givenUp is the error of a call whose other end was given up.
func (s *signals) givenUp() error {
	return fmt.Errorf("rank %d has given its end up: %w", s.peer, fault.ErrClosed)
}

// theirsClosed reports whether the other end, which has been found, is closed.
func (s *signals) theirsClosed() bool {
	if s.far != nil {
		return s.theirs.state.Load() == team.StateClosed
	}
	return s.theirs.key.Load() == s.otherKey() && s.theirs.state.Load() == team.StateClosed
}

// left reports whether both ends are closed: the other end's slot says so, or belongs to somebody else by now. It
// implements occupant.
func (s *signals) left() bool {
	if s.mine.state.Load() != team.StateClosed {
		return false
	}
	if s.far != nil {
		return s.far.leave(s.number)
	}
	gone := false
	if s.theirs == nil {
		s.theirs, _, gone, _ = s.otherEnd()
	}
	p := s.sp.peer(s.peer)
	reader := team.Reader{State: &p.Area.State, Mem: p.Mem, At: p.At}
	gone = gone || s.theirs != nil && (s.theirs.key.Load() != s.otherKey() || s.theirs.state.Load() == team.StateClosed)
	if !gone && !reader.Done() {
		return false
	}
	s.mine.key.Store(0)
	return true
}
