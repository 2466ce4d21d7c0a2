package bootstrap

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// Exchanger is what a [Bootstrap] can have beside its methods: bytes to and from one rank, in which no other takes part.
// With it ranks on several hosts can tell each other where they are, a pair at a time, in as many steps as the logarithm
// of the hosts, and nobody need hear from everybody. It is optional; where a bootstrap has none, AllGather has to do, which
// brings every rank what all ranks tell: some 10 MB in a job of 4095 ranks, and 40 GB in all.
//
// [MPI], [Env] and [Local] have it. [Gompi] has not, since all it may do on the program's communicator is collective, nor
// has [PerProcess].
type Exchanger interface {
	// Exchange gives mine to peer, and returns what peer passed. Both of the two call it, each with the other's rank; no
	// other rank need. It blocks until peer has called it or ctx ends. The lengths may differ; nil and empty are allowed
	// and arrive with length 0. 1 MiB is always possible; what is more than a kind can carry is ErrLimit. mine is only
	// read, and not kept after the return; the result belongs to the caller.
	//
	// A rank makes one call at a time, of AllGather or of Exchange: a second one meanwhile, or a Close, is ErrBusy. A pair's
	// exchanges are matched in the order in which each of the two makes them, which is the same in both, their AllGathers
	// included. Nothing is given in advance: where the ranks wait for each other in a circle (0 for 1, 1 for 2, 2 for 0),
	// all wait until a ctx ends. A peer that is no rank, or this one, is ErrArgument, and nothing has happened.
	//
	// Any other error breaks the bootstrap for this rank, as one of AllGather does, and means the same: ErrAborted when a
	// rank called Abort, ErrPeerLost when peer or another rank died, closed or gave up, ErrTimeout when another rank's ctx
	// passed its deadline, the context's error when this one's ctx ended (its cause, if that is ErrTimeout). All name the
	// rank that it is about as a *fault.Error's Peer: peer, if it did not come in time. The bytes may have reached peer all
	// the same, whose call has succeeded then: what both must have comes with another exchange.
	Exchange(ctx context.Context, peer int, mine []byte) ([]byte, error)
}

// checkPeer is why b cannot exchange with peer, or nil.
func checkPeer(b Bootstrap, peer int) error {
	if peer < 0 || peer >= b.Size() || peer == b.Rank() {
		return fmt.Errorf("bootstrap: rank %d of %d cannot exchange with rank %d: %w", b.Rank(), b.Size(), peer, fault.ErrArgument)
	}
	return nil
}
