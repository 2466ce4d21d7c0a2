// Package verbs binds libibverbs, the interface to RDMA devices: InfiniBand, RoCE, and software that emulates them. It
// loads the library at the first use, so one binary runs with and without it ([Have]).
//
// An RDMA device can use registered memory only. [PD.Register] pins memory and gives it two keys. The local key
// ([LKey]) goes into this process's own work requests. The remote key ([RKey]) is given to peers together with the
// memory's address. It lets them write, read or update the memory as far as its [Access] allows, until [MR.Close].
// Queue pairs of the reliable connected kind reach peers: [PD.CreateQP], [QP.Init], an exchange of [Address] by any
// means, [QP.Connect]. Work is posted ([QP.Post]) and completes in a completion queue ([CQ.Poll]).
//
// Objects are made from one another: device, protection domain, the rest. Close them in reverse order: an object
// refuses to close while objects made from it are open, and its error names them ([fault.ErrInUse]). All methods are
// local and safe for concurrent use. None blocks unless it says so. Closing twice, or any use after Close, is an error
// that wraps [fault.ErrClosed].
//
// Addresses are numbers, since devices access the memory at any time. Memory that is registered or named in a work
// request must not belong to Go's garbage collector, and must stay mapped until it is deregistered or the work has
// completed.
//
// Sources: the InfiniBand Architecture Specification, volume 1, chapters 9 to 11, and rdma-core's manual pages; each
// method names its call there.
package verbs

import (
	"fmt"
	"net/netip"
)

// LKey lets this process's own work requests use a memory region, on the region's device.
type LKey uint32

// RKey lets a peer's work requests use a memory region.
type RKey uint32

// String is like "lkey 0x1a2b".
func (k LKey) String() string { return fmt.Sprintf("lkey %#x", uint32(k)) }

// String is like "rkey 0x1a2b".
func (k RKey) String() string { return fmt.Sprintf("rkey %#x", uint32(k)) }

// GID is a port's address on InfiniBand and RoCE; on RoCE it is an IPv6 address, or an IPv4 one mapped into it.
type GID [16]byte

// String is the address as an IP address.
func (g GID) String() string { return netip.AddrFrom16(g).Unmap().String() }

// Zero reports whether g is no address.
func (g GID) Zero() bool { return g == GID{} }

// GIDType says how packets look on the wire that are sent from a GID.
type GIDType uint32

// The types of GID.
const (
	GIDInfiniBand GIDType = iota
	GIDRoCEv1             // Ethernet frames of their own, which no router forwards
	GIDRoCEv2             // UDP
)

// String is "InfiniBand", "RoCE v1" or "RoCE v2".
func (t GIDType) String() string {
	if t > GIDRoCEv2 {
		return fmt.Sprintf("GID type %d", uint32(t))
	}
	return [...]string{"InfiniBand", "RoCE v1", "RoCE v2"}[t]
}

// GIDEntry is one row of a port's table of GIDs.
type GIDEntry struct {
	Index     int
	GID       GID
	Type      GIDType
	Interface int // the network interface's index (RoCE), or 0
}

// LinkLayer is the kind of network that a port is connected to.
type LinkLayer uint8

// The link layers.
const (
	LinkInfiniBand LinkLayer = 1
	LinkEthernet   LinkLayer = 2
)

// String is "InfiniBand" or "Ethernet".
func (l LinkLayer) String() string {
	switch l {
	case LinkInfiniBand:
		return "InfiniBand"
	case LinkEthernet:
		return "Ethernet"
	}
	return fmt.Sprintf("link layer %d", uint8(l))
}

// PortState is enum ibv_port_state.
type PortState int

// The states that matter here. A port works in [PortActive] only.
const (
	PortDown   PortState = 1
	PortActive PortState = 4
)

// String is "down", "init", "armed" or "active".
func (s PortState) String() string {
	switch s {
	case PortDown:
		return "down"
	case 2:
		return "init"
	case 3:
		return "armed"
	case PortActive:
		return "active"
	}
	return fmt.Sprintf("port state %d", int(s))
}

// Port is the result of ibv_query_port.
type Port struct {
	Number     int // from 1
	State      PortState
	Link       LinkLayer
	MTU        int // in force, bytes
	MaxMTU     int
	MaxMessage int    // the longest message, bytes
	LID        uint16 // InfiniBand: its address within the subnet
	GIDs       int    // rows of its table of GIDs
	PKeys      int
	// Gbits is the negotiated data rate of all lanes together, in Gbit/s; 0 if the device's code for it is not known.
	// Lanes faster than 100 Gbit/s (XDR) have no code of their own in this call: they look like 100.
	Gbits float64

	grh bool // InfiniBand: packets need a global header, e.g. because functions share the port
}

// gbits computes a port's data rate from its codes for width and speed. InfiniBand lanes signal at 10/8 of their data
// rate up to 10 Gbaud, and at 66/64 of it beyond. Ethernet ports report the code that comes nearest, whatever they
// signal at.
func gbits(link LinkLayer, width, speed uint8) float64 {
	lanes := map[uint8]float64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	lane := map[uint8]float64{1: 2, 2: 4, 4: 8, 8: 10, 16: 14.0625 * 64 / 66, 32: 25, 64: 50, 128: 100}[speed]
	if link == LinkEthernet {
		switch speed {
		case 1, 2, 4:
			lane *= 10. / 8
		case 16:
			lane = 14
		}
	}
	return lanes * lane
}

// Atomics says which other accesses a device's atomic operations are atomic to.
type Atomics int

// AtomicsDevice: atomic among operations through this device only, not towards updates by a processor or another
// device.
const (
	AtomicsNone Atomics = iota
	AtomicsDevice
	AtomicsGlobal
)

// String is "none", "device" or "global".
func (a Atomics) String() string {
	if a < 0 || a > AtomicsGlobal {
		return fmt.Sprintf("atomics %d", int(a))
	}
	return [...]string{"none", "device", "global"}[a]
}

// Limits is the result of ibv_query_device_ex.
type Limits struct {
	Firmware     string
	Vendor, Part uint32
	GUID         uint64
	Ports        int
	MaxMRBytes   uint64
	MRs          int
	PDs          int
	QPs          int
	Work         int // work requests in each queue of a queue pair
	CQs          int
	CQEntries    int
	SRQs         int
	SRQWork      int
	ReadsOut     int // how many reads and atomics a queue pair may have under way
	ReadsIn      int // how many of its peer's a queue pair can answer at a time
	Atomics      Atomics
	OnDemand     bool // can register memory without pinning it, for all operations that Post has except atomics
	DMABuf       bool // libibverbs can register dma-bufs; only trying tells whether the driver can
}
