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

// Semaphore is one end of counted signals each way between two ranks. Several channels of the two ranks may share it:
// Channel makes them, without the peer, over memory that the ranks have imported. A Wait on the semaphore, or on any of
// its channels, takes one signal that the peer has sent on the semaphore or on any of the channels.
// Source: MSCCL++'s Semaphore, and MemoryChannel made from it and two RegisteredMemory.
//
// One goroutine at a time may signal, on the semaphore or on one of its channels, and one goroutine at a time, perhaps
// another, may wait or poll there. Other calls of different channels may run at the same time. Any goroutine may call
// Channel and Close.
//
// Errors of all calls but [NewSemaphore]: ErrClosed if the semaphore or the communicator is closed, or the reason why
// the communicator broke. They are local, and the semaphore stays as it was.
//
// On a device, signals and waits are kernels, as those of a [Channel] are, and run in the order of the calls on the
// semaphore and its channels, except that calls that wait do not delay the others. A Wait, or a GetPackets on one of
// the channels, that ends by [ubcoll.Options.Timeout] or a context ends the semaphore and its channels. The
// communicator stays usable.
type Semaphore struct {
	signaler
	end *onesided.Semaphore
}

// errNoSemaphore is the error of a nil or zero Semaphore.
var errNoSemaphore = engine.NilError("semaphore", "NewSemaphore makes one")

func (s *Semaphore) nothing() bool { return s == nil || s.end == nil }

// NewSemaphore makes a semaphore with peer, which must call it, too: the k-th call of [Connect], [NewChannel] or
// NewSemaphore of one rank for the other matches the other's k-th call. Blocking until then, for at most
// [ubcoll.Options.Timeout] or until ctx ends; no other rank takes part. d is [ubcoll.Host] or this rank's device: where
// the signals are, and the memory of all channels over the semaphore. The semaphore counts as a channel among the 512,
// or fewer on devices, that a rank can have: see Connect.
//
// ErrArgument on both ranks if the matching call makes a channel, or if only one of the semaphores is on a device;
// ErrArgument for a bad rank or the device of another rank; ErrNotSupported for a device whose link has no native
// atomic operations. Everything else is as in Connect.
func NewSemaphore(ctx context.Context, c *ubcoll.Comm, peer int, d ubcoll.Device) (*Semaphore, error) {
	v := (*inside.Comm)(c).View()
	if v.Recorder != nil {
		return nil, v.LocalError("new_semaphore", fmt.Errorf("not in a group or a capture: %w", fault.ErrArgument))
	}
	end, err := v.Space.NewSemaphore(ctx, peer, d)
	if err != nil {
		return nil, err
	}
	return &Semaphore{newSignaler(&end.Side), end}, nil
}

// Peer is the rank of the other end. Local.
func (s *Semaphore) Peer() int {
	if s.nothing() {
		return -1
	}
	return s.end.Peer()
}

// Signal lets one Wait of the peer continue; the peer then sees all that this rank wrote before, by Put on a channel or
// otherwise. Local; signals are counted, and none is lost. ErrClosed, or the reason why the communicator broke. A CUDA
// graph of the user may capture it, as long as the semaphore is open.
func (s *Semaphore) Signal(ctx context.Context) error {
	if s.nothing() {
		return errNoSemaphore
	}
	return s.signal(ctx, gpuend.StepSignal)
}

// RelaxedSignal is a Signal without ordering, for signals that announce no data. On the host it costs and orders the
// same as Signal. Errors as in Signal.
func (s *Semaphore) RelaxedSignal(ctx context.Context) error {
	if s.nothing() {
		return errNoSemaphore
	}
	return s.signal(ctx, gpuend.StepRelaxedSignal)
}

// Wait waits for a signal from the peer and takes it. Blocking, for at most [ubcoll.Options.Timeout] (ErrTimeout) or
// until ctx ends; a Wait that ends so takes no signal, and the communicator stays usable. ErrClosed if the peer has
// closed its end and no signal is left. If the peer dies, aborts or closes its communicator, Wait ends within two
// seconds with ErrPeerLost or ErrAborted. These break the communicator, as does an error that has broken it on a peer.
// A CUDA graph of the user may capture it, as long as the semaphore is open.
func (s *Semaphore) Wait(ctx context.Context) error {
	if s.nothing() {
		return errNoSemaphore
	}
	return s.wait(ctx)
}

// Poll checks once for a signal, and takes it if there is one. Local, does not wait. In a loop it also notices when none can
// come any more: ErrClosed if the peer or this rank has closed its end, ErrPeerLost, or the reason why the communicator
// broke. ErrNotSupported on a device, which counts the signals itself.
func (s *Semaphore) Poll() (bool, error) {
	if s.nothing() {
		return false, errNoSemaphore
	}
	return s.poll()
}

// On is the same semaphore with Signal, RelaxedSignal and Wait queued on st (on no stream if st is nil). They return
// once they are queued, and st.Sync returns their errors. They run in the stream's order, independently of what the
// communicator runs elsewhere. Local.
func (s *Semaphore) On(st *ubcoll.Stream) *Semaphore {
	if s.nothing() {
		return s
	}
	return &Semaphore{s.on(st), s.end}
}

// Channel makes a channel over the semaphore, from the memory of r to that of m, which this rank has imported from the
// peer. Local; it does not wait, and the peer need not make a channel itself. r and m stay the caller's and must stay
// open while the channel is used. The channel is on no stream. It counts among the 512 channels and semaphores that a
// rank can have (ErrLimit), until it is closed.
//
// Both ranks must make the channels over a semaphore in the same order if they use packets on them: the n-th channel
// takes the packets of the peer's n-th. A call that fails does not count. On a device, which counts the packets of all
// channels over a semaphore together, the k-th PutPackets on any of them must also match the peer's k-th GetPackets on
// any: the ranks take packets in the order in which they put them.
//
// Close of the channel leaves the semaphore open. A channel's call that uses neither memory nor packets is the same as
// the semaphore's.
//
// ErrArgument for memory of another kind than the semaphore's, a registration of another rank, and remote memory of
// another rank than the peer; ErrStale if either rank has closed its registration; ErrClosed if the semaphore, the
// remote memory or the communicator is closed; or the reason why the communicator broke.
func (s *Semaphore) Channel(r *ubcoll.Registration, m *ubcoll.Remote) (*Channel, error) {
	if s.nothing() {
		return nil, errNoSemaphore
	}
	local := (*inside.Registration)(r).Engine()
	end, err := s.end.Channel(local, (*inside.Remote)(m).Onesided())
	if err != nil {
		return nil, s.end.Error("channel", err)
	}
	return newChannel(end, local), nil
}

// Close ends this end, and the channels over it first. Local: it waits for this rank's calls under way; Waits among
// them return ErrClosed at once. The peer's waits return ErrClosed once they have taken the signals that were sent.
// When the peer has closed too, the semaphore's place is free for another one. On a device Close waits for what is
// queued, where waits end at once, for at most five seconds (ErrTimeout: the end is closed, and its resources follow by
// themselves). ErrClosed the second time, and after the communicator's Close or Abort.
func (s *Semaphore) Close() error {
	if s.nothing() {
		return errNoSemaphore
	}
	return s.end.Close()
}
