package team

import (
	"context"
	"encoding/json"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// Transport is a way to reach other ranks' memory of the host. A rank's domain has one of each kind, shared by its
// communicators.
type Transport interface {
	register.Backend // makes this rank's memory reachable

	// Card is what a peer needs for Attach. Local, does not block.
	Card() (json.RawMessage, error)
	// Attach reaches the peer whose Card this is. Local; may wait for the peer's process until ctx ends.
	Attach(ctx context.Context, card json.RawMessage) (PeerMemory, error)
	// Progress runs the control work that is pending, such as importing what peers have published. It does not wait.
	Progress()
	// Look looks which of the peers' processes have ended, for PeerMemory.Dead. It costs one system call, whatever their
	// number, and does not wait.
	Look()
	// Close detaches all peers.
	Close() error
}

// PeerMemory is one other rank's memory.
type PeerMemory interface {
	// Resolve is the address here of n bytes of the peer's memory. What it returns stays mapped until Close. The
	// location may come from anywhere: it is checked. Resolve imports what was not imported yet.
	Resolve(l mem.Location, n int) (unsafe.Pointer, error)
	// Live reports whether the peer's allocation still exists.
	Live(l mem.Location) bool
	// Dead reports whether the peer's process had ended when Look was called last.
	Dead() bool
	// Close gives up the mappings.
	Close() error
}
