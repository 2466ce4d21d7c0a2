package schedule

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// value is what an element holds: whose data are combined in it, which element it is, and a hash of how, by which two values
// that were combined differently differ.
type value struct {
	of   Span
	id   int
	hash uint64
}

// pairs is how many elements each host sends to each, pairwise. A host sends itself its own part.
type pairs [][]int

// plan is host me's.
func (x pairs) plan(p Plan, me int) Plan {
	p.Me = me
	if x == nil {
		return p
	}
	p.Sends = x[me]
	for _, sends := range x {
		p.Receives = append(p.Receives, sends[me])
	}
	if p.Reduces {
		p.Count = x[me][me]
	}
	return p
}

// messages is how many messages all hosts send together.
func (x pairs) messages(item int) (n int) {
	for from, sends := range x {
		for to, count := range sends {
			if to != from {
				n += (count + item - 1) / item
			}
		}
	}
	return n
}

// idOf is the identity of an element that is sent to a host pairwise.
func idOf(to, off int) int { return to<<20 | off }

// host is one host that does its steps.
type host struct {
	p                   Plan
	sends, receives     side
	grants              Cursor
	source, destination []value
	parts, places       []int      // pairwise: where each host's elements begin in the source, and in the destination
	in                  []*message // sent to this host, by the order of its receives from each
	granted, taken      map[int]int
	sent                int
	landing             int    // granted places in landing memory that have not been taken
	apart               bool   // what is copied may not belong together: it lands in landing memory
	order               []Step // of receives that are granted and not taken
	all, over           bool
	final               []int // how often each element has been said to be final
	copied              int   // elements that it has received as they are
}

// side goes through a host's sends, or through its receives.
type side struct {
	c      Cursor
	k      Step
	number int // of k, among all steps
	over   bool
}

func (d *side) next(sends bool) {
	for d.c.Next(&d.k) {
		if d.number++; (d.k.Op == Send) == sends {
			return
		}
	}
	d.over = true
}

// message is under way. Until it is read, its data are those of the sender's memory.
type message struct {
	from, to *host
	step     Step
	data     []value // nil: not read yet
	nth      int     // of its sender's
}

type sim struct {
	t     *testing.T
	r     *rand.Rand
	hosts []*host
	// window is how many receives from one host, and how many in landing memory from all, are granted ahead.
	window int
	read   []*message // not read yet
	sent   int
}

// newSim's x is for pairwise plans.
func newSim(t *testing.T, r *rand.Rand, p Plan, x pairs, inPlace bool) *sim {
	s := &sim{t: t, r: r, window: 1 + r.IntN(8)}
	for me := range p.Hosts {
		p := x.plan(p, me)
		h := &host{p: p, grants: p.Begin(), granted: map[int]int{}, taken: map[int]int{}}
		h.sends.c, h.receives.c = p.Begin(), p.Begin()
		h.sends.next(true)
		h.receives.next(false)
		switch {
		case p.Way == Pairwise:
			h.exchanges(inPlace)
		case p.Begins != nil:
			h.apart = r.IntN(2) == 0
			h.keeps(inPlace)
		default:
			h.source = contributed(me, 0, p.Count)
			switch {
			case h.passesOn():
				h.destination = make([]value, Slots*p.Item)
			case inPlace:
				h.destination = h.source
			default:
				h.destination = make([]value, p.Count)
			}
			h.final = make([]int, p.Count)
		}
		s.hosts = append(s.hosts, h)
	}
	return s
}

// contributed is n elements of a host's own data.
func contributed(host, id, n int) []value {
	all := make([]value, n)
	for i := range all {
		all[i] = value{Span{host, 1}, id + i, uint64(host + 1)}
	}
	return all
}

// exchanges makes a host's memory for a pairwise plan. In place, the result of one that reduces replaces the own part.
func (h *host) exchanges(inPlace bool) {
	p, n := &h.p, 0
	h.apart = true
	for peer := range p.Hosts {
		h.parts, h.places = append(h.parts, len(h.source)), append(h.places, n)
		h.source = append(h.source, contributed(p.Me, idOf(peer, 0), p.Sends[peer])...)
		if !p.Reduces {
			n += p.Receives[peer]
		}
	}
	switch {
	case !p.Reduces:
		h.destination = make([]value, n)
	case inPlace:
		h.destination = h.source[h.parts[p.Me]:][:p.Count]
	default:
		h.destination = make([]value, p.Count)
	}
	h.final = make([]int, len(h.destination))
}

// keeps makes a host's memory for a plan with parts: all are at the same offsets in the source and in the destination. What
// the host does not have there is not valid.
func (h *host) keeps(inPlace bool) {
	p := &h.p
	n, own := p.Begins[p.Hosts], p.PartOf(p.Me)
	lo, hi := p.Begins[own], p.Begins[own+1]
	h.source, h.destination, h.final = make([]value, n), make([]value, n), make([]int, n)
	first, end := p.below()
	switch {
	case p.Way == ScatterHalving:
		h.source = contributed(p.Me, 0, n)
		if inPlace {
			h.destination = h.source
		}
	case p.Way == ScatterTree && first == 0:
		h.source = contributed(p.Me, 0, n)
	case p.Way == GatherTree && first == 0, p.Way == ScatterTree: // not sent
	case p.Way == GatherTree && end == first+1: // nothing is passed on
		copy(h.source[lo:], contributed(p.Me, lo, hi-lo))
	default:
		copy(h.destination[lo:], contributed(p.Me, lo, hi-lo))
	}
}

