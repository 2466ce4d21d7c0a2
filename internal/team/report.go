package team

import (
	"fmt"
	"slices"
	"strings"
)

// A wait that gets long publishes in its rank's area what it waits for. So a rank that gives up, or reports that it
// still waits, can tell what every rank waits for, and whether ranks wait for each other.

// waitWord is what a rank waits for, as its area publishes it: kind 8 bits, whether it is one of several messages that go
// together 1, peer 16 (a rank of the communicator), sequence number 39. 0: it does not wait, or not for long yet.
type waitWord uint64

// elsewhere stands for the wait of a rank on another host, which this rank cannot see.
const elsewhere = ^waitWord(0)

// nobody stands, in Area.beyond, for a rank that waits for none; 0 is the end of what is known.
const nobody = waitWord(1)

const mostBeyond = 15 // words in Area.beyond: they fill its pair of cache lines

const waitWordSeq = 1<<39 - 1

// kindOther stands for waits that are neither a collective's nor a message's.
const kindOther = numKinds

func newWaitWord(k OpKind, several bool, peer int, seq uint64) waitWord {
	v := waitWord(k)<<56 | waitWord(uint16(peer))<<39 | waitWord(seq&waitWordSeq)
	if several {
		v |= 1 << 55
	}
	return v
}

func (w waitWord) kind() OpKind  { return OpKind(w >> 56) }
func (w waitWord) several() bool { return w>>55&1 != 0 }
func (w waitWord) peer() int     { return int(uint16(w >> 39)) }
func (w waitWord) seq() uint64   { return uint64(w & waitWordSeq) }

// String describes the wait: "send #3 to rank 1".
func (w waitWord) String() string {
	if w == 0 {
		return "no wait"
	}
	what, to := w.kind().String(), "for"
	switch w.kind() {
	case KindSend:
		to = "to"
	case KindRecv:
		to = "from"
	case kindOther:
		what = "a channel or window"
	}
	if w.seq() > 0 {
		what += fmt.Sprintf(" #%d", w.seq())
	}
	if w.several() {
		what += " of several"
	}
	return fmt.Sprintf("%s %s rank %d", what, to, w.peer())
}

// publishWait publishes what this rank waits for.
func (t *Team) publishWait(s *WaitState) {
	if s.Peer == t.rank && s.Far == 0 {
		return // it waits for no rank
	}
	k, seq := s.Kind, uint64(0)
	switch {
	case s.Op == "":
		k, seq = t.Running().Kind, t.Number()
	case k == KindRefused:
		k = kindOther
	case s.Item != nil:
		seq = s.Item.Number()
	}
	if v := newWaitWord(k, s.Several, t.absent(s), seq); v != s.Published {
		s.Published = v
		t.Me.beyond[0].Store(0)
		t.Me.waits.Store(uint64(v))
	}
}

// EndWait withdraws what a wait that is over has published, unless another wait of this rank has published something
// since.
func (t *Team) EndWait(s *WaitState) {
	if s.Published != 0 {
		t.Me.waits.CompareAndSwap(uint64(s.Published), 0)
		s.Published = 0
	}
}

// account describes what all ranks of this host wait for, and what follows from it, to be added to an error. blame is
// the rank that this one ultimately waits for, if the rank that it waits for waits itself.
func (t *Team) account(s *WaitState) (text string, blame int) {
	all := slices.Repeat([]waitWord{elsewhere}, t.all)
	for i, r := range t.names {
		if all[r] = waitWord(t.Peers[i].Area.waits.Load()); all[r] != 0 && all[r].peer() >= t.all {
			all[r] = 0
		}
	}
	missing, me := t.absent(s), t.Name(t.rank)
	all[me] = s.Published
	for i, r := range t.names {
		t.lookBeyond(all, all[r], t.Peers[i].Area)
	}
	circle, last := follow(all, me, missing)
	var b strings.Builder
	if circle != nil {
		b.WriteString("; " + explain(all, circle))
	} else {
		missing = last
	}
	b.WriteString("; UBCOLL_TIMEOUT or Options.Timeout says how long to wait; ")
	if t.size < t.all {
		b.WriteString("on this host ")
	}
	b.WriteString(list(all, t.names))
	var far []int
	for r, v := range all {
		if v != elsewhere && t.Index(r) < 0 {
			far = append(far, r)
		}
	}
	if far != nil {
		b.WriteString("; on others " + list(all, far))
	}
	return b.String(), missing
}

// lookBeyond fills in what ranks of other hosts wait for, as far as the rank of an area knows it, which waits for w.
func (t *Team) lookBeyond(all []waitWord, w waitWord, of *Area) {
	for i := 0; i < mostBeyond && w != 0 && w.peer() < t.all; i++ {
		at := w.peer()
		if i == 0 && t.Index(at) >= 0 {
			return
		}
		switch w = waitWord(of.beyond[i].Load()); w {
		case 0:
			return
		case nobody:
			w = 0
		}
		if all[at] == elsewhere {
			all[at] = w
		}
	}
}

