package gpuend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// Launch queues steps on s, in as few kernels as possible. Without s it uses a stream of the end's own, and waits for the
// steps. If any step is invalid or not allowed, it queues none. Any goroutine may call it.
func (e *End) Launch(ctx context.Context, s *engine.Stream, steps []Step) error {
	var touched [16]touch
	all, err := e.check(steps, touched[:0])
	if err != nil {
		return err
	}
	return e.submit(ctx, s, steps, all)
}

// submit is Launch for steps that use the memory `all`, which has been checked.
func (e *End) submit(ctx context.Context, s *engine.Stream, steps []Step, all []touch) error {
	if err := e.registered(); err != nil {
		return err
	}
	on, err := e.t.stream(s)
	if err != nil {
		return err
	}
	own, side := on == nil, sideOf(steps)
	e.launching.Lock()
	var most int
	if on, err = e.ready(on, side, steps); err == nil {
		most, err = e.room(on, side, steps)
	}
	var end func()
	if err == nil {
		end, err = e.d.Domain.BeginQueueing(on)
	}
	if err == nil {
		err = e.queue(on, steps, all, uint32(side), most)
		end()
		if err != nil {
			err = e.failedWith(err)
		}
	}
	e.launching.Unlock()
	if err != nil || !own {
		return err
	}
	return e.wait(ctx, on)
}

// ready returns the stream on which to queue steps, or an error if the peer has taken back memory that they use, or the
// end has ended. The caller holds launching until the steps are queued, so that watch does not give up the memory
// meanwhile.
func (e *End) ready(s *gpu.Stream, side int, steps []Step) (*gpu.Stream, error) {
	for i := range steps {
		k := steps[i].Kind
		if e.Index != e.c.Team().Rank() && (k == StepPut || k == StepGet || k == StepPutPackets) {
			if err := e.Remote.Live(); err != nil {
				return nil, err
			}
		}
	}
	if err := e.err(); err != nil || s != nil {
		return s, err
	}
	if e.own[side] == nil {
		own, err := e.d.Domain.NewStream()
		if err != nil {
			return nil, err
		}
		e.own[side] = own
	}
	return e.own[side], nil
}

// room returns how many blocks kernels of steps may have on s. Those that wait must leave room for what their peers wait
// for.
func (e *End) room(s *gpu.Stream, side int, steps []Step) (most int, err error) {
	switch {
	case uint32(side) == kernels.SideOut:
		return kernels.ChannelGrid, nil
	case e.d.Domain.Sharers > 1:
		for i := range steps {
			most = max(most, steps[i].blocks(e.d.Room.Channels))
		}
		return e.d.AdmitWait(s, most)
	case !s.Captured() && e.d.RunsConcurrently(s):
		return e.d.Room.Channels, nil
	}
	return kernels.ChannelGrid, nil
}

// queue queues steps as kernels of at most that many blocks. It starts a new kernel where a step uses memory that an
// earlier step uses, unless both only read it: in a kernel, only signals wait for all blocks. The caller holds launching.
func (e *End) queue(s *gpu.Stream, steps []Step, all []touch, side uint32, most int) error {
	e.streams[s] = true
	e.enter(s)
	e.d.Watch()
	return s.Use(func(cu *cuda.Stream) error {
		e.captured = e.captured || s.Capturing()
		early := e.d.Domain.Context.Early() && s.TakesEarly()
		if err := e.order(s, cu, side); err != nil {
			return err
		}
		for from := 0; from < len(steps); {
			if k := steps[from].Kind; steps[from].N >= gpu.CopyEngineMin && (k == StepPut || k == StepGet) {
				dst, src := e.addresses(&steps[from])
				if err := cu.Copy(dst, src, steps[from].N); err != nil {
					return err
				}
				from++
				continue
			}
			to := from
			for ; to < len(steps) && to-from < kernels.MaxSteps; to++ {
				if k := steps[to].Kind; steps[to].N >= gpu.CopyEngineMin && (k == StepPut || k == StepGet) {
					break
				}
				clash := false
				for i := from; i < to; i++ {
					clash = clash || all[to].meets(&all[i])
				}
				if clash {
					break
				}
			}
			if err := e.kernel(s, cu, steps[from:to], side, most, early); err != nil {
				return err
			}
			from = to
		}
		return nil
	})
}

// order makes the next work on s start after the work that the same side of the end queued on other streams. The
// side's kernels must run in the order of the calls, because they count its signals.
func (e *End) order(s *gpu.Stream, cu *cuda.Stream, side uint32) error {
	if s.Capturing() { // users order captured work themselves
		return nil
	}
	if err := e.follow(s, cu, side); err != nil {
		return err
	}
	e.last[side] = s
	return nil
}

// follow is order for work that is not the end's.
func (e *End) follow(s *gpu.Stream, cu *cuda.Stream, side uint32) error {
	for k, last := range e.last {
		if last == nil || last == s || uint32(k) != side && k != kernels.SideBoth && side != kernels.SideBoth {
			continue
		}
		ev := &e.events[k] // one for each side, since sides run at the same time
		if *ev == nil {
			var err error
			if *ev, err = e.d.Domain.Context.NewEvent(false); err != nil {
				return err
			}
		}
		if err := last.Before(cu, *ev); err != nil {
			return err
		}
	}
	return nil
}

// failedWith breaks the communicator with a driver's error. A closed stream is the caller's error, and breaks nothing.
func (e *End) failedWith(err error) error {
	if !errors.Is(err, fault.ErrClosed) {
		e.d.FailDevice(e.Op, err)
	}
	return err
}

// drain waits until all puts, gets and signals are done.
func (e *End) drain(ctx context.Context) error {
	e.launching.Lock()
	last := e.last
	e.launching.Unlock()
	for k, s := range last {
		if s == nil || k == kernels.SideIn {
			continue
		}
		var early error
		err := s.Await(func(time.Duration) error {
			early = e.stopped(ctx)
			return early
		})
		if early != nil {
			return early
		}
		if err != nil {
			return e.failedWith(err)
		}
	}
	return e.err()
}

// stopped returns why this rank must stop waiting, or nil.
func (e *End) stopped(ctx context.Context) error {
	if ctx.Err() != nil {
		return reason.Ended(ctx)
	}
	return e.Owner.Err()
}

// wait waits until the steps of a blocking call are done.
func (e *End) wait(ctx context.Context, s *gpu.Stream) error {
	c := e.c
	err := s.Await(func(waited time.Duration) error {
		if why := e.stopped(ctx); why != nil {
			e.fail(why)
		}
		if waited > c.Options().Timeout+gpu.WaitGrace {
			return fmt.Errorf("what is queued has not ended after %v: %w", waited.Round(time.Second), fault.ErrTimeout)
		}
		return nil
	})
	if err != nil {
		return e.failedWith(err)
	}
	return e.err()
}
