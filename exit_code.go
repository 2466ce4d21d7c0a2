package ubcoll

import (
	"context"
	"errors"

	"github.com/ubcoll/ubcoll/fault"
)

// The exit codes. An error with a method ExitCode() int may have its own; a signal gives 128 plus its number.
const (
	exitInternal  = 1
	exitPanic     = 2
	exitTransport = 3
	exitTimeout   = 4
	exitSupport   = 5
	exitUsage     = 6
)

// ExitCode is the code that [Main] exits with after err, and that a program which calls [Run] should exit with:
//
//	0      nil
//	1      none of the below
//	2      run panicked
//	3      ErrPeerLost, ErrAborted, ErrMismatch; a context that ended, this rank's or another's
//	4      ErrTimeout
//	5      ErrNotSupported
//	6      ErrArgument
//	128+n  signal n, which ended Main's context
//
// If err has a method ExitCode() int, or wraps an error that has one, its code counts instead, as long as it is 1 to
// 255: os/exec reports -1 for a child that a signal killed. Local.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	var own interface{ ExitCode() int }
	if errors.As(err, &own) {
		if code := own.ExitCode(); code >= 1 && code <= 255 {
			return code
		}
	}
	for _, c := range []struct {
		is   error
		code int
	}{
		{ErrTimeout, exitTimeout}, {fault.ErrPeerLost, exitTransport}, {ErrAborted, exitTransport},
		{ErrMismatch, exitTransport}, {context.Canceled, exitTransport}, {context.DeadlineExceeded, exitTransport},
		{ErrNotSupported, exitSupport}, {ErrArgument, exitUsage},
	} {
		if errors.Is(err, c.is) {
			return c.code
		}
	}
	return exitInternal
}
