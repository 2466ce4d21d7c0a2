// Package reason passes on reasons for failure: between ranks, from contexts, and with the rank that a reason is about.
package reason

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
)

// codes are the sentinels that travel between ranks, as numbers from 1 on.
var codes = []error{fault.ErrArgument, fault.ErrStale, fault.ErrLimit, fault.ErrNotSupported, fault.ErrInUse,
	fault.ErrClosed, context.Canceled, context.DeadlineExceeded, fault.ErrPeerLost, fault.ErrTimeout, fault.ErrMismatch,
	fault.ErrAborted, fault.ErrBusy}

// Code is the number that stands for err's sentinel between ranks, 0 if it has none. OfCode is the inverse.
func Code(err error) int {
	for i, s := range codes {
		if errors.Is(err, s) {
			return i + 1
		}
	}
	return 0
}

// OfCode returns the sentinel of a code, or nil.
func OfCode(code int) error {
	if code < 1 || code > len(codes) {
		return nil
	}
	return codes[code-1]
}

// Remote is another rank's error: its text, and its sentinel or nil.
func Remote(text string, sentinel error) error { return &remote{text, sentinel} }

// As is the error that text describes, of that sentinel: its text ends in the sentinel's, once.
func As(text string, sentinel error) error {
	end := ": " + sentinel.Error()
	return Remote(strings.TrimSuffix(text, end)+end, sentinel)
}

type remote struct {
	text string
	is   error
}

func (e *remote) Error() string { return e.text }
func (e *remote) Unwrap() error { return e.is }

// Text is err's text for ranks that know which rank it comes from: without that rank and its host.
func Text(err error, from int) string {
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Rank != from {
		return err.Error()
	}
	bare := *e
	bare.Rank, bare.Host = -1, ""
	return strings.Replace(err.Error(), e.Error(), bare.Error(), 1)
}

// About adds to err the rank of the communicator that it is about.
func About(rank int, err error) error { return &about{rank, err} }

type about struct {
	rank int
	error
}

func (e *about) Unwrap() error { return e.error }

// Blamed returns the rank that About has added to err, or otherwise.
func Blamed(err error, otherwise int) int {
	if e, ok := errors.AsType[*about](err); ok {
		return e.rank
	}
	return otherwise
}

// Ended returns why ctx ended: its error, and its cause if that says more. The library's own time limits are contexts
// whose cause is fault.ErrTimeout; for these it returns the cause alone.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) || errors.Is(cause, fault.ErrTimeout) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// TimedOut reports whether err says that a time limit has passed.
func TimedOut(err error) bool {
	return errors.Is(err, fault.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
}
