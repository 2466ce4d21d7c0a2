package mail

import (
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

// laneBlocks are blocks by lane.
type laneBlocks [kernels.MaxLanes]int32

// share is how many blocks each lane of ms gets. The blocks of all lanes find room on the device at the same time: one
// that waits for its peer must not keep out the one that this peer waits for. So a lane gets what it wants as far as
// the others leave it, and those that have nothing queued leave all but one block. What is captured may run at any
// time: its blocks are added to keep, or nil if ms are not. The lanes are locked.
func (m *gpuMail) share(ms []DeviceMessage, keep *laneBlocks) (blocks laneBlocks) {
	for i := range ms {
		l := laneOf(ms[i].Peer, ms[i].Recv)
		blocks[l] = max(blocks[l], ms[i].blocks())
	}
	free, more := int32(m.d.Room.Messages), int32(0) // more: what is wanted beyond one block for each
	for i := range 2 * len(m.mail.boxes) {
		if blocks[i] > 0 {
			free--
			more += blocks[i] - 1
			continue
		}
		m.forget(i)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range 2 * len(m.mail.boxes) {
		if blocks[i] == 0 {
			free -= max(m.lanes[i].blocks, m.held(i, keep), 1)
		}
	}
	for i, n := range blocks {
		if n == 0 {
			continue
		}
		if more > max(free, 0) {
			blocks[i] = 1 + (n-1)*max(free, 0)/more
		}
		if keep != nil {
			keep[i] = max(keep[i], blocks[i])
		} else {
			l := &m.lanes[i]
			l.blocks, l.queuing = max(l.blocks, blocks[i]), true
		}
	}
	if keep != nil && keep != &m.kept {
		m.graphs[keep] = true
	}
	return blocks
}

// held are the blocks that captured messages of a lane have, but for those of a graph, which runs one call after the
// other. The caller has mu.
func (m *gpuMail) held(lane int, graph *laneBlocks) int32 {
	n := m.kept[lane]
	for g := range m.graphs {
		if g != graph {
			n = max(n, g[lane])
		}
	}
	return n
}

// giveUp gives a graph's blocks up.
func (m *gpuMail) giveUp(graph *laneBlocks) {
	m.mu.Lock()
	delete(m.graphs, graph)
	m.mu.Unlock()
}

// forget looks whether all that was queued on the lane has ended, so that its blocks can be another lane's.
func (m *gpuMail) forget(lane int) {
	l := &m.lanes[lane]
	m.mu.Lock()
	k := l.last
	if l.blocks <= 1 || l.queuing || k == nil {
		m.mu.Unlock()
		return
	}
	k.users++
	m.mu.Unlock()
	done, err := m.reached(k)
	m.mu.Lock()
	defer m.mu.Unlock()
	if done && err == nil && l.last == k && !l.queuing {
		l.blocks = 0
	}
	m.drop(k)
}
