package hosts

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// mover does the steps of an exchange. A step's elements travel as items, each to a place that its receiver has granted:
// the receiver decides how long they are. What will be combined lands in landing memory, all else where it belongs.
//
// Grants run ahead of the steps, as far as places and landing memory go. They begin before the hosts agree, so that
// leaders' travel with the proposals. Steps may begin then, too: see moveBeside. Sends lag behind where the peer has
// granted nothing yet: if receives waited for them, all hosts of a ring might wait for each other.
type mover struct {
	x     team.Exchange
	size  int        // of an element
	begun bool       // x is expected
	team  team.Local // brings the team's data, if x does not have them; or nil

	sends, receives, grants side
	silent                  int // grants that may not have left yet

	landing      []byte
	item         int    // bytes of an item that lands there
	items        uint64 // as many fit
	landed, free uint64 // such items granted, and combined
	filled, kept slots  // of an exchange with blocks: what has been gathered to be sent, and combined to be sent on

	local []unsafe.Pointer // scratch, one for each rank of the team
}

// side goes through the steps that send, or through those that receive.
type side struct {
	cursor schedule.Cursor
	sends  bool
	k      schedule.Step // the step that it is at
	number int           // of that step
	steps  int           // of this side, that are done
	off    int           // how many of the step's elements are done
	over   bool          // all is done
}

func (d *side) begin(p schedule.Plan, sends bool) {
	*d = side{cursor: p.Begin(), sends: sends, number: -1}
	d.next()
}

func (d *side) next() {
	d.off = 0
	for d.cursor.Next(&d.k) {
		if d.number++; (d.k.Op == schedule.Send) == d.sends {
			return
		}
	}
	d.over = true
}

// did counts n elements as done.
func (d *side) did(n int) {
	if d.off += n; d.off == d.k.N {
		d.steps++
		d.next()
	}
}

// Sequences of items begin anew with each operation, whose number is their upper part: so all hosts know them, whatever
// became of the operations before. A peer has 2^24 items of an operation at most: of 16 KiB, 256 GiB.
const itemBits = 24

func itemSeq(op, n uint64) uint64 { return op<<itemBits + n + 1 }

// flow counts an operation's items to and from a peer.
type flow struct {
	op                   uint64 // the operation
	granted, taken, sent uint64
}

// flow returns the peer's in the running operation.
func (s *Stage) flow(p *peer) *flow {
	if p.flow.op != s.seq {
		p.flow = flow{op: s.seq}
	}
	return &p.flow
}

// itemPlace is the place of an item that a peer sends.
func (s *Stage) itemPlace(n uint64) int { return agreementPlaces + int(n%window) }

// expect lets the peers send what the operation's exchange receives.
func (s *Stage) expect(ctx context.Context, w *team.Work, differ bool) error {
	if s.lane < 0 || differ || w.Path.Exchange == nil {
		return nil
	}
	if w.Path.Lay != nil {
		for r := range s.Team.Size() {
			if err := s.Team.WaitProgress(ctx, r, 1, team.StepAgree); err != nil {
				return err
			}
		}
	}
	x, err := w.Path.Exchange(s.Team, w)
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return s.fail(e)
	}
	if err != nil {
		return s.comm(s.Team.Name(s.Team.Rank()), err)
	}
	if x.Work == nil { // its Run exchanges later
		return nil
	}
	s.begin(x)
	if !s.leads { // leaders' grants leave with the proposals
		s.passGrants()
	}
	return nil
}

// passGrants lets the grants leave with which an exchange begins.
func (s *Stage) passGrants() {
	for _, p := range s.partners() {
		if f := s.flow(p); f.granted > f.taken {
			p.link.Poll()
		}
	}
}

// begin begins an exchange: it lets the peers send.
func (s *Stage) begin(x team.Exchange) {
	m := &s.mover
	m.x, m.size, m.begun = x, x.Size, true
	if m.size == 0 {
		m.size = x.Work.Type.Size()
	}
	m.sends.begin(x.Plan, true)
	m.receives.begin(x.Plan, false)
	m.grants = m.receives
	m.landed, m.free = 0, 0
	s.grant()
	m.silent = 0
}

