package mail

import (
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// batch is messages that are started together, while kernels' parameters are made of them.
type batch struct {
	p      kernels.MailParams
	ms     []DeviceMessage
	lanes  gpu.LaneSet
	blocks gpu.LaneBlocks // that each lane gets
	each   []batchLane
	most   int  // lanes of a kernel
	copies bool // by copy engines
}

// batchLane is a batch's messages of one lane.
type batchLane struct {
	messages int
	copies   bool
	row      uint32 // of p.Lane, while the lane is in a kernel that is laid out
}

// newBatch is one for so many lanes.
func newBatch(lanes int) *batch {
	return &batch{blocks: make(gpu.LaneBlocks, lanes), each: make([]batchLane, lanes), most: kernels.MaxLanes}
}

// set makes b that of ms.
func (b *batch) set(ms []DeviceMessage) {
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

// apart reports whether a lane's messages take more than one kernel.
func (b *batch) apart(lane int) bool {
	return b.each[lane].copies || b.each[lane].messages > kernels.MaxMessages
}

// part takes from left, some of b's lanes, the first one and those that find room in a kernel with it.
func (b *batch) part(left *gpu.LaneSet) (part gpu.LaneSet) {
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
