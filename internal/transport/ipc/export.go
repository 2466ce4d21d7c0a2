package ipc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// withdrawTimeout limits how long Deregister and Close wait for peers to unmap. It is less than engine.CloseTimeout, so
// that the error names the peer. It is a variable for tests.
var withdrawTimeout = 4 * time.Second

// exports are a rank's exports.
type exports struct {
	mu       sync.Mutex
	numbers  [maxExtents]*export    // exported, or withdrawn and not yet unmapped by all peers
	byUser   map[uint64]*export     // current exports by the generation of each allocation in them
	byMemory map[driverName]*export // current exports by the driver's allocation
}

// driverName identifies an allocation of the driver.
type driverName struct {
	base cuda.Addr
	id   uint64
}

// export is a whole allocation of the driver, which may contain several of the heap's allocations.
type export struct {
	number  uint32
	version uint64
	memory  cuda.Memory
	fd      int             // -1 unless peers import it by descriptor
	users   map[uint64]bool // generations of the heap's allocations in it
}

func (e *export) name() driverName { return driverName{e.memory.Base, e.memory.ID} }

// errNoDevice is for ranks that use no device.
var errNoDevice = fmt.Errorf("this rank uses no device: %w", fault.ErrNotSupported)

// Export implements engine.DeviceTransport.
func (t *Transport) Export(a *mem.Allocation) (uint32, error) {
	e, err := t.export(a)
	if err != nil {
		return 0, err
	}
	return e.number, nil
}

func (t *Transport) export(a *mem.Allocation) (*export, error) {
	d := t.device.Load()
	if d == nil {
		return nil, fmt.Errorf("export: %w", errNoDevice)
	}
	if a.Heap() != t.heap {
		return nil, fmt.Errorf("export %p: it is another rank's: %w", a.Ptr, fault.ErrArgument)
	}
	e, fresh, err := d.exports.take(d, a)
	if err != nil {
		return nil, fmt.Errorf("export %p on %v: %w", a.Ptr, a.Dev, err)
	}
	if fresh {
		for r := range d.all() {
			r.p.ring()
		}
	}
	return e, nil
}

// take makes a a user of its export, and makes the export if necessary.
func (x *exports) take(d *device, a *mem.Allocation) (e *export, fresh bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m, err := a.Inspect()
	if err != nil {
		return nil, false, err
	}
	if e := x.byUser[a.At.Generation]; e != nil {
		return e, false, nil
	}
	e = x.byMemory[driverName{m.Base, m.ID}]
	if e == nil {
		if e, err = x.add(d, m); err != nil {
			return nil, false, err
		}
		fresh = true
	}
	if x.byUser == nil {
		x.byUser, x.byMemory = map[uint64]*export{}, map[driverName]*export{}
	}
	e.users[a.At.Generation] = true
	x.byUser[a.At.Generation], x.byMemory[e.name()] = e, e
	return e, fresh, nil
}

// add publishes m in the ledger.
func (x *exports) add(d *device, m cuda.Memory) (*export, error) {
	i := slices.IndexFunc(x.numbers[:], func(e *export) bool { return e == nil || e.done(d) })
	if i < 0 {
		return nil, fmt.Errorf("more than %d exports of device memory (register fewer, larger buffers): %w", maxExtents,
			fault.ErrLimit)
	}
	e := &export{number: uint32(i), memory: m, fd: -1, users: map[uint64]bool{}}
	entry, how := &d.ledger.exports[i], uint64(byHandle)
	var h cuda.IPCHandle
	var err error
	if m.LegacyIPC {
		h, err = d.ctx.IPCHandle(m.Base)
	} else {
		how = byDescriptor
		e.fd, err = descriptor(d.ctx, m.Base)
	}
	if err != nil {
		return nil, err
	}
	entry.how.Store(how)
	entry.device.Store(uint64(m.Device.Index()))
	entry.base.Store(uint64(m.Base))
	entry.size.Store(uint64(m.Size))
	entry.id.Store(m.ID)
	for k, w := range *(*[8]uint64)(unsafe.Pointer(&h)) {
		entry.handle[k].Store(w)
	}
	e.version = entry.version.Load() + 1
	entry.version.Store(e.version)
	d.ledger.extents.Store(max(d.ledger.extents.Load(), uint64(i)+1))
	x.numbers[i] = e
	return e, nil
}

// descriptor exports the memory that is mapped at a.
func descriptor(ctx *cuda.Context, a cuda.Addr) (int, error) {
	m, err := ctx.Retain(a)
	if err != nil {
		return -1, err
	}
	fd, err := ctx.Export(m)
	if err2 := ctx.Release(m); err2 != nil && err == nil {
		return -1, errors.Join(err2, closeFD(fd))
	}
	return fd, err
}

// lend returns a new descriptor of the extent, if version is still its current version. The caller closes the
// descriptor.
func (t *Transport) lend(extent uint32, version uint64) (int, error) {
	d := t.device.Load()
	if d == nil || extent >= maxExtents {
		return -1, errNoDevice
	}
	d.exports.mu.Lock()
	defer d.exports.mu.Unlock()
	e := d.exports.numbers[extent]
	if e == nil || e.version != version || !live(version) || e.fd < 0 {
		return -1, fmt.Errorf("extent %d: %w", extent, fault.ErrStale)
	}
	return dupFD(e.fd)
}

