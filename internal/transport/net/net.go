// Package net connects processes of different hosts. A node is one process's end: a listener, a key pair, and a wire to
// each peer that it talks to. A wire connects a pair of processes by a control connection and data connections. A link
// is one communicator's use of a wire.
//
// What is guaranteed, beside what package transport says:
//
//   - Bytes without a grant end the wire, and so do writes and calls for a link without a server. Bytes for a closed link,
//     for a sequence that has landed or was revoked, or that the server refuses, are read and dropped.
//   - No byte is interpreted before both ends of its connection have proved that they know the job's secret, and that
//     each is the rank that it says.
//   - A pair of processes has one wire at a time, whichever of them has dialled: see contact.
//   - Config.Down reports the end of a peer's process, or a cut link, once. A stopped process is neither.
//   - Data is neither encrypted nor signed.
//
// After the handshake, sockets are raw, non-blocking and outside of Go's own poller. A goroutine that waits for a peer
// makes progress itself (Link.Poll, Node.Progress, Node.Wait). When no other has for a while, the node's goroutine
// does.
package net

import "time"

const defaultTimeout = 5 * time.Second
