package gpumail

import (
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// partition is a set of messages that start together, while they are divided into kernels.
type partition struct {
	params kernels.MailParams
	ms     []Message
	lanes  gpu.LaneSet
	blocks gpu.LaneBlocks // for each lane
	each   []laneParts
	most   int  // most lanes that a kernel takes
	copies bool // copy engines do some
}

// laneParts is a partition's messages of one lane.
type laneParts struct {
	messages int
	copies   bool
	row      uint32 // index in params.Lane, while the lane is in the kernel that is being laid out
}

// newPartition makes a partition for that many lanes.
func newPartition(lanes int) *partition {
	return &partition{blocks: make(gpu.LaneBlocks, lanes), each: make([]laneParts, lanes), most: kernels.MaxLanes}
}

// set makes b the partition of ms.
func (b *partition) set(ms []Message) {
	b.ms, b.lanes, b.copies = ms, gpu.LaneSet{}, false
	clear(b.each)
	for i := range ms {
		h := &ms[i]
		lane := laneOf(h.Peer, h.Recv)
		b.lanes.Add(lane)
		b.each[lane].messages++
		if h.to != 0 {
			b.each[lane].copies, b.copies = true, true
		}
	}
}

// apart reports whether a lane's messages need more than one kernel.
func (b *partition) apart(lane int) bool {
	return b.each[lane].copies || b.each[lane].messages > kernels.MaxMessages
}

// part removes from left, a set of b's lanes, the first lane and all lanes that fit into one kernel with it.
func (b *partition) part(left *gpu.LaneSet) (part gpu.LaneSet) {
	lanes, messages := 0, 0
	for lane := left.Next(0); lane >= 0 && lanes < b.most; lane = left.Next(lane + 1) {
		apart, n := b.apart(lane), b.each[lane].messages
		if lanes > 0 && (apart || messages+n > kernels.MaxMessages) {
			continue
		}
		part.Add(lane)
		left.Remove(lane)
		if lanes, messages = lanes+1, messages+n; apart {
			break
		}
	}
	return part
}
