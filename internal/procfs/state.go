package procfs

import (
	"fmt"
	"path/filepath"
)

// State is what a process does.
type State string

// The states.
const (
	Running  State = "running"  // some thread of it runs, or could
	Blocked  State = "blocked"  // some thread waits in the kernel, for a device perhaps, and takes no signal meanwhile
	Sleeping State = "sleeping" // all wait for something
	Traced   State = "traced"   // a debugger has stopped it
	Halted   State = "stopped"  // until SIGCONT
	Zombie   State = "zombie"   // it has ended, and its parent has not asked for that
	Vanished State = "gone"
)

// states are the states by the kernel's letters (proc(5), stat), those with more life in them first.
var states = []struct {
	letter string
	state  State
}{{"R", Running}, {"D", Blocked}, {"S", Sleeping}, {"t", Traced}, {"T", Halted}, {"Z", Zombie}}

// StateOf is what the process does: of the states of its threads, the one with the most life in it.
func StateOf(pid int) State {
	seen := map[string]bool{}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is valid
	for _, name := range threads {
		if f := stat(name); len(f) > 0 {
			seen[f[0]] = true
		}
	}
	for _, s := range states {
		if seen[s.letter] {
			return s.state
		}
	}
	return Vanished
}
