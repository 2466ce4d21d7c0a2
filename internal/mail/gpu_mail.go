package mail

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// gpuMail is a communicator's messages of device memory. Kernels do them, and count them in the device areas, apart for
// each lane: for each peer and direction. The host orders kernels of a lane as the calls came, and waits for nobody.
type gpuMail struct {
	mail  *Mail
	d     *gpu.Device
	first int       // status line
	lanes []gpuLane // two for each rank: see laneOf
	spare chan int  // status lines that no call has
	more  uint32    // of the streams' line: what collect has told of Status.More; under d.mu

	batches sync.Pool // that are not in use

	mu     sync.Mutex
	f      *cuda.Function // nil until it is first used
	shares *gpu.LaneShares
	ops    uint64 // that were queued
	free   []*mark
	all    []*mark
	strays []*gpu.Stream // with something that no mark is after
	holds  []hold

	branches gpu.Branches

	using sync.RWMutex // held for reading while events are looked at, for writing to close them
	gone  bool
}

// hold is memory of a peer that copy engines write, until what was queued is done.
type hold struct {
	peer   engine.DevicePeer
	extent uint32
	after  *mark // or nil
}

// deviceMail is the messages of device memory, or nil without a device.
func (m *Mail) deviceMail() *gpuMail {
	if m.gpu == nil || gpu.DeviceOf(m.c) == nil {
		return nil
	}
	return m.gpu
}

var _ gpu.ClientMaker = (*Mail)(nil)

// OnDevice implements gpu.ClientMaker.
func (m *Mail) OnDevice(d *gpu.Device) gpu.Client {
	m.gpu = newGPUMail(m, d)
	return m.gpu
}

func newGPUMail(mail *Mail, d *gpu.Device) *gpuMail {
	lanes := 2 * len(mail.boxes)
	m := &gpuMail{mail: mail, d: d, lanes: make([]gpuLane, lanes), spare: make(chan int, mailLines),
		shares: gpu.ShareLanes(lanes)}
	m.batches.New = func() any { return newBatch(lanes) }
	for i := 1; i < mailLines; i++ {
		m.spare <- i
	}
	return m
}

func (m *gpuMail) Watch() { m.release(false) }

// load finds the kernel at its first use.
func (m *gpuMail) load() (*cuda.Function, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.f != nil {
		return m.f, nil
	}
	if ranks := len(m.mail.boxes); m.d.Room.Messages == 0 {
		return nil, fmt.Errorf("messages of device memory between %d ranks take %d multiprocessors of each device, where one "+
			"has %d: %w", ranks, gpu.LeastForMessages(ranks), m.d.Multiprocessors, fault.ErrNotSupported)
	}
	f, err := m.d.Domain.Kernels.Kernel(kernels.Messages, dtype.Invalid, len(m.mail.boxes))
	if err != nil {
		return nil, err
	}
	m.f = f
	return f, nil
}

// Close gives up what the messages have on the device, once all that was queued has ended. Nothing is queued any more.
func (m *gpuMail) Close() error {
	var errs []error
	m.mu.Lock()
	marks, strays := m.all, m.strays
	m.mu.Unlock()
	for _, s := range strays {
		s.Quiet()
	}
	for i := range m.lanes {
		if s := m.lanes[i].own; s != nil {
			s.Quiet()
		}
	}
	for _, k := range marks { // not those that are free, but these have been reached
		k.event.Sync() // a device that has ceased to work has said so
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
	errs = append(errs, m.branches.Close())
	for _, k := range marks {
		errs = append(errs, k.event.Close())
	}
	return errors.Join(errs...)
}

// release gives up the memory of peers that nothing writes any more, or all of it.
func (m *gpuMail) release(all bool) error {
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
			m.letGo(h.after)
		}
		errs = append(errs, h.peer.Unhold(h.extent))
	}
	m.mu.Lock()
	m.holds = append(m.holds, rest...)
	m.mu.Unlock()
	return errors.Join(errs...)
}
