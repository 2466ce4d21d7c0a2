package team

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// Hosts is the other hosts of a team's communicator, as paths see them. What moves data is called on the team's first
// rank, the leader, in the communicator's turn; all leaders call it alike.
type Hosts interface {
	// Size is the number of hosts, Host this rank's, Of that of a rank of the communicator.
	Size() int
	Host() int
	Of(rank int) int
	// Ranks is how many the communicator has, On how many a host has, Most how many the host with most of them has.
	Ranks() int
	On(host int) int
	Most() int
	// Scratch is one pointer for each host, for the running operation to use.
	Scratch() []unsafe.Pointer
	// Sub runs w among the team, as a part of the running operation, on which all ranks have agreed: its root is a rank
	// of the team. Every rank of the team calls it.
	Sub(ctx context.Context, w *Work) error

	// ExpectReduce lets the other leaders write what AllReduce receives, for w in pieces of so many elements: before the
	// hosts have agreed, in Path.Contribute.
	ExpectReduce(w *Work, piece int)
	// AllReduce combines n elements, from element off on, of what the leaders have at own, and leaves the result on each
	// at the same place of w's destination, bitwise the same. own may be that. Blocks; an error breaks the communicator.
	AllReduce(ctx context.Context, w *Work, own unsafe.Pointer, off, n int) error
	// ExpectBroadcast is ExpectReduce for Broadcast.
	ExpectBroadcast(w *Work, into unsafe.Pointer, piece int)
	// Broadcast passes n elements, from element off on, of what the leader of the root's host has at p on to the others'
	// p. Blocks; an error breaks the communicator.
	Broadcast(ctx context.Context, w *Work, p unsafe.Pointer, off, n int) error
}

// Number is the number of the communicator's running operation: several of a team may be parts of one.
func (t *Team) Number() uint64 { return t.Seq - t.Parts }

// Broken is why the communicator is of no more use, or nil.
func (t *Team) Broken() *fault.Error { return t.comm.Broken() }

// Fail breaks the communicator.
func (t *Team) Fail(e *fault.Error) error { return t.comm.Fail(e) }

// ErrorOf is an error of a wait, about a rank of the communicator.
func (t *Team) ErrorOf(s *WaitState, about int, err error) *fault.Error {
	return t.errorAt(s, about, err)
}

// Outcome is where the team's first rank leaves n bytes of the running operation's result for the others, PartialBytes at
// most, before its word for all hosts.
func (t *Team) Outcome(n int) unsafe.Pointer {
	if n <= PayloadSize {
		return unsafe.Pointer(&t.Peers[0].Area.Verdict[t.Seq&1].payload)
	}
	return unsafe.Add(t.Eager(0), EagerBytes-PartialBytes)
}

// Whole is the number of the communicator's ranks.
func (t *Team) Whole() int { return t.all }
