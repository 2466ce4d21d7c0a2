package onesided

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpuend"
)

// OnDevice reports whether the end is on a device; then Launch does its steps.
func (e *Side) OnDevice() bool { return e.device != nil }

// Launch queues steps on s, in as few kernels as possible. Without s it uses a stream of its own, and waits for the
// steps. If any step is invalid, it queues none.
func (e *Side) Launch(ctx context.Context, s *engine.Stream, steps []gpuend.Step) error {
	if len(steps) == 0 {
		return nil
	}
	op := steps[0].Kind.String()
	if err := e.Begin(ctx); err != nil {
		return e.Error(op, err)
	}
	defer e.End()
	if err := e.device.Launch(ctx, s, steps); err != nil {
		return e.Error(op, err)
	}
	for i := range steps {
		switch k := &steps[i]; k.Kind {
		case gpuend.StepPut, gpuend.StepPutPackets, gpuend.StepGet:
			e.countExclusive(k.Kind != gpuend.StepGet, k.N)
		}
	}
	return nil
}

// openDevice makes the device side of ch, unless all memory is on the host. A mixture is an error. peers says whether the
// memory that the peer connects with is on a device.
func (ch *Channel) openDevice(ctx context.Context, r *engine.Registration, peers bool, theirSlot int) error {
	claim, err := r.Acquire()
	if err != nil {
		return err
	}
	mine := !claim.Memory().Device.IsHost()
	claim.Release()
	switch {
	case !mine && !peers && !ch.remote.GPU:
		return nil
	case mine != peers || mine != ch.remote.GPU:
		return fmt.Errorf("a channel between memory of a device and of the host: %w", fault.ErrArgument)
	}
	if err := ch.sp.noDevice(); err != nil {
		return err
	}
	ch.device, err = ch.sp.device.Open(ctx, gpuend.Config{Owner: ch, Op: "channel", Name: ch.name(), Rank: ch.peer, Slot: ch.slot,
		PeerSlot: theirSlot, Local: r, Remote: &ch.remote.Import, PeerClosed: ch.theirsClosed,
		SaltOut: uint32(ch.Salt(true)), SaltIn: uint32(ch.Salt(false))})
	return err
}

func (s *Semaphore) openDevice(context.Context, int) error {
	return fmt.Errorf("a semaphore on a device: %w", fault.ErrNotSupported)
}

func (ch *Channel) shareDevice(*engine.Registration, int) error { return nil }
