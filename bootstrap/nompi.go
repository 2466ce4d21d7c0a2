//go:build !mpi || !cgo

package bootstrap

import (
	"fmt"

	"github.com/ubcoll/ubcoll/hw"
)

// MPI would start MPI, but this program was built without it: the error wraps hw.ErrNotSupported and says how to get
// it.
func MPI() (Bootstrap, error) {
	const cure = "this program was built without MPI: rebuild with cgo and -tags mpi"
	if name, size := Launcher(); size > 1 {
		return nil, fmt.Errorf("%s started %d ranks, but %s: %w", name, size, cure, hw.ErrNotSupported)
	}
	return nil, fmt.Errorf("%s: %w", cure, hw.ErrNotSupported)
}
