package engine

import (
	"context"
	"time"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// Limits of devices, which kernels and transports share.
const (
	MaxRanks   = 72             // ranks that use devices together: an NVLink domain has no more devices
	MaxExtents = 1024           // allocations that a rank exports at a time
	RowBytes   = MaxExtents * 8 // the size of a DevicePeer's Row, in device memory
)

// Uploader is a stream on which nothing waits for a peer.
type Uploader interface {
	Upload(dst cuda.Addr, src []byte) error // returns when that is done
}

// DeviceTransport is the part of a Transport that reaches other ranks' devices.
type DeviceTransport interface {
	// UseDevice makes the transport export memory of ctx's device, which the heap already uses, and import memory of
	// peers that use a device, at most peers of them. It writes tables by u. It is called once, before Card. ctx and u
	// stay the caller's, and must stay open until after Close.
	UseDevice(ctx *cuda.Context, u Uploader, peers int) error
	// Export makes a device allocation reachable, until Withdraw, for all peers that use a device, also for those that
	// Attach finds later. Local; it does not wait for the peers, which import it in the background: see Missing. extent
	// is its number among this rank's exports. Exporting it again changes nothing. The error is fault.ErrStale if the
	// memory was freed without the library's knowledge, and fault.ErrLimit if there are too many exports.
	Export(a *mem.Allocation) (extent uint32, err error)
	// Withdraw ends an Export. It waits for this rank's queued work, then until no peer has the memory mapped, for at
	// most limit. If it fails, the error names the peer and wraps fault.ErrTimeout, and the number of the extent is not
	// used again until that peer has unmapped it. Withdrawing an allocation that is not exported does nothing.
	Withdraw(limit time.Duration, a *mem.Allocation) error
	// Missing returns a peer, by its DevicePeer.Number, that has not imported this rank's extent, and why; -1 and "" if
	// all peers that use a device have imported it. It costs a few loads and takes no lock.
	Missing(extent uint32) (peer int, why string)
	// Lend lets peers have duplicates of a descriptor of this rank, by its number, until end. The caller keeps it.
	Lend(fd int) (number uint64, end func(), err error)
	// Opened is how many times extents of peers were mapped here.
	Opened() uint64
}

// DevicePeer is one other rank's device. A DeviceTransport's PeerMemory implements it as well.
type DevicePeer interface {
	// Number is how many other peers the domain had attached before this one.
	Number() int
	// HasDevice reports whether the peer uses a device.
	HasDevice() bool
	// Import returns the address on this rank's device of n bytes at offset in the peer's extent. It maps the extent if
	// necessary, which may wait for the peer's process until ctx ends. The address is valid until the peer withdraws
	// the extent. The error is fault.ErrStale if there is no such extent.
	Import(ctx context.Context, extent uint32, offset uint64, n int) (cuda.Addr, error)
	// Hold is Import for memory that must stay mapped until Unhold, even if the peer withdraws it: Withdraw waits.
	Hold(ctx context.Context, extent uint32, offset uint64, n int) (cuda.Addr, error)
	// Unhold ends one Hold. Kernels that use the memory must have ended.
	Unhold(extent uint32) error
	// Borrow returns a duplicate of a descriptor that the peer lends under that number; the caller closes it. It may wait
	// for the peer's process until ctx ends.
	Borrow(ctx context.Context, number uint64) (fd int, err error)
	// Row is this rank's table of the peer's extents for kernels, in device memory: u64 [MaxExtents], the local address
	// of each extent, or 0 if it is not imported. Row is 0 if one of the two ranks uses no device.
	Row() cuda.Addr
}

// DevicePeer is the device of rank r of the team, as this rank reaches it.
func (c *Comm) DevicePeer(r int) DevicePeer { return c.team.Peers[r].Mem.(DevicePeer) }
