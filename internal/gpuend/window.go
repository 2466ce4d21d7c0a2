package gpuend

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Window is the ends of a window over device memory: one towards every rank, including this one.
type Window struct {
	t    *Table
	part team.Vec      // this rank's
	ends []*End        // by rank
	kept engine.Keeper // other memory that users' captures put or get
}

// NewWindow makes a Window without ends. part is this rank's part of the window.
func (t *Table) NewWindow(part team.Vec) *Window { return &Window{t: t, part: part} }

// Open opens the end towards the next rank. The other calls but Discard are for a Window with all ends.
func (w *Window) Open(ctx context.Context, k Config) error {
	e, err := w.t.Open(ctx, k)
	if err == nil {
		w.ends = append(w.ends, e)
	}
	return err
}

// Discard releases the ends of a window that was not completed.
func (w *Window) Discard() error {
	var errs []error
	for _, e := range w.ends {
		errs = append(errs, e.release())
	}
	return errors.Join(errs...)
}

// Close is End.Close for all ends. Peers can no longer use the memory; those that wait find out by PeerClosed of their
// own ends.
func (w *Window) Close(quick bool) error {
	var errs []error
	for _, e := range w.ends {
		e.EndWaits()
	}
	for _, e := range w.ends {
		errs = append(errs, e.closeFailed(quick))
	}
	return errors.Join(append(errs, w.kept.Close())...)
}

// Copy copies all of v to offset off in a rank's part, or from there to v, by a kernel or a copy engine, on s or a
// stream of the end's own.
func (w *Window) Copy(ctx context.Context, s *engine.Stream, rank, off int, v team.Vec, put bool) error {
	e, c, n := w.ends[rank], w.t.c, v.Bytes()
	if most := e.Remote.Bytes; off < 0 || off > most || n > most-off {
		return engine.OutsideError(off, n, most, fmt.Sprintf("rank %d's memory", rank))
	}
	if err := c.CheckDevice(v.Dev); err != nil {
		return err
	}
	// Offsets of a step count from the beginning of this rank's part; v may begin before that.
	local := int(uintptr(v.Ptr)) - int(e.localAddr)
	if apart := local - off; rank == c.Rank() && apart != 0 && apart < n && -apart < n {
		return fmt.Errorf("bytes [%d,+%d) of this rank's own part overlap what is copied: %w", off, n,
			fault.ErrArgument)
	}
	if a := c.Allocation(v); a != nil && n > 0 {
		// After it is queued, anything that frees the memory first waits for the stream.
		if !a.Hold() {
			return fmt.Errorf("the buffer at %p has been freed: %w", v.Ptr, fault.ErrStale)
		}
		defer a.Release()
		if on := gpu.StreamOf(s); on != nil && on.Capturing() {
			if err := w.keep(a); err != nil {
				return err
			}
		}
	}
	step := Step{Kind: StepPut, Dst: off, Src: local, N: n}
	if !put {
		step = Step{Kind: StepGet, Dst: local, Src: off, N: n}
	}
	return w.step(ctx, s, rank, step)
}

// Signal signals a rank or waits for its signal, as kind says, on s or a stream of the end's own.
func (w *Window) Signal(ctx context.Context, s *engine.Stream, rank int, kind StepKind) error {
	return w.step(ctx, s, rank, Step{Kind: kind})
}

// step does one step towards a rank.
func (w *Window) step(ctx context.Context, s *engine.Stream, rank int, step Step) error {
	return w.ends[rank].submit(ctx, s, []Step{step}, make([]touch, 1))
}

// keep registers a until the window is closed, because a user's capture uses a and may be replayed at any time.
func (w *Window) keep(a *mem.Allocation) error {
	if a == w.t.c.Allocation(w.part) {
		return nil
	}
	return w.kept.Keep(w.t.c, a)
}

// Flush makes the next work on s start after all puts and gets; without s it waits for them.
func (w *Window) Flush(ctx context.Context, s *engine.Stream) error {
	on, err := w.t.stream(s)
	if err != nil {
		return err
	}
	for _, e := range w.ends {
		if err := e.err(); err != nil {
			return err
		}
		if on == nil {
			if err := e.drain(ctx); err != nil {
				return err
			}
			continue
		}
		e.launching.Lock()
		err := on.Use(func(cu *cuda.Stream) error {
			if on.Capturing() {
				return nil
			}
			return e.follow(on, cu, kernels.SideOut)
		})
		e.launching.Unlock()
		if err != nil {
			return e.failedWith(err)
		}
	}
	return nil
}

// Part returns a rank's part as this rank has it mapped.
func (w *Window) Part(rank int) team.Vec {
	return team.Vec{Ptr: *(*unsafe.Pointer)(unsafe.Pointer(&w.ends[rank].remoteAddr)), Len: w.part.Len, Type: w.part.Type,
		Dev: w.part.Dev}
}
