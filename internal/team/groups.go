package team

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
func (t *Team) arrange() {
	caches, nodes := make([]int, t.size), make([]int, t.size)
	me := t.Peers[t.rank].Proc
	for r := range t.Peers {
		p := &t.Peers[r]
		caches[r], nodes[r] = p.cache, p.node
		t.inProcess = t.inProcess || r != t.rank && p.Proc == me
		t.outside = t.outside || p.Proc != me
	}
	t.near = nearOrder(nodes, t.rank)
	t.groups = makeGroups(caches)
	t.mine = t.groupOf(t.rank)
}

// groupOf is the group of a rank, -1 without groups.
func (t *Team) groupOf(rank int) int {
	return slices.IndexFunc(t.groups, func(g []int) bool { return slices.Contains(g, rank) })
}

// Near is the rank to which this one turns i-th: first itself, then those whose memory is near.
func (t *Team) Near(i int) int { return t.near[i] }

// Groups is the number of groups by which the ranks agree, 0 if there are none.
func (t *Team) Groups() int { return len(t.groups) }

// Group is this rank's group.
func (t *Team) Group() int { return t.mine }

// Members is the ranks of this rank's group, in rank order.
func (t *Team) Members() []int { return t.groups[t.mine] }

// PartialBytes is the size of the largest partial result: it shares its leader's eager slot with the leader's source.
const PartialBytes = EagerBytes / 2

// Partial is where Path.Combine leaves n bytes for all to read, in the group's leader's area.
func (t *Team) Partial(group, n int) unsafe.Pointer {
	leader := t.groups[group][0]
	if n <= PayloadSize {
		return unsafe.Pointer(&t.Peers[leader].Area.Group[t.Seq&1].payload)
	}
	return unsafe.Add(t.Eager(leader), EagerBytes-PartialBytes)
}

// agreeByGroup is Agree with groups.
func (t *Team) agreeByGroup(ctx context.Context, w *Work, bad error) error {
	slot := t.Seq & 1
	mine := t.Me.Desc[slot].Sig
	if t.groups[t.mine][0] == t.rank {
		if err := t.vouch(ctx, w, bad); err != nil {
			return err
		}
	}
	same := true
	for i := range t.groups {
		g := t.mine + i // from its own on, so that not all ranks look at one line at once
		if g >= len(t.groups) {
			g -= len(t.groups)
		}
		leader := t.groups[g][0]
		d := &t.Peers[leader].Area.Group[slot]
		if !Reached(d.Seq.Load(), t.Seq) {
			if err := t.Wait(ctx, &d.Seq, t.Seq, leader, StepAgree); err != nil {
				return err
			}
		}
		same = same && d.Sig == mine
	}
	if same && bad == nil {
		return nil
	}
	return t.disagreement(slot, bad)
}

// vouch waits for the members of this leader's group and says what they have published.
func (t *Team) vouch(ctx context.Context, w *Work, bad error) error {
	slot := t.Seq & 1
	said := &t.Me.Group[slot]
	combine := bad == nil && w.Path.Combine != nil
	spin.Claim(unsafe.Pointer(said))
	if combine {
		spin.ClaimAll(t.Partial(t.mine, w.EagerBytes), min(w.EagerBytes, claimBytes))
	}
	sig := t.Me.Desc[slot].Sig
	for _, r := range t.groups[t.mine][1:] {
		d := &t.Peers[r].Area.Desc[slot]
		if !Reached(d.Seq.Load(), t.Seq) {
			if err := t.Wait(ctx, &d.Seq, t.Seq, r, StepAgree); err != nil {
				return err
			}
		}
		if d.Sig != sig {
			sig, combine = mixed, false
		}
	}
	if combine {
		w.Path.Combine(t, w)
	}
	said.Sig = sig
	spin.Release(&said.Seq, t.Seq)
	return nil
}

// absent is the communicator's rank that a wait waits for in the end: a leader's word may be missing because a member's
// is.
func (t *Team) absent(s *WaitState) int {
	if s.Far != 0 {
		return s.Far - 1
	}
	if s.Op != "" || s.Step != StepAgree || t.groups == nil {
		return t.Name(s.Peer)
	}
	for _, r := range t.groups[t.groupOf(s.Peer)] {
		if !Reached(t.Peers[r].Area.Desc[t.Seq&1].Seq.Load(), t.Seq) {
			return t.Name(r)
		}
	}
	return t.Name(s.Peer)
}
