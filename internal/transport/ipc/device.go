package ipc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/invariants"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// device is a rank's side of sharing device memory. A rank that uses no device has none.
type device struct {
	t        *Transport
	ctx      *cuda.Context
	uploader engine.Uploader // for rows
	page     *mem.Allocation // memory of the ledger
	ledger   ledger
	rows     *mem.Allocation // u64 [peers][maxExtents] on the device, for kernels: where extents are mapped; or nil

	remotes []atomic.Pointer[remote] // one for each possible peer, in the order of Attach, as in ledger.attached
	looked  atomic.Uint32            // the doorbell's value when progress last ran

	// importing is held while the driver works, which takes long. Its holder may wait for a peer's descriptor service,
	// but not for a peer's importing.
	importing sync.Mutex
	opened    atomic.Uint64
	closed    bool

	exports exports
}

// UseDevice implements engine.DeviceTransport. The heap already uses ctx.
func (t *Transport) UseDevice(ctx *cuda.Context, u engine.Uploader, peers int) error {
	if t.device.Load() != nil {
		return fmt.Errorf("use %v: this rank uses a device already: %w", ctx.Device(), fault.ErrInUse)
	}
	if peers < 0 || peers >= engine.MaxRanks {
		return fmt.Errorf("use %v with %d peers, not 0 to %d: %w", ctx.Device(), peers, engine.MaxRanks-1, fault.ErrLimit)
	}
	d := &device{t: t, ctx: ctx, uploader: u, remotes: make([]atomic.Pointer[remote], peers)}
	if err := d.open(); err != nil {
		return fmt.Errorf("use %v: %w", ctx.Device(), errors.Join(err, d.free()))
	}
	t.device.Store(d)
	if t.done == nil { // not there for a Go heap, but devices need it
		t.server = serve(t.heap, t.secret, t.lend)
		t.done = make(chan struct{})
		go t.importer()
	}
	return nil
}

func (d *device) open() (err error) {
	peers := len(d.remotes)
	if d.page, err = d.t.heap.Alloc(ledgerBytes(peers)); err != nil {
		return err
	}
	d.ledger = ledgerAt(d.page.Ptr, peers)
	d.ledger.magic, d.ledger.domain = ledgerMagic, d.t.heap.Domain
	d.ledger.peers.Store(uint64(peers))
	if peers > 0 {
		if d.rows, err = d.t.heap.AllocDevicePart(peers * engine.RowBytes); err != nil {
			return err
		}
	}
	return nil
}

func (d *device) free() error {
	var errs []error
	if d.rows != nil {
		errs = append(errs, d.t.heap.Retire(d.rows))
	}
	if d.page != nil {
		errs = append(errs, d.t.heap.Retire(d.page))
	}
	return errors.Join(errs...)
}

// close ends sharing: first this rank's imports, so that no peer waits for them, then its exports. The importer has
// ended.
func (d *device) close() error {
	d.t.heap.Quiesce()
	d.importing.Lock()
	d.closed = true
	var errs []error
	for r := range d.all() {
		for i := range r.maps {
			r.maps[i].held = 0 // by communicators that were not closed
			err := r.drop(uint32(i))
			if err == nil {
				continue
			}
			if d.t.Look(); !r.over() && !r.p.Dead() { // else the memory may have gone with the peer
				errs = append(errs, err)
			}
		}
	}
	d.importing.Unlock()
	d.ledger.closed.Store(1)
	for r := range d.all() {
		r.p.ring()
	}
	ctx, cancel := clock.WithTimeout(context.Background(), withdrawTimeout, nil)
	defer cancel()
	d.awaitUnmapped(ctx, d.leaveAll()) // peers that have not unmapped by then lose the memory: it is freed now
	d.t.device.Store(nil)
	return errors.Join(append(errs, d.free())...)
}

// all iterates over the attached peers that use a device.
func (d *device) all() func(yield func(*remote) bool) {
	return func(yield func(*remote) bool) {
		for i := range d.remotes {
			if r := d.remotes[i].Load(); r == nil || !yield(r) {
				return
			}
		}
	}
}

