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
//	Step   string // where in the operation: "agree", "reduce-scatter", ...
//	Device Device // the device that reports; Host if none does
//	Err    error  // why: what errors.Is and errors.As look at
type Error = fault.Error

// The reasons for failure. [ErrArgument], [ErrStale], [ErrLimit] and ErrNotSupported on one rank, and [ErrMismatch]
// between ranks, are returned by all ranks before data moves, and the [Comm] stays usable; so is the error of a context
// that had ended before the call. [ErrBusy] and [ErrInUse] are local and change nothing. After [ErrPeerLost],
// [ErrTimeout], [ErrAborted], and a context that ended during the call, of a collective or a message, the Comm is
// broken: Err says why, every collective returns that, and what is left to do is Close. docs/errors.md has them one by
// one.
var (
	ErrArgument = fault.ErrArgument // this rank's own arguments are wrong
	ErrMismatch = fault.ErrMismatch // ranks called with different arguments
	ErrBusy     = fault.ErrBusy     // an operation of the same Comm runs on another goroutine, or is queued
	ErrStale    = fault.ErrStale    // memory or a handle that has been freed or re-created
	ErrInUse    = fault.ErrInUse    // memory that is registered, or held by a graph or an operation
	ErrClosed   = fault.ErrClosed   // closed already
	ErrPeerLost = fault.ErrPeerLost // a peer died, exited, or closed its communicator
	ErrTimeout  = fault.ErrTimeout  // Options.Timeout ran out, or what Free and Close wait for did not come
	ErrAborted  = fault.ErrAborted  // some rank called Abort
	ErrLimit    = fault.ErrLimit    // a limit of the library, the process or the system

	ErrNotSupported = fault.ErrNotSupported // what this version, this build or this machine cannot do
)
