package ubcoll

import (
	"time"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/register"
)

// OpInfo says how an operation went. See [Comm.LastOp].
type OpInfo struct {
	Op        string     // "all_reduce", "send", ...
	Seq       uint64     // its number in its communicator, from 1: collectives and messages are counted apart; 0 if there was none
	Algorithm string     // how the data travelled: "two-shot", "eager", ...; "refused" if they did not
	Bytes     int        // of the larger buffer
	Src, Dst  BufferInfo // the source and the destination, as this rank passed them

	// Took is how long a collective took here, from its turn to its end, registrations that it made included, and Waited
	// how much of that this rank waited until all ranks had called it. What ranks wait for each other after that, while
	// the data move, is not in Waited. Both are 0 for what is not measured: what is small enough to travel as the ranks
	// agree ("eager", packets on a device) or has no more than a few KiB, messages, what was refused, a communicator of
	// one rank. Members of groups are measured, and those of launches on the host. On devices a blocking call's Took is
	// measured by the host; Waited, and what is queued on their streams or comes from a graph, are 0.
	Took, Waited time.Duration

	// Members are the operations of a group or of a graph's launch in their order, if one went last: those that were
	// run, and the first 1024 at most. All else is the last member's. Nil for an operation by itself.
	Members []OpInfo
}

// BufferInfo says whether peers read and wrote a buffer itself, and why not. One that was used, and is neither Direct
// nor Alone, was staged: it was copied.
type BufferInfo struct {
	Used   bool   // the operation had such a buffer on this rank
	Direct bool   // peers reached it
	Alone  bool   // there are no peers, who could reach it or not
	Why    string // why it was staged
}

// String is one line: the algorithm, for each buffer whether peers reached it or why it was copied, and how long it
// took, if that was measured.
func (o OpInfo) String() string {
	e := engine.OpInfo{Seq: o.Seq, Algorithm: o.Algorithm, Bytes: o.Bytes, Src: engine.BufferInfo(o.Src),
		Dst: engine.BufferInfo(o.Dst), Took: o.Took, Waited: o.Waited, Members: make([]engine.OpInfo, len(o.Members))}
	return e.Text(o.Op)
}

func newOpInfo(e engine.OpInfo) OpInfo {
	o := OpInfo{Op: e.Op(), Seq: e.Seq, Algorithm: e.Algorithm, Bytes: e.Bytes, Src: BufferInfo(e.Src), Dst: BufferInfo(e.Dst),
		Took: e.Took, Waited: e.Waited}
	if len(e.Members) > 0 {
		o.Members = make([]OpInfo, len(e.Members))
	}
	for i, m := range e.Members {
		o.Members[i] = newOpInfo(m)
	}
	return o
}

// Stats counts what a communicator and its rank have done. What somebody else captures is counted once, when it is
// captured. See [Comm.Stats].
type Stats struct {
	Operations uint64      // collectives, failed ones included, and those of each launch of a graph
	Bytes      uint64      // sum over the operations of the larger buffer
	Staged     uint64      // buffers that were copied through staging memory, those of messages included
	Puts, Gets uint64      // of channels and windows, puts of packets included
	OneSided   uint64      // bytes that they moved
	Opened     uint64      // allocations on peers' devices that were mapped here, over and over ones included
	Failures   uint64      // to give memory back, of which no call could tell: they were logged
	Cache      CacheStats  // of this rank, whose communicators share it
	Memory     MemoryStats // likewise
}

// CacheStats counts what the registration cache of a rank has done: lookups, registrations (by the ways to reach memory:
// NET, RDMA devices; NVLS and COLLNET, which are in no version yet; IPC, this host), evictions, and what is
// registered and locked now.
type CacheStats = register.Stats

// MemoryStats counts the memory of a rank.
type MemoryStats struct {
	Arenas      int   // memory files
	ArenaBytes  int64 // their size, all of it allocated but for what was held
	Allocations int   // alive, those of devices and adopted ones included
	LiveBytes   int64 // of host memory, as asked for
	DeviceBytes int64 // of device memory, as asked for
	OwnBytes    int64 // of device memory that the driver has given for the library's own use, which is in no buffer
	HeldBytes   int64 // freed, and not to be used again as long as a peer may be at it; it takes no memory
}

// LastOp says how this communicator's last collective or message of package p2p went, small messages that were received
// excepted: which algorithm, and for each buffer whether peers reached it directly or why it was copied. Puts and gets
// are no operations of all ranks, and not told of: Stats counts them. Local.
func (c *Comm) LastOp() OpInfo { return newOpInfo(c.view().LastOp()) }

// Stats is what this communicator and its rank's registration cache and memory have done so far. Local; it takes the
// time of a walk over all registrations.
func (c *Comm) Stats() Stats {
	s := c.view().Stats()
	return Stats{Operations: s.Operations, Bytes: s.Bytes, Staged: s.Staged, Puts: s.Puts, Gets: s.Gets, OneSided: s.OneSided,
		Opened: s.Opened, Failures: s.Failures, Cache: s.Cache, Memory: MemoryStats(s.Memory)}
}

// Explain says in a few lines for people what the registration cache knows of the memory that v views, and why lookups
// of it hit or miss. Local.
func (c *Comm) Explain(v Vec) string { return c.view().Explain(*v.team()) }
