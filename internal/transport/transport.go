// Package transport is what the network between hosts looks like to those that use it: a node is one rank's end of it,
// and an endpoint is one peer rank, as one communicator reaches it. Package net implements both over TCP, package
// transporttest within a process, for tests.
//
// Memory that a peer may write to is called a place. A place is one item's at a time, which has a sequence number. What
// is guaranteed:
//
//   - Every byte has its place before it is sent: the receiver has granted it. Bytes without a grant are written
//     nowhere.
//   - What a peer writes to memory that it was told of lands where this rank's Server says, when it comes.
//   - A place's word is raised once all bytes of a put have landed, and is never lowered. Puts to one place land in
//     order; puts to different places may land in any order.
//   - What came before a peer's death lands before the endpoint's Err says so.
//   - Nothing waits for a peer but Ready, Wait and Node.Close.
//   - What is short (grants, revocations, puts of a few KiB) does not wait for the whole of a long put of another
//     communicator, nor do two long ones for each other: they share the wire in parts.
//
// Some fabrics move nothing without their user: who waits calls Poll, Progress or Wait again and again.
package transport

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/internal/transport/net/ofi"
	"github.com/ubcoll/ubcoll/register"
)

// Node is a rank's end of the network, for all of its communicators. Its methods are local and safe for concurrent use.
type Node interface {
	// Row is what other ranks need to reach this one, at most MaxRow bytes.
	Row() []byte
	// Transport is what wires move data by, such as "tcp", and how many connections for data each has.
	Transport() (name string, connections int)
	// Begin says that Config.RowOf has the rows of all ranks. Until then no pair is made.
	Begin()
	// Join lets this rank and its peers make pairs of a communicator's ranks. A peer that has made its side already, or
	// does so before Leave, is accepted without a call of this rank. It fails with fault.ErrInUse if the communicator
	// has joined, or was joined before.
	Join(c Comm) error
	// Leave closes all endpoints of a communicator that are not closed. Peers that make a pair later are refused by
	// name, also if it has never joined.
	Leave(comm uint64)
	// Endpoint returns the endpoint of a peer, by its rank in the job. If there is none it makes the pair, without
	// waiting: see Endpoint.Ready. expected says that the peer makes the pair, too, at about this time: then only one of
	// the two connects, unless it does not come. The communicator must have joined.
	Endpoint(comm uint64, peer int, expected bool) Endpoint
	// Progress moves all data that can move, without waiting. It does nothing while another goroutine makes progress.
	Progress()
	// Wait blocks until some data can move, and moves it. It blocks for d at most, and less if others make progress,
	// too.
	Wait(d time.Duration)
	// Cut lets all connections of this node fall silent for good, in both directions, and those that are made later, as when
	// the cable is pulled: after Config.Timeout this node and its peers find the wires cut. What RDMA devices and libfabric
	// carry goes on until then.
	Cut() error
	// Traffic is what went over the wires to each peer that has or had one, in the order of the peers. It may also be
	// called during and after Close.
	Traffic() []Traffic
	// Close says bye to all peers, sends what is under way, for limit at most, and ends all connections. If something
	// was left unsent, its error says what, is about that peer (reason.Blamed), and wraps fault.ErrTimeout, or
	// fault.ErrPeerLost if the peer's host does not answer. Nobody may use the node or its endpoints meanwhile or
	// afterwards.
	Close(limit time.Duration) error
}

// Traffic is what went over all wires to a peer, one after the other, for all communicators. Messages that Tell sends do
// not count.
type Traffic struct {
	Peer                     int    // its rank in the job
	SentBytes, ReceivedBytes uint64 // with the heads of frames, where a fabric has them
	SentPuts, ReceivedPuts   uint64
	Retries                  uint64 // what the fabric sent again, as when it is lost: segments of TCP
}

// Add adds u's counts to t.
func (t *Traffic) Add(u Traffic) {
	t.SentBytes += u.SentBytes
	t.ReceivedBytes += u.ReceivedBytes
	t.SentPuts += u.SentPuts
	t.ReceivedPuts += u.ReceivedPuts
	t.Retries += u.Retries
}

