// Package team is the ranks of one host and what they share: control areas, the descriptors by which they agree, the
// waits, staging memory, and Work, one operation.
package team

import (
	"log/slog"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// Team is one rank's side of the ranks of one host: what they share, and how they agree and wait.
type Team struct {
	rank, size int
	comm       Comm
	Timeout    atomic.Int64 // how long a wait lasts without the peers, in nanoseconds
	tuning     tuning.Table
	algorithm  string          // that Options asks for, or ""
	Area       *mem.Allocation // control area, staging memory, and what attachments have there
	whole      int             // bytes of each rank's area
	populate   bool            // areas when they are mapped
	Me         *Area
	Peers      []Peer  // by rank; peers[rank] is this rank itself
	inProcess  bool    // some peer is a goroutine of this process
	outside    bool    // some peer is not
	oneP       bool    // goroutines of this process have one processor
	Crowded    bool    // more ranks than processors
	apart      bool    // yields do not give a processor to all other ranks: see shm.Nap
	groups     [][]int // see groups.go; nil: every rank looks at every other
	mine       int     // this rank's group
	near       []int   // see Near
	names      []int   // the communicator's ranks, by those of the team: see Name
	all        int     // how many the communicator has

	Work    Work             // the running operation; its wide stores must not cross cache lines: see TestWorkLines
	Seq     uint64           // of that
	srcs    []unsafe.Pointer // for Buffers
	dsts    []unsafe.Pointer
	scratch []unsafe.Pointer

	Hosts Hosts  // the communicator's other hosts, nil if there are none
	Parts uint64 // how many of Seq operations were parts of others
	Outer *Outer // the communicator's operation that the running one is a part of; nil: it is that itself
}

// Comm is what a team asks of the communicator that it is a part of.
type Comm interface {
	// Broken is why the communicator is of no more use, or nil.
	Broken() *fault.Error
	// Fail breaks it: this rank's later calls return an error, and its peers' waits end.
	Fail(e *fault.Error) error
	// Acquire finds the registration of v's memory, or makes it if the policy allows, and holds it until the operation
	// releases b.Claim; a graph's operation finds what the graph registered. A buffer without one is staged; that is no
	// error.
	Acquire(v *Vec, b *Buf, graph bool) error
	// Advance moves on what does not move by itself while this rank waits. It does not wait.
	Advance()
	// Look looks which of the peers' processes have ended.
	Look()
	// Log takes what is to be said and cannot be returned.
	Log() *slog.Logger
	// Hostname is the name of the host of one of the communicator's ranks, "" if there is no such rank.
	Hostname(rank int) string
}

// Outer is an operation of a communicator, for teams of which it is more than one operation: they do not number theirs
// as the communicator does, and what is said of them is said of it.
type Outer struct {
	Kind OpKind
	Seq  uint64
}

// Peer is what this rank knows of a rank of the team.
type Peer struct {
	Area    *Area
	eager   unsafe.Pointer
	staging unsafe.Pointer
	Mem     PeerMemory // nil for this rank itself
	Proc    shm.Process
	Host    string
	Domain  uint64
	At      mem.Location // of area
	cache   int          // its last-level cache and its memory node; -1: not known
	node    int
}

// Each rank has staging memory in each communicator: eager slots, which may be written before the running operation is
// published, and bulk staging, which may be written once all ranks have agreed on it.
const (
	EagerBytes   = 16 << 10 // of one eager slot
	StagingBytes = 512 << 10

	SharedBytes = areaBytes + 2*EagerBytes + StagingBytes
)

const claimBytes = 1 << 10 // about what a core can have under way

// Rank is this rank among those of the team, which have the order that they have in the communicator: see Name.
func (t *Team) Rank() int { return t.rank }

// Size is the number of ranks of the team.
func (t *Team) Size() int { return t.size }

// Acquire finds the registration of v's memory, or makes it: for Path.Acquire.
func (t *Team) Acquire(v *Vec, b *Buf, graph bool) error { return t.comm.Acquire(v, b, graph) }

// Algorithm is the algorithm that the communicator's options ask for, or "".
func (t *Team) Algorithm() string { return t.algorithm }

// AttachmentArea is where in a rank's area what the attachments have there begins.
func (t *Team) AttachmentArea(rank int) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(t.Peers[rank].Area), SharedBytes)
}

// Tuning is the table by which operations choose their algorithms.
func (t *Team) Tuning() *tuning.Table { return &t.tuning }

// Tune replaces the table, on all ranks between the same two operations: for measuring.
func (t *Team) Tune(table tuning.Table) { t.tuning = table }

// ID is the number of the communicator, the same on all ranks.
func (t *Team) ID() uint64 { return t.Me.comm }

// Leave says in this rank's area that it takes no part in the communicator any more.
func (t *Team) Leave() { t.Me.State.Store(StateClosed) }

// Closed reports whether the rank has left the communicator.
func (p *Peer) Closed() bool { return p.Area.State.Load() == StateClosed }

// Lost is what the rank says of why its communicator broke, 0 while it is usable: see LostError.
func (p *Peer) Lost() uint64 { return p.Area.Lost.Load() }

// Eager is a rank's eager slot of the running operation. This rank writes its own before it publishes: its peers have
// done with the slot, which was that of the operation before the last. They read it after agreement.
func (t *Team) Eager(rank int) unsafe.Pointer {
	return unsafe.Add(t.Peers[rank].eager, int(t.Seq&1)*EagerBytes)
}

// ClaimEager begins to fetch the cache lines of this rank's eager slot that n bytes will be written to.
func (t *Team) ClaimEager(n int) {
	p := t.Eager(t.rank)
	for i := 0; i < min(n, claimBytes); i += 64 {
		spin.Claim(unsafe.Add(p, i))
	}
}

// Payload is the payload, PayloadSize bytes, of a rank's descriptor of the running operation. The rules are Eager's.
func (t *Team) Payload(rank int) unsafe.Pointer {
	return unsafe.Pointer(&t.Peers[rank].Area.Desc[t.Seq&1].payload)
}

// Staging is a rank's staging memory, StagingBytes long.
func (t *Team) Staging(rank int) unsafe.Pointer { return t.Peers[rank].staging }

// Errorf is an error of the running operation, about one of the communicator's ranks, or -1.
func (t *Team) Errorf(step string, about int, err error) *fault.Error {
	is := t.running()
	return &fault.Error{Op: is.Kind.String(), Seq: is.Seq, Rank: t.Name(t.rank), Peer: about, Host: t.Peers[t.rank].Host,
		Step: step, Device: hw.Host, Err: err}
}

// running is the operation that runs, as the communicator has it.
func (t *Team) running() Outer {
	if t.Outer != nil {
		return *t.Outer
	}
	return Outer{t.Work.Kind, t.Number()}
}

// Name is the communicator's rank of a rank of the team: what errors, messages and the words of areas call it.
func (t *Team) Name(rank int) int { return t.names[rank] }

// Index is the team's rank of one of the communicator's ranks, or -1 if that is on another host.
func (t *Team) Index(name int) int { return slices.Index(t.names, name) }
