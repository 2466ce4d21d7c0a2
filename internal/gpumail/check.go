package gpumail

import (
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// This file has the checks of builds with -tags invariants.

// checkLaid checks the parameters of a kernel for a part of p: each lane's messages and blocks come right after those of
// the lane before, all messages of a lane are there, and no lane is there twice. The device numbers a lane's messages in
// this order.
func (p *partition) checkLaid(part *gpu.LaneSet, grid int) {
	params := &p.params
	messages, blocks := uint32(0), uint32(0)
	lane := part.Next(0)
	for i := range params.Lanes {
		l := &params.Lane[i]
		switch {
		case lane < 0 || int(l.Peer) != lane/2 || int(l.Receives) != lane%2:
			invariants.Violated("row %d is the lane of rank %d, receiving: %d, and not lane %d", i, l.Peer, l.Receives, lane)
		case l.First != messages || int(l.Messages) != p.each[lane].messages:
			invariants.Violated("lane %d has %d messages from %d, and not %d from %d", lane, l.Messages, l.First,
				p.each[lane].messages, messages)
		case l.Block != blocks || l.Blocks == 0:
			invariants.Violated("lane %d has %d blocks from %d, which is not %d", lane, l.Blocks, l.Block, blocks)
		}
		messages, blocks = messages+l.Messages, blocks+l.Blocks
		lane = part.Next(lane + 1)
	}
	if lane >= 0 || messages > kernels.MaxMessages || int(blocks) != grid {
		invariants.Violated("%d lanes have %d messages and %d blocks of %d; the next one is lane %d", params.Lanes, messages,
			blocks, grid, lane)
	}
}

// checkUsers checks the uses of a mark after one has ended.
func (k *mark) checkUsers() {
	if k.users < 0 {
		invariants.Violated("a mark has %d uses", k.users)
	}
}
