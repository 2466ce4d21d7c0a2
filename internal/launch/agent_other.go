//go:build !linux

package launch

import (
	"fmt"
	"io"
	"runtime"
	"syscall"

	"github.com/ubcoll/ubcoll/fault"
)

// Agent runs the ranks of one host, on Linux only.
func Agent(io.Reader, io.Writer) error {
	return fmt.Errorf("ranks on %s: %w", runtime.GOOS, fault.ErrNotSupported)
}

func apart() *syscall.SysProcAttr { return nil }
