package ubcoll

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/team"
)

// WindowFlags are promises of the ranks about a window and wishes for it; all ranks give the same. They may be combined.
// Those that NCCL has, too, have its numbers.
type WindowFlags uint32

// The flags.
const (
	// WindowDefault promises the same size on all ranks.
	WindowDefault WindowFlags = 0
	// WindowCollSymmetric promises the same offset within the ranks' allocations, too. RegisterWindow checks it.
	WindowCollSymmetric WindowFlags = 1 << 0
	// WindowStrictOrdering: a peer sees one rank's puts and signals in the order of the calls. Without it, puts between hosts
	// may land in any order; a signal, and Flush, come after all puts before them either way. On one host the order always
	// holds; on devices because each one is done before the next one to that peer begins. So it does over TCP for now.
	WindowStrictOrdering WindowFlags = 1 << 1
	// WindowReadOnly: ranks only read parts. Put is [ErrArgument], and what [Window.Peer] returns of another rank's part can
	// only be read. Each rank writes to its own part through its Buffer. The part begins at a page, as memory of [Alloc]
	// does. The right is [AccessRemoteRead].
	WindowReadOnly WindowFlags = 1 << 16
	// WindowAtomic allows [Window.FetchAdd], [Window.CompareAndSwap] and [Window.Accumulate], on host memory. The rights are
	// the usual ones and [AccessRemoteAtomic]. Where RDMA devices do the atomics (see FetchAdd), making the window takes a queue
	// pair for each rank of the host besides.
	WindowAtomic WindowFlags = 1 << 17
)

// String is "default", or the names of the flags.
func (f WindowFlags) String() string { return onesided.WindowFlags(f).String() }

// Window is memory of every rank of a communicator that all ranks may write and read without the owner's help. Made by
// [Comm.RegisterWindow]. Offsets are bytes from the start of a rank's part. The memory stays its rank's; until Close,
// the window's registration keeps it from being freed ([ErrInUse]).
//
// Its methods may be called from any goroutine, but Signal and Wait with one peer by only one goroutine at a time each.
// They are local. These errors leave the communicator as it was: [ErrArgument] for a bad rank, or a range outside the
// peer's part; [ErrStale] if the peer has closed its part; [ErrClosed] after Close, or the communicator's Close. On a
// broken communicator they return the reason why it broke.
//
// Towards a rank of another host, calls go over the network, and that rank's process serves them without a call of its own: at
// once while it waits in this library, otherwise within some milliseconds. Over RDMA, longer puts and gets between registered
// memory, FetchAdd and CompareAndSwap need it only after what it had to serve before. The first call towards such a rank asks it where
// its part is. A Put or Accumulate that has returned is on its way: Flush waits until it has landed, and a later Signal, Get or
// atomic comes after it. If the peer has closed its part meanwhile, nothing of it lands, and the next call towards the peer, or
// Flush, is ErrStale. Calls may wait for the network, for at most [Options.Timeout]: [ErrTimeout] and a context's end leave the
// communicator usable, and of what was under way some bytes may have landed. Deaths, and a peer's Abort or Close of its
// communicator, are as in Wait.
//
// Over device memory each call is one kernel, or from 32 MiB on a copy by a copy engine. The host queues it on the
// stream of On, or on a stream of the window's own, for which it then waits. The memory that is copied must be on this
// rank's device, too; it may be freed when the call has returned. Calls towards one peer run in the order in which they
// were made, whatever the streams, except that a Wait delays only other Waits. Calls towards different peers are
// independent. The device counts signals, so a CUDA graph of the user may hold such calls, as long as the window is
// open on both sides. A Wait that ends by [Options.Timeout], a context or the peer's Close ends the window towards that
// peer: operations queued behind it do nothing, and all later calls return the same error. The communicator stays
// usable.
type Window struct {
	w *onesided.Window
	s *engine.Stream // the stream of On, or nil
}

// errNoWindow is the error of a nil or zero Window.
var errNoWindow = engine.NilError("window", "Comm.RegisterWindow makes one")

func (w *Window) nothing() bool { return w == nil || w.w == nil }