// land makes sure that there is landing memory.
func (m *mover) land(s *Stage) {
	if m.landing != nil {
		return
	}
	m.landing = s.Network.landing.take()
	m.items = min(window, max(uint64(len(m.landing)/(m.x.Plan.Item*m.size)), leastItems))
	m.item = len(m.landing) / int(m.items) &^ 63
}

// leave gives landing memory back. No peer may write to it any more.
func (m *mover) leave(s *Stage) {
	if m.x.Blocks != nil {
		m.x.Blocks.Done()
	}
	s.Network.landing.give(m.landing)
	m.filled.leave(s.Network)
	m.kept.leave(s.Network)
	m.landing, m.begun, m.team, m.x = nil, false, nil, team.Exchange{} // which keeps the caller's memory alive
}

// apart is how many bytes, and no less, are worth an item of their own where data belong to several places. Less lands in
// landing memory, with what comes behind it.
const apart = 16 << 10

// place is where the next item of a step belongs, off elements into it, nil: in landing memory; and how many elements it
// has.
func (m *mover) place(s *Stage, k *schedule.Step, off int) (to unsafe.Pointer, n int) {
	rest := k.N - off
	switch {
	case k.Op == schedule.Reduce:
	case m.x.Blocks == nil:
		return unsafe.Add(m.x.Destination, (k.Off+off)*m.size), rest
	default:
		if to, n = m.x.Blocks.Destination(k.Peer, k.Off+off, rest); to != nil && (n == rest || n*m.size >= apart) {
			return to, n
		}
	}
	m.land(s)
	return nil, min(rest, m.item/m.size)
}

// at is the address of an item in landing memory.
func (m *mover) at(item uint64) unsafe.Pointer {
	return unsafe.Pointer(&m.landing[int(item%m.items)*m.item])
}

// grant grants items as far ahead as there is room.
func (s *Stage) grant() {
	m := &s.mover
	for g := &m.grants; !g.over; {
		k := &g.k
		p := s.peer(k.Peer)
		l := s.flow(p)
		if l.granted-l.taken == window {
			return
		}
		to, n := m.place(s, k, g.off)
		if to == nil {
			if m.landed-m.free == m.items {
				return
			}
			to = m.at(m.landed)
			m.landed++
		}
		p.link.Grant(s.itemPlace(l.granted), itemSeq(s.seq, l.granted), to, n*m.size)
		l.granted++
		m.silent++
		g.did(n)
	}
}

// Exchange implements team.Hosts.
func (s *Stage) Exchange(ctx context.Context, x team.Exchange) error {
	s.begin(x)
	s.passGrants()
	return s.Move(ctx, nil)
}

// Move implements team.Hosts.
func (s *Stage) Move(ctx context.Context, local team.Local) error {
	s.mover.team = local
	if err := s.move(ctx); err != nil {
		return err
	}
	err := s.flush(ctx)
	s.mover.leave(s)
	return err
}

// multiply multiplies the data of a team of one rank, for PreMulSum. Others multiply what they stage.
func (m *mover) multiply(ranks int) {
	if w := m.x.Work; w.Red == team.PreMulSum && ranks == 1 && m.x.Plan.Count > 0 && m.x.Blocks == nil {
		cpu.Scale(w.Type, m.x.Destination, m.x.Source, m.x.Plan.Count, w.Factor)
		m.x.Source = m.x.Destination
	}
}

// move does what is left of the exchange's steps.
func (s *Stage) move(ctx context.Context) error {
	what := s.mover.x.Plan.Way.String()
	for {
		to, err := s.send(ctx, what)
		if err != nil {
			return err
		}
		from, err := s.receive(ctx, what)
		switch {
		case err != nil:
			return err
		case from.moved:
		case to.p == nil && from.p == nil:
			return nil
		case from.p == nil:
			err = s.await(ctx, to.p, to.word, to.target, what)
		case to.p == nil:
			err = s.await(ctx, from.p, from.word, from.target, what)
		default:
			err = s.awaitEither(ctx, to, from, what)
		}
		if err != nil {
			return err
		}
	}
}

