package team

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// StepAgree is the step of an operation in which ranks agree on it.
const StepAgree = "agree"

// Publish writes what this rank calls, or that it refuses to, for the peers to see.
func (t *Team) Publish(w *Work, bad error) {
	slot := t.Seq & 1
	d := &t.Me.Desc[slot]
	if bad != nil {
		t.Me.Refusals[slot].set(bad.Error())
		d.Refusal = uint64(reason.Blamed(bad, -1)+1)<<32 | uint64(reason.Code(bad))
		d.Sig = Signature(KindRefused, 0, 0, 0, 0)
	} else {
		d.Sig = w.Signature()
		if w.Path.Acquire != nil {
			*d.Buffers() = buffers{w.SrcBuf.word(), w.DstBuf.word()}
		}
	}
	if t.Seq%progressEvery == 0 {
		t.Progress(0)
	}
	spin.Release(&d.Seq, t.Seq)
}

// Agree waits until all ranks have published this operation, and returns an error, the same fact on all of them, if
// some rank refused or the signatures differ.
func (t *Team) Agree(ctx context.Context, w *Work, bad error) error {
	if t.groups != nil {
		return t.agreeByGroup(ctx, w, bad)
	}
	slot := t.Seq & 1
	mine := t.Me.Desc[slot].Sig
	same := true
	// From the next rank on, so that not all ranks look at one line at once.
	for i := 1; i < t.size; i++ {
		r := t.rank + i
		if r >= t.size {
			r -= t.size
		}
		d := &t.Peers[r].Area.Desc[slot]
		if !Reached(d.Seq.Load(), t.Seq) {
			if err := t.Wait(ctx, &d.Seq, t.Seq, r, StepAgree); err != nil {
				return err
			}
		}
		same = same && d.Sig == mine
	}
	if same && bad == nil {
		return nil
	}
	return t.disagreement(slot, bad)
}

// disagreement says what is wrong with this rank's own arguments, or who refused, or who stands against the majority.
func (t *Team) disagreement(slot uint64, bad error) error {
	if bad != nil {
		return t.Errorf("", reason.Blamed(bad, -1), bad)
	}
	votes := map[uint64]int{}
	for r := range t.Peers {
		d := &t.Peers[r].Area.Desc[slot]
		if d.Sig>>59 == uint64(KindRefused) {
			why := t.Peers[r].Area.Refusals[slot].get()
			about := int(d.Refusal>>32) - 1
			if about < 0 || about >= t.all {
				about = t.Name(r)
			}
			return t.Errorf(StepAgree, about, fmt.Errorf("rank %d refused: %w", t.Name(r),
				reason.Told(why, reason.OfCode(int(uint32(d.Refusal))))))
		}
		votes[d.Sig]++
	}
	most := t.Peers[0].Area.Desc[slot].Sig
	for r := range t.Peers {
		if s := t.Peers[r].Area.Desc[slot].Sig; votes[s] > votes[most] {
			most = s
		}
	}
	var odd int
	for r := range t.Peers {
		if t.Peers[r].Area.Desc[slot].Sig != most {
			odd = r
			break
		}
	}
	return t.Errorf(StepAgree, t.Name(odd), fmt.Errorf("rank %d called %s, %d of %d ranks %s: %w", t.Name(odd),
		t.describe(t.Peers[odd].Area.Desc[slot].Sig), votes[most], t.size, t.describe(most), fault.ErrMismatch))
}

// describe is Describe with the communicator's rank for root: a part of an operation has the team's.
func (t *Team) describe(sig uint64) string {
	if root := rootOf(sig); t.Outer != nil && root < t.size {
		sig += uint64(t.Name(root)-root) << rootShift
	}
	return Describe(sig)
}

// Progress words wrap around after 1<<32 operations, so that Reached must not see one that is half of that old.
const progressEvery = 1 << 20

// Progress says that this rank has done n steps of the running operation: what it wrote before is for its peers to
// read, what it read before is for its peers to overwrite.
func (t *Team) Progress(n uint64) { spin.Release(&t.Me.progress, t.Seq<<32+n) }

// WaitProgress waits until rank has done n steps of the running operation.
func (t *Team) WaitProgress(ctx context.Context, rank int, n uint64, step string) error {
	p := &t.Peers[rank].Area.progress
	if Reached(p.Load(), t.Seq<<32+n) {
		return nil
	}
	return t.Wait(ctx, p, t.Seq<<32+n, rank, step)
}