// below is the parts of a host, and of those below it in a tree with the root's first.
func (p *Plan) below() (first, end int) {
	first, end = (p.Me-p.Root+p.Hosts)%p.Hosts, 1
	for end < p.Hosts && first%(2*end) == 0 {
		end *= 2
	}
	return first, min(first+end, p.Hosts)
}

// passesOn says that a host of a reduce is not the root. Then its destination is memory for Slots items.
func (h *host) passesOn() bool { return h.p.Way.toRoot() && h.p.Me != h.p.Root }

// memory is where a step's own data are.
func (h *host) memory(k *Step) []value {
	switch {
	case !k.Source:
		return h.result(k)
	case h.parts == nil:
		return h.source[k.Off:][:k.N]
	case k.Op == Send:
		return h.source[h.parts[k.Peer]+k.Off:][:k.N]
	}
	return h.source[h.parts[h.p.Me]+k.Off:][:k.N]
}

// result is where a step's elements are in the destination.
func (h *host) result(k *Step) []value {
	if h.passesOn() {
		return h.destination[k.Off/h.p.Item%Slots*h.p.Item:][:k.N]
	}
	return h.destination[h.place(k):][:k.N]
}

// place is a step's first element in a destination that has everything.
func (h *host) place(k *Step) int {
	if h.places != nil {
		return h.places[k.Peer] + k.Off
	}
	return k.Off
}

// lands says that a step receives in landing memory.
func (h *host) lands(k *Step) bool { return k.Op == Reduce || h.apart }

// grant grants receives as far ahead as there is room.
func (h *host) grant(window int) {
	for !h.all {
		c := h.grants
		var k Step
		if !c.Next(&k) {
			h.all = true
			return
		}
		if k.Op != Send {
			if h.granted[k.Peer]-h.taken[k.Peer] == window || h.lands(&k) && h.landing == window {
				return
			}
			h.granted[k.Peer]++
			if h.lands(&k) {
				h.landing++
			}
			h.order = append(h.order, k)
		}
		h.grants = c
	}
}

// did notes what a step that is done says about its elements.
func (h *host) did(k *Step) {
	if k.Op == Copy {
		h.copied += k.N
	}
	if k.Last {
		for i := range k.N {
			h.final[h.place(k)+i]++
		}
	}
}

// load reads a message's data.
func (m *message) load() {
	if m.data == nil {
		m.data = append([]value{}, m.from.memory(&m.step)...)
	}
}

// run does all hosts' steps in a random order. What is sent is read at any time until it is received, and what is copied
// is written at any time from then on.
func (s *sim) run() {
	live := len(s.hosts)
	for live > 0 {
		moved := false
		for range 2 * len(s.hosts) {
			if h := s.hosts[s.r.IntN(len(s.hosts))]; !h.over && s.do(h) {
				moved = true
				if h.over {
					live--
				}
			}
		}
		if moved {
			continue
		}
		for _, h := range s.hosts { // nobody that was drawn could go on
			if !h.over && s.do(h) {
				moved = true
				if h.over {
					live--
				}
			}
		}
		if !moved {
			for _, h := range s.hosts {
				if !h.over {
					s.t.Fatalf("%+v: waits forever in %+v or %+v", h.p, h.sends.k, h.receives.k)
				}
			}
		}
	}
}

// do does a host's next send or receive, if it can. A send may be late, as long as no receive waits for it.
func (s *sim) do(h *host) bool {
	h.grant(s.window)
	if h.sends.over && h.receives.over {
		h.over = true
		require.Empty(s.t, h.in)
		require.Empty(s.t, h.order)
		return true
	}
	send := func() bool {
		if h.sends.over || !h.receives.over && h.sends.number > h.receives.number {
			return false
		}
		return s.send(h, &h.sends.k)
	}
	if s.r.IntN(2) == 0 && send() {
		return true
	}
	if d := &h.receives; !d.over && h.sent >= d.k.After {
		if s.receive(h, &d.k) {
			return true
		}
	}
	return send()
}

func (s *sim) send(h *host, k *Step) bool {
	to := s.hosts[k.Peer]
	to.grant(s.window)
	under := 0
	for _, m := range to.in {
		if m.from == h {
			under++
		}
	}
	nth := 0 // of the granted receives from h, the one that this is for
	var want *Step
	for i := range to.order {
		if to.order[i].Peer == h.p.Me {
			if nth == under {
				want = &to.order[i]
				break
			}
			nth++
		}
	}
	if want == nil {
		return false
	}
	if k.N <= 0 || want.Off != k.Off || want.N != k.N {
		s.t.Fatalf("%+v sends %+v, and host %d receives %+v", h.p, *k, to.p.Me, *want)
	}
	m := &message{from: h, to: to, step: *k, nth: h.sent}
	if s.r.IntN(2) == 0 {
		m.load()
	} else {
		s.read = append(s.read, m)
	}
	to.in = append(to.in, m)
	if want.Op == Copy && s.r.IntN(2) == 0 { // it lands before the host comes to its step
		m.load()
		copy(to.result(want), m.data)
	}
	s.sent++
	h.sent++
	h.did(k)
	h.sends.next(true)
	return true
}

