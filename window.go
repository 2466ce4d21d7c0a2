package ubcoll

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// WindowFlags say what the ranks promise of a window, and want of it; all ranks give the same.
type WindowFlags = engine.WindowFlags

// The flags, as NCCL numbers them; they may be combined.
const (
	// WindowDefault: the same size on all ranks.
	WindowDefault = engine.WindowDefault
	// WindowCollSymmetric: at the same offset of their allocations too. It is checked.
	WindowCollSymmetric = engine.WindowCollSymmetric
	// WindowStrictOrdering: a rank's puts and signals to one peer are seen in the order in which they were made. On
	// host memory they always are.
	WindowStrictOrdering = engine.WindowStrictOrdering
)

// Window is memory of every rank of a communicator, which each of them may write and read without the others' help;
// made by Comm.RegisterWindow. Offsets are bytes from the start of a rank's part. The memory stays its rank's, and the
// registration that the window holds keeps it from being freed (ErrInUse) until Close.
//
// Its methods may be called from any goroutine, but Signal and Wait with one peer by one goroutine at a time each. They
// are local, and leave the communicator as it was: ErrArgument for a bad rank, or a range outside of the peer's part;
// ErrStale when the peer has closed its part; ErrClosed after Close, or the communicator's; and what the communicator
// broke of.
type Window struct{ w *engine.Window }

// RegisterWindow makes a window of v on every rank. Collective and blocking, on a view made by On too, after what is
// queued. v is memory of Alloc, of the same size on all ranks; a second window on the same memory, or a registration of
// it, adds to the first. If it fails on one rank, it fails on all, with an error that names the rank, and the
// communicator stays usable: ErrArgument for Go memory, an empty v or unknown flags, ErrMismatch for sizes, flags or
// offsets that differ, hw.ErrNotSupported for memory that peers cannot reach (Adopt), ErrStale, ErrLimit. Never a nil
// window without an error.
//
// In a group it is one of the group's operations: the window that it returns is empty, each use of it ErrClosed, until
// Group returns without an error for it; after an error, Close it. That, and a goroutine of its own for the call, are
// what other libraries have non-blocking communicators for. Source: NCCL's ncclCommWindowRegister, nccl4py's
// register_window.
func (c *Comm) RegisterWindow(ctx context.Context, v Vec, f WindowFlags) (*Window, error) {
	w, err := c.v.RegisterWindow(ctx, v.v, f)
	if err != nil {
		return nil, err
	}
	return &Window{w}, nil
}

// Put copies src, any memory, to dstOff of peer's part. When it returns, src is free to change; peer sees the bytes
// after a Signal. It takes the time of the copy.
func (w *Window) Put(ctx context.Context, peer, dstOff int, src Vec) error {
	return w.w.Copy(ctx, "put", peer, dstOff, src.v, true)
}

// Get copies from srcOff of peer's part to dst, any memory, as much as dst holds. It takes the time of the copy. After
// ErrStale dst holds anything, if the peer took its memory back during the copy.
func (w *Window) Get(ctx context.Context, dst Vec, peer, srcOff int) error {
	return w.w.Copy(ctx, "get", peer, srcOff, dst.v, false)
}

// Signal lets one Wait on peer for this rank go on, which then sees all that this rank wrote before. Signals are
// counted, and none is lost.
func (w *Window) Signal(ctx context.Context, peer int) error { return w.w.Signal(ctx, peer) }

// Wait waits for a signal of peer and takes it. Blocking, for Options.Timeout at most (ErrTimeout) or until ctx ends;
// either takes no signal, and the communicator stays usable. ErrClosed when peer has closed its part and no signal is
// left, or when this one is closed meanwhile. A peer that died, aborted or closed its communicator ends it within two
// seconds: ErrPeerLost or ErrAborted, which break the communicator.
func (w *Window) Wait(ctx context.Context, peer int) error { return w.w.Wait(ctx, peer) }

// Fence completes this rank's puts and gets before it, on all peers: whatever this rank does next is seen after them.
// On host memory they are complete when they return, so it is a check that the window is usable. It is no barrier:
// coll.Barrier is.
func (w *Window) Fence(ctx context.Context) error { return w.w.Usable(ctx, "fence", 0) }

// Peer views rank's part, mapped into this process: the source or destination of other operations, which reach it by
// way of a copy. It is good until the window closes on either rank; nothing checks that.
func (w *Window) Peer(rank int) (Vec, error) {
	v, err := w.w.Peer(rank)
	return Vec{v}, err
}

// Flags are those that the window was made with. Local.
func (w *Window) Flags() WindowFlags { return w.w.Flags() }

// Bytes is the size of each rank's part. Local.
func (w *Window) Bytes() int { return w.w.Bytes() }

// Close ends this rank's part. Local: it waits for nobody, but for a peer that is in the middle of a copy. The peers'
// next puts and gets to it are ErrStale. Windows also end with the communicator's Close or Abort; ErrClosed the second
// time, and then, so that it may be deferred.
func (w *Window) Close() error { return w.w.Close() }
