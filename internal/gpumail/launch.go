package gpumail

import (
	"errors"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// queue queues ms on s, or if s is nil on their first lane's own stream. It returns a mark after them, which the caller
// gives back with putBack. begun says that after an error some work may be queued, or that peers may wait in vain.
func (m *messages) queue(s *gpu.Stream, line int, ms []Message) (k *mark, begun bool, err error) {
	lanes := lanesOf(ms)
	if err := m.lock(lanes); err != nil {
		return nil, false, err
	}
	defer m.unlock(lanes)
	if s == nil {
		if s, err = m.own(lanes.Next(0)); err != nil {
			return nil, false, err
		}
	} else {
		s.Enter(m.d, m.d.Domain)
	}
	done, err := m.d.Domain.BeginQueueing(s)
	if err != nil {
		return nil, false, err
	}
	defer done()
	if k, err = m.take(s); err != nil {
		return nil, false, err
	}
	m.d.Watch()
	err = s.Use(func(cu *cuda.Stream) error {
		begun = true
		if s.Capturing() { // whoever captures decides when it runs, and after what
			return m.launch(cu, line, ms, m.shares.Kept())
		}
		if err := m.order(lanes, s, cu); err != nil {
			return err
		}
		if err := m.launch(cu, line, ms, nil); err != nil {
			return err
		}
		s.Follows(0, 0) // the room of messages is separate from that of collectives
		return m.set(k, lanes, cu)
	})
	if err != nil {
		m.putBack(k)
		if begun {
			m.noteUnmarked(s)
		}
		return nil, begun, err
	}
	return k, false, nil
}

// launch queues ms on cu: as one kernel, unless they are too many or copy engines do some. In a capture, the blocks are
// added to keep.
func (m *messages) launch(cu *cuda.Stream, line int, ms []Message, keep *gpu.LaneBlocks) error {
	if len(ms) == 0 {
		return nil
	}
	p := m.partitions.Get().(*partition)
	defer func() {
		p.ms = nil
		m.partitions.Put(p)
	}()
	p.set(ms)
	m.share(p.blocks, ms, keep)
	m.fill(&p.params, line)
	if send := p.oneCopy(); send != nil {
		return m.around(cu, p, send)
	}
	left := p.lanes
	first := p.part(&left)
	if left.Empty() {
		return m.run(cu, p, &first)
	}
	return m.fork(cu, p, &first, &left, keep != nil)
}

// run queues a part of p on cu: as one kernel, or as several if its only lane needs that.
func (m *messages) run(cu *cuda.Stream, p *partition, part *gpu.LaneSet) error {
	if lane := part.Next(0); p.apart(lane) {
		return m.chain(cu, p, lane)
	}
	return m.kernel(cu, &p.params, m.lay(p, part, 0))
}

// lay sets p's parameters for a part of p and returns how many blocks it takes. Form 0 means each whole message; other
// forms mean what comes before a copy, or after it, with one block for each lane.
func (m *messages) lay(p *partition, part *gpu.LaneSet, form int) (grid int) {
	params := &p.params
	params.Lanes = 0
	messages := 0
	for lane := part.Next(0); lane >= 0; lane = part.Next(lane + 1) {
		p.each[lane].row = params.Lanes
		m.add(params, lane, messages)
		messages += p.each[lane].messages
	}
	for i := range p.ms {
		msg := &p.ms[i]
		lane := laneOf(msg.Peer, msg.Recv)
		if !part.Has(lane) {
			continue
		}
		l := &params.Lane[p.each[lane].row]
		if form != 0 {
			put(params, l, msg.half(form))
			continue
		}
		put(params, l, m.message(msg))
		l.Blocks = max(l.Blocks, uint32(min(m.blocks(msg), p.blocks[lane])))
	}
	for i := range params.Lanes {
		l := &params.Lane[i]
		l.Block = uint32(grid)
		grid += int(l.Blocks)
	}
	if invariants.Enabled {
		p.checkLaid(part, grid)
	}
	return grid
}

// oneCopy returns the send of p that a copy engine does, or nil unless it is the only one and all other messages are
// receives that the senders write directly, each in its own lane, and all fit into one kernel. Then the copy waits for
// nothing but its receiver.
func (p *partition) oneCopy() (send *Message) {
	if !p.copies || len(p.ms) > min(p.most, kernels.MaxMessages) || p.lanes.Len() != len(p.ms) {
		return nil
	}
	for i := range p.ms {
		switch msg := &p.ms[i]; {
		case msg.to != 0 && send == nil:
			send = msg
		case !msg.Recv || msg.word == 0:
			return nil
		}
	}
	return send
}

// around queues messages with one copy, that of oneCopy, without a branch: a kernel tells the senders where to write
// and waits for the receiver; then the copy; then a kernel tells the receiver and waits for the senders.
func (m *messages) around(cu *cuda.Stream, p *partition, send *Message) error {
	if err := m.kernel(cu, &p.params, m.lay(p, &p.lanes, kernels.Await)); err != nil {
		return err
	}
	if err := send.copy(cu); err != nil {
		return err
	}
	return m.kernel(cu, &p.params, m.lay(p, &p.lanes, kernels.Done))
}

// copy queues the copy of m, a send that a copy engine does.
func (m *Message) copy(cu *cuda.Stream) error {
	return cu.Copy(cuda.Addr(m.to), cuda.Addr(uintptr(m.Vec.Ptr)), m.Vec.Bytes())
}

// fill sets the parameters that all kernels have in common.
func (m *messages) fill(params *kernels.MailParams, line int) {
	d := &m.d.Params
	params.Area, params.Status, params.Timeout = d.Area[0], m.d.StatusAddr(m.first+line), d.Timeout
	l := &m.d.Layout
	params.Boxes, params.Slots, params.Slot, params.Rank = uint64(l.Boxes()), uint32(l.Slots), uint32(l.Slot), d.Rank
}

// add adds a lane with one block to params. Its messages begin at index first.
func (m *messages) add(params *kernels.MailParams, lane, first int) *kernels.Lane {
	l := &params.Lane[params.Lanes]
	params.Lanes++
	peer := lane / 2
	d := m.d.Distance(peer)
	*l = kernels.Lane{Area: m.d.Areas[d], Table: m.d.Tables[d], Peer: uint32(peer), Receives: uint32(lane & 1),
		First: uint32(first), Blocks: 1}
	switch at, extent, offset, ok := m.lanes[lane].fifo.Ready(); {
	case ok:
		l.FIFO, l.FIFOWord = at, kernels.Through(extent, offset)
	case d == 0: // a rank stages no messages to itself
	case lane&1 == 1:
		l.FIFO = m.d.Params.Area[0] + uint64(m.d.Layout.FIFO(d))
	default:
		l.FIFO = l.Area + uint64(m.d.Layout.FIFO(m.ranks()-d))
	}
	return l
}

// put adds a message to l, a lane of params, behind those it has.
func put(params *kernels.MailParams, l *kernels.Lane, x kernels.Message) {
	params.Message[l.First+l.Messages] = x
	l.Messages++
}

// kernel queues one kernel.
func (m *messages) kernel(cu *cuda.Stream, params *kernels.MailParams, grid int) error {
	return m.f.Launch(cu, cuda.Launch{Grid: grid, Block: min(m.d.Room.Threads, m.f.MaxThreads)}, kernels.Bytes(params))
}

// fork queues messages that do not fit into one kernel, or that need copy engines. It queues first on cu and each
// further part of left as a branch on another stream, which cu joins. All lanes thus run at the same time, as they do
// in one kernel: share has left room for a block of each, and each waits only for its own peer, whose lanes also run.
// So nothing deadlocks, however lanes are divided into kernels and in whatever order peers queue theirs. Parts in
// sequence could deadlock: a peer may wait, in another call, for the last part before it queues what the first part
// waits for.
//
// The joins are queued after all branches' kernels: streams may share a device queue, where a kernel behind a join
// would wait for the kernel before the join.
func (m *messages) fork(cu *cuda.Stream, p *partition, first, left *gpu.LaneSet, capturing bool) (err error) {
	if capturing {
		m.branches.Lock()
		defer m.branches.Unlock()
	}
	var events []*cuda.Event
	defer func() {
		for _, e := range events {
			err = errors.Join(err, e.Close())
		}
	}()
	event := func(on *cuda.Stream) (*cuda.Event, error) {
		e, err := m.d.Domain.Context.NewEvent(false)
		if err == nil {
			events = append(events, e)
			err = e.Record(on)
		}
		return e, err
	}
	begin, err := event(cu)
	if err != nil {
		return err
	}
	var branches []*cuda.Stream
	for !left.Empty() {
		part := p.part(left)
		branch, err := m.branch(cu, part.Next(0), capturing, branches)
		if err != nil {
			return err
		}
		branches = append(branches, branch)
		if err := branch.Wait(begin); err != nil {
			return err
		}
		if err := m.run(branch, p, &part); err != nil {
			return err
		}
	}
	if err := m.run(cu, p, first); err != nil {
		return err
	}
	for _, branch := range branches {
		end, err := event(branch)
		if err != nil {
			return err
		}
		if err := cu.Wait(end); err != nil {
			return err
		}
	}
	return nil
}

// branch returns a stream for a branch from cu that begins with lane and is not among taken: the lane's own stream,
// which this call has locked, or, in a capture, one that is in no other capture.
func (m *messages) branch(cu *cuda.Stream, lane int, capturing bool, taken []*cuda.Stream) (*cuda.Stream, error) {
	if capturing {
		return m.branches.Take(m.d.Domain, cu, taken)
	}
	s, err := m.own(lane)
	if err == nil {
		err = m.d.Domain.Admit(s)
	}
	if err != nil {
		return nil, err
	}
	return s.Driver, nil
}

// chain queues a lane's messages in order, with copies between the kernels.
func (m *messages) chain(cu *cuda.Stream, p *partition, lane int) error {
	params := &p.params
	params.Lanes = 0
	l := m.add(params, lane, 0)
	flush := func() error {
		if l.Messages == 0 {
			return nil
		}
		err := m.kernel(cu, params, int(l.Blocks))
		l.Messages, l.Blocks = 0, 1
		return err
	}
	for i := range p.ms {
		msg := &p.ms[i]
		if laneOf(msg.Peer, msg.Recv) != lane {
			continue
		}
		if msg.to == 0 {
			put(params, l, m.message(msg))
			l.Blocks = max(l.Blocks, uint32(min(m.blocks(msg), p.blocks[lane])))
			if l.Messages < kernels.MaxMessages {
				continue
			}
			if err := flush(); err != nil {
				return err
			}
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		put(params, l, msg.half(kernels.Await))
		if err := flush(); err != nil {
			return err
		}
		if err := msg.copy(cu); err != nil {
			return err
		}
		put(params, l, msg.half(kernels.Done))
		if err := flush(); err != nil {
			return err
		}
	}
	return flush()
}