func (s *sim) receive(h *host, k *Step) bool {
	at := -1
	for i, m := range h.in {
		if m.from.p.Me == k.Peer {
			at = i
			break
		}
	}
	if at < 0 {
		return false
	}
	m := h.in[at]
	h.in = append(h.in[:at], h.in[at+1:]...)
	require.Equal(s.t, *k, h.order[0])
	h.order = h.order[1:]
	h.taken[k.Peer]++
	m.load()
	s.drain(h, k.After)
	if h.lands(k) {
		h.landing--
	}
	if k.Op == Copy {
		copy(h.result(k), m.data)
	} else {
		own, out := h.memory(k), h.result(k)
		for i, in := range m.data {
			s.require(in.of == k.In && own[i].of == k.Own && in.id == own[i].id, h, k, in, own[i])
			out[i] = s.combine(h, k, in, own[i])
		}
	}
	h.did(k)
	h.receives.next(false)
	return true
}

func (s *sim) require(ok bool, h *host, k *Step, in, own value) {
	if !ok {
		s.t.Fatalf("%+v: step %+v combines %+v with %+v", h.p, *k, in, own)
	}
}

// drain reads the first messages of a host that nobody has received yet.
func (s *sim) drain(h *host, first int) {
	left := s.read[:0]
	for _, m := range s.read {
		if m.from == h && m.nth < first {
			m.load()
		} else if m.data == nil {
			left = append(left, m)
		}
	}
	s.read = left
}

func (s *sim) combine(h *host, k *Step, in, own value) value {
	a, b := in, own
	if k.OwnFirst {
		a, b = b, a
	}
	n := h.p.Hosts
	out := value{Span{a.of.First, a.of.N + b.of.N}, a.id, mixed(a.hash, b.hash)}
	s.require((a.of.First+a.of.N)%n == b.of.First && out.of.N <= n, h, k, in, own) // neighbours: no host's data twice
	s.require(k.Last == (out.of.N == n), h, k, in, own)
	return out
}

func mixed(a, b uint64) uint64 {
	return bits.RotateLeft64(a*0x9e3779b97f4a7c15, 17) ^ b*0xc2b2ae3d27d4eb4f
}

// halved is the hash of what has been combined from n hosts from first on, each half of them by itself before.
func halved(first, n int) uint64 {
	if n == 1 {
		return uint64(first + 1)
	}
	return mixed(halved(first, n/2), halved(first+n/2, n/2))
}

// check requires that all hosts that get a result have everything, combined in the same way, and have heard once of each
// element that it is final.
func (s *sim) check() {
	for _, h := range s.hosts {
		p, times, first := &h.p, 1, s.hosts[0]
		switch {
		case p.Way == Pairwise && !p.Reduces:
			h.checkParts(s)
			continue
		case p.Begins != nil:
			h.checkKept(s)
			continue
		case h.passesOn():
			times = 0
		case p.Way.sends() || p.Way.toRoot():
			first = s.hosts[p.Root]
		case p.Way == Pairwise:
			first = h
		}
		for i, n := range h.final {
			if n != times {
				s.t.Fatalf("%+v, element %d: final %d times", *p, i, n)
			}
		}
		if p.Way.sends() {
			want := p.Count
			if p.Me == p.Root {
				want = 0
			}
			require.Equal(s.t, want, h.copied, "%+v", *p)
		}
		if h.passesOn() || p.Way.sends() && p.Me == p.Root { // nothing, or in the source
			continue
		}
		for i, v := range h.destination {
			want := value{Span{v.of.First, p.Hosts}, i, first.destination[i].hash}
			switch p.Way {
			case Chain, Tree, Scatter:
				want = first.source[i]
			case Pairwise:
				want.id = idOf(p.Me, i)
			}
			if v != want {
				s.t.Fatalf("%+v, element %d: %+v, not %+v", *p, i, v, want)
			}
		}
	}
}

// checkParts requires that a host has each other host's elements for it, at their places.
func (h *host) checkParts(s *sim) {
	others := 0
	for peer, first := range h.places {
		times := 1
		if peer == h.p.Me {
			times = 0
		}
		for off := range h.p.Receives[peer] {
			want := value{Span{peer, 1}, idOf(h.p.Me, off), uint64(peer + 1)}
			if times == 0 {
				want = value{}
			}
			if v, n := h.destination[first+off], h.final[first+off]; v != want || n != times {
				s.t.Fatalf("%+v, element %d of host %d: %+v, final %d times, not %+v", h.p, off, peer, v, n, want)
			}
			others += times
		}
	}
	require.Equal(s.t, others, h.copied, "%+v", h.p)
}

