package p2p

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpuend"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/onesided"
)

// Channel is one end of a one-sided connection between two ranks: this rank's registered memory, the peer's, and
// signals each way, which are the channel's own ([Connect], [NewChannel]) or those of a [Semaphore]. Put and Get copy
// between the two memories without the peer's help; Signal and Wait synchronize. Source: MSCCL++'s MemoryChannel.
//
// Offsets and sizes are in bytes, from the start of the registered memory, and are checked for both sides. The memory
// stays its owners'. One goroutine at a time may put, get and signal; one goroutine at a time, perhaps another, may
// wait, poll and take packets. Any goroutine may call Close. For the signals and waits of channels over a semaphore see
// there.
//
// Errors of all calls but [Connect] and [NewChannel]: ErrArgument for a range outside either memory, and for what the
// registrations do not allow ([ubcoll.Access]); ErrStale if either rank has closed its registration; ErrClosed if this
// end, the remote memory or the communicator is closed; or the reason why the communicator broke. They are local, and the
// channel stays as it was.
//
// Towards a rank of another host, calls go over the network, and that rank's process serves them without a call of its own: at
// once while it waits in this library, otherwise within some milliseconds. A put that has returned is on its way: Flush waits
// until it has landed, and a later Signal, Get or atomic comes after it. If the peer has closed its registration meanwhile,
// nothing of it lands, and the next put, get or atomic, or Flush, is ErrStale. Calls may wait for the network, for at most
// [ubcoll.Options.Timeout]: ErrTimeout and a context's end leave the communicator usable, and of what was under way some bytes
// may have landed. Deaths, and a peer's Abort or Close of its communicator, are as in Wait.
//
// Over device memory, on both sides, a call is one kernel. The host queues it on the stream of On, or on a stream of
// the channel's own, for which it then waits; Batch makes one kernel of several calls. Kernels of one end run in the
// order of the calls, whatever the streams, except that calls that wait or take packets do not delay puts, gets and
// signals. Kernels count the signals, so a CUDA graph of the user may hold calls of a channel, as long as the channel
// is open. Outside of such captures, a small kernel may start before the previous one in the stream has ended, which
// saves some tenths of a microsecond. Copy engines do puts and gets of 32 MiB and more. Towards a rank of another host the
// host does the calls, in the same order, and a kernel in their place on the stream copies between the device and the host;
// packets are ErrNotSupported.
//
// A Wait or GetPackets that ends by [ubcoll.Options.Timeout] or a context ends the channel on devices: calls queued
// behind it do nothing, and all later calls return that error; the communicator stays usable. The memory of both sides
// stays mapped until the channel is closed. Closing a registration before that ends puts and gets, and waits until the
// other side has unmapped the memory. That takes a fraction of a second; if calls were captured there, it lasts until
// that channel is closed, for at most five seconds.
type Channel struct {
	signaler
	end     *onesided.Channel
	local   *engine.Registration
	packets *packets
}

func newChannel(end *onesided.Channel, local *engine.Registration) *Channel {
	return &Channel{signaler: newSignaler(&end.Side), end: end, local: local, packets: newPackets(end)}
}

// errNoChannel is the error of a nil or zero Channel.
var errNoChannel = engine.NilError("channel", "Connect and NewChannel make one, and so does Semaphore.Channel")

func (ch *Channel) nothing() bool { return ch == nil || ch.end == nil }

// Connect makes a channel to peer between the memory of r here and the memory that the peer connects with. The peer
// must call Connect or [NewChannel] too: the k-th call of Connect, NewChannel or [NewSemaphore] of one rank for the
// other matches the other's k-th call. Blocking until then, for at most [ubcoll.Options.Timeout] or until ctx ends; no
// other rank takes part. r stays the caller's and must stay open while the channel is used. A rank has at most 512 open
// channels and semaphores (ErrLimit); in a communicator that Split or Dup made, at most 32 over device memory, or 2 for
// each rank if that is more.
//
// ErrArgument for a bad rank, device memory on one side only, or a peer whose matching call makes a semaphore.
// ErrNotSupported for memory that peers cannot reach ([ubcoll.Adopt]), of devices whose link has no native atomic
// operations. A refused call counts as any other, and the peer's call fails with the same reason at once; only one with
// a bad rank counts for nobody. ErrTimeout and a context's end leave the communicator usable; the peer's call then
// fails too, or its channel is closed. ErrPeerLost breaks the communicator, and so does an error that has broken it on
// a peer (ErrAborted, ErrTimeout there). On a view made by [ubcoll.Comm.On], Connect works as on the communicator
// itself; in a group or a capture it is ErrArgument.
func Connect(ctx context.Context, c *ubcoll.Comm, peer int, r *ubcoll.Registration) (*Channel, error) {
	return connect(ctx, c, peer, r, nil)
}

