package onesided

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

func (g *gpuEnd) launch(ctx context.Context, s *engine.Stream, steps []Step) error {
	var touched [16]touch
	all := touched[:0]
	for i := range steps {
		t, err := g.touches(&steps[i])
		if err != nil {
			return err
		}
		all = append(all, t)
	}
	return g.submit(ctx, s, steps, all)
}

// submit is launch for steps that use the memory `all`, which has been checked.
func (g *gpuEnd) submit(ctx context.Context, s *engine.Stream, steps []Step, all []touch) error {
	claim, err := g.r.Acquire()
	if err != nil {
		return err
	}
	claim.Release() // the end has its own claim
	on, err := queues(g.c, s)
	if err != nil {
		return err
	}
	own, side := on == nil, sideOf(steps)
	g.launching.Lock()
	var most int
	if on, err = g.ready(on, side, steps); err == nil {
		most, err = g.room(on, side, steps)
	}
	if err == nil {
		err = g.d.Domain.BeginQueueing(on)
	}
	if err == nil {
		err = g.queue(on, steps, all, uint32(side), most)
		g.d.Domain.EndQueueing()
		if err != nil {
			err = g.failedWith(err)
		}
	}
	g.launching.Unlock()
	if err != nil || !own {
		return err
	}
	return g.wait(ctx, on)
}

// queues returns the device's stream behind s; nil if s is nil. Work queued there needs no turn of the communicator.
func queues(c *engine.Comm, s *engine.Stream) (*gpu.Stream, error) {
	on := gpu.StreamOf(s)
	switch {
	case s == nil:
		return nil, nil
	case on == nil:
		return nil, fmt.Errorf("memory on %v, and the stream is on %v: %w", gpu.DeviceOf(c).Domain.Context.Device(), s.Device(),
			fault.ErrArgument)
	}
	return on, c.CheckDevice(s.Device())
}

// ready returns the stream on which to queue steps, or an error if the peer has taken back memory that they use, or the
// end has ended. The caller holds launching until the steps are queued, so that watch does not give up the memory
// meanwhile.
func (g *gpuEnd) ready(s *gpu.Stream, side int, steps []Step) (*gpu.Stream, error) {
	for i := range steps {
		k := steps[i].Kind
		if g.rank != g.c.Rank() && (k == StepPut || k == StepGet || k == StepPutPackets) {
			if err := g.remote.live(); err != nil {
				return nil, err
			}
		}
	}
	if err := g.told(); err != nil || s != nil {
		return s, err
	}
	if g.own[side] == nil {
		own, err := gpu.NewStream(g.d.Domain.Context)
		if err != nil {
			return nil, err
		}
		g.own[side] = own
	}
	return g.own[side], nil
}

// room returns how many blocks kernels of steps may have on s. Those that wait must leave room for what their peers wait
// for.
func (g *gpuEnd) room(s *gpu.Stream, side int, steps []Step) (most int, err error) {
	switch {
	case uint32(side) == kernels.SideOut:
		return kernels.ChannelGrid, nil
	case g.d.Domain.Sharers > 1:
		for i := range steps {
			most = max(most, steps[i].blocks(g.d.Room.Channels))
		}
		return g.d.AdmitWait(s, most)
	case !s.Captured() && g.d.RunsConcurrently(s):
		return g.d.Room.Channels, nil
	}
	return kernels.ChannelGrid, nil
}

// queue queues steps as kernels of at most that many blocks. It starts a new kernel where a step uses memory that an earlier step uses, unless both only read
// it: in a kernel, only signals wait for all blocks. The caller holds launching.
func (g *gpuEnd) queue(s *gpu.Stream, steps []Step, all []touch, side uint32, most int) error {
	if !g.streams[s] {
		g.streams[s] = true
		s.Enter(endUser{g}, g.d.Domain)
	}
	g.d.Watch()
	return s.Use(func(cu *cuda.Stream) error {
		g.captured = g.captured || s.Capturing()
		early := g.d.Domain.Context.Early() && s.TakesEarly()
		if err := g.order(s, cu, side); err != nil {
			return err
		}
		for from := 0; from < len(steps); {
			if k := steps[from].Kind; steps[from].N >= gpu.CopyEngineMin && (k == StepPut || k == StepGet) {
				dst, src := g.addresses(&steps[from])
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
			if err := g.kernel(s, cu, steps[from:to], side, most, early); err != nil {
				return err
			}
			from = to
		}
		return nil
	})
}

// order makes the next work on s start after the work that the same side of the channel queued on other streams. The
// side's kernels must run in the order of the calls, because they count its signals.
func (g *gpuEnd) order(s *gpu.Stream, cu *cuda.Stream, side uint32) error {
	if s.Capturing() { // users order captured work themselves
		return nil
	}
	if err := g.follow(s, cu, side); err != nil {
		return err
	}
	g.last[side] = s
	return nil
}

// follow is order for work that does not belong to the channel.
func (g *gpuEnd) follow(s *gpu.Stream, cu *cuda.Stream, side uint32) error {
	for k, last := range g.last {
		if last == nil || last == s || uint32(k) != side && k != kernels.SideBoth && side != kernels.SideBoth {
			continue
		}
		e := &g.events[k] // one for each side, since sides run at the same time
		if *e == nil {
			var err error
			if *e, err = g.d.Domain.Context.NewEvent(false); err != nil {
				return err
			}
		}
		if err := last.Before(cu, *e); err != nil {
			return err
		}
	}
	return nil
}

// failedWith breaks the communicator with a driver's error. A closed stream is the caller's error, and breaks nothing.
func (g *gpuEnd) failedWith(err error) error {
	if !errors.Is(err, fault.ErrClosed) {
		g.d.FailDevice(g.op, err)
	}
	return err
}

// drain waits until all puts, gets and signals are done.
func (g *gpuEnd) drain(ctx context.Context) error {
	g.launching.Lock()
	last := g.last
	g.launching.Unlock()
	for k, s := range last {
		if s == nil || k == kernels.SideIn {
			continue
		}
		var early error
		err := s.Await(func(time.Duration) error {
			early = g.stopped(ctx)
			return early
		})
		if early != nil {
			return early
		}
		if err != nil {
			return g.failedWith(err)
		}
	}
	return g.told()
}

// stopped returns why this rank must stop waiting, or nil.
func (g *gpuEnd) stopped(ctx context.Context) error {
	if ctx.Err() != nil {
		return reason.Ended(ctx)
	}
	return closedMeanwhile(g.c, g.of)
}

// wait waits until the steps of a blocking call are done.
func (g *gpuEnd) wait(ctx context.Context, s *gpu.Stream) error {
	c := g.c
	err := s.Await(func(waited time.Duration) error {
		if why := g.stopped(ctx); why != nil {
			g.fail(why)
		}
		if waited > c.Options().Timeout+gpu.WaitGrace {
			return fmt.Errorf("what is queued has not ended after %v: %w", waited.Round(time.Second), fault.ErrTimeout)
		}
		return nil
	})
	if err != nil {
		return g.failedWith(err)
	}
	return g.told()
}
