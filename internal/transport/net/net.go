// Package net connects processes of different hosts: a node is one process's end (a listener, a key pair, a wire to each
// peer that it talks to), a wire is a pair of processes with a control connection and data connections, a link is what
// one communicator does on a wire.
//
// What is guaranteed:
//
//   - Every byte has a place that its receiver reserved, with a grant, before it is sent. What has no grant ends the wire,
//     and is written nowhere; what comes for a closed link, or for a sequence that has landed or was taken back, is read
//     and dropped.
//   - A word is raised once all bytes of its put have landed, and is never lowered. Puts of one place land in order. What
//     the kernel has received of a peer that dies lands before the error.
//   - Nobody's byte is interpreted before both ends have proved that they know the job's secret, on this connection.
//   - Nothing here waits for a peer but Connect, Wait and Close, each as long as it is told at most.
//   - The end of a peer's process is told once (Config.Down), as is a cut link; a process that is stopped is neither.
//   - What is sent is neither encrypted nor signed.
//
// Sockets are raw and not blocking once the handshake is over, outside of Go's own poller. Who waits for a peer makes
// progress himself (Link.Poll, Node.Progress, Node.Wait); a goroutine of the node does while nobody else has for a while.
package net

import (
	"fmt"
	"log/slog"

	"github.com/ubcoll/ubcoll/fault"
)

// Config is what a Node needs of its rank.
type Config struct {
	Rank   int    // in the job
	Secret []byte // the job's, at least 16 bytes
	Log    *slog.Logger

	Heard func(from int, m Message) // a message of the control connection came; by whoever makes progress, one at a time a peer; it must not wait, nor make progress
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
