package engine

import (
	"cmp"
	"context"
	"slices"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
)

// More than 16 ranks agree by group, so that a rank looks at about as many lines as there are groups, and not at one of
// every rank. The first rank of a group is its leader: it waits for the descriptors of its members, and then says in a
// line of its own area that they are there, and their signature if they all have the same. Everybody waits for the
// leaders.
//
// All that agreement without groups promises holds. What a member wrote before its descriptor is seen by whoever has
// seen its leader's word, since the leader wrote that after it had seen the descriptor. And the slot, sequence mod 2,
// of descriptors, leaders' words, eager slots and partial results is free to be written again: who writes for s+1 has
// seen all leaders' words for s, each written after all of the group had published s, which every rank does after it
// has finished s-1, the operation that used the slot before. A leader's word for s+1 does not hide that for s from a
// rank that lags: it stands in the other slot, and the one for s+2 has to wait until everybody has finished s.

const (
	groupsBeyond  = 16 // ranks: up to here each looks at each other
	smallestGroup = 8  // ranks that groups are cut for
	largestGroup  = 16
	mixed         = 0 // a leader's signature if those of its group differ: that of a refusal
)

// makeGroups cuts ranks into groups whose sizes differ little, near the square root of the number of ranks, where
// members and groups together are fewest: nil if there is no need. The ranks of a group share a last-level cache if the
// caches are known (not -1) and each is shared by enough ranks; else they are neighbours by rank. Groups are in the
// order of their first ranks, their leaders.
func makeGroups(caches []int) (groups [][]int) {
	n := len(caches)
	if n <= groupsBeyond {
		return nil
	}
	size := smallestGroup
	for size < largestGroup && size*size < n {
		size++
	}
	shared := map[int][]int{} // by cache
	for r, c := range caches {
		shared[c] = append(shared[c], r)
	}
	for c, ranks := range shared {
		if c < 0 || len(ranks) < smallestGroup/2 {
			all := make([]int, n)
			for r := range all {
				all[r] = r
			}
			shared = map[int][]int{0: all}
			break
		}
	}
	for _, ranks := range shared {
		k := (len(ranks) + size - 1) / size
		for i := range k {
			groups = append(groups, ranks[i*len(ranks)/k:(i+1)*len(ranks)/k])
		}
	}
	slices.SortFunc(groups, func(a, b []int) int { return cmp.Compare(a[0], b[0]) })
	return groups
}

// nearOrder is all ranks in the order in which rank me turns to them: itself, those of its memory node, and then the
// others, each time from the next rank on, so that ranks do not all crowd around one.
func nearOrder(nodes []int, me int) []int {
	n := len(nodes)
	order := make([]int, n)
	for i := range order {
		order[i] = (me + i) % n
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(distance(nodes[a], nodes[me]), distance(nodes[b], nodes[me]))
	})
	return order
}

func distance(a, b int) int {
	if a == b {
		return 0
	}
	return 1
}

// arrange sets what follows from where the ranks are.
func (c *Comm) arrange() {
	caches, nodes := make([]int, c.size), make([]int, c.size)
	for r := range c.peers {
		caches[r], nodes[r] = c.peers[r].cache, c.peers[r].node
	}
	c.near = nearOrder(nodes, c.rank)
	c.groups = makeGroups(caches)
	c.mine = c.groupOf(c.rank)
}

// groupOf is the group of a rank, -1 without groups.
func (c *Comm) groupOf(rank int) int {
	return slices.IndexFunc(c.groups, func(g []int) bool { return slices.Contains(g, rank) })
}

// Near is the rank to which this one turns i-th: first itself, then those whose memory is near.
func (c *Comm) Near(i int) int { return c.near[i] }

// Groups is the number of groups by which the ranks agree, 0 if there are none.
func (c *Comm) Groups() int { return len(c.groups) }

// Group is this rank's group.
func (c *Comm) Group() int { return c.mine }

// Members is the ranks of this rank's group, in rank order.
func (c *Comm) Members() []int { return c.groups[c.mine] }

// PartialBytes is the size of the largest partial result: it shares its leader's eager slot with the leader's source.
const PartialBytes = EagerBytes / 2

// Partial is where Path.Combine leaves n bytes for all to read, in the group's leader's area.
func (c *Comm) Partial(group, n int) unsafe.Pointer {
	leader := c.groups[group][0]
	if n <= PayloadSize {
		return unsafe.Pointer(&c.peers[leader].area.group[c.seq&1].payload)
	}
	return unsafe.Add(c.Eager(leader), EagerBytes-PartialBytes)
}

// agreeByGroup is agree with groups.
func (c *Comm) agreeByGroup(ctx context.Context, w *Work, bad error) error {
	slot := c.seq & 1
	mine := c.me.desc[slot].sig
	if c.groups[c.mine][0] == c.rank {
		if err := c.vouch(ctx, w, bad); err != nil {
			return err
		}
	}
	same := true
	for i := range c.groups {
		g := c.mine + i // from its own on, so that not all ranks look at one line at once
		if g >= len(c.groups) {
			g -= len(c.groups)
		}
		leader := c.groups[g][0]
		d := &c.peers[leader].area.group[slot]
		if !reached(d.seq.Load(), c.seq) {
			if err := c.Wait(ctx, &d.seq, c.seq, leader, stepAgree); err != nil {
				return err
			}
		}
		same = same && d.sig == mine
	}
	if same && bad == nil {
		return nil
	}
	return c.disagreement(slot, bad)
}

// vouch waits for the members of this leader's group and says what they have published.
func (c *Comm) vouch(ctx context.Context, w *Work, bad error) error {
	slot := c.seq & 1
	said := &c.me.group[slot]
	combine := bad == nil && w.Path.Combine != nil
	spin.Claim(unsafe.Pointer(said))
	if combine {
		spin.ClaimAll(c.Partial(c.mine, w.EagerBytes), min(w.EagerBytes, claimBytes))
	}
	sig := c.me.desc[slot].sig
	for _, r := range c.groups[c.mine][1:] {
		d := &c.peers[r].area.desc[slot]
		if !reached(d.seq.Load(), c.seq) {
			if err := c.Wait(ctx, &d.seq, c.seq, r, stepAgree); err != nil {
				return err
			}
		}
		if d.sig != sig {
			sig, combine = mixed, false
		}
	}
	if combine {
		w.Path.Combine(c, w)
	}
	said.sig = sig
	spin.Release(&said.seq, c.seq)
	return nil
}

// absent is the rank that a wait waits for in the end: a leader's word may be missing because a member's is.
func (c *Comm) absent(s *waiting) int {
	if s.op != "" || s.step != stepAgree || c.groups == nil {
		return s.peer
	}
	for _, r := range c.groups[c.groupOf(s.peer)] {
		if !reached(c.peers[r].area.desc[c.seq&1].seq.Load(), c.seq) {
			return r
		}
	}
	return s.peer
}
