// Package procfs tells from /proc whether a signal has had its effect, what a process does, and which come from another. kill(2)
// returns before its effect: one thread of the process has to run first, and the others go on until it has.
package procfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

// Descendants returns the children of a process, zombies too, their children, and so on. Processes that start or end
// meanwhile may be missing, with what they have started. A child that lasts is not: if there is one, the list is not
// empty.
func Descendants(pid int) (list []int) {
	children := map[int][]int{}
	names, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	for _, name := range names {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if f := stat(name); err == nil && len(f) > 1 {
			parent, _ := strconv.Atoi(f[1])
			children[parent] = append(children[parent], child)
		}
	}
	list = children[pid]
	for i := 0; i < len(list); i++ {
		for _, child := range children[list[i]] { // a number that is used again while we look makes no circle
			if child != pid && !slices.Contains(list, child) {
				list = append(list, child)
			}
		}
	}
	return list
}

// all reports whether each thread is in one of these states (proc(5), stat) or has ended.
func all(pid int, states string) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is valid
	for _, name := range threads {
		if f := stat(name); f != nil && !strings.Contains(states, f[0]) {
			return false
		}
	}
	return true
}

// stat returns the fields of a stat file behind the program's name: state, parent, and so on. It is nil if the thread
// has ended.
func stat(name string) []string {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	text := string(b)
	return strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the name may have brackets and spaces
}
