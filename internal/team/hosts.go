package team

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/schedule"
)

// Hosts is the other hosts of a team's communicator, as paths see them.
type Hosts interface {
	// Size is the number of hosts, Host the number of this rank's host, and Of the number of the host of a rank of the
	// communicator.
	Size() int
	Host() int
	Of(rank int) int
	// Ranks is the number of ranks of the communicator, On that of one host, and Most the largest number on any host.
	Ranks() int
	On(host int) int
	Most() int
	// Layout is what way data take depends on. It does not change.
	Layout() *Layout
	// Combine combines n elements of some hosts with those of others. last says that these are all hosts.
	Combine(w *Work, out, a, b unsafe.Pointer, as, bs schedule.Span, n int, last bool)
	// Members are the ranks of a host, in the order of its team.
	Members(host int) []int
	// Staged reports whether Path.Stages did on any host, for the running operation.
	Staged() bool
	// Link is how data goes between the hosts. It does not change.
	Link() *Link
	// Scratch has one pointer for each host, for the running operation to use.
	Scratch() []unsafe.Pointer
	// Counts has room for two counts for each rank of the communicator, for the running operation to use.
	Counts() []uint64
	// Progress moves what other hosts send and wait for, while this rank waits for its team. It does not block. Any
	// goroutine.
	Progress()

	// Lanes is how many ranks of each host exchange data with other hosts beside each other, Lane the number of this
	// rank's lane or -1, and Owner the rank of the team that has a lane. The leader has lane 0.
	Lanes() int
	Lane() int
	Owner(lane int) int
	// Move completes the operation's Path.Exchange, with the owners of this rank's lane on all hosts. On all hosts the
	// results are bitwise the same. local brings the team's data, if the exchange does not have them; or it is nil. Blocks, in
	// the communicator's turn; an error breaks the communicator.
	Move(ctx context.Context, local Local) error
	// Compare completes the exchange of counts on the first rank of each host, and then all hosts agree that they match.
	// mine is the team's verdict. An error is as one of the first agreement: it leaves the communicator usable.
	Compare(ctx context.Context, w *Work, mine error) error
	// Exchange does an exchange that begins only now. The owners of a lane do the same ones in the same order.
	Exchange(ctx context.Context, x Exchange) error
	// Fabric is how to use a CollNet plugin, if Layout().CollNet does something.
	Fabric() Fabric
}

// Layout is what all ranks of a communicator know of its hosts.
type Layout struct {
	Hosts, Ranks int // of the communicator
	Most         int // ranks on the host that has most of them
	Lanes        int
	RDMA         bool // all ranks have RDMA devices: see Team.Costs
	Turns        bool // some ranks of a host that are several processes take turns on a device
	CollNet      CollNet

	// Contribution is how many bytes of data a path may contribute (see Path.Contribute), Share how many if all hosts do, and
	// Routed how many a block may have that is routed, if each host has one for each other.
	Contribution, Share, Routed int
}

// MostLanes is the most lanes of a communicator.
const MostLanes = 8

// Number is the sequence number of the communicator's running operation. It differs from Seq because some exchanges are no
// operations, and some are several.
func (t *Team) Number() uint64 { return t.Seq - t.Parts }

// Broken returns why the communicator is no longer usable, or nil.
func (t *Team) Broken() *fault.Error { return t.comm.Broken() }

// Fail breaks the communicator.
func (t *Team) Fail(e *fault.Error) error { return t.comm.Fail(e) }

// ErrorOf makes the error of a wait, about a rank of the communicator.
func (t *Team) ErrorOf(s *WaitState, about int, err error) *fault.Error {
	return t.errorAt(s, about, err)
}

// Outcome is the place where the team's first rank writes n bytes of the running operation's result for the others,
// before it publishes the verdict of all hosts. n is at most PartialBytes.
func (t *Team) Outcome(n int) unsafe.Pointer {
	if n <= PayloadSize {
		return unsafe.Pointer(&t.Peers[0].Area.Verdict[t.Seq&1].payload)
	}
	return unsafe.Add(t.Eager(0), EagerBytes-PartialBytes)
}

// Whole is the number of the communicator's ranks.
func (t *Team) Whole() int { return t.all }
