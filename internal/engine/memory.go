package engine

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Usable returns why op cannot be called: the communicator has been closed, or has no ranks.
func (c *Comm) Usable(op string) error {
	switch {
	case c.size == 0:
		return c.Err()
	case c.closing.Load():
		return c.LocalError(op, ErrCommClosed)
	}
	return nil
}

// Alloc allocates n bytes on d.
func (c *Comm) Alloc(d hw.Device, n int) (*mem.Allocation, error) {
	if err := c.Usable("alloc"); err != nil {
		return nil, err
	}
	var a *mem.Allocation
	var err error
	if d.IsHost() {
		a, err = c.dom.Heap.Alloc(n)
	} else if err = c.CheckDevice(d); err == nil {
		a, err = c.dom.Heap.AllocDevice(n)
	}
	if err != nil {
		return nil, c.LocalError("alloc", err)
	}
	return a, nil
}

// Adopt makes an allocation of memory that the caller owns.
func (c *Comm) Adopt(d hw.Device, p unsafe.Pointer, n int) (*mem.Allocation, error) {
	if err := c.Usable("adopt"); err != nil {
		return nil, err
	}
	var a *mem.Allocation
	var err error
	if d.IsHost() {
		a, err = c.dom.Heap.Adopt(p, n)
	} else if err = c.CheckDevice(d); err == nil {
		a, err = c.dom.Heap.AdoptDevice(cuda.Addr(uintptr(p)), n)
	}
	if err != nil {
		return nil, c.LocalError("adopt", err)
	}
	return a, nil
}

// pass waits for operations that use memory without holding it.
func (c *Comm) pass() {
	for _, a := range c.domainAdvancers() {
		a.Pass()
	}
}

// Free ends an allocation.
func (c *Comm) Free(a *mem.Allocation) error {
	named := func(err error) error {
		if err == nil {
			return nil
		}
		return c.LocalError("free", err)
	}
	var late error
	err := c.dom.free(a, c.pass, func(rest func() error) error {
		late = c.Within("free", func() error { return named(rest()) })
		return nil
	})
	if late != nil {
		return late
	}
	return named(err)
}

// Allocation returns the allocation of this rank that contains v, or nil.
func (c *Comm) Allocation(v team.Vec) *mem.Allocation {
	if v.Alloc != nil && v.Alloc.Heap() == c.dom.Heap {
		return v.Alloc
	}
	return c.dom.Heap.Lookup(uintptr(v.Ptr), v.Bytes())
}

// Explain says what the cache knows of v's memory.
func (c *Comm) Explain(v team.Vec) string {
	switch err := v.Check(); {
	case c.size == 0:
		return c.Err().Error()
	case err != nil:
		return err.Error()
	}
	return c.dom.Cache.Explain(uintptr(v.Ptr), v.Bytes())
}