// RegisterWindow makes a window of v on every rank. Collective and blocking, on a view made by On too, after the
// operations queued there. v is memory of [Alloc], of the same size on all ranks, either on the host of all ranks or on
// the devices of all ranks. The same memory may have another window or a registration besides. If it fails on one rank,
// it fails on all, with an error that names the rank, and the communicator stays usable. [ErrArgument] for Go memory,
// an empty v or unknown flags. [ErrMismatch] for sizes, flags, offsets or kinds of memory that differ.
// [ErrNotSupported] for memory that peers cannot reach (host memory of [Adopt], and devices whose link has no native
// atomic operations), for [WindowAtomic] on devices, and on devices if c has ranks on several hosts. [ErrStale]. [ErrLimit]: over device memory a window takes
// the place of one channel for each rank; and [PinRequired]. The window is never nil without an error.
//
// In a group, RegisterWindow is one of the group's operations. It returns an empty window, and every use of it is
// [ErrClosed] until [Group] returns without an error; after an error, Close it. Groups, and calls on a goroutine of
// their own, serve the purpose of other libraries' non-blocking communicators. Source: NCCL's ncclCommWindowRegister,
// nccl4py's register_window.
func (c *Comm) RegisterWindow(ctx context.Context, v Vec, f WindowFlags) (*Window, error) {
	x := c.view()
	w, err := x.Space.RegisterWindow(ctx, &x.View, *v.team(), onesided.WindowFlags(f))
	if err != nil {
		return nil, err
	}
	return &Window{w: w}, nil
}

// On is the same window with its operations queued on s (on no stream if s is nil). They return once they are queued,
// and s.Sync returns their errors. The stream must be of the host or of the device, as the memory is ([ErrArgument]).
// Over host memory the operations run in the stream's order, independently of what the communicator runs elsewhere.
// Local.
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

// Put copies src, any memory of the same kind, to dstOff of peer's part. When it returns, src may be changed; peer sees
// the bytes after a Signal. Local; it takes the time of the copy, and runs in the order of this rank's calls towards
// peer. [ErrArgument] for a bad rank, memory of another kind, a range outside the peer's part, and on a read-only window;
// [ErrStale] if the peer has closed its part; [ErrClosed]; or the reason why the communicator broke.
func (w *Window) Put(ctx context.Context, peer, dstOff int, src Vec) error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Copy(engine.Context(ctx), w.s, "put", peer, dstOff, *src.team(), true)
}

// Get fills dst, any memory of the same kind, from srcOff of peer's part. Local; it takes the time of the copy, and
// runs in the order of this rank's calls towards peer. [ErrArgument] for a bad rank, memory of another kind, or a range
// outside the peer's part; [ErrStale] if the peer has closed its part; [ErrClosed]; or the reason why the communicator
// broke. After ErrStale the content of dst is undefined, because the peer may have taken its memory back during the
// copy.
func (w *Window) Get(ctx context.Context, peer int, dst Vec, srcOff int) error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Copy(engine.Context(ctx), w.s, "get", peer, srcOff, *dst.team(), false)
}

// Signal lets one Wait on peer for this rank continue; peer then sees all that this rank wrote before. Signals are
// counted, and none is lost. Local. In the order of this rank's calls towards peer. [ErrArgument] for a bad rank;
// [ErrClosed]; the reason why the communicator broke; over device memory also [ErrStale] if the peer has closed its
// part.
func (w *Window) Signal(ctx context.Context, peer int) error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Signal(engine.Context(ctx), w.s, peer)
}

// Wait waits for a signal from peer and takes it. Blocking, for at most [Options.Timeout] ([ErrTimeout]) or until ctx
// ends; a Wait that ends so takes no signal, and the communicator stays usable. [ErrArgument] for a bad rank;
// [ErrClosed] if peer has closed its part and no signal is left, or if this rank's part is closed meanwhile. If peer
// dies, aborts or closes its communicator, Wait ends within two seconds with [ErrPeerLost] or [ErrAborted], which break
// the communicator.
func (w *Window) Wait(ctx context.Context, peer int) error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Wait(engine.Context(ctx), w.s, peer)
}

// FetchAdd adds to the 8-byte word at dstOff of peer's part, and returns what the word was. The addition is atomic with
// regard to other atomics on the word through this window, of any rank. A processor executes it: this rank's on one host, the
// owner's between hosts, where this call waits for the answer. Then it is also atomic with regard to those of channels and of package
// sync/atomic. Local; it runs in the order of this rank's calls towards peer.
//
// But if the communicator has several hosts and all its ranks have RDMA devices, the owner's first device executes all of
// them, those of the owner and its host included. Then nothing else may change the word at the same time: a
// program that is to run anywhere uses FetchAdd for its own words, too. Plain loads see whole words. The ranks of a host decide it when they
// make the window, and the log says if they cannot (level Info).
//
// [ErrArgument] if the window has no [WindowAtomic], for a bad rank, for a word outside the part or not aligned to 8 bytes,
// and on a view made by On, because it returns a value. [ErrNotSupported] over device memory. [ErrStale] if the peer has
// closed its part, [ErrClosed], or the reason why the communicator broke; then nothing has been added. But if the answer of a
// rank of another host does not come, the error says that the outcome is unknown: it may have been added, and is not
// tried again. Source: InfiniBand's fetch-and-add; MPI_Fetch_and_op of MPI-4.1, section 12.3.4.
func (w *Window) FetchAdd(ctx context.Context, peer, dstOff int, add uint64) (uint64, error) {
	if w.nothing() {
		return 0, errNoWindow
	}
	return w.w.Atomic(engine.Context(ctx), w.s, peer, dstOff, &onesided.AtomicOp{Name: "fetch_add", Add: add})
}

