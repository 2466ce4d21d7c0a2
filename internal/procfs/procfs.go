// Package procfs tells from /proc whether a signal has had its effect. kill(2) returns before: one thread of the process
// has to run first, and the others go on until it has.
package procfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Stopped reports whether no thread of the process runs until it gets SIGCONT: each is stopped, has ended, or is a
// zombie.
func Stopped(pid int) bool {
	if !all(pid, "TZX") {
		return false
	}
	// A thread that was made during this first look has the order to stop, and makes no other before it does.
	return all(pid, "TZX")
}

// Gone reports whether each thread of the process has ended or is a zombie: what they held is given back.
func Gone(pid int) bool { return all(pid, "ZX") }

// all reports whether each thread is in one of these states (proc(5), stat) or has ended.
func all(pid int, states string) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is valid
	for _, name := range threads {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		text := string(b)
		rest := text[strings.LastIndexByte(text, ')')+1:] // the program's name before may have brackets and spaces
		if state := strings.TrimSpace(rest); state == "" || !strings.ContainsRune(states, rune(state[0])) {
			return false
		}
	}
	return true
}
