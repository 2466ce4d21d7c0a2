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
func (l *LaneSet) Add(lane int) { l[lane/64] |= 1 << (lane % 64) }

// Remove removes a lane.
func (l *LaneSet) Remove(lane int) { l[lane/64] &^= 1 << (lane % 64) }

// Has reports whether a lane is in the set.
func (l *LaneSet) Has(lane int) bool { return l[lane/64]>>(lane%64)&1 != 0 }

// Empty reports whether the set has no lane.
func (l *LaneSet) Empty() bool { return *l == LaneSet{} }

// Len returns the number of lanes in the set.
func (l *LaneSet) Len() (n int) {
	for _, w := range l {
		n += bits.OnesCount64(w)
	}
	return n
}

// Next returns the first lane of the set that is not below lane, or -1.
func (l *LaneSet) Next(lane int) int {
	for i := lane / 64; i < len(l); i++ {
		if w := l[i] >> (lane % 64) << (lane % 64); w != 0 {
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
func (l *LaneShares) Kept() *LaneBlocks { return &l.kept }

// Take reduces blocks, the number that each lane wants for messages that start together, to what each lane gets on a
// device with room for that many. With keep nil the messages are queued now, and have the blocks until Free. With keep,
// of a graph or Kept, they are captured and may run at any time: their blocks are added to it, and a graph's are taken
// until GiveUp.
func (l *LaneShares) Take(room int, blocks LaneBlocks, keep *LaneBlocks) {
	free, more := int32(room), int32(0) // more: blocks wanted beyond one for each lane
	again := l.graphs[keep]             // launches of one graph never overlap
	for i, n := range blocks {
		if n > 0 {
			free--
			more += n - 1
			continue
		}
		held := l.lanes[i].held
		if again {
			held = l.heldBut(i, keep)
		}
		free -= max(l.lanes[i].queued, held, 1)
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
		lane := &l.lanes[i]
		if keep != nil {
			(*keep)[i] = max((*keep)[i], blocks[i])
			lane.held = max(lane.held, (*keep)[i])
		} else {
			lane.queued, lane.open = max(lane.queued, blocks[i]), true
		}
	}
	if keep != nil && keep != &l.kept {
		l.graphs[keep] = true
	}
}

// heldBut returns how many blocks captured messages of a lane have, except the blocks of graph.
func (l *LaneShares) heldBut(lane int, graph *LaneBlocks) (n int32) {
	if l.kept != nil {
		n = l.kept[lane]
	}
	for g := range l.graphs {
		if g != graph {
			n = max(n, (*g)[lane])
		}
	}
	return n
}

// GiveUp gives up a graph's blocks.
func (l *LaneShares) GiveUp(graph *LaneBlocks) {
	if !l.graphs[graph] {
		return
	}
	delete(l.graphs, graph)
	for i := range l.lanes {
		l.lanes[i].held = l.heldBut(i, nil)
	}
}

// Queued says that what was being queued on a lane has been queued.
func (l *LaneShares) Queued(lane int) { l.lanes[lane].open = false }

// Spare reports whether Free would give blocks to other lanes, once all that is queued on the lane has ended.
func (l *LaneShares) Spare(lane int) bool { return l.lanes[lane].queued > 1 && !l.lanes[lane].open }

// Free frees the blocks of what was queued on a lane.
func (l *LaneShares) Free(lane int) { l.lanes[lane].queued = 0 }
