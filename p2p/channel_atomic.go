package p2p

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/onesided"
)

// FetchAdd adds to the 8-byte word at dstOff of the peer's memory, and returns what the word was. The addition is atomic
// with regard to other atomics on the word, of any rank, and to those of package sync/atomic of the word's owner, but not to
// those of a window whose atomics an RDMA device does ([ubcoll.Window.FetchAdd]). Local; on
// one host it waits for nobody, between hosts for the answer of the owner, whose processor executes it. It runs in the order of
// this end's puts, gets and signals. The peer must have registered the memory
// with [ubcoll.AccessRemoteAtomic].
//
// ErrArgument without that right, for a word outside the peer's memory or not aligned to 8 bytes, in a Batch, and on a
// view made by On, because it returns a value. ErrNotSupported on memory of devices. ErrStale if the peer has closed its
// registration, ErrClosed, or the reason why the communicator broke; then nothing has been added. But if the answer of a
// rank of another host does not come, the error says that the outcome is unknown: it may have been added, and is not tried
// again. Source: InfiniBand's
// fetch-and-add (IBTA 9.4.5), which verbs calls IBV_WR_ATOMIC_FETCH_AND_ADD.
func (ch *Channel) FetchAdd(ctx context.Context, dstOff int, add uint64) (uint64, error) {
	return ch.atomic(ctx, dstOff, &onesided.AtomicOp{Name: "fetch_add", Add: add})
}

// CompareAndSwap sets the 8-byte word at dstOff of the peer's memory to new if it is old, and returns what the word was:
// old if it was set. Everything else is as with [Channel.FetchAdd].
func (ch *Channel) CompareAndSwap(ctx context.Context, dstOff int, old, new uint64) (uint64, error) {
	return ch.atomic(ctx, dstOff, &onesided.AtomicOp{Name: "compare_and_swap", Swap: true, Old: old, New: new})
}

func (ch *Channel) atomic(ctx context.Context, off int, op *onesided.AtomicOp) (uint64, error) {
	switch {
	case ch.nothing():
		return 0, errNoChannel
	case ch.device:
		return 0, ch.end.Error(op.Name, fmt.Errorf("atomics on memory of devices: %w", fault.ErrNotSupported))
	case ch.record != nil:
		return 0, ch.end.Error(op.Name, fmt.Errorf("it returns a value, so it cannot be in a batch: %w", fault.ErrArgument))
	case ch.stream != nil:
		return 0, ch.end.Error(op.Name, fmt.Errorf("it returns a value, so it cannot be queued on a stream: %w",
			fault.ErrArgument))
	}
	if err := ch.end.Begin(ctx); err != nil {
		return 0, ch.end.Error(op.Name, err)
	}
	was, err := ch.end.Atomic(ctx, off, op)
	ch.end.End()
	if err != nil {
		return 0, ch.end.Error(op.Name, err)
	}
	return was, nil
}
