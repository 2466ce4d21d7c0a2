// Package reason passes reasons for failure on: between ranks, from contexts, and with the rank that one is about.
package reason

import (
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// codes are the sentinels that travel between ranks, as numbers from 1 on.
var codes = []error{fault.ErrArgument, fault.ErrStale, fault.ErrLimit, fault.ErrNotSupported, fault.ErrInUse,
	fault.ErrClosed, context.Canceled, context.DeadlineExceeded, fault.ErrPeerLost, fault.ErrTimeout, fault.ErrMismatch,
	fault.ErrAborted, fault.ErrBusy}

// Code is what stands for err's sentinel between ranks, 0 if it has none; OfCode is the way back.
func Code(err error) int {
	for i, s := range codes {
		if errors.Is(err, s) {
			return i + 1
		}
	}
	return 0
}

// OfCode is the sentinel that a code stands for, nil if there is none.
func OfCode(code int) error {
	if code < 1 || code > len(codes) {
		return nil
	}
	return codes[code-1]
}

// Told is another rank's error: its text, and its sentinel or nil.
func Told(text string, sentinel error) error { return &told{text, sentinel} }

type told struct {
	text string
	is   error
}

func (e *told) Error() string { return e.text }
func (e *told) Unwrap() error { return e.is }

// About is err, and that it is about a rank of the communicator at hand.
func About(rank int, err error) error { return &about{rank, err} }

type about struct {
	rank int
	error
}

func (e *about) Unwrap() error { return e.error }

// Blamed is the rank that err is about, or otherwise if About has named none.
func Blamed(err error, otherwise int) int {
	if e, ok := errors.AsType[*about](err); ok {
		return e.rank
	}
	return otherwise
}

// Ended is why ctx ended: its error, and its cause if that says more. The library's own limits on time are contexts whose
// cause is fault.ErrTimeout, which then stands alone.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) || errors.Is(cause, fault.ErrTimeout) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// Late reports whether err says that some time was up.
func Late(err error) bool {
	return errors.Is(err, fault.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
}
