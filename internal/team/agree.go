package team

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/invariants"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// StepAgree names the step in which ranks agree on an operation.
const StepAgree = "agree"

// Publish writes this rank's call, or its refusal, for the peers to see. It returns the signature.
func (t *Team) Publish(w *Work, bad error) uint64 {
	slot := t.Seq & 1
	d := &t.Me.Desc[slot]
	if bad != nil {
		t.Me.Refusals[slot].Set(reason.Text(bad, t.Name(t.rank)))
		d.Refusal = uint64(reason.Blamed(bad, -1)+1)<<32 | uint64(reason.Code(bad))
		d.Sig = Signature(KindRefused, 0, 0, 0, 0)
		t.release(d)
		return d.Sig
	}
	sig := w.Signature()
	if d.Sig = sig; w.Path.Acquire != nil {
		*d.Buffers() = buffers{w.SrcBuf.word(), w.DstBuf.word()}
	}
	t.release(d)
	return sig
}

// Agree waits until all ranks have published this operation. If some rank refused or the signatures differ, all ranks
// return an error about the same fact; ErrNotFused if a rank has offered several calls together.
func (t *Team) Agree(ctx context.Context, w *Work, bad error) error {
	if t.groups != nil {
		return t.agreeByGroup(ctx, w, bad)
	}
	slot := t.Seq & 1
	mine := t.Me.Desc[slot].Sig
	same, waited := true, false
	// Start with the next rank, so that not all ranks read the same line at once.
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
			waited = true
		}
		same = same && d.Sig == mine
	}
	if waited && t.Late.For > 0 {
		t.arrived()
	}
	if same && bad == nil {
		return nil
	}
	return t.disagreement(slot, bad)
}

// arrived tells the communicator who came last, unless other hosts are still to come.
func (t *Team) arrived() {
	if t.Hosts == nil {
		late := t.Late
		t.Late = Late{}
		t.comm.Arrived(t.Name(late.Rank), late.For)
	}
}

// disagreement returns what is wrong with this rank's own arguments, or which rank refused or differs from the
// majority.
func (t *Team) disagreement(slot uint64, bad error) error {
	if t.anyFused(slot) {
		return ErrNotFused
	}
	if bad != nil {
		return t.Refused(bad)
	}
	y := t.tally(slot)
	return t.Verdict(&y)
}

// Refused is the error of a rank that refuses an operation because of its own arguments.
func (t *Team) Refused(bad error) *fault.Error { return t.Errorf("", reason.Blamed(bad, -1), bad) }

// Tally is what ranks that do not agree have published.
type Tally struct {
	Refused *Refusal // the refusal of the first rank that refused
	Votes   []Vote   // one for each call
	Others  int      // how many ranks have voted for what Votes lacks: see Cut
}

// Refusal says why a rank refused.
type Refusal struct {
	Rank, About int  // ranks of the communicator; About is -1 if it is about none
	Code        int  // as of reason.Code
	Counts      bool // no rank refused: what Rank sends is not what About expects
	Text        string
}

// Vote says how many ranks made a call, and which is the first.
type Vote struct {
	Call         Call
	Count, First int
}

// Tally returns what the ranks have published for the running operation, on which they do not agree.
func (t *Team) Tally() Tally { return t.tally(t.Seq & 1) }

func (t *Team) tally(slot uint64) (y Tally) {
	for r := range t.Peers {
		d := &t.Peers[r].Area.Desc[slot]
		if d.Sig>>59 != uint64(KindRefused) {
			y.vote(Vote{CallOf(d.Sig), 1, t.Name(r)})
		} else if y.Refused == nil {
			y.Refused = &Refusal{Rank: t.Name(r), About: int(d.Refusal>>32) - 1, Code: int(uint32(d.Refusal)), Text: t.Peers[r].Area.Refusals[slot].Get()}
		}
	}
	return y
}

func (t *Tally) vote(v Vote) {
	i := slices.IndexFunc(t.Votes, func(w Vote) bool { return w.Call == v.Call })
	if i < 0 {
		t.Votes = append(t.Votes, v)
		return
	}
	t.Votes[i].Count += v.Count
	t.Votes[i].First = min(t.Votes[i].First, v.First)
}

// Add adds the tally of other ranks.
func (t *Tally) Add(z *Tally) {
	if x, y := t.Refused, z.Refused; y != nil && (x == nil || y.Rank < x.Rank || y.Rank == x.Rank && y.About < x.About) {
		t.Refused = y // two hosts may tell of counts of one rank
	}
	for _, v := range z.Votes {
		t.vote(v)
	}
	t.Others += z.Others
}

// Cut keeps the n votes that most ranks have, of equal ones those of the lowest ranks, and counts the others.
func (t *Tally) Cut(n int) {
	slices.SortFunc(t.Votes, func(a, b Vote) int { return cmp.Or(b.Count-a.Count, a.First-b.First) })
	for len(t.Votes) > n {
		last := len(t.Votes) - 1
		t.Others += t.Votes[last].Count
		t.Votes = t.Votes[:last]
	}
}

// Verdict is the error that follows from y, alike for all its ranks: about the first rank that refused, or the first
// rank that differs from the majority. It is nil if there is none.
func (t *Team) Verdict(y *Tally) *fault.Error {
	if k := y.Refused; k != nil {
		about := k.About
		if about < 0 || about >= t.all {
			about = k.Rank
		}
		if k.Counts {
			return t.Errorf(StepAgree, about, reason.Remote(k.Text, reason.OfCode(k.Code)))
		}
		return t.Errorf(StepAgree, about, fmt.Errorf("rank %d refused: %w", k.Rank, reason.Remote(k.Text, reason.OfCode(k.Code))))
	}
	if len(y.Votes) < 2 {
		return nil
	}
	most, all := y.Votes[0], y.Others
	for _, v := range y.Votes {
		if all += v.Count; v.Count > most.Count || v.Count == most.Count && v.First < most.First {
			most = v
		}
	}
	odd := Vote{First: t.all}
	for _, v := range y.Votes {
		if v.Call != most.Call && v.First < odd.First {
			odd = v
		}
	}
	others := fmt.Sprintf("%d of %d ranks", most.Count, all)
	if most.Count == 1 {
		others = fmt.Sprintf("rank %d", most.First)
	}
	return t.Errorf(StepAgree, odd.First, fmt.Errorf("rank %d called %s, %s %s: %w", odd.First, odd.Call, others,
		most.Call, fault.ErrMismatch))
}

// Progress words wrap around after 1<<32 operations. Each rank refreshes its word this often, so that Reached never
// compares with a word that is half that old.
const progressEvery = 1 << 20

// Progress publishes that this rank has done n steps of the running operation. Its peers may now read what it wrote
// before, and overwrite what it read before.
func (t *Team) Progress(n uint64) {
	if invariants.Enabled {
		t.checkProgress(n)
	}
	spin.Release(&t.Me.progress, t.Seq<<32+n)
}

// Progressed reports whether rank has done n steps of the running operation.
func (t *Team) Progressed(rank int, n uint64) bool {
	return Reached(t.Peers[rank].Area.progress.Load(), t.Seq<<32+n)
}

// WaitProgress waits until rank has done n steps of the running operation.
func (t *Team) WaitProgress(ctx context.Context, rank int, n uint64, step string) error {
	p := &t.Peers[rank].Area.progress
	if Reached(p.Load(), t.Seq<<32+n) {
		return nil
	}
	return t.Wait(ctx, p, t.Seq<<32+n, rank, step)
}
