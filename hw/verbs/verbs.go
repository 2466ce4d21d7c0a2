// Package verbs binds libibverbs, the interface to RDMA devices: InfiniBand, RoCE and what emulates them. The library is
// loaded when it is first asked for, so that one binary runs where it is and where it is not ([Have]).
//
// "Only registered memory can be used in RDMA operations": [PD.Register] pins memory and gives it two keys. The local one
// ([LKey]) goes into this process's own work requests; the remote one ([RKey]) is given to peers, with the memory's address,
// and lets them write, read or update it as far as its [Access] allows, until [MR.Close]. Peers are reached by queue pairs
// of the reliable connected kind: [PD.CreateQP], [QP.Init], an exchange of [Address] by whatever means, [QP.Connect]. Work is
// posted ([QP.Post]) and completes in a completion queue ([CQ.Poll]).
//
// Objects are made from one another, device, protection domain, the rest, and are closed in the other order: who has
// something made of it open refuses to close, with what that is ([fault.ErrInUse]). All methods are local, and safe for
// concurrent use. None blocks but those that say so. Closing twice is an error that wraps [fault.ErrClosed], as is every
// use after it.
//
// Addresses are numbers, since this package hands memory to devices, which look at it at any time: memory that is
// registered or named in a work request must not belong to Go's garbage collector, and must stay mapped as long.
//
// Sources: the InfiniBand Architecture Specification, volume 1, chapters 9 to 11, and rdma-core's manual pages, whose calls
// the methods name.
package verbs

import (
	"fmt"
	"net/netip"
)

// LKey lets this process's own work requests use a memory region, on the device that gave it.
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

// GIDType is how packets of a GID look on the wire.
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

// LinkLayer is what a port is connected by.
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

// The states of interest; work is done in [PortActive] only.
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

// Port is what ibv_query_port says of a port.
type Port struct {
	Number     int // from 1
	State      PortState
	Link       LinkLayer
	MTU        int // in force, bytes
	MaxMTU     int
	MaxMessage int    // the longest message, bytes
	LID        uint16 // InfiniBand: its address within the subnet
	GIDs       int    // rows of its table
	PKeys      int
	// Gbits is the rate of all lanes for data, as negotiated, in Gbit/s; 0 where the code is not known. Lanes faster than
	// 100 Gbit/s (XDR) have no code of their own there: they look like 100.
	Gbits float64

	grh bool // InfiniBand: packets need a global header, as of functions that share a port
}

// gbits is the rate of a port's lanes for data, by their codes. Those of InfiniBand signal at 10/8 of it up to 10 Gbaud, at
// 66/64 beyond; Ethernet's bear the codes that come near, whatever they signal at.
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

// Atomics says whom a device's atomic operations are atomic to.
type Atomics int

// AtomicsDevice is among operations through this device only: an update by a processor, or by another device, is not
// atomic to them.
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

// Limits is what ibv_query_device_ex says of a device.
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
	ReadsOut     int // reads and atomics that a queue pair may have under way
	ReadsIn      int // of peers', that it can answer at a time
	Atomics      Atomics
	OnDemand     bool // registers memory without pinning it, for all that Post offers but atomics
	DMABuf       bool // libibverbs can register dma-bufs; whether the driver can, only trying tells
}
