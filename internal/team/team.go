// Package team is the ranks of one host and what they share: control areas, the descriptors by which they agree, waits,
// staging memory, and Work, which describes one operation.
package team

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// Team is one rank's side of a team, the ranks of one host in a communicator: what they share, and how they agree and
// wait.
type Team struct {
	rank, size int
	comm       Comm
	Timeout    atomic.Int64 // how long a wait for peers may last, in nanoseconds
	tuning     tuning.Table
	Area       *mem.Allocation // this rank's control area, staging memory, and its attachments' memory
	whole      int             // bytes of each rank's area
	populate   bool            // touch areas' pages when they are mapped
	Me         *Area
	Peers      []Peer  // by rank; peers[rank] is this rank itself
	inProcess  bool    // some peer is a goroutine of this process
	outside    bool    // some peer is in another process
	oneP       bool    // this process's goroutines have only one processor
	Crowded    bool    // more ranks than processors
	apart      bool    // a yield cannot give the processor to every other rank: see shm.Nap
	groups     [][]int // see groups.go; nil: every rank reads every other's descriptor
	near       []int   // see Near

	Work    Work             // for a call that runs at once; its wide stores must not cross cache lines: see TestWorkLines
	Current *Work            // the running operation, if it is not Work
	Seq     uint64           // of the running operation
	srcs    []unsafe.Pointer // reused by Buffers
	dsts    []unsafe.Pointer
	scratch []unsafe.Pointer

	algorithm string // the one that Options asks for, or ""
	mine      int    // this rank's group
	names     []int  // by the team's ranks: their ranks in the communicator
	all       int    // the size of the communicator
	Hosts     Hosts  // the communicator's other hosts, nil if there are none
	Parts     uint64 // how many of the Seq exchanges were no operations

	Flight flight.Recorder // of this rank's operations; the turn guards it
	Late   Late            // of the running operation

	told        uint64       // changes of this rank's board
	publishing  sync.Mutex   // held by PublishLost
	ReportAfter atomic.Int64 // how long a wait lasts, in nanoseconds, before it logs once who is missing
}

// Late is the rank of the team that was the last to agree, if this rank has waited for it for longer than lateAfter, and for
// how long. The zero Late says that this rank has not. Among several hosts it stays until these have agreed.
type Late struct {
	Rank int
	For  time.Duration
}

// Comm is what a team needs from the communicator that it belongs to.
type Comm interface {
	// Broken returns why the communicator is no longer usable, or nil.
	Broken() *fault.Error
	// Fail breaks the communicator: this rank's later calls return an error, and its peers' waits end.
	Fail(e *fault.Error) error
	// Acquire finds the registration of v's memory, or makes it if the policy allows, and holds it until the operation
	// releases b.Claim. A graph's operation finds what the graph registered. A buffer without a registration is staged;
	// that is no error.
	Acquire(v *Vec, b *Buf, graph bool) error
	// Advance moves on the work of this rank that only proceeds when called, while this rank waits. It does not wait.
	Advance()
	// Look checks which of the peers' processes have ended.
	Look()
	// Log is the logger for what no call can return.
	Log() *slog.Logger
	// Arrived says that a rank of the communicator was the last to agree on the running operation, and how long this rank has
	// waited for it.
	Arrived(rank int, waited time.Duration)
	// Hostname is the name of the host of one of the communicator's ranks, "" if there is no such rank.
	Hostname(rank int) string
	// RunPart runs w, which is a part of the operation w.Of, for Path.Drive. first says that none has run yet: an error then
	// leaves the communicator usable, and later breaks it.
	RunPart(ctx context.Context, w *Work, first bool) error
	// Carry begins to carry w's data between this rank's device and the host, and holds w's memory for a call that waits for it.
	Carry(ctx context.Context, w *Work) (Carrier, error)
}

// Carrier carries an operation's data between memory of this rank's device and memory of the host, by the parts of its
// Division. For the communicator's turn.
type Carrier interface {
	// Memory is where the host's memory of a part of the source or the destination is, of no type and length; nil where there
	// is none.
	Memory(which, part int) Vec
	// Load waits until a part of the source is in the host's memory.
	Load(ctx context.Context, part int) error
	// Store says that a part of the destination is complete in the host's memory. It does not wait.
	Store(part int)
	// Wait ends it, for an operation that is waited for, and waits until all that was stored is on the device. For others, which
	// their stream ends, it does nothing.
	Wait() error
}

// The buffers of an operation, as Carrier and Division number them.
const (
	Source      = 0
	Destination = 1
)

// Division says how an operation on device memory is divided into parts, which travel one after the other. A buffer
// consists of blocks of the same size, and a part has the same bytes of each block.
type Division struct {
	Blocks [2]int
	Bytes  [2]int // of a block
	Most   int    // bytes of a block in a part; the last one may have fewer
	Parts  int    // at least one
	// Phases says what the ranks of a host do on their devices before a part is in host memory, and after its result is, and
	// nil that they do nothing. packets is how many bytes of packet data a rank's row holds. Host is then how much host memory a
	// part of each buffer takes at most.
	//
	// The carrier counts parts from 1 then: part 0 says that the hosts may agree, and that they have.
	Phases func(part, packets int) Phases
	Host   [2]int
}

// MostPhased is how many parts with phases an operation has at most.
const MostPhased = 32

