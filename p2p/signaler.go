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

// signaler is what a Channel and a Semaphore have in common: how their calls run, and the calls that signal.
type signaler struct {
	side   *onesided.Side
	stream *engine.Stream
	record *[]gpuend.Step // Batch's recording, or nil
	device bool           // on a device
}

func newSignaler(s *onesided.Side) signaler { return signaler{side: s, device: s.OnDevice()} }

// on returns s with its calls queued on st, or on no stream.
func (s *signaler) on(st *ubcoll.Stream) signaler {
	d := *s
	d.stream = nil
	if st != nil {
		d.stream = (*inside.Stream)(st).Engine()
	}
	return d
}

// asSteps reports whether calls are steps, which launch takes.
func (s *signaler) asSteps() bool { return s.device || s.record != nil }

// launch queues steps on a device, or records them.
func (s *signaler) launch(ctx context.Context, steps ...gpuend.Step) error {
	if s.record != nil {
		*s.record = append(*s.record, steps...)
		return nil
	}
	return s.side.Launch(engine.Context(ctx), s.stream, steps)
}

// do queues f on the stream.
func (s *signaler) do(ctx context.Context, f func(context.Context) error) error {
	return s.stream.Do(ctx, s.side.Comm(), f, nil)
}

func (s *signaler) signal(ctx context.Context, kind gpuend.StepKind) error {
	if s.asSteps() {
		return s.launch(ctx, gpuend.Step{Kind: kind})
	}
	if s.stream != nil {
		return s.do(ctx, s.signalNow)
	}
	return s.signalNow(ctx)
}

func (s *signaler) signalNow(ctx context.Context) error {
	if err := s.side.Begin(ctx); err != nil {
		return s.side.Error("signal", err)
	}
	s.side.Signal()
	s.side.End()
	return nil
}

func (s *signaler) wait(ctx context.Context) error {
	if s.asSteps() {
		return s.launch(ctx, gpuend.Step{Kind: gpuend.StepWait})
	}
	if s.stream != nil {
		return s.do(ctx, s.waitNow)
	}
	return s.waitNow(ctx)
}

func (s *signaler) waitNow(ctx context.Context) error {
	if err := s.side.Begin(ctx); err != nil {
		return s.side.Error("wait", err)
	}
	err := s.side.Wait(ctx)
	s.side.End()
	if err != nil {
		return s.side.Error("wait", err)
	}
	return nil
}

func (s *signaler) poll() (bool, error) {
	switch {
	case s.record != nil:
		return false, s.side.Error("poll", fmt.Errorf("in a batch: %w", fault.ErrArgument))
	case s.device:
		return false, s.side.Error("poll", fmt.Errorf("signals on a device: %w", fault.ErrNotSupported))
	}
	if err := s.side.BeginLook(); err != nil {
		return false, s.side.Error("poll", err)
	}
	s.side.PollFar()
	ok, err := s.side.Poll()
	s.side.End()
	if err != nil {
		return false, s.side.Error("poll", err)
	}
	return ok, nil
}
