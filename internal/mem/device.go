package mem

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

// device is a heap's side of the rank's device. Calls of the driver take long: they are made without the heap's lock,
// and counted, so that Close can wait for them.
type device struct {
	ctx     *cuda.Context
	quiesce func()
	stream  *cuda.Stream   // for clearing; made by the first AllocDevice
	calls   sync.WaitGroup // AllocDevice and Retire, between entering and leaving

	slicing sync.Mutex
	slabs   []*slab
	slab    *slab // that has most room, or nil
}

// UseDevice has the heap allocate on ctx's device. It is called once, before the heap is shared. ctx stays the
// caller's, and open until after Close.
func (h *Heap) UseDevice(ctx *cuda.Context) { h.device.ctx = ctx }

// OnQuiesce has f called, without any lock held, before device memory or an export goes: it waits until all work of
// this rank that is queued on its device is over. It is set once, before the first AllocDevice.
func (h *Heap) OnQuiesce(f func()) { h.device.quiesce = f }

// Quiesce calls what OnQuiesce has set. It may wait for other ranks.
func (h *Heap) Quiesce() {
	if h.device.quiesce != nil {
		h.device.quiesce()
	}
}

// AllocDevice hands out n bytes of device memory, zeroed. Their address is a multiple of the driver's granularity
// (2 MiB), which is also what their size is rounded up to. Local; takes the driver's time, some 0.1 ms and more.
func (h *Heap) AllocDevice(n int) (*Allocation, error) {
	return h.allocDevice(n, h.placeDevice)
}

// allocDevice makes an allocation of n bytes, which place finds.
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

// beginDevice takes a slot, and has Close wait.
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

// enterDevice has Close wait for calls.
func (h *Heap) enterDevice() (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("allocate after the rank's last communicator: %w", fault.ErrClosed)
	}
	if h.device.stream == nil { // quick, and under the lock it is made once
		if h.device.stream, err = h.device.ctx.NewStream(); err != nil {
			return fmt.Errorf("allocate: %w", err)
		}
	}
	h.device.calls.Add(1)
	return nil
}

// placeDevice makes memory for a, maps and clears it.
func (h *Heap) placeDevice(a *Allocation) error {
	ctx := h.device.ctx
	grain, err := ctx.Granularity()
	if err != nil {
		return err
	}
	if grain <= 0 || grain&(grain-1) != 0 {
		return fmt.Errorf("the granularity of %v is %d bytes, which is no power of two: %w", a.Dev, grain, fault.ErrNotSupported)
	}
	a.pages = (a.Bytes + grain - 1) &^ (grain - 1)
	m, err := ctx.Create(a.pages)
	if err != nil {
		return err
	}
	at, err := MapDevice(ctx, m, a.pages)
	if err = errors.Join(err, ctx.Release(m)); err != nil { // from here on the mapping keeps the memory
		if at != 0 {
			err = errors.Join(err, UnmapDevice(ctx, at, a.pages))
		}
		return err
	}
	if err := h.device.stream.Fill(at, 0, a.pages); err != nil {
		return errors.Join(fmt.Errorf("clear %d bytes: %w", a.pages, err), UnmapDevice(ctx, at, a.pages))
	}
	if err := h.device.stream.Sync(); err != nil { // it may be written yet: it stays mapped for good
		return fmt.Errorf("clear %d bytes: %w", a.pages, err)
	}
	a.Ptr = pointer(at)
	return nil
}

// MapDevice maps the n bytes of m at an address of their own, for ctx's device. If it fails nothing is mapped, and the
// address is 0.
func MapDevice(ctx *cuda.Context, m cuda.Allocation, n int) (cuda.Addr, error) {
	at, err := ctx.Reserve(n)
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
		return err // the addresses are not free then
	}
	return ctx.Unreserve(at, n)
}

// pointer is a as Vecs and allocations carry it. Nobody on the host follows it.
func pointer(a cuda.Addr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

// AdoptDevice makes an allocation of n bytes at a, on the heap's device, that somebody else owns and that stay as they
// are until Free: memory of cuMemAlloc or cudaMalloc, or of cuMemCreate with POSIX file descriptors. They may be a part
// of what their owner allocated. The error is fault.ErrArgument for memory of the host, of another device or freed,
// fault.ErrInUse for memory that overlaps other allocations of the heap, and fault.ErrNotSupported for memory that peers
// cannot be given; then it says what can.
func (h *Heap) AdoptDevice(a cuda.Addr, n int) (*Allocation, error) {
	if h.device.ctx == nil {
		return nil, fmt.Errorf("adopt device memory: this rank uses no device: %w", fault.ErrNotSupported)
	}
	if a == 0 || n <= 0 || a+cuda.Addr(n) < a {
		return nil, fmt.Errorf("adopt %d bytes at %#x: %w", n, uintptr(a), fault.ErrArgument)
	}
	m, err := cuda.Inspect(a)
	if err == nil {
		err = adoptable(m, a, n, h.device.ctx.Device())
	}
	if err == nil && !m.LegacyIPC {
		err = h.retainable(m)
	}
	if err != nil {
		return nil, fmt.Errorf("adopt [%#x,+%d): %w", uintptr(a), n, err)
	}
	x := &Allocation{Ptr: pointer(a), Bytes: n, Origin: DeviceAdopted, Dev: m.Device, heap: h, id: m.ID}
	if err := h.adopt(x); err != nil {
		return nil, err
	}
	return x, nil
}

const whatCan = "what can is memory of cuMemAlloc or cudaMalloc, and of cuMemCreate with POSIX file descriptors as " +
	"its handle type"

// retainable tries what the export of m will do first: memory of a pool that allows POSIX file descriptors has them for
// the pool only.
func (h *Heap) retainable(m cuda.Memory) error {
	x, err := h.device.ctx.Retain(m.Base)
	if err != nil {
		return fmt.Errorf("it cannot be exported to other processes (%w); %s: %w", err, whatCan, fault.ErrNotSupported)
	}
	return h.device.ctx.Release(x)
}

// adoptable says what is wrong with n bytes at a, which the driver describes as m, as memory of device d.
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

// Inspect is what the driver says about a, device memory, now: the driver's allocation around it, and how that can be
// exported. The error is fault.ErrStale if a was freed, by Retire or behind the heap's back, even if other memory has
// taken its address since.
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

// retireDevice is Retire for memory that AllocDevice made. Peers that still have it mapped keep it in being: what they
// write harms nobody.
func (h *Heap) retireDevice(a *Allocation) error {
	h.mu.Lock()
	if h.closed { // Close frees it
		h.mu.Unlock()
		if a.freed.Swap(true) {
			return fmt.Errorf("free: %w", fault.ErrClosed)
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
	if a.slab != nil {
		return h.endPart(a.slab)
	}
	return UnmapDevice(h.device.ctx, cuda.Addr(a.Base()), a.pages)
}

// closeDevice frees all device memory. The heap is closed: nothing new comes.
func (h *Heap) closeDevice() error {
	h.device.calls.Wait()
	if h.device.stream == nil {
		return nil
	}
	h.Quiesce()
	errs := []error{h.device.stream.Close()}
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