// obstacle is what a side waits for: p must raise word to target. If p is nil there is nothing.
type obstacle struct {
	p      *peer
	word   *atomic.Uint64
	target uint64
	moved  bool // there is no need to wait
}

func (o *obstacle) gone() bool { return team.Reached(o.word.Load(), o.target) }

// mine is this host's data of a step.
func (m *mover) mine(k *schedule.Step) unsafe.Pointer {
	if k.Source {
		return unsafe.Add(m.x.Source, k.Off*m.size)
	}
	return unsafe.Add(m.x.Destination, k.Off*m.size)
}

// send sends what can be sent: steps before the next one that receives, up to one for which there is no grant.
func (s *Stage) send(ctx context.Context, what string) (o obstacle, err error) {
	m := &s.mover
	for d := &m.sends; !d.over && (m.receives.over || d.number < m.receives.number); {
		k := &d.k
		p := s.peer(k.Peer)
		l := s.flow(p)
		place, seq := s.itemPlace(l.sent), itemSeq(s.seq, l.sent)
		if o = (obstacle{p: p, word: p.link.Granted(place), target: seq}); !o.gone() {
			return o, nil
		}
		if is := o.word.Load(); is != seq { // the peer knows the verdict, and is in the operation after this one
			return o, s.damaged(p, what, fmt.Errorf("a grant of item %#x, not %#x", is, seq))
		}
		n := min(k.N-d.off, p.link.Room(place)/m.size)
		if n == 0 {
			return o, s.damaged(p, what, fmt.Errorf("a grant of %d bytes for elements of %d", p.link.Room(place), m.size))
		}
		if k.Source && m.x.Blocks == nil {
			if err := m.prepare(k.Off+d.off, n); err != nil {
				return o, err
			}
		}
		var from unsafe.Pointer
		if m.x.Blocks == nil {
			from = unsafe.Add(m.mine(k), d.off*m.size)
		} else if from, err = s.gathered(ctx, p, k, d.off, n); err != nil {
			return o, err
		}
		p.link.Put(place, seq, from, n*m.size)
		l.sent++
		if k.Last {
			m.hand(from, k.Off+d.off, n)
		}
		d.did(n)
	}
	return obstacle{}, nil
}

// sent reports whether so many steps have been sent, the last of them up to some element.
func (m *mover) sent(steps, elements int) bool {
	d := &m.sends
	return d.steps >= steps || d.steps == steps-1 && d.off >= elements
}

// receive takes the next item, if it has landed and may be taken.
func (s *Stage) receive(ctx context.Context, what string) (o obstacle, err error) {
	m := &s.mover
	d := &m.receives
	if d.over {
		return o, nil
	}
	k := &d.k
	p := s.peer(k.Peer)
	l := s.flow(p)
	place := s.itemPlace(l.taken)
	if o = (obstacle{p: p, word: p.link.Word(place), target: itemSeq(s.seq, l.taken)}); !o.gone() {
		return o, nil
	}
	to, n := m.place(s, k, d.off)
	blocks := m.x.Blocks != nil
	replaces := k.After > 0 && (blocks || !(k.Source && m.x.Source != m.x.Destination)) // what is being sent
	if replaces && !m.sent(k.After, d.off+n) {
		return obstacle{}, nil
	}
	if got := p.link.Landed(place); got != n*m.size {
		return o, s.damaged(p, what, fmt.Errorf("an item of %d bytes, not %d", got, n*m.size))
	}
	switch {
	case blocks:
		if err := s.take(ctx, k, to, d.off, n); err != nil {
			return o, err
		}
	case k.Op == schedule.Reduce:
		if replaces {
			if err := s.flush(ctx); err != nil {
				return o, err
			}
		}
		if k.Source && k.After == 0 { // otherwise it was prepared when it was sent
			if err := m.prepare(k.Off+d.off, n); err != nil {
				return o, err
			}
		}
		s.combine(k, unsafe.Add(m.x.Destination, (k.Off+d.off)*m.size), m.at(m.free), unsafe.Add(m.mine(k), d.off*m.size), n)
		m.free++
	}
	if k.Last && !blocks {
		m.hand(unsafe.Add(m.x.Destination, (k.Off+d.off)*m.size), k.Off+d.off, n)
	}
	l.taken++
	d.did(n)
	s.grant()
	if m.silent >= window/2 || m.grants.over && m.silent > 0 {
		m.silent = 0
		p.link.Poll() // grants leave
	}
	o.moved = true
	return o, nil
}

