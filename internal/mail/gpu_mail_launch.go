package mail

import (
	"errors"
	"math/bits"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// queue queues ms on s, or on a stream of their first lane's own, and returns a mark after them, which the caller lets
// go. begun says that an error has left something queued, or has kept from the peers what they wait for.
func (m *gpuMail) queue(s *gpu.Stream, line int, ms []DeviceMessage) (k *mark, begun bool, err error) {
	lanes := lanesOf(ms)
	if err := m.lock(lanes); err != nil {
		return nil, false, err
	}
	defer m.unlock(lanes)
	if s == nil {
		if s, err = m.own(bits.TrailingZeros32(lanes)); err != nil {
			return nil, false, err
		}
	} else {
		s.Enter(m.d, m.d.Domain)
	}
	if k, err = m.take(s); err != nil {
		return nil, false, err
	}
	m.d.Watch()
	err = s.Use(func(cu *cuda.Stream) error {
		begun = true
		if s.Capturing() { // when it runs, and after what, is for whoever captures it to say
			return m.launch(cu, line, ms, &m.kept)
		}
		if err := m.order(lanes, s, cu); err != nil {
			return err
		}
		if err := m.launch(cu, line, ms, nil); err != nil {
			return err
		}
		s.Follows(0, 0) // messages have room of their own
		return m.set(k, lanes, cu)
	})
	if err != nil {
		m.letGo(k)
		if begun {
			m.stray(s)
		}
		return nil, begun, err
	}
	return k, false, nil
}

// mailParams are parameters that are not in use.
var mailParams = sync.Pool{New: func() any { return new(kernels.MailParams) }}

// launch queues ms on cu: in one kernel, unless they are too many, or copy engines do some. In a capture, keep gets the
// blocks.
func (m *gpuMail) launch(cu *cuda.Stream, line int, ms []DeviceMessage, keep *laneBlocks) error {
	if len(ms) == 0 {
		return nil
	}
	blocks := m.share(ms, keep)
	p := m.params(line)
	defer mailParams.Put(p)
	simple := len(ms) <= kernels.MaxMessages
	for i := range ms {
		simple = simple && ms[i].to == 0
	}
	switch {
	case simple:
		return m.kernel(cu, p, m.lay(p, ms, &blocks, 0))
	case oneCopy(ms) != nil:
		return m.around(cu, p, ms)
	}
	return m.fork(cu, p, ms, &blocks, keep != nil)
}

// lay makes p do ms: all of each, or what comes before a copy, or after it, by one block each. It returns how many
// blocks that takes.
func (m *gpuMail) lay(p *kernels.MailParams, ms []DeviceMessage, most *laneBlocks, form int) (grid int) {
	p.Lanes = 0
	for left := lanesOf(ms); left != 0; left &= left - 1 {
		lane := bits.TrailingZeros32(left)
		blocks := int32(1)
		l := m.add(p, lane)
		for i := range ms {
			switch h := &ms[i]; {
			case laneOf(h.Peer, h.Recv) != lane:
			case form != 0:
				l.put(p, h.half(form))
			default:
				l.put(p, h.message())
				blocks = max(blocks, min(h.blocks(), most[lane]))
			}
		}
		l.Block, l.Blocks = uint32(grid), uint32(blocks)
		grid += int(blocks)
	}
	return grid
}

// oneCopy is the send of ms that a copy engine does, if it is the only one, and all others are receives that the
// senders write straight to, of a lane each; or nil. Then what is before the copy waits for nothing but that send's
// receiver.
func oneCopy(ms []DeviceMessage) (send *DeviceMessage) {
	for i := range ms {
		switch h := &ms[i]; {
		case h.to != 0 && send == nil:
			send = h
		case !h.Recv || h.word == 0:
			return nil
		}
	}
	if bits.OnesCount32(lanesOf(ms)) != len(ms) {
		return nil
	}
	return send
}

// around queues messages of which copy engines do one, for which oneCopy is true, without a branch: a kernel that tells
// the senders where to write, and waits for the receiver; the copy; and a kernel that tells the receiver, and waits for
// the senders.
func (m *gpuMail) around(cu *cuda.Stream, p *kernels.MailParams, ms []DeviceMessage) error {
	if err := m.kernel(cu, p, m.lay(p, ms, nil, kernels.Await)); err != nil {
		return err
	}
	if err := oneCopy(ms).copy(cu); err != nil {
		return err
	}
	return m.kernel(cu, p, m.lay(p, ms, nil, kernels.Done))
}

// copy queues the copy of a send that a copy engine does.
func (h *DeviceMessage) copy(cu *cuda.Stream) error {
	return cu.Copy(cuda.Addr(h.to), cuda.Addr(uintptr(h.Vec.Ptr)), h.Vec.Bytes())
}

// params are a kernel's, without lanes.
func (m *gpuMail) params(line int) *kernels.MailParams {
	d := &m.d.Params
	p := mailParams.Get().(*kernels.MailParams)
	p.Area, p.Status, p.Timeout = d.Area[0], m.d.StatusAddr(m.first+line), d.Timeout
	l := &m.d.Layout
	p.Boxes, p.Slots, p.Slot, p.Rank, p.Lanes = uint64(l.Boxes()), uint32(l.Slots), uint32(l.Slot), d.Rank, 0
	return p
}

// laneParams is a lane of a kernel's parameters while they are made.
type laneParams struct{ *kernels.Lane }

// add adds a lane to p, after the last one's messages.
func (m *gpuMail) add(p *kernels.MailParams, lane int) laneParams {
	l := &p.Lane[p.Lanes]
	first := uint32(0)
	if p.Lanes > 0 {
		first = p.Lane[p.Lanes-1].First + p.Lane[p.Lanes-1].Messages
	}
	p.Lanes++
	peer := lane / 2
	d := m.d.Distance(peer)
	*l = kernels.Lane{Area: m.d.Params.Area[d], Table: m.d.Params.Table[d], Peer: uint32(peer), Receives: uint32(lane & 1),
		First: first}
	switch at, extent, offset, ok := m.lanes[lane].fifo.Ready(); {
	case ok:
		l.FIFO, l.FIFOWord = at, kernels.Through(extent, offset)
	case d == 0: // to itself a rank stages nothing
	case lane&1 == 1:
		l.FIFO = m.d.Params.Area[0] + uint64(m.d.Layout.FIFO(d))
	default:
		l.FIFO = l.Area + uint64(m.d.Layout.FIFO(len(m.mail.boxes)-d))
	}
	return laneParams{l}
}

func (l laneParams) put(p *kernels.MailParams, x kernels.Message) {
	p.Message[l.First+l.Messages] = x
	l.Messages++
}

// kernel queues one kernel.
func (m *gpuMail) kernel(cu *cuda.Stream, p *kernels.MailParams, grid int) error {
	return m.f.Launch(cu, cuda.Launch{Grid: grid, Block: min(kernels.MaxThreads, m.f.MaxThreads)}, kernels.Bytes(p))
}

// fork queues what does not fit into one kernel, or is done by copy engines too: each lane is a branch by itself, on
// another stream, and cu goes on when all have joined. So they still all run at the same time.
func (m *gpuMail) fork(cu *cuda.Stream, p *kernels.MailParams, ms []DeviceMessage, most *laneBlocks,
	capturing bool) (err error) {
	if capturing {
		m.forking.Lock() // from taking a stream to where its being captured shows
		defer m.forking.Unlock()
	}
	var events []*cuda.Event
	var taken []*cuda.Stream
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
	here := -1 // the lane whose own stream cu is
	var ends []*cuda.Event
	for left := lanesOf(ms); left != 0; left &= left - 1 {
		lane := bits.TrailingZeros32(left)
		branch, err := m.branch(cu, lane, capturing, taken)
		if err != nil {
			return err
		}
		taken = append(taken, branch)
		if branch == cu {
			here = lane
			continue
		}
		if err := branch.Wait(begin); err != nil {
			return err
		}
		if err := m.chain(branch, p, lane, ms, most); err != nil {
			return err
		}
		end, err := event(branch)
		if err != nil {
			return err
		}
		ends = append(ends, end)
	}
	if here >= 0 {
		if err := m.chain(cu, p, here, ms, most); err != nil {
			return err
		}
	}
	for _, e := range ends {
		if err := cu.Wait(e); err != nil {
			return err
		}
	}
	return nil
}

// branch is a stream for a lane's branch from cu, none of those that are taken: its own one, whose turn it is, or, in a
// capture, one that is in no other.
func (m *gpuMail) branch(cu *cuda.Stream, lane int, capturing bool, taken []*cuda.Stream) (*cuda.Stream, error) {
	if !capturing {
		s, err := m.own(lane)
		if err != nil {
			return nil, err
		}
		return s.Driver, nil
	}
	this, err := cu.Capture()
	if err != nil {
		return nil, err
	}
	for _, b := range m.branches {
		if id, err := b.Capture(); err == nil && (id == 0 || id == this) && !slices.Contains(taken, b) {
			return b, nil
		}
	}
	b, err := m.d.Domain.Context.NewStream()
	if err == nil {
		m.branches = append(m.branches, b)
	}
	return b, err
}

// chain queues a lane's messages, in order.
func (m *gpuMail) chain(cu *cuda.Stream, p *kernels.MailParams, lane int, ms []DeviceMessage,
	most *laneBlocks) error {
	blocks := int32(1)
	p.Lanes = 0
	l := m.add(p, lane)
	flush := func() error {
		if l.Messages == 0 {
			return nil
		}
		l.Blocks = uint32(blocks)
		err := m.kernel(cu, p, int(blocks))
		l.Messages, blocks = 0, 1
		return err
	}
	for i := range ms {
		h := &ms[i]
		if laneOf(h.Peer, h.Recv) != lane {
			continue
		}
		if h.to == 0 {
			l.put(p, h.message())
			blocks = max(blocks, min(h.blocks(), most[lane]))
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
		l.put(p, h.half(kernels.Await))
		if err := flush(); err != nil {
			return err
		}
		if err := h.copy(cu); err != nil {
			return err
		}
		l.put(p, h.half(kernels.Done))
		if err := flush(); err != nil {
			return err
		}
	}
	return flush()
}
