package ipc

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// mapping is the state of a peer's extent in this rank. device.importing guards it.
type mapping struct {
	version uint64    // the export's version that this rank followed last
	err     error     // why the import failed
	addr    cuda.Addr // 0: not mapped
	size    uint64
	undo    func() error
	held    int // number of Holds; while there are any, it stays mapped
}

// mapping returns the state of an extent. The caller holds d.importing as long as it uses the result.
func (r *remote) mapping(extent uint32) *mapping {
	if n := int(extent) + 1; n > len(r.maps) {
		r.maps = append(r.maps, make([]mapping, n-len(r.maps))...)
	}
	return &r.maps[extent]
}

// sync follows all that the peer has exported and withdrawn. The caller holds d.importing; so do the callers of
// the functions below.
func (r *remote) sync(ctx context.Context) {
	if !r.p.Live(r.at) {
		return // what is mapped stays until Close: the peer no longer waits for this rank
	}
	for i := range uint32(min(r.ledger.extents.Load(), maxExtents)) {
		r.follow(ctx, i) // its error goes to callers that use the extent, and to the peer through the ledger
	}
}

// follow brings the mapping to the current version of the peer's extent, and acknowledges that. It unmaps withdrawn
// memory without waiting for this rank's queued work, which might itself wait for the peer. This is safe: an operation
// ends on the owner of an extent only when no peer accesses the memory any more, and the owner withdraws nothing before
// its operations have ended.
func (r *remote) follow(ctx context.Context, extent uint32) error {
	m, e := r.mapping(extent), &r.ledger.exports[extent]
	for v := e.version.Load(); v != m.version; v = e.version.Load() {
		if err := r.drop(extent); err != nil {
			return err // no acknowledgement: the peer must not free the memory
		}
		if live(v) {
			if m.err = r.load(ctx, extent, v); m.err != nil {
				r.d.ledger.failures[r.slot].write(ack(v, true), m.err.Error())
			}
		}
		m.version = v
		r.d.ledger.acks[r.slot][extent].Store(ack(v, m.err != nil))
	}
	return m.err
}

// errHeld says that a mapping must stay.
var errHeld = fmt.Errorf("a channel uses it: %w", fault.ErrBusy)

// drop undoes load, if it was loaded.
func (r *remote) drop(extent uint32) error {
	m := r.mapping(extent)
	if m.held > 0 {
		return errHeld
	}
	m.err = nil
	if m.addr == 0 {
		return nil
	}
	if err := r.publishExtent(extent, 0); err != nil {
		return err
	}
	if err := m.undo(); err != nil {
		return err
	}
	m.addr, m.undo = 0, nil
	return nil
}

// publishExtent writes the extent's address to the kernels' table. The write is complete when publishExtent returns.
func (r *remote) publishExtent(extent uint32, addr cuda.Addr) error {
	word := uint64(addr)
	return r.d.uploader.Upload(r.row(extent), bytesOf(&word))
}

// load maps version v of the extent for this rank's device.
func (r *remote) load(ctx context.Context, extent uint32, v uint64) error {
	m, e := r.mapping(extent), &r.ledger.exports[extent]
	how, size := e.how.Load(), e.size.Load()
	if size == 0 || size > 1<<46 {
		return fmt.Errorf("it has %d bytes: %w", size, fault.ErrStale)
	}
	self, err := shm.Self()
	if err != nil {
		return err
	}
	m.size = size
	switch {
	case how == byDescriptor:
		err = r.mapDescriptor(ctx, m, extent, v, int(size))
	case how == byHandle && r.p.card.Process == self:
		err = r.borrow(m, e)
	case how == byHandle:
		err = r.openHandle(m, e)
	default:
		err = fmt.Errorf("it is exported in the unknown way %d: %w", how, fault.ErrStale)
	}
	if err != nil {
		return err
	}
	if err := r.publishExtent(extent, m.addr); err != nil {
		err = errors.Join(err, m.undo())
		m.addr, m.undo = 0, nil
		return err
	}
	r.d.opened.Add(1)
	return nil
}

// mapDescriptor maps memory by a descriptor from the peer's service. Such descriptors cannot be opened through /proc.
func (r *remote) mapDescriptor(ctx context.Context, m *mapping, extent uint32, v uint64, size int) error {
	if r.p.card.Socket == "" {
		return fmt.Errorf("%v has no socket to hand out descriptors: %w", r.p.card.Process, fault.ErrNotSupported)
	}
	fd, err := requestFD(ctx, r.p.card.Socket, r.p.t.secret, exportRequest(extent, v))
	if err != nil {
		return r.p.lost(err)
	}
	x, err := r.d.ctx.Import(fd)
	if err = errors.Join(err, closeFD(fd)); err != nil {
		if x != 0 {
			err = errors.Join(err, r.d.ctx.Release(x))
		}
		return err
	}
	addr, err := mem.MapDevice(r.d.ctx, x, size)
	err = errors.Join(err, r.d.ctx.Release(x)) // the mapping keeps the memory alive
	undo := func() error { return mem.UnmapDevice(r.d.ctx, addr, size) }
	if err != nil {
		if addr != 0 {
			err = errors.Join(err, undo())
		}
		return err
	}
	m.addr, m.undo = addr, undo
	return nil
}

// openHandle maps another process's memory by the driver's older kind of handle.
func (r *remote) openHandle(m *mapping, e *exported) error {
	var words [8]uint64
	for i := range words {
		words[i] = e.handle[i].Load()
	}
	addr, err := r.d.ctx.OpenIPC(*(*cuda.IPCHandle)(unsafe.Pointer(&words)))
	if err != nil {
		return err
	}
	m.addr, m.undo = addr, func() error { return r.d.ctx.CloseIPC(addr) }
	return nil
}

// borrow uses the peer's own address, because the driver opens no handle in the process that exported it.
func (r *remote) borrow(m *mapping, e *exported) error {
	addr, index := cuda.Addr(e.base.Load()), e.device.Load()
	x, err := cuda.Inspect(addr)
	if err != nil {
		return err
	}
	if x.Type != cuda.OnDevice || x.Base != addr || x.ID != e.id.Load() || uint64(x.Device.Index()) != index ||
		uint64(x.Size) != e.size.Load() {
		return fmt.Errorf("memory at %#x is not what was exported: %w", uintptr(addr), fault.ErrStale)
	}
	undo := func() error { return nil }
	if x.Device != r.d.ctx.Device() {
		owner, err := cuda.Primary(x.Device)
		if err != nil {
			return err
		}
		if err := r.d.ctx.EnablePeer(owner); err != nil {
			return errors.Join(err, owner.Close())
		}
		undo = owner.Close
	}
	m.addr, m.undo = addr, undo
	return nil
}