// Comm is what a communicator says about the pairs of its ranks. It is the same on all ranks but for Made.
type Comm struct {
	ID     uint64
	Places int // that each endpoint has, numbered from 0
	// Made is called for each endpoint, once, before the peer can put anything: it may Post, and call nothing else. Other
	// goroutines to which it gives the endpoint may call all its methods before it has returned. It returns what serves
	// the peer's writes and calls; nil: there are none.
	Made func(e Endpoint) Server
}

// Target is memory of a peer, as its owner names it.
type Target struct {
	Key    uint64 // at least 1
	Slot   uint32
	Offset uint64 // in bytes; less than MaxOffset
	Region Region // where it is registered with the peer's RDMA device, if this rank knows that
}

// Region is memory that is registered with an RDMA device, as peers reach it. The zero Region is none.
type Region struct {
	Address uint64 // of a target's offset 0
	Key     uint32 // on the device that the wire uses, or 0
}

// Result is how a read ends.
type Result struct{ state atomic.Uint32 }

// End ends the read; done says that all has been read.
func (r *Result) End(done bool) {
	v := uint32(1)
	if done {
		v = 2
	}
	r.state.Store(v)
}

// Ended reports whether the read has ended, and whether all has been read. If not, the memory may have changed in parts.
func (r *Result) Ended() (over, done bool) {
	v := r.state.Load()
	return v > 0, v == 2
}

// MaxOffset is above the largest offset of a Target, and MaxCall is the most bytes of a Call.
const (
	MaxOffset = 1 << 44
	MaxCall   = 4 << 10
)

// Server serves a peer's writes and calls at one endpoint, in the order in which the peer made them. Its methods are
// called from any progress, one at a time for each endpoint, until the endpoint is closed or lost. They must neither wait
// nor make progress; they may use the endpoint's Write and Call, and those of others.
type Server interface {
	// Reach returns where n bytes of a write go, or nil: then they are read and dropped. A long write comes in pieces, and
	// is asked for each. All n bytes come then, also if the peer withdraws the write, unless the pair ends.
	Reach(t Target, n int) unsafe.Pointer
	// Called takes the bytes of a call, which are good until it returns. What was written before has landed.
	Called(b []byte)
	// Denied says that the peer's device has refused this rank's writes or reads by a target's region. They end, and what
	// follows does not get there. It may be called while another method runs.
	Denied(t Target)
}

