package team

import (
	"errors"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// Small calls of a group or graph travel together: each rank writes the sources of several calls to its eager slot, all
// agree once, and each computes the results in call order. Whether calls can travel together follows from what all
// ranks agree on, except for conflicts: the source of a call must not be the destination of one before it. Each rank
// publishes its first conflict, and only the calls before the first conflict of any rank are done. If the ranks do not
// publish the same calls, they go on one by one, which finds the call that differs.

// MaxFused is the most calls that travel together.
const MaxFused = 64

// ErrNotFused is Agree's error if ranks offered several calls together, but not all the same ones. Nothing has been
// done; all ranks offer their next single call.
var ErrNotFused = errors.New("not all ranks offered the same calls together")

// Fusable returns how many of works, from the first, can travel together, as far as all ranks know it, and sets where in
// the eager slot their sources lie.
func (t *Team) Fusable(works []Work) int {
	at := 0
	for i := range works {
		w := &works[i]
		if i == MaxFused || w.Err != nil || w.Kernel.Name != "" || w.Path == nil || w.Path.Carries == nil {
			return i
		}
		n := w.Path.Carries(t, w)
		if at+n > EagerBytes {
			return i
		}
		w.Eager.At = at
		at = (at + n + 63) &^ 63
	}
	return len(works)
}

// FirstConflict returns the first of works whose source is the destination of one before it, at least in part, or their
// number.
func FirstConflict(works []Work) int {
	low, high := ^uintptr(0), uintptr(0) // around all destinations
	for i := range works {
		w := &works[i]
		if n := uintptr(w.Src.Bytes()); n > 0 {
			p := uintptr(w.Src.Ptr)
			if p < high && low < p+n && overlapsAny(works[:i], p, n) {
				return i
			}
		}
		if n := uintptr(w.Dst.Bytes()); n > 0 {
			p := uintptr(w.Dst.Ptr)
			low, high = min(low, p), max(high, p+n)
		}
	}
	return len(works)
}

func overlapsAny(works []Work, p, n uintptr) bool {
	for i := range works {
		d, m := uintptr(works[i].Dst.Ptr), uintptr(works[i].Dst.Bytes())
		if p < d+m && d < p+n {
			return true
		}
	}
	return false
}

// fusedSignature is what all ranks must agree on for works that travel together. The first 5 bits are KindGroup, the
// others a hash.
func fusedSignature(works []Work) uint64 {
	hash := uint64(len(works))
	for i := range works {
		hash = (hash ^ works[i].Signature()) * 0x9e3779b97f4a7c15
		hash ^= hash >> 32
	}
	return uint64(KindGroup)<<59 | hash>>5
}

// PublishFused is Publish for works that travel together, of which this rank can do the first n now.
func (t *Team) PublishFused(works []Work, n int) {
	d := &t.Me.Desc[t.Seq&1]
	d.Sig = fusedSignature(works)
	*(*uint64)(t.Payload(t.rank)) = uint64(n)
	t.release(d)
}

// Fused returns how many of n works that all ranks have published together all ranks can do.
func (t *Team) Fused(n int) int {
	for r := range t.Peers {
		n = int(min(uint64(n), *(*uint64)(t.Payload(r))))
	}
	return n
}

// release makes this rank's descriptor visible to its peers.
func (t *Team) release(d *Descriptor) {
	if t.Seq%progressEvery == 0 {
		t.Progress(0)
	}
	if invariants.Enabled {
		checkNext("descriptor", &t.Me.Desc, t.Seq)
	}
	spin.Release(&d.Seq, t.Seq)
}

// anyFused reports whether a rank has published several calls that travel together.
func (t *Team) anyFused(slot uint64) bool {
	for r := range t.Peers {
		if t.Peers[r].Area.Desc[slot].Sig>>59 == uint64(KindGroup) {
			return true
		}
	}
	return false
}
