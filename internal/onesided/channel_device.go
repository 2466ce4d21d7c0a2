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
	return ch.openEnd(ctx, "channel", theirSlot, ch.remote, ch.deviceMemory(r))
}

// deviceMemory are the memories of ch.
func (ch *Channel) deviceMemory(r *engine.Registration) gpuend.Memory {
	return gpuend.Memory{Local: r, Remote: &ch.remote.Import, SaltOut: uint32(ch.Salt(true)), SaltIn: uint32(ch.Salt(false))}
}

// shareDevice makes the device side of ch, which is over a semaphore on a device.
func (ch *Channel) shareDevice(r *engine.Registration) error {
	var d deviceEnd
	var err error
	switch over := ch.over.device.(type) {
	case *gpuend.FarEnd:
		d, err = over.Share(farHost{&ch.over.Side, ch.remote}, ch.deviceMemory(r))
	case *gpuend.End:
		d, err = over.Share(context.Background(), ch.deviceMemory(r))
	}
	if err == nil {
		ch.device = d
	}
	return err
}

// openDevice makes the device side of s.
func (s *Semaphore) openDevice(ctx context.Context, theirSlot int) error {
	return s.openEnd(ctx, "semaphore", theirSlot, nil, gpuend.Memory{})
}

// openEnd makes the device side of e. op is for errors, and remote is nil without memory.
func (e *Side) openEnd(ctx context.Context, op string, theirSlot int, remote *Remote, m gpuend.Memory) error {
	var d deviceEnd
	var err error
	if e.far != nil {
		d, err = e.sp.device.OpenFar(gpuend.FarConfig{Owner: e.self, Op: op, Name: e.self.name(), Rank: e.peer, Host: farHost{e, remote}}, m)
	} else {
		d, err = e.sp.device.Open(ctx, gpuend.Config{Signals: e.deviceSignals(op, theirSlot), Memory: m})
	}
	if err != nil {
		return err
	}
	e.sp.mu.Lock()
	e.device = d
	e.sp.mu.Unlock()
	return nil
}

// deviceSignals are e's signals on a device. op is for errors.
func (e *Side) deviceSignals(op string, theirSlot int) gpuend.Signals {
	return gpuend.Signals{Owner: e.self, Op: op, Name: e.self.name(), Rank: e.peer, Index: e.sp.local(e.peer), Slot: e.slot, PeerSlot: theirSlot,
		PeerClosed: e.theirsClosed}
}
