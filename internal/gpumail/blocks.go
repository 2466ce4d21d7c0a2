package gpumail

import (
	"github.com/ubcoll/ubcoll/internal/gpu"
)

// Sizes in bytes, and numbers of blocks.
const (
	packetBlock = 4 << 10  // what a block puts into packets at once
	pushBlock   = 16 << 10 // a block for less is not worth it
	pieceBlock  = 64 << 10 // likewise, through the FIFO
	pushBlocks  = 32       // most blocks that push a message; twice as many are a few percent faster
	takeBlocks  = 16       // most blocks that take a message out of the FIFO, or send or take packets
)

// blocks returns how many blocks do msg best.
func (m *messages) blocks(msg *Message) int32 {
	n := msg.Vec.Bytes()
	want, most := n/pushBlock, pushBlocks
	switch {
	case n <= m.eager:
		want, most = (n+packetBlock-1)/packetBlock, takeBlocks
	case msg.Recv && msg.word != 0:
		want = 1 // it only waits
	case msg.Recv:
		want, most = n/pieceBlock, takeBlocks
	}
	return int32(max(1, min(want, most)))
}

// share sets blocks to the number of blocks that each lane of ms gets. keep is as in LaneShares.Take. The caller has
// locked the lanes, unless ms belong to a graph.
func (m *messages) share(blocks gpu.LaneBlocks, ms []Message, keep *gpu.LaneBlocks) {
	clear(blocks)
	for i := range ms {
		l := laneOf(ms[i].Peer, ms[i].Recv)
		blocks[l] = max(blocks[l], m.blocks(&ms[i]))
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

// giveUp returns a graph's blocks.
func (m *messages) giveUp(graph *gpu.LaneBlocks) {
	m.mu.Lock()
	m.shares.GiveUp(graph)
	m.mu.Unlock()
}

// forget frees a lane's blocks for other lanes if all work queued on the lane has ended. The caller has mu; forget
// unlocks it while it asks the driver.
func (m *messages) forget(lane int) {
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
