package gpumail

import (
	"errors"
	"sync"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// messages is a communicator's messages on its device. Kernels move them, and count them in the device areas separately
// for each lane: for each peer and direction. The host keeps a lane's kernels in call order and never waits for a peer.
// It implements gpu.Client.
type messages struct {
	c     *engine.Comm
	host  *mail.Mail // messages of host memory
	d     *gpu.Device
	eager int      // the size of the largest message that goes as packets
	first int      // the status line that is line 0 here
	lanes []lane   // two for each rank: see laneOf
	spare chan int // status lines that are free
	more  uint32   // how much of Status.More of the streams' line Collect has reported; under d.mu

	partitions sync.Pool // of *partition

	mu       sync.Mutex
	f        *cuda.Function // nil until it is first used
	shares   *gpu.LaneShares
	ops      uint64 // how many were queued
	free     []*mark
	all      []*mark
	unmarked []*gpu.Stream // streams that may have work queued after their last mark
	holds    []hold

	branches gpu.Branches
	far      *far // messages with ranks of other hosts; nil: there are none

	using sync.RWMutex // held for reading while an event is queried, for writing to close them
	gone  bool
}

// hold keeps a peer's memory, which copy engines write, until the work queued up to after is done.
type hold struct {
	peer   engine.DevicePeer
	extent uint32
	after  *mark // or nil
}

// The tuning table has the limit of what goes as packets: a message must fit into a kernel's box.
var _ [kernels.EagerBytes]struct{} = [tuning.DeviceRoom]struct{}{}

// newMessages makes the messages with that many ranks on d, without their communicator. Those that fit into the kernels'
// boxes go as packets.
func newMessages(ranks int, d *gpu.Device) *messages {
	lanes := 2 * ranks
	m := &messages{d: d, eager: kernels.EagerBytes, lanes: make([]lane, lanes), spare: make(chan int, statusLines),
		shares: gpu.ShareLanes(lanes)}
	m.partitions.New = func() any { return newPartition(lanes) }
	for i := 1; i < statusLines; i++ {
		m.spare <- i
	}
	return m
}

// ranks is how many ranks exchange messages.
func (m *messages) ranks() int { return len(m.lanes) / 2 }

func (m *messages) Watch() { m.release(false) }

// load finds the kernel at its first use.
func (m *messages) load() (*cuda.Function, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.f != nil {
		return m.f, nil
	}
	if m.d.Room.Messages == 0 {
		return nil, m.d.NoRoomForMessages(m.ranks())
	}
	f, err := m.d.Domain.Kernels.Kernel(kernels.Messages, dtype.Invalid, m.ranks())
	if err != nil {
		return nil, err
	}
	m.f = f
	return f, nil
}

// Close frees what the messages have on the device, after all queued work has ended. Nothing more is queued by then.
func (m *messages) Close() error {
	var errs []error
	m.mu.Lock()
	marks, unmarked := m.all, m.unmarked
	m.mu.Unlock()
	for _, s := range unmarked {
		s.Quiet()
	}
	for i := range m.lanes {
		if s := m.lanes[i].own; s != nil {
			s.Quiet()
		}
	}
	for _, k := range marks { // includes marks that others hold; free ones have been reached already
		k.event.Sync() // no error check: a device that failed has reported it
	}
	if m.far != nil {
		errs = append(errs, m.far.close())
	}
	errs = append(errs, m.release(true))
	m.using.Lock()
	m.gone = true
	m.using.Unlock()
	for i := range m.lanes {
		if s := m.lanes[i].own; s != nil {
			m.d.Domain.Remove(s)
			errs = append(errs, s.End())
		}
	}
	errs = append(errs, m.branches.Close(m.d.Domain))
	for _, k := range marks {
		errs = append(errs, k.event.Close())
	}
	return errors.Join(errs...)
}

// release releases the memory of peers that nothing queued writes any more; all of it if all.
func (m *messages) release(all bool) error {
	m.mu.Lock()
	holds := m.holds
	m.holds = nil
	m.mu.Unlock()
	var errs []error
	var rest []hold
	for _, h := range holds {
		if done, _ := m.reached(h.after); !done && !all {
			rest = append(rest, h)
			continue
		}
		if h.after != nil {
			m.putBack(h.after)
		}
		errs = append(errs, h.peer.Unhold(h.extent))
	}
	m.mu.Lock()
	m.holds = append(m.holds, rest...)
	m.mu.Unlock()
	return errors.Join(errs...)
}
