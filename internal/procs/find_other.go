//go:build !linux

package procs

import (
	"fmt"
	"runtime"

	"github.com/ubcoll/ubcoll/fault"
)

// Find is for Linux only.
func Find(pids ...int) ([]*Process, Hidden, error) {
	return nil, 0, fmt.Errorf("jobs on %s: %w", runtime.GOOS, fault.ErrNotSupported)
}

// Dump is for Linux only.
func (p *Process) Dump() error { return ErrSilent }

// Variable is for Linux only.
func (p *Process) Variable(name string) string { return "" }

// Path is for Linux only.
func (p *Process) Path(path string) string { return path }
