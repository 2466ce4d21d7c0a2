package schedule

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// value is what an element holds: whose data are combined in it, and a hash of how, by which two values that were
// combined differently differ.
type value struct {
	of   Span
	hash uint64
}

// host is one host that does its steps.
type host struct {
	p                   Plan
	sends, receives     side
	grants              Cursor
	source, destination []value
	in                  []*message // sent to this host, by the order of its receives from each
	granted, taken      map[int]int
	sent                int
	landing             int    // granted places of Reduce that have not been taken
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
	// window is how many receives from one host, and how many of Reduce from all, are granted ahead.
	window int
	read   []*message // not read yet
	sent   int
}

func newSim(t *testing.T, r *rand.Rand, p Plan, inPlace bool) *sim {
	s := &sim{t: t, r: r, window: 1 + r.IntN(8)}
	for me := range p.Hosts {
		p.Me = me
		h := &host{p: p, grants: p.Begin(), granted: map[int]int{}, taken: map[int]int{}}
		h.sends.c, h.receives.c = p.Begin(), p.Begin()
		h.sends.next(true)
		h.receives.next(false)
		for range p.Count {
			h.source = append(h.source, value{Span{me, 1}, uint64(me + 1)})
			h.destination = append(h.destination, value{})
		}
		h.final = make([]int, p.Count)
		if inPlace {
			h.destination = h.source
		}
		s.hosts = append(s.hosts, h)
	}
	return s
}