// Chain is what this rank waits for, what the rank that it waits for waits for, and so on as far as this host knows: an
// answer for SetBeyond on another host.
func (t *Team) Chain() (words []uint64) {
	seen := map[int]bool{}
	for at := t.rank; len(words) < mostBeyond; {
		w := waitWord(t.Peers[at].Area.waits.Load())
		if w == 0 || w.peer() >= t.all {
			return append(words, uint64(nobody))
		}
		words = append(words, uint64(w))
		next := t.Index(w.peer())
		if seen[at] = true; next >= 0 && !seen[next] {
			at = next
			continue
		}
		for i := 0; next < 0 && len(words) < mostBeyond; i++ {
			b := uint64(0)
			if i < mostBeyond {
				b = t.Peers[at].Area.beyond[i].Load()
			}
			if b == 0 {
				break
			}
			words = append(words, b)
		}
		break
	}
	return words
}

// SetBeyond notes the Chain of a rank of another host, if this rank has published that it waits for it. It reports whether
// the words can be such a chain.
func (t *Team) SetBeyond(rank int, words []uint64) (ok bool) {
	if len(words) == 0 || len(words) > mostBeyond {
		return false
	}
	for _, w := range words {
		if waitWord(w).peer() >= t.all || waitWord(w).kind() > kindOther {
			return false
		}
	}
	if t.WaitsFor() != rank {
		return true
	}
	t.Me.beyond[0].Store(0)
	for i := mostBeyond - 1; i >= 0; i-- {
		w := uint64(0)
		if i < len(words) {
			w = words[i]
		}
		t.Me.beyond[i].Store(w)
	}
	return true
}

// follow starts at rank from, which waits for next, and follows the waits. It returns the last rank, which waits for
// nobody as far as this host can see, or the circle of ranks that wait for each other.
func follow(all []waitWord, from, next int) (circle []int, last int) {
	way := []int{from}
	for {
		if i := slices.Index(way, next); i >= 0 {
			return way[i:], -1
		}
		if all[next] == 0 || all[next] == elsewhere {
			return nil, next
		}
		way = append(way, next)
		next = all[next].peer()
	}
}

// explain says what is wrong with ranks that wait for each other, and what helps.
func explain(all []waitWord, circle []int) string {
	var names []string
	first := slices.Index(circle, slices.Min(circle)) // alike on all ranks
	kinds := map[OpKind]bool{}
	for i := range circle {
		r := circle[(first+i)%len(circle)]
		kinds[all[r].kind()] = true
		if names = append(names, fmt.Sprint(r)); i == 7 && len(circle) > 8 {
			names = append(names, "...")
			break
		}
	}
	ranks := strings.Join(append(names, names[0]), " -> ")
	switch {
	case len(kinds) == 1 && kinds[KindSend]:
		return fmt.Sprintf("a circle of sends (%s): all send first and nobody receives; SendRecv or a Group does both at "+
			"the same time", ranks)
	case len(kinds) == 1 && kinds[KindRecv]:
		return fmt.Sprintf("a circle of receives (%s): all receive first and nobody sends; SendRecv or a Group does both "+
			"at the same time", ranks)
	}
	return fmt.Sprintf("these ranks wait for each other (%s): they make their calls in different orders", ranks)
}

// list says what some ranks wait for, with equal ones together.
func list(all []waitWord, some []int) string {
	const most = 6
	var order []waitWord
	ranks := map[waitWord][]int{}
	for _, r := range some {
		v := all[r]
		if ranks[v] == nil {
			order = append(order, v)
		}
		ranks[v] = append(ranks[v], r)
	}
	var parts []string
	for i, v := range order {
		if i == most {
			parts = append(parts, "and so on")
			break
		}
		parts = append(parts, fmt.Sprintf("%s in %v", rankList(ranks[v]), v))
	}
	return strings.Join(parts, ", ")
}

// rankList is "rank 3" or "ranks 0-2, 5".
func rankList(rs []int) string {
	if len(rs) == 1 {
		return fmt.Sprintf("rank %d", rs[0])
	}
	var parts []string
	for i := 0; i < len(rs); {
		k := i
		for k+1 < len(rs) && rs[k+1] == rs[k]+1 {
			k++
		}
		switch {
		case k > i+1:
			parts = append(parts, fmt.Sprintf("%d-%d", rs[i], rs[k]))
			i = k + 1
		default:
			parts = append(parts, fmt.Sprint(rs[i]))
			i++
		}
		if len(parts) == 8 && i < len(rs) {
			return fmt.Sprintf("ranks %s and %d more", strings.Join(parts, ", "), len(rs)-i)
		}
	}
	return "ranks " + strings.Join(parts, ", ")
}

// WaitsIn describes what a rank of the team has published that it waits for.
func (t *Team) WaitsIn(rank int) string { return waitWord(t.Peers[rank].Area.waits.Load()).String() }

// WaitsFor is the rank of the communicator that this rank has published that it waits for, or -1.
func (t *Team) WaitsFor() int {
	if v := waitWord(t.Me.waits.Load()); v != 0 {
		return v.peer()
	}
	return -1
}
