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
	MaxRanks    = 72        // ranks of one operation
	Narrow      = 8         // up to so many ranks use the kernels whose parameters list all areas; see Params.Area
	MaxBlocks   = 256       // blocks of a grid
	MaxExtents  = 1024      // allocations that a rank exports at a time
	MaxChannels = 512       // channel ends that a rank has at a time, at most: see Layout.Channels
	MaxSteps    = 8         // of a channel kernel
	ChannelGrid = 128       // blocks of a channel kernel
	MaxLanes    = 16        // of a message kernel
	MaxMessages = 64        // of a message kernel
	MaxGroup    = 16        // operations of a group kernel
	EagerBytes  = 64 << 10  // largest message that goes as packets
	SmallPart   = 128 << 10 // longest part that MoveV sends as packets
)

// ChannelBytes is the size of a channel end.
const ChannelBytes = 2304

const (
	areaPackets = 64 << 10  // offset of packets in areas for up to Narrow ranks
	widePackets = 644 << 10 // and for more ranks
	widePeers   = 2048
	boxBytes    = 4 * EagerBytes
	large       = 3 << 20 // bytes of each of the four staging buffers in separate memory
	fifoSlots   = 32      // of a FIFO in separate memory
	fifoBytes   = 64 << 10
)

// StagingBytes is the size of a rank's separate staging memory, and FIFOBytes that of a separate FIFO.
const (
	StagingBytes = 4 * large
	FIFOBytes    = fifoSlots * fifoBytes
)

// Errors that a kernel reports (Status.Error).
const (
	OK         = 0
	Mismatch   = 1 // Peer runs another operation, Theirs; later ones work. Detail is 1 if this rank receives the message
	Refused    = 2 // Peer refused, with the code in the low half of Theirs; later operations work
	Timeout    = 3 // waited for Peer longer than Params.Timeout
	Aborted    = 4 // Abort was set while it waited for Peer
	NoExtent   = 5 // Peer named an extent that is not mapped here; Detail is its word
	Counts     = 6 // Peer expects another count than a rank sends: see CountsOf; later operations work
	WrongPlace = 7 // Peer wants a message at Detail, which is not where a copy engine is about to put it
)

// Bytes returns a kernel's parameters in the form that a launch takes. The result is p's own memory, valid as long as
// p.
func Bytes[P Params | GroupParams | ChannelParams | MailParams | CarryParams | CarryStepParams | CopierParams](p *P) []byte {
	return bytesOf(p, 0)
}

// bytesOf returns p without its last `without` bytes.
func bytesOf[P any](p *P, without uintptr) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)-without)
}

// Params are the parameters of every kernel: ubc_params of src/abi.h, which says what the fields mean. All ranks must
// use the same grid, and the same Ranks, Op, Root, Size, Push and Count.
type Params struct {
	// By distance: [0] is this rank's, [d] is of rank (Rank + d) mod Ranks. With more than Narrow ranks only [0] is
	// set, and the others are in the area itself: see Layout.Peers.
	Area      [Narrow]uint64 // device areas, as mapped here
	Table     [Narrow]uint64 // in own memory: where each extent of that rank is mapped here
	Status    uint64         // this rank's, as the device sees it
	Src       uint64
	Dst       uint64
	SrcWord   uint64
	DstWord   uint64
	Stage     uint64 // separate staging memory and its word; 0 until peers have mapped it
	StageWord uint64
	Multi     uint64 // where the communicator's multicast object is mapped here; 0: none
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
	Gated     uint32 // a phase of an operation between hosts: see AreaGate
}

// SetLines sets the parameters of kernels with lines that Layout.Fill does not set. bytes is the most that a rank sends
// another in one step; the grid has that many blocks, up to Layout.LineBlocks.
func (p *Params) SetLines(bytes, blocks, threads int) {
	turn := blocks * threads * lineData
	p.Turns, p.Steps = p.LineRow/uint32(blocks*threads*lineBytes), uint32(max((bytes+turn-1)/turn, 1))
}

// LineThreads divides the number of threads in a block of a kernel with lines.
const LineThreads = 32

// Bytes of a line for each of its threads, and bytes of data for each, on average.
const (
	lineBytes = 16
	lineData  = 15
)

// VectorParams are the parameters of the kernel MoveV: ubc_vector_params of src/abi.h. Count is 0; parts are
// contiguous.
type VectorParams struct {
	Params
	Counts [MaxRanks]struct {
		Send uint64 // elements for each rank; all-gather sends the same ones to all
		Recv uint64 // elements expected from each rank
	}
}

// Bytes returns p in the form that the kernel for that many ranks takes. The result is p's own memory.
func (p *VectorParams) Bytes(ranks int) []byte {
	if ranks > Narrow {
		return bytesOf(p, 0)
	}
	return bytesOf(p, (MaxRanks-Narrow)*unsafe.Sizeof(p.Counts[0]))
}

