package coll

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// In an operation with vectors between hosts, each rank of a team that has agreed leaves its counts in its staging memory.
// The hosts' leaders tell each other, in pairs, what the ranks of the one send to those of the other, while they agree on the
// operation, compare that with what these expect, and agree on the result. So no host has the counts of all pairs, and nobody succeeds if any are wrong.

// rankCounts is what one rank sends to each rank of the communicator, and expects from each; where these blocks are in
// its source and its destination; and how many elements all are together.
type rankCounts struct{ send, receive, sendAt, receiveAt, all []uint64 }

// countBytes is how much staging memory the counts take: a quarter, at most.
func countBytes(t *team.Team, w *team.Work) int {
	if !isVector(w.Kind) {
		return 0
	}
	return (8*(4*t.Whole()+2) + 63) &^ 63
}

func countsOf(t *team.Team, rank int) rankCounts {
	n := t.Whole()
	p := unsafe.Slice((*uint64)(t.Staging(rank)), 4*n+2)
	return rankCounts{p[:n], p[n : 2*n], p[2*n : 3*n], p[3*n : 4*n], p[4*n:]}
}

// longest is the most that the rank sends to a rank, or expects from one.
func (c rankCounts) longest() (n int) {
	for r := range c.send {
		n = max(n, int(c.send[r]), int(c.receive[r]))
	}
	return n
}

// acquireCounted also checks this rank's counts, and keeps them for layCounts.
func acquireCounted(t *team.Team, w *team.Work) error {
	n := t.Whole()
	kept := t.Hosts.Counts()
	if err := w.Counts(t.Name(t.Rank()), kept[:n], kept[n:]); err != nil {
		return err
	}
	return acquireAcross(t, w)
}

// layCounts leaves this rank's counts for its team.
func layCounts(t *team.Team, w *team.Work) {
	c, n := countsOf(t, t.Rank()), t.Whole()
	kept, f := t.Hosts.Counts(), formOf(w.Kind)
	copy(c.send, kept[:n])
	copy(c.receive, kept[n:])
	clear(c.all)
	for r := range n {
		c.sendAt[r], c.receiveAt[r] = 0, 0
		if f.perDestination {
			c.sendAt[r] = c.all[0]
			c.all[0] += c.send[r]
		} else {
			c.all[0] = max(c.all[0], c.send[r])
		}
		if f.perSource {
			c.receiveAt[r] = c.all[1]
			c.all[1] += c.receive[r]
		} else {
			c.all[1] = max(c.all[1], c.receive[r])
		}
	}
}

// counting is the exchange of counts: of one for each block. It implements team.Blocks.
type counting struct {
	*blocks
	wrong        *team.Refusal
	source, dest int // the ranks that wrong is about
}

// exchangeCounts is the exchange of counts, on leaders.
func exchangeCounts(t *team.Team, w *team.Work) (team.Exchange, error) {
	if t.Rank() != 0 {
		return team.Exchange{}, nil
	}
	c := &counting{blocks: newBlocks(context.Background(), t, w)}
	h := t.Hosts
	me, hosts := h.Host(), h.Size()
	c.sends, c.receives = sized(c.sends, hosts), sized(c.receives, hosts)
	p := schedule.Plan{Way: schedule.Pairwise, Hosts: hosts, Me: me, Item: schedule.LargestItem / 8, Line: 1, Sends: c.sends, Receives: c.receives}
	root := h.Of(w.Root)
	for other := range hosts {
		if other == me {
			continue
		}
		if (!c.toRoot || other == root) && (!c.fromRoot || me == root) {
			to := c.pieces(me, other, 0, 0)
			p.Sends[other] = to.number()
		}
		if (!c.toRoot || me == root) && (!c.fromRoot || other == root) {
			from := c.pieces(other, me, 0, 0)
			p.Receives[other] = from.number()
		}
	}
	return team.Exchange{Plan: p, Work: w, Blocks: c, Size: 8, Early: true}, nil
}

// Source implements team.Blocks.
func (c *counting) Source(int, int, int) unsafe.Pointer { return nil }

// Fill implements team.Blocks.
func (c *counting) Fill(to unsafe.Pointer, host, off, n int) {
	p := c.pieces(c.h.Host(), host, 0, 0)
	all := unsafe.Slice((*uint64)(to), n)
	for i := range all {
		s, d := p.ranks(off + i)
		all[i] = uint64(c.counted(&p, s, d))
	}
}

// Destination implements team.Blocks.
func (c *counting) Destination(int, int, int) (unsafe.Pointer, int) { return nil, 0 }

// Take implements team.Blocks.
func (c *counting) Take(from unsafe.Pointer, host, off, n int) {
	p := c.pieces(host, c.h.Host(), 0, 0)
	for i, sent := range unsafe.Slice((*uint64)(from), n) {
		s, d := p.ranks(off + i)
		source := c.w.Root
		if s >= 0 {
			source = p.from[s]
		}
		switch {
		case d >= 0:
			c.check(source, d, sent)
		case c.toRoot:
			c.check(source, c.root, sent)
		default:
			for d := range c.n {
				c.check(source, d, sent)
			}
		}
	}
}

// check compares what a rank sends with what one of this team expects.
func (c *counting) check(source, d int, sent uint64) {
	dest, expected := c.t.Name(d), countsOf(c.t, d).receive[source]
	if sent == expected || c.wrong != nil && (c.source < source || c.source == source && c.dest <= dest) {
		return
	}
	c.source, c.dest = source, dest
	err := countsDiffer(source, dest, sent, expected)
	c.wrong = &team.Refusal{Rank: source, About: dest, Counts: true, Code: reason.Code(err), Text: err.Error()}
}

func countsDiffer(source, dest int, sent, expected uint64) error {
	return fmt.Errorf("rank %d expects %d elements from rank %d, which sends %d: %w", dest, expected, source, sent, fault.ErrMismatch)
}

// Done implements team.Blocks. What came is looked at afterwards.
func (c *counting) Done() {}

// Wrong implements team.Counting. It also compares the counts within the team. Of several pairs of ranks whose counts differ
// it names that of the lowest ranks.
func (c *counting) Wrong() *team.Refusal {
	for s := range c.n {
		send := countsOf(c.t, s).send
		for d := range c.n {
			c.check(c.t.Name(s), d, send[c.t.Name(d)])
		}
	}
	c.free()
	return c.wrong
}