// Endpoint is a peer rank as one communicator reaches it, over a wire that all communicators share. Only one goroutine
// at a time may post, grant, put or revoke; all else is safe for concurrent use. Nothing blocks but Ready and Close,
// and neither waits for long: see there.
//
// Before the pair is made, puts and grants are kept, and sent once it is. Messages are lost, and so are puts that are
// still kept when the node closes.
type Endpoint interface {
	// Peer is the peer's rank in the job, Name the wire's transport, and this host's interfaces that it uses: "tcp eth0",
	// "tcp eth0, eth1"; "" before there is a wire.
	Peer() int
	Name() string
	// Connections is how many connections for data the wire has, alike at both ends; 1 before there is a wire.
	Connections() int
	// Ready waits until the pair is made, which the peer's side has accepted, or ctx ends: then the pair is given up. The
	// error is why it was not made; that of an endpoint that is lost later is Err's. If ctx's cause is a *fault.Error, it
	// is that.
	Ready(ctx context.Context) error

	// Post allows the peer to put up to n bytes of sequence seq, which must be larger than 0 and all earlier ones, to
	// place. The bytes go to p, which must stay valid until the word is seq, Err is not nil, or a Revoke of it is done.
	// A place has one grant at a time: post again only after the last one has landed, or its revocation is done. The peer does not
	// learn of it: it must know from elsewhere that the place is free. A place's posts are all of the same memory.
	Post(place int, seq uint64, p unsafe.Pointer, n int)
	// Grant is Post, and tells the peer: see Granted. The memory may be another each time. The message leaves with the
	// next put, or at the next Poll or progress.
	Grant(place int, seq uint64, p unsafe.Pointer, n int)
	// Granted becomes seq once the peer has granted place to that sequence. It starts at 0. Room is then how many bytes.
	Granted(place int) *atomic.Uint64
	Room(place int) int
	// Revoke takes back what was posted or granted for sequences up to seq at a place. It is done, and Revoking has
	// counted down, once the peer has acknowledged: it puts no more of these, and what it has put before has landed. A put
	// that was under way may have ended in the middle: some of the memory is written, and the word is not raised. Err and
	// either side's Close end it, too. Until then the memory may be written to.
	Revoke(place int, seq uint64)
	// Revoking is how many revocations are not done.
	Revoking() int

	// Put sends n bytes at p to the peer's place, as sequence seq. The memory is in use until Sent has counted this put
	// or Err is not nil. With n = 0 it needs no grant and only raises the word. After Close, or if the peer has revoked
	// the sequence, nothing is sent, and the put counts as sent.
	Put(place int, seq uint64, p unsafe.Pointer, n int)
	// GrantDevice and PutDevice are Grant and Put of memory of a device, which RDMA devices alone write to and read. They report
	// false, and do nothing, where these do not reach it, as for 4 KiB or less, or the pair is not made; PutDevice also if the peer has
	// granted memory that they do not reach. A Put to what GrantDevice has granted must be as long, and may be of any memory.
	GrantDevice(place int, seq uint64, p unsafe.Pointer, n int) bool
	PutDevice(place int, seq uint64, p unsafe.Pointer, n int) bool
	// Write sends n bytes at p, at least one, to the peer's memory, if its Server says where that is. Whether it does, this
	// rank does not learn. The memory at p is in use as that of a put is, and Queued and Sent count it as one. The peer
	// serves writes and calls in order; between these and puts there is none. more says that the caller writes or calls
	// again at once: then they may leave together. If both memories are registered with RDMA devices, and the target says
	// so, the devices may move the bytes, and ask no Server. It reports whether they do.
	Write(t Target, p unsafe.Pointer, n int, more bool) (devices bool)
	// WriteDevice is Write, of memory that devices alone read, or to such. It reports false, and does nothing, if they do not.
	WriteDevice(t Target, p unsafe.Pointer, n int) bool
	// Read reads n bytes of the peer's memory, at least one, to p. It comes behind the writes before that devices move, but
	// what goes to the peer's Server it may overtake. It counts as a put. It reports false, and does nothing, if the devices
	// cannot do it.
	Read(t Target, p unsafe.Pointer, n int, r *Result) bool
	// Call sends 1 to MaxCall bytes to the peer's Server. b may be changed when it returns. Queued and Sent count it as a put.
	Call(b []byte)
	// Withdraw takes back this rank's writes to a key, and its reads (Target.Offset does not matter). Once it returns,
	// their memory is not used any more, and they count as sent. The peer may have all, some or none of the bytes. It may
	// wait for an RDMA device, but for no peer.
	Withdraw(t Target)
	// Refuse stops what the peer writes to a key: Server.Reach must refuse it already. Once it returns, no more of it
	// lands, but for what goes by a Region, which ends when that does. It may wait for what other goroutines receive just
	// now, but for no peer. No method of the Server may call it.
	Refuse(t Target)

	// Queued counts the puts so far, Sent those whose memory is free again, in order.
	Queued() uint64
	Sent() uint64
	// Word becomes seq once all bytes of a put of seq have landed. It starts at 0. Landed is the length of that put.
	Word(place int) *atomic.Uint64
	Landed(place int) int

	// Tell sends a message to the peer's Config.Heard, beside the puts. Messages arrive in order. One that may be lost is,
	// if the peer does not read and leaves no room for it, and the log says so. All others wait for the peer.
	Tell(m Message)
	// Poll moves this endpoint's data, without waiting. A wait for this peer calls it in a loop.
	Poll()
	// Err says why the peer can no longer be reached, or is nil. It costs a load or two. Once it is set, nothing writes
	// to granted memory or reads that of puts any more.
	Err() *Down
	// Close ends the endpoint's grants and puts. Once it returns, nothing writes to its places or reads its puts, which
	// all count as sent. Puts that were not counted before may be dropped, those under way in the middle: their words are
	// not raised. The peer learns of it by Config.Heard's messages alone.
	Close()
}

