// Package net connects processes of different hosts: a node is one process's end (a listener, a key pair, a wire to each
// peer that it talks to), a wire is a pair of processes with a control connection and data connections, a link is what
// one communicator does on a wire.
//
// What is guaranteed:
//
//   - Every byte has a place that its receiver reserved, with a grant, before it is sent. What has no grant ends the wire,
//     and is written nowhere; what comes for a closed link, or for a sequence that has landed or was taken back, is read
//     and dropped.
//   - A word is raised once all bytes of its put have landed, and is never lowered. Puts of one place land in order.
//   - Nobody's byte is interpreted before both ends have proved that they know the job's secret, on this connection.
//   - Nothing here waits for a peer but Connect, Wait and Close, each as long as it is told at most.
//   - The end of a peer's process is told once (Config.Down), as is a cut link; a process that is stopped is neither.
//   - What is sent is neither encrypted nor signed.
//
// Sockets are raw and not blocking once the handshake is over, outside of Go's own poller. Who waits for a peer makes
// progress himself (Link.Poll, Node.Progress, Node.Wait); a goroutine of the node does while nobody else has for a while.
package net

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// Config is what a Node needs of its rank.
type Config struct {
	Rank   int    // in the job
	Secret []byte // the job's, at least 16 bytes
	Log    *slog.Logger

	Heard func(from int, m Message) // a message of the control connection came; called from whoever makes progress, one at a time per peer; must not block
	Down  func(peer int, err *Down) // a peer's connections ended without a bye; called once a peer, from whoever makes progress, after Link.Err says so
	Tick  func()                    // every 20 ms, by the node's goroutine, while the node has a wire
}

// Message is what the stages tell each other beside the data.
type Message struct {
	Comm  uint64 // the communicator that it is about
	Kind  uint8  // what it says: the caller's own numbers
	Code  uint8
	About int32  // a rank, mostly
	Text  string // of at most MaxText bytes; what is longer is cut
}

// MaxText is the longest text of a Message.
const MaxText = 1000

// DownKind is how a wire ended.
type DownKind uint8

// How wires end.
const (
	Died   DownKind = iota + 1 // the peer's process ended: end of stream, or reset, without a bye
	Cut                        // the peer's host does not answer: no acknowledgement within 3 s, no route
	Broken                     // the peer sent what it must not
	Left                       // the peer closed its node, or this one was closed: no failure by itself
)

// Down is why a wire is of no more use. It wraps fault.ErrPeerLost; Left wraps fault.ErrClosed.
type Down struct {
	Kind DownKind
	Peer int   // the rank at the other end
	Err  error // what was seen
}

// Error implements error.
func (d *Down) Error() string { return fmt.Sprintf("rank %d: %v", d.Peer, d.Err) }

// Unwrap gives what was seen and the reason for failure.
func (d *Down) Unwrap() []error {
	if d.Kind == Left {
		return []error{d.Err, fault.ErrClosed}
	}
	return []error{d.Err, fault.ErrPeerLost}
}

// Row is what others need to reach a node. It is made by Node.Row, and travels as bytes (Append, ParseRow).
type Row struct {
	Key   [32]byte     // the node's public key (X25519)
	Port  uint16       // on all of the addresses
	Addrs []netip.Addr // where it listens, MaxAddrs at most
	PID   int32        // its process, and since when that runs (clock ticks since its host's start)
	Start uint64
}

// MaxAddrs is how many addresses a Row has at most, MaxRow how many bytes its binary form.
const (
	MaxAddrs = 4
	MaxRow   = 128
)

// Append appends the binary form, of at most MaxRow bytes.
func (r Row) Append(b []byte) []byte { panic("not yet") }

// ParseRow reads what Row.Append wrote, and nothing else: bytes left over are an error. Errors wrap fault.ErrMismatch.
func ParseRow(b []byte) (Row, error) { return Row{}, fault.ErrNotSupported }

// Node is a process's end of the network. Methods are local and safe for concurrent use.
type Node struct{}

// New makes a node, which listens on the interfaces of UBCOLL_NET and a port of UBCOLL_PORTS. It raises the process's soft
// limit on descriptors. Errors name the variable, the interface and the port.
func New(c Config) (*Node, error) { return nil, fmt.Errorf("hosts: %w", fault.ErrNotSupported) }

