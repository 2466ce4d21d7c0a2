package engine

import (
	"context"
	"encoding/json"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// Transport is a way to reach other ranks' memory. A rank's domain has one of each kind, shared by its communicators.
type Transport interface {
	register.Backend // makes this rank's memory reachable

	// Card is what a peer needs for Attach. Local, does not block.
	Card() (json.RawMessage, error)
	// Attach reaches the peer whose Card this is. Local; may wait for the peer's process until ctx ends.
	Attach(ctx context.Context, card json.RawMessage) (Peer, error)
	// Progress runs the control work that is pending, such as importing what peers have published. It does not wait.
	Progress()
	// Close detaches all peers.
	Close() error

	// UseDevice lets device memory of ctx be exported, and that of peers imported. It is called before Card.
	UseDevice(ctx *cuda.Context) error
	// Export publishes a device allocation to all attached peers, once; they import it in the background.
	Export(a *mem.Allocation) (extent uint32, err error)
	// Withdraw ends an export. It waits, for ctx at most, until the importers have unmapped it.
	Withdraw(ctx context.Context, a *mem.Allocation) error
	// Missing is which peer, by the order of Attach, has not imported an extent, and why; -1 when all have it. It takes
	// no lock.
	Missing(extent uint32) (peer int, why string)
}

// Peer is one other rank's memory.
type Peer interface {
	// Resolve is the address here of n bytes of the peer's memory. What it returns stays mapped until Close. The
	// location may come from anywhere: it is checked. Resolve imports what was not imported yet.
	Resolve(l mem.Location, n int) (unsafe.Pointer, error)
	// Live reports whether the peer's allocation still exists.
	Live(l mem.Location) bool
	// Close gives up the mappings.
	Close() error

	// HasDevice reports whether the peer exports device memory.
	HasDevice() bool
	// Import is where an extent of the peer is mapped here. It maps it if that has not happened yet.
	Import(ctx context.Context, extent uint32) (cuda.Addr, error)
	// Row is this rank's table, in device memory, of where the peer's extents are mapped here.
	Row() cuda.Addr
}
