package onesided

import (
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/engine"
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

	out, in       *atomic.Uint64 // counters of signals
	sent, awaited uint64
}

// Signal lets one Wait of the other end go on. That end then sees all that this rank wrote before. Call it within a
// use.
func (s *signals) Signal() {
	s.sent++
	spin.Release(s.out, s.sent)
}

// Poll takes a signal if there is one. Call it within a use.
func (s *signals) Poll() bool {
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
	if err := sp.makeTable(); err != nil {
		return false, err
	}
	if s.slot, err = sp.take(s, what.onDevice() && refused == nil); refused == nil {
		refused = err
	}
	if s.slot < 0 {
		return false, refused
	}
	made := sp.table.made(s.peer)
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

func (s *signals) otherKey() uint64 { return channelKey(s.c.Rank(), uint32(s.key)-1) }

// otherEnd finds the other end's words and its slot. They are nil if the end does not exist yet, or, with gone, any
// more.
func (s *signals) otherEnd() (e *channelEnd, slot int, gone bool, err error) {
	t, err := s.sp.tableOf(s.peer)
	if t == nil {
		return nil, 0, false, err
	}
	key := s.otherKey()
	gone = t.made(s.c.Rank()).Load() > uint64(uint32(key)-1) // loaded before the slots are searched
	for i := range t.ends {
		if t.ends[i].key.Load() == key {
			return &t.ends[i], i, false, nil
		}
	}
	return nil, 0, gone, nil
}

// found keeps where the other end is.
func (s *signals) found(theirs *channelEnd) {
	s.sp.mu.Lock()
	s.theirs, s.in = theirs, theirs.word(s.peer > s.c.Rank())
	s.sp.mu.Unlock()
}

// givenUp is the error of a call whose other end was given up.
func (s *signals) givenUp() error {
	return fmt.Errorf("rank %d has given its end up: %w", s.peer, fault.ErrClosed)
}

// theirsClosed reports whether the other end, which has been found, is closed.
func (s *signals) theirsClosed() bool {
	return s.theirs.key.Load() == s.otherKey() && s.theirs.state.Load() == team.StateClosed
}

// left reports whether both ends are closed: the other end's slot says so, or belongs to somebody else by now. It
// implements occupant.
func (s *signals) left() bool {
	if s.mine.state.Load() != team.StateClosed {
		return false
	}
	gone := false
	if s.theirs == nil {
		s.theirs, _, gone, _ = s.otherEnd()
	}
	p := &s.c.Team().Peers[s.peer]
	reader := team.Reader{State: &p.Area.State, Mem: p.Mem, At: p.At}
	gone = gone || s.theirs != nil && (s.theirs.key.Load() != s.otherKey() || s.theirs.state.Load() == team.StateClosed)
	if !gone && !reader.Done() {
		return false
	}
	s.mine.key.Store(0)
	return true
}
