// Package fault has the reasons for failure and the library's one error type. Package ubcoll has the same under its own
// name; packages that a program uses before it has a communicator, such as bootstrap, return them too.
package fault

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll/hw"
)

// The reasons. Test for them with errors.Is.
var (
	// ErrArgument: this rank's own arguments are wrong.
	ErrArgument = errors.New("invalid argument")
	// ErrMismatch: ranks called with different arguments.
	ErrMismatch = errors.New("ranks disagree")
	// ErrBusy: an operation of the same Comm runs on another goroutine, or is queued.
	ErrBusy = errors.New("an operation is running")
	// ErrStale: memory or a handle that has been freed or re-created.
	ErrStale = errors.New("stale memory or handle")
	// ErrInUse: memory that is registered, or held by a graph or an operation.
	ErrInUse = errors.New("in use")
	// ErrClosed: closed already.
	ErrClosed = errors.New("closed")
	// ErrPeerLost: a peer died, exited, or closed its communicator.
	ErrPeerLost = errors.New("peer lost")
	// ErrTimeout: Options.Timeout ran out, or Free or Close waited in vain.
	ErrTimeout = errors.New("timed out")
	// ErrAborted: some rank called Abort.
	ErrAborted = errors.New("aborted")
	// ErrLimit: a limit of the library, the process or the system.
	ErrLimit = errors.New("limit reached")

	// ErrNotSupported: not possible with this version, build or machine.
	ErrNotSupported = hw.ErrNotSupported
)

// Error is the error of operations: which operation, where, on which rank, about which peer, and why. Err wraps one of
// the sentinels (or a context's error).
type Error struct {
	Op     string    // "all_reduce", "open", ...
	Seq    uint64    // the collective's sequence number in its communicator, from 1; 0 if it had none
	Rank   int       // the rank that reports; -1 if it has none yet
	Peer   int       // the rank that the error is about; -1 if none
	Host   string    // the reporting rank's host
	Step   string    // where in the operation: "agree", "reduce-scatter", ...; not in the text
	Device hw.Device // the device that reports; the host if none does
	Err    error     // why: what errors.Is and errors.As look at
}

// Error returns text like "all_reduce #3: rank 1 (host a): rank 2 called ..., 3 of 4 ranks ...: ranks disagree". It says
// each thing once: it names Peer only if the reason does not, and leaves out Step, which is for programs.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.call())
	if e.Rank >= 0 {
		fmt.Fprintf(&b, ": rank %d", e.Rank)
	}
	if e.Host != "" {
		fmt.Fprintf(&b, " (host %s)", e.Host)
	}
	if !e.Device.IsHost() {
		fmt.Fprintf(&b, " on %v", e.Device)
	}
	why := e.reason()
	if e.Peer >= 0 && e.Peer != e.Rank && !names(why, e.Peer) {
		fmt.Fprintf(&b, ": peer rank %d", e.Peer)
	}
	return b.String() + ": " + why
}

// call is the operation and its number.
func (e *Error) call() string {
	if e.Seq == 0 {
		return e.Op
	}
	return fmt.Sprintf("%s #%d", e.Op, e.Seq)
}

// reason is the text of Err without what stands before it: this rank, and if Err wraps an Error of this rank, its host
// and, if it is the same, its operation.
func (e *Error) reason() string {
	text := fmt.Sprint(e.Err)
	if in, ok := errors.AsType[*Error](e.Err); ok && in.Rank == e.Rank {
		bare := *in
		bare.Rank, bare.Host, bare.Device = -1, "", hw.Host
		less := bare.Error()
		if in.Op == e.Op {
			less = in.reason()
		}
		text = strings.Replace(text, in.Error(), less, 1)
	}
	return strings.TrimPrefix(text, fmt.Sprintf("rank %d: ", e.Rank))
}

// names reports whether text has "rank" and this number.
func names(text string, rank int) bool {
	word := fmt.Sprintf("rank %d", rank)
	for {
		_, rest, found := strings.Cut(text, word)
		if !found {
			return false
		}
		if rest == "" || rest[0] < '0' || rest[0] > '9' {
			return true
		}
		text = rest
	}
}

// Unwrap returns the reason, for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Err }
