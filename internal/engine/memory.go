package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// Local is an error of a local call.
func (c *Comm) Local(op string, err error) error { return c.local(op, err) }

func (c *Comm) usable(op string) error {
	switch {
	case c.size == 0:
		return c.Err()
	case c.closing.Load():
		return c.local(op, errCommClosed)
	}
	return nil
}

// Alloc allocates n bytes on d.
func (c *Comm) Alloc(d hw.Device, n int) (*mem.Allocation, error) {
	if err := c.usable("alloc"); err != nil {
		return nil, err
	}
	var a *mem.Allocation
	var err error
	if d.IsHost() {
		a, err = c.dom.Heap.Alloc(n)
	} else if err = c.onGPU(d); err == nil {
		a, err = c.dom.Heap.AllocDevice(n)
	}
	if err != nil {
		return nil, c.local("alloc", err)
	}
	return a, nil
}

// Adopt makes an allocation of memory that the caller owns.
func (c *Comm) Adopt(d hw.Device, p unsafe.Pointer, n int) (*mem.Allocation, error) {
	if err := c.usable("adopt"); err != nil {
		return nil, err
	}
	var a *mem.Allocation
	var err error
	if d.IsHost() {
		a, err = c.dom.Heap.Adopt(p, n)
	} else if err = c.onGPU(d); err == nil {
		a, err = c.dom.Heap.AdoptDevice(cuda.Addr(uintptr(p)), n)
	}
	if err != nil {
		return nil, c.local("adopt", err)
	}
	return a, nil
}

// pass waits for what uses memory without holding it.
func (c *Comm) pass() {
	for _, a := range c.attached {
		a.Pass()
	}
}

// Free ends an allocation.
func (c *Comm) Free(a *mem.Allocation) error {
	if err := c.dom.free(a, c.pass); err != nil {
		return c.local("free", err)
	}
	return nil
}

// Registration is one registration of a buffer. It ends with the communicator that it was made with, if not before.
type Registration struct {
	c     *Comm
	base  unsafe.Pointer
	alloc *mem.Allocation // that it lies in
	ref   *register.Ref

	ending atomic.Bool // by Close
	mu     sync.Mutex
	closed bool
	grant  mem.Location // by which peers may use it; made when first asked for
}

// RegisterBuffer registers the memory of v.
func (c *Comm) RegisterBuffer(v team.Vec) (*Registration, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	r, err := c.register(v)
	if err != nil {
		return nil, c.local("register_buffer", err)
	}
	if !c.regs.add(r) { // it was ended meanwhile
		r.ref.Close()
		return nil, c.Err()
	}
	return r, nil
}

// registrations are those that were made with a communicator, and end with it.
type registrations struct {
	mu    sync.Mutex
	ended bool
	open  map[*Registration]bool
	held  []*register.Claim // of those that Abort ended: what is on a device is taken back with the communicator
}

func (rs *registrations) add(r *Registration) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.ended {
		return false
	}
	if rs.open == nil {
		rs.open = map[*Registration]bool{}
	}
	rs.open[r] = true
	return true
}

func (rs *registrations) remove(r *Registration) {
	rs.mu.Lock()
	delete(rs.open, r)
	rs.mu.Unlock()
}

// end closes all. quick: it does not wait for what is queued on devices, and for peers that use what is there.
func (rs *registrations) end(quick bool) error {
	rs.mu.Lock()
	rs.ended = true
	all := rs.open
	rs.open = nil
	rs.mu.Unlock()
	var errs []error
	for r := range all {
		if quick && !r.alloc.Dev.IsHost() {
			if claim, err := r.ref.Acquire(); err == nil {
				rs.mu.Lock()
				rs.held = append(rs.held, claim)
				rs.mu.Unlock()
			}
		}
		if err := r.Close(); !errors.Is(err, fault.ErrClosed) { // by its owner, just now
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// release ends what end has left.
func (rs *registrations) release() {
	rs.mu.Lock()
	held := rs.held
	rs.held = nil
	rs.mu.Unlock()
	for _, claim := range held {
		claim.Release()
	}
}

func (c *Comm) register(v team.Vec) (*Registration, error) {
	if err := v.Check(); err != nil {
		return nil, err
	}
	a := c.Allocation(v)
	switch {
	case v.Bytes() == 0:
		return nil, fmt.Errorf("an empty buffer: %w", fault.ErrArgument)
	case a == nil:
		return nil, fmt.Errorf("[%p,+%d) is Go memory, foreign, or of another Open: only memory of Alloc or Adopt of "+
			"this Comm can be registered: %w", v.Ptr, v.Bytes(), fault.ErrArgument)
	}
	ref, err := c.dom.Cache.Register(Memory(a), uintptr(v.Ptr), v.Bytes())
	if err != nil {
		return nil, err
	}
	return &Registration{c: c, base: v.Ptr, alloc: a, ref: ref}, nil
}

// Allocation is the allocation of this rank that v lies in, or nil.
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