// CompareAndSwap sets the 8-byte word at dstOff of peer's part to new if it is old, and returns what the word was: old if
// it was set. Everything else is as with [Window.FetchAdd]. Source: MPI_Compare_and_swap of MPI-4.1, section 12.3.4.
func (w *Window) CompareAndSwap(ctx context.Context, peer, dstOff int, old, new uint64) (uint64, error) {
	if w.nothing() {
		return 0, errNoWindow
	}
	return w.w.Atomic(engine.Context(ctx), w.s, peer, dstOff,
		&onesided.AtomicOp{Name: "compare_and_swap", Swap: true, Old: old, New: new})
}

// Accumulate combines src, any host memory, element by element with peer's part from dstOff on: [Sum], [Min], [Max] or
// [Replace], of every type (of bools no Sum). Each element is changed atomically with regard to other Accumulates of the
// same operation and type, but not to Put and to plain stores. Different operations or types on one element at the same
// time, and Get meanwhile, see whole words of 8 bytes, too, but which one comes last is not defined. A rank's Accumulates
// towards peer run in the order of its calls. This is what a parameter server needs: all ranks add gradients at once, and
// nobody serves. When it returns, src may be changed. Local; it waits for nobody, and costs one atomic exchange for each 8
// bytes.
//
// [ErrArgument] if the window has no [WindowAtomic], for another operation, a bad rank, a range outside the part, or one
// whose memory is not aligned to the elements. [ErrNotSupported] over device memory. [ErrStale] if the peer has closed its
// part: then a part of the elements may have been combined. [ErrClosed], or the reason why the communicator broke. A
// process that dies within leaves each element as it was or as it should be. Source: MPI_Accumulate of MPI-4.1, section
// 12.3.4.
func (w *Window) Accumulate(ctx context.Context, peer, dstOff int, src Vec, op Op) error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Accumulate(engine.Context(ctx), w.s, peer, dstOff, *src.team(), op.team().Red)
}

// Flush completes this rank's earlier puts, accumulates and gets, to all peers: peers see them before anything that this
// rank does next, on a stream before anything queued next. On host memory of one host they are complete when they return, so
// Flush only checks that the window is usable. Between hosts it asks each peer, one after the other, whose part this rank has
// used: before a barrier after which peers look at their parts, call Flush. It is no barrier: use coll.Barrier. Local.
// [ErrClosed], or the reason why the communicator broke; between hosts also [ErrStale] if a put was refused.
func (w *Window) Flush(ctx context.Context) error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Flush(engine.Context(ctx), w.s)
}

// Peer views rank's part, mapped into this process. Other operations may use the Vec as source or destination, and copy
// it; but another rank's part of a read-only window only as source: elsewhere it is ErrArgument, and a store to its memory
// by anything else faults, in the rank that makes it. Local; of a read-only window the first call for a rank costs system
// calls. [ErrArgument] for a bad rank, [ErrStale] and [ErrClosed] as in Put, [ErrNotSupported] for another rank's part of
// a read-only window on devices. The Vec is good until the window closes on either rank. Nothing checks that, except that
// operations with a view of a read-only part are [ErrStale] after Close on this rank: on a device a later use faults, and
// the process loses its CUDA context.
func (w *Window) Peer(rank int) (Vec, error) {
	if w.nothing() {
		return newVec(team.Vec{Err: errNoWindow}), errNoWindow
	}
	v, err := w.w.Peer(rank)
	return newVec(v), err
}

// Flags are the flags that the window was made with. Local.
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

// Close ends this rank's part. Local. It waits for at most five seconds in all, for: this rank's calls under way (its
// Waits return [ErrClosed] at once); a peer that is in the middle of a copy, which stops within a MiB, or as
// [Registration.Close] says; and over device memory for operations queued here, and for peers to unmap the memory.
// Peers do that in a fraction of a second, or, if code has captured calls towards this rank, only when they close their
// own part. After [ErrTimeout] the part is closed, and its resources follow by themselves. The peers' next puts and
// gets to it are [ErrStale]. Windows also end with the communicator's Close or Abort; Close is ErrClosed then and the
// second time, so it may be deferred.
func (w *Window) Close() error {
	if w.nothing() {
		return errNoWindow
	}
	return w.w.Close()
}