// checkKept requires that a host has heard once of each element that it gets, and of no others, and has it.
func (h *host) checkKept(s *sim) {
	p := &h.p
	own := p.PartOf(p.Me)
	first, end := p.below() // what it gets, but for its own part in a gather
	switch {
	case p.Way == GatherDoubling:
		first, end = 0, p.Hosts
	case p.Way == ScatterHalving:
		first, end = own, own+1
	case p.Way == ScatterTree && first == 0:
		end = 0
	}
	gathers, combined, others := p.Way == GatherDoubling || p.Way == GatherTree, halved(0, p.Hosts), 0
	for part := range p.Hosts {
		times, of := 0, value{Span{p.HostOf(part), 1}, 0, uint64(p.HostOf(part) + 1)}
		if first <= part && part < end && (!gathers || part != own) {
			times = 1
		}
		switch p.Way {
		case ScatterHalving:
			of = value{Span{0, p.Hosts}, 0, combined}
		case ScatterTree:
			of = value{Span{p.Root, 1}, 0, uint64(p.Root + 1)}
		}
		for i := p.Begins[part]; i < p.Begins[part+1]; i++ {
			of.id = i
			if v, n := h.destination[i], h.final[i]; n != times || (n > 0 || p.Way == GatherDoubling) && v != of {
				s.t.Fatalf("%+v, element %d of part %d: %+v, final %d times, not %+v", *p, i, part, v, n, of)
			}
			others += times
		}
	}
	if p.Way == ScatterHalving {
		others = 0
	}
	require.Equal(s.t, others, h.copied, "%+v", *p)
}

// sends and toRoot say that a way is one of broadcasts, or of reduces.
func (w Way) sends() bool  { return slices.Contains(Sending, w) }
func (w Way) toRoot() bool { return slices.Contains(ToRoot, w) }

// messages is how many messages all hosts send together.
func (p Plan) messages() (n int) {
	switch p.Way {
	case Ring:
		c := p.Begin()
		for part := range p.Hosts {
			left := min(p.Count-part*c.part, c.part)
			n += (2*p.Hosts - 2) * max(0, (left+p.Item-1)/p.Item)
		}
	case Doubling:
		c := p.Begin()
		n = (2*c.fold + (p.Hosts-c.fold)*c.levels()) * ((p.Count + p.Item - 1) / p.Item)
	case Halving: // each pair's parts once in each direction of both phases
		for p.Me = range p.Hosts {
			c := p.Begin()
			for k := range c.levels() {
				for _, whose := range []int{c.rank ^ 1<<k, c.rank} { // what it sends in the first phase, and in the second
					if lo, hi := c.kept(whose, k+1); c.rank >= 0 {
						n += (hi - lo + p.Item - 1) / p.Item
					}
				}
			}
			if p.Me < 2*c.fold {
				n += c.pipe.items
			}
		}
	case Scatter: // what each host but the root lacks: first a run of parts from its own on, then one in each round
		part := p.Begin().part
		run := func(lo, hi int) {
			n += max(0, min(hi*part, p.Count)-lo*part+p.Item-1) / p.Item
		}
		for h := 1; h < p.Hosts; h++ {
			has := 1
			for h%(2*has) == 0 {
				has *= 2
			}
			has = min(has, p.Hosts-h)
			run(h, h+has)
			for ahead := 1; ahead < p.Hosts; ahead *= 2 {
				if lo, hi := h+max(ahead, has), h+min(2*ahead, p.Hosts); lo < hi {
					run(min(lo, p.Hosts), min(hi, p.Hosts))
					run(max(lo, p.Hosts)-p.Hosts, max(hi, p.Hosts)-p.Hosts)
				}
			}
		}
	case GatherDoubling, ScatterHalving, GatherTree, ScatterTree:
		n = p.messagesOfParts()
	case Chain, Tree, ToTree, ToChain:
		n = (p.Hosts - 1) * ((p.Count + p.Item - 1) / p.Item)
	}
	return n
}

func (p Plan) messagesOfParts() (n int) {
	items := func(lo, hi int) int { return (p.Begins[hi] - p.Begins[lo] + p.Item - 1) / p.Item }
	switch pairs := p.Hosts&(p.Hosts-1) == 0; {
	case p.Way == GatherTree || p.Way == ScatterTree: // once for each host but the root
		for p.Me = range p.Hosts {
			if lo, hi := p.below(); lo > 0 {
				n += items(lo, hi)
			}
		}
	case pairs: // each run of 1, 2, 4 and so on parts to as many hosts
		for run := 1; run < p.Hosts; run *= 2 {
			for lo := 0; lo < p.Hosts; lo += run {
				n += run * items(lo, lo+run)
			}
		}
	default: // to each host what is 1, 2 to 3, 4 to 7 and so on hosts ahead, in two if it goes on at part 0
		for h := range p.Hosts {
			for ahead := 1; ahead < p.Hosts; ahead *= 2 {
				lo, hi := h+ahead, h+min(2*ahead, p.Hosts)
				n += items(min(lo, p.Hosts), min(hi, p.Hosts)) + items(max(lo-p.Hosts, 0), max(hi-p.Hosts, 0))
			}
		}
	}
	return n
}

// begins is where parts of so many elements begin.
func begins(parts ...int) []int {
	all := []int{0}
	for i, n := range parts {
		all = append(all, all[i]+n)
	}
	return all
}