// meet opens p's ledger, which is at `at`. The caller holds t.mu, so that there is one meet at a time.
func (d *device) meet(p *peer, at mem.Location) (*remote, error) {
	slot := 0
	for range d.all() {
		slot++
	}
	if slot == len(d.remotes) {
		return nil, fmt.Errorf("share device memory with more than %d peers: %w", slot, fault.ErrLimit)
	}
	l, err := p.ledger(at)
	if err != nil {
		return nil, fmt.Errorf("ledger of %v: %w", p.card.Process, err)
	}
	r := &remote{d: d, p: p, ledger: l, at: at, slot: slot}
	r.mine.Store(-1)
	d.ledger.attached[slot].Store(p.card.Domain)
	d.remotes[slot].Store(r)
	return r, nil
}

// ledger returns the peer's ledger, which is at `at`.
func (p *peer) ledger(at mem.Location) (ledger, error) {
	ptr, err := p.Resolve(at, int(unsafe.Sizeof(ledgerHead{})))
	if err != nil {
		return ledger{}, err
	}
	if at.Offset%128 != 0 || !p.Live(at) {
		return ledger{}, fmt.Errorf("ledger at %+v: %w", at, fault.ErrStale)
	}
	peers, err := checkLedger(ptr, p.card.Domain)
	if err != nil {
		return ledger{}, err
	}
	if ptr, err = p.Resolve(at, ledgerBytes(peers)); err != nil {
		return ledger{}, fmt.Errorf("of %d peers: %w", peers, err)
	}
	return ledgerAt(ptr, peers), nil
}

// progress follows the peers' exports and withdrawals. If another goroutine is doing that, progress leaves everything
// to it: that goroutine looks again before it returns.
func (d *device) progress(bell *atomic.Uint32) {
	for v := bell.Load(); d.looked.Load() != v && d.importing.TryLock(); v = bell.Load() {
		if !d.closed {
			ctx, cancel := clock.WithTimeout(context.Background(), requestTimeout, nil)
			for r := range d.all() {
				r.sync(ctx)
			}
			cancel()
		}
		d.looked.Store(v)
		d.importing.Unlock()
	}
}

// Opened implements engine.DeviceTransport.
func (t *Transport) Opened() uint64 {
	if d := t.device.Load(); d != nil {
		return d.opened.Load()
	}
	return 0
}

// Missing implements engine.DeviceTransport.
func (t *Transport) Missing(extent uint32) (peer int, why string) {
	d := t.device.Load()
	if d == nil || extent >= maxExtents {
		return -1, ""
	}
	v := d.ledger.exports[extent].version.Load()
	for i := range d.remotes {
		r := d.remotes[i].Load()
		if r == nil {
			break
		}
		got := r.acked(extent)
		if live(v) && got == ack(v, false) || r.over() {
			continue
		}
		return r.p.number, r.why(extent, v, got)
	}
	return -1, ""
}

// why explains the peer's ack `got` for version v.
func (r *remote) why(extent uint32, v, got uint64) string {
	switch {
	case !live(v):
		return "it is not exported any more"
	case got != ack(v, true):
		return "has not imported it yet"
	}
	if text := r.ledger.failures[r.mine.Load()].read(got); text != "" {
		return "could not import it: " + text
	}
	return "could not import it"
}

// remote is a peer that uses a device, as this rank sees it.
type remote struct {
	d      *device
	p      *peer
	ledger ledger
	at     mem.Location
	slot   int          // the peer's index here: in ledger.attached, acks, failures and rows
	mine   atomic.Int32 // this rank's index in the peer's ledger, -1 until it is known
	silent atomic.Bool  // a Withdraw timed out on it: later ones wait only briefly for it
	maps   []mapping    // of all extents that were ever exported; device.importing guards it
}

// over reports whether the peer has closed; then it follows nothing any more.
func (r *remote) over() bool { return r.ledger.closed.Load() != 0 || !r.p.Live(r.at) }