// Phases are a part's phases on devices. All ranks have them in the same order. They begin once all hosts have agreed.
type Phases struct {
	Before []Phase  // which leave their results in host memory
	Back   []Copied // from there to the destination
	After  []Work
}

// Phase is one that leaves its result in host memory, at an offset in that of the part. Its destination's address is not set.
type Phase struct {
	Work Work
	At   int
}

// Copied is what is copied to the destination from host memory, with offsets in bytes.
type Copied struct{ To, From, Bytes int }

// Part returns where in a block of a buffer a part begins, and how long it is.
func (d *Division) Part(which, part int) (at, bytes int) {
	at = min(part*d.Most, d.Bytes[which])
	return at, min(d.Most, d.Bytes[which]-at)
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
	At      mem.Location // location of Area
	cache   int          // its last-level cache, and below its memory node; -1: not known
	node    int
}

// Each rank has staging memory in each communicator: eager slots, which it may write before it publishes the running
// operation, and bulk staging, which it may write once all ranks have agreed.
const (
	EagerBytes   = 16 << 10 // of one eager slot
	StagingBytes = 512 << 10

	peerBytes   = areaBytes + 2*EagerBytes + StagingBytes // which peers use
	ringBytes   = (int(unsafe.Sizeof(flight.Ring{})) + 4095) &^ 4095
	SharedBytes = peerBytes + ringBytes
)

const claimBytes = 1 << 10 // about as much as a core can have in flight

// Rank is this rank's number in the team, whose ranks keep the order of the communicator: see Name.
func (t *Team) Rank() int { return t.rank }

// Size is the number of ranks of the team.
func (t *Team) Size() int { return t.size }

// Acquire finds the registration of v's memory, or makes it: for Path.Acquire.
func (t *Team) Acquire(v *Vec, b *Buf, graph bool) error { return t.comm.Acquire(v, b, graph) }

// RunPart runs a part of an operation: see Comm.
func (t *Team) RunPart(ctx context.Context, w *Work, first bool) error {
	return t.comm.RunPart(ctx, w, first)
}

// Carry begins to carry w's data: see Comm.
func (t *Team) Carry(ctx context.Context, w *Work) (Carrier, error) { return t.comm.Carry(ctx, w) }

// Algorithm is the algorithm that the communicator's options ask for, or "".
func (t *Team) Algorithm() string { return t.algorithm }

// AttachmentArea is where the attachments' memory begins in a rank's area.
func (t *Team) AttachmentArea(rank int) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(t.Peers[rank].Area), SharedBytes)
}

// Tuning is the table by which operations choose their algorithms.
func (t *Team) Tuning() *tuning.Table { return &t.tuning }

// Costs is what moving data between the hosts costs, as operations choose by it. The communicator has several.
func (t *Team) Costs() *schedule.Model { return t.tuning.Between(t.Hosts.Layout().RDMA) }

// Tune replaces the table, on all ranks between the same two operations: for measuring.
func (t *Team) Tune(table tuning.Table) { t.tuning = table }

// ID is the number of the communicator, the same on all ranks.
func (t *Team) ID() uint64 { return t.Me.comm }

// Leave publishes in this rank's area that it takes no part in the communicator any more.
func (t *Team) Leave() { t.Me.State.Store(StateClosed) }

// Closed reports whether the rank has left the communicator.
func (p *Peer) Closed() bool { return p.Area.State.Load() == StateClosed }

// Lost is what the rank has published about why its communicator broke, or 0 while it is usable: see LostError.
func (p *Peer) Lost() uint64 { return p.Area.Lost.Load() }

// Eager is a rank's eager slot for the running operation. This rank writes its own before it publishes. Its peers no
// longer read the slot, whose last operation was the one before the previous. They read it after agreement.
func (t *Team) Eager(rank int) unsafe.Pointer {
	return unsafe.Add(t.Peers[rank].eager, int(t.Seq&1)*EagerBytes)
}

// ClaimEager prefetches, for writing, the cache lines of this rank's eager slot that n bytes will occupy.
func (t *Team) ClaimEager(n int) {
	p := t.Eager(t.rank)
	for i := 0; i < min(n, claimBytes); i += 64 {
		spin.Claim(unsafe.Add(p, i))
	}
}

// Payload is the payload, PayloadSize bytes, of a rank's descriptor for the running operation. The rules are Eager's.
func (t *Team) Payload(rank int) unsafe.Pointer {
	return unsafe.Pointer(&t.Peers[rank].Area.Desc[t.Seq&1].payload)
}

// Staging is a rank's staging memory, StagingBytes long.
func (t *Team) Staging(rank int) unsafe.Pointer { return t.Peers[rank].staging }

// Errorf makes an error of the running operation, about a rank of the communicator, or -1.
func (t *Team) Errorf(step string, about int, err error) *fault.Error {
	return &fault.Error{Op: t.Running().Kind.String(), Seq: t.Number(), Rank: t.Name(t.rank), Peer: about, Host: t.Peers[t.rank].Host,
		Step: step, Device: hw.Host, Err: err}
}

// Running is the running operation, or Work if none runs.
func (t *Team) Running() *Work {
	if t.Current != nil {
		return t.Current
	}
	return &t.Work
}

// Name is the communicator's rank of a rank of the team. Errors, logs and the words of areas use it.
func (t *Team) Name(rank int) int { return t.names[rank] }

// Index is the team's rank of a rank of the communicator, or -1 if that is on another host.
func (t *Team) Index(name int) int { return slices.Index(t.names, name) }
