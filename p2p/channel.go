package p2p

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/onesided"
)

// Channel is one end of a one-sided connection between two ranks: this rank's registered memory, the peer's, and a
// semaphore each way. Put and Get copy between the two memories without the peer's help; Signal and Wait tell when.
// Source: MSCCL++'s MemoryChannel.
//
// Offsets and sizes are in bytes, from the start of what was registered, and are checked on both sides. The memory
// stays its owners'. What puts, gets and signals is for one goroutine at a time, and so is what waits, polls and takes
// packets; the two may be different, and Close may come from any.
//
// Errors of all calls but [Connect] and [NewChannel]: ErrArgument for a range that is outside of either memory,
// ErrStale when either rank has closed its registration, ErrClosed when this end, the remote memory or the communicator
// is closed, and what the communicator broke of. They are local, and the channel stays as it was.
//
// Over device memory, on both sides, a call is one kernel that the host queues on the stream of On, or on one of the
// channel's own, and then waits for; Batch makes one kernel of several. Those of one end run in the order of the calls,
// whatever the streams; but what waits or takes packets does not hold up what puts, gets and signals. Kernels count the
// signals, so that a CUDA graph that somebody captures may hold calls of a channel, for as long as that is open; but
// only outside of such captures does a small kernel start before the one before it in the stream has ended, which saves
// some tenths of a microsecond. A Wait or GetPackets that ends by [ubcoll.Options.Timeout] or a context ends the
// channel there: what is queued behind it does nothing, and all later calls return that error; the communicator stays
// usable. Puts and gets of 32 MiB and more go by copy engine. The memory of both sides stays mapped until the channel
// is closed; a registration that is closed before ends puts and gets, and waits until the other side has unmapped it: a
// fraction of a second, or if calls were captured there, until that channel is closed, for five seconds at most.
type Channel struct {
	end     *onesided.Channel
	local   *engine.Registration
	stream  *engine.Stream
	packets *packets
	record  *[]onesided.Step // of Batch, or nil
	device  bool             // between memory of devices
}

// errNoChannel is what is wrong with a nil or zero Channel.
var errNoChannel = engine.NilError("channel", "Connect and NewChannel make one")

func (ch *Channel) nothing() bool { return ch == nil || ch.end == nil }

// Connect makes a channel to peer over r here and what the peer connects with there. The peer must call Connect or
// [NewChannel] too: the k-th call of the one for the other is met by the k-th of the other. Blocking until then, for
// [ubcoll.Options.Timeout] at most or until ctx ends; no other rank takes part. r stays the caller's and must stay open
// as long as the channel is used. At most 512 channels of a rank are open at a time (ErrLimit), and in a communicator
// that Split or Dup has made at most 32 of them over memory of devices. ErrArgument for a bad rank, or memory of a device
// on one side only, ErrNotSupported for memory that peers cannot reach ([ubcoll.Adopt]), or
// of devices whose link has no native atomic operations: the peer learns it at once. ErrTimeout and a context's end
// leave the communicator usable; the peer's call then fails too, or its channel is closed. ErrPeerLost breaks it, and
// so does what has broken it on a peer (ErrAborted, ErrTimeout there). On a view made by [ubcoll.Comm.On] it is as on
// the communicator itself; in a group or a capture it is ErrArgument.
func Connect(ctx context.Context, c *ubcoll.Comm, peer int, r *ubcoll.Registration) (*Channel, error) {
	return connect(ctx, c, peer, r, nil)
}

// NewChannel is [Connect] over memory of the peer's that was imported: it may be another registration than that which
// the peer's end has. The remote memory stays the caller's and must stay open as long as the channel is used.
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
	return &Channel{end: end, local: local, packets: newPackets(end), device: end.OnDevice()}, nil
}

// Peer is the other end's rank. Local.
func (ch *Channel) Peer() int {
	if ch.nothing() {
		return -1
	}
	return ch.end.Peer()
}

// Put copies n bytes at srcOff of this rank's memory to dstOff of the peer's. When it returns, the source is free to
// change; the peer sees the bytes after a Signal. Local; it takes the time of the copy. In the order of this end's
// puts, gets and signals. ErrArgument for a range that is outside of either memory, ErrStale when either rank has
// closed its registration, ErrClosed, and what the communicator broke of.
func (ch *Channel) Put(ctx context.Context, dstOff, srcOff, n int) error {
	return ch.copy(ctx, transfer{"put", srcOff, dstOff, n, true, false})
}

// PutWithSignal is Put and then Signal, with Put's errors, after which nothing is signalled.
func (ch *Channel) PutWithSignal(ctx context.Context, dstOff, srcOff, n int) error {
	return ch.copy(ctx, transfer{"put_with_signal", srcOff, dstOff, n, true, true})
}

// Get copies n bytes at srcOff of the peer's memory to dstOff of this rank's. Local; it takes the time of the copy. In
// the order of this end's puts, gets and signals. ErrArgument for a range that is outside of either memory, ErrStale
// when either rank has closed its registration, ErrClosed, and what the communicator broke of. ErrStale also means that
// the destination holds anything, if the peer took its memory back during the copy.
func (ch *Channel) Get(ctx context.Context, dstOff, srcOff, n int) error {
	return ch.copy(ctx, transfer{"get", dstOff, srcOff, n, false, false})
}

// transfer is n bytes between here and there.
type transfer struct {
	op          string
	here, there int
	n           int
	put, signal bool
}