// Withdraw implements engine.DeviceTransport.
func (t *Transport) Withdraw(limit time.Duration, a *mem.Allocation) error {
	if a.Heap() != t.heap {
		return fmt.Errorf("withdraw %p: it is another rank's: %w", a.Ptr, fault.ErrArgument)
	}
	return t.withdraw(limit, a.At.Generation)
}

func (t *Transport) withdraw(limit time.Duration, user uint64) error {
	d := t.device.Load()
	if d == nil || !d.exports.has(user) {
		return nil
	}
	t.heap.Quiesce()
	if t.heap.Quarantined() && d.exports.byFD(user) {
		return nil // a slow peer may still use the memory: its mapping stays, and keeps the memory alive
	}
	e, err := d.exports.leave(d, user)
	if e == nil {
		return err
	}
	ctx, cancel := clock.WithTimeout(context.Background(), limit, nil) // peers do not cause earlier waits
	defer cancel()
	return errors.Join(err, d.awaitUnmapped(ctx, []*export{e}))
}

// byFD reports whether the user's export is by descriptor.
func (x *exports) byFD(user uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.byUser[user]
	return e != nil && e.fd >= 0
}

func (x *exports) has(user uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byUser[user] != nil
}

// leave removes a user from its export, and returns the export if that was the last user.
func (x *exports) leave(d *device, user uint64) (*export, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.byUser[user]
	if e == nil {
		return nil, nil
	}
	delete(x.byUser, user)
	delete(e.users, user)
	if len(e.users) > 0 {
		return nil, nil
	}
	return e, x.end(d, e)
}

// leaveAll ends all exports.
func (d *device) leaveAll() (all []*export) {
	d.exports.mu.Lock()
	defer d.exports.mu.Unlock()
	for _, e := range d.exports.byMemory {
		if e.fd < 0 {
			d.exports.end(d, e)
			all = append(all, e)
			continue
		}
		// The peers' mappings keep this memory alive, and are not withdrawn: after an operation that failed here,
		// kernels of peers may still use it.
		closeFD(e.fd)
		e.fd = -1
	}
	clear(d.exports.byUser)
	return all
}

// end withdraws e. Its number stays taken until all peers have unmapped it.
func (x *exports) end(d *device, e *export) error {
	delete(x.byMemory, e.name())
	e.version++
	d.ledger.exports[e.number].version.Store(e.version)
	if e.fd < 0 {
		return nil
	}
	err := closeFD(e.fd)
	e.fd = -1
	return err
}

// awaitUnmapped waits until the peers have unmapped the withdrawn exports.
func (d *device) awaitUnmapped(ctx context.Context, all []*export) error {
	if len(all) == 0 {
		return nil
	}
	var errs []error
	for r := range d.all() {
		r.p.ring()
	}
	for r := range d.all() {
		for _, e := range all {
			if err := r.await(ctx, e); err != nil {
				errs = append(errs, err)
			}
		}
	}
	d.exports.mu.Lock()
	defer d.exports.mu.Unlock()
	for _, e := range all {
		if e.done(d) && d.exports.numbers[e.number] == e {
			d.exports.numbers[e.number] = nil
		}
	}
	return errors.Join(errs...)
}

// done reports whether e was withdrawn and no peer has it mapped.
func (e *export) done(d *device) bool {
	if live(e.version) {
		return false
	}
	for r := range d.all() {
		if !r.unmapped(e) {
			return false
		}
	}
	return true
}

// unmapped reports whether the peer does not have e mapped, and will not map it. This is so for a peer that has not
// attached this rank yet: it will read the new version when it does.
func (r *remote) unmapped(e *export) bool {
	return r.acked(e.number) == ack(e.version, false) || r.mine.Load() < 0 || r.over() || r.p.Dead()
}

// await waits until the peer has unmapped e; only briefly if an earlier wait for this peer timed out.
func (r *remote) await(ctx context.Context, e *export) error {
	const look = 20 * time.Millisecond // interval of checks whether it has died
	if r.silent.Load() {
		var cancel context.CancelFunc
		ctx, cancel = clock.WithTimeout(ctx, 2*look, nil)
		defer cancel()
	}
	next := time.Now().Add(look)
	for pause := 10 * time.Microsecond; !r.unmapped(e); pause = min(2*pause, time.Millisecond) {
		if err := ctx.Err(); err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				r.silent.Store(true)
				err = fault.ErrTimeout
			}
			return fmt.Errorf("peer %d (%v) has not unmapped extent %d of this rank's device memory, whose number stays "+
				"taken: %w", r.p.number, r.p.card.Process, e.number, err)
		}
		r.d.t.Progress() // the two ranks may be waiting for each other
		time.Sleep(pause)
		if time.Now().After(next) {
			r.d.t.Look()
			next = time.Now().Add(look)
		}
	}
	r.silent.Store(false)
	return nil
}
