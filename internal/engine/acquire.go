package engine

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/register"
)

// ByRDMA reports whether the RDMA devices have an acquired buffer, and if not, why.
func (c *Comm) ByRDMA(b *team.Buf) (has bool, why string) {
	if b.Claim == nil {
		return false, b.Why
	}
	if _, err := b.Claim.Handle(register.NET); err != nil {
		return false, err.Error()
	}
	return true, ""
}

// Acquire finds the registration of v's memory. Implements team.Comm.
func (c *Comm) Acquire(v *team.Vec, b *team.Buf, graph bool) error {
	n := v.Bytes()
	if n == 0 {
		b.Why = "it is empty"
		return nil
	}
	if v.Alloc != nil && !v.Alloc.Live() {
		return fmt.Errorf("the buffer at %p has been freed: %w", v.Ptr, fault.ErrStale)
	}
	policy := c.opts.Register
	if policy == register.Off {
		b.Why = "the registration policy is off"
		return nil
	}
	cache := c.dom.Cache
	var generation uint64 // unknown (0) for a view of a plain slice
	if v.Alloc != nil {
		generation = v.Alloc.At.Generation
	}
	var claim *register.Claim
	if graph {
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
		// Register the whole allocation, so that lookups of its other parts hit as well.
		var err error
		if claim, err = cache.RegisterAuto(Memory(a), a.Base(), a.Bytes); err != nil {
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
