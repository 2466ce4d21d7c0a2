package team

import (
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll/dtype"
)

// Call is what all ranks must agree on, in the width that hosts tell each other, where ranks of one host and kernels
// compare the one word of Signature. High has the kind in 8 bits, type 8, reduction 8, flags 8 (onDevice), root 32; Low is
// the count. Those of a group's device operations have their number less one as flags, and a hash of their signatures as
// root.
type Call struct{ High, Low uint64 }

func newCall(k OpKind, t dtype.Type, r Reduction, flags uint8, root uint32, count uint64) Call {
	return Call{uint64(k)<<56 | uint64(t)<<48 | uint64(r)<<40 | uint64(flags)<<32 | uint64(root), count}
}

// Call is what all ranks must agree on.
func (w *Work) Call() Call {
	if w.Of != nil {
		return newCall(w.Kind, w.Type, w.Red, onDevice, uint32(w.Root), uint64(w.Of.Count))
	}
	return newCall(w.Kind, w.Type, w.Red, 0, uint32(w.Root), uint64(w.Count))
}

// onDevice is the flag of Call for OnDevice.
const onDevice = 1

// CallOf is the call that a signature stands for.
func CallOf(sig uint64) Call {
	k, t := OpKind(sig>>59), dtype.Type(sig>>55&15)
	if k == KindGroup {
		return newCall(k, t, 0, uint8(sig>>beyondShift&15), uint32(sig>>24&(1<<27-1)), sig&(1<<24-1))
	}
	return newCall(k, t, Reduction(sig>>52&7), uint8(sig&OnDevice>>onDeviceShift), uint32(rootOf(sig)), sig&MaxCount)
}

func (c Call) root() int { return int(uint32(c.High)) }

// String describes the call for people, with what the operation has: "reduce(count 5, float32, sum, root 0)", "barrier".
func (c Call) String() string {
	k, t, r, flags := OpKind(c.High>>56), dtype.Type(c.High>>48), Reduction(c.High>>40), uint8(c.High>>32)
	if k == KindGroup {
		return fmt.Sprintf("%v(%d all_reduce, count %d in all, %v, hash %07x)", k, int(flags)+1, c.Low, t, c.root())
	}
	var has []string
	if k.hasData() && k < KindAllGatherV {
		has = append(has, fmt.Sprintf("count %d", c.Low))
	}
	if k.hasData() {
		has = append(has, t.String())
	}
	if r != noReduction {
		has = append(has, r.String())
	}
	if root := c.root(); k.rooted() || root != 0 {
		has = append(has, fmt.Sprintf("root %d", root))
	}
	if flags&onDevice != 0 {
		has = append(has, "device memory")
	}
	if has == nil {
		return k.String()
	}
	return fmt.Sprintf("%v(%s)", k, strings.Join(has, ", "))
}
