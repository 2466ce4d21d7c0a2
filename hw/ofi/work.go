package ofi

import (
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
)

// Access is what may be done with registered memory (fi_mr(3)).
type Access uint64

// The flags.
const (
	Read  Access = 1 << 8 // reads and atomics of this process put here what they bring
	Write Access = 1 << 9 // writes of this process take from here
	// Receives may be here. Peers may be able to write, and those of memory with Send to read, whatever else is asked for:
	// that is how ofi_rxm moves long messages.
	Receive     Access = 1 << 10
	Send        Access = 1 << 11 // messages may come from here
	RemoteRead  Access = 1 << 12
	RemoteWrite Access = 1 << 13
)

// Local is all that this process's operations can do, Peers all that peers can be allowed, atomics too.
const (
	Local = Read | Write | Receive | Send
	Peers = RemoteRead | RemoteWrite
)

// Has reports whether all of b is in a.
func (a Access) Has(b Access) bool { return a&b == b }

// String is like "WRITE|REMOTE_READ", or "none".
func (a Access) String() string {
	if a == 0 {
		return "none"
	}
	return named(uint64(a), []bit{{uint64(Read), "READ"}, {uint64(Write), "WRITE"}, {uint64(Receive), "RECV"}, {uint64(Send), "SEND"},
		{uint64(RemoteRead), "REMOTE_READ"}, {uint64(RemoteWrite), "REMOTE_WRITE"}})
}

// Op is what an operation does.
type Op uint8

// The operations.
const (
	OpSend Op = iota
	OpReceive
	OpWrite
	OpRead
	OpFetchAdd    // of 8 bytes, aligned; the old value is written to Local
	OpCompareSwap // likewise
	ops
)

// String is like "write".
func (o Op) String() string {
	if o >= ops {
		return fmt.Sprintf("operation %d", uint8(o))
	}
	return [ops]string{"send", "receive", "write", "read", "fetch and add", "compare and swap"}[o]
}

// Flag modifies an operation.
type Flag uint8

// The flags.
const (
	WithData Flag = 1 << 0 // a send or write brings Data to the peer's completions
	// Delivered: it completes when it has been done at the peer, not when the local memory may be used again.
	Delivered Flag = 1 << 1
	// Inline copies a short message ([Description].Inline) at once: Local may be used again, and nothing completes here
	// unless it fails. Not together with Delivered.
	Inline Flag = 1 << 2
)

// Peer is another endpoint, as this one knows it: what [Endpoint.Insert] has returned. No provider checks others.
type Peer uint64

// Any is every peer, of a receive.
const Any = ^Peer(0)

// Work is one operation.
type Work struct {
	ID     uint64 // comes back in the completion
	Local  uint64 // address
	Length uint64
	Desc   Desc // of Local's registration, which providers with [MRLocal] want and others ignore
	Peer   Peer
	Remote uint64 // where, in the peer's registration: see [MR.Remote]
	Key    Key
	Data   uint64
	Add    uint64 // OpFetchAdd: what is added; OpCompareSwap: what must be there
	Swap   uint64 // OpCompareSwap: what takes its place
	Op     Op
	Flags  Flag
	_      [6]byte
}

// Desc lets this process's own operations use a registration.
type Desc uintptr

// Key is what a peer's operations need to reach a registration.
type Key uint64

// String is "key 0x1a2b".
func (k Key) String() string { return fmt.Sprintf("key %#x", uint64(k)) }

// check refuses what no provider accepts, or what would crash this process.
func (w *Work) check(d *Description) error {
	var wrong string
	inline := w.Flags&Inline != 0
	switch {
	case w.Op >= ops || w.Flags&^(WithData|Delivered|Inline) != 0:
		wrong = "no such operation or flag"
	case w.Length != 0 && w.Local == 0:
		wrong = "no memory is at 0"
	case w.Peer == Any && w.Op != OpReceive:
		wrong = "only receives are of any peer"
	case w.Length > uint64(d.MaxMessage):
		wrong = fmt.Sprintf("a message has %d bytes at most", d.MaxMessage)
	case w.Op > OpReceive && !d.Caps.Has(RMA):
		wrong = "the provider has no remote memory access"
	case w.Op > OpRead && (!d.Caps.Has(Atomics) || w.Length != 8 || w.Local%8 != 0 || w.Remote%8 != 0):
		wrong = "atomics are of 8 bytes, aligned, and of providers that have them"
	case w.Flags&(WithData|Inline) != 0 && w.Op != OpSend && w.Op != OpWrite, w.Flags&Delivered != 0 && w.Op != OpSend && w.Op != OpWrite:
		wrong = "flags are for sends and writes"
	case inline && w.Flags&Delivered != 0:
		wrong = "what is inline does not complete"
	case inline && w.Length > uint64(d.Inline):
		wrong = fmt.Sprintf("%d bytes at most may be inline", d.Inline)
	case w.Flags&WithData != 0 && d.DataBytes < 8 && w.Data>>(8*d.DataBytes) != 0:
		wrong = fmt.Sprintf("data have %d bytes at most", d.DataBytes)
	default:
		return nil
	}
	return fmt.Errorf("%v of %d bytes: %s: %w", w.Op, w.Length, wrong, fault.ErrArgument)
}

// Completion is the end of an operation, or the arrival of a peer's data.
type Completion struct {
	ID    uint64 // of this endpoint's operation
	flags uint64
	Bytes uint64 // of a receive: how many came
	Data  uint64
	code  int32
	prov  int32
	Op    Op
	ours  uint8
	text  [62]byte
}

// The layout of Completion and of Work is that of uof_done and uof_work.

// Failed reports whether the operation failed: see [Endpoint.Failure].
func (c *Completion) Failed() bool { return c.code != 0 }

// Mine reports whether this is the end of an operation that was posted here. Otherwise a peer has written with data, which
// are in Data, or an inline operation has failed.
func (c *Completion) Mine() bool { return c.ours != 0 }

// HasData reports whether Data came with it.
func (c *Completion) HasData() bool { return c.flags&(1<<17) != 0 }

// words returns the provider's words for a failure.
func (c *Completion) words() string {
	s, _, _ := strings.Cut(string(c.text[:]), "\x00")
	return s
}