// memory is where a step's own data are.
func (h *host) memory(k *Step) []value {
	if k.Source {
		return h.source[k.Off:][:k.N]
	}
	return h.destination[k.Off:][:k.N]
}

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
			if h.granted[k.Peer]-h.taken[k.Peer] == window || k.Op == Reduce && h.landing == window {
				return
			}
			h.granted[k.Peer]++
			if k.Op == Reduce {
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
			h.final[k.Off+i]++
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
		require.Positive(s.t, h.sends.k.N)
		return s.send(h, &h.sends.k)
	}
	if s.r.IntN(2) == 0 && send() {
		return true
	}
	if d := &h.receives; !d.over && h.sent >= d.k.After {
		require.Positive(s.t, d.k.N)
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
	require.Equal(s.t, [2]int{want.Off, want.N}, [2]int{k.Off, k.N}, "%+v sends %+v, and host %d receives %+v", h.p, *k, to.p.Me, *want)
	m := &message{from: h, to: to, step: *k, nth: h.sent}
	if s.r.IntN(2) == 0 {
		m.load()
	} else {
		s.read = append(s.read, m)
	}
	to.in = append(to.in, m)
	if want.Op == Copy && s.r.IntN(2) == 0 { // it lands before the host comes to its step
		m.load()
		copy(to.destination[k.Off:], m.data)
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
	if k.Op == Copy {
		copy(h.destination[k.Off:], m.data)
	} else {
		h.landing--
		own := h.memory(k)
		for i, in := range m.data {
			s.require(in.of == k.In && own[i].of == k.Own, h, k, in, own[i])
			h.destination[k.Off+i] = s.combine(h, k, in, own[i])
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
	out := value{Span{a.of.First, a.of.N + b.of.N}, bits.RotateLeft64(a.hash*0x9e3779b97f4a7c15, 17) ^ b.hash*0xc2b2ae3d27d4eb4f}
	s.require((a.of.First+a.of.N)%n == b.of.First && out.of.N <= n, h, k, in, own) // neighbours: no host's data twice
	s.require(k.Last == (out.of.N == n), h, k, in, own)
	return out
}

// check requires that all hosts have everything, combined in the same way, and have heard once of each element that it
// is final.
func (s *sim) check() {
	for _, h := range s.hosts {
		for i, n := range h.final {
			require.Equal(s.t, 1, n, "%+v, element %d", h.p, i)
		}
		if want := h.p.Count; h.p.Way.sends() {
			if h.p.Me == h.p.Root {
				want = 0
			}
			require.Equal(s.t, want, h.copied, "%+v", h.p)
			if want == 0 { // its source has everything
				continue
			}
		}
		for i, v := range h.destination {
			if h.p.Way.sends() {
				require.Equal(s.t, uint64(h.p.Root+1), v.hash, "%+v, element %d", h.p, i)
			} else {
				require.Equal(s.t, h.p.Hosts, v.of.N, "%+v, element %d", h.p, i)
				require.Equal(s.t, s.hosts[0].destination[i].hash, v.hash, "%+v, element %d", h.p, i)
			}
		}
	}
}

// sends says that a way is one of broadcasts.
func (w Way) sends() bool { return w >= Chain }

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
	case Chain, Tree:
		n = (p.Hosts - 1) * ((p.Count + p.Item - 1) / p.Item)
	}
	return n
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
		for way := Ring; way <= Scatter; way++ {
			counts := []int{0, 1, hosts - 1, hosts, hosts + 1, 1 + r.IntN(12*hosts)}
			if hosts > 20 {
				counts = []int{1 + r.IntN(3*hosts)}
			}
			for _, count := range counts {
				p := Plan{Way: way, Hosts: hosts, Root: r.IntN(hosts), Count: count, Item: 1 + r.IntN(5), Line: 1 + r.IntN(3)}
				reduces := !way.sends()
				if reduces {
					p.Root = 0
				}
				if way == Doubling {
					p.Count = min(p.Count, 40)
				}
				s := newSim(t, r, p, r.IntN(2) == 0)
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

// The ways with few steps, whole.
func TestWaysOf4096(t *testing.T) {
	testkit.SkipRace(t)
	r := testkit.Random(t)
	for _, p := range []Plan{{Way: Doubling, Hosts: 512}, {Way: Doubling, Hosts: 1000}, {Way: Doubling, Hosts: 4095}, {Way: Doubling, Hosts: 4096},
		{Way: Tree, Hosts: 4095, Root: 1000}, {Way: Tree, Hosts: 4096}, {Way: Halving, Hosts: 1000, Count: 3}, {Way: Halving, Hosts: 4096, Count: 2},
		{Way: Scatter, Hosts: 1000, Root: 999, Count: 1000, Item: 300}, {Way: Scatter, Hosts: 4095, Root: 1000, Count: 3}, {Way: Scatter, Hosts: 4096, Count: 2}} {
		p.Count, p.Item, p.Line = max(p.Count, 1), max(p.Item, 1), 1
		s := newSim(t, r, p, true)
		s.run()
		s.check()
		require.Equal(t, p.messages(), s.sent)
	}
}

// TestPipelines: what holds for all hosts of a ring and a chain if it holds for two neighbours: each receives what the
// other sends, in the same order; and nothing is sent on before it has come, but soon after.
func TestPipelines(t *testing.T) {
	for _, hosts := range []int{2, 3, 64, 4095, 4096} {
		for _, k := range []struct{ count, item, root int }{{1, 1, 0}, {hosts, 1, 1}, {3 * hosts, 2, hosts - 1}, {20 * hosts, 3, hosts / 2}} {
			for _, way := range []Way{Ring, Chain} {
				if way == Chain {
					k.count /= max(1, hosts/64)
				}
				p := Plan{Way: way, Hosts: hosts, Root: k.root, Count: max(k.count, 1), Item: k.item, Line: 1}
				for _, me := range []int{0, 1, hosts / 2, hosts - 1, (k.root + hosts - 1) % hosts} {
					var sent, got []Step
					p.Me = me
					c := p.Begin()
					for have, k := 0, (Step{}); c.Next(&k); {
						if k.Op != Send {
							require.Equal(t, before(me, hosts), k.Peer)
							have++
							continue
						}
						require.Equal(t, after(me, hosts), k.Peer)
						sent = append(sent, k)
						if way == Chain && me != p.Root {
							require.Equal(t, have, len(sent))
						}
					}
					p.Me = after(me, hosts)
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
	for way := Ring; way <= Scatter; way++ {
		p, n := Plan{Way: way, Hosts: 5, Me: 3, Count: 100, Item: 7, Line: 16}, 0
		require.Zero(t, testing.AllocsPerRun(10, func() {
			var k Step
			for c := p.Begin(); c.Next(&k); {
				n += k.N
			}
		}), way.String())
		require.NotZero(t, n)
	}
}

// TestScatter: the steps of a scatter, whole: > and < for to and from which host, where and how many elements, ! if they are
// final. Host 2 is the root, so parts of 4, 4, 4, 2 and no elements are those of hosts 2, 3, 4, 0 and 1.
func TestScatter(t *testing.T) {
	for me, want := range []string{
		"<4 12+2! >3 12+2 <2 0+8! >1 12+2 <4 8+4!",
		"<2 0+4! >4 0+4 <3 4+8! <0 12+2!",
		">4 8+6! >3 4+4! >1 0+4! >0 0+8 >3 0+4",
		"<2 4+4! <4 8+4! >1 4+8 <0 12+2! >4 4+4 <2 0+4!",
		"<2 8+6! >0 12+2 >3 8+4 <1 0+4! >0 8+4 <3 4+4!",
	} {
		var got []string
		p := Plan{Way: Scatter, Hosts: 5, Root: 2, Me: me, Count: 14, Item: 8, Line: 2}
		for c, k := p.Begin(), (Step{}); c.Next(&k); {
			step := fmt.Sprintf("<%d %d+%d", k.Peer, k.Off, k.N)
			if k.Op == Send {
				step = ">" + step[1:]
			}
			if k.Last {
				step += "!"
			}
			got = append(got, step)
		}
		require.Equal(t, want, strings.Join(got, " "), "host %d", me)
	}
}
