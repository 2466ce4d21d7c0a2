package engine

import (
	"context"
	"time"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// Limits of devices, which kernels and transports share.
const (
	MaxRanks   = 72             // that use devices together: a domain of NVLink has no more devices
	MaxExtents = 1024           // exported allocations of a rank at a time
	RowBytes   = MaxExtents * 8 // of device memory: a DevicePeer's Row
)

// DeviceTransport is a Transport's way to other ranks' devices.
type DeviceTransport interface {
	// UseDevice has the transport export memory of ctx's device, which the heap uses already, and import that of peers
	// that use one, of which there are so many at most. It comes before Card, and once. ctx stays the caller's, and open
	// until after Close.
	UseDevice(ctx *cuda.Context, peers int) error
	// Export makes a device allocation reachable for the peers that use a device, those that Attach finds later too,
	// until Withdraw. Local, does not wait for them: they import it in the background, see Missing. extent is its number
	// among this rank's exports. Exporting it again changes nothing. The error is fault.ErrStale if the memory was freed
	// behind the library's back, and fault.ErrLimit if there are too many exports.
	Export(a *mem.Allocation) (extent uint32, err error)
	// Withdraw ends what Export began: it waits for this rank's queued work, then until no peer has the memory mapped,
	// for limit at most. The error then names the peer and wraps fault.ErrTimeout, and the number of the extent is not
	// used again until that peer has followed. Withdrawing what is not exported does nothing.
	Withdraw(limit time.Duration, a *mem.Allocation) error
	// Missing is a peer, by its DevicePeer.Number, that has not imported this rank's extent, and why; -1 and "" if all
	// that use a device have. It costs a few loads and takes no lock.
	Missing(extent uint32) (peer int, why string)
	// Opened is how often an extent of a peer was mapped here.
	Opened() uint64
}

// DevicePeer is what a DeviceTransport's PeerMemory is as well: one other rank's device.
type DevicePeer interface {
	// Number is how many other peers the domain had attached before.
	Number() int
	// HasDevice reports whether the peer uses a device.
	HasDevice() bool
	// Import is where n bytes at offset in the peer's extent are mapped on this rank's device. It maps the extent if that
	// was not done yet, which may wait for the peer's process until ctx ends. The address is good until the peer withdraws
	// the extent. The error is fault.ErrStale if there is no such extent.
	Import(ctx context.Context, extent uint32, offset uint64, n int) (cuda.Addr, error)
	// Hold is Import of what stays mapped until Unhold, even if the peer withdraws the extent, which waits for that.
	Hold(ctx context.Context, extent uint32, offset uint64, n int) (cuda.Addr, error)
	// Unhold ends one Hold. Kernels that use the memory have ended.
	Unhold(extent uint32) error
	// Row is this rank's table of the peer's extents for kernels, in device memory: u64 [MaxExtents], the address of
	// each extent here, 0 for what is not imported. It is 0 if one of the two uses no device.
	Row() cuda.Addr
}

// DevicePeer is the device of rank r of the team, as this rank reaches it.
func (c *Comm) DevicePeer(r int) DevicePeer { return c.team.Peers[r].Mem.(DevicePeer) }