// advance does what the team can do meanwhile.
func (m *mover) advance() (busy bool, err error) {
	if m.team == nil {
		return false, nil
	}
	return m.team.Advance()
}

// prepare combines the data of the team's ranks, n elements from off on.
func (m *mover) prepare(off, n int) error {
	if m.team != nil {
		return m.team.Need(off, n)
	}
	w, srcs := m.x.Work, m.local[:len(m.x.Sources)]
	if len(srcs) == 0 {
		return nil
	}
	for i, p := range m.x.Sources {
		srcs[i] = unsafe.Add(p, off*m.size)
	}
	div := 1
	if w.HalfAverage() {
		div = cpu.Fraction(len(srcs))
	}
	cpu.ReduceN(w.Type, w.Red.Op(), unsafe.Add(m.x.Destination, off*m.size), srcs, n, div, false)
	return nil
}

// hand hands the team n elements from off on, which are final, at p.
func (m *mover) hand(p unsafe.Pointer, off, n int) {
	if m.team != nil {
		m.team.Final(off, n)
	}
	for _, to := range m.x.Copies {
		cpu.Copy(unsafe.Add(to, off*m.size), p, n*m.size, m.x.Stream)
	}
}

// combine combines n elements that have landed with this host's own.
func (s *Stage) combine(k *schedule.Step, out, in, own unsafe.Pointer, n int) {
	a, b, as, bs := in, own, k.In, k.Own
	if k.OwnFirst {
		a, b, as, bs = b, a, bs, as
	}
	s.add(s.mover.x.Work, out, a, b, as, bs, n, k.Last)
}

// add combines n elements of some hosts. last says that these are all hosts.
//
// Averages of half types travel as fractions of the sum: see cpu.Fraction.
func (s *Stage) add(w *team.Work, out, a, b unsafe.Pointer, as, bs schedule.Span, n int, last bool) {
	switch {
	case w.HalfAverage():
		x, y := s.ranksOf(as), s.ranksOf(bs)
		div := cpu.Fraction(x + y)
		if last {
			div = s.layout.Ranks
		}
		cpu.AddFractions(w.Type, out, a, b, n, x, y, div)
	case w.Red == team.Avg && last:
		srcs := [2]unsafe.Pointer{a, b}
		cpu.ReduceN(w.Type, cpu.Sum, out, srcs[:], n, s.layout.Ranks, false)
	default:
		cpu.Reduce(w.Type, w.Red.Op(), out, a, b, n, false)
	}
}

// ranksOf is how many ranks there are on some hosts.
func (s *Stage) ranksOf(x schedule.Span) (n int) {
	for i := range x.N {
		n += s.On((x.First + i) % s.n)
	}
	return n
}

// damaged says that a peer does not do what the schedule says. That breaks the communicator, if the hosts agree: the peer
// may have called something else.
func (s *Stage) damaged(p *peer, what string, err error) error {
	if s.agreeing {
		return errVerdict
	}
	return s.fail(s.Team.Errorf(what, p.rank, fmt.Errorf("%w: %w", err, fault.ErrMismatch)))
}

// withdraw revokes what is granted to peers and not used. Landing memory stays the operation's until that is done.
func (s *Stage) withdraw() {
	for _, p := range s.partners() {
		for l := s.flow(p); l.taken < l.granted; l.taken++ {
			p.link.Revoke(s.itemPlace(l.taken), itemSeq(s.seq, l.taken))
		}
	}
}
