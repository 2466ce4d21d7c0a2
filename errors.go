package ubcoll

import "github.com/ubcoll/ubcoll/fault"

// Error is what operations return, [fault.Error] by another name. Use errors.As to get it, and errors.Is with the
// sentinels below and with the context errors. Its fields:
//
//	Op     string // the operation: "all_reduce", "open", ...
//	Seq    uint64 // its sequence number in its communicator, from 1; 0 if it had none
//	Rank   int    // the rank that reports; -1 if it has none yet
//	Peer   int    // the rank that the error is about; -1 if none
//	Host   string // the reporting rank's host
//	Step   string // where in the operation: "agree", "reduce-scatter", ...; not in the text
//	Device Device // the device that reports; Host if none does
//	Err    error  // why: what errors.Is and errors.As look at
type Error = fault.Error

// The reasons for failure, by what they leave behind:
//
//   - All ranks return [ErrArgument], [ErrStale], [ErrLimit] and ErrNotSupported of one rank, and [ErrMismatch] between
//     ranks, before data moves, and the [Comm] stays usable. The same holds for a context that ended before the call.
//   - [ErrBusy] and [ErrInUse] are local and change nothing.
//   - [ErrPeerLost], [ErrTimeout], [ErrAborted] and a context that ended during the call break the Comm when a
//     collective or a message returns them. Err then says why, every collective returns that error, and only Close is
//     left to call.
//
// docs/errors.md describes them one by one.
var (
	ErrArgument = fault.ErrArgument // this rank's own arguments are wrong
	ErrMismatch = fault.ErrMismatch // ranks called with different arguments
	ErrBusy     = fault.ErrBusy     // an operation of the same Comm runs on another goroutine, or is queued
	ErrStale    = fault.ErrStale    // memory or a handle that has been freed or re-created
	ErrInUse    = fault.ErrInUse    // memory that is registered, or held by a graph or an operation
	ErrClosed   = fault.ErrClosed   // closed already
	ErrPeerLost = fault.ErrPeerLost // a peer died, exited, or closed its communicator
	ErrTimeout  = fault.ErrTimeout  // Options.Timeout ran out, or Free or Close waited in vain
	ErrAborted  = fault.ErrAborted  // some rank called Abort
	ErrLimit    = fault.ErrLimit    // a limit of the library, the process or the system

	ErrNotSupported = fault.ErrNotSupported // not possible with this version, build or machine
)
