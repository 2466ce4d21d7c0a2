// Package schedule says what each host does in a collective between hosts: which elements it sends to which host, which
// it receives, and what it does with them. A Plan is a value that is the same on all hosts but for Me, and its steps are
// a pure function of it: nothing is negotiated, and nothing is kept.
//
// A host does the steps that receive in their order, and those that send. A step that sends waits for those before it that
// receive. A step that receives waits for those that send only as far as it says (After): otherwise hosts whose
// neighbours have no room yet might all wait for each other. A host may let others send what later steps receive at any
// time before: what a Copy receives comes only after nobody needs any more what was in its place. Steps that receive from
// one host receive what that host's steps send, in the same order.
package schedule

import "math/bits"

// Way is how the data travels.
type Way uint8

// The ways.
const (
	Ring           Way = iota + 1 // all-reduce
	Doubling                      // all-reduce
	Halving                       // all-reduce
	Chain                         // broadcast
	Tree                          // broadcast
	Scatter                       // broadcast
	ToTree                        // reduce
	ToChain                       // reduce
	Pairwise                      // all others
	Linear                        // gather, scatter: pairwise with the root alone
	GatherDoubling                // all-gather
	ScatterHalving                // reduce-scatter, of a number of hosts that is a power of two
	GatherTree                    // gather
	ScatterTree                   // scatter

	// The ways of small data, which travel with the messages by which the hosts agree, and have no steps.
	Folded // each message has one combination of what its sender has heard
	Shared // each message has what its receiver lacks
	Routed // each message has the blocks that its receiver needs, or passes on
)

// Reducing, Sending and ToRoot are the ways of all-reduces, of broadcasts and of reduces.
var Reducing, Sending, ToRoot = []Way{Doubling, Halving, Ring}, []Way{Tree, Scatter, Chain}, []Way{ToTree, ToChain}

// String is the way's name, as LastOp has it.
func (w Way) String() string {
	return [...]string{"", "ring", "doubling", "halving", "chain", "tree", "scatter", "tree", "chain", "pairwise", "pairwise",
		"doubling", "halving", "tree", "tree", "exchange", "exchange", "exchange"}[w]
}

// Plan is one collective.
type Plan struct {
	Way       Way
	Hosts, Me int
	Root      int // the root's host
	Count     int // elements; pairwise, if it reduces: of this host's result; otherwise not used
	Item      int // most elements of a step
	Line      int // ring, halving, scatter: parts begin at multiples of so many elements, so that they share no cache line

	// GatherDoubling, ScatterHalving, GatherTree, ScatterTree: each host has a part, and part i is elements Begins[i] to
	// Begins[i+1]. See PartOf.
	Begins []int

	// Pairwise: how many elements this host sends to each host, and receives from each. Offsets of steps count the elements
	// between the two hosts.
	Sends, Receives []int
	Reduces         bool // pairwise: combines all that it receives, Count from each host, and its own
}

// Slots is how many items a host has memory for that it combines and sends on, if it has no destination for them. Item i is
// in slot i%Slots.
const Slots = 4

// Op is what a step does.
type Op uint8

// The operations. The host's own data are in its source at first, see Step.Own, and then in its destination.
const (
	Send   Op = iota + 1
	Reduce    // receives, combines that with this host's own data, and leaves the result in the destination
	Copy      // receives into the destination
)

// Step is what a host does with elements Off to Off + N.
type Step struct {
	Op     Op
	Peer   int // to or from which host
	Off, N int
	// Source says that the host's own data are still in its source.
	Source bool

	// Reduce: In is the hosts whose data are received, and Own those whose data this host has.
	In, Own Span
	// OwnFirst says that this host's data are the first operand.
	OwnFirst bool
	// After is how many of the host's steps that send must have left before. The last of them sends the own data, which
	// the result replaces, unless the source is other memory; in a reduce, what is in the result's slot (see Slots).
	After int
	// Last says that the elements are final then: the result, which this host sends and receives no more in another form.
	Last bool
}

// Span is N hosts from First on. Host 0 follows the last one.
type Span struct{ First, N int }

