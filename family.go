package ubcoll

import "context"

// NoColor is the color of a rank that takes no part in a Split.
const NoColor = -1

// Split makes a communicator of the ranks that give the same color, ordered by key, and by rank in c for equal keys. A
// rank whose color is [NoColor], or any negative number, takes no part and gets nil and no error. Collective and
// blocking, for all ranks of c; on a view made by On too, after the operations queued there. Not in a group
// ([ErrArgument]).
//
// The new communicator shares the rank's memory: memory that is allocated or registered with one of the rank's
// communicators is known to all of them, and is registered once. Buffers live until the last of these communicators
// closes; a registration lives until the communicator that made it closes. The new communicator has its own order of
// operations, its own errors (Err), and c's [Options]; c may be closed before it. If Split fails on one rank, it fails
// on all; it breaks c in the same cases as a collective does. For one communicator per host, use as color the lowest
// rank that has this rank's Hostname. Where ranks share a device, each new communicator takes a small part of it until it
// is closed; where none is left, the new one has no device, which GPU explains, or Split fails with [ErrNotSupported] if
// devices are required. Source: MPI_Comm_split (MPI-4.1, 7.4.2), ncclCommSplit.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	child, err := c.view().Split(ctx, color, key)
	return (*Comm)(child), err
}

// Dup makes a communicator of the same ranks, for collectives that run beside those of c, from another goroutine. On
// devices, operations of one may have to wait until those of the other leave room, so all ranks must queue large ones
// of both in the same order. Collective and blocking; otherwise as Split. Source: MPI_Comm_dup.
func (c *Comm) Dup(ctx context.Context) (*Comm, error) {
	child, err := c.view().Dup(ctx)
	return (*Comm)(child), err
}
