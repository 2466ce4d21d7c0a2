package engine

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// fuses reports whether calls of this communicator may travel together.
func (c *Comm) fuses() bool { return c.size > 1 && c.stage == nil && c.team.Groups() == 0 }

// runFused runs the first of works, which can travel together, in one exchange, and returns how many. That is 0 if the
// ranks have to go on with a single call.
func (c *Comm) runFused(ctx context.Context, works []team.Work) (n int, err error) {
	if c.broken.Load() != nil || c.closing.Load() || ctx.Err() != nil {
		return 0, nil
	}
	t := &c.team
	t.Current = &works[0]
	t.Seq++
	spin.Claim(unsafe.Pointer(&t.Me.Desc[t.Seq&1]))
	last := &works[len(works)-1]
	t.ClaimEager(last.Eager.At + last.Path.Carries(t, last))
	own := c.offerFused(works[:team.FirstConflict(works)])
	t.PublishFused(works, own)
	c.begin(t.Current, t.Current.Signature(), t.Number(), t.Current.Path.Name, 0)
	if err = t.Agree(ctx, t.Current, nil); err == nil {
		n = t.Fused(len(works))
	} else if err == team.ErrNotFused {
		err = nil
	}
	c.agreed(t.Current, 0, err)
	if n == 0 {
		t.Parts++ // this exchange is no operation
		if err == nil {
			t.Flight.Drop()
		}
	}
	first := t.Number()
	for i := range works[:own] {
		w := &works[i]
		if i < n && err == nil {
			if i > 0 {
				c.begin(w, w.Signature(), first+uint64(i), w.Path.Name, 0)
			}
			err = c.finishFused(ctx, w, first+uint64(i))
			c.over(w, err)
		}
		w.Release()
		w.Unfuse()
	}
	if n > 1 {
		t.Parts -= uint64(n - 1)
	}
	t.Current = nil
	if err != nil {
		t.Flight.Fail(reason.Code(err))
	}
	return n, err
}

// offerFused writes the sources of works, up to the first whose memory has been freed, and returns how many.
func (c *Comm) offerFused(works []team.Work) int {
	for i := range works {
		w := &works[i]
		if w.Hold() != nil {
			w.Release()
			w.Unfuse()
			return i
		}
		w.Eager.Fused = true
		if w.Path.Offer != nil {
			w.Path.Offer(&c.team, w)
		}
	}
	return len(works)
}

// finishFused computes the result of w, which has travelled with others.
func (c *Comm) finishFused(ctx context.Context, w *team.Work, seq uint64) (err error) {
	if c.Tracer != nil {
		defer c.Tracer.Mark(ctx, w.Kind.String()).End()
	}
	c.NoteAs(w, w.Path.Name, seq)
	if w.Path.Run == nil {
		return nil
	}
	return w.Path.Run(ctx, &c.team, w)
}