// TestSchedules: for any number of hosts and elements, whatever comes first, all hosts end with the same: everything
// exactly once. Nothing is read or written that is still, or not yet, needed.
func TestSchedules(t *testing.T) {
	testkit.SkipRace(t)
	r := testkit.Random(t)
	last := 130
	if testing.Short() {
		last = 33
	}
	for hosts := 1; hosts <= last; hosts++ {
		if hosts > 33 && !testkit.Full() && r.IntN(4) > 0 {
			continue
		}
		for way := Ring; way < Pairwise; way++ {
			counts := []int{0, 1, hosts - 1, hosts, hosts + 1, 1 + r.IntN(12*hosts)}
			if hosts > 20 {
				counts = []int{1 + r.IntN(3*hosts)}
			}
			for _, count := range counts {
				p := Plan{Way: way, Hosts: hosts, Root: r.IntN(hosts), Count: count, Item: 1 + r.IntN(5), Line: 1 + r.IntN(3)}
				if slices.Contains(Reducing, way) {
					p.Root = 0
				}
				if way == Doubling {
					p.Count = min(p.Count, 40)
				}
				s := newSim(t, r, p, nil, r.IntN(2) == 0)
				s.run()
				if hosts == 1 { // the host has everything
					require.Zero(t, s.sent)
					continue
				}
				s.check()
				want := 0
				if p.Count > 0 {
					want = p.messages()
				}
				require.Equal(t, want, s.sent, "%+v", p)
			}
		}
	}
}

// TestPairwise: the same for what goes straight from each host to each, in all collectives that do so. No send waits for a
// receive.
func TestPairwise(t *testing.T) {
	testkit.SkipRace(t)
	r := testkit.Random(t)
	last := 130
	if testing.Short() {
		last = 33
	}
	const patterns = 5
	for hosts := 1; hosts <= last; hosts++ {
		if hosts > 33 && !testkit.Full() && r.IntN(4) > 0 {
			continue
		}
		most, some := 24, r.Perm(patterns)
		if hosts > 20 {
			most, some = 5, some[:1]
		}
		random := func() int { return max(0, r.IntN(most+most/4)-most/4) } // a fifth are 0
		for _, pattern := range some {
			root, part, x := r.IntN(hosts), make([]int, hosts), make(pairs, hosts)
			for h := range part {
				part[h] = random()
			}
			for from := range x {
				for to := range hosts {
					n := 0
					switch pattern {
					case 0: // all-gather
						n = part[from]
					case 1: // all-to-all
						n = random()
					case 2: // gather
						if to == root {
							n = part[from]
						}
					case 3: // scatter
						if from == root {
							n = part[to]
						}
					case 4: // reduce-scatter
						n = part[to]
					}
					x[from] = append(x[from], n)
				}
			}
			p := Plan{Way: Pairwise, Hosts: hosts, Item: 1 + r.IntN(5), Reduces: pattern == 4}
			s := newSim(t, r, p, x, r.IntN(2) == 0)
			s.run()
			if hosts > 1 {
				s.check()
			}
			require.Equal(t, x.messages(p.Item), s.sent, "%+v: %v", p, x)
			for me := range hosts {
				p, receives := x.plan(p, me), false
				for c, k := p.Begin(), (Step{}); c.Next(&k); {
					if receives = receives || k.Op != Send; receives && k.Op == Send {
						t.Fatalf("%+v: %+v waits for a receive", p, k)
					}
				}
			}
		}
	}
}

