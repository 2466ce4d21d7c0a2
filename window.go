package ubcoll

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/team"
)

// WindowFlags say what the ranks promise of a window, and want of it; all ranks give the same. They are numbered as NCCL
// has them, and may be combined.
type WindowFlags uint32

// The flags.
const (
	// WindowDefault: the same size on all ranks.
	WindowDefault WindowFlags = 0
	// WindowCollSymmetric: at the same offset of their allocations too. It is checked.
	WindowCollSymmetric WindowFlags = 1 << 0
	// WindowStrictOrdering: a rank's puts and signals to one peer are seen in the order in which they were made. They
	// always are, on devices because each is done before the next one to that peer begins.
	WindowStrictOrdering WindowFlags = 1 << 1
)

// String is "default", or the names of the flags.
func (f WindowFlags) String() string { return onesided.WindowFlags(f).String() }

// Window is memory of every rank of a communicator, which each of them may write and read without the others' help;
// made by [Comm.RegisterWindow]. Offsets are bytes from the start of a rank's part. The memory stays its rank's, and
// the registration that the window holds keeps it from being freed ([ErrInUse]) until Close.
//
// Its methods may be called from any goroutine, but Signal and Wait with one peer by one goroutine at a time each. They
// are local, and leave the communicator as it was: [ErrArgument] for a bad rank, or a range outside of the peer's part;
// [ErrStale] when the peer has closed its part; [ErrClosed] after Close, or the communicator's; and what the
// communicator broke of.
//
// Over device memory each call is one kernel, or a copy by copy engine from 32 MiB on, which the host queues on the
// stream of On, or on one of the window's own, and then waits for. What is copied must be this rank's device's, too; it
// may be freed when the call has returned. Calls towards one peer run in the order in which they were made, whatever
// the streams, but waits hold up none but waits; calls towards different peers are independent of each other. Signals
// are counted on the device, so that CUDA graphs that somebody captures may hold such calls, for as long as the window
// is open on both sides. A Wait that ends by [Options.Timeout], a context or the peer's Close ends the window towards
// that peer: what is queued behind it does nothing, and all later calls return that error; the communicator stays
// usable.
type Window struct {
	w *onesided.Window
	s *engine.Stream // of On, or nil
}

// errNoWindow is what is wrong with a nil or zero Window.
var errNoWindow = engine.NilError("window", "Comm.RegisterWindow makes one")

func (w *Window) nothing() bool { return w == nil || w.w == nil }

// RegisterWindow makes a window of v on every rank. Collective and blocking, on a view made by On too, after what is
// queued. v is memory of [Alloc], of the same size on all ranks, and on the host of all ranks or on the devices of all;
// a second window on the same memory, or a registration of it, adds to the first. If it fails on one rank, it fails on
// all, with an error that names the rank, and the communicator stays usable: [ErrArgument] for Go memory, an empty v or
// unknown flags, [ErrMismatch] for sizes, flags, offsets or kinds of memory that differ, [ErrNotSupported] for memory
// that peers cannot reach (that of [Adopt] on the host, and devices whose link has no native atomic operations), and
// where c has ranks on several hosts, [ErrStale], [ErrLimit]: over device memory a window takes the place of one
// channel for each rank. Never a nil window without an error.
//
// In a group it is one of the group's operations: the window that it returns is empty, each use of it [ErrClosed],
// until [Group] returns without an error for it; after an error, Close it. That, and a goroutine of its own for the
// call, are what other libraries have non-blocking communicators for. Source: NCCL's ncclCommWindowRegister, nccl4py's
// register_window.
func (c *Comm) RegisterWindow(ctx context.Context, v Vec, f WindowFlags) (*Window, error) {
	x := c.view()
	w, err := x.Space.RegisterWindow(ctx, &x.View, *v.team(), onesided.WindowFlags(f))
	if err != nil {
		return nil, err
	}
	return &Window{w: w}, nil
}

// On is the same window, whose operations queue on s (for a nil s, on none), and return once they are queued; their
// errors come from s.Sync. The stream is of the host or of the device, as the memory is ([ErrArgument]). Over host
// memory the operations run in the stream's order, and independently of what the communicator runs elsewhere. Local.
func (w *Window) On(s *Stream) *Window {
	if w.nothing() {
		return w
	}
	d := &Window{w: w.w}
	if s != nil {
		d.s = s.engine()
	}
	return d
}

