package gpuend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Window is the ends of a window over device memory: one towards every rank of the team, including this one, and one towards
// each rank of another host that was used.
type Window struct {
	t    *Table
	part team.Vec      // this rank's
	ends []*End        // by the team's rank
	kept engine.Keeper // other memory that users' captures put or get

	mu  sync.Mutex
	far map[int]*FarEnd // by rank
}

// NewWindow makes a Window without ends. part is this rank's part of the window.
func (t *Table) NewWindow(part team.Vec) *Window {
	return &Window{t: t, part: part, far: map[int]*FarEnd{}}
}

// Open opens the end towards the next rank of the team. The other calls but Discard are for a Window with all ends.
func (w *Window) Open(ctx context.Context, k Config) error {
	e, err := w.t.Open(ctx, k)
	if err == nil {
		w.ends = append(w.ends, e)
	}
	return err
}

// Far returns the end towards a rank of another host, which it opens the first time.
func (w *Window) Far(k FarConfig, m Memory) (*FarEnd, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.far[k.Rank]; e != nil {
		return e, nil
	}
	e, err := w.t.OpenFar(k, m)
	if err == nil {
		w.far[k.Rank] = e
	}
	return e, err
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
	for _, e := range w.far { // nothing uses the window any more
		errs = append(errs, e.Close(quick))
	}
	return errors.Join(append(errs, w.kept.Close())...)
}

// A WindowEnd is an end of a window towards one rank.
type WindowEnd interface {
	memory() *memories
	submit(ctx context.Context, s *engine.Stream, steps []Step, all []touch) error
}

func (e *End) memory() *memories    { return &e.memories }
func (e *FarEnd) memory() *memories { return &e.memories }

// End returns the end towards a rank of the team.
func (w *Window) End(index int) WindowEnd { return w.ends[index] }

// Copy copies all of v to offset off in the part of an end's rank, or from there to v, on s or a stream of the end's own.
func (w *Window) Copy(ctx context.Context, s *engine.Stream, to WindowEnd, off int, v team.Vec, put bool) error {
	e, c, n := to.memory(), w.t.c, v.Bytes()
	if most := e.Remote.Bytes; off < 0 || off > most || n > most-off {
		return engine.OutsideError(off, n, most, fmt.Sprintf("rank %d's memory", e.peer))
	}
	if err := c.CheckDevice(v.Dev); err != nil {
		return err
	}
	// Offsets of a step count from the beginning of this rank's part; v may begin before that.
	local := int(uintptr(v.Ptr)) - int(e.localAddr)
	if apart := local - off; e.peer == c.Rank() && apart != 0 && apart < n && -apart < n {
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
	return to.submit(ctx, s, []Step{step}, make([]touch, 1))
}

// Signal signals an end's rank or waits for its signal, as kind says, on s or a stream of the end's own.
func (w *Window) Signal(ctx context.Context, s *engine.Stream, to WindowEnd, kind StepKind) error {
	return to.submit(ctx, s, []Step{{Kind: kind}}, make([]touch, 1))
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
	w.mu.Lock()
	far := slices.SortedFunc(maps.Values(w.far), func(a, b *FarEnd) int { return a.Rank - b.Rank })
	w.mu.Unlock()
	for _, e := range far {
		if err := e.submit(ctx, s, []Step{{Kind: StepFlush}}, nil); err != nil {
			return err
		}
	}
	return nil
}

// Part returns the part of a rank of the team as this rank has it mapped.
func (w *Window) Part(index int) team.Vec {
	return team.Vec{Ptr: *(*unsafe.Pointer)(unsafe.Pointer(&w.ends[index].remoteAddr)), Len: w.part.Len, Type: w.part.Type,
		Dev: w.part.Dev}
}
