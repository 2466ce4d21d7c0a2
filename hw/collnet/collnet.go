// Package collnet loads plugins of NCCL's CollNet interface, versions 10 and 11: the door through which a fabric's own
// arithmetic comes in, as that of SHARP. A group has one member on each host, and its calls reduce or gather data of all of them.
//
// A plugin's calls run on a thread of its own for each group. A call that does not return in time is given up, and with it the
// thread and the memory that it may still use: nobody can stop a foreign library. It is told in errors, and in Stuck.
//
// The interface: https://github.com/NVIDIA/nccl, src/include/plugin/net.
package collnet

import (
	"fmt"

	"github.com/ubcoll/ubcoll/dtype"
)

// Device is a device of a plugin that does collectives.
type Device struct {
	Name   string // "" if it has none
	PCI    string // its path in /sys, or ""
	Speed  int    // Mbit/s
	Port   int
	Groups int // as many as may exist at a time
	Bytes  int // of a call, at most
	CUDA   bool
}

// Op is a reduction, as the interface numbers them.
type Op int

// The reductions.
const (
	Sum Op = iota
	Prod
	Max
	Min
)

// types are the interface's numbers of the element types that it has.
var types = map[dtype.Type]int{dtype.Int8: 0, dtype.Uint8: 1, dtype.Int32: 2, dtype.Uint32: 3, dtype.Int64: 4, dtype.Uint64: 5,
	dtype.Float16: 6, dtype.Float32: 7, dtype.Float64: 8, dtype.BFloat16: 9}

// Reductions says what a fabric reduces: by element type, a bit of 1 << Op for each operation.
type Reductions [16]uint8

// Has reports whether elements of a type are reduced by an operation.
func (r *Reductions) Has(t dtype.Type, op Op) bool { return r[t]>>op&1 != 0 }

// Window is a part of the blocks of all members, one behind the other: the bytes From to To. Calls have up to Step bytes, and
// Device.Bytes at most. It must be the same on all members.
type Window struct{ From, To, Step int }

// own is what a call of so many bytes has of the block that begins at a byte and has n, behind the first byte of it in w.
func (w *Window) own(block, n, from, bytes int) (at, own int) {
	begin, end := max(from, block), min(from+bytes, block+n)
	if end <= begin {
		return 0, 0
	}
	return begin - max(w.From, block), end - begin
}

// HandleBytes is the length of what members tell each other to form a group.
const HandleBytes = 128

// Error is a failure of a plugin's call.
type Error struct {
	Plugin string
	Call   string // "iallreduce"
	Code   int    // an ncclResult_t
}

// results are the texts of ncclResult_t.
var results = [...]string{1: "a CUDA error", 2: "a system error", 3: "an internal error", 4: "an invalid argument", 5: "invalid usage",
	6: "a remote error", 7: "not complete yet"}

// Error names the plugin, the call and the result.
func (e *Error) Error() string {
	text := "an unknown result"
	if e.Code > 0 && e.Code < len(results) {
		text = results[e.Code]
	}
	return fmt.Sprintf("%s of the CollNet plugin %q: %s (%d)", e.Call, e.Plugin, text, e.Code)
}

// Remote reports whether a call failed because of another member, or of the fabric.
func (e *Error) Remote() bool { return e.Code == 6 }
