package team

import (
	"context"
	"encoding/json"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// Transport is a way to reach the memory of other ranks of this host. A rank's domain has one of each kind, which its
// communicators share.
type Transport interface {
	register.Backend // makes this rank's memory reachable

	// Card is what a peer needs for Attach. Local, does not block.
	Card() (json.RawMessage, error)
	// Attach reaches the peer whose Card this is. Local; may wait for the peer's process until ctx ends.
	Attach(ctx context.Context, card json.RawMessage) (PeerMemory, error)
	// Progress runs the control work that is pending, such as importing what peers have published. It does not wait.
	Progress()
	// Look checks which of the peers' processes have ended, for PeerMemory.Dead. It costs one system call for any
	// number of peers, and does not wait.
	Look()
	// Close detaches all peers.
	Close() error
}

// PeerMemory is one other rank's memory.
type PeerMemory interface {
	// Resolve returns the local address of n bytes of the peer's memory, importing it if necessary. The address stays
	// mapped until Close. The location may come from anywhere: Resolve checks it.
	Resolve(l mem.Location, n int) (unsafe.Pointer, error)
	// ReadOnly maps the pages of n bytes of the peer's memory, which begin at a page, so that a store there faults. It does
	// not look whether they are still what the caller thinks. unmap ends the mapping.
	ReadOnly(l mem.Location, n int) (p unsafe.Pointer, unmap func() error, err error)
	// Live reports whether the peer's allocation still exists.
	Live(l mem.Location) bool
	// Dead reports whether the peer's process had ended at the last Look.
	Dead() bool
	// Close gives up the mappings.
	Close() error
}
