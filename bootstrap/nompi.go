//go:build !mpi || !cgo

package bootstrap

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// MPI would start MPI, but this program was built without it: the error wraps [fault.ErrNotSupported] and says how to
// get it. It is local and does not block.
func MPI() (Bootstrap, error) {
	if name, size := Launcher(); size > 1 {
		return nil, fmt.Errorf("%s started %d ranks, but %s: %w", name, size, cure, fault.ErrNotSupported)
	}
	return nil, fmt.Errorf("%s: %w", cure, fault.ErrNotSupported)
}

// UsesMPI reports whether this process is a rank of a job of [MPI], which this one cannot be: it was built without MPI.
// It is local and does not block.
func UsesMPI() bool { return false }

// MPILibrary would be what the linked MPI library says it is, and is "", since there is none. Local, does not block.
func MPILibrary() string { return "" }

// Gompi would take a communicator of a program that runs MPI itself, a *gompi.Communicator, as the job, but this
// program was built without MPI: the error wraps [fault.ErrNotSupported] and says how to get it. It is local and does
// not block.
func Gompi(any) (Bootstrap, error) {
	return nil, fmt.Errorf("a communicator of gompi is given, but %s: %w", cure, fault.ErrNotSupported)
}

const cure = "this program was built without MPI: rebuild with cgo and -tags mpi"
