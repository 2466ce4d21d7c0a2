package ubcoll

import (
	"time"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/register"
)

// OpInfo says how an operation went. See [Comm.LastOp].
type OpInfo struct {
	Op        string     // "all_reduce", "send", ...
	Seq       uint64     // its number in its communicator, from 1; collectives and messages count apart; 0: none
	Algorithm string     // how the data travelled: "two-shot", "eager", ...; "refused" if none did
	Bytes     int        // size of the larger buffer
	Src, Dst  BufferInfo // the source and the destination, as this rank passed them, over all levels

	// Levels says how the data moved on each level of the machine, innermost first: in the host, and between hosts if
	// the communicator has several. Nil if no data moved.
	Levels []Level

	// Took is how long a collective took on this rank, from its turn to its end, including registrations that it made.
	// Waited is the part of Took during which this rank waited for all ranks to call it; waits between ranks after
	// that, while the data move, do not count. Both are 0 where the library does not measure: data small enough to
	// travel with the agreement ("eager", packets on a device) or of at most a few KiB, messages, refused operations,
	// and communicators of one rank. Members of groups are measured, and so are members of launches on the host. On
	// devices the host measures Took of a blocking call; Waited is 0, and both are 0 for operations that are queued on
	// a stream or come from a graph.
	Took, Waited time.Duration

	// Members are the operations of a group or of a graph's launch in their order, if one was last: those that ran, and
	// the first 1024 at most. All other fields are the last member's. Nil for a single operation.
	Members []OpInfo
}

// Level says how an operation's data moved on one level of the machine.
type Level struct {
	Where     string // "in the host", "between hosts"
	Algorithm string // "push", "ring", ...
	// Transport is "shared memory", "GPU kernels", "GPU kernels on a device that 2 ranks share", "tcp eth0", "tcp eth0, eth1",
	// "tcp eth0 (4 connections)", ...; "tcp" on ranks that are not the first of their host.
	Transport string
	Lanes     int // ranks of each host that exchange data with other hosts beside each other; 0 within a host
	Hosts     int // how many hosts exchange data; 0 within a host
	// Source and Destination are this rank's buffers on this level. They are not Used where another rank of the host
	// exchanges the host's data.
	Source, Destination BufferInfo
	Why                 string // what the transport does to the data whatever the buffers are, as "copied by the kernel"
	// Choice is what the algorithm was chosen by, where ubcoll tune could measure that, and has not: "default costs", those
	// that the library assumes of moving data between hosts. Otherwise it is "".
	Choice string

	words team.Words
}

// String is one line, for people: "in the host push, shared memory: direct", and between hosts, by the names that the field
// has for algorithms, "halving-doubling over 4 hosts by default costs, 2 lanes, tcp eth0: copied by the kernel".
func (l Level) String() string { return l.team().String() }

func (l Level) team() team.Level {
	return team.Level{Where: l.Where, Algorithm: l.Algorithm, Transport: l.Transport, Lanes: l.Lanes, Hosts: l.Hosts,
		Source: team.BufferInfo(l.Source), Destination: team.BufferInfo(l.Destination), Why: l.Why, Choice: l.Choice, Words: l.words}
}

// BufferInfo says whether peers read and wrote a buffer in place, and if not, why. A buffer that is Used, but neither
// Direct nor Alone, was copied: it was staged by the library, or copied by the kernel on its way to another host.
type BufferInfo struct {
	Used   bool   // the operation had such a buffer on this rank
	Direct bool   // peers read or wrote it in place, on all levels
	Alone  bool   // the communicator has no peers
	Why    string // why it was copied
}

// String is "direct", "staged: " and why, or that there are no peers; "" for a buffer that is not Used.
func (b BufferInfo) String() string { return team.BufferInfo(b).Route() }

// String is one line, for people. Within a host it has the algorithm, and for each buffer that it was direct or why it was
// copied. Between hosts it says what the ranks of a host do, where there are several, and what the hosts do, by the names that
// the field has for algorithms, and how each buffer went on both levels. How long the operation took comes last, if that was
// measured. In one line:
//
//	all_reduce #7: 4194304 bytes; two-level: reduce-scatter in the host, halving-doubling over 4 hosts, 4 lanes, tcp eth0,
//	all-gather in the host; source and destination direct in the host, copied by the kernel between hosts
func (o OpInfo) String() string {
	levels := make([]team.Level, len(o.Levels))
	for i, l := range o.Levels {
		levels[i] = l.team()
	}
	return team.Text(o.Op, o.Seq, len(o.Members), o.Algorithm, o.Bytes, levels, o.Took, o.Waited)
}

