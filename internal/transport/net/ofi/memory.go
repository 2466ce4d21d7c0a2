// Package ofi is for networks that libfabric reaches. It chooses the provider and its domains, and has the backend NET of the
// registration cache for them: memory is registered with each domain in use, so that peers' writes and this process's own
// operations may use it.
//
// As in package mr, the cache registers whole allocations, for operations under way, and a handle or window that is exported
// has a registration of its own over exactly its bytes ([Backend.Exact]), so closing it ends that access and no other.
//
// A registration's end is no fence: what a peer has begun to write may still land. Whoever gives memory back makes peers stop
// first.
//
// Everything here is local, not collective, and safe for concurrent use. No lock is held while a provider registers or
// deregisters, which may take as long as pinning the memory.
package ofi

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/register"
)

// Rail is a domain in use, with the endpoint to which its registrations belong, where the provider wants one.
type Rail struct {
	Domain   *fabric.Domain
	Endpoint *fabric.Endpoint
	Messages bool // no bytes go straight to memory, though the provider may be able to
}

// Backend implements [register.Backend].
type Backend struct {
	rails []Rail
	own   bool // Close closes the rails
	keep  func(register.Memory)

	mu       sync.Mutex // guards the fields below
	closed   bool
	open     int          // registrations, also those under way
	stubborn []*fabric.MR // that a provider failed to deregister
}

// New returns the backend of some rails, which stay the caller's and must not close before the backend. keep, if not nil, is
// called for memory that a provider has failed to deregister, before Deregister returns the error: it must not be used for
// anything else, since a peer may still write it.
func New(rails []Rail, keep func(register.Memory)) *Backend {
	return &Backend{rails: rails, keep: keep}
}

// Rails returns the backend's rails. The caller must not change the slice.
func (b *Backend) Rails() []Rail { return b.rails }

// Kind implements [register.Backend].
func (b *Backend) Kind() register.BackendKind { return register.NET }

// whole is for what operations use allocations: this process's writes and reads, and peers' writes. Not for messages, whose
// memory some providers let peers read.
const whole = fabric.Write | fabric.Read | fabric.RemoteWrite

// Register implements [register.Backend]. The handle is a *Region over all of m; memory that this process may only read is
// registered for its own writes from there. Either all rails have registered it or none has: then the error names the
// first domain that failed.
func (b *Backend) Register(m register.Memory) (any, error) {
	access := whole
	if readOnly(m) {
		access = fabric.Write
	}
	r, err := b.region(m, m.Base, m.Bytes, access)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Deregister implements [register.Backend]. If a provider fails to deregister, that is an error; Close tries again.
func (b *Backend) Deregister(_ register.Memory, handle any) error { return handle.(*Region).end() }

// Exact registers exactly the n bytes at address, a part of m, for access. It may block. Errors are as for Register, and
// fault.ErrArgument for bytes outside of m. The caller closes the Export before m is freed.
func (b *Backend) Exact(m register.Memory, address uintptr, n int, access fabric.Access) (*Export, error) {
	if n <= 0 || address < m.Base || n > m.Bytes || address-m.Base > uintptr(m.Bytes-n) {
		return nil, fmt.Errorf("export [%#x,+%d): it is not in %v, [%#x,+%d): %w", address, n, m, m.Base, m.Bytes, fault.ErrArgument)
	}
	if access&(fabric.RemoteWrite|fabric.Read) != 0 && readOnly(m) {
		return nil, fmt.Errorf("export [%#x,+%d) of %v for %v: this process may only read it: %w", address, n, m, access, fault.ErrArgument)
	}
	r, err := b.region(m, address, n, access)
	if err != nil {
		return nil, err
	}
	return &Export{Region: r}, nil
}

// Close ends the backend, and the domains of one that [Open] has made. It may block as long as a
// provider takes for that. While something is registered it does nothing but return fault.ErrInUse. It is an error if a
// provider again fails to deregister memory; the system frees that when the process ends. A nil backend has nothing to close.
func (b *Backend) Close() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return fmt.Errorf("registrations with libfabric: %w", fault.ErrClosed)
	case b.open > 0:
		return fmt.Errorf("registrations with libfabric: %d are open: %w", b.open, fault.ErrInUse)
	}
	b.closed = true
	var errs []error
	for _, m := range b.stubborn {
		errs = append(errs, m.Close())
	}
	if b.own {
		for _, r := range b.rails {
			errs = append(errs, r.Domain.Close())
		}
	}
	return errors.Join(errs...)
}

