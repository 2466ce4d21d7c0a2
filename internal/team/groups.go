package team

import (
	"cmp"
	"context"
	"slices"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// More than 16 ranks agree by group, so that a rank reads about as many lines as there are groups, instead of one for
// every rank. The first rank of a group is its leader. It waits for the descriptors of its members, and then publishes
// in a line of its own area that they are there, with their signature if all have the same. Every rank waits for the
// leaders.
//
// Groups give the same guarantees as agreement without them.
//
// A rank that has seen a leader's word also sees what the group's members wrote before their descriptors, because the
// leader wrote the word after it had seen the descriptors.
//
// Descriptors, leaders' words, eager slots and partial results have two slots each, used by sequence number mod 2. A
// slot is free when a rank writes it for s+1: the rank has then seen all leaders' words for s. A leader writes its word
// for s only after all ranks of its group have published s, and a rank publishes s only after it has finished s-1, the
// previous operation that used the slot. So nobody still reads the slot.
//
// A rank that lags still finds the leader's word for s: the word for s+1 is in the other slot, and the word for s+2
// must wait until every rank has finished s.

const (
	groupsBeyond  = 16 // up to this many ranks, each reads every other's descriptor
	smallestGroup = 8  // smallest and largest size that groups are cut to
	largestGroup  = 16
	mixed         = 0 // a leader's signature if its group's differ: that of a refusal
)

// makeGroups cuts ranks into groups of about equal size, near the square root of the number of ranks, where the sum of
// members and groups is smallest. It returns nil if no groups are needed. If the caches are known (not -1) and each is
// shared by enough ranks, the ranks of a group share a last-level cache; otherwise they are neighbours by rank. Groups
// are in the order of their first ranks, which are their leaders.
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

// nearOrder returns all ranks in the order in which rank me accesses them: itself, the ranks of its memory node, and
// then the others. Each part starts with the next rank, so that not all ranks access the same one at once.
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

// arrange sets what follows from the ranks' places.
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

// groupOf returns the group of a rank, or -1 without groups.
func (t *Team) groupOf(rank int) int {
	return slices.IndexFunc(t.groups, func(g []int) bool { return slices.Contains(g, rank) })
}

// Near is the i-th rank that this rank accesses: first itself, then those with near memory.
func (t *Team) Near(i int) int { return t.near[i] }

// Groups is the number of groups by which the ranks agree, 0 if there are none.
func (t *Team) Groups() int { return len(t.groups) }

// Group is this rank's group.
func (t *Team) Group() int { return t.mine }

// Members returns the ranks of this rank's group, in rank order.
func (t *Team) Members() []int { return t.groups[t.mine] }

// PartialBytes is the largest size of a partial result, which shares its leader's eager slot with the leader's source.
const PartialBytes = EagerBytes / 2

// Partial is the place, in the group's leader's area, where Path.Combine writes n bytes for all ranks to read.
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
		if err := t.publishGroup(ctx, w, bad); err != nil {
			return err
		}
	}
	same := true
	for i := range t.groups {
		g := t.mine + i // starts with its own group, so that not all ranks read the same line at once
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
	if t.Late.For > 0 {
		t.Late.Rank = t.lastOf(t.Late.Rank, slot)
		t.arrived()
	}
	if same && bad == nil {
		return nil
	}
	return t.disagreement(slot, bad)
}

// lastOf is the rank that the leader of a group has waited for last, or the leader itself. A rank that is no leader is itself.
func (t *Team) lastOf(rank int, slot uint64) int {
	if r := int(t.Peers[rank].Area.Group[slot].Refusal) - 1; t.leads(rank) && r >= 0 && r < t.size {
		return r
	}
	return rank
}

// leads reports whether a rank is the first of its group.
func (t *Team) leads(rank int) bool { return t.groups[t.groupOf(rank)][0] == rank }

// publishGroup waits for the members of this leader's group and publishes their signature.
func (t *Team) publishGroup(ctx context.Context, w *Work, bad error) error {
	slot := t.Seq & 1
	mine := &t.Me.Group[slot]
	combine := bad == nil && w.Path.Combine != nil
	spin.Claim(unsafe.Pointer(mine))
	if combine {
		spin.ClaimAll(t.Partial(t.mine, w.Eager.Bytes), min(w.Eager.Bytes, claimBytes))
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
	mine.Sig, mine.Refusal = sig, 0
	if t.Late.For > 0 { // tells the others who was last, in the place of what leaders do not have
		mine.Refusal = uint64(t.Late.Rank) + 1
	}
	if invariants.Enabled {
		checkNext("leader's word", &t.Me.Group, t.Seq)
	}
	spin.Release(&mine.Seq, t.Seq)
	return nil
}

// absent is the rank of the communicator that a wait ultimately waits for: if a leader's word is missing, the reason
// may be a member's missing descriptor.
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
