package onesided

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Atomics on host memory. The processor executes them on the rank that calls, the owner's own included; between hosts over TCP,
// the owner's. So nobody holds a lock, and a rank that dies leaves nothing half done. Of windows over RDMA see window_nic.go.

// AtomicOp is what an atomic does to a word of 8 bytes.
type AtomicOp struct {
	Name     string // in errors
	Old, New uint64 // of a compare-and-swap
	Add      uint64
	Swap     bool // it is a compare-and-swap
}

// apply does op, and returns what the word was.
func (op *AtomicOp) apply(p unsafe.Pointer) uint64 {
	w := (*uint64)(p)
	if !op.Swap {
		return atomic.AddUint64(w, op.Add) - op.Add
	}
	for {
		if atomic.CompareAndSwapUint64(w, op.Old, op.New) {
			return op.Old
		}
		if was := atomic.LoadUint64(w); was != op.Old {
			return was
		}
	}
}

// unaligned returns why p, which is at offset off, is no place for a value of so many bytes, or nil.
func unaligned(p unsafe.Pointer, off, size int) error {
	if uintptr(p)%uintptr(size) == 0 {
		return nil
	}
	return fmt.Errorf("offset %d is at address %p, which is no multiple of %d: %w", off, p, size, fault.ErrArgument)
}

var errAtomicOnDevice = fmt.Errorf("atomics on memory of devices: %w", fault.ErrNotSupported)

// Atomic does op to the word at offset off of the other end's memory, which is on the host. Call it within a use.
func (ch *Channel) Atomic(ctx context.Context, off int, op *AtomicOp) (was uint64, err error) {
	if ch.far != nil {
		return ch.far.atomic(ctx, ch, ch.remote, off, op)
	}
	p, err := ch.remote.begin(&ch.words.copying, off, 8, engine.RemoteAtomic)
	if err != nil {
		return 0, err
	}
	defer ch.Done()
	if err := unaligned(p, off, 8); err != nil {
		return 0, err
	}
	return op.apply(p), nil
}

// Atomic does op to the word at offset off of peer's part.
func (w *Window) Atomic(ctx context.Context, s *engine.Stream, peer, off int, op *AtomicOp) (was uint64, err error) {
	k, err := w.begin(ctx, op.Name, peer)
	if err != nil {
		return 0, err
	}
	defer end(w)
	if w.device != nil {
		return 0, w.wrap(op.Name, peer, errAtomicOnDevice)
	}
	if s != nil {
		return 0, w.wrap(op.Name, peer, fmt.Errorf("it returns a value, so it cannot be queued on a stream: %w",
			fault.ErrArgument))
	}
	if k.far != nil {
		m, err := k.remote()
		if err == nil {
			err = w.allows(engine.RemoteAtomic)
		}
		if err == nil {
			was, err = w.changeFar(ctx, k, m, off, op)
		}
		return was, w.wrap(op.Name, peer, err)
	}
	if w.nic.ready.Load() {
		was, err = w.changeNear(ctx, k, off, op)
		return was, w.wrap(op.Name, peer, err)
	}
	err = w.update(k, off, 8, 8, func(p unsafe.Pointer, _, _ int) { was = op.apply(p) })
	return was, w.wrap(op.Name, peer, err)
}

// Accumulate combines v with its elements' places from offset off of peer's part on, on s or at once.
func (w *Window) Accumulate(ctx context.Context, s *engine.Stream, peer, off int, v team.Vec, red team.Reduction) error {
	const op = "accumulate"
	if w.queues(s) {
		return w.queueAccumulate(ctx, s, peer, off, v, red)
	}
	k, err := w.begin(ctx, op, peer)
	if err != nil {
		return err
	}
	defer end(w)
	if w.device != nil {
		return w.wrap(op, peer, errAtomicOnDevice)
	}
	if err = v.Check(); err == nil {
		err = checkAccumulate(&v, red)
	}
	if err != nil {
		return peerError(w.c, op, peer, err)
	}
	if a := v.Alloc; a != nil {
		if !a.Hold() {
			return peerError(w.c, op, peer, fmt.Errorf("the buffer at %p has been freed: %w", v.Ptr, fault.ErrStale))
		}
		defer a.Release()
	}
	if k.far != nil {
		err = w.accumulateFar(ctx, k, off, &v, red)
		return w.wrap(op, peer, err)
	}
	size := v.Type.Size()
	err = w.update(k, off, v.Bytes(), size, func(p unsafe.Pointer, at, n int) {
		accumulate(v.Type, red, p, unsafe.Add(v.Ptr, at), n/size)
	})
	if err == nil {
		w.count(true, v.Bytes())
	}
	return w.wrap(op, peer, err)
}

// accumulateFar is Accumulate for a rank of another host.
func (w *Window) accumulateFar(ctx context.Context, k *windowRank, off int, v *team.Vec, red team.Reduction) error {
	m, err := k.remote()
	if err == nil {
		err = w.allows(engine.RemoteAtomic)
	}
	if err == nil {
		err = k.far.accumulate(ctx, w, m, off, v, red)
		k.far.written.Add(1)
	}
	if err == nil {
		w.count(true, v.Bytes())
	}
	return err
}

// queueAccumulate queues Accumulate. It is a separate function, so that an Accumulate at once allocates no closure.
func (w *Window) queueAccumulate(ctx context.Context, s *engine.Stream, peer, off int, v team.Vec, red team.Reduction) error {
	return s.Do(ctx, w.c, func(ctx context.Context) error { return w.Accumulate(ctx, nil, peer, off, v, red) }, nil)
}

// checkAccumulate returns what is wrong with the arguments of Accumulate.
func checkAccumulate(v *team.Vec, red team.Reduction) error {
	switch red {
	case team.Sum, team.Min, team.Max, team.Replace:
	default:
		return fmt.Errorf("no %v (sum, min, max or replace): %w", red, fault.ErrArgument)
	}
	if v.Type == dtype.Bool && red == team.Sum {
		return fmt.Errorf("no sum of bools, only max, which is or, min, which is and, and replace: %w", fault.ErrArgument)
	}
	if !v.Dev.IsHost() {
		return fmt.Errorf("memory on %v, and the window is on the host: %w", v.Dev, fault.ErrArgument)
	}
	return nil
}

// update calls f with the n bytes at offset off of k's part, in pieces from offset `at` of them on. They must be aligned to
// size. Between pieces it looks whether the peer has taken the memory back.
func (w *Window) update(k *windowRank, off, n, size int, f func(p unsafe.Pointer, at, n int)) error {
	if err := w.allows(engine.RemoteAtomic); err != nil {
		return err
	}
	if k.Rank == w.c.Rank() {
		p, claim, err := w.reg.Range(off, n)
		if err != nil {
			return err
		}
		defer claim.Release()
		if err := unaligned(p, off, size); err != nil {
			return err
		}
		f(p, 0, n)
		return nil
	}
	copies := &w.mine.to(w.sp.local(k.Rank)).copying
	p, err := k.begin(copies, off, n, engine.RemoteAtomic)
	if err != nil {
		return err
	}
	defer copies.Add(^uint64(0))
	if err := unaligned(p, off, size); err != nil {
		return err
	}
	for at := 0; at < n; at += copyPiece {
		if at > 0 { // the peer waits for a piece that has begun, so it has the last one even if it takes the memory back now
			if err := k.Live(); err != nil {
				return err
			}
		}
		f(unsafe.Add(p, at), at, min(copyPiece, n-at))
	}
	return nil
}
