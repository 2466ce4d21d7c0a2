// Package procs finds the processes of this host that have communicators, and says what their ranks are in and who waits for
// whom. The processes do nothing for it: they may hang, be stopped, or be in a debugger.
package procs

import (
	"cmp"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/procfs"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Process is a process that has communicators.
type Process struct {
	PID     int
	State   procfs.State
	Program string       // its name, of which the kernel keeps 15 bytes
	UID     uint32       // its user's
	Ranks   []team.Found // in the order of its memory, in which a job's first communicator mostly comes first

	writes bool // it has said itself that it writes dumps at a signal
}

// Writes reports whether the process has said that it writes dumps at SIGUSR2.
func (p *Process) Writes() bool { return p.writes }

// Halted reports whether no thread of the process runs until somebody lets it.
func (p *Process) Halted() bool {
	return p.State == procfs.Halted || p.State == procfs.Traced || p.State == procfs.Zombie
}

// Hidden is how many processes could not be looked into that may have communicators.
type Hidden int

// ErrSilent says that a process was not sent a signal, since it has not said that it takes it.
var ErrSilent = fmt.Errorf("it has not said that it takes SIGUSR2, which would end it: left alone: %w", fault.ErrNotSupported)

// order sorts processes by their number.
func order(a, b *Process) int { return cmp.Compare(a.PID, b.PID) }
