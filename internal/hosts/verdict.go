package hosts

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// The verdict. Each team agrees first, as on one host. Then the teams' leaders agree: see agreement. Each leaves the
// verdict in its area, where the other ranks of its team wait for it.
//
// Slots can be reused as on one host: a leader's proposal for s+1 says that its whole host has finished s, since all of
// the team have published s+1. So slots need no credit. A host sends for s+2 only after it has the proposals of all for
// s+1, and each of these was made after its host had taken the contributions of s from its slots.

// Agree returns the verdict of all hosts on the running operation. mine is the team's own verdict; bad is why this rank
// refuses, or nil. An error states the same fact on all ranks of all hosts. It leaves the communicator usable, unless
// that has broken.
func (s *Stage) Agree(ctx context.Context, w *team.Work, bad, mine error) error {
	if e := s.Team.Broken(); e != nil { // perhaps after the team agreed
		if mine != nil {
			return mine
		}
		return e
	}
	s.seq++
	if mine == nil && w.Path.Lay != nil {
		w.Path.Lay(s.Team, w)
		s.Team.Progress(1)
	}
	var err error
	if s.leads {
		err = s.lead(ctx, w, mine != nil)
	} else {
		err = s.follow(ctx, w, mine != nil)
	}
	if err != nil && bad != nil && s.Team.Broken() == nil {
		return s.Team.Errorf("", reason.Blamed(bad, -1), bad)
	}
	return err
}

// lead is Agree on a leader.
func (s *Stage) lead(ctx context.Context, w *team.Work, differ bool) error {
	t, a := s.Team, s.agreement
	mates, complete := t.Late, flight.Now()
	s.arrivals.over = 0
	a.begin(s.seq, w.Call())
	a.last = s.arrivals.own
	a.sum.staged = !differ && w.Path.Stages != nil && w.Path.Lay == nil && w.Path.Stages(t, w)
	if differ {
		a.differs(s.proposed())
	} else if w.Path.Route != nil {
		a.router = w.Path.Route(t, w)
	} else if w.Path.Contribute != nil {
		b := a.own(s.full[0])
		switch n := w.Path.Contribute(t, w, b); {
		case n > 0 && a.pairs && w.Path.Folds:
			a.fold(b[:n:n])
			s.folded = w
		case n > 0:
			a.offer(b[:n:n])
		}
	}
	if err := s.expect(ctx, w, differ); err != nil {
		return err
	}
	if err := s.moveBeside(ctx); err != nil {
		return err
	}
	if err := s.converse(ctx); err != nil {
		return err
	}
	if a.sum.same() {
		s.staged = a.sum.staged
		if a.router != nil {
			a.router.Conclude()
			a.router = nil
		} else if w.Path.Conclude != nil && !a.folds {
			if err := w.Path.Conclude(t, w, s.dataOf); err != nil {
				return s.comm(t.Name(t.Rank()), err)
			}
		}
		s.judge(a.last)
		s.say(nil)
		s.keep(mates, complete)
		s.free()
		return nil
	}
	s.free()
	s.arrivals.own = 0 // it has been told, and nobody has agreed since
	verdict := s.reported(ctx, t.Tally())
	if t.Broken() != nil {
		return verdict
	}
	if err := s.stopped(ctx, w, differ); err != nil {
		return err
	}
	return verdict
}

// reported ends an operation on which the hosts do not agree. It returns why.
func (s *Stage) reported(ctx context.Context, y team.Tally) error {
	t, a := s.Team, s.agreement
	s.withdraw()
	a.report(y)
	err := s.converse(ctx)
	if err == nil {
		err = s.revoked(ctx)
	}
	if err != nil {
		return err
	}
	s.mover.leave(s)
	verdict := t.Verdict(&a.tally)
	if verdict == nil {
		return s.comm(s.Hosts[s.me][0], fmt.Errorf("hosts that differ report nothing that does: %w", fault.ErrMismatch))
	}
	s.say(verdict)
	return verdict
}