// Cursor goes through a host's steps.
type Cursor struct {
	p    Plan
	at   int // in a numbering of the way's own
	pipe pipeline
	part int // ring, scatter: elements of a part
	fold int // doubling, halving: pairs of hosts that begin with one sending the other all its data
	rank int // doubling, halving: this host's number among those that go on, -1: not among them

	hop, item int  // halving, scatter, pairwise, and those with Begins
	more      bool // pairwise: some host had an item in this turn
}

// Begin returns a cursor before the first step.
func (p Plan) Begin() Cursor {
	c := Cursor{p: p}
	switch p.Way {
	case Ring, Scatter:
		c.part = roundUp((p.Count+p.Hosts-1)/p.Hosts, p.Line)
		c.pipe = pipeline{hops: 2*p.Hosts - 2, items: (c.part + p.Item - 1) / p.Item, skew: 1}
	case Doubling, Halving:
		items := (p.Count + p.Item - 1) / p.Item
		c.pipe = pipeline{hops: c.levels(), items: items, skew: items}
		c.fold = p.Hosts - 1<<c.levels()
		switch {
		case p.Me >= 2*c.fold:
			c.rank = p.Me - c.fold
		case p.Me%2 == 1:
			c.rank = p.Me / 2
		default:
			c.rank = -1
		}
	}
	return c
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// Next stores the next step in s. It returns false at the end.
func (c *Cursor) Next(s *Step) bool {
	if c.p.Hosts == 1 {
		return false
	}
	if c.p.Way == Pairwise || c.p.Way == Linear {
		return c.pairwise(s)
	}
	if c.p.Count == 0 && c.p.Begins == nil {
		return false
	}
	switch c.p.Way {
	case Ring:
		return c.ring(s)
	case Doubling:
		return c.doubling(s)
	case Halving:
		return c.halving(s)
	case GatherDoubling:
		return c.gatherDoubling(s)
	case ScatterHalving:
		return c.scatterHalving(s)
	case GatherTree:
		return c.gatherTree(s)
	case ScatterTree:
		return c.scatterTree(s)
	case Tree:
		return c.tree(s)
	case Scatter:
		return c.scatter(s)
	case ToTree:
		return c.toTree(s)
	case ToChain:
		return c.toChain(s)
	}
	return c.chain(s)
}

// mostLead is how many items a host sends before it takes the first: enough to keep the way to the next host busy.
const mostLead = 4

// pipeline is the order of steps in hops of several items each: what a host receives in one hop it sends in the next.
// Item i of hop h belongs to turn i + skew h. The turns follow each other, and in a turn the hops. So with a skew of 1
// what has been combined is sent on while the caches have it; with one of all items the hops follow each other.
type pipeline struct {
	hops, items, skew int // skew: up to items
	sends, receives   place
	ahead             int // how many more it has sent than received
}

// place is an item's place in a pipeline.
type place struct{ turn, hop int }

func (a place) before(b place) bool { return a.turn < b.turn || a.turn == b.turn && a.hop < b.hop }

// next returns the next step's hop and item. It is a send as soon as the host has what that sends, but for the limit
// on how far it runs ahead. At the end hop is -1.
func (p *pipeline) next() (hop, item int, sends bool) {
	s := &p.sends
	has := s.hop == 0 || place{s.turn - p.skew, s.hop - 1}.before(p.receives)
	at := &p.receives
	if sends = s.hop < p.hops && p.ahead < mostLead && has; sends {
		at = s
		p.ahead++
	} else {
		p.ahead--
	}
	if at.hop >= p.hops {
		return -1, 0, false
	}
	hop, item = at.hop, at.turn-p.skew*at.hop
	if at.hop++; at.hop == p.hops || at.turn < p.skew*at.hop {
		at.turn++
		at.hop = max(0, (at.turn-p.items+p.skew)/p.skew) // the first that has an item in this turn
	}
	return hop, item, sends
}

// ring is the all-reduce by a ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009): each host has a part of the elements, which in n-1 hops, from the host on, is reduced over all
// hosts, and in n-1 more is handed to all. In hop t a host sends the part of host me-t. Parts are cut into items, so that
// hops overlap.
//
// The place of a part's result is free when that comes: its partial result has been at all other hosts.
func (c *Cursor) ring(s *Step) bool {
	p := &c.p
	for {
		hop, item, sends := c.pipe.next()
		if hop < 0 {
			return false
		}
		part := p.Me - hop
		if !sends {
			part--
		}
		if part %= p.Hosts; part < 0 {
			part += p.Hosts
		}
		off := part*c.part + item*p.Item
		n := min(p.Item, (part+1)*c.part-off, p.Count-off)
		if n <= 0 {
			continue
		}
		switch {
		case sends:
			*s = Step{Op: Send, Peer: after(p.Me, p.Hosts), Off: off, N: n, Source: hop == 0}
		case hop < p.Hosts-1:
			*s = Step{Op: Reduce, Peer: before(p.Me, p.Hosts), Off: off, N: n, Source: true, In: Span{part, hop + 1},
				Own: Span{p.Me, 1}, Last: hop == p.Hosts-2}
		default:
			*s = Step{Op: Copy, Peer: before(p.Me, p.Hosts), Off: off, N: n, Last: true}
		}
		return true
	}
}

func after(h, hosts int) int {
	if h++; h == hosts {
		return 0
	}
	return h
}

func before(h, hosts int) int {
	if h == 0 {
		h = hosts
	}
	return h - 1
}

// levels is how often the hosts of doubling can be paired.
func (c *Cursor) levels() int { return bits.Len(uint(c.p.Hosts)) - 1 }

// doubling is the all-reduce by recursive doubling (Thakur, Rabenseifner and Gropp, "Optimization of collective
// communication operations in MPICH", 2005). If the hosts are no power of two, the first ones are folded: of each pair
// of neighbours, the first sends its data to the second, and gets the result from it. In round k the others exchange
// what they have with the one whose number differs in bit k. Each has the data of neighbouring hosts then, so both
// combine the same operands in the same order. Rounds are cut into items, so that they overlap.
func (c *Cursor) doubling(s *Step) bool {
	if c.rank < 0 {
		return c.folded(s)
	}
	before := c.stands()
	if c.at < before {
		return c.unfold(s)
	}
	if k, item, sends := c.pipe.next(); k >= 0 {
		other := c.rank ^ 1<<k
		*s = Step{Op: Send, Peer: c.last(other), Source: k == 0 && before == 0}
		if !sends {
			s.Op, s.In, s.Own = Reduce, c.block(other>>k, k), c.block(c.rank>>k, k)
			s.OwnFirst, s.After, s.Last = other > c.rank, k*c.pipe.items+item+1, k == c.levels()-1
		}
		return c.itemOf(s, item)
	}
	return c.giveBack(s)
}

// stands is how many items this host gets from the one that it stands for: 0 if there is none.
func (c *Cursor) stands() int {
	if c.p.Me < 2*c.fold {
		return c.pipe.items
	}
	return 0
}

// unfold receives from the host that this one stands for.
func (c *Cursor) unfold(s *Step) bool {
	c.at++
	*s = Step{Op: Reduce, Peer: c.p.Me - 1, Source: true, In: Span{c.p.Me - 1, 1}, Own: Span{c.p.Me, 1}}
	return c.itemOf(s, c.at-1)
}

// giveBack gives the host that this one stands for, if there is one, as many items as it got. It is the end.
func (c *Cursor) giveBack(s *Step) bool {
	at := c.at - c.stands()
	c.at++
	*s = Step{Op: Send, Peer: c.p.Me - 1}
	return at < c.stands() && c.itemOf(s, at)
}

// folded is the part of a host that another one stands for.
func (c *Cursor) folded(s *Step) bool {
	at := c.at
	c.at++
	if at < c.pipe.items {
		*s = Step{Op: Send, Peer: c.p.Me + 1, Source: true}
		return c.itemOf(s, at)
	}
	*s = Step{Op: Copy, Peer: c.p.Me + 1, Last: true}
	return at < 2*c.pipe.items && c.itemOf(s, at-c.pipe.items)
}

// itemOf makes s the step of an item.
func (c *Cursor) itemOf(s *Step, item int) bool {
	s.Off = item * c.p.Item
	s.N = min(c.p.Item, c.p.Count-s.Off)
	return true
}

// first and last are the hosts of a rank: two if it is a folded pair.
func (c *Cursor) first(rank int) int { return rank + min(rank, c.fold) }
func (c *Cursor) last(rank int) int  { return c.first(rank+1) - 1 }

// block is the hosts of block b of 2^k ranks.
func (c *Cursor) block(b, k int) Span {
	first := c.first(b << k)
	return Span{first, c.first((b+1)<<k) - first}
}

// halving is the all-reduce by recursive halving and doubling (Rabenseifner, "Optimization of collective reduction
// operations", 2004). Pairs are those of doubling, but in round k a host sends only half of the part that it has, and
// keeps the other half, with both hosts' data combined. The last parts are final, and the same pairs, in the other order,
// give each other what they have until all have everything. Each round sends its items before it receives those of the
// peer.
func (c *Cursor) halving(s *Step) bool {
	if c.rank < 0 {
		return c.folded(s)
	}
	if c.at < c.stands() {
		return c.unfold(s)
	}
	p, levels := &c.p, c.levels()
	for ; c.hop < 4*levels; c.hop, c.item = c.hop+1, 0 { // for each round a hop that sends, and one that receives
		round, sends := c.hop/2, c.hop%2 == 0
		k, gathers := round, round >= levels
		if gathers {
			k = 2*levels - 1 - round
		}
		other := c.rank ^ 1<<k
		whose := other // the part that goes to the peer, or that this host keeps or gets
		if sends == gathers {
			whose = c.rank
		}
		lo, hi := c.kept(whose, k+1)
		off := lo + c.item*p.Item
		if off >= hi {
			continue
		}
		c.item++
		*s = Step{Op: Send, Peer: c.last(other), Off: off, N: min(p.Item, hi-off), Source: k == 0 && !gathers && c.stands() == 0}
		switch {
		case sends:
		case gathers:
			s.Op, s.Last = Copy, true
		default:
			s.Op, s.In, s.Own = Reduce, c.block(other>>k, k), c.block(c.rank>>k, k)
			s.OwnFirst, s.Last = other > c.rank, k == levels-1
		}
		return true
	}
	return c.giveBack(s)
}

// kept is the part that a rank of halving has after k rounds.
func (c *Cursor) kept(rank, k int) (lo, hi int) {
	hi = c.p.Count
	for i := range k {
		if half := min(lo+roundUp((hi-lo+1)/2, c.p.Line), hi); rank>>i&1 == 0 {
			hi = half
		} else {
			lo = half
		}
	}
	return lo, hi
}

// tree is the broadcast by a binomial tree, item by item: a host that is h behind the root gets the data from the host
// that is h without its lowest bit behind it, and sends it to h + 1, h + 2, h + 4 and so on, below that bit, the one with
// most hosts to pass it on to first.
func (c *Cursor) tree(s *Step) bool {
	p := &c.p
	h := p.Me - p.Root
	if h < 0 {
		h += p.Hosts
	}
	children := 0
	for low := h & -h; (h == 0 || 1<<children < low) && h+1<<children < p.Hosts; children++ {
	}
	first, steps := 0, 1+children // of an item
	if h == 0 {
		first, steps = 1, children
	}
	off, at := c.at/steps*p.Item, c.at%steps+first
	if off >= p.Count {
		return false
	}
	c.at++
	n := min(p.Item, p.Count-off)
	if at == 0 {
		*s = Step{Op: Copy, Peer: (p.Root + h&(h-1)) % p.Hosts, Off: off, N: n, Last: true}
	} else {
		*s = Step{Op: Send, Peer: (p.Root + h + 1<<(children-at)) % p.Hosts, Off: off, N: n, Source: h == 0, Last: h == 0 && at == 1}
	}
	return true
}

// scatter is the broadcast by a scatter and an all-gather (van de Geijn's, as in Thakur, Rabenseifner and Gropp's paper).
// Along the tree of tree each host gets one part of the elements, with the parts of those that it passes them on to. It
// collects the others in rounds, in round k from the host 2^k ahead, which has so many by then (Bruck et al., "Efficient
// algorithms for all-to-all communications in multiport message-passing systems", 1997). So there may be any number of
// hosts. Each round sends its items before it receives those of the peer, and no host gets what it has.
func (c *Cursor) scatter(s *Step) bool {
	p, rounds := &c.p, bits.Len(uint(c.p.Hosts-1))
	h := (p.Me - p.Root + p.Hosts) % p.Hosts
	for ; c.hop <= 5*rounds; c.hop, c.item = c.hop+1, 0 {
		from, to, lo, hi := c.spread(h, rounds)
		off := lo*c.part + c.item*p.Item
		n := min(p.Item, hi*c.part-off, p.Count-off)
		if to == 0 || n <= 0 { // the root has everything
			continue
		}
		c.item++
		*s = Step{Op: Copy, Peer: (p.Root + from) % p.Hosts, Off: off, N: n, Last: true}
		if from == h { // the root's own part first leaves in round 0, alone, and the others in the scatter
			*s = Step{Op: Send, Peer: (p.Root + to) % p.Hosts, Off: off, N: n, Source: h == 0, Last: h == 0 && c.hop <= rounds+2}
		}
		return true
	}
	return false
}

// spread is which parts go where in a hop of host h, counted from the root on: a hop for what the scatter brings, one for
// each child that there may be, and four for each round, since the parts to send and to receive may go on at part 0.
func (c *Cursor) spread(h, rounds int) (from, to, lo, hi int) {
	n, at := c.p.Hosts, c.hop-rounds-1
	switch {
	case c.hop == 0:
		return h & (h - 1), h, h, c.scattered(h)
	case at < 0:
		if to = h + 1<<(rounds-c.hop); to < c.scattered(h) {
			hi = c.scattered(to)
		}
		return h, to, to, hi
	}
	k := at / 4
	if from, to = h, (h-1<<k+n)%n; at%4 >= 2 {
		from, to = (h+1<<k)%n, h
	}
	lo, hi = max(to+1<<k, c.scattered(to)), to+min(2<<k, n)
	if at%2 == 0 {
		return from, to, lo, min(hi, n)
	}
	return from, to, max(lo-n, 0), hi - n
}

// scattered is the end of the parts that a host has after the scatter. The first is its own.
func (c *Cursor) scattered(h int) int {
	if h == 0 {
		return c.p.Hosts
	}
	return min(h+h&-h, c.p.Hosts)
}

// chain is the broadcast along a chain of the hosts, from the root's on, item by item.
func (c *Cursor) chain(s *Step) bool {
	p := &c.p
	for {
		at := c.at
		c.at++
		off := at / 2 * p.Item
		if off >= p.Count {
			return false
		}
		n := min(p.Item, p.Count-off)
		switch {
		case at%2 == 0 && p.Me != p.Root:
			*s = Step{Op: Copy, Peer: before(p.Me, p.Hosts), Off: off, N: n, Last: true}
			return true
		case at%2 == 1 && after(p.Me, p.Hosts) != p.Root:
			*s = Step{Op: Send, Peer: after(p.Me, p.Hosts), Off: off, N: n, Source: p.Me == p.Root, Last: p.Me == p.Root}
			return true
		}
	}
}

// toTree is the reduce by the tree of tree, item by item: a host combines what comes from h + 1, h + 2, h + 4 and so on
// with its own, and sends that to the host that is h without its lowest bit behind the root.
func (c *Cursor) toTree(s *Step) bool {
	p := &c.p
	h := (p.Me - p.Root + p.Hosts) % p.Hosts
	children := 0
	for low := h & -h; (h == 0 || 1<<children < low) && h+1<<children < p.Hosts; children++ {
	}
	steps := children // of an item
	if h > 0 {
		steps++
	}
	item, at := c.at/steps, c.at%steps
	off := item * p.Item
	if off >= p.Count {
		return false
	}
	c.at++
	*s = Step{Off: off, N: min(p.Item, p.Count-off), Source: at == 0}
	if at == children {
		s.Op, s.Peer = Send, (p.Root+h&(h-1))%p.Hosts
		return true
	}
	child := h + 1<<at
	s.Op, s.Peer, s.OwnFirst, s.Last = Reduce, (p.Root+child)%p.Hosts, true, at == steps-1
	s.Own, s.In = Span{p.Me, 1 << at}, Span{s.Peer, min(1<<at, p.Hosts-child)}
	s.After = c.slot(h, item)
	return true
}

// toChain is the reduce along a chain of the hosts, to the root's, item by item.
func (c *Cursor) toChain(s *Step) bool {
	p := &c.p
	h := (p.Me - p.Root + p.Hosts) % p.Hosts
	last := h == p.Hosts-1
	for {
		item, sends := c.at/2, c.at%2 == 1
		off := item * p.Item
		if off >= p.Count {
			return false
		}
		c.at++
		*s = Step{Off: off, N: min(p.Item, p.Count-off), Source: last || !sends}
		switch {
		case sends && h > 0:
			s.Op, s.Peer = Send, before(p.Me, p.Hosts)
			return true
		case !sends && !last:
			s.Op, s.Peer, s.OwnFirst, s.Last = Reduce, after(p.Me, p.Hosts), true, h == 0
			s.Own, s.In = Span{p.Me, 1}, Span{s.Peer, p.Hosts - 1 - h}
			s.After = c.slot(h, item)
			return true
		}
	}
}

// slot is how many items must have left before there is memory for one more of those that are sent on.
func (c *Cursor) slot(h, item int) int {
	if h == 0 {
		return 0
	}
	return max(0, item+1-Slots)
}

// pairwise is what goes straight from each host to each other one: first this host sends, to the hosts behind it, then it
// receives, from those before it, in each case an item of every host's in turn. So at any time each host receives from
// another one.
func (c *Cursor) pairwise(s *Step) bool {
	p := &c.p
	for c.hop < 2 {
		receives, counts, off := c.hop == 1, p.Sends, c.item*p.Item
		if receives {
			counts = p.Receives
		}
		for c.at++; c.at < p.Hosts; c.at++ {
			peer := p.Me + c.at
			if receives {
				peer = p.Me - c.at + p.Hosts
			}
			peer %= p.Hosts
			if off >= counts[peer] {
				continue
			}
			c.more = true
			*s = Step{Op: Send, Peer: peer, Off: off, N: min(p.Item, counts[peer]-off), Source: true}
			switch {
			case !receives:
			case p.Reduces:
				s.Op, s.Source, s.Last = Reduce, c.at == 1, c.at == p.Hosts-1
				s.In, s.Own = Span{peer, 1}, Span{after(peer, p.Hosts), c.at}
			default:
				s.Op, s.Last = Copy, true
			}
			return true
		}
		c.at, c.item = 0, c.item+1
		if !c.more {
			c.hop, c.item = c.hop+1, 0
		}
		c.more = false
	}
	return false
}

// PartOf is which part is a host's: its number among the hosts from the root on, and for ScatterHalving its number with its
// bits in the other order.
func (p *Plan) PartOf(host int) int {
	switch p.Way {
	case ScatterHalving:
		levels := bits.Len(uint(p.Hosts)) - 1
		return int(bits.Reverse(uint(host)) >> (bits.UintSize - levels))
	case GatherTree, ScatterTree:
		return (host - p.Root + p.Hosts) % p.Hosts
	}
	return host
}

// HostOf is whose part part i is.
func (p *Plan) HostOf(part int) int {
	switch p.Way {
	case ScatterHalving:
		return p.PartOf(part)
	case GatherTree, ScatterTree:
		return (p.Root + part) % p.Hosts
	}
	return part
}

// run makes s the step of the next item of parts lo to hi, if there is one.
func (c *Cursor) run(s *Step, lo, hi int) bool {
	if lo >= hi {
		return false
	}
	s.Off = c.p.Begins[lo] + c.item*c.p.Item
	s.N = min(c.p.Item, c.p.Begins[hi]-s.Off)
	c.item++
	return s.N > 0
}

// gatherDoubling is the all-gather by recursive doubling: in round k a host exchanges all that it has with the one whose
// number differs in bit k. If hosts are no power of two it is Bruck's: it sends to the host 2^k before it, and receives from
// the one 2^k behind it, in the last round only what is missing. The host's own part is in the destination at first.
func (c *Cursor) gatherDoubling(s *Step) bool {
	n, me, rounds := c.p.Hosts, c.p.Me, bits.Len(uint(c.p.Hosts-1))
	for ; c.hop < 4*rounds; c.hop, c.item = c.hop+1, 0 { // in each round what is sent, up to the last part, and from the first on, and what is received
		k, receives := c.hop/4, c.hop%4 >= 2
		peer, first := (me-1<<k+n)%n, me
		switch pairs := n == 1<<rounds; {
		case pairs && receives:
			peer = me ^ 1<<k
			first = peer &^ (1<<k - 1)
		case pairs:
			peer, first = me^1<<k, me&^(1<<k-1)
		case receives:
			peer = (me + 1<<k) % n
			first = peer
		}
		lo, hi := first, first+min(1<<k, n-1<<k)
		if c.hop%2 == 1 {
			lo, hi = 0, hi-n
		}
		if *s = (Step{Op: Send, Peer: peer}); receives {
			s.Op, s.Last = Copy, true
		}
		if c.run(s, lo, min(hi, n)) {
			return true
		}
	}
	return false
}

// scatterHalving is the reduce-scatter by recursive halving, as in halving.
func (c *Cursor) scatterHalving(s *Step) bool {
	levels, me := c.levels(), c.p.Me
	lo, hi := 0, c.p.Hosts
	for k := range levels {
		mid := (lo + hi) / 2
		low := me>>k&1 == 0
		if k < c.hop/2 {
			if low {
				hi = mid
			} else {
				lo = mid
			}
			continue
		}
		for ; c.hop/2 == k; c.hop, c.item = c.hop+1, 0 {
			other := me ^ 1<<k
			*s = Step{Op: Send, Peer: other, Source: k == 0}
			from, to := lo, mid
			if receives := c.hop%2 == 1; receives {
				s.Op, s.In, s.Own = Reduce, Span{other &^ (1<<k - 1), 1 << k}, Span{me &^ (1<<k - 1), 1 << k}
				s.OwnFirst, s.Last = other > me, k == levels-1
				if !low {
					from, to = mid, hi
				}
			} else if low {
				from, to = mid, hi
			}
			if c.run(s, from, to) {
				return true
			}
		}
		if low {
			hi = mid
		} else {
			lo = mid
		}
	}
	return false
}

// gatherTree is the gather along the tree of tree: a host sends its part together with those that it has received.
func (c *Cursor) gatherTree(s *Step) bool {
	n, h := c.p.Hosts, c.p.PartOf(c.p.Me)
	end := c.scattered(h)
	for ; c.hop <= bits.Len(uint(n-1)); c.hop, c.item = c.hop+1, 0 {
		if child := h + 1<<c.hop; child < end {
			*s = Step{Op: Copy, Peer: c.p.HostOf(child), Last: true}
			if c.run(s, child, c.scattered(child)) {
				return true
			}
			continue
		}
		if h == 0 {
			return false
		}
		*s = Step{Op: Send, Peer: c.p.HostOf(h & (h - 1)), Source: end == h+1}
		return c.run(s, h, end)
	}
	return false
}

// scatterTree is the scatter along the same tree, as in scatter.
func (c *Cursor) scatterTree(s *Step) bool {
	h := c.p.PartOf(c.p.Me)
	end := c.scattered(h)
	for ; c.hop <= bits.Len(uint(c.p.Hosts-1)); c.hop, c.item = c.hop+1, 0 {
		if c.hop == 0 {
			*s = Step{Op: Copy, Peer: c.p.HostOf(h & (h - 1)), Last: true}
			if h > 0 && c.run(s, h, end) {
				return true
			}
			continue
		}
		child := h + 1<<(bits.Len(uint(c.p.Hosts-1))-c.hop)
		if child >= end {
			continue
		}
		*s = Step{Op: Send, Peer: c.p.HostOf(child), Source: h == 0}
		if c.run(s, child, c.scattered(child)) {
			return true
		}
	}
	return false
}
