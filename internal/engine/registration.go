package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// Registration is one registration of a buffer. It ends at the latest with the communicator that made it.
type Registration struct {
	c     *Comm
	base  unsafe.Pointer
	alloc *mem.Allocation // the allocation that contains it
	ref   *register.Ref

	access     Access
	transports Transports

	ending atomic.Bool // set by the first Close
	mu     sync.Mutex
	closed bool
	grant  mem.Location // lets peers use it; made at the first Export
	exact  *mr.Export   // likewise: its bytes and rights, registered with the RDMA devices; nil: not
}

// RegisterOptions say what a registration's exports are for. Zero fields are the defaults.
type RegisterOptions struct {
	Access     Access
	Transports Transports
}

// RegisterBuffer registers the memory of v, with the default options.
func (c *Comm) RegisterBuffer(v team.Vec) (*Registration, error) {
	return c.RegisterWith(v, RegisterOptions{})
}

// RegisterWith registers the memory of v.
func (c *Comm) RegisterWith(v team.Vec, o RegisterOptions) (*Registration, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	r, err := c.register(v, o)
	if err != nil {
		return nil, c.LocalError("register_buffer", err)
	}
	if !c.regs.add(r) { // the communicator has ended meanwhile
		r.ref.Close()
		return nil, c.Err()
	}
	return r, nil
}

func (c *Comm) register(v team.Vec, o RegisterOptions) (*Registration, error) {
	if err := v.Check(); err != nil {
		return nil, err
	}
	access, err := o.Access.resolve()
	if err != nil {
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
	transports, err := o.Transports.resolve(!a.Dev.IsHost())
	if err != nil {
		return nil, err
	}
	ref, err := c.dom.Cache.Register(Memory(a), uintptr(v.Ptr), v.Bytes())
	if err != nil {
		return nil, err
	}
	if transports == RDMA {
		if _, err := ref.Claim().Handle(register.NET); err != nil {
			return nil, errors.Join(err, ref.Close())
		}
	}
	return &Registration{c: c, base: v.Ptr, alloc: a, ref: ref, access: access, transports: transports}, nil
}

// Export is memory that peers may use until the grant is revoked.
type Export struct {
	At    mem.Location
	Bytes int
	Grant mem.Location
	GPU   bool // At is on the rank's device

	Access     Access
	Transports Transports
}

// Export lets peers use the registered bytes until the registration closes.
func (r *Registration) Export() (Export, error) {
	claim, err := r.Acquire()
	if err != nil {
		return Export{}, err
	}
	defer claim.Release()
	h, err := claim.Handle(register.IPC)
	if err != nil {
		return Export{}, err
	}
	at := h.(mem.Location).Add(claim.Addr() - claim.Memory().Base)
	if err := r.registerExact(claim); err != nil {
		return Export{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return Export{}, errRegistrationClosed
	}
	if r.grant.Generation == 0 {
		if r.grant, err = r.c.dom.Heap.Grant(); err != nil {
			return Export{}, err
		}
		r.c.dom.served.all.Store(r.grant.Generation, r)
	}
	return Export{At: at, Bytes: claim.Len(), Grant: r.grant, GPU: !claim.Memory().Device.IsHost(), Access: r.access,
		Transports: r.transports}, nil
}

var errRegistrationClosed = fmt.Errorf("the registration has been closed: %w", fault.ErrStale)

// Acquire keeps the registered memory from being freed until the claim is released. fault.ErrStale after Close.
func (r *Registration) Acquire() (*register.Claim, error) {
	claim, err := r.ref.Acquire()
	if errors.Is(err, fault.ErrClosed) {
		err = errRegistrationClosed
	}
	return claim, err
}

// Range returns the address of n bytes of the registered memory at off, and a claim to release after use.
func (r *Registration) Range(off, n int) (unsafe.Pointer, *register.Claim, error) {
	claim, err := r.Acquire()
	if err != nil {
		return nil, nil, err
	}
	if off < 0 || n < 0 || off > claim.Len() || n > claim.Len()-off {
		claim.Release()
		return nil, nil, OutsideError(off, n, claim.Len(), "the registration")
	}
	return unsafe.Add(r.base, off), claim, nil
}

// OutsideError is the error of a range that is not within memory.
func OutsideError(off, n, bytes int, what string) error {
	return fmt.Errorf("bytes [%d,+%d) are outside of %s, which has %d: %w", off, n, what, bytes, fault.ErrArgument)
}

// Access is what the registration lets this rank's channels and peers do with the memory.
func (r *Registration) Access() Access { return r.access }

// Writable returns why gets of this rank must not write to the memory, or nil.
func (r *Registration) Writable() error {
	if r.access&LocalWrite != 0 {
		return nil
	}
	return fmt.Errorf("this rank's memory is registered with %v, without %v: %w", r.access, LocalWrite, fault.ErrArgument)
}

// Transports is what its exports are for.
func (r *Registration) Transports() Transports { return r.transports }

// Comm is the communicator that r was made with.
func (r *Registration) Comm() *Comm { return r.c }

// Close ends the registration for this rank and for all that imported it. The first call waits for peers in the middle
// of a copy, and the memory stays registered until then; other calls return fault.ErrClosed at once.
func (r *Registration) Close() error {
	if r.alloc.Dev.IsHost() {
		return r.End()
	}
	return r.c.Within("deregister", r.End)
}

// End is Close without a limit on the wait.
func (r *Registration) End() error {
	r.c.regs.remove(r)
	if r.ending.Swap(true) {
		return r.c.LocalError("deregister", fmt.Errorf("registration of the memory at %p: %w", r.base, fault.ErrClosed))
	}
	var errs []error
	if g, granted := r.Revoke(); granted {
		r.c.dom.served.stop(g)
		over, err := r.c.dom.awaitCopies(g)
		if !over {
			r.alloc.Quarantine()
		}
		errs = append(errs, err)
	}
	if err := errors.Join(append(errs, r.endExact(), r.ref.Close())...); err != nil {
		return r.c.LocalError("deregister", err)
	}
	return nil
}

// Revoke makes peers refuse calls that reach the memory. It returns the grant that they had, if any.
func (r *Registration) Revoke() (g mem.Location, granted bool) {
	r.mu.Lock()
	granted = r.grant.Generation != 0 && !r.closed
	r.closed = true
	r.mu.Unlock()
	if granted {
		r.c.dom.Heap.Revoke(r.grant)
		r.c.dom.served.all.Delete(r.grant.Generation)
	}
	return r.grant, granted
}

// registrations are the registrations that a communicator made, and that end with it.
type registrations struct {
	mu    sync.Mutex
	ended bool
	open  map[*Registration]bool
	held  []*register.Claim // device memory of registrations that Abort ended, held until the communicator closes
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

// end closes all. If quick, it does not wait for device operations, or for peers that use device memory.
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
		if err := r.End(); !errors.Is(err, fault.ErrClosed) { // ErrClosed: its owner has just closed it
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// release releases the claims that end has kept.
func (rs *registrations) release() {
	rs.mu.Lock()
	held := rs.held
	rs.held = nil
	rs.mu.Unlock()
	for _, claim := range held {
		claim.Release()
	}
}
