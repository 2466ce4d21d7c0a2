package mem

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

// device is a heap's side of the rank's device. The driver's calls take long. They are made without the heap's lock,
// and counted, so that Close can wait for them.
type device struct {
	ctx     *cuda.Context
	quiesce func()
	zeroer  Zeroer
	calls   sync.WaitGroup // AllocDevice and Retire calls under way
	unit    atomic.Int64   // RoundDevice's

	slicing sync.Mutex
	slabs   []*slab
	slab    *slab // the one with the most room, or nil
}

// Zeroer is a stream on which nothing waits for a peer.
type Zeroer interface {
	Fill(at cuda.Addr, b byte, n int) error // queues that
	Sync() error                            // waits until it is done
}

// UseDevice makes the heap allocate on ctx's device, and zero memory on z. Call it once, before the heap is shared. The
// caller keeps both open until after Close, and closes them.
func (h *Heap) UseDevice(ctx *cuda.Context, z Zeroer) { h.device.ctx, h.device.zeroer = ctx, z }

// RoundDevice makes sizes and addresses of AllocDevice multiples of unit, a power of two, as well as of the driver's
// granularity. With the least granularity of multicast objects, all of an allocation can be bound to one. It applies to
// later calls.
func (h *Heap) RoundDevice(unit int) error {
	if unit <= 0 || unit&(unit-1) != 0 {
		return fmt.Errorf("device memory in units of %d bytes, which is no power of two: %w", unit, fault.ErrArgument)
	}
	h.device.unit.Store(int64(unit))
	return nil
}

// OnQuiesce sets the function that the heap calls before it frees device memory or ends an export. f must wait until
// all work of this rank that is queued on its device has ended. The heap calls it without holding locks. Call OnQuiesce
// once, before the first AllocDevice.
func (h *Heap) OnQuiesce(f func()) { h.device.quiesce = f }

// Quiesce calls the function that OnQuiesce has set. It may wait for other ranks.
func (h *Heap) Quiesce() {
	if h.device.quiesce != nil {
		h.device.quiesce()
	}
}

// AllocDevice returns n bytes of device memory, zeroed. Their address is a multiple of the driver's granularity (2
// MiB), or of RoundDevice's unit if that is larger, and their size is rounded up to that. Local; the driver needs 0.1 ms
// or more.
func (h *Heap) AllocDevice(n int) (*Allocation, error) {
	return h.allocDevice(n, func(a *Allocation) error { return h.placeDevice(a, int(h.device.unit.Load())) })
}

// allocDevice makes an allocation of n bytes; place finds the memory.
func (h *Heap) allocDevice(n int, place func(*Allocation) error) (*Allocation, error) {
	if err := h.checkDevice(n); err != nil {
		return nil, err
	}
	a := &Allocation{Bytes: n, Origin: Device, Dev: h.device.ctx.Device(), heap: h}
	if err := h.beginDevice(a); err != nil {
		return nil, err
	}
	defer h.device.calls.Done()
	err := place(a)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.freeSlots = append(h.freeSlots, a.At.Slot)
		return nil, fmt.Errorf("allocate: %w", err)
	}
	h.enter(a)
	return a, nil
}

// beginDevice takes a slot, and makes Close wait.
func (h *Heap) beginDevice(a *Allocation) (err error) {
	if err := h.enterDevice(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.At.Slot, err = h.slot(); err != nil {
		h.device.calls.Done()
	}
	return err
}

// enterDevice makes Close wait for a call.
func (h *Heap) enterDevice() (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("allocate after the rank's last communicator: %w", fault.ErrClosed)
	}
	h.device.calls.Add(1)
	return nil
}

// placeDevice makes memory for a, in multiples of unit and of the driver's granularity, maps it and zeroes it.
func (h *Heap) placeDevice(a *Allocation, unit int) error {
	ctx := h.device.ctx
	grain, err := ctx.Granularity()
	if err != nil {
		return err
	}
	if grain <= 0 || grain&(grain-1) != 0 {
		return fmt.Errorf("the granularity of %v is %d bytes, which is no power of two: %w", a.Dev, grain, fault.ErrNotSupported)
	}
	align := 0 // the driver's choice
	if unit > grain {
		grain, align = unit, unit
	}
	a.pages = (a.Bytes + grain - 1) &^ (grain - 1)
	m, err := ctx.Create(a.pages)
	if err != nil {
		return err
	}
	at, err := mapDevice(ctx, m, a.pages, align)
	if err = errors.Join(err, ctx.Release(m)); err != nil { // from here on the mapping keeps the memory alive
		if at != 0 {
			err = errors.Join(err, UnmapDevice(ctx, at, a.pages))
		}
		return err
	}
	if err := h.device.zeroer.Fill(at, 0, a.pages); err != nil {
		return errors.Join(fmt.Errorf("clear %d bytes: %w", a.pages, err), UnmapDevice(ctx, at, a.pages))
	}
	if err := h.device.zeroer.Sync(); err != nil { // the device may still write the memory, so it stays mapped forever
		return fmt.Errorf("clear %d bytes: %w", a.pages, err)
	}
	a.Ptr = pointer(at)
	return nil
}

