package hosts

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// What leaders tell each other besides data.
const (
	kindLost = 1 + iota // the communicator broke: Code, About and Text say why
	kindBye             // the sender has closed the communicator, after as many operations as Text says
	kindAsk             // which rank do you wait for?
	kindMiss            // the answer: Text is team.Team.Chain in hexadecimal
)

// Flood tells the other hosts that the communicator broke. It may be called from any goroutine.
func (s *Stage) Flood(e *fault.Error) {
	s.tell(broke(s.Team, s.ID, e))
}

// broke says that the communicator broke.
func broke(t *team.Team, id uint64, e *fault.Error) transport.Message {
	text, about, is := t.LostElsewhere(e)
	return transport.Message{Comm: id, Kind: kindLost, Code: uint8(reason.Code(is)), About: int32(about), Text: text}
}

func (s *Stage) tell(m transport.Message) {
	for _, p := range s.partners() {
		if p.link != nil {
			p.link.Tell(m)
		}
	}
}

// heard handles a message from another leader. It returns why the communicator breaks, or nil. It may be called from
// any goroutine.
func (s *Stage) heard(from int, m transport.Message) *fault.Error {
	all := s.partners()
	i := slices.IndexFunc(all, func(p *peer) bool { return p.world == from })
	if i < 0 {
		return nil
	}
	p := all[i]
	switch m.Kind {
	case kindBye:
		var ops uint64
		fmt.Sscan(m.Text, &ops)
		p.left.Store(ops + 1)
	case kindAsk:
		answer(s.Team, m, p.link)
	case kindMiss:
		p.asking.answers(s.Team, p.rank, m)
	case kindLost:
		return brokeThere(s.Team, p.rank, m)
	}
	return nil
}

// brokeThere is why the communicator broke, as a rank says.
func brokeThere(t *team.Team, rank int, m transport.Message) *fault.Error {
	about, is := int(m.About), reason.OfCode(int(m.Code))
	if about < 0 || about >= t.Whole() {
		about = rank
	}
	if is == nil {
		is = fault.ErrAborted
	}
	return t.ErrorOf(&team.WaitState{Op: NoCall, Step: "wait"}, about, reason.Remote(m.Text, is))
}

// down handles the end of a wire, which may be an older one to the same peer. It returns why the communicator breaks, or
// nil. It may be called from any goroutine.
func (s *Stage) down(down *transport.Down) *fault.Error {
	for _, p := range s.partners() {
		if p.link != nil && p.link.Err() == down && p.left.Load() == 0 {
			return s.downError(p, down, "wait")
		}
	}
	return nil
}

// tick checks this host's team on behalf of the hosts that wait for it.
func (s *Stage) tick() {
	if s.Team.Broken() == nil {
		s.Break(s.Health)
	}
}

func (s *Stage) breakBy(why func() *fault.Error) { s.Break(why) }

// downError says why the end of a wire breaks the communicator.
func (s *Stage) downError(p *peer, down *transport.Down, step string) *fault.Error {
	return s.error(step, p.rank, lostText(p.rank, s.Name(s.me), s.Name(p.host), down))
}

// lostText says in the communicator's words what the end of a wire to a rank means. here and there are the names of the
// hosts at its ends.
func lostText(rank int, here, there string, down *transport.Down) error {
	switch down.Kind {
	case transport.Died:
		return fmt.Errorf("the process of rank %d of host %s ended: %v: %w", rank, there, down.Err, fault.ErrPeerLost)
	case transport.Cut:
		pair := [2]string{here, there}
		slices.Sort(pair[:])
		return fmt.Errorf("hosts %s and %s do not reach each other: %v: %w", pair[0], pair[1], down.Err, fault.ErrPeerLost)
	case transport.Left, transport.Refused:
		return Closed(rank)
	}
	return fmt.Errorf("the connection of hosts %s and %s: %v: %w", here, there, down.Err, fault.ErrPeerLost)
}

// mute is when a peer was first found to have ended its side in order without having said why, in nanoseconds; 0: it was not.
type mute struct{ atomic.Int64 }

// wordOfEnd is how long a rank that has ended its side without a word gets until that counts as a close.
const wordOfEnd = 300 * time.Millisecond

// just reports whether down is such an end, found just now: perhaps the communicator broke there before the peer had this link,
// and the reason is on its way by another rank.
func (m *mute) just(down *transport.Down) bool {
	if down.Kind != transport.Refused && down.Kind != transport.Left {
		return false
	}
	now := time.Now().UnixNano()
	m.CompareAndSwap(0, now)
	return now-m.Load() < int64(wordOfEnd)
}

// NoCall is the Op of an error that the network's goroutine has found: the call that returns it first gives it its name.
const NoCall = "communicator"

// error makes an error that may not belong to this rank's running operation.
func (s *Stage) error(step string, about int, err error) *fault.Error {
	w := team.WaitState{Op: NoCall, Step: step}
	return s.Team.ErrorOf(&w, about, err)
}

// Health checks the team on behalf of other hosts that wait for it. It returns why the communicator breaks, or nil. It
// may be called from any goroutine.
func (s *Stage) Health() *fault.Error {
	return s.Team.PollHealth(&team.WaitState{Op: NoCall, Peer: s.Team.Rank(), Step: "watch", PassOn: true})
}

// fail breaks the communicator and returns why it broke: another error may have broken it just before.
func (s *Stage) fail(e *fault.Error) error {
	s.Team.Fail(e)
	return s.Team.Broken()
}

// Sever closes the links of a broken communicator. Afterwards nothing is written to this rank's memory, and nothing is
// read from it. The caller has the communicator's turn.
func (s *Stage) Sever() {
	s.ending.Lock()
	defer s.ending.Unlock()
	s.cut()
}

func (s *Stage) cut() {
	for _, p := range s.partners() {
		if p.link != nil && !s.severed {
			p.link.Close()
		}
	}
	if !s.severed {
		s.mover.leave(s)
	}
	s.severed = true
}

// Close closes the links and tells the other hosts. Data of the last operation that they have not received yet is under
// way.
func (s *Stage) Close() {
	if s == nil { // the communicator is on one host
		return
	}
	s.ending.Lock()
	defer s.ending.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.fabric.close()
	if s.lane < 0 {
		s.Network.node.Leave(s.ID)
		return
	}
	s.Network.remove(s.ID)
	if e := s.Health(); e != nil && s.Team.Broken() == nil {
		s.Flood(e) // a failure that the network's goroutine has not seen yet makes this no orderly end
	}
	s.tell(transport.Message{Comm: s.ID, Kind: kindBye, Text: fmt.Sprint(s.seq)})
	s.cut()
	s.Network.node.Leave(s.ID)
}