func (ch *Channel) copy(ctx context.Context, t transfer) error {
	if ch.nothing() {
		return errNoChannel
	}
	if ch.device || ch.record != nil {
		return ch.steps(ctx, t.steps()...)
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
	mine, claim, err := ch.local.Range(t.here, t.n)
	if err != nil {
		return ch.end.Error(t.op, err)
	}
	defer claim.Release()
	if err := ch.end.Copy(t.there, mine, t.n, t.put); err != nil {
		return ch.end.Error(t.op, err)
	}
	if t.signal {
		ch.end.Signal()
	}
	return nil
}

// Signal lets one Wait of the peer go on, which then sees all that this rank wrote before, by Put or otherwise. Local;
// signals are counted, and none is lost. In the order of this end's puts, gets and signals. ErrClosed, and what the
// communicator broke of; over device memory ErrStale, too, when either rank has closed its registration.
func (ch *Channel) Signal(ctx context.Context) error {
	if ch.nothing() {
		return errNoChannel
	}
	if ch.device || ch.record != nil {
		return ch.steps(ctx, onesided.Step{Kind: onesided.StepSignal})
	}
	if ch.stream != nil {
		return ch.do(ctx, func(ctx context.Context) error { return ch.signal(ctx) })
	}
	return ch.signal(ctx)
}

// RelaxedSignal is a Signal that promises no order: for signals that carry nothing but themselves. On host memory it
// costs the same, and orders the same. Errors as in Signal.
func (ch *Channel) RelaxedSignal(ctx context.Context) error {
	if ch.nothing() {
		return errNoChannel
	}
	if ch.device || ch.record != nil {
		return ch.steps(ctx, onesided.Step{Kind: onesided.StepRelaxedSignal})
	}
	return ch.Signal(ctx)
}

func (ch *Channel) signal(ctx context.Context) error {
	if err := ch.end.Begin(ctx); err != nil {
		return ch.end.Error("signal", err)
	}
	ch.end.Signal()
	ch.end.End()
	return nil
}

// Wait waits for a signal of the peer and takes it. Blocking, for [ubcoll.Options.Timeout] at most (ErrTimeout) or
// until ctx ends; either takes no signal, and the communicator stays usable. ErrClosed when the peer has closed its end
// and no signal is left. A peer that died, aborted or closed its communicator ends it within two seconds: ErrPeerLost
// or ErrAborted, which break the communicator, as whatever has broken it on a peer does.
func (ch *Channel) Wait(ctx context.Context) error {
	if ch.nothing() {
		return errNoChannel
	}
	if ch.device || ch.record != nil {
		return ch.steps(ctx, onesided.Step{Kind: onesided.StepWait})
	}
	if ch.stream != nil {
		return ch.do(ctx, ch.wait)
	}
	return ch.wait(ctx)
}

func (ch *Channel) wait(ctx context.Context) error {
	if err := ch.end.Begin(ctx); err != nil {
		return ch.end.Error("wait", err)
	}
	err := ch.end.Wait(ctx)
	ch.end.End()
	if err != nil {
		return ch.end.Error("wait", err)
	}
	return nil
}

// Poll looks once whether there is a signal, and takes it if so. Local, waits for nothing. ErrClosed when this end is
// closed, and what the communicator broke of. On device memory, whose signals the device counts, it is ErrNotSupported,
// and in a Batch ErrArgument.
func (ch *Channel) Poll() (bool, error) {
	switch {
	case ch.nothing():
		return false, errNoChannel
	case ch.record != nil:
		return false, ch.end.Error("poll", fmt.Errorf("in a batch: %w", fault.ErrArgument))
	case ch.device:
		return false, ch.end.Error("poll", fmt.Errorf("signals on a device: %w", fault.ErrNotSupported))
	}
	if err := ch.end.Begin(context.Background()); err != nil {
		return false, ch.end.Error("poll", err)
	}
	ok := ch.end.Poll()
	ch.end.End()
	return ok, nil
}

// Flush waits until the puts before it are done: their source is free, and what comes after is seen after them. On host
// memory a put that has returned is done, so it is a check that the channel is usable. Local. ErrClosed, and what the
// communicator broke of; over device memory ErrStale, too, when either rank has closed its registration.
func (ch *Channel) Flush(ctx context.Context) error {
	if ch.nothing() {
		return errNoChannel
	}
	if ch.device || ch.record != nil {
		return ch.steps(ctx, onesided.Step{Kind: onesided.StepFlush})
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
	ch.end.End()
	return nil
}

// On is the same channel, whose operations but Poll queue on s (for a nil s, on none): they return once they are
// queued, and their errors come from s.Sync. They run in the stream's order, and are independent of what the
// communicator runs elsewhere. Local.
func (ch *Channel) On(s *ubcoll.Stream) *Channel {
	if ch.nothing() {
		return ch
	}
	d := *ch
	d.stream = nil
	if s != nil {
		d.stream = (*inside.Stream)(s).Engine()
	}
	return &d
}

// do does f, or queues it.
func (ch *Channel) do(ctx context.Context, f func(context.Context) error) error {
	return ch.stream.Do(ctx, ch.end.Comm(), f, nil)
}

// Close ends this end. Local: it waits for this rank's calls under way, of which waits return ErrClosed at once. The
// other end's memory is no longer reached from here, the peer's waits end with ErrClosed once they have taken the
// signals that were sent, and when it has closed too, the place is free for another channel. Over device memory it
// waits for what this end has queued, of which waits end at once, for five seconds at most (ErrTimeout: it is closed, and
// what it has follows by itself). ErrClosed the second time, and after the communicator's Close or Abort.
func (ch *Channel) Close() error {
	if ch.nothing() {
		return errNoChannel
	}
	return ch.end.Close()
}