// Config is what a node gets from its rank.
type Config struct {
	Rank   int    // in the job
	Size   int    // of the job
	Secret []byte // of the job, at least 16 bytes
	Log    *slog.Logger

	// Timeout is how long a peer's host may leave what was sent to it unanswered before the connection counts as cut; at
	// least one second. 0: 5 seconds.
	Timeout time.Duration
	// Connections is how many connections for data the wires have that this node makes, where a fabric has such: up to
	// MostConnections. 0: one. Several networks to a peer have one each at least. Those that a peer makes have as many as it says.
	Connections int
	RDMA
	// RowOf returns what a rank of the job published with Row. It is called from Begin on, until the node is closed.
	RowOf func(rank int) []byte

	Heard func(from int, m Message) // a message came; called from any progress, once at a time for each peer; must neither wait nor make progress
	Down  func(peer int, err *Down) // a peer's connections ended without a bye, and there were endpoints on them; called once for each peer, from any progress, after Endpoint.Err says so
	Tick  func()                    // every 20 ms, by the node's goroutine, while the node has a wire
}

// RDMA is what wires may use of a host's RDMA devices.
type RDMA struct {
	NICs     *mr.Backend  // nil: none
	OFI      *ofi.Backend // domains of libfabric, which are used in their place; nil: none
	Required string       // who says that no data may go by TCP; "": nobody
	// Find returns the claim on registered memory that contains the n bytes at addr, with one use that the caller releases;
	// or nil.
	Find func(addr uintptr, n int) *register.Claim
}

// MostConnections is the most connections for data that a wire has.
const MostConnections = 8

// MaxRow is the most bytes that a row has.
const MaxRow = 128

// Message is what stages tell each other besides the data.
type Message struct {
	Comm  uint64 // the communicator that it is about
	Kind  uint8  // numbers of the caller's choice
	Code  uint8
	About int32  // usually a rank
	Text  string // cut to MaxText bytes

	// MayBeLost is for messages of which there can be any number. It does not travel. All others are kept until the peer
	// reads them: a few for each communicator.
	MayBeLost bool
}

// MaxText is the longest text of a Message.
const MaxText = 1000

// DownKind says how a peer was lost.
type DownKind uint8

// The ways in which endpoints end.
const (
	Died      DownKind = iota + 1 // the peer's process ended: end of stream or reset, without a bye
	Cut                           // the peer's host does not answer: no acknowledgement within Config.Timeout, no route
	Broken                        // the peer broke the protocol
	Left                          // the peer closed its node, or this one was closed: no failure by itself
	Refused                       // the peer has closed the communicator, and made no side of this pair
	Unreached                     // the pair could not be made
)

// Down says why an endpoint is no longer of use. It wraps fault.ErrPeerLost; Left wraps fault.ErrClosed, and Unreached
// what Err does.
type Down struct {
	Kind DownKind
	Peer int   // the rank at the other end
	Err  error // the error that was seen
}

// Error implements error.
func (d *Down) Error() string { return fmt.Sprintf("rank %d: %v", d.Peer, d.Err) }

// Unwrap returns the error that was seen and the reason for failure.
func (d *Down) Unwrap() []error {
	switch d.Kind {
	case Left:
		return []error{d.Err, fault.ErrClosed}
	case Unreached:
		return []error{d.Err}
	}
	return []error{d.Err, fault.ErrPeerLost}
}