func newOpInfo(e *engine.OpInfo) OpInfo {
	o := OpInfo{Op: e.Op(), Seq: e.Seq, Algorithm: e.Title(), Bytes: e.Bytes, Took: e.Took, Waited: e.Waited}
	src, dst := e.Buffers()
	o.Src, o.Dst = BufferInfo(src), BufferInfo(dst)
	for _, l := range e.Levels() {
		o.Levels = append(o.Levels, Level{Where: l.Where, Algorithm: l.Algorithm, Transport: l.Transport, Lanes: l.Lanes, Hosts: l.Hosts,
			Source: BufferInfo(l.Source), Destination: BufferInfo(l.Destination), Why: l.Why, Choice: l.Choice, words: l.Words})
	}
	if len(e.Members) > 0 {
		o.Members = make([]OpInfo, len(e.Members))
	}
	for i := range e.Members {
		o.Members[i] = newOpInfo(&e.Members[i])
	}
	return o
}

// Stats counts what a communicator and its rank have done. A call that a foreign capture of a CUDA stream records
// counts once, at the capture. See [Comm.Stats].
type Stats struct {
	Operations uint64      // collectives, failed ones included, and those of each launch of a graph
	Bytes      uint64      // sum of the operations' Bytes
	Staged     uint64      // buffers that were copied through staging memory, those of messages included
	Puts, Gets uint64      // calls of channels and windows, puts of packets included
	OneSided   uint64      // bytes that Puts and Gets moved
	Opened     uint64      // mappings of allocations on peers' devices, repeated ones included
	Failures   uint64      // of giving memory back that no call could return: they were logged
	Cache      CacheStats  // this rank's, which its communicators share
	Memory     MemoryStats // likewise this rank's
	Hosts      []HostStats // likewise: the other hosts that this rank has exchanged data with; see there

	// LastArrivals has, of this communicator's collectives on host memory, the ranks for which this rank has waited as the
	// last ones, most often first. Within a host it counts waits of more than 20 µs. Between hosts it counts those that were
	// at least twice as long as the last host's, which then waited for the network alone.
	LastArrivals []LastArrival
}

// LastArrival says how often a rank was the last to arrive at a collective, and how long this rank had waited for it: a
// rank that is slow, or has more to do than the others.
type LastArrival struct {
	Rank            int           // of the communicator
	Calls           uint64        // so often
	Median, Longest time.Duration // this rank's wait; the median 13 % off at most
}

// HostStats counts what a rank has exchanged with another host, over all its connections to that host, those that have
// ended included, for all of its communicators. Ranks that exchange their host's data have such connections: the first of
// each host, and as many as Level.Lanes says. Frames count, not what TCP adds to them; nor do the few messages by which ranks tell each other that
// a rank waits, fails, or leaves.
type HostStats struct {
	Host                           string // its name
	SentBytes, ReceivedBytes       uint64 // with the heads of the frames, of 32 bytes
	SentMessages, ReceivedMessages uint64 // frames with data, or that say what a host wants to do: some for each operation
	Retries                        uint64 // segments that this host's kernel sent again, as when they get lost
}

// CacheStats counts what a rank's registration cache has done: lookups, registrations, evictions, and what is
// registered and locked now. Registrations are counted by how memory is reached: NET (RDMA devices), IPC (this host),
// NVLS (multicast among GPUs) and COLLNET (reductions in the network).
type CacheStats = register.Stats

// MemoryStats counts the memory of a rank.
type MemoryStats struct {
	Arenas      int   // memory files
	ArenaBytes  int64 // their size; all of it is allocated, except HeldBytes
	Allocations int   // live ones, on devices and adopted ones included
	LiveBytes   int64 // of live host memory, as requested
	DeviceBytes int64 // of live device memory, as requested
	OwnBytes    int64 // of device memory that the library itself uses, in no buffer
	HeldBytes   int64 // freed, but a peer may still touch it, so it is not used again; takes no memory
}

// LastOp says how this communicator's last collective, or message of package p2p, went: which algorithm ran, and for
// each buffer whether peers reached it directly or why it was copied. It leaves out small messages that were received,
// and puts and gets, which Stats counts. Local.
func (c *Comm) LastOp() OpInfo {
	o := c.view().LastOp()
	return newOpInfo(&o)
}

// Stats returns what this communicator and its rank's registration cache, memory and connections to other hosts have done
// so far. The caller owns the result. Local, safe for concurrent use, also while operations are under way, and waits for
// none; it walks over all registrations, and makes a system call for each connection.
func (c *Comm) Stats() Stats {
	s := c.view().Stats()
	var others []HostStats
	for _, h := range s.Hosts {
		others = append(others, HostStats(h))
	}
	var last []LastArrival
	for _, l := range s.LastArrivals {
		last = append(last, LastArrival(l))
	}
	return Stats{Operations: s.Operations, Bytes: s.Bytes, Staged: s.Staged, Puts: s.Puts, Gets: s.Gets, OneSided: s.OneSided,
		Opened: s.Opened, Failures: s.Failures, Cache: s.Cache, Memory: MemoryStats(s.Memory), Hosts: others, LastArrivals: last}
}

// Explain says in a few lines what the registration cache knows of the memory that v views, and why lookups of it hit
// or miss. Local.
func (c *Comm) Explain(v Vec) string { return c.view().Explain(*v.team()) }