// NewChannel is [Connect] to imported memory of the peer, which may be another registration than the one of the peer's
// end. The remote memory stays the caller's and must stay open while the channel is used.
func NewChannel(ctx context.Context, c *ubcoll.Comm, r *ubcoll.Registration, m *ubcoll.Remote) (*Channel, error) {
	remote := (*inside.Remote)(m).Onesided()
	if remote == nil {
		return nil, (*inside.Comm)(c).View().LocalError("connect", fmt.Errorf("nil remote memory (Comm.Import makes it): %w",
			fault.ErrArgument))
	}
	return connect(ctx, c, m.Rank(), r, remote)
}

func connect(ctx context.Context, c *ubcoll.Comm, peer int, r *ubcoll.Registration, m *onesided.Remote) (*Channel,
	error) {
	v, local := (*inside.Comm)(c).View(), (*inside.Registration)(r).Engine()
	if v.Recorder != nil {
		return nil, v.LocalError("connect", fmt.Errorf("not in a group or a capture: %w", fault.ErrArgument))
	}
	end, err := v.Space.Connect(ctx, peer, local, m)
	if err != nil {
		return nil, err
	}
	return newChannel(end, local), nil
}

// Peer is the rank of the other end. Local.
func (ch *Channel) Peer() int {
	if ch.nothing() {
		return -1
	}
	return ch.end.Peer()
}

// Put copies n bytes at srcOff of this rank's memory to dstOff of the peer's. When it returns, the source may be
// changed; the peer sees the bytes after a Signal. Local; it takes the time of the copy, and runs in the order of this
// end's puts, gets and signals. ErrArgument for a range outside either memory, ErrStale if either rank has closed its
// registration, ErrClosed, or the reason why the communicator broke.
func (ch *Channel) Put(ctx context.Context, dstOff, srcOff, n int) error {
	return ch.copy(ctx, transfer{"put", srcOff, dstOff, n, true, false})
}

// PutWithSignal is Put and then Signal. After an error, which is one of Put's, nothing is signalled.
func (ch *Channel) PutWithSignal(ctx context.Context, dstOff, srcOff, n int) error {
	return ch.copy(ctx, transfer{"put_with_signal", srcOff, dstOff, n, true, true})
}

// Get copies n bytes at srcOff of the peer's memory to dstOff of this rank's. Local; it takes the time of the copy, and
// runs in the order of this end's puts, gets and signals. ErrArgument for a range outside either memory, ErrStale if
// either rank has closed its registration, ErrClosed, or the reason why the communicator broke. After ErrStale the
// content of the destination is undefined, because the peer may have taken its memory back during the copy.
func (ch *Channel) Get(ctx context.Context, dstOff, srcOff, n int) error {
	return ch.copy(ctx, transfer{"get", dstOff, srcOff, n, false, false})
}

// transfer is n bytes between here and there.
type transfer struct {
	op            string
	local, remote int
	n             int
	put, signal   bool
}

func (ch *Channel) copy(ctx context.Context, t transfer) error {
	if ch.nothing() {
		return errNoChannel
	}
	if ch.asSteps() {
		return ch.launch(ctx, t.steps()...)
	}
	if ch.stream != nil {
		return ch.do(ctx, func(ctx context.Context) error { return ch.copyNow(ctx, t) })
	}
	return ch.copyNow(ctx, t)
}

func (ch *Channel) copyNow(ctx context.Context, t transfer) error {
	if err := ch.end.Begin(ctx); err != nil {
		return ch.end.Error(t.op, err)
	}
	defer ch.end.End()
	mine, claim, err := ch.local.Range(t.local, t.n)
	if err != nil {
		return ch.end.Error(t.op, err)
	}
	defer claim.Release()
	if !t.put {
		if err := ch.local.Writable(); err != nil {
			return ch.end.Error(t.op, err)
		}
	}
	if err := ch.end.Copy(ctx, t.remote, mine, t.n, t.put, t.signal); err != nil {
		return ch.end.Error(t.op, err)
	}
	return nil
}

