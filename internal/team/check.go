package team

import "github.com/ubcoll/ubcoll/internal/invariants"

// This file has the checks of builds with -tags invariants. They read this rank's own area only.

// checkNext checks that seq, the number that this rank is about to publish in one of two slots, is the one after that in
// the other slot.
func checkNext(what string, slots *[2]Descriptor, seq uint64) {
	if last := slots[seq&1^1].Seq.Load(); last != seq-1 {
		invariants.Violated("%s %d is published after %d", what, seq, last)
	}
	if old := slots[seq&1].Seq.Load(); old != seq-2 && seq > 1 {
		invariants.Violated("%s %d takes the slot of %d", what, seq, old)
	}
}

// checkProgress checks that this rank's steps of the running operation rise.
func (t *Team) checkProgress(n uint64) {
	if was := t.Me.progress.Load(); !Reached(t.Seq<<32+n, was) {
		invariants.Violated("step %d of operation %d is published after step %d of operation %d", n, uint32(t.Seq), uint32(was),
			was>>32)
	}
}
