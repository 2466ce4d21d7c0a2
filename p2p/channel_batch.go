package p2p

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpuend"
)

// Batch runs the operations that f calls on its argument, in order, as one; f only records them. Over device memory
// they are one kernel if there are at most eight and none touches bytes that another one writes; otherwise they are as
// few kernels as possible, and Batch finds a bad argument before it runs any of them. On host memory they run one after
// the other, and the first error ends the batch. On a view made by On, the whole batch is queued. If f returns an
// error, Batch returns it and runs nothing. ErrArgument inside another batch; otherwise the errors of the calls.
func (ch *Channel) Batch(ctx context.Context, f func(b *Channel) error) error {
	switch {
	case ch.nothing():
		return errNoChannel
	case ch.record != nil:
		return ch.end.Error("batch", fmt.Errorf("in a batch: %w", fault.ErrArgument))
	case f == nil:
		return ch.end.Error("batch", fmt.Errorf("the function that makes the calls is nil: %w", fault.ErrArgument))
	}
	var steps []gpuend.Step
	b := *ch
	b.record = &steps
	if err := f(&b); err != nil {
		return err
	}
	ctx = engine.Context(ctx)
	switch {
	case ch.device:
		return ch.launch(ctx, steps...)
	case ch.stream != nil:
		return ch.do(ctx, func(ctx context.Context) error { return ch.stepsNow(ctx, steps) })
	}
	return ch.stepsNow(ctx, steps)
}

// stepsNow runs steps on host memory.
func (ch *Channel) stepsNow(ctx context.Context, steps []gpuend.Step) error {
	for _, s := range steps {
		var err error
		switch s.Kind {
		case gpuend.StepPut:
			err = ch.copyNow(ctx, transfer{"put", s.Src, s.Dst, s.N, true, false})
		case gpuend.StepGet:
			err = ch.copyNow(ctx, transfer{"get", s.Dst, s.Src, s.N, false, false})
		case gpuend.StepSignal, gpuend.StepRelaxedSignal:
			err = ch.signalNow(ctx)
		case gpuend.StepWait:
			err = ch.waitNow(ctx)
		case gpuend.StepPutPackets:
			err = ch.putPackets(ctx, s.Dst, s.Src, s.N, PacketWidth(s.Width))
		case gpuend.StepGetPackets:
			err = ch.getPackets(ctx, s.Dst, s.Src, s.N, PacketWidth(s.Width))
		case gpuend.StepFlush:
			err = ch.flush(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// steps returns the steps of t.
func (t transfer) steps() []gpuend.Step {
	s := gpuend.Step{Kind: gpuend.StepPut, Dst: t.remote, Src: t.local, N: t.n}
	if !t.put {
		s.Kind, s.Dst, s.Src = gpuend.StepGet, t.local, t.remote
	}
	if t.signal {
		return []gpuend.Step{s, {Kind: gpuend.StepSignal}}
	}
	return []gpuend.Step{s}
}
