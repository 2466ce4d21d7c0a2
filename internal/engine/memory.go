package engine

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/dlpack"
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
	a, err := c.adopt(d, p, n, nil)
	if err != nil {
		return nil, c.LocalError("adopt", err)
	}
	return a, nil
}

// AdoptDLPack makes an allocation of the memory of the DLManagedTensor at tensor, and returns its element type. The
// allocation's end deletes the tensor.
func (c *Comm) AdoptDLPack(tensor unsafe.Pointer) (*mem.Allocation, dtype.Type, error) {
	const op = "adopt_dlpack"
	if err := c.Usable(op); err != nil {
		return nil, dtype.Invalid, err
	}
	t, err := dlpack.Read(tensor)
	if err != nil {
		return nil, dtype.Invalid, c.LocalError(op, err)
	}
	a, err := c.adopt(t.Device, t.Pointer(), t.Bytes, t.Delete)
	if err != nil {
		return nil, dtype.Invalid, c.LocalError(op, err)
	}
	return a, t.Type, nil
}

// adopt makes an allocation of the n bytes at p; back may be nil: see Heap.Return.
func (c *Comm) adopt(d hw.Device, p unsafe.Pointer, n int, back func()) (*mem.Allocation, error) {
	if d.IsHost() {
		return c.dom.Heap.Adopt(p, n, back)
	}
	if err := c.CheckDevice(d); err != nil {
		return nil, err
	}
	return c.dom.Heap.AdoptDevice(cuda.Addr(uintptr(p)), n, back)
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

// Allocation returns the allocation of this rank that contains v, or nil. A view of a peer's memory is none.
func (c *Comm) Allocation(v team.Vec) *mem.Allocation {
	if v.Alloc != nil && v.Alloc.Heap() == c.dom.Heap && v.Alloc.Origin != mem.View {
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
