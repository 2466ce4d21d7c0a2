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

// set makes p the partition of ms.
func (p *partition) set(ms []Message) {
	p.ms, p.lanes, p.copies = ms, gpu.LaneSet{}, false
	clear(p.each)
	for i := range ms {
		msg := &ms[i]
		lane := laneOf(msg.Peer, msg.Recv)
		p.lanes.Add(lane)
		p.each[lane].messages++
		if msg.to != 0 {
			p.each[lane].copies, p.copies = true, true
		}
	}
}

// apart reports whether a lane's messages need more than one kernel.
func (p *partition) apart(lane int) bool {
	return p.each[lane].copies || p.each[lane].messages > kernels.MaxMessages
}

// part removes from left, a set of p's lanes, the first lane and all lanes that fit into one kernel with it.
func (p *partition) part(left *gpu.LaneSet) (part gpu.LaneSet) {
	lanes, messages := 0, 0
	for lane := left.Next(0); lane >= 0 && lanes < p.most; lane = left.Next(lane + 1) {
		apart, n := p.apart(lane), p.each[lane].messages
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