// acked returns how far the peer has followed this rank's extent.
func (r *remote) acked(extent uint32) uint64 {
	i := r.mine.Load()
	if i < 0 {
		if i = r.find(); i < 0 {
			return 0
		}
	}
	return r.ledger.acks[i][extent].Load()
}

// find looks for this rank in the peer's list. It returns -1 if the peer has not attached this rank yet.
func (r *remote) find() int32 {
	for i := range r.ledger.attached {
		if r.ledger.attached[i].Load() == r.d.t.heap.Domain {
			r.mine.Store(int32(i))
			return int32(i)
		}
	}
	return -1
}

// Number implements engine.DevicePeer.
func (p *peer) Number() int { return p.number }

// HasDevice implements engine.DevicePeer.
func (p *peer) HasDevice() bool { return p.card.Ledger != nil }

// Row implements engine.DevicePeer.
func (p *peer) Row() cuda.Addr {
	if p.remote == nil {
		return 0
	}
	return p.remote.row(0)
}

// row returns the address of the extent's entry in the kernels' table.
func (r *remote) row(extent uint32) cuda.Addr {
	return cuda.Addr(r.d.rows.Base()) + cuda.Addr(8*(r.slot*maxExtents+int(extent)))
}

// Import implements engine.DevicePeer.
func (p *peer) Import(ctx context.Context, extent uint32, offset uint64, n int) (cuda.Addr, error) {
	return p.take(ctx, extent, offset, uint64(n), 0)
}

// Hold implements engine.DevicePeer.
func (p *peer) Hold(ctx context.Context, extent uint32, offset uint64, n int) (cuda.Addr, error) {
	return p.take(ctx, extent, offset, uint64(n), 1)
}

// take imports the extent, and adds `holds` holds for n bytes at offset.
func (p *peer) take(ctx context.Context, extent uint32, offset, n uint64, holds int) (cuda.Addr, error) {
	r := p.remote
	if r == nil {
		return 0, fmt.Errorf("import from %v: this rank or that one uses no device: %w", p.card.Process, fault.ErrNotSupported)
	}
	if extent >= maxExtents || !live(r.ledger.exports[extent].version.Load()) {
		return 0, fmt.Errorf("import extent %d of %v: it is not exported: %w", extent, p.card.Process, fault.ErrStale)
	}
	r.d.importing.Lock()
	defer r.d.importing.Unlock()
	if r.d.closed {
		return 0, fmt.Errorf("import: %w", fault.ErrClosed)
	}
	m := r.mapping(extent)
	if m.err != nil {
		m.version = 0 // try again
	}
	if err := r.follow(ctx, extent); err != nil {
		return 0, fmt.Errorf("import extent %d of %v: %w", extent, p.card.Process, err)
	}
	if m.addr == 0 {
		return 0, fmt.Errorf("import extent %d of %v: it was withdrawn: %w", extent, p.card.Process, fault.ErrStale)
	}
	if size := m.size; offset > size || n > size-offset {
		return 0, fmt.Errorf("import extent %d of %v: bytes [%d,+%d) of %d: %w", extent, p.card.Process, offset, n, size,
			fault.ErrStale)
	}
	m.held += holds
	return m.addr + cuda.Addr(offset), nil
}

// Unhold implements engine.DevicePeer.
func (p *peer) Unhold(extent uint32) error {
	r := p.remote
	r.d.importing.Lock()
	defer r.d.importing.Unlock()
	m := r.mapping(extent)
	if invariants.Enabled && m.held == 0 && !r.d.closed {
		invariants.Violated("extent %d of %v is given up more often than held", extent, p.card.Process)
	}
	if m.held > 0 { // else Close has already dropped the holds
		m.held--
	}
	if m.held > 0 || r.d.closed || !r.p.Live(r.at) {
		return nil
	}
	ctx, cancel := clock.WithTimeout(context.Background(), requestTimeout, nil)
	defer cancel()
	if err := r.follow(ctx, extent); err != nil && m.addr != 0 {
		return fmt.Errorf("give up extent %d of %v: %w", extent, p.card.Process, err)
	}
	return nil
}

// bytesOf returns a word's bytes as the device stores them.
func bytesOf(word *uint64) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(word)), 8) }