// Compare implements team.Hosts.
func (s *Stage) Compare(ctx context.Context, w *team.Work, mine error) error {
	if e := s.Team.Broken(); e != nil {
		if mine != nil {
			return mine
		}
		return e
	}
	if !s.leads {
		s.seq++
		return s.hear(ctx)
	}
	counts := s.mover.x.Blocks.(team.Counting)
	if err := s.Move(ctx, nil); err != nil {
		return err
	}
	a := s.agreement
	s.seq++
	a.begin(s.seq, w.Call())
	a.sum.staged = w.Path.Stages(s.Team, w)
	wrong := counts.Wrong()
	if wrong != nil {
		a.sum.refuser = 1 + wrong.Rank
	}
	if err := s.converse(ctx); err != nil {
		return err
	}
	s.free()
	if a.sum.same() {
		s.staged = a.sum.staged
		s.say(nil)
		return nil
	}
	y := s.Team.Tally()
	y.Refused = wrong
	return s.reported(ctx, y)
}

// proposed is what the ranks of a team propose that does not agree.
func (s *Stage) proposed() proposals {
	y := s.Team.Tally()
	c := nobody
	for _, v := range y.Votes {
		k := proposal{s.seq, v.Call}
		c.add(proposals{least: k, greatest: k})
	}
	if y.Refused != nil {
		c.refuser = 1 + y.Refused.Rank
	}
	return c
}

// errVerdict is what moving data returns while the hosts agree, when there is a verdict, or when only that can tell what
// is wrong. If the verdict is good, Move goes on.
var errVerdict = errors.New("the verdict comes first")

// moveBeside moves the operation's data until the hosts have agreed, if that may begin earlier.
func (s *Stage) moveBeside(ctx context.Context) (err error) {
	m := &s.mover
	if !m.begun || !m.x.Early {
		return nil
	}
	s.agreeing = true
	if s.leads { // the proposals leave first, with the grants to those who get them, and then the others
		if _, err = s.proceed(ctx); err == nil {
			s.passGrants()
		}
	}
	if err == nil {
		m.multiply(s.Team.Size())
		err = s.move(ctx)
	}
	s.agreeing = false
	if err == errVerdict {
		return nil
	}
	return err
}

// agreeBeside does what this rank has to do for the agreement while it awaits data of p. It returns errVerdict once there
// is a verdict.
func (s *Stage) agreeBeside(ctx context.Context, p *peer) error {
	if !s.leads {
		if s.heardVerdict() {
			return errVerdict
		}
		return nil
	}
	if q := s.peers[s.pending.host]; q != p {
		q.link.Poll()
	}
	over, err := s.proceed(ctx)
	if over {
		return errVerdict
	}
	return err
}

// converse does what the agreement has to do next, until that is all.
func (s *Stage) converse(ctx context.Context) error {
	for {
		over, err := s.proceed(ctx)
		if err != nil {
			return err
		}
		if over {
			return s.flush(ctx)
		}
		d := s.pending
		p := s.peers[d.host]
		if err := s.await(ctx, p, p.link.Word(s.agreement.place(d)), d.seq, team.StepAgree); err != nil {
			return err
		}
	}
}

// proceed does what the agreement has to do next, up to where it waits, for pending, or to its end.
func (s *Stage) proceed(ctx context.Context) (over bool, err error) {
	a := s.agreement
	for {
		if !s.waits {
			d, ok := a.next()
			if !ok {
				if s.arrivals.over == 0 {
					s.arrivals.over = flight.Now()
				}
				return true, nil
			}
			s.pending = d
		}
		d := s.pending
		p, report := s.peers[d.host], d.round == a.rounds
		if d.sends {
			b, again := s.message(d)
			if again {
				if err := s.flush(ctx); err != nil {
					return false, err
				}
			}
			n := a.write(d, b)
			p.link.Put(a.place(d), d.seq, unsafe.Pointer(&b[0]), n)
			continue
		}
		place := a.place(d)
		if s.waits = !team.Reached(p.link.Word(place).Load(), d.seq); s.waits {
			return false, nil
		}
		if err := a.read(d, s.slot(d)[:p.link.Landed(place)]); err != nil {
			return false, s.comm(p.rank, err)
		}
		switch {
		case report:
			d.seq++
			s.post(p.link, d)
		case a.theirs != nil:
			if d.round < a.rounds-1 || s.folded.Path.Folded != nil { // what it sent is folded in place
				if err := s.flush(ctx); err != nil {
					return false, err
				}
			}
			s.fold(d.round)
		}
	}
}

// message is where the message that d sends is made, and whether the last one in the same memory may still be on its way.
func (s *Stage) message(d transfer) (b []byte, again bool) {
	a := s.agreement
	if d.round == a.rounds {
		return s.out[d.round], true
	}
	switch a.carries(d.round) {
	case 0:
		return s.out[d.round], false
	case 1:
		return s.full[0], d.round > 0
	}
	return s.full[1], d.round > 0
}

