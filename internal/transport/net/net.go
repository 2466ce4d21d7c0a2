// Package net connects processes of different hosts. A node is one process's end: a listener, a key pair, and a wire to
// each peer that it talks to. A wire connects a pair of processes by a control connection and data connections. A link
// is one communicator's use of a wire.
//
// What is guaranteed:
//
//   - The receiver of every byte has reserved a place for it, with a grant, before it is sent. Bytes without a grant
//     are written nowhere and end the wire. Bytes for a closed link, or for a sequence that has landed or was taken
//     back, are read and dropped.
//   - A word is raised once all bytes of its put have landed, and is never lowered. Puts to one place land in order.
//     If a peer dies, everything that the kernel has received from it lands before the error.
//   - No byte is interpreted before both ends of its connection have proved that they know the job's secret.
//   - Only Connect, Wait and Close wait for a peer, each no longer than it is told.
//   - Config.Down reports the end of a peer's process, or a cut link, once. A stopped process is neither.
//   - Data is neither encrypted nor signed.
//
// After the handshake, sockets are raw, non-blocking and outside of Go's own poller. A goroutine that waits for a peer
// makes progress itself (Link.Poll, Node.Progress, Node.Wait). When no other has for a while, the node's goroutine
// does.
package net

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ubcoll/ubcoll/fault"
)

// Config is what a Node gets from its rank.
type Config struct {
	Rank   int    // in the job
	Secret []byte // of the job, at least 16 bytes
	Log    *slog.Logger

	// Timeout is how long a peer's host may leave what was sent to it unanswered before the connection counts as cut; at
	// least one second. 0: 5 seconds.
	Timeout time.Duration
	// Known reports whether a is an address of a rank of the job. If many connections want to prove themselves at once,
	// those from other addresses wait. Nil: none is.
	Known func(a netip.Addr) bool

	Heard func(from int, m Message) // a message of the control connection came; called from any progress, once at a time for each peer; must neither wait nor make progress
	Down  func(peer int, err *Down) // a peer's connections ended without a bye; called once for each peer, from any progress, after Link.Err says so
	Tick  func()                    // every 20 ms, by the node's goroutine, while the node has a wire
}

const defaultTimeout = 5 * time.Second

// Message is what stages tell each other besides the data.
type Message struct {
	Comm  uint64 // the communicator that it is about
	Kind  uint8  // numbers of the caller's choice
	Code  uint8
	About int32  // usually a rank
	Text  string // cut to MaxText bytes
}

// MaxText is the longest text of a Message.
const MaxText = 1000

// DownKind says how a wire ended.
type DownKind uint8

// The ways in which wires end.
const (
	Died   DownKind = iota + 1 // the peer's process ended: end of stream or reset, without a bye
	Cut                        // the peer's host does not answer: no acknowledgement within Config.Timeout, no route
	Broken                     // the peer broke the protocol
	Left                       // the peer closed its node, or this one was closed: no failure by itself
)

// Down says why a wire is no longer of use. It wraps fault.ErrPeerLost; Left wraps fault.ErrClosed.
type Down struct {
	Kind DownKind
	Peer int   // the rank at the other end
	Err  error // the error that was seen
}

// Error implements error.
func (d *Down) Error() string { return fmt.Sprintf("rank %d: %v", d.Peer, d.Err) }

// Unwrap returns the error that was seen and the reason for failure.
func (d *Down) Unwrap() []error {
	if d.Kind == Left {
		return []error{d.Err, fault.ErrClosed}
	}
	return []error{d.Err, fault.ErrPeerLost}
}
