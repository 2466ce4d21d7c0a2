package hosts

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// The verdict. Each team agrees first, as on one host. Its leader then writes a block: the signature of the operation
// that the team agreed on, or 0 if it disagreed; and the team's data if that is small and other hosts need it. A leader
// that has all blocks knows whether all hosts want the same. If not, the leaders exchange reports of what their ranks
// have published, and each computes the same error from them. The leader then leaves the verdict in its area, where the
// other ranks of its team wait for it.
//
// Slots can be reused as on one host: a leader's block of s+1 says that its whole host has finished s, since all of the
// team have published s+1.

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
	s.seq = s.Team.Number()
	var err error
	if s.leads {
		err = s.lead(ctx, w, mine != nil)
	} else {
		err = s.follow(ctx)
	}
	if err != nil && bad != nil && s.Team.Broken() == nil {
		return s.Team.Errorf("", reason.Blamed(bad, -1), bad)
	}
	return err
}

// lead is Agree on a leader.
func (s *Stage) lead(ctx context.Context, w *team.Work, differ bool) error {
	t := s.Team
	var own block
	n := 0
	if !differ {
		own.sig = w.Signature()
		if w.Path.Contribute != nil {
			n = w.Path.Contribute(t, w, s.own())
		}
	}
	if err := s.exchange(ctx, forBlocks, own, n); err != nil {
		return err
	}
	same := own.sig != 0
	for i := range s.blocks {
		same = same && s.blocks[i].sig == own.sig
	}
	if same {
		if w.Path.Conclude != nil {
			if err := w.Path.Conclude(t, w, s.dataOf); err != nil {
				return s.comm(t.Name(t.Rank()), err)
			}
		}
		s.say(nil)
		return nil
	}
	s.withdraw()
	verdict, err := s.judge(ctx)
	if err == nil {
		err = s.revoked(ctx)
	}
	if err != nil {
		return err
	}
	s.say(verdict)
	return verdict
}

// judge exchanges reports and returns the error that they show.
func (s *Stage) judge(ctx context.Context) (*fault.Error, error) {
	s.bad++
	mine := s.Team.Tally()
	n := writeReport(s.own()[:reportBytes], &mine)
	if err := s.exchange(ctx, forReports, block{}, n); err != nil {
		return nil, err
	}
	var all team.Tally
	for h := range s.blocks { // in the same order on all hosts
		y, err := parseReport(s.blocks[h].data, s.ranks)
		if err != nil {
			return nil, s.comm(s.Hosts[h][0], err)
		}
		all.Add(&y)
	}
	e := s.Team.Verdict(&all)
	if e == nil {
		return nil, s.comm(s.Hosts[s.me][0], fmt.Errorf("hosts that differ report nothing that does: %w", fault.ErrMismatch))
	}
	return e, nil
}

// say leaves the verdict for the team.
func (s *Stage) say(e *fault.Error) {
	t := s.Team
	if t.Size() == 1 {
		return
	}
	d := &t.Me.Verdict[t.Seq&1]
	d.Sig = 1
	if e != nil {
		d.Sig = 0
		d.Refusal = uint64(e.Peer+1)<<32 | uint64(reason.Code(e.Err))
		t.Me.VerdictText.Set(e.Err.Error())
	}
	spin.Release(&d.Seq, t.Seq)
}

// follow waits for the leader's verdict.
func (s *Stage) follow(ctx context.Context) error {
	t := s.Team
	a := t.Peers[0].Area
	d := &a.Verdict[t.Seq&1]
	if !team.Reached(d.Seq.Load(), t.Seq) {
		if err := t.Wait(ctx, &d.Seq, t.Seq, 0, team.StepAgree); err != nil {
			return err
		}
	}
	if d.Sig == 1 {
		return nil
	}
	return t.Errorf(team.StepAgree, int(d.Refusal>>32)-1,
		reason.Remote(a.VerdictText.Get(), reason.OfCode(int(uint32(d.Refusal)))))
}

// A report is a tally as bytes: the first refusal and up to maxVotes votes. A host has no room to report more.
const (
	maxVotes    = 8
	voteBytes   = 24
	reportBytes = 32 + maxVotes*voteBytes + team.TextBytes
)

// writeReport fills b from the front, and returns how many bytes it wrote.
func writeReport(b []byte, y *team.Tally) int {
	le := binary.LittleEndian
	text := ""
	clear(b[:32])
	if k := y.Refused; k != nil {
		le.PutUint32(b[0:], uint32(k.Rank+1))
		le.PutUint32(b[4:], uint32(k.About+1))
		le.PutUint32(b[8:], uint32(k.Code))
		text = k.Text[:min(len(k.Text), team.TextBytes)]
	}
	votes := y.Votes[:min(len(y.Votes), maxVotes)]
	le.PutUint32(b[12:], uint32(len(votes)))
	le.PutUint32(b[16:], uint32(len(text)))
	at := 32
	for _, v := range votes {
		le.PutUint64(b[at:], v.Sig)
		le.PutUint64(b[at+8:], uint64(v.Count))
		le.PutUint64(b[at+16:], uint64(v.First))
		at += voteBytes
	}
	return at + copy(b[at:], text)
}

var errReport = fmt.Errorf("a report that is damaged: %w", fault.ErrMismatch)

// parseReport reads what writeReport wrote, for a communicator of this many ranks.
func parseReport(b []byte, ranks int) (y team.Tally, err error) {
	le := binary.LittleEndian
	if len(b) < 32 {
		return y, errReport
	}
	votes, text := int(le.Uint32(b[12:])), int(le.Uint32(b[16:]))
	if votes > maxVotes || text > team.TextBytes || len(b) != 32+votes*voteBytes+text {
		return y, errReport
	}
	if rank := int(le.Uint32(b)); rank > ranks {
		return y, errReport
	} else if rank > 0 {
		y.Refused = &team.Refusal{Rank: rank - 1, About: int(le.Uint32(b[4:])) - 1, Code: int(le.Uint32(b[8:])),
			Text: string(b[len(b)-text:])}
	}
	for i := range votes {
		v := b[32+i*voteBytes:]
		k := team.Vote{Sig: le.Uint64(v), Count: int(le.Uint64(v[8:])), First: int(le.Uint64(v[16:]))}
		if k.Count < 1 || k.Count > ranks || k.First < 0 || k.First >= ranks {
			return y, errReport
		}
		y.Votes = append(y.Votes, k)
	}
	return y, nil
}
