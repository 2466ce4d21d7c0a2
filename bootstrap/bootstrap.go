// Package bootstrap lets the ranks of a job find each other: it gives each rank its number, one exchange of bytes among
// all ranks, and one way to end the job. The library uses it while communicators open, close and abort, never in
// between.
//
// There are four kinds. [MPI] starts MPI and is for programs under mpirun or srun (build tag mpi); [Gompi] (same tag)
// is for programs that run MPI themselves; [Env] takes the ranks from environment variables, for processes without MPI;
// [Local] makes goroutine ranks. [PerProcess] puts several goroutine ranks into each process of another kind. A
// bootstrap may also implement the optional [Exchanger], [Hoster], [Keyed], [Survivor] and [Watcher].
package bootstrap

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// Bootstrap is one rank's view of its job.
//
// A rank makes one AllGather at a time: a second one meanwhile, or a Close, is ErrBusy. Rank, Size and Abort may be
// called from any goroutine at any time. After a failed AllGather, only Abort and Close are of use.
type Bootstrap interface {
	// Rank is this rank, from 0 to Size()-1. Local, does not block.
	Rank() int

	// Size is the number of ranks. Local, does not block.
	Size() int

	// AllGather gives every rank what each rank passed, in rank order. Collective: every rank calls it, in the same
	// order as its other calls. It blocks until all ranks have called it or ctx ends. Lengths may differ between the
	// ranks; nil and empty are allowed, and both arrive with length 0. AllGather only reads mine and does not keep it;
	// the result belongs to the caller.
	//
	// An error breaks the bootstrap for this rank: ErrAborted if a rank called Abort; ErrPeerLost if a rank died,
	// closed or gave up; ErrTimeout if another rank's ctx passed its deadline; the context's error if this rank's ctx
	// ended (or its cause, if that is ErrTimeout). Every error is a *fault.Error whose Peer is the rank that it is
	// about. If several ranks did not come in time, Peer is the first of them, as far as the kind can know.
	AllGather(ctx context.Context, mine []byte) ([][]byte, error)

	// Abort ends the job with an exit code. Local: one rank calls it, whatever the others do, even while its own
	// AllGather runs. Under MPI it kills every process of the job, this one included, and does not return. Elsewhere it
	// tells the other ranks, whose pending or next AllGather returns ErrAborted, and returns within 2 seconds; the
	// caller then has to exit by itself.
	Abort(code int)

	// Close ends this rank's part and frees what the bootstrap holds. Every rank calls it, after its last AllGather; it
	// may wait for the others, for at most a minute (ErrTimeout). After an error or an Abort it is local, and leaves
	// MPI unfinalized, because finalizing while a peer is gone can hang. A second Close is ErrClosed.
	Close() error
}

// ErrLauncher means that a launcher started several ranks, but the linked MPI library sees only one: they belong to
// different MPIs. The wrapping error names both.
var ErrLauncher = fmt.Errorf("the launcher does not belong to the linked MPI library: %w", fault.ErrMismatch)

// gate admits one call at a time, and none after the close.
type gate struct{ state atomic.Int32 }

const (
	idle int32 = iota
	busy
	closed
)

func (g *gate) enter(to int32) error {
	if g.state.CompareAndSwap(idle, to) {
		return nil
	}
	if g.state.Load() == closed {
		return fmt.Errorf("bootstrap: %w", fault.ErrClosed)
	}
	return fmt.Errorf("bootstrap: one call at a time: %w", fault.ErrBusy)
}

func (g *gate) leave() { g.state.Store(idle) }

// cause is why a job broke, independent of the rank that reports it.
type cause struct {
	peer int    // the rank that it is about
	code int    // of an Abort
	why  string // what peer did; "" if err says it
	err  error
}

func aborted(rank, code int) cause {
	return cause{rank, code, fmt.Sprintf("called Abort(%d)", code), fault.ErrAborted}
}

func lost(rank int, why string) cause { return cause{rank, 0, why, fault.ErrPeerLost} }

// timedOutWaiting is the cause when the time of rank waited was up before the ranks of missing, at least one, had come.
func timedOutWaiting(missing []int, waited int) cause {
	return cause{missing[0], 0, fmt.Sprintf("%s had not come when the time of rank %d was up", rankList(missing), waited),
		fault.ErrTimeout}
}

// gaveUp is the cause when a rank leaves for a reason of its own.
func gaveUp(rank int, why error) cause {
	c := lost(rank, "gave up: "+why.Error())
	if reason.TimedOut(why) {
		c.err = fault.ErrTimeout
	}
	return c
}

// on is the cause as rank reports it.
func (c cause) on(rank int) error {
	e := &fault.Error{Op: "bootstrap", Rank: rank, Peer: c.peer, Err: c.err}
	if c.peer == rank {
		e.Peer = -1
	}
	if c.why != "" {
		e.Err = fmt.Errorf("%s: %w", c.why, c.err)
	}
	return e
}
