//go:build unix

package sweep

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/ubcoll/ubcoll"
)

// lock locks a file for this process as long as it is open. A process that is killed releases it, too.
func lock(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("another run is writing here: wait for it, or name another folder (-o): %w", ubcoll.ErrArgument)
		}
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	return f, nil
}
