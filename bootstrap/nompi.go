//go:build !mpi || !cgo

package bootstrap

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// MPI returns an error, because this program was built without MPI: it wraps [fault.ErrNotSupported] and says how to
// build with MPI. Local, does not block.
func MPI() (Bootstrap, error) {
	if name, size := Launcher(); size > 1 {
		return nil, fmt.Errorf("%s started %d ranks, but %s: %w", name, size, cure, fault.ErrNotSupported)
	}
	return nil, fmt.Errorf("%s: %w", cure, fault.ErrNotSupported)
}

// UsesMPI is false, because this program was built without MPI. Local, does not block.
func UsesMPI() bool { return false }

// MPILibrary is "", because this program was built without MPI. Local, does not block.
func MPILibrary() string { return "" }

// Gompi, which takes a *gompi.Communicator, returns an error, because this program was built without MPI: it wraps
// [fault.ErrNotSupported] and says how to build with MPI. Local, does not block.
func Gompi(any) (Bootstrap, error) {
	return nil, fmt.Errorf("a communicator of gompi is given, but %s: %w", cure, fault.ErrNotSupported)
}

const cure = "this program was built without MPI: rebuild with cgo and -tags mpi"
