package engine

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// Ranks of other hosts reach exported memory through this rank's end of the network, which looks here what a grant is for.
// A registration that ends first revokes its grant, so that nothing more of it is found, and then stops what has been.

// served are the exports of a domain that ranks of other hosts may reach.
type served struct {
	all   sync.Map // by the grant's generation: *Registration
	mu    sync.Mutex
	stops map[*func(g mem.Location)]bool
}

// OnRevoke makes the end of each registration call stop with its grant, after the revocation. remove undoes that.
func (d *Domain) OnRevoke(stop func(g mem.Location)) (remove func()) {
	s := &d.served
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stops == nil {
		s.stops = map[*func(g mem.Location)]bool{}
	}
	s.stops[&stop] = true
	return func() {
		s.mu.Lock()
		delete(s.stops, &stop)
		s.mu.Unlock()
	}
}

// stop stops what ranks of other hosts do with a grant that has been revoked.
func (s *served) stop(g mem.Location) {
	s.mu.Lock()
	all := make([]func(mem.Location), 0, len(s.stops))
	for f := range s.stops {
		all = append(all, *f)
	}
	s.mu.Unlock()
	for _, f := range all {
		f(g)
	}
}

// Served returns the registration that a grant is for, or nil.
func (d *Domain) Served(g mem.Location) *Registration {
	r, ok := d.served.all.Load(g.Generation)
	if !ok || r.(*Registration).grant != g {
		return nil
	}
	return r.(*Registration)
}

// Reach returns the address of n bytes at off, on the device if OnDevice says so, for a peer on another host that needs a
// right, and is connected by one of some transports. They are good until the registration ends, which calls what OnRevoke has got.
func (r *Registration) Reach(off, n int, need Access, by Transports) (unsafe.Pointer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errRegistrationClosed
	}
	switch bytes := r.ref.Claim().Len(); {
	case r.access&need != need:
		return nil, fmt.Errorf("the memory is registered with %v: %w", r.access, fault.ErrArgument)
	case r.transports&by == 0:
		return nil, fmt.Errorf("the memory is registered for %v: %w", r.transports, fault.ErrNotSupported)
	case off < 0 || n < 0 || off > bytes || n > bytes-off:
		return nil, OutsideError(off, n, bytes, "the registration")
	}
	return unsafe.Add(r.base, off), nil
}

// OnDevice reports whether the memory is on this rank's device.
func (r *Registration) OnDevice() bool { return !r.alloc.Dev.IsHost() }

// ReachableFar returns why ranks of other hosts cannot reach what is exported, or nil.
func (e *Export) ReachableFar() error {
	if e.Transports&(TCP|RDMA) == 0 {
		return fmt.Errorf("the memory is registered for %v, not for %v: %w", e.Transports, TCP|RDMA, fault.ErrNotSupported)
	}
	return nil
}