// Part is one operation of a group: ubc_part of src/abi.h.
type Part struct {
	Src       uint64
	Dst       uint64
	Signature uint64
	Factor    float64
	Begin     uint32 // where its data begins in the group's data, in packets of 8 bytes
	_         uint32
}

// GroupParams are the parameters of the kernel Group: ubc_group_params of src/abi.h. Each rank chooses its own grid, of
// one block if Ordered.
type GroupParams struct {
	Params
	Parts   uint32
	Ordered uint32 // 1: some parts use memory that other parts write
	Part    [MaxGroup]Part
	Packets uint64 // of all parts
}

// Status is how a rank's kernels and its host communicate: ubc_status of src/abi.h, zeroed, in page-locked host memory.
// The host may set Abort at any time, and reads the other fields while Error is not OK. After it sets Error to OK,
// kernels can report the next error.
type Status struct {
	Abort  atomic.Uint32 // ends all waits; a kernel that breaks the communicator sets it, too
	Error  atomic.Uint32
	Peer   uint32
	Epoch  uint32
	Mine   uint64 // signatures, or heads of messages
	Theirs uint64
	Detail uint64
	Claim  atomic.Uint32 // message kernels: the host sets 0 after it has taken the error, after Error
	More   atomic.Uint32 // message kernels: mismatched messages that were not reported; only kernels write it
	Narrow atomic.Uint32 // other kernels: the last operation that needed more staging memory than areas have
}

// CountsOf explains the error Counts: Peer expects `expected` elements from rank from, which sends `sent`.
func (s *Status) CountsOf() (expected, from, sent int) {
	return int(s.Detail & (1<<48 - 1)), int(s.Detail >> 48), int(s.Theirs)
}

// About returns the rank, of that many, that an error is about, or -1.
func (s *Status) About(ranks int) int {
	if int(s.Peer) >= ranks {
		return -1
	}
	return int(s.Peer)
}

// Broke returns the error for a code after which nothing works any more, and the step that failed. peer is what errors
// call Peer; timeout is how long kernels wait for it; more is added to the text about that.
func (s *Status) Broke(code uint32, peer int, timeout time.Duration, more string) (step string, err error) {
	switch code {
	case Timeout:
		return "wait", fmt.Errorf("nothing from rank %d for %v%s: %w", peer, timeout, more, fault.ErrTimeout)
	case Aborted:
		return "wait", fault.ErrAborted
	case WrongPlace:
		return "copy", fmt.Errorf("it receives %s at another place than when both captured: %w", DescribeHead(s.Mine),
			fault.ErrMismatch)
	case NoExtent:
		return "import", fmt.Errorf("it named memory that is not mapped here (%#x): %w", s.Detail, fault.ErrStale)
	}
	return "status", fmt.Errorf("status %d of a kernel is unknown: %w", code, fault.ErrAborted)
}

// Word tells peers where a rank's buffer is: at offset in an extent that all of them have mapped. A staged buffer's
// word is 0.
func Word(extent uint32, offset int) uint64 { return 1<<63 | uint64(extent)<<48 | uint64(offset) }

// Through is the word of a separate FIFO; a rank tells it in place of a staged destination's word.
func Through(extent uint32, offset int) uint64 { return 1<<62 | uint64(extent)<<48 | uint64(offset) }

// Sides of a channel. Kernels of different sides may run at the same time.
const (
	SideOut  = 0 // puts, gets and signals
	SideIn   = 1 // waits, and gets packets
	SideBoth = 2 // no other side at the same time
)

// What a step of a channel kernel does.
const (
	StepCopy          = 1 // Bytes from Src to Dst, one of which is the peer's
	StepSignal        = 2
	StepRelaxedSignal = 3
	StepWait          = 4
	StepPutPackets    = 5 // Bytes from Src, as packets to the peer's Dst
	StepGetPackets    = 6 // Bytes to Dst, which arrive as packets at Src
)

// Step is one step of a channel kernel: ubc_step of src/abi.h. A step must not use memory that another step of the same
// kernel writes.
type Step struct {
	What  uint64 // with the bytes of a packet, 8 or 16, from bit 32 on
	Dst   uint64
	Src   uint64
	Bytes uint64
}

// ChannelParams are the parameters of the kernel Channel: ubc_channel_params of src/abi.h. Each rank chooses its own
// grid, of up to ChannelGrid blocks.
type ChannelParams struct {
	Mine    uint64 // the two ends, in the two areas
	Theirs  uint64
	Status  uint64 // of this end
	Timeout uint64 // nanoseconds, for each wait
	SaltOut uint32 // added to the packets' flags
	SaltIn  uint32
	Peer    uint32
	Side    uint32
	Steps   uint32
	Spread  uint32 // all blocks do the waits of earlier steps, block 0 alone the others
	Step    [MaxSteps]Step
}

// CarryBlocks is how many blocks a kernel Carry has at most, and CarryNothing the parts of an answer after which it copies
// nothing more.
const (
	CarryBlocks  = 16
	CarryNothing = 1<<32 - 1
)

