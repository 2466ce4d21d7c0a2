package team

import (
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll/dtype"
)

// Call is what all ranks must agree on, in the width that hosts tell each other: 128 bits, where ranks of one host and
// kernels compare the one word of Signature.
type Call struct {
	Kind  OpKind
	Type  dtype.Type
	Red   Reduction
	Flags uint8  // of KindGroup: the number of its operations, less one
	Root  uint32 // of KindGroup: a hash of their signatures
	Count uint64
}

// Call is what all ranks must agree on.
func (w *Work) Call() Call {
	return Call{Kind: w.Kind, Type: w.Type, Red: w.Red, Root: uint32(w.Root), Count: uint64(w.Count)}
}

// CallOf is the call that a signature stands for.
func CallOf(sig uint64) Call {
	c := Call{Kind: OpKind(sig >> 59), Type: dtype.Type(sig >> 55 & 15)}
	if c.Kind == KindGroup {
		c.Flags, c.Root, c.Count = uint8(sig>>beyondShift&15), uint32(sig>>24&(1<<27-1)), sig&(1<<24-1)
	} else {
		c.Red, c.Root, c.Count = Reduction(sig>>52&7), uint32(rootOf(sig)), sig&MaxCount
	}
	return c
}

// Words are the call as two words.
func (c Call) Words() (high, low uint64) {
	return uint64(c.Kind)<<56 | uint64(c.Type)<<48 | uint64(c.Red)<<40 | uint64(c.Flags)<<32 | uint64(c.Root), c.Count
}

// CallOfWords is the inverse of Words.
func CallOfWords(high, low uint64) Call {
	return Call{OpKind(high >> 56), dtype.Type(high >> 48), Reduction(high >> 40), uint8(high >> 32), uint32(high), low}
}

// String describes the call for people, with what the operation has: "reduce(count 5, float32, sum, root 0)", "barrier".
func (c Call) String() string {
	if c.Kind == KindGroup {
		return fmt.Sprintf("%v(%d all_reduce, count %d in all, %v, hash %07x)", c.Kind, int(c.Flags)+1, c.Count, c.Type, c.Root)
	}
	var has []string
	if c.Kind.hasData() {
		has = append(has, fmt.Sprintf("count %d", c.Count), c.Type.String())
	}
	if c.Red != noReduction {
		has = append(has, c.Red.String())
	}
	if c.Kind.rooted() || c.Root != 0 {
		has = append(has, fmt.Sprintf("root %d", c.Root))
	}
	if has == nil {
		return c.Kind.String()
	}
	return fmt.Sprintf("%v(%s)", c.Kind, strings.Join(has, ", "))
}
