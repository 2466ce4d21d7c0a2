package gpu

import (
	"math/bits"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// LaneSet is a set of message lanes; each rank has two.
type LaneSet [(2*engine.MaxRanks + 63) / 64]uint64

// LanesTo returns the lanes below n.
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

// Has reports whether a lane is in the set.
func (s *LaneSet) Has(lane int) bool { return s[lane/64]>>(lane%64)&1 != 0 }

// Empty reports whether the set has no lane.
func (s *LaneSet) Empty() bool { return *s == LaneSet{} }

// Len returns the number of lanes in the set.
func (s *LaneSet) Len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// Next returns the first lane of the set that is not below lane, or -1.
func (s *LaneSet) Next(lane int) int {
	for i := lane / 64; i < len(s); i++ {
		if w := s[i] >> (lane % 64) << (lane % 64); w != 0 {
			return 64*i + bits.TrailingZeros64(w)
		}
		lane = 0
	}
	return -1
}

// LaneBlocks is a number of blocks for each lane.
type LaneBlocks []int32

// LaneShares divides the blocks that fit on a device among the message lanes. The blocks of all lanes fit at the same
// time: a block that waits for its peer must not keep out the block that this peer waits for. So a lane with nothing
// queued reserves only one block, and the others get what they want as far as it fits. Callers do the locking.
type LaneShares struct {
	lanes  []laneShare
	kept   LaneBlocks           // blocks of users' own captures
	graphs map[*LaneBlocks]bool // blocks of graphs
}

type laneShare struct {
	queued int32 // most blocks of what is queued
	held   int32 // most blocks of what is captured
	open   bool  // something is being queued
}

// ShareLanes returns the shares of that many lanes.
func ShareLanes(lanes int) *LaneShares {
	return &LaneShares{lanes: make([]laneShare, lanes), graphs: map[*LaneBlocks]bool{}}
}

// Kept holds the blocks of users' own captures, until the communicator ends.
func (s *LaneShares) Kept() *LaneBlocks { return &s.kept }

// Take reduces blocks, the number that each lane wants for messages that start together, to what each lane gets on a
// device with room for that many. With keep nil the messages are queued now, and have the blocks until Free. With keep,
// of a graph or Kept, they are captured and may run at any time: their blocks are added to it, and a graph's are taken
// until GiveUp.
func (s *LaneShares) Take(room int, blocks LaneBlocks, keep *LaneBlocks) {
	free, more := int32(room), int32(0) // more: blocks wanted beyond one for each lane
	again := s.graphs[keep]             // launches of one graph never overlap
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

// heldBut returns how many blocks captured messages of a lane have, except the blocks of graph.
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

// GiveUp gives up a graph's blocks.
func (s *LaneShares) GiveUp(graph *LaneBlocks) {
	if !s.graphs[graph] {
		return
	}
	delete(s.graphs, graph)
	for i := range s.lanes {
		s.lanes[i].held = s.heldBut(i, nil)
	}
}

// Queued says that what was being queued on a lane has been queued.
func (s *LaneShares) Queued(lane int) { s.lanes[lane].open = false }

// Spare reports whether Free would give blocks to other lanes, once all that is queued on the lane has ended.
func (s *LaneShares) Spare(lane int) bool { return s.lanes[lane].queued > 1 && !s.lanes[lane].open }

// Free frees the blocks of what was queued on a lane.
func (s *LaneShares) Free(lane int) { s.lanes[lane].queued = 0 }
