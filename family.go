package ubcoll

import "context"

// NoColor is the color of a rank that takes no part in a Split.
const NoColor = -1

// Split makes a communicator of the ranks that give the same color: ordered by key, and by their rank here where keys
// are equal. A rank whose color is [NoColor], or negative at all, takes no part and gets nil and no error. Collective
// and blocking, for all ranks of c; on a view made by On too, after what is queued. Not in a group ([ErrArgument]).
//
// The new communicator has the same memory: what is allocated or registered with one of the rank's communicators is
// known to all and is registered once. Buffers live until the last of them closes, registrations until the one does
// that they were made with. It has its own order of operations, its own errors (Err), and c's [Options]; c may be
// closed before it. If it fails on one rank, it fails on all; what breaks c and what does not is as for collectives. A
// color that a host's ranks have in common, as the first rank with this rank's Hostname, makes one of each host.
// Source: MPI_Comm_split (MPI-4.1, 7.4.2), ncclCommSplit.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	child, err := c.view().Split(ctx, color, key)
	return (*Comm)(child), err
}

// Dup makes a communicator of the same ranks, for collectives that run beside those of c, from another goroutine.
// On devices, where operations of one may have to wait until those of another leave room, all ranks queue large ones of
// both in the same order. Collective and blocking; otherwise as Split. Source: MPI_Comm_dup.
func (c *Comm) Dup(ctx context.Context) (*Comm, error) {
	child, err := c.view().Dup(ctx)
	return (*Comm)(child), err
}
