package onesided

import (
	"context"
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// A window between hosts. Its ranks agree on its flags and size; what a rank of another host has exported, this rank asks
// it when it first uses its part. So a rank's memory depends on the ranks that it uses, not on how many there are. Only
// ranks that have asked are told that a part was closed.

// farRank is what a window's rank on another host has besides.
type farRank struct {
	*far
	heard atomic.Uint64 // its signals
	state atomic.Uint64 // StateClosed once it has closed its part, if this rank has asked
	part  atomic.Pointer[Remote]
	words atomic.Pointer[farWords] // nil: not asked yet

	written, landed atomic.Uint64 // calls that write, and of them those known to be in its memory
}

// windowOf returns what this rank has of f's part of a window. The caller holds mu.
func (f *far) windowOf(id uint64) *windowRank {
	k := f.windows[id]
	if k == nil {
		k = &windowRank{far: &farRank{far: f}}
		k.signals = &k.far.heard
		f.windows[id] = k
	}
	return k
}

// farRank returns what this rank has of a rank of another host, which it asks the first time. Only the owner of a part
// knows its grant.
func (w *Window) farRank(ctx context.Context, op string, f *far) (*windowRank, error) {
	f.mu.Lock()
	k := f.windowOf(w.id)
	f.mu.Unlock()
	if k.far.part.Load() != nil {
		return k, nil
	}
	a, err := f.result(ctx, op, w, &call{Kind: callWindow, ID: 0, A: w.id})
	switch {
	case errors.Is(err, fault.ErrStale): // it was closed before
		k.far.state.Store(team.StateClosed)
		err = nil
	case err != nil:
		return nil, err
	}
	m := &Remote{c: w.c, far: f, Import: engine.Import{Rank: f.pair.Rank, Memory: farMemory{f}, Export: engine.Export{
		At: mem.Location{Offset: a.C}, Bytes: w.vec.Bytes(), Grant: mem.Location{Slot: uint32(a.D), Generation: a.B},
		GPU: w.device != nil, Access: w.flags.access(), Transports: engine.TCP}}}
	k.far.part.CompareAndSwap(nil, m)
	return k, nil
}

// remote returns the memory of a part on another host, which farRank has asked for.
func (k *windowRank) remote() (*Remote, error) {
	m := k.far.part.Load()
	if m.Grant.Generation == 0 || k.far.state.Load() == team.StateClosed {
		return nil, staleError(m.Rank)
	}
	return m, nil
}

// serveWindow takes a peer's call about a window.
func (f *far) serveWindow(k *call) {
	id := k.ID
	if k.Kind == callWindow {
		id = k.A
	}
	sp := f.sp
	sp.mu.Lock()
	w := sp.windows[id]
	sp.mu.Unlock()
	if k.Kind == callWindow {
		answer := call{Kind: callDone, ID: k.ID, A: uint64(codeStale)}
		if w != nil && !w.Closed() {
			f.tells(w.export.Grant)
			answer.A, answer.B, answer.C, answer.D = 0, w.export.Grant.Generation, w.export.At.Offset, uint64(w.export.Grant.Slot)
		}
		f.send(&answer, nil)
	}
	if w == nil || w.Closed() {
		return
	}
	f.mu.Lock()
	r := f.windowOf(id)
	f.mu.Unlock()
	switch k.Kind {
	case callWindowSignal:
		spin.Release(&r.far.heard, max(r.far.heard.Load(), k.A))
	case callWindowClosed:
		r.far.state.Store(team.StateClosed)
	}
}

// signalFar signals a rank of another host.
func (w *Window) signalFar(ctx context.Context, k *windowRank) error {
	f := k.far.far
	if err := f.pace(ctx, "signal", w.stopper(), 0); err != nil {
		return err
	}
	k.sent++
	f.send(&call{Kind: callWindowSignal, ID: w.id, A: k.sent}, nil)
	return nil
}

// waitFar waits for a signal of a rank of another host.
func (w *Window) waitFar(ctx context.Context, k *windowRank) error {
	next := k.awaited + 1
	if !k.far.look(looksFar, func() bool { return team.Reached(k.signals.Load(), next) }) {
		if err := waitSignal(ctx, w.sp, w, &k.far.state, k.far.pair.Rank, k.signals, next); err != nil {
			return err
		}
	}
	k.awaited = next
	return nil
}

// copyFar is Copy for a rank of another host.
func (w *Window) copyFar(ctx context.Context, op string, k *windowRank, off int, p unsafe.Pointer, n int, put bool) error {
	m, err := k.remote()
	switch {
	case err != nil:
		return err
	case put:
		if err := w.orders(ctx, k, n); err != nil {
			return err
		}
		err = k.far.put(ctx, op, w.stopper(), m, off, p, n, nil)
		k.far.written.Add(1) // not before: another goroutine's Flush would count it without having waited for it
		return err
	}
	return k.far.get(ctx, op, w.stopper(), m, off, p, n)
}

// copyFarDevice is copyFar from or to memory of the device. It reports whether RDMA devices have done it.
func (w *Window) copyFarDevice(ctx context.Context, op string, k *windowRank, off int, p unsafe.Pointer, n int, put bool) (done bool, err error) {
	m, err := k.remote()
	switch {
	case err != nil:
		return false, err
	case put:
		if err := w.orders(ctx, k, n); err != nil {
			return false, err
		}
		if done, err = k.far.writeDevice(ctx, op, w.stopper(), m, off, p, n); done {
			k.far.written.Add(1)
		}
		return done, err
	}
	return k.far.readDevice(ctx, op, w.stopper(), m, off, p, n)
}

// orders waits, where the window has strict ordering, until RDMA devices overtake nothing by a put of n bytes.
func (w *Window) orders(ctx context.Context, k *windowRank, n int) error {
	if w.flags&WindowStrictOrdering == 0 || n <= transport.MaxCall {
		return nil
	}
	return k.far.takes(ctx, w.stopper())
}

// flushFar waits until what this rank has put is in the memory of all ranks of other hosts.
func (w *Window) flushFar(ctx context.Context) (about int, err error) {
	for _, f := range w.sp.allFar() {
		f.mu.Lock()
		k := f.windows[w.id]
		f.mu.Unlock()
		if k == nil || k.far.part.Load() == nil {
			continue
		}
		if err := w.flushRank(ctx, k); err != nil {
			return f.pair.Rank, err
		}
	}
	return -1, nil
}

// flushRank waits until what this rank has put is in the memory of a rank of another host.
func (w *Window) flushRank(ctx context.Context, k *windowRank) error {
	written := k.far.written.Load()
	if err := k.far.flush(ctx, w.stopper()); err != nil {
		return err
	}
	// If the part has been closed meanwhile, nobody knows what was refused.
	m, err := k.remote()
	if err == nil {
		err = m.Live()
	}
	if err == nil {
		raise(&k.far.landed, written)
	} else if written > k.far.landed.Load() {
		return err
	}
	return nil
}

// raise sets v to x unless it is more.
func raise(v *atomic.Uint64, x uint64) {
	for {
		if old := v.Load(); old >= x || v.CompareAndSwap(old, x) {
			return
		}
	}
}

// leaveFar tells the ranks of other hosts that have asked that this rank's part is closed, and forgets theirs.
func (w *Window) leaveFar() {
	w.sp.mu.Lock()
	delete(w.sp.windows, w.id)
	w.sp.mu.Unlock()
	for _, f := range w.sp.allFar() {
		f.mu.Lock()
		_, known := f.windows[w.id]
		delete(f.windows, w.id)
		f.mu.Unlock()
		if known {
			f.send(&call{Kind: callWindowClosed, ID: w.id}, nil)
		}
	}
}

// A farRecord is what ranks of different hosts agree on about a window: at most 16 bytes, which fit any number of ranks.
type farRecord struct {
	What     uint64 // flags, and the size from bit 16 on
	Distance uint64 // see windowRecord
}

const (
	farReadOnly = 1 << 2 // in What: the flags' own bits would take too many
	farAtomic   = 1 << 3
	farDevice   = 1 << 4
	farSize     = 16
)

// far is the part of x that ranks of other hosts get.
func (x *windowRecord) far() farRecord {
	flags := WindowFlags(x.Flags)
	what := uint64(flags&(WindowCollSymmetric|WindowStrictOrdering)) | x.Bytes<<farSize
	if flags&WindowReadOnly != 0 {
		what |= farReadOnly
	}
	if flags&WindowAtomic != 0 {
		what |= farAtomic
	}
	if x.Device {
		what |= farDevice
	}
	return farRecord{what, x.Distance}
}

// window is the inverse of windowRecord.far.
func (x farRecord) window() (w windowRecord) {
	flags := WindowFlags(x.What) & (WindowCollSymmetric | WindowStrictOrdering)
	if x.What&farReadOnly != 0 {
		flags |= WindowReadOnly
	}
	if x.What&farAtomic != 0 {
		flags |= WindowAtomic
	}
	return windowRecord{Flags: uint64(flags), Bytes: x.What >> farSize, Distance: x.Distance, Device: x.What&farDevice != 0}
}
