package ubcoll

import (
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
)

// Access is what may be done with registered memory, by channels and windows of this rank and by peers that have imported
// it. The bits are those of verbs' enum ibv_access_flags, and may be combined. Remote write and remote atomic need local
// write, as in verbs.
//
// A peer's call without the right is [ErrArgument] on the peer, and reaches no memory. The caller itself checks this; between
// hosts the owner's process checks it, too. Access does not concern collectives and messages, for which
// each rank gives its own memory at each call.
type Access uint8

// The rights.
const (
	// AccessLocalWrite lets this rank's own gets write to the memory: p2p's Channel.Get and GetPackets.
	AccessLocalWrite Access = 1 << 0
	// AccessRemoteWrite lets peers put, packets included.
	AccessRemoteWrite Access = 1 << 1
	// AccessRemoteRead lets peers get.
	AccessRemoteRead Access = 1 << 2
	// AccessRemoteAtomic lets peers fetch and add, compare and swap, and accumulate.
	AccessRemoteAtomic Access = 1 << 3
	// AccessLocalOnly gives peers no right: a channel may put from the memory, and there is no handle. It may be combined
	// with AccessLocalWrite alone.
	AccessLocalOnly Access = 1 << 7
)

// String lists the rights: "local write, remote read". It is "none" for 0.
func (a Access) String() string { return engine.Access(a).String() }

// Transports is a set of the ways in which peers may reach registered memory.
type Transports uint8

// The transports. Source: mscclpp::TransportFlags of MSCCL++'s registerMemory.
const (
	TransportHostMemory Transports = 1 << 0 // host memory that ranks of one host share
	TransportCUDAIPC    Transports = 1 << 1 // memory of devices, from ranks of the same host
	TransportTCP        Transports = 1 << 2 // between hosts
	TransportRDMA       Transports = 1 << 3 // between hosts, where RDMA devices connect the two ranks: in place
)

// String lists the transports: "host memory, TCP". It is "none" for 0.
func (t Transports) String() string { return engine.Transports(t).String() }

// RegisterOptions say what a registration is for. The zero RegisterOptions are those of [Comm.RegisterBuffer].
type RegisterOptions struct {
	// Access is what may be done with the memory; 0 is everything but atomics.
	Access Access
	// Transports are the ways in which peers may reach it; 0 is all that there are for this memory.
	Transports Transports
}

// RegisterWith is [Comm.RegisterBuffer] with options. Registrations of the same memory may have different ones: the rights
// belong to each registration's handle, channels and windows, not to the pages. Local and blocking.
//
// Its errors are those of RegisterBuffer, and [ErrArgument] for unknown or contradictory rights, or transports of which none
// is for this memory; [ErrNotSupported] if RDMA alone is asked for, and there is no device for it. A peer's [Comm.Import],
// and p2p's Connect, are [ErrNotSupported] if the memory is not for the transport that is between the two ranks. Source:
// ibv_reg_mr(3), MSCCL++'s registerMemory.
func (c *Comm) RegisterWith(v Vec, o RegisterOptions) (*Registration, error) {
	r, err := c.view().RegisterWith(*v.team(), engine.RegisterOptions{Access: engine.Access(o.Access),
		Transports: engine.Transports(o.Transports)})
	if err != nil {
		return nil, err
	}
	return (*Registration)(inside.NewRegistration(r)), nil
}

// Access is what may be done with the memory. Local.
func (r *Registration) Access() Access {
	if r.engine() == nil {
		return 0
	}
	return Access(r.engine().Access())
}

// Transports are the ways in which peers may reach the memory. Local.
func (r *Registration) Transports() Transports {
	if r.engine() == nil {
		return 0
	}
	return Transports(r.engine().Transports())
}

// Access is what the peer lets this rank do with its memory. Local.
func (m *Remote) Access() Access {
	if m.onesided() == nil {
		return 0
	}
	return Access(m.onesided().Access)
}
