package gpu

import (
	"math/bits"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// LaneSet is a set of lanes of messages, of which there are two for each rank.
type LaneSet [(2*engine.MaxRanks + 63) / 64]uint64

// LanesTo is the lanes below n.
func LanesTo(n int) (s LaneSet) {
	for i := range n {
		s.Add(i)
	}
	return s
}

// Add adds a lane.
func (s *LaneSet) Add(lane int) { s[lane/64] |= 1 << (lane % 64) }

// Remove removes a lane.
func (s *LaneSet) Remove(lane int) { s[lane/64] &^= 1 << (lane % 64) }

// Has reports whether a lane is in it.
func (s *LaneSet) Has(lane int) bool { return s[lane/64]>>(lane%64)&1 != 0 }

// Empty reports whether none is.
func (s *LaneSet) Empty() bool { return *s == LaneSet{} }

// Len is how many are.
func (s *LaneSet) Len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// Next is the first lane of the set from lane on, or -1.
func (s *LaneSet) Next(lane int) int {
	for i := lane / 64; i < len(s); i++ {
		if w := s[i] >> (lane % 64) << (lane % 64); w != 0 {
			return 64*i + bits.TrailingZeros64(w)
		}
		lane = 0
	}
	return -1
}

// LaneBlocks are blocks by lane.
type LaneBlocks []int32

// LaneShares is how the lanes of messages share the blocks that find room on a device. The blocks of all lanes find room
// at the same time: one that waits for its peer must not keep out the one that this peer waits for. So a lane gets what
// it wants as far as the others leave it, and those that have nothing queued leave all but one block. Its users lock.
type LaneShares struct {
	lanes  []laneShare
	kept   LaneBlocks           // that captures of others hold
	graphs map[*LaneBlocks]bool // and those of graphs
}

type laneShare struct {
	queued int32 // blocks of what is queued, at most
	held   int32 // of what is captured, at most
	open   bool  // something is being queued
}

// ShareLanes is for so many lanes.
func ShareLanes(lanes int) *LaneShares {
	return &LaneShares{lanes: make([]laneShare, lanes), graphs: map[*LaneBlocks]bool{}}
}

// Kept is where blocks stay that somebody else's captures hold, as long as the communicator lives.
func (s *LaneShares) Kept() *LaneBlocks { return &s.kept }

// Take cuts blocks, what each lane wants for what starts together, to what each gets where so many find room. What is
// captured may run at any time: its blocks are added to keep, a graph's or Kept, until GiveUp; nil: it is queued now,
// until Free.
func (s *LaneShares) Take(room int, blocks LaneBlocks, keep *LaneBlocks) {
	free, more := int32(room), int32(0) // more: what is wanted beyond one block for each
	again := s.graphs[keep]             // a graph runs one call after the other
	for i, n := range blocks {
		if n > 0 {
			free--
			more += n - 1
			continue
		}
		held := s.lanes[i].held
		if again {
			held = s.heldBut(i, keep)
		}
		free -= max(s.lanes[i].queued, held, 1)
	}
	if keep != nil && *keep == nil {
		*keep = make(LaneBlocks, len(blocks))
	}
	for i, n := range blocks {
		if n == 0 {
			continue
		}
		if more > max(free, 0) {
			blocks[i] = 1 + (n-1)*max(free, 0)/more
		}
		l := &s.lanes[i]
		if keep != nil {
			(*keep)[i] = max((*keep)[i], blocks[i])
			l.held = max(l.held, (*keep)[i])
		} else {
			l.queued, l.open = max(l.queued, blocks[i]), true
		}
	}
	if keep != nil && keep != &s.kept {
		s.graphs[keep] = true
	}
}

// heldBut are the blocks that captured messages of a lane have, but for those of a graph.
func (s *LaneShares) heldBut(lane int, graph *LaneBlocks) (n int32) {
	if s.kept != nil {
		n = s.kept[lane]
	}
	for g := range s.graphs {
		if g != graph {
			n = max(n, (*g)[lane])
		}
	}
	return n
}

// GiveUp gives a graph's blocks up.
func (s *LaneShares) GiveUp(graph *LaneBlocks) {
	if !s.graphs[graph] {
		return
	}
	delete(s.graphs, graph)
	for i := range s.lanes {
		s.lanes[i].held = s.heldBut(i, nil)
	}
}

// Queued says that what was being queued on a lane is.
func (s *LaneShares) Queued(lane int) { s.lanes[lane].open = false }

// Spare reports whether Free would give others blocks, once all that was queued on the lane has ended.
func (s *LaneShares) Spare(lane int) bool { return s.lanes[lane].queued > 1 && !s.lanes[lane].open }

// Free frees what is queued on a lane.
func (s *LaneShares) Free(lane int) { s.lanes[lane].queued = 0 }
