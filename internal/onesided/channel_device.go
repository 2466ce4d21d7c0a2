package onesided

import (
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpuend"
	"github.com/ubcoll/ubcoll/internal/team"
)

// OnDevice reports whether the channel is between device memory; then Launch does its steps.
func (ch *Channel) OnDevice() bool { return ch.device != nil }

// Launch queues steps on s, in as few kernels as possible. Without s it uses a stream of its own, and waits for the
// steps. If any step is invalid, it queues none.
func (ch *Channel) Launch(ctx context.Context, s *engine.Stream, steps []gpuend.Step) error {
	if len(steps) == 0 {
		return nil
	}
	op := steps[0].Kind.String()
	if err := ch.Begin(ctx); err != nil {
		return ch.Error(op, err)
	}
	defer ch.End()
	for i := range steps {
		if err := ch.allows(&steps[i]); err != nil {
			return ch.Error(steps[i].Kind.String(), err)
		}
	}
	if err := ch.device.Launch(ctx, s, steps); err != nil {
		return ch.Error(op, err)
	}
	for i := range steps {
		switch k := &steps[i]; k.Kind {
		case gpuend.StepPut, gpuend.StepPutPackets, gpuend.StepGet:
			ch.countExclusive(k.Kind != gpuend.StepGet, k.N)
		}
	}
	return nil
}

// allows returns why a step is not allowed, or nil.
func (ch *Channel) allows(k *gpuend.Step) error {
	switch k.Kind {
	case gpuend.StepPut, gpuend.StepPutPackets:
		return ch.remote.Needs(engine.RemoteWrite)
	case gpuend.StepGet:
		return errors.Join(ch.remote.Needs(engine.RemoteRead), ch.Writable())
	case gpuend.StepGetPackets:
		return ch.Writable()
	}
	return nil
}

// openDevice makes the device side of ch, or returns nil if all memory is on the host. A mixture is an error. peers
// says whether the memory that the peer connects with is on a device.
func (ch *Channel) openDevice(ctx context.Context, r *engine.Registration, remote *Remote, peers bool,
	theirs *channelEnd, theirSlot int) (*gpuend.End, error) {
	claim, err := r.Acquire()
	if err != nil {
		return nil, err
	}
	mine := !claim.Memory().Device.IsHost()
	claim.Release()
	switch {
	case !mine && !peers && !remote.GPU:
		return nil, nil
	case mine != peers || mine != remote.GPU:
		return nil, fmt.Errorf("a channel between memory of a device and of the host: %w", fault.ErrArgument)
	}
	if err := ch.sp.noDevice(); err != nil {
		return nil, err
	}
	return ch.sp.device.Open(ctx, gpuend.Config{Owner: ch, Op: "channel", Name: ch.name(), Rank: ch.peer, Slot: ch.slot,
		PeerSlot: theirSlot, Local: r, Remote: &remote.Import,
		PeerClosed: func() bool { return theirs.key.Load() == ch.otherKey() && theirs.state.Load() == team.StateClosed },
		SaltOut:    uint32(ch.Salt(true)), SaltIn: uint32(ch.Salt(false))})
}
