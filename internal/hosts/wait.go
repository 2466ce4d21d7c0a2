package hosts

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// A wait for another host first receives from that host's wire in a loop, so that it sees data at once. Now and then it
// checks the team and the other wires. When nothing has come for a while it blocks in the kernel, a millisecond at
// most.
const (
	looksPerPoll    = 16                     // receives between looks at the team, and at the other wires
	blockAfter      = 200 * time.Microsecond // after this long without data
	blockAfterShort = 5 * time.Microsecond   // the same, if other ranks need the processor
	longestBlock    = time.Millisecond
	shortestBlock   = 20 * time.Microsecond
)

// await waits until *w is at least target, which means that peer p has done what step says.
func (s *Stage) await(ctx context.Context, p *peer, w *atomic.Uint64, target uint64, step string) error {
	for range looksPerPoll {
		if team.Reached(w.Load(), target) {
			return nil
		}
		if err := s.poll(ctx, p, nil); err != nil {
			return err
		}
	}
	return s.awaitLong(ctx, p, nil, func() bool { return team.Reached(w.Load(), target) }, step)
}

// awaitEither waits until one of two obstacles is gone.
func (s *Stage) awaitEither(ctx context.Context, a, b obstacle, step string) error {
	return s.awaitLong(ctx, b.p, a.p, func() bool { return a.gone() || b.gone() }, step)
}

// poll receives from p, and from other, if that is not nil; and the hosts go on to agree if they have not yet.
func (s *Stage) poll(ctx context.Context, p, other *peer) error {
	p.link.Poll()
	if other != nil && other != p {
		other.link.Poll()
	}
	if s.agreeing {
		return s.agreeBeside(ctx, p)
	}
	_, err := s.mover.advance()
	return err
}

// revoked waits until no peer can use what it has been granted and is revoked.
func (s *Stage) revoked(ctx context.Context) error {
	for _, p := range s.partners() {
		if p.link.Revoking() == 0 {
			continue
		}
		if err := s.awaitLong(ctx, p, nil, func() bool { return p.link.Revoking() == 0 }, team.StepAgree); err != nil {
			return err
		}
	}
	return nil
}

// flush waits until the kernel has taken all puts. Their memory is then the caller's again.
func (s *Stage) flush(ctx context.Context) error {
	for _, p := range s.partners() {
		if p.link.Sent() >= p.link.Queued() {
			continue
		}
		if err := s.awaitLong(ctx, p, nil, func() bool { return p.link.Sent() >= p.link.Queued() }, "send"); err != nil {
			return err
		}
	}
	return nil
}

// awaitLong waits for p, or for other, if that is not nil.
func (s *Stage) awaitLong(ctx context.Context, p, other *peer, over func() bool, step string) error {
	w := team.WaitState{Ctx: ctx, Peer: s.Team.Rank(), Far: p.rank + 1, Step: step}
	if s.follows() { // the leader knows better who is missing
		w.Peer, w.Far, w.Step = 0, 0, team.StepAgree
	}
	idle := blockAfter
	if s.Team.Crowded {
		idle = blockAfterShort
	}
	start, asked := time.Now(), question{}
	for {
		if over() {
			s.Team.EndWait(&w)
			return nil
		}
		for _, q := range [2]*peer{p, other} {
			if q == nil {
				continue
			}
			if err := s.lost(q, over, step); err != nil {
				return err
			}
		}
		if err := s.Team.Check(&w); err != nil {
			if over() {
				s.Team.EndWait(&w)
				return nil // it came after all
			}
			return s.fail(err)
		}
		s.Network.node.Progress()
		waited := time.Since(start)
		if busy, err := s.mover.advance(); err != nil {
			s.Team.EndWait(&w)
			return err
		} else if waited > idle && busy { // the team must not wait for a network that is silent
			s.Network.node.Wait(shortestBlock)
		} else if waited > idle {
			s.Network.node.Wait(longestBlock)
		}
		if w.Far != 0 {
			p.asking.ask(&asked, waited, s.ID, p.link)
		}
		for range looksPerPoll {
			if over() {
				break
			}
			if err := s.poll(ctx, p, other); err != nil {
				s.Team.EndWait(&w)
				return err
			}
		}
	}
}

// follows reports whether this rank awaits its leader's verdict while it moves data.
func (s *Stage) follows() bool { return s.agreeing && !s.leads }

// lost returns why p will never do what is awaited, or nil.
func (s *Stage) lost(p *peer, over func() bool, step string) error {
	down, left := p.link.Err(), p.left.Load()
	early := left != 0 && left-1 < s.seq
	if s.follows() && (down != nil || early) { // perhaps p has heard a bad verdict, and closed the communicator since
		return errVerdict
	}
	if early { // says more than down, which follows it
		return s.fail(s.Team.Errorf(step, p.rank, Closed(p.rank)))
	}
	if down != nil {
		p.link.Poll() // data that came before the end
		if over() || left == 0 && p.mute.just(down) {
			return nil
		}
		return s.fail(s.downError(p, down, step))
	}
	return nil
}

// comm breaks the communicator with an error about a rank.
func (s *Stage) comm(rank int, err error) error {
	return s.fail(s.Team.Errorf(team.StepAgree, rank, reason.About(rank, err)))
}
