package mail

import (
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// Sizes of messages, in bytes, and of what does them.
const (
	mailPacketBlock = 4 << 10  // that a block puts into packets at once
	mailPushBlock   = 16 << 10 // less is not worth a block
	mailPieceBlock  = 64 << 10 // likewise, of what comes through the FIFO
	mailPushBlocks  = 32       // that send one message; twice as many are a few percent faster
	mailTakeBlocks  = 16       // that take one out of the FIFO, or send or take packets
)

// blocks is how many blocks do a message best.
func (h *DeviceMessage) blocks() int32 {
	n := h.Vec.Bytes()
	want, most := n/mailPushBlock, mailPushBlocks
	switch {
	case n <= kernels.EagerBytes:
		want, most = (n+mailPacketBlock-1)/mailPacketBlock, mailTakeBlocks
	case h.Recv && h.word != 0:
		want = 1 // which waits
	case h.Recv:
		want, most = n/mailPieceBlock, mailTakeBlocks
	}
	return int32(max(1, min(want, most)))
}

// share sets blocks to how many each lane of ms gets; keep is as LaneShares.Take has it. The lanes are locked, unless ms
// are a graph's.
func (m *gpuMail) share(blocks gpu.LaneBlocks, ms []DeviceMessage, keep *gpu.LaneBlocks) {
	clear(blocks)
	for i := range ms {
		l := laneOf(ms[i].Peer, ms[i].Recv)
		blocks[l] = max(blocks[l], ms[i].blocks())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, n := range blocks {
		if n == 0 && m.shares.Spare(i) {
			m.forget(i)
		}
	}
	m.shares.Take(m.d.Room.Messages, blocks, keep)
}

// giveUp gives a graph's blocks up.
func (m *gpuMail) giveUp(graph *gpu.LaneBlocks) {
	m.mu.Lock()
	m.shares.GiveUp(graph)
	m.mu.Unlock()
}

// forget looks whether all that was queued on the lane has ended, so that its blocks can be another lane's. The caller
// has mu, which forget gives up while it asks the driver.
func (m *gpuMail) forget(lane int) {
	k := m.lanes[lane].last
	if k == nil {
		return
	}
	k.users++
	m.mu.Unlock()
	done, err := m.reached(k)
	m.mu.Lock()
	if done && err == nil && m.lanes[lane].last == k && m.shares.Spare(lane) {
		m.shares.Free(lane)
	}
	m.drop(k)
}
