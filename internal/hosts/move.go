package hosts

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// mover does the steps of an exchange. A step's elements travel as items, each to a place that its receiver has granted:
// the receiver decides how long they are. What will be combined lands in landing memory, all else where it belongs.
//
// Grants run ahead of the steps, as far as places and landing memory go. They begin before the hosts agree, so that they
// travel with the proposals.
type mover struct {
	x      team.Exchange
	size   int             // of an element
	begun  bool            // x is expected
	moved  bool            // all of x has moved, beside the agreement
	steps  schedule.Cursor // to be done
	ahead  schedule.Cursor // whose receives are to be granted
	next   schedule.Step   // the receive that is being granted
	off    int             // how much of it is
	all    bool            // all receives are granted
	silent int             // grants that may not have left yet

	landing      []byte // window items
	pooled       bool   // landing is the rank's
	item         int    // bytes of an item that lands there
	landed, free uint64 // such items granted, and combined
	own          []byte // landing memory of this communicator alone
}

// Sequences of items begin anew with each operation, whose number is their upper part: so all hosts know them, whatever
// became of the operations before.
const itemBits = 24

func itemSeq(op, n uint64) uint64 { return op<<itemBits + n + 1 }

// lane is an exchange's way to and from a peer: how many items.
type lane struct {
	op                   uint64 // the operation that these belong to
	granted, taken, sent uint64
}

// lane returns the peer's lane in the running operation.
func (s *Stage) lane(p *peer) *lane {
	if p.lane.op != s.seq {
		p.lane = lane{op: s.seq}
	}
	return &p.lane
}

// itemPlace is the place of an item that a peer sends.
func (s *Stage) itemPlace(n uint64) int { return agreementPlaces(s.n) + int(n%window) }

// Expect implements team.Hosts.
func (s *Stage) Expect(x team.Exchange) {
	m := &s.mover
	m.x, m.size, m.begun, m.moved = x, x.Work.Type.Size(), true, false
	m.steps = x.Plan.Begin()
	m.ahead, m.off, m.next, m.all, m.silent = m.steps, 0, schedule.Step{}, false, 0
	m.landed, m.free = 0, 0
	s.grant()
	m.silent = 0 // these leave with the proposals
}

// land makes sure that there is landing memory.
func (m *mover) land(s *Stage) {
	if m.landing != nil {
		return
	}
	if m.landing = s.Network.landing.take(); m.landing != nil {
		m.pooled, m.item = true, poolItem
		return
	}
	if m.own == nil {
		m.own = make([]byte, ownBytes)
	}
	m.landing, m.item = m.own, ownItem
}

// leave gives landing memory back. No peer may write to it any more.
func (m *mover) leave(s *Stage) {
	if m.pooled {
		s.Network.landing.give()
	}
	m.landing, m.pooled, m.begun = nil, false, false
}

// length is how many elements the next item of a step has that has rest elements left.
func (m *mover) length(op schedule.Op, rest int) int {
	if op == schedule.Reduce {
		return min(rest, m.item/m.size)
	}
	return rest
}

// at is the address of an item in landing memory.
func (m *mover) at(item uint64) unsafe.Pointer {
	return unsafe.Pointer(&m.landing[int(item%window)*m.item])
}

// grant grants items as far ahead as there is room.
func (s *Stage) grant() {
	m := &s.mover
	for !m.all {
		k := &m.next
		if m.off == k.N { // all of it is granted
			for {
				if !m.ahead.Next(k) {
					m.all = true
					return
				}
				if k.Op != schedule.Send {
					break
				}
			}
			m.off = 0
		}
		p := s.peer(k.Peer)
		l := s.lane(p)
		if l.granted-l.taken == window {
			return
		}
		to := unsafe.Add(m.x.Destination, (k.Off+m.off)*m.size)
		if k.Op == schedule.Reduce {
			if m.land(s); m.landed-m.free == window {
				return
			}
			to = m.at(m.landed)
			m.landed++
		}
		n := m.length(k.Op, k.N-m.off)
		p.link.Grant(s.itemPlace(l.granted), itemSeq(s.seq, l.granted), to, n*m.size)
		l.granted++
		m.off += n
		m.silent++
	}
}

// errDiffer is what moving data returns if the hosts turn out not to agree.
var errDiffer = errors.New("the hosts do not agree")

// Move implements team.Hosts.
func (s *Stage) Move(ctx context.Context, x team.Exchange) error {
	m := &s.mover
	if !m.begun {
		s.Expect(x)
	}
	if !m.moved {
		m.x = x
		if err := s.move(ctx); err != nil {
			return err
		}
	}
	err := s.flush(ctx)
	m.leave(s)
	return err
}

