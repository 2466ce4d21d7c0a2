package kernels

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
)

// Limits, as in src/abi.h.
const (
	MaxRanks    = 72        // ranks that one operation can have
	Narrow      = 8         // up to so many go by kernels of their own, whose parameters name all areas; see Params.Area
	MaxBlocks   = 256       // blocks of a grid
	MaxExtents  = 1024      // exported allocations of a rank at a time
	MaxChannels = 512       // ends of channels of a rank at a time, at most: see Layout.Channels
	MaxSteps    = 8         // of a channel's kernel
	ChannelGrid = 128       // blocks of a channel's kernel
	MaxLanes    = 16        // of a kernel of messages
	MaxMessages = 64        // of a kernel of messages
	MaxGroup    = 16        // operations of a group's kernel
	EagerBytes  = 64 << 10  // of the largest message that travels as packets
	SmallPart   = 128 << 10 // of the longest part that MoveV sends as packets
)

// ChannelBytes is the size of a channel's end.
const ChannelBytes = 2304

const (
	areaPackets = 64 << 10  // of areas for up to Narrow ranks,
	widePackets = 644 << 10 // and for more
	widePeers   = 2048
	boxBytes    = 4 * EagerBytes
	large       = 3 << 20 // of each of four staging buffers in memory of their own
	fifoSlots   = 32      // of a FIFO in memory of its own
	fifoBytes   = 64 << 10
)

// StagingBytes is the size of a rank's staging memory beside its area, and FIFOBytes that of a FIFO there.
const (
	StagingBytes = 4 * large
	FIFOBytes    = fifoSlots * fifoBytes
)

// What a kernel may find wrong (Status.Error).
const (
	OK       = 0
	Mismatch = 1 // Peer wanted another operation, Theirs; what follows works. Detail is 1 for a message that comes
	Refused  = 2 // Peer refused, with the code in the low half of Theirs; what follows works
	Timeout  = 3 // waited for Peer longer than Params.Timeout
	Aborted  = 4 // Abort was set while it waited for Peer
	NoExtent = 5 // Peer named an extent that is not mapped here: Detail is its word
	Counts   = 6 // Peer expects other counts of a rank than that sends: see CountsOf; what follows works
	Astray   = 7 // Peer wants a message elsewhere (Detail) than where a copy engine is about to put it
)

// Bytes is p, which a kernel takes, as a launch takes it: p's own memory, good while p is.
func Bytes[P Params | GroupParams | ChannelParams | MailParams](p *P) []byte { return bytesOf(p, 0) }

// bytesOf is p without its last bytes.
func bytesOf[P any](p *P, without uintptr) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)-without)
}

// Params is what every kernel takes: ubc_params of src/abi.h, which says what the fields mean. A kernel's grid, and all
// of Ranks, Op, Root, Size, Push and Count, must be the same on all ranks.
type Params struct {
	// In order of distance: [0] is this rank's, [d] that of rank (Rank + d) mod Ranks. With more than Narrow ranks there is
	// [0] alone, and the area itself has the rest: Layout.Peers.
	Area      [Narrow]uint64 // device areas, as mapped here
	Table     [Narrow]uint64 // in own memory: where each extent of that rank is mapped here
	Status    uint64         // of this rank, as the device sees it
	Src       uint64
	Dst       uint64
	SrcWord   uint64
	DstWord   uint64
	Stage     uint64 // staging memory beside the area, and its word: 0 until peers have it mapped
	StageWord uint64
	Signature uint64
	Count     uint64
	Timeout   uint64 // nanoseconds
	Factor    float64
	Rank      uint32
	Ranks     uint32
	Op        uint32
	Root      uint32
	Size      uint32 // bytes of an element
	Push      uint32
	Row       uint32
	Little    uint32
	Large     uint32
	Lines     uint32
	LineRow   uint32
	Turns     uint32 // see SetLines
	Steps     uint32
}