// CarryPage is where kernels that carry data between the device and the host meet the host: UBC_CARRY_SERIAL and so on in
// src/abi.h, zeroed, in page-locked host memory.
type CarryPage struct {
	Serial atomic.Uint64 // of the item whose kernel runs now or next; never 0
	Answer atomic.Uint64 // serial<<32 + the parts whose results are in host memory
	ID     atomic.Uint32 // of the kernel
	_      [44]byte
	Rung   [CarryBlocks]atomic.Uint64 // serial<<32 + the parts whose shares a block has copied to the host, and one more at the end
}

// CarryParams are the parameters of the kernel Carry: ubc_carry_params of src/abi.h, which says what the fields mean.
type CarryParams struct {
	Status    uint64
	Page      uint64
	Src       uint64
	Dst       uint64
	In        [2]uint64
	Out       [2]uint64
	SrcCount  uint64
	DstCount  uint64
	Most      uint64
	SrcBlocks uint32
	DstBlocks uint32
	Parts     uint32
	ID        uint32
	Tells     uint32
	_         uint32
}

// AreaGate is where in a rank's area kernels CarryStep open and shut the gate of gated kernels.
const AreaGate = 1040

// CarryStepParams are the parameters of the kernel CarryStep: ubc_carry_step_params of src/abi.h, which says what the fields
// mean.
type CarryStepParams struct {
	Status uint64
	Page   uint64
	Gate   uint64
	To     [2]uint64
	From   [2]uint64
	Bytes  [2]uint64
	ID     uint32
	Rings  uint32
	Awaits uint32
	Opens  uint32
}

// CopierBlocks is how many blocks a kernel Copier has at most, CopierRing how many copies may be told and not done, and
// CopierEnded what a block has done that has done the last one.
const (
	CopierBlocks = 16
	CopierRing   = 120
	CopierEnded  = 1<<32 - 1
)

// CopierPage is where kernels Copier meet the host: UBC_COPIER_SERIAL and so on in src/abi.h, zeroed, in page-locked host
// memory.
type CopierPage struct {
	Serial atomic.Uint64 // of the run that begins next
	Told   atomic.Uint64 // serial<<32 + how many copies that run has been told
	_      [48]byte
	Done   [CopierBlocks]atomic.Uint64 // serial<<32 + 1 + how many copies a block has done, or CopierEnded
	_      [64]byte
	Copies [CopierRing]CopyTold
}

// CopyTold is a copy that a kernel Copier is told: ubc_copy_told of src/abi.h.
type CopyTold struct{ To, From, Bytes, Last uint64 }

// CopierParams are the parameters of the kernel Copier: ubc_copier_params of src/abi.h.
type CopierParams struct{ Status, Page uint64 }

// How a message travels, in the upper 8 bits of its head.
const (
	ByPackets = 1 // up to EagerBytes
	ByPush    = 2
	Await     = 3 // by push, but a copy engine moves the data of some sends: the part before its copy
	Done      = 4 // and the part after it
)

// Head returns the head of a message of count elements.
func Head(form int, t dtype.Type, count int) uint64 {
	return uint64(form)<<56 | uint64(t)<<48 | uint64(count)
}

// DescribeHead describes a head without a form, for people.
func DescribeHead(h uint64) string {
	return fmt.Sprintf("%d elements of %v", h&(1<<48-1), dtype.Type(h>>48))
}

// Message is one message of the kernel Messages: ubc_message of src/abi.h.
type Message struct {
	At    uint64 // the source or the destination
	Bytes uint64
	Word  uint64 // for receives and sends by a copy engine: the destination's; to this rank itself: its address
	Head  uint64
}

// Lane is the messages with one rank in one direction, of the kernel Messages: ubc_lane of src/abi.h.
type Lane struct {
	Area     uint64 // the peer's, as mapped here
	Table    uint64 // of the peer's extents; 0: the peer is this rank itself
	FIFO     uint64 // receives: where pieces arrive; sends: the small FIFO at the peer
	FIFOWord uint64 // receives: 0 for the small FIFO, else Through
	Peer     uint32
	Receives uint32 // 1: receives, 0: sends
	First    uint32 // index in MailParams.Message
	Messages uint32
	Block    uint32 // first block in the grid
	Blocks   uint32
}

// MailParams are the parameters of the kernel Messages: ubc_mail_params of src/abi.h. Each rank chooses its own grid.
// Kernels that share a lane must run one after the other, in the order of the messages.
type MailParams struct {
	Area    uint64 // this rank's
	Status  uint64
	Timeout uint64 // nanoseconds, for each wait
	Boxes   uint64
	Slots   uint32 // of the small FIFOs
	Slot    uint32 // bytes of a slot
	Rank    uint32
	Lanes   uint32 // in order of their blocks
	Lane    [MaxLanes]Lane
	Message [MaxMessages]Message
}