// Put copies src, any memory of the same kind, to dstOff of peer's part. When it returns, src is free to change; peer
// sees the bytes after a Signal. Local; it takes the time of the copy. In the order of this rank's calls towards peer.
// [ErrArgument] for a bad rank, memory of another kind, or a range that is outside of the peer's part; [ErrStale] when
// the peer has closed its part, [ErrClosed], and what the communicator broke of.
func (w *Window) Put(ctx context.Context, peer, dstOff int, src Vec) error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Copy(engine.Context(ctx), w.s, "put", peer, dstOff, *src.team(), true)
}

// Get copies to dst, any memory of the same kind, from srcOff of peer's part, as much as dst holds. Local; it takes the
// time of the copy. In the order of this rank's calls towards peer. [ErrArgument] for a bad rank, memory of another
// kind, or a range that is outside of the peer's part; [ErrStale] when the peer has closed its part, [ErrClosed], and
// what the communicator broke of. After ErrStale dst holds anything, if the peer took its memory back during the copy.
func (w *Window) Get(ctx context.Context, peer int, dst Vec, srcOff int) error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Copy(engine.Context(ctx), w.s, "get", peer, srcOff, *dst.team(), false)
}

// Signal lets one Wait on peer for this rank go on, which then sees all that this rank wrote before. Signals are
// counted, and none is lost. Local. In the order of this rank's calls towards peer. [ErrArgument] for a bad rank,
// [ErrClosed], and what the communicator broke of; over device memory [ErrStale], too, when the peer has closed its
// part.
func (w *Window) Signal(ctx context.Context, peer int) error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Signal(engine.Context(ctx), w.s, peer)
}

// Wait waits for a signal of peer and takes it. Blocking, for [Options.Timeout] at most ([ErrTimeout]) or until ctx
// ends; either takes no signal, and the communicator stays usable. [ErrArgument] for a bad rank; [ErrClosed] when peer
// has closed its part and no signal is left, or when this one is closed meanwhile. A peer that died, aborted or closed
// its communicator ends it within two seconds: [ErrPeerLost] or [ErrAborted], which break the communicator.
func (w *Window) Wait(ctx context.Context, peer int) error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Wait(engine.Context(ctx), w.s, peer)
}

// Flush completes this rank's puts and gets before it, on all peers: whatever this rank does next is seen after them,
// and on a stream, whatever is queued there next. On host memory they are complete when they return, so it is a check
// that the window is usable. It is no barrier: coll.Barrier is. Local. [ErrClosed], and what the communicator broke of.
func (w *Window) Flush(ctx context.Context) error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Flush(engine.Context(ctx), w.s)
}

// Peer views rank's part, mapped into this process: the source or destination of other operations, which reach it by
// way of a copy. Local. [ErrArgument] for a bad rank, [ErrStale] and [ErrClosed] as in Put. It is good until the window
// closes on either rank; nothing checks that, and on a device what comes later faults, which takes the process's
// context with it.
func (w *Window) Peer(rank int) (Vec, error) {
	if w.nothing() {
		return newVec(team.Vec{Err: errNoWindow}), errNoWindow
	}
	v, err := w.w.Peer(rank)
	return newVec(v), err
}

// Flags are those that the window was made with. Local.
func (w *Window) Flags() WindowFlags {
	if w.nothing() {
		return WindowDefault
	}
	return WindowFlags(w.w.Flags())
}

// Bytes is the size of each rank's part. Local.
func (w *Window) Bytes() int {
	if w.nothing() {
		return 0
	}
	return w.w.Bytes()
}

// Close ends this rank's part. Local: it waits for this rank's calls under way, of which waits return [ErrClosed] at
// once; for a peer that is in the middle of a copy, which ends within a MiB of it, or as [Registration.Close] says; and
// over device memory for what is queued here, and for peers to unmap the memory: they do in a fraction of a second, or
// only when they close theirs, if somebody has captured calls towards this rank. For all of that it waits five seconds
// at most ([ErrTimeout]: it is closed, and what it has follows by itself). The peers' next puts and gets to it are
// [ErrStale]. Windows also end with the communicator's Close or Abort; ErrClosed the second time, and then, so that it
// may be deferred.
func (w *Window) Close() error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Close()
}