// Region is memory that is registered with all rails of a backend.
type Region struct {
	backend *Backend
	memory  register.Memory
	address uintptr
	bytes   int
	access  fabric.Access
	mrs     []*fabric.MR
}

// Export is a Region over exact bytes. Whoever asked for it closes it.
type Export struct {
	*Region
	closed atomic.Bool
}

// Close deregisters the memory. It may block as long as unpinning takes. If a provider fails to deregister, that is an error,
// and the backend tries again when it closes. A second Close is fault.ErrClosed.
func (e *Export) Close() error {
	if e.closed.Swap(true) {
		return fmt.Errorf("export [%#x,+%d): %w", e.address, e.bytes, fault.ErrClosed)
	}
	return e.end()
}

// ErrAccess says that memory is registered, but not for all the access that was asked for.
var ErrAccess = fmt.Errorf("it is not registered for that: %w", fault.ErrNotSupported)

// For returns the registrations for using the region with access, in the order of the rails. If some access is missing, the
// error says which, and wraps ErrAccess. The caller must not change the slice, which is valid as long as the region. Success
// costs one comparison.
func (r *Region) For(access fabric.Access) ([]*fabric.MR, error) {
	if r.access.Has(access) {
		return r.mrs, nil
	}
	return nil, fmt.Errorf("[%#x,+%d) of %v is registered for %v, not for %v: %w", r.address, r.bytes, r.memory, r.access,
		access&^r.access, ErrAccess)
}

// Memory is the allocation.
func (r *Region) Memory() register.Memory { return r.memory }

// Address is where the region begins.
func (r *Region) Address() uintptr { return r.address }

// Bytes is its length.
func (r *Region) Bytes() int { return r.bytes }

// String is like "tcp;ofi_rxm eth0, tcp;ofi_rxm eth1: READ|WRITE|REMOTE_WRITE". It omits the keys, since anybody who knows
// them can use them.
func (r *Region) String() string {
	var names []string
	for _, rail := range r.backend.rails {
		d := rail.Domain.Describe()
		names = append(names, d.Provider+" "+d.Domain)
	}
	return fmt.Sprintf("%s: %v", strings.Join(names, ", "), r.access)
}

// region registers n bytes at address.
func (b *Backend) region(m register.Memory, address uintptr, n int, access fabric.Access) (*Region, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, fmt.Errorf("registrations with libfabric: %w", fault.ErrClosed)
	}
	b.open++
	b.mu.Unlock()
	r := &Region{backend: b, memory: m, address: address, bytes: n, access: access}
	for _, rail := range b.rails {
		mr, err := rail.Domain.Register(address, n, access, m.Device, rail.Endpoint)
		if err != nil {
			return nil, errors.Join(err, r.end())
		}
		r.mrs = append(r.mrs, mr)
	}
	return r, nil
}

// end deregisters with every rail that has r, even if one fails.
func (r *Region) end() error {
	b := r.backend
	var errs []error
	var stubborn []*fabric.MR
	for _, mr := range r.mrs {
		if err := mr.Close(); err != nil {
			errs = append(errs, err)
			stubborn = append(stubborn, mr)
		}
	}
	if stubborn != nil && b.keep != nil {
		b.keep(r.memory)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
	b.stubborn = append(b.stubborn, stubborn...)
	return errors.Join(errs...)
}
