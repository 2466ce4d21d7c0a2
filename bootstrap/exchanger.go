package bootstrap

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// Exchanger is an optional interface of a [Bootstrap]: it exchanges bytes between two ranks, without the others. With
// it, ranks on several hosts can tell each other their addresses in pairs, in a number of steps logarithmic in the
// hosts, and no rank hears from all. Without it the library uses AllGather, which brings every rank what all ranks
// tell: some 10 MB for each rank in a job of 4095 ranks, and 40 GB in all.
//
// [MPI], [Env] and [Local] implement it. [Gompi] does not, because it may only call collectives on the program's
// communicator. Neither does [PerProcess].
type Exchanger interface {
	// Exchange gives mine to peer, and returns what peer passed. Both ranks call it, each with the other's rank; no
	// other rank needs to. It blocks until peer has called it or ctx ends. The lengths may differ; nil and empty are
	// allowed, and arrive with length 0. Every kind carries 1 MiB; more than a kind can carry is ErrLimit. Exchange
	// only reads mine and does not keep it; the result belongs to the caller.
	//
	// A rank makes one call at a time, of AllGather or of Exchange: a second one meanwhile, or a Close, is ErrBusy. The
	// exchanges of a pair match in the order in which the two ranks make them, which must be the same on both, their
	// AllGathers included. Nothing is sent ahead: if ranks wait for each other in a circle (0 for 1, 1 for 2, 2 for 0),
	// all wait until a ctx ends. If peer is this rank or no rank, Exchange returns ErrArgument and has done nothing.
	//
	// Any other error breaks the bootstrap for this rank, as an error of AllGather does, and means the same: ErrAborted
	// if a rank called Abort; ErrPeerLost if peer or another rank died, closed or gave up; ErrTimeout if another rank's
	// ctx passed its deadline; the context's error if this rank's ctx ended (or its cause, if that is ErrTimeout).
	// Every error is a *fault.Error whose Peer is the rank that it is about: peer, if it did not come in time. After an
	// error the bytes may still have reached peer, whose call then succeeded. To be sure that both have them, use
	// another exchange.
	Exchange(ctx context.Context, peer int, mine []byte) ([]byte, error)
}

// checkPeer returns why b cannot exchange with peer, or nil.
func checkPeer(b Bootstrap, peer int) error {
	if peer < 0 || peer >= b.Size() || peer == b.Rank() {
		return fmt.Errorf("bootstrap: rank %d of %d cannot exchange with rank %d: %w", b.Rank(), b.Size(), peer, fault.ErrArgument)
	}
	return nil
}
