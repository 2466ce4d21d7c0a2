package engine

import (
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// What ranks of other hosts may reach by RDMA is registered by itself: exactly the bytes, for exactly the rights that the
// registration has. So its end ends that access, whatever the peers do.

// registerExact registers what is exported with the RDMA devices, once, if there are any. Without that, peers reach it another
// way.
func (r *Registration) registerExact(claim *register.Claim) error {
	d := r.c.dom
	if d.nics == nil || d.network == nil || r.transports&RDMA == 0 || r.access&remote == 0 {
		return nil
	}
	r.mu.Lock()
	there := r.exact != nil || r.closed
	r.mu.Unlock()
	if there {
		return nil
	}
	x, err := d.nics.Exact(claim.Memory(), claim.Addr(), claim.Len(), r.access.verbs(d.nics))
	if err != nil {
		d.log.Debug("ubcoll: exported memory is not registered with RDMA devices", "memory", claim.Memory(), "error", err)
		return nil
	}
	r.mu.Lock()
	if !r.closed && r.exact == nil {
		r.exact, x = x, nil
	}
	r.mu.Unlock()
	if x != nil {
		return x.Close()
	}
	return nil
}

// endExact ends that: nothing of a peer lands any more.
func (r *Registration) endExact() error {
	r.mu.Lock()
	x := r.exact
	r.mu.Unlock()
	if x == nil {
		return nil
	}
	return x.Close()
}

// Region is how ranks of other hosts reach the exported bytes by RDMA; zero: they do not.
func (r *Registration) Region() transport.Region {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.exact == nil || r.closed {
		return transport.Region{}
	}
	t := r.exact.Token()
	return transport.Region{Address: t.Address, Key: uint32(t.Keys[0])}
}

// verbs is what a says in the flags of RDMA devices, which have the same numbers, as far as all of them can do it.
func (a Access) verbs(b *mr.Backend) verbs.Access {
	flags := verbs.Access(a & (LocalWrite | remote))
	for _, n := range b.NICs() {
		if n.Device.Limits().Atomics == verbs.AtomicsNone {
			flags &^= verbs.RemoteAtomic
		}
	}
	return flags
}
