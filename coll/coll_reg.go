package coll

import (
	"fmt"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// acquire finds the registrations of a call's buffers, or makes them if the policy allows, and holds them until the
// call ends. A buffer without one is staged; that is no error.
func acquire(c *engine.Comm, w *engine.Work) error {
	if err := acquireOne(c, w, &w.Src, &w.SrcBuf); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if w.Dst.Ptr == w.Src.Ptr && w.Dst.Len == w.Src.Len && !w.SrcBuf.Direct() {
		w.DstBuf = w.SrcBuf // in place and staged: one search was enough
		return nil
	}
	if err := acquireOne(c, w, &w.Dst, &w.DstBuf); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	return nil
}

func acquireOne(c *engine.Comm, w *engine.Work, v *engine.Vec, b *engine.Buf) error {
	n := v.Bytes()
	if n == 0 {
		b.Why = "it is empty"
		return nil
	}
	if v.Alloc != nil && !v.Alloc.Live() {
		return fmt.Errorf("the buffer at %p has been freed: %w", v.Ptr, fault.ErrStale)
	}
	if b == &w.SrcBuf && w.Red == engine.PreMulSum {
		b.Why = "it is multiplied first"
		return nil
	}
	policy := c.Options().Register
	if policy == register.Off {
		b.Why = "the registration policy is off"
		return nil
	}
	cache := c.Domain().Cache
	var generation uint64 // not known for a view of a plain slice
	if v.Alloc != nil {
		generation = v.Alloc.At.Generation
	}
	var claim *register.Claim
	if w.Graph {
		claim = cache.FindGraph(uintptr(v.Ptr), n, generation)
	} else {
		claim = cache.FindLocal(uintptr(v.Ptr), n, generation)
	}
	if claim == nil {
		a := c.Allocation(*v)
		switch {
		case a == nil:
			b.Why = "Go or foreign memory is never registered"
			return nil
		case policy == register.Explicit:
			b.Why = "it is not registered, and the registration policy is explicit"
			return nil
		}
		// All of the allocation, so that its other parts are found as well.
		var err error
		if claim, err = cache.RegisterAuto(engine.Memory(a), a.Base(), a.Bytes); err != nil {
			b.Why = err.Error()
			return nil
		}
	}
	h, err := claim.Handle(register.IPC)
	if err != nil {
		claim.Release()
		b.Why = err.Error()
		return nil
	}
	b.Claim = claim
	b.At = h.(mem.Location).Add(uintptr(v.Ptr) - claim.Memory().Base)
	return nil
}
