package onesided

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

// gpuWindow is the part of a Window over device memory. It has an end, like those of channels, towards every rank
// including this one.
type gpuWindow struct {
	slots []int // slots of the ends, by rank
	ends  []*gpuEnd
	kept  engine.Keeper // other memory that users' captures put or get
}

// windowSlot is a window's end towards one rank, as the occupant of a slot.
type windowSlot struct {
	w    *Window
	rank int
}

func (o windowSlot) left() bool {
	if !o.w.ended.Load() || o.rank == o.w.c.Rank() {
		return o.w.ended.Load()
	}
	there := o.w.reader(o.rank)
	return there.Done()
}

// takeSlots takes a slot for each rank. Peers write to the ends only after all ranks have agreed on the window.
func (w *Window) takeSlots() error {
	c, sp := w.c, w.sp
	if err := sp.noDevice(); err != nil {
		return err
	}
	w.gpu = &gpuWindow{}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for r := range c.Size() {
		slot := sp.freeSlot(true)
		if most := sp.gpuSlots(); slot < 0 || slot >= most {
			return noGPUEnd(most)
		}
		sp.used[slot] = windowSlot{w, r}
		w.gpu.slots = append(w.gpu.slots, slot)
		if err := sp.gpu.clear(slot); err != nil {
			return err
		}
	}
	return nil
}

// openEnd makes the end towards rank r; r's end towards this rank is in slot k.slot.
func (w *Window) openEnd(ctx context.Context, r int) error {
	k := &w.ranks[r]
	g := &gpuEnd{sp: w.sp, c: w.c, of: w, op: "window", name: "the window " + between(w.c, r), rank: r, r: w.reg,
		remote: k.Remote, gone: func() bool { return k.block.state.Load() == team.StateClosed }}
	noPackets := func(bool) uint64 { return 0 }
	if err := g.open(ctx, w.gpu.slots[r], k.slot, noPackets); err != nil {
		return fmt.Errorf("map the window of rank %d: %w", r, err)
	}
	w.gpu.ends = append(w.gpu.ends, g)
	return nil
}

// discard releases the parts of a window that was not completed.
func (u *gpuWindow) discard(sp *Space) error {
	if u == nil {
		return nil
	}
	var errs []error
	for _, g := range u.ends {
		errs = append(errs, g.release())
	}
	sp.mu.Lock()
	for _, i := range u.slots {
		sp.used[i] = nil
	}
	sp.mu.Unlock()
	return errors.Join(errs...)
}

// close closes the ends. Peers can no longer use the memory; those that wait find out when the window's state is
// closed.
func (u *gpuWindow) close(c *engine.Comm, quick bool) error {
	var errs []error
	for _, g := range u.ends {
		g.fail(fmt.Errorf("%s: %w", g.name, fault.ErrClosed))
	}
	for _, g := range u.ends {
		if !quick || c.Broken() == nil { // else they are released with the communicator
			errs = append(errs, g.release())
		}
	}
	return errors.Join(append(errs, u.kept.Close())...)
}

// copyDevice is Copy by a kernel or a copy engine, on s or a stream of the end's own.
func (w *Window) copyDevice(ctx context.Context, s *engine.Stream, peer, off int, v team.Vec, put bool) error {
	g, n := w.gpu.ends[peer], v.Bytes()
	if most := w.ranks[peer].bytes; off < 0 || off > most || n > most-off {
		return engine.OutsideError(off, n, most, fmt.Sprintf("rank %d's memory", peer))
	}
	if err := w.c.CheckDevice(v.Dev); err != nil {
		return err
	}
	// Offsets of a step count from the beginning of this rank's part; v may begin before that.
	near := int(uintptr(v.Ptr)) - int(g.here)
	if apart := near - off; peer == w.c.Rank() && apart != 0 && apart < n && -apart < n {
		return fmt.Errorf("bytes [%d,+%d) of this rank's own part overlap what is copied: %w", off, n,
			fault.ErrArgument)
	}
	if a := w.c.Allocation(v); a != nil && n > 0 {
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
	step := Step{Kind: StepPut, Dst: off, Src: near, N: n}
	if !put {
		step = Step{Kind: StepGet, Dst: near, Src: off, N: n}
	}
	return w.step(ctx, s, peer, step)
}

// step does one step towards peer.
func (w *Window) step(ctx context.Context, s *engine.Stream, peer int, step Step) error {
	return w.gpu.ends[peer].submit(ctx, s, []Step{step}, make([]touch, 1))
}

// keep registers a until the window is closed, because a user's capture uses a and may be replayed at any time.
func (w *Window) keep(a *mem.Allocation) error {
	if a == w.c.Allocation(w.vec) {
		return nil
	}
	return w.gpu.kept.Keep(w.c, a)
}

// flush makes the next work on s start after all puts and gets; without s it waits for them.
func (u *gpuWindow) flush(ctx context.Context, c *engine.Comm, s *engine.Stream) error {
	on, err := queues(c, s)
	if err != nil {
		return err
	}
	for _, g := range u.ends {
		if err := g.told(); err != nil {
			return err
		}
		if on == nil {
			if err := g.drain(ctx); err != nil {
				return err
			}
			continue
		}
		g.launching.Lock()
		err := on.Use(func(cu *cuda.Stream) error {
			if on.Capturing() {
				return nil
			}
			return g.follow(on, cu, kernels.SideOut)
		})
		g.launching.Unlock()
		if err != nil {
			return g.failedWith(err)
		}
	}
	return nil
}

// peerVec returns a rank's part as it is mapped here.
func (w *Window) peerVec(rank int) team.Vec {
	return team.Vec{Ptr: *(*unsafe.Pointer)(unsafe.Pointer(&w.gpu.ends[rank].there)), Len: w.vec.Len, Type: w.vec.Type,
		Dev: w.vec.Dev}
}