// SetLines sets what kernels that go by lines take beside what Layout.Fill sets, in a grid of up to Layout.LineBlocks: how
// much one rank sends another in one step, at most, by how many blocks.
func (p *Params) SetLines(bytes, blocks, threads int) {
	turn := blocks * threads * lineData
	p.Turns, p.Steps = p.LineRow/uint32(blocks*threads*lineBytes), uint32(max((bytes+turn-1)/turn, 1))
}

// LineThreads is what a block of a kernel that goes by lines has a multiple of.
const LineThreads = 32

// Of lines, a thread has so many bytes, and so many of data in the mean.
const (
	lineBytes = 16
	lineData  = 15
)

// VectorParams is what the kernel MoveV takes: ubc_vector_params of src/abi.h. Count is 0; parts lie one after the
// other.
type VectorParams struct {
	Params
	Counts [MaxRanks]struct {
		Send uint64 // elements for each rank; of all-gather the same ones for all
		Recv uint64 // elements expected from each rank
	}
}

// Bytes is p as the kernel for so many ranks takes it.
func (p *VectorParams) Bytes(ranks int) []byte {
	if ranks > Narrow {
		return bytesOf(p, 0)
	}
	return bytesOf(p, (MaxRanks-Narrow)*unsafe.Sizeof(p.Counts[0]))
}

// Part is an operation of a group: ubc_part of src/abi.h.
type Part struct {
	Src       uint64
	Dst       uint64
	Signature uint64
	Factor    float64
	Begin     uint32 // where its data begins among that of the group, in packets of 8 bytes
	_         uint32
}

// GroupParams is what the kernel Group takes: ubc_group_params of src/abi.h. Its grid is this rank's choice; one block if
// it is ordered.
type GroupParams struct {
	Params
	Parts   uint32
	Ordered uint32 // 1: parts touch what others write
	Part    [MaxGroup]Part
	Packets uint64 // of all
}

// Status is where a rank's kernels and its host meet: ubc_status of src/abi.h, zeroed, in page-locked host memory. The
// host may set Abort at any time, and reads the other fields while Error is not OK; setting Error to OK lets kernels
// report the next one.
type Status struct {
	Abort  atomic.Uint32 // all waits end; set by a kernel that breaks the communicator, too
	Error  atomic.Uint32
	Peer   uint32
	Epoch  uint32
	Mine   uint64 // signatures, or heads of messages
	Theirs uint64
	Detail uint64
	Claim  atomic.Uint32 // of Messages: 0 once the host has taken the error, after Error
	More   atomic.Uint32 // of Messages: how many did not match that were not told; kernels alone write it
	Narrow atomic.Uint32 // of the others: the last operation that staging memory in areas was little for; likewise
}

// CountsOf is what the error Counts means: how many elements Peer expects, from whom, and how many that rank sends.
func (s *Status) CountsOf() (expected, from, sent int) {
	return int(s.Detail & (1<<48 - 1)), int(s.Detail >> 48), int(s.Theirs)
}

// About is the rank that an error is about, of so many, or -1.
func (s *Status) About(ranks int) int {
	if int(s.Peer) >= ranks {
		return -1
	}
	return int(s.Peer)
}

// Broke is what code means, one after which nothing works any more, and the step that it ended. Kernels wait for Peer as
// long as timeout; more is what is to be said of that.
func (s *Status) Broke(code uint32, timeout time.Duration, more string) (step string, err error) {
	switch code {
	case Timeout:
		return "wait", fmt.Errorf("nothing from it for %v%s: %w", timeout, more, fault.ErrTimeout)
	case Aborted:
		return "wait", fault.ErrAborted
	case Astray:
		return "copy", fmt.Errorf("it receives %s at another place than when both captured: %w", DescribeHead(s.Mine),
			fault.ErrMismatch)
	case NoExtent:
		return "import", fmt.Errorf("it named memory that is not mapped here (%#x): %w", s.Detail, fault.ErrStale)
	}
	return "status", fmt.Errorf("status %d of a kernel is unknown: %w", code, fault.ErrAborted)
}