func (s *Stage) move(ctx context.Context) error {
	m := &s.mover
	w := m.x.Work
	if w.Red == team.PreMulSum && s.Team.Size() == 1 && m.x.Plan.Count > 0 { // otherwise the team has multiplied
		cpu.Scale(w.Type, m.x.Destination, m.x.Source, m.x.Plan.Count, w.Factor)
		m.x.Source = m.x.Destination
	}
	var k schedule.Step
	for m.steps.Next(&k) {
		var err error
		if k.Op == schedule.Send {
			err = s.send(ctx, &k)
		} else {
			err = s.receive(ctx, &k)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mine is this host's data of a step.
func (m *mover) mine(k *schedule.Step) unsafe.Pointer {
	if k.Source {
		return unsafe.Add(m.x.Source, k.Off*m.size)
	}
	return unsafe.Add(m.x.Destination, k.Off*m.size)
}

func (s *Stage) send(ctx context.Context, k *schedule.Step) error {
	m, p := &s.mover, s.peer(k.Peer)
	l, from := s.lane(p), m.mine(k)
	what := m.x.Plan.Way.String()
	for off := 0; off < k.N; {
		place, seq := s.itemPlace(l.sent), itemSeq(s.seq, l.sent)
		if err := s.await(ctx, p, p.link.Granted(place), seq, what); err != nil {
			return err
		}
		n := min(k.N-off, p.link.Room(place)/m.size)
		if n == 0 {
			return s.damaged(ctx, p, what, fmt.Errorf("a grant of %d bytes for elements of %d", p.link.Room(place), m.size))
		}
		p.link.Put(place, seq, unsafe.Add(from, off*m.size), n*m.size)
		l.sent++
		off += n
	}
	return nil
}

func (s *Stage) receive(ctx context.Context, k *schedule.Step) error {
	m, p := &s.mover, s.peer(k.Peer)
	l, what := s.lane(p), m.x.Plan.Way.String()
	drained := !k.Drain
	for off := 0; off < k.N; {
		n := m.length(k.Op, k.N-off)
		place := s.itemPlace(l.taken)
		if err := s.await(ctx, p, p.link.Word(place), itemSeq(s.seq, l.taken), what); err != nil {
			return err
		}
		if got := p.link.Landed(place); got != n*m.size {
			return s.damaged(ctx, p, what, fmt.Errorf("an item of %d bytes, not %d", got, n*m.size))
		}
		if k.Op == schedule.Reduce {
			if !drained {
				if err := s.flush(ctx); err != nil {
					return err
				}
				drained = true
			}
			s.combine(k, unsafe.Add(m.x.Destination, (k.Off+off)*m.size), m.at(m.free), unsafe.Add(m.mine(k), off*m.size), n)
			m.free++
		}
		l.taken++
		off += n
		s.grant()
		if m.silent >= window/2 || m.all && m.silent > 0 {
			m.silent = 0
			p.link.Poll() // grants leave
		}
	}
	return nil
}

// combine combines n elements that have landed with this host's own.
//
// For averages of half types the hosts exchange averages: a sum may overflow the type where the average does not.
func (s *Stage) combine(k *schedule.Step, out, in, own unsafe.Pointer, n int) {
	w := s.mover.x.Work
	a, b, as, bs := in, own, k.In, k.Own
	if k.OwnFirst {
		a, b, as, bs = b, a, bs, as
	}
	switch {
	case w.Red == team.Avg && Halves(w.Type):
		cpu.Weigh(w.Type, out, a, b, n, s.ranksOf(as), s.ranksOf(bs))
	case w.Red == team.Avg && k.Last:
		srcs := [2]unsafe.Pointer{a, b}
		cpu.ReduceN(w.Type, cpu.Sum, out, srcs[:], n, s.ranks, false)
	default:
		cpu.Reduce(w.Type, inner[w.Red], out, a, b, n, false)
	}
}

// inner maps each reduction to its inner operation, without what comes before and after it.
var inner = [...]cpu.Op{team.Sum: cpu.Sum, team.Prod: cpu.Prod, team.Min: cpu.Min, team.Max: cpu.Max,
	team.Avg: cpu.Sum, team.PreMulSum: cpu.Sum}

// Halves reports whether t is a half type.
func Halves(t dtype.Type) bool { return t == dtype.Float16 || t == dtype.BFloat16 }

// ranksOf is how many ranks there are on some hosts.
func (s *Stage) ranksOf(x schedule.Span) (n int) {
	for i := range x.N {
		n += s.On((x.First + i) % s.n)
	}
	return n
}

// damaged says that a peer does not do what the schedule says: it has called something else, or else the communicator
// breaks.
func (s *Stage) damaged(ctx context.Context, p *peer, what string, err error) error {
	if s.agreeing {
		s.agreeing = false
		if err := s.converse(ctx); err != nil {
			return err
		}
		if !s.agreement.sum.same() {
			return errDiffer
		}
	}
	return s.fail(s.Team.Errorf(what, p.rank, fmt.Errorf("%w: %w", err, fault.ErrMismatch)))
}

// withdraw revokes what is granted to peers and not used. Landing memory stays the operation's until that is done.
func (s *Stage) withdraw() {
	for _, p := range s.partners() {
		for l := s.lane(p); l.taken < l.granted; l.taken++ {
			p.link.Revoke(s.itemPlace(l.taken), itemSeq(s.seq, l.taken))
		}
	}
}
