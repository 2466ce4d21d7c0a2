package onesided

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// OnDevice reports whether the channel is between device memory; then Launch does its steps.
func (ch *Channel) OnDevice() bool { return ch.gpu != nil }

// Launch queues steps on s, in as few kernels as possible. Without s it uses a stream of its own, and waits for the
// steps. If any step is invalid, it queues none.
func (ch *Channel) Launch(ctx context.Context, s *engine.Stream, steps []Step) error {
	if len(steps) == 0 {
		return nil
	}
	op := stepNames[steps[0].Kind]
	if err := ch.Begin(ctx); err != nil {
		return ch.Error(op, err)
	}
	defer ch.End()
	if err := ch.gpu.launch(ctx, s, steps); err != nil {
		return ch.Error(op, err)
	}
	for i := range steps {
		switch k := &steps[i]; k.Kind {
		case StepPut, StepPutPackets, StepGet:
			ch.countAlone(k.Kind != StepGet, k.N)
		}
	}
	return nil
}

// openGPU makes the device side of ch, or returns nil if all memory is on the host. A mixture is an error.
func (ch *Channel) openGPU(ctx context.Context, r *engine.Registration, remote *Remote, peers bool,
	theirs *channelEnd, theirSlot int) (*gpuEnd, error) {
	claim, err := r.Acquire()
	if err != nil {
		return nil, err
	}
	mine := !claim.Memory().Device.IsHost()
	claim.Release()
	switch {
	case !mine && !peers && !remote.gpu:
		return nil, nil
	case mine != peers || mine != remote.gpu:
		return nil, fmt.Errorf("a channel between memory of a device and of the host: %w", fault.ErrArgument)
	}
	g := &gpuEnd{sp: ch.sp, c: ch.c, of: ch, op: "channel", name: ch.name(), rank: ch.peer, r: r, remote: remote,
		gone: func() bool { return theirs.key.Load() == ch.otherKey() && theirs.state.Load() == team.StateClosed }}
	if err := g.open(ctx, ch.slot, theirSlot, ch.Salt); err != nil {
		return nil, err
	}
	return g, nil
}