// Word is how a rank tells its peers where its buffer is: at offset in the extent, which all of them have mapped. The
// word of a buffer that is staged is 0.
func Word(extent uint32, offset int) uint64 { return 1<<63 | uint64(extent)<<48 | uint64(offset) }

// Through is the word of a FIFO in memory of its own, which a rank tells in place of a staged destination's.
func Through(extent uint32, offset int) uint64 { return 1<<62 | uint64(extent)<<48 | uint64(offset) }

// Sides of a channel, whose kernels may run at the same time.
const (
	SideOut  = 0 // puts, gets and signals
	SideIn   = 1 // waits, and takes packets
	SideBoth = 2 // alone
)

// What a step of a channel's kernel does.
const (
	StepCopy          = 1 // Bytes from Src to Dst, of which one is the peer's
	StepSignal        = 2
	StepRelaxedSignal = 3
	StepWait          = 4
	StepPutPackets    = 5 // Bytes from Src, as packets to the peer's Dst
	StepGetPackets    = 6 // Bytes to Dst, which come as packets to Src
)

// Step is one step of a channel's kernel: ubc_step of src/abi.h. No step may touch what another one of the same kernel
// writes.
type Step struct {
	What  uint64 // from bit 32 on: the bytes of a packet, 8 or 16
	Dst   uint64
	Src   uint64
	Bytes uint64
}

// ChannelParams is what the kernel Channel takes: ubc_channel_params of src/abi.h. Its grid, of up to
// ChannelGrid blocks, is this rank's choice.
type ChannelParams struct {
	Mine    uint64 // the two ends, in the areas
	Theirs  uint64
	Status  uint64 // of this end
	Timeout uint64 // nanoseconds, of each wait
	SaltOut uint32 // of the packets' flags
	SaltIn  uint32
	Peer    uint32
	Side    uint32
	Steps   uint32
	Spread  uint32 // waits from this step on are one block's
	Step    [MaxSteps]Step
}

// The form of a message, in the upper 8 bits of its head.
const (
	ByPackets = 1 // up to EagerBytes
	ByPush    = 2
	Await     = 3 // by push, of which a copy engine does some sends: what comes before its copy,
	Done      = 4 // and what comes after it
)

// Head is the head of a message of so many elements of a type.
func Head(form int, t dtype.Type, count int) uint64 {
	return uint64(form)<<56 | uint64(t)<<48 | uint64(count)
}

// DescribeHead is what a head without a form says, for people.
func DescribeHead(h uint64) string {
	return fmt.Sprintf("%d elements of %v", h&(1<<48-1), dtype.Type(h>>48))
}

// Message is a message of the kernel Messages: ubc_message of src/abi.h.
type Message struct {
	At    uint64 // the source or the destination
	Bytes uint64
	Word  uint64 // the destination's: of a receive, and of what a copy engine does; a rank's own has the address itself
	Head  uint64
}

// Lane is the messages with one rank, one way, of the kernel Messages: ubc_lane of src/abi.h.
type Lane struct {
	Area     uint64 // the peer's, as mapped here
	Table    uint64 // of the peer's extents; 0 for this rank itself
	FIFO     uint64 // of receives: where pieces come, of sends: the small one at the peer
	FIFOWord uint64 // of receives: 0: that is the small one, else Through
	Peer     uint32
	Receives uint32 // 1, or 0: sends
	First    uint32 // of MailParams.Message
	Messages uint32
	Block    uint32 // of the grid: the first one
	Blocks   uint32
}

// MailParams is what the kernel Messages takes: ubc_mail_params of src/abi.h. Its grid is this rank's choice. Kernels
// that have a lane in common run one after the other, as the messages are sent and received.
type MailParams struct {
	Area    uint64 // this rank's
	Status  uint64
	Timeout uint64 // nanoseconds, of each wait
	Boxes   uint64
	Slots   uint32 // of the small FIFOs
	Slot    uint32 // bytes of one
	Rank    uint32
	Lanes   uint32 // in order of their blocks
	Lane    [MaxLanes]Lane
	Message [MaxMessages]Message
}
