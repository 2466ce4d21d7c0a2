package cpu

import (
	"fmt"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/env"
)

// level is a set of instructions. From levelPortable on, the values are those of cpu.h.
type level int

const (
	levelGo level = iota - 1
	levelPortable
	levelNEON
	levelAVX2
	levelAVX512
)

var levelNames = map[string]level{
	"go": levelGo, "portable": levelPortable, "neon": levelNEON, "avx2": levelAVX2, "avx512": levelAVX512,
}

// current is the level in use, set once before main; tests change it between calls.
var current, errLevel = fromEnvironment()

// fromEnvironment returns the level that UBCOLL_CPU asks for, or the best one and an error.
func fromEnvironment() (level, error) {
	name, err := env.CPU.Get()
	if err != nil {
		best, _ := choose("")
		return best, err
	}
	return choose(name)
}

// String returns the level's name in UBCOLL_CPU.
func (l level) String() string {
	for name, x := range levelNames {
		if x == l {
			return name
		}
	}
	return "invalid"
}

// choose returns the best level of this machine and build, or the one with that name. If there is no such level, it
// returns the best one and an error.
func choose(name string) (level, error) {
	best := bestLevel()
	if name == "" {
		return best, nil
	}
	l, ok := levelNames[name]
	if !ok {
		return best, fmt.Errorf("UBCOLL_CPU=%s: no such level, want avx512, avx2, neon, portable or go", name)
	}
	if !l.available() {
		return best, fmt.Errorf("UBCOLL_CPU=%s: this machine and build have %v: %w", name, best, hw.ErrNotSupported)
	}
	return l, nil
}

// available reports whether this machine and build have the level.
func (l level) available() bool {
	best := bestLevel()
	switch l {
	case levelNEON:
		return best == levelNEON
	case levelAVX2, levelAVX512:
		return best >= l // an arm64 never has more than levelNEON
	}
	return best >= l
}

// Level is the name of the instructions in use: "avx512", "avx2", "neon", "portable" (compiled C) or "go". UBCOLL_CPU
// forces one. Programs without cgo have "go", and so have those built with the race detector, which sees only memory
// accesses by Go.
func Level() string { return current.String() }

// LevelError is nil, or says why the level that UBCOLL_CPU asks for is not in use: its name is unknown, or this machine
// or build does not have it (an error that wraps hw.ErrNotSupported).
func LevelError() error { return errLevel }