// MapDevice maps the n bytes of m at a new address, for ctx's device. On failure nothing is mapped, and the address is
// 0. UnmapDevice undoes it.
func MapDevice(ctx *cuda.Context, m cuda.Allocation, n int) (cuda.Addr, error) {
	return mapDevice(ctx, m, n, 0)
}

// mapDevice is MapDevice at a multiple of align; 0 is the driver's choice.
func mapDevice(ctx *cuda.Context, m cuda.Allocation, n, align int) (cuda.Addr, error) {
	at, err := ctx.ReserveAligned(n, align)
	if err != nil {
		return 0, err
	}
	if err := ctx.Map(at, n, m); err != nil {
		return 0, errors.Join(err, ctx.Unreserve(at, n))
	}
	if err := ctx.Access(at, n, ctx.Device()); err != nil {
		return 0, errors.Join(err, UnmapDevice(ctx, at, n))
	}
	return at, nil
}

// UnmapDevice undoes MapDevice.
func UnmapDevice(ctx *cuda.Context, at cuda.Addr, n int) error {
	if err := ctx.Unmap(at, n); err != nil {
		return err // then the addresses are not free
	}
	return ctx.Unreserve(at, n)
}

// pointer converts a to the form in Vecs and allocations. The host must not dereference it.
func pointer(a cuda.Addr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

// AdoptDevice makes an allocation of n bytes at a, on the heap's device. Somebody else owns the memory, and must keep
// it until Free. It may be from cuMemAlloc or cudaMalloc, or from cuMemCreate with POSIX file descriptors, and may be a
// part of what its owner allocated. The error is fault.ErrArgument for memory of the host or of another device, or
// freed memory, fault.ErrInUse for memory that overlaps other allocations of the heap, and fault.ErrNotSupported for
// memory that cannot be shared with peers; then the text says which memory can. back may be nil: see Return.
func (h *Heap) AdoptDevice(a cuda.Addr, n int, back func()) (*Allocation, error) {
	if h.device.ctx == nil {
		return nil, fmt.Errorf("device memory: this rank uses no device: %w", fault.ErrNotSupported)
	}
	if a == 0 || n <= 0 || a+cuda.Addr(n) < a {
		return nil, fmt.Errorf("%d bytes at %#x: %w", n, uintptr(a), fault.ErrArgument)
	}
	m, err := cuda.Inspect(a)
	if err == nil {
		err = adoptable(m, a, n, h.device.ctx.Device())
	}
	if err == nil && !m.LegacyIPC {
		err = h.retainable(m)
	}
	if err != nil {
		return nil, fmt.Errorf("[%#x,+%d): %w", uintptr(a), n, err)
	}
	x := &Allocation{Ptr: pointer(a), Bytes: n, Origin: DeviceAdopted, Dev: m.Device, heap: h, id: m.ID}
	if err := h.adopt(x, back); err != nil {
		return nil, err
	}
	return x, nil
}

const whatCan = "what can is memory of cuMemAlloc or cudaMalloc, and of cuMemCreate with POSIX file descriptors as " +
	"its handle type"

// retainable tries the call with which an export of m will begin. For memory of a pool that allows POSIX file
// descriptors the driver reports these, but only the pool can be exported.
func (h *Heap) retainable(m cuda.Memory) error {
	x, err := h.device.ctx.Retain(m.Base)
	if err != nil {
		return fmt.Errorf("it cannot be exported to other processes (%w); %s: %w", err, whatCan, fault.ErrNotSupported)
	}
	return h.device.ctx.Release(x)
}

// adoptable returns why n bytes at a, which m describes, cannot be adopted as memory of device d, or nil.
func adoptable(m cuda.Memory, a cuda.Addr, n int, d hw.Device) error {
	switch {
	case m.Type == cuda.Unknown:
		return fmt.Errorf("it is no memory of a device: it is the host's, or was freed: %w", fault.ErrArgument)
	case m.Type == cuda.HostSide:
		return fmt.Errorf("it is %v, not memory of %v: %w", m.Type, d, fault.ErrArgument)
	case m.Type == cuda.Managed:
		return fmt.Errorf("it is managed memory, which cannot be shared with other processes; %s: %w", whatCan,
			fault.ErrNotSupported)
	case m.Device != d:
		return fmt.Errorf("it is memory of %v, and this rank uses %v: %w", m.Device, d, fault.ErrArgument)
	case a < m.Base || m.Size <= 0 || uintptr(a-m.Base) > uintptr(m.Size) || n > m.Size-int(a-m.Base):
		return fmt.Errorf("it is not all in one allocation, which is [%#x,+%d) there: %w", uintptr(m.Base), m.Size,
			fault.ErrArgument)
	case !m.LegacyIPC && !m.PosixFD && m.Pool:
		return fmt.Errorf("it is of a memory pool, which cannot be exported; %s: %w", whatCan, fault.ErrNotSupported)
	case !m.LegacyIPC && !m.PosixFD:
		return fmt.Errorf("it cannot be exported to other processes; %s: %w", whatCan, fault.ErrNotSupported)
	}
	return nil
}

// Inspect asks the driver about a, which is device memory: the driver's allocation around it, and how that can be
// exported. The error is fault.ErrStale if a was freed, by Retire or by its owner, even if its address now has other
// memory.
func (a *Allocation) Inspect() (cuda.Memory, error) {
	if a.Dev.IsHost() {
		return cuda.Memory{}, fmt.Errorf("memory at %p is the host's: %w", a.Ptr, fault.ErrArgument)
	}
	if !a.Live() {
		return cuda.Memory{}, fmt.Errorf("memory at %p on %v was freed: %w", a.Ptr, a.Dev, fault.ErrStale)
	}
	m, err := cuda.Inspect(cuda.Addr(a.Base()))
	if err != nil {
		return cuda.Memory{}, err
	}
	if m.Type == cuda.Unknown {
		return cuda.Memory{}, fmt.Errorf("memory at %p on %v was freed by its owner: %w", a.Ptr, a.Dev, fault.ErrStale)
	}
	if a.Origin == DeviceAdopted && m.ID != a.id {
		return cuda.Memory{}, fmt.Errorf("memory at %p on %v was freed by its owner, and other memory has its address: %w",
			a.Ptr, a.Dev, fault.ErrStale)
	}
	if err := adoptable(m, cuda.Addr(a.Base()), a.Bytes, a.Dev); err != nil {
		return cuda.Memory{}, fmt.Errorf("memory at %p on %v: %w", a.Ptr, a.Dev, err)
	}
	return m, nil
}

// retireDevice is Retire for memory of a device. Peers that have memory from AllocDevice mapped keep it alive; what they
// write does no harm.
func (h *Heap) retireDevice(a *Allocation) error {
	h.mu.Lock()
	if h.closed { // Close frees the memory
		h.mu.Unlock()
		if a.freed.Swap(true) {
			return fmt.Errorf("the buffer has been freed: %w", fault.ErrClosed)
		}
		return nil
	}
	if err := h.leave(a); err != nil {
		h.mu.Unlock()
		return err
	}
	h.device.calls.Add(1)
	h.mu.Unlock()
	defer h.device.calls.Done()
	h.Quiesce()
	switch {
	case a.Origin == DeviceAdopted:
		return nil
	case a.slab != nil:
		return h.endPart(a.slab)
	}
	return UnmapDevice(h.device.ctx, cuda.Addr(a.Base()), a.pages)
}

// closeDevice frees all device memory. The heap is closed, so there are no new calls.
func (h *Heap) closeDevice() error {
	h.device.calls.Wait()
	if h.device.ctx == nil {
		return nil
	}
	h.Quiesce()
	var errs []error
	for _, s := range h.device.slabs {
		errs = append(errs, UnmapDevice(h.device.ctx, cuda.Addr(s.whole.Base()), s.whole.pages))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.live {
		if a.Origin == Device && a.slab == nil {
			errs = append(errs, UnmapDevice(h.device.ctx, cuda.Addr(a.Base()), a.pages))
		}
	}
	return errors.Join(errs...)
}