// TestParts: the same where each host has a part, of which some or all may be empty.
func TestParts(t *testing.T) {
	testkit.SkipRace(t)
	r := testkit.Random(t)
	last := 130
	if testing.Short() {
		last = 33
	}
	for hosts := 1; hosts <= last; hosts++ {
		for way := GatherDoubling; way <= ScatterTree; way++ {
			if way == ScatterHalving && hosts&(hosts-1) != 0 {
				continue
			}
			some, most, item := r.Perm(4), 24, 1+r.IntN(5) // how parts are drawn
			if hosts > 20 {
				some, most, item = some[:2], 4, 1+r.IntN(hosts)
			}
			for _, pattern := range some {
				parts := make([]int, hosts)
				for i := range parts {
					switch pattern {
					case 1: // of one host
						if i == hosts/2 {
							parts[i] = 1 + r.IntN(most)
						}
					case 2: // of all
						parts[i] = 1 + r.IntN(most)
					case 3: // of some
						parts[i] = max(0, r.IntN(2*most)-most)
					}
				}
				r.Shuffle(hosts, func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
				p := Plan{Way: way, Hosts: hosts, Item: item, Begins: begins(parts...)}
				if way == GatherTree || way == ScatterTree {
					p.Root = r.IntN(hosts)
				}
				for h := range hosts {
					require.Equal(t, h, p.HostOf(p.PartOf(h)), "%+v", p)
					require.Equal(t, h, p.PartOf(p.HostOf(h)), "%+v", p)
				}
				s := newSim(t, r, p, nil, r.IntN(2) == 0)
				s.run()
				if hosts > 1 { // or the host has everything
					s.check()
				}
				require.Equal(t, p.messages(), s.sent, "%+v", p)
			}
		}
	}
}

// The ways with few steps, whole.
func TestWaysOf4096(t *testing.T) {
	testkit.SkipRace(t)
	r := testkit.Random(t)
	for _, p := range []Plan{{Way: Doubling, Hosts: 512}, {Way: Doubling, Hosts: 1000}, {Way: Doubling, Hosts: 4095}, {Way: Doubling, Hosts: 4096},
		{Way: Tree, Hosts: 4095, Root: 1000}, {Way: Tree, Hosts: 4096}, {Way: ToTree, Hosts: 4095, Root: 1000, Count: 6},
		{Way: ToTree, Hosts: 4096}, {Way: Halving, Hosts: 1000, Count: 3}, {Way: Halving, Hosts: 4096, Count: 2},
		{Way: Scatter, Hosts: 1000, Root: 999, Count: 1000, Item: 300}, {Way: Scatter, Hosts: 4095, Root: 1000, Count: 3}, {Way: Scatter, Hosts: 4096, Count: 2}} {
		p.Count, p.Item, p.Line = max(p.Count, 1), max(p.Item, 1), 1
		s := newSim(t, r, p, nil, true)
		s.run()
		s.check()
		require.Equal(t, p.messages(), s.sent)
	}
	for _, p := range []Plan{{Way: GatherDoubling, Hosts: 4095}, {Way: GatherDoubling, Hosts: 4096}, {Way: ScatterHalving, Hosts: 4096},
		{Way: GatherTree, Hosts: 4095, Root: 1000}, {Way: GatherTree, Hosts: 4096}, {Way: ScatterTree, Hosts: 4095, Root: 1000},
		{Way: ScatterTree, Hosts: 4096}} {
		parts := make([]int, p.Hosts)
		for range 2 {
			parts[r.IntN(p.Hosts)]++
		}
		p.Begins, p.Item = begins(parts...), 1+r.IntN(2)
		s := newSim(t, r, p, nil, true)
		s.run()
		s.check()
		require.Equal(t, p.messages(), s.sent)
	}
}

// TestRounds: how many hosts a host sends to, and receives how much from, is what costs count, if parts are as long: 12 rounds
// for 4096 hosts. In a tree it is what the root sends or receives, with its own part. What is short takes fewest messages.
func TestRounds(t *testing.T) {
	for _, hosts := range []int{2, 3, 5, 8, 12, 64, 4095, 4096} {
		p := Plan{Hosts: hosts, Item: hosts, Root: hosts / 2, Begins: begins(slices.Repeat([]int{1}, hosts)...)}
		rounds := bits.Len(uint(hosts - 1))
		for p.Way = GatherDoubling; p.Way <= ScatterTree; p.Way++ {
			if p.Way == ScatterHalving && hosts != 1<<rounds {
				continue
			}
			terms := Default.Terms(p.Way, hosts, hosts) // elements of a byte
			require.Equal(t, float64(rounds), terms.Messages)
			for _, me := range []int{0, 1, hosts / 2, hosts - 1} {
				peers, n := [2]map[int]bool{{}, {}}, [2]int{} // of sends, and of receives
				p.Me = me
				for c, k := p.Begin(), (Step{}); c.Next(&k); {
					to := 0
					if k.Op != Send {
						to = 1
					}
					peers[to][k.Peer] = true
					n[to] += k.N
				}
				switch p.Way {
				case GatherDoubling, ScatterHalving:
					require.Equal(t, [2]int{rounds, rounds}, [2]int{len(peers[0]), len(peers[1])}, "%+v", p)
					require.Equal(t, [2]int{hosts - 1, hosts - 1}, n, "%+v", p)
					require.InEpsilon(t, float64(hosts-1), terms.Swapped, 1e-9)
				case GatherTree, ScatterTree:
					if at := int(p.Way - GatherTree); me == p.Root {
						require.Len(t, peers[1-at], rounds, "%+v", p)
						require.Equal(t, hosts-1, n[1-at], "%+v", p)
						require.Zero(t, n[at], "%+v", p)
					}
					require.Less(t, max(n[0], n[1]), hosts, "%+v", p)
					require.InEpsilon(t, float64(hosts-1), terms.Sent, 1e-9)
				}
			}
			straight := Pairwise
			if p.Way >= GatherTree {
				straight = Linear
			}
			if hosts > 5 { // for few bytes rounds are best, for many going straight
				require.Equal(t, p.Way, Default.Best([]Way{straight, p.Way}, hosts, 1<<10))
				require.Equal(t, straight, Default.Best([]Way{straight, p.Way}, hosts, 1<<40))
			}
		}
	}
}

// TestPipelines: what holds for all hosts of a ring and of chains if it holds for two neighbours: each receives what the
// other sends, in the same order; and nothing is sent on before it has come, but soon after. A host that combines and sends
// on waits for its memory, and for nothing else.
func TestPipelines(t *testing.T) {
	for _, hosts := range []int{2, 3, 64, 4095, 4096} {
		for _, k := range []struct{ count, item, root int }{{1, 1, 0}, {hosts, 1, 1}, {3 * hosts, 2, hosts - 1}, {20 * hosts, 3, hosts / 2}} {
			for _, way := range []Way{Ring, Chain, ToChain} {
				from, to := before, after
				if way == ToChain {
					from, to = after, before
				}
				if way == Chain {
					k.count /= max(1, hosts/64)
				}
				p := Plan{Way: way, Hosts: hosts, Root: k.root, Count: max(k.count, 1), Item: k.item, Line: 1}
				for _, me := range []int{0, 1, hosts / 2, hosts - 1, before(k.root, hosts), after(k.root, hosts)} {
					var sent, got []Step
					p.Me = me
					c := p.Begin()
					for have, k := 0, (Step{}); c.Next(&k); {
						if k.Op != Send {
							require.Equal(t, from(me, hosts), k.Peer)
							have++
							if way == ToChain && me != p.Root {
								require.Equal(t, max(0, have-Slots), k.After)
							} else {
								require.Zero(t, k.After)
							}
							continue
						}
						require.Equal(t, to(me, hosts), k.Peer)
						sent = append(sent, k)
						if way == Chain && me != p.Root || way == ToChain && me != before(p.Root, hosts) {
							require.Equal(t, have, len(sent))
						}
					}
					p.Me = to(me, hosts)
					for c, k := p.Begin(), (Step{}); c.Next(&k); {
						if k.Op != Send {
							got = append(got, k)
						}
					}
					require.Equal(t, len(sent), len(got), "%+v", p)
					for i := range sent {
						require.Equal(t, [2]int{sent[i].Off, sent[i].N}, [2]int{got[i].Off, got[i].N}, "%+v, item %d", p, i)
					}
				}
			}
		}
	}
}

func TestNoAllocs(t *testing.T) {
	testkit.SkipRace(t)
	for way := Ring; way <= ScatterTree; way++ {
		p, n := Plan{Way: way, Hosts: 5, Me: 3, Count: 100, Item: 7, Line: 16}, 0
		if way == Pairwise || way == Linear {
			p.Sends, p.Receives = []int{0, 1, 20, 0, 30}, []int{10, 0, 40, 0, 5}
		}
		if way > Linear {
			p.Begins = begins(10, 0, 40, 30, 20)
		}
		if way == ScatterHalving {
			p.Hosts = 4
		}
		require.Zero(t, testing.AllocsPerRun(10, func() {
			var k Step
			for c := p.Begin(); c.Next(&k); {
				n += k.N
			}
		}), way.String())
		require.NotZero(t, n)
	}
}

// transcript is a host's steps: > and < for to and from which host, where and how many elements, ! if they are final, and @
// for how many sends must have left before.
func (p Plan) transcript() string {
	var steps []string
	for c, k := p.Begin(), (Step{}); c.Next(&k); {
		step := fmt.Sprintf("<%d %d+%d", k.Peer, k.Off, k.N)
		if k.Op == Send {
			step = ">" + step[1:]
		}
		if k.Last {
			step += "!"
		}
		if k.After > 0 {
			step += fmt.Sprintf("@%d", k.After)
		}
		steps = append(steps, step)
	}
	return strings.Join(steps, " ")
}

// TestScatter: the steps of a scatter, whole. Host 2 is the root, so parts of 4, 4, 4, 2 and no elements are those of hosts 2,
// 3, 4, 0 and 1.
func TestScatter(t *testing.T) {
	for me, want := range []string{
		"<4 12+2! >3 12+2 <2 0+8! >1 12+2 <4 8+4!",
		"<2 0+4! >4 0+4 <3 4+8! <0 12+2!",
		">4 8+6! >3 4+4! >1 0+4! >0 0+8 >3 0+4",
		"<2 4+4! <4 8+4! >1 4+8 <0 12+2! >4 4+4 <2 0+4!",
		"<2 8+6! >0 12+2 >3 8+4 <1 0+4! >0 8+4 <3 4+4!",
	} {
		p := Plan{Way: Scatter, Hosts: 5, Root: 2, Me: me, Count: 14, Item: 8, Line: 2}
		require.Equal(t, want, p.transcript(), "host %d", me)
	}
}

// TestToTree: the steps of a reduce by a tree, whole. Hosts 3, 4 and 1 send to host 2, the root, and host 0 to host 4, which
// has memory for four items.
func TestToTree(t *testing.T) {
	for me, want := range []string{
		">4 0+2 >4 2+2 >4 4+2 >4 6+2 >4 8+2 >4 10+1",
		">2 0+2 >2 2+2 >2 4+2 >2 6+2 >2 8+2 >2 10+1",
		"<3 0+2 <4 0+2 <1 0+2! <3 2+2 <4 2+2 <1 2+2! <3 4+2 <4 4+2 <1 4+2! <3 6+2 <4 6+2 <1 6+2! <3 8+2 <4 8+2 <1 8+2! " +
			"<3 10+1 <4 10+1 <1 10+1!",
		">2 0+2 >2 2+2 >2 4+2 >2 6+2 >2 8+2 >2 10+1",
		"<0 0+2 >2 0+2 <0 2+2 >2 2+2 <0 4+2 >2 4+2 <0 6+2 >2 6+2 <0 8+2@1 >2 8+2 <0 10+1@2 >2 10+1",
	} {
		p := Plan{Way: ToTree, Hosts: 5, Root: 2, Me: me, Count: 11, Item: 2}
		require.Equal(t, want, p.transcript(), "host %d", me)
	}
}

// TestAllGather: the steps of a pairwise all-gather, whole. Hosts have parts of 3, 2, 0 and 5 elements.
func TestAllGather(t *testing.T) {
	for me, want := range []string{
		">1 0+2 >2 0+2 >3 0+2 >1 2+1 >2 2+1 >3 2+1 <3 0+2! <1 0+2! <3 2+2! <3 4+1!",
		">2 0+2 >3 0+2 >0 0+2 <0 0+2! <3 0+2! <0 2+1! <3 2+2! <3 4+1!",
		"<1 0+2! <0 0+2! <3 0+2! <0 2+1! <3 2+2! <3 4+1!",
		">0 0+2 >1 0+2 >2 0+2 >0 2+2 >1 2+2 >2 2+2 >0 4+1 >1 4+1 >2 4+1 <1 0+2! <0 0+2! <0 2+1!",
	} {
		n := []int{3, 2, 0, 5}
		p := Plan{Way: Pairwise, Hosts: 4, Me: me, Item: 2, Sends: slices.Repeat(n[me:me+1], 4), Receives: n}
		require.Equal(t, want, p.transcript(), "host %d", me)
	}
}

// transcribed requires hosts' steps, whole, of a plan with parts. Steps are of four elements at most.
func transcribed(t *testing.T, p Plan, hosts ...string) {
	t.Helper()
	p.Hosts, p.Item = len(hosts), 4
	for me, want := range hosts {
		p.Me = me
		require.Equal(t, want, p.transcript(), "host %d", me)
	}
}

// TestGatherDoubling: the steps of all-gathers, whole. Hosts have parts of 3, 2, 0, 5 and 1 elements, and the first four parts
// of 3, 2, 0 and 5.
func TestGatherDoubling(t *testing.T) {
	transcribed(t, Plan{Way: GatherDoubling, Begins: begins(3, 2, 0, 5, 1)},
		">4 0+3 <1 3+2! >3 0+4 >3 4+1 <2 5+4! <2 9+1! >1 0+3 <4 10+1!",
		">0 3+2 >4 3+2 <3 5+4! <3 9+2! >2 3+2 <0 0+3!",
		"<3 5+4! <3 9+1! >0 5+4 >0 9+1 <4 10+1! <4 0+3! <1 3+2!",
		">2 5+4 >2 9+1 <4 10+1! >1 5+4 >1 9+2 <0 0+4! <0 4+1! >4 5+4 >4 9+1",
		">3 10+1 <0 0+3! >2 10+1 >2 0+3 <1 3+2! >0 10+1 <3 5+4! <3 9+1!")
	transcribed(t, Plan{Way: GatherDoubling, Begins: begins(3, 2, 0, 5)},
		">1 0+3 <1 3+2! >2 0+4 >2 4+1 <2 5+4! <2 9+1!",
		">0 3+2 <0 0+3! >3 0+4 >3 4+1 <3 5+4! <3 9+1!",
		"<3 5+4! <3 9+1! >0 5+4 >0 9+1 <0 0+4! <0 4+1!",
		">2 5+4 >2 9+1 >1 5+4 >1 9+1 <1 0+4! <1 4+1!")
}

// TestScatterHalving: the steps of a reduce-scatter, whole. Hosts 0, 2, 1 and 3 get parts of 3, 2, 0 and 5 elements.
func TestScatterHalving(t *testing.T) {
	transcribed(t, Plan{Way: ScatterHalving, Begins: begins(3, 2, 0, 5)},
		">1 5+4 >1 9+1 <1 0+4 <1 4+1 >2 3+2 <2 0+3!",
		">0 0+4 >0 4+1 <0 5+4 <0 9+1 >3 5+4 >3 9+1",
		">3 5+4 >3 9+1 <3 0+4 <3 4+1 >0 0+3 <0 3+2!",
		">2 0+4 >2 4+1 <2 5+4 <2 9+1 <1 5+4! <1 9+1!")
}

// TestTreesOfParts: the steps of a gather and of a scatter, whole. Host 2 is the root, so parts of 3, 2, 1, 4 and 1 elements are
// those of hosts 2, 3, 4, 0 and 1. Host 4 passes on what is host 0's.
func TestTreesOfParts(t *testing.T) {
	transcribed(t, Plan{Way: GatherTree, Root: 2, Begins: begins(3, 2, 1, 4, 1)},
		">4 6+4",
		">2 10+1",
		"<3 3+2! <4 5+4! <4 9+1! <1 10+1!",
		">2 3+2",
		"<0 6+4! >2 5+4 >2 9+1")
	transcribed(t, Plan{Way: ScatterTree, Root: 2, Begins: begins(3, 2, 1, 4, 1)},
		"<4 6+4!",
		"<2 10+1!",
		">1 10+1 >4 5+4 >4 9+1 >3 3+2",
		"<2 3+2!",
		"<2 5+4! <2 9+1! >0 6+4")
}