// fold combines what this host has with what it has heard in a round, which is of neighbouring hosts: in place, or at the
// end in the result.
func (s *Stage) fold(round int) {
	t, w, a := s.Team, s.folded, s.agreement
	bytes, last := len(a.data[s.me]), round == a.rounds-1
	x, y := unsafe.Pointer(&a.data[s.me][0]), unsafe.Pointer(&a.theirs[0])
	of := func(host int) schedule.Span { return schedule.Span{First: a.first(host, round), N: 1 << round} }
	xs, ys := of(s.me), of(a.from[round])
	if ys.First < xs.First {
		x, y, xs, ys = y, x, ys, xs
	}
	into := unsafe.Pointer(&a.data[s.me][0])
	switch {
	case !last || w.Path.Folded != nil:
	case t.Size() > 1:
		into = t.Outcome(bytes)
	default:
		into = w.Dst.Ptr
	}
	a.theirs = nil
	s.add(w, into, x, y, xs, ys, bytes/w.Type.Size(), last)
	if last && w.Path.Folded != nil {
		w.Path.Folded(t, w, a.data[s.me])
	}
}

// free lets the slots of the running operation be used by the operation after the next.
func (s *Stage) free() {
	for k := range s.agreement.rounds {
		d := s.agreement.heard(k, s.seq+2)
		s.post(s.peers[d.host].link, d)
	}
}

// say leaves the verdict for the team.
func (s *Stage) say(e *fault.Error) {
	t, arrived := s.Team, s.word()
	if t.Size() == 1 {
		return
	}
	d := &t.Me.Verdict[t.Seq&1]
	if d.Sig = 1 | arrived; s.staged {
		d.Sig = 2 | arrived
	}
	if e != nil {
		d.Sig = 0
		d.Refusal = uint64(e.Peer+1)<<32 | uint64(reason.Code(e.Err))
		t.Me.VerdictText.Set(e.Err.Error())
	}
	spin.Release(&d.Seq, t.Seq)
}

// follow is Agree on the other ranks.
func (s *Stage) follow(ctx context.Context, w *team.Work, differ bool) error {
	if err := s.expect(ctx, w, differ); err != nil {
		return err
	}
	if err := s.moveBeside(ctx); err != nil {
		return err
	}
	mates := s.Team.Late
	verdict := s.hear(ctx)
	if s.Team.Late = mates; verdict == nil {
		s.keep(mates, 0)
	}
	if verdict == nil || s.Team.Broken() != nil {
		return verdict
	}
	if s.mover.begun {
		s.withdraw()
		if err := errors.Join(s.revoked(ctx), s.flush(ctx)); err != nil {
			return err
		}
		s.mover.leave(s)
	}
	if err := s.stopped(ctx, w, differ); err != nil {
		return err
	}
	return verdict
}

// stopped waits, after a bad verdict, until the owners of lanes use the team's buffers no more: they are the callers'
// again.
func (s *Stage) stopped(ctx context.Context, w *team.Work, differ bool) error {
	if differ || w.Path.Exchange == nil || w.Path.Lay != nil { // counts are no buffers
		return nil
	}
	s.Team.Progress(1)
	for lane := range s.layout.Lanes {
		if err := s.Team.WaitProgress(ctx, s.Owner(lane), 1, team.StepAgree); err != nil {
			return err
		}
	}
	return nil
}

// heardVerdict reports whether the leader's verdict is there.
func (s *Stage) heardVerdict() bool {
	t := s.Team
	return team.Reached(t.Peers[0].Area.Verdict[t.Seq&1].Seq.Load(), t.Seq)
}

// hear waits for the leader's verdict, and returns it.
func (s *Stage) hear(ctx context.Context) error {
	t := s.Team
	a := t.Peers[0].Area
	d := &a.Verdict[t.Seq&1]
	if !s.heardVerdict() {
		if err := t.Wait(ctx, &d.Seq, t.Seq, 0, team.StepAgree); err != nil {
			return err
		}
	}
	if d.Sig > 0 {
		s.staged = d.Sig&verdictBits == 2
		s.told(d.Sig)
		return nil
	}
	return t.Errorf(team.StepAgree, int(d.Refusal>>32)-1,
		reason.Remote(a.VerdictText.Get(), reason.OfCode(int(uint32(d.Refusal)))))
}