// Row is what peers need to connect to this node.
func (n *Node) Row() Row { panic("not yet") }

// Connect connects to a peer, whose node's row this is: both sides call it, the lower rank dials. It blocks until there is
// a wire whose connections have carried a full-size frame both ways, or until ctx ends. If there is a wire already, that
// is the result. Several may run at once. The error says which address failed how; it wraps fault.ErrPeerLost,
// fault.ErrTimeout where nothing answered, or fault.ErrLimit where this process may have no more descriptors.
func (n *Node) Connect(ctx context.Context, peer int, at Row) (*Wire, error) { panic("not yet") }

// Progress moves what can be moved on all wires, without waiting: a try-lock, nothing while somebody else does.
func (n *Node) Progress() { panic("not yet") }

// Wait blocks until something can be moved, and moves it; d at most, and less where others make progress too.
func (n *Node) Wait(d time.Duration) { panic("not yet") }

// Close says bye to all peers, sends what is queued, for limit at most, and ends all connections and the node's goroutine.
// What it had to leave is its error.
func (n *Node) Close(limit time.Duration) error { panic("not yet") }

// Wire is what connects this process to a peer. Methods are safe for concurrent use.
type Wire struct{}

// Peer is the rank at the other end.
func (w *Wire) Peer() int { panic("not yet") }

// Err is why the wire is of no more use, or nil: one load.
func (w *Wire) Err() *Down { panic("not yet") }

// Tell sends m on the control connection. It never blocks: what the peer has not read yet is kept here. Messages that do not
// fit (16 KiB a peer) are dropped, the newest first; after Err it does nothing.
func (w *Wire) Tell(m Message) { panic("not yet") }

// Link makes communicator comm's use of the wire, with that many places on each side, numbered from 0. Both sides do so
// before either puts. ErrInUse: comm has or had a link here.
func (w *Wire) Link(comm uint64, places int) (*Link, error) { panic("not yet") }

// Link is one communicator's use of a wire. A place is memory reserved for what the peer puts there, and a word. Puts of a
// link are by one goroutine at a time; so are grants of one place. All else is safe for concurrent use.
type Link struct{}

// Grant says that the peer may put up to n bytes of sequence seq (over 0, and over those before) to place: at p, which stays
// valid until the word is seq, Err is not nil, or the grant is taken back. One grant at a time: what was granted before has
// landed or was taken back. How the peer knows of it is the caller's. With p nil Grant takes back what was granted up to
// seq: once it returns, nothing is being written there, nor will be; bytes that come for it are dropped.
func (l *Link) Grant(place int, seq uint64, p unsafe.Pointer, n int) { panic("not yet") }

// Word is seq once all bytes of a put of seq have landed. It starts at 0.
func (l *Link) Word(place int) *atomic.Uint64 { panic("not yet") }

// Landed is the length of the put that the word tells of.
func (l *Link) Landed(place int) int { panic("not yet") }

// Put sends n bytes at p to the peer's place, as sequence seq. It does not block: it sends at once what the kernel takes, and
// queues the rest for whoever makes progress. The memory is in use until Sent has counted this put, or Err is not nil.
// n = 0 needs no grant: it raises the word.
func (l *Link) Put(place int, seq uint64, p unsafe.Pointer, n int) { panic("not yet") }

// Queued is how many puts there were, Sent how many of them the kernel has taken all of, in order.
func (l *Link) Queued() uint64 { panic("not yet") }

// Sent is how many of the puts the kernel has taken all of, in order.
func (l *Link) Sent() uint64 { panic("not yet") }

// Err is why the wire is of no more use, or nil: one load. From then on nothing is written to places, nor read of puts.
func (l *Link) Err() *Down { panic("not yet") }

// Poll receives from this wire and sends what is queued, without waiting: what a wait for this peer calls in its loop.
func (l *Link) Poll() { panic("not yet") }

// Close takes all grants back: once it returns, nothing is being written to its places, nor read of its puts. Puts that are
// queued are dropped if they have not begun. What comes later for the communicator is read and dropped.
func (l *Link) Close() { panic("not yet") }
