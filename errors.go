package ubcoll

import "github.com/ubcoll/ubcoll/fault"

// Error is what operations return: which operation, on which rank, about which peer, at which step, and why. Use
// errors.Is with the sentinels below, with [ErrNotSupported], and with the context errors.
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
