package verbs

import "fmt"

// Op is what a work request does (enum ibv_wr_opcode).
type Op uint8

// The operations of reliable connections.
const (
	Write          Op = iota
	WriteImmediate    // a write that also takes one of the peer's receives, and gives it a number
	Send
	SendImmediate
	Read
	CompareSwap // of 8 bytes, aligned, in the peer's byte order; the old value is written to Local
	FetchAdd
	ops
)

// String is like "write".
func (o Op) String() string {
	if o >= ops {
		return fmt.Sprintf("operation %d", uint8(o))
	}
	return [ops]string{"write", "write with immediate", "send", "send with immediate", "read", "compare and swap",
		"fetch and add"}[o]
}

// reads reports whether o brings data back from the peer.
func (o Op) reads() bool { return o >= Read }

// oneSided reports whether o addresses the peer's memory.
func (o Op) oneSided() bool { return o != Send && o != SendImmediate }

// Flag modifies a work request (enum ibv_send_flags). There is none for inline: [QP.Post] decides that.
type Flag uint8

// The flags.
const (
	Fence     Flag = 1 << 0 // starts only after all earlier reads and atomics have completed
	Signaled  Flag = 1 << 1 // completes in the queue when it succeeds; failures always do
	Solicited Flag = 1 << 2 // wakes a peer whose Notify asked for solicited completions only
)

const flags = Fence | Signaled | Solicited

// wrong reports whether w is one that no device accepts, or that would crash this process: Post copies short messages,
// so Local must not be 0.
func (w *Work) wrong() bool {
	return w.Op >= ops || w.Flags&^flags != 0 || w.Op > Read && w.Length != 8 || w.Length != 0 && w.Local == 0
}

// Work is one work request: one message.
type Work struct {
	ID     uint64 // comes back in the completion
	Local  uint64 // address
	Length uint32
	Key    LKey   // of Local's region; ignored if the work travels inline
	Remote uint64 // address in the peer's memory
	Peer   RKey
	Value  uint32 // the number of WriteImmediate and SendImmediate
	Add    uint64 // FetchAdd: what is added; CompareSwap: what must be there
	Swap   uint64 // CompareSwap: what takes its place
	Op     Op
	Flags  Flag
	_      [6]byte
}

// String is like "write of 64 bytes from 0x1000 (lkey 0x12) to 0x2000 (rkey 0x34)".
func (w Work) String() string {
	s := fmt.Sprintf("%v of %d bytes at %#x (%v)", w.Op, w.Length, w.Local, w.Key)
	if w.Op.oneSided() {
		s += fmt.Sprintf(" and the peer's %#x (%v)", w.Remote, w.Peer)
	}
	return s
}

// Receive is one receive: the place for one message of the peer.
type Receive struct {
	ID     uint64
	Local  uint64
	Length uint32
	Key    LKey
}

// Status is how a work request ended (enum ibv_wc_status).
type Status int32

// The statuses that a program can do something about.
const (
	Success         Status = 0
	LocalLength     Status = 1  // longer than the port's MaxMessage, or than the receive
	LocalOperation  Status = 2  // the device could not make sense of the work request
	LocalProtection Status = 4  // Local is not in the region of Key
	Flushed         Status = 5  // the queue pair had failed already, or was made to
	RemoteInvalid   Status = 9  // the peer could not make sense of it: too long for its receive, not aligned
	RemoteAccess    Status = 10 // the peer's region does not allow it: wrong key, out of bounds, no such access, deregistered
	RemoteOperation Status = 11
	RetryExceeded   Status = 12 // the peer does not answer
	NotReady        Status = 13 // the peer has no receive posted
	Fatal           Status = 19
	General         Status = 21
)

// Values of enum ibv_wc_opcode, and a flag.
const (
	completedReceive          = 128
	completedReceiveImmediate = 129
	withImmediate             = 2
)

// Completion is the end of one work request or receive, as ibv_poll_cq returns it. If it failed, only ID, Status,
// Vendor and QP are valid.
type Completion struct {
	ID     uint64
	Status Status
	op     int32
	Vendor uint32 // the device's own code for what failed
	Bytes  uint32 // of a receive: how many arrived; of a write with immediate: how many it wrote
	value  uint32
	QP     uint32 // the number of the queue pair
	_      uint32
	flags  uint32
	_      [8]byte
}

// Received reports whether a message or a write with immediate arrived. If not, own work has ended.
func (c *Completion) Received() bool { return c.op >= completedReceive }

// Immediate is the number that a peer's WriteImmediate or SendImmediate brought.
func (c *Completion) Immediate() (value uint32, ok bool) {
	return c.value, c.Received() && c.flags&withImmediate != 0
}

// PostCounts counts what has been posted to a queue pair.
type PostCounts struct {
	Calls  int64 // of Post; each makes one call of libibverbs for every 32 work requests
	Work   int64 // work requests
	Inline int64 // how many of them travelled inline
}

// QPState is enum ibv_qp_state.
type QPState int

// The states that matter here.
const (
	StateReset QPState = 0
	StateInit  QPState = 1
	StateRTR   QPState = 2 // ready to receive
	StateRTS   QPState = 3 // ready to send
	StateError QPState = 6
)
