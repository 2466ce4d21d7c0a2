package gpuend

import (
	"context"
	"errors"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// farRun is steps of a far end that run together.
type farRun struct {
	e      *FarEnd
	steps  []Step
	place  place
	stage  *gpu.Pinned
	room   int         // bytes there
	copier *gpu.Copier // nil for a call without a stream
}

// order takes r's place.
func (r *farRun) order() {
	side := sideOf(r.steps)
	r.place = r.e.next(side != kernels.SideIn, side != kernels.SideOut)
}

// await waits for the place.
func (r *farRun) await(ctx context.Context) error {
	for pause := time.Microsecond; !r.place.there(); pause = min(2*pause, time.Millisecond) {
		switch b := r.e.t.c.Broken(); {
		case b != nil:
			return b
		case ctx.Err() != nil:
			return reason.Ended(ctx)
		}
		time.Sleep(pause)
	}
	return nil
}

// now does the steps of a blocking call.
func (r *farRun) now(ctx context.Context) error {
	r.order()
	defer r.place.end()
	if err := r.await(ctx); err != nil {
		return err
	}
	if err := r.e.err(); err != nil {
		return err
	}
	return r.do(ctx)
}

// queue queues the steps on s, whose part on the device is on.
func (r *farRun) queue(ctx context.Context, s *engine.Stream, on *gpu.Stream) error {
	e, d := r.e, r.e.t.d
	captured := on.Captured()
	bytes := 0
	for i := range r.steps {
		bytes += r.steps[i].N
	}
	var err error
	if r.copier, err = d.Proxy.NewCopier(bytes, captured); err != nil {
		return err
	}
	on.Enter(d, d.Domain)
	d.Watch()
	if captured {
		if err := r.launch(on); err != nil {
			return r.refused(err)
		}
		k := *r
		d.Proxy.Keep(r.copier, func() (func() error, error) {
			r := k
			if err := e.begin(); err != nil {
				return nil, e.error("launch", err)
			}
			r.order()
			return func() error { return r.run(context.Background(), d.Report) }, nil
		})
		return nil
	}
	return s.Proxy(ctx, e.t.c, func() error {
		if err := e.begin(); err != nil {
			r.copier.GiveBack()
			return err
		}
		r.order() // here, so that it is the same order as that of the kernels on the stream
		if err := r.launch(on); err != nil {
			r.place.end()
			e.runs.Done()
			return r.refused(err)
		}
		return nil
	}, func(ctx context.Context) error {
		return r.run(ctx, func(err error) {
			c := e.t.c
			if e.err() != nil { // later calls return it, too
				c = nil
			}
			s.AddError(c, err)
		})
	})
}

// launch queues the kernel.
func (r *farRun) launch(on *gpu.Stream) error {
	done, err := r.e.t.d.Domain.BeginQueueing(on)
	if err != nil {
		return err
	}
	defer done()
	return on.Use(func(cu *cuda.Stream) error {
		on.Follows(0, 0)
		return r.copier.Launch(cu)
	})
}

// refused returns the error of a kernel that could not be queued. A closed stream is the caller's error, and breaks nothing.
func (r *farRun) refused(err error) error {
	if errors.Is(err, fault.ErrClosed) || errors.Is(err, fault.ErrLimit) {
		r.copier.GiveBack()
		return err
	}
	return r.broke(err)
}

// broke breaks the communicator with an error of the driver, or of a kernel.
func (r *farRun) broke(err error) error {
	r.e.t.d.FailDevice(r.e.Op, err)
	return err
}

// run does the steps in the place of the kernel. tell takes their error, before the kernel ends, and so a Sync.
func (r *farRun) run(ctx context.Context, tell func(error)) error {
	e, p, c := r.e, &r.e.t.d.Proxy, r.e.t.c
	defer e.runs.Done()
	err := p.Begin(context.Background(), r.copier, nil)
	if err == nil {
		err = r.await(context.Background())
	}
	if err == nil && e.err() == nil {
		if did := r.do(ctx); did != nil && c.Broken() == nil {
			tell(did)
		}
	}
	r.place.end()
	r.copier.Copy(0, 0, 0, true)
	if ended := p.End(r.copier, nil); err == nil {
		err = ended
	}
	if err != nil && c.Broken() == nil {
		r.broke(err)
	}
	return nil
}

// do does the steps in their order. The first error ends that.
func (r *farRun) do(ctx context.Context) error {
	e, h := r.e, r.e.Host
	for i := range r.steps {
		s := &r.steps[i]
		var err error
		switch s.Kind {
		case StepPut:
			err = r.put(ctx, s)
		case StepGet:
			err = r.get(ctx, s)
		case StepSignal, StepRelaxedSignal:
			err = h.Signal(ctx)
		case StepFlush:
			err = h.Flush(ctx)
		case StepWait:
			if err = h.Wait(ctx); err != nil {
				err = e.error("wait", err)
				if e.Owner.Err() == nil { // else what is queued besides waits is still done
					e.fail(err)
				}
			}
		}
		if err != nil {
			return e.error(s.Kind.String(), err)
		}
	}
	return nil
}

// pieces calls f for each piece of n bytes, with where it has room, in one of two halves of the stage if they are more than one.
func (r *farRun) pieces(n int, f func(half, off, n int, host unsafe.Pointer, at cuda.Addr) error) error {
	piece := max(n, 1)
	if n > r.room {
		piece = r.room / 2
	}
	for i, off := 0, 0; off < n; i, off = i+1, off+piece {
		at := i % 2 * piece
		if err := f(i%2, off, min(piece, n-off), unsafe.Add(r.stage.Ptr(), at), r.stage.At()+cuda.Addr(at)); err != nil {
			return err
		}
	}
	return nil
}

// put copies each piece to the host while the one before is sent.
func (r *farRun) put(ctx context.Context, s *Step) error {
	if done, err := r.e.Host.PutDevice(ctx, s.Dst, r.local(s.Src), s.N); done || err != nil {
		return err
	}
	var last struct {
		off, n int
		host   unsafe.Pointer
		copy   uint64
	}
	send := func() error {
		if last.n == 0 {
			return nil
		}
		if err := r.copied(last.copy); err != nil {
			return err
		}
		return r.e.Host.Put(ctx, s.Dst+last.off, last.host, last.n)
	}
	err := r.pieces(s.N, func(_, off, n int, host unsafe.Pointer, at cuda.Addr) error {
		copy, err := r.copy(r.e.localAddr+cuda.Addr(s.Src+off), host, at, n, false)
		if err == nil {
			err = send()
		}
		last.off, last.n, last.host, last.copy = off, n, host, copy
		return err
	})
	if err != nil {
		return err
	}
	return send()
}

// get copies each piece to the device while the next one comes.
func (r *farRun) get(ctx context.Context, s *Step) error {
	if r.e.t.d.Domain.Ordered() {
		if done, err := r.e.Host.GetDevice(ctx, s.Src, r.local(s.Dst), s.N); done || err != nil {
			return err
		}
	}
	var copies [2]uint64
	err := r.pieces(s.N, func(half, off, n int, host unsafe.Pointer, at cuda.Addr) error {
		err := r.copied(copies[half])
		if err == nil {
			err = r.e.Host.Get(ctx, s.Src+off, host, n)
		}
		if err == nil {
			copies[half], err = r.copy(r.e.localAddr+cuda.Addr(s.Dst+off), host, at, n, true)
		}
		return err
	})
	for _, k := range copies {
		if err == nil {
			err = r.copied(k)
		}
	}
	return err
}

// local is this rank's memory at off, on the device.
func (r *farRun) local(off int) unsafe.Pointer {
	at := r.e.localAddr + cuda.Addr(off)
	return *(*unsafe.Pointer)(unsafe.Pointer(&at))
}

// copy begins to copy n bytes between the device and the stage, which is at host, and at `at` for the device.
func (r *farRun) copy(device cuda.Addr, host unsafe.Pointer, at cuda.Addr, n int, in bool) (uint64, error) {
	switch {
	case r.copier == nil:
		if err := r.e.t.d.Domain.Copy(device, unsafe.Slice((*byte)(host), n), in); err != nil {
			return 0, r.broke(err)
		}
		return 0, nil
	case in:
		return r.copier.Copy(device, at, n, false), nil
	}
	return r.copier.Copy(at, device, n, false), nil
}

// copied waits until a copy is done.
func (r *farRun) copied(copy uint64) error {
	if r.copier == nil || copy == 0 {
		return nil
	}
	err := r.e.t.d.Proxy.Done(r.copier, copy)
	if err != nil && r.e.t.c.Broken() == nil {
		return r.broke(err)
	}
	return err
}
