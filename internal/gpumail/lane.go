package gpumail

import (
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// lane is the messages from one rank, or to it.
type lane struct {
	mu     sync.Mutex  // held while something is queued; the driver may block meanwhile
	own    *gpu.Stream // for blocking calls; nil until the first
	last   *mark       // after the work queued last; or nil
	fifo   gpu.Extra   // for large staged receives, in addition to the small FIFO of the area
	closed bool
}

// laneOf returns the lane of messages to peer or, if recv, from it.
func laneOf(peer int, recv bool) int {
	if recv {
		return 2*peer + 1
	}
	return 2 * peer
}

// mark is an event recorded after work on a stream.
type mark struct {
	event  *cuda.Event
	stream *gpu.Stream
	users  int // under messages.mu
}

// lock locks the lanes of a set, so that work can be queued on them.
func (m *messages) lock(lanes gpu.LaneSet) error {
	for i := lanes.Next(0); i >= 0; i = lanes.Next(i + 1) {
		m.lanes[i].mu.Lock()
		if m.lanes[i].closed { // then all are: nobody closes one while another one is locked
			m.lanes[i].mu.Unlock()
			return fault.ErrClosed
		}
	}
	return nil
}

func (m *messages) unlock(lanes gpu.LaneSet) {
	for i := lanes.Next(0); i >= 0; i = lanes.Next(i + 1) {
		m.lanes[i].mu.Unlock()
	}
}

// order makes the next work on cu wait for the lanes' work on other streams than s. The caller has locked the lanes.
func (m *messages) order(lanes gpu.LaneSet, s *gpu.Stream, cu *cuda.Stream) error {
	for i := lanes.Next(0); i >= 0; i = lanes.Next(i + 1) {
		if last := m.lanes[i].last; last != nil && last.stream != s {
			if err := cu.Wait(last.event); err != nil {
				return err
			}
		}
	}
	return nil
}

// take returns a mark for work to be queued on s. The caller gives it back with putBack.
func (m *messages) take(s *gpu.Stream) (*mark, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.free); n > 0 {
		k := m.free[n-1]
		m.free = m.free[:n-1]
		k.stream, k.users = s, 1
		return k, nil
	}
	e, err := m.d.Domain.Context.NewEvent(false)
	if err != nil {
		return nil, err
	}
	k := &mark{event: e, stream: s, users: 1}
	m.all = append(m.all, k)
	return k, nil
}

// set records k after the work queued on cu, as the last mark of the lanes, which the caller has locked.
func (m *messages) set(k *mark, lanes gpu.LaneSet, cu *cuda.Stream) error {
	if err := k.event.Record(cu); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := lanes.Next(0); i >= 0; i = lanes.Next(i + 1) {
		l := &m.lanes[i]
		m.drop(l.last)
		l.last = k
		m.shares.Queued(i)
		k.users++
	}
	return nil
}

// noteUnmarked remembers that s may have work queued after its last mark.
func (m *messages) noteUnmarked(s *gpu.Stream) {
	m.mu.Lock()
	m.unmarked = append(m.unmarked, s)
	m.mu.Unlock()
}

func (m *messages) putBack(k *mark) {
	m.mu.Lock()
	m.drop(k)
	m.mu.Unlock()
}

// drop ends one use of k. The caller has mu.
func (m *messages) drop(k *mark) {
	if k == nil {
		return
	}
	k.users--
	if invariants.Enabled {
		k.checkUsers()
	}
	if k.users == 0 {
		k.stream = nil
		m.free = append(m.free, k)
	}
}

// reached reports whether the work before k has ended. It is true if the communicator has been closed meanwhile.
func (m *messages) reached(k *mark) (bool, error) {
	m.using.RLock()
	defer m.using.RUnlock()
	if m.gone || k == nil {
		return true, nil
	}
	return k.event.Done()
}

// busy reports whether work queued on the lane has not ended. It takes no lock that a launch may hold.
func (m *messages) busy(lane int) bool {
	m.mu.Lock()
	k := m.lanes[lane].last
	if k != nil {
		k.users++
	}
	m.mu.Unlock()
	if k == nil {
		return false
	}
	done, err := m.reached(k)
	m.putBack(k)
	return err == nil && !done
}

// anyBusy returns a busy lane, or -1.
func (m *messages) anyBusy() int {
	for i := range m.lanes {
		if m.busy(i) {
			return i
		}
	}
	return -1
}

// Stuck returns a peer that has closed its communicator while messages with it are queued, or -1.
func (m *messages) Stuck() int {
	for i := range m.lanes {
		r := i / 2
		if r != m.c.Team().Rank() && m.c.Team().Peers[r].Closed() && m.busy(i) {
			return r
		}
	}
	return -1
}

// shut stops all queueing until reopen. It fails with fault.ErrBusy while queued work runs, unless the communicator is
// broken.
func (m *messages) shut(broken bool) error {
	all := gpu.LanesTo(len(m.lanes))
	if err := m.lock(all); err != nil {
		return err
	}
	if m.far != nil && !broken {
		if err := m.far.shut(); err != nil {
			m.unlock(all)
			return err
		}
	}
	if i := m.anyBusy(); i >= 0 && !broken {
		m.unlock(all)
		return fmt.Errorf("a message of device memory, from or to rank %d, is on its way (its call, Request.Wait "+
			"or Stream.Sync ends it): %w", m.d.Name(i/2), fault.ErrBusy)
	}
	return nil
}

// reopen ends shut. If closed, the lanes stay closed.
func (m *messages) reopen(closed bool) {
	for i := range m.lanes {
		m.lanes[i].closed = closed
	}
	m.unlock(gpu.LanesTo(len(m.lanes)))
}

// own returns the lane's own stream. The caller has locked the lane.
func (m *messages) own(lane int) (*gpu.Stream, error) {
	l := &m.lanes[lane]
	if l.own == nil {
		s, err := m.d.Domain.NewStream()
		if err != nil {
			return nil, err
		}
		l.own = s
		m.d.Domain.Add(s)
	}
	return l.own, nil
}