// Signal lets one Wait of the peer continue; the peer then sees all that this rank wrote before, by Put or otherwise.
// Local; signals are counted, and none is lost. In the order of this end's puts, gets and signals. ErrClosed, or the
// reason why the communicator broke; over device memory also ErrStale if either rank has closed its registration.
func (ch *Channel) Signal(ctx context.Context) error {
	if ch.nothing() {
		return errNoChannel
	}
	return ch.signal(ctx, gpuend.StepSignal)
}

// RelaxedSignal is a Signal without ordering, for signals that announce no data. On host memory it costs and orders the
// same as Signal. Errors as in Signal.
func (ch *Channel) RelaxedSignal(ctx context.Context) error {
	if ch.nothing() {
		return errNoChannel
	}
	return ch.signal(ctx, gpuend.StepRelaxedSignal)
}

// Wait waits for a signal from the peer and takes it. Blocking, for at most [ubcoll.Options.Timeout] (ErrTimeout) or
// until ctx ends; a Wait that ends so takes no signal, and the communicator stays usable. ErrClosed if the peer has
// closed its end and no signal is left. If the peer dies, aborts or closes its communicator, Wait ends within two
// seconds with ErrPeerLost or ErrAborted. These break the communicator, as does an error that has broken it on a peer.
func (ch *Channel) Wait(ctx context.Context) error {
	if ch.nothing() {
		return errNoChannel
	}
	return ch.wait(ctx)
}

// Poll checks once for a signal, and takes it if there is one. Local, does not wait. In a loop it also notices when none can
// come any more: ErrClosed if the peer or this rank has closed its end, ErrPeerLost, or the reason why the communicator broke. ErrNotSupported on device memory, where the device counts signals;
// ErrArgument in a Batch.
func (ch *Channel) Poll() (bool, error) {
	if ch.nothing() {
		return false, errNoChannel
	}
	return ch.poll()
}

// Flush waits until the puts before it are done: their source may be changed, and the peer sees them before anything
// that follows. On host memory of one host a put that has returned is done, so Flush only checks that the channel is usable;
// between hosts it waits for the peer's answer. Local. ErrClosed, or the reason why the communicator broke; over device memory
// and between hosts also ErrStale if either rank has closed its registration.
func (ch *Channel) Flush(ctx context.Context) error {
	if ch.nothing() {
		return errNoChannel
	}
	if ch.asSteps() {
		return ch.launch(ctx, gpuend.Step{Kind: gpuend.StepFlush})
	}
	if ch.stream != nil {
		return ch.do(ctx, ch.flush)
	}
	return ch.flush(ctx)
}

func (ch *Channel) flush(ctx context.Context) error {
	if err := ch.end.Begin(ctx); err != nil {
		return ch.end.Error("flush", err)
	}
	err := ch.end.Flush(ctx)
	ch.end.End()
	if err != nil {
		return ch.end.Error("flush", err)
	}
	return nil
}

// On is the same channel with its operations, except Poll, queued on s (on no stream if s is nil). They return once
// they are queued, and s.Sync returns their errors. They run in the stream's order, independently of what the
// communicator runs elsewhere. Local.
func (ch *Channel) On(s *ubcoll.Stream) *Channel {
	if ch.nothing() {
		return ch
	}
	d := *ch
	d.signaler = ch.on(s)
	return &d
}

// Close ends this end. Local: it waits for this rank's calls under way; Waits among them return ErrClosed at once. This
// end then no longer reaches the peer's memory. The peer's waits return ErrClosed once they have taken the signals that
// were sent. When the peer has closed too, the channel's place is free for another one. A channel over a semaphore
// leaves that open: the peer notices nothing, and the place is free at once. Over device memory Close waits for what
// this end has queued, for at most five seconds (ErrTimeout: the end is closed, and its resources follow by
// themselves). Waits among that end at once, but those of a channel over a semaphore do not, since that would end the
// semaphore. ErrClosed the second time, and after the communicator's Close or Abort.
func (ch *Channel) Close() error {
	if ch.nothing() {
		return errNoChannel
	}
	return ch.end.Close()
}
