package gpumail

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Message is one send or receive of device memory.
type Message struct {
	mail.Call

	buf  team.Buf // for a receive
	word uint64   // the address that the sender uses; 0: staged
	to   uint64   // for a send by a copy engine: its destination here, and the word that the receiver must have announced
	want uint64
	seq  uint64 // number of the queued operation
}

// messagesFor returns the messages of calls.
func messagesFor(calls []mail.Call) []Message {
	ms := make([]Message, len(calls))
	for i := range calls {
		ms[i].Call = calls[i]
	}
	return ms
}

// messagesOf returns w's messages of device memory, or nil.
func messagesOf(w *team.Work) []Message {
	if b, ok := w.Other.(*Batch); ok {
		return b.messages
	}
	return nil
}

// OnDevice reports whether v is memory on a device, or s is a device's stream: the message is then a device's.
func OnDevice(s *engine.Stream, v *team.Vec) bool {
	return !v.Dev.IsHost() || gpu.StreamOf(s) != nil
}

// Check returns what is wrong with a message for stream s (or none), as an error of op, or nil.
func (m *Mail) Check(s *engine.Stream, op string, k *mail.Call) error {
	peer, err := k.Peer, m.unfit(s, &k.Vec)
	if n := m.c.Size(); uint(peer) >= uint(n) {
		peer, err = -1, fmt.Errorf("rank %d of %d ranks: %w", k.Peer, n, fault.ErrArgument)
	}
	if err == nil {
		return nil
	}
	return mail.Of(m.c).Error(op, peer, "", err)
}

// unfit returns what is wrong with the memory of a message, or nil.
func (m *Mail) unfit(s *engine.Stream, v *team.Vec) error {
	mine, none := m.c.GPU()
	on := v.Dev
	if on.IsHost() && s != nil {
		on = s.Device()
	}
	switch dev := v.Dev; {
	case none != nil:
		return fmt.Errorf("memory or a stream on %v: %w", on, none)
	case dev.IsHost() && v.Bytes() > 0 && s != nil:
		return fmt.Errorf("the memory is on %v, the stream on %v: %w", dev, s.Device(), fault.ErrArgument)
	case dev.IsHost() && v.Bytes() > 0:
		return fmt.Errorf("memory on %v and on %v together: %w", dev, mine, fault.ErrArgument)
	case !dev.IsHost() && dev != mine:
		return fmt.Errorf("memory on %v, and this rank's device is %v: %w", dev, mine, fault.ErrArgument)
	case s != nil && s.Device() != mine:
		return fmt.Errorf("memory on %v, and the stream is on %v: %w", mine, s.Device(), fault.ErrArgument)
	}
	return v.Check()
}

// prepare holds the memory of ms, and registers the receives' memory. held is how many of ms it holds.
func (m *messages) prepare(ms []Message, graph bool) (held int, err error) {
	for i := range ms {
		msg := &ms[i]
		if msg.Vec.Alloc != nil && !msg.Vec.Alloc.Hold() {
			return i, fmt.Errorf("the buffer at %p has been freed: %w", msg.Vec.Ptr, fault.ErrStale)
		}
		if err := m.acquire(msg, graph); err != nil {
			return i + 1, err
		}
	}
	return len(ms), nil
}

// prepareFar is prepare for messages to and from other hosts, which need no registration.
func (m *messages) prepareFar(ms []Message, graph bool) (held int, err error) {
	for i := range ms {
		v := &ms[i].Vec
		if graph {
			if err := m.d.Keep(v); err != nil {
				return i, err
			}
		}
		if v.Alloc != nil && !v.Alloc.Hold() {
			return i, fmt.Errorf("the buffer at %p has been freed: %w", v.Ptr, fault.ErrStale)
		}
	}
	return len(ms), nil
}

// split divides messages into those with ranks of this host, which it numbers as the team does, and the others.
func (m *messages) split(ms []Message) (near, away []Message) {
	if m.far == nil {
		return ms, nil
	}
	for i := range ms {
		msg := ms[i]
		if r := m.c.Team().Index(msg.Peer); r >= 0 {
			msg.Peer = r
			near = append(near, msg)
		} else {
			away = append(away, msg)
		}
	}
	return near, away
}

// unprepare undoes prepare.
func unprepare(ms []Message, held int) {
	for i := range ms[:held] {
		msg := &ms[i]
		if msg.buf.Claim != nil {
			msg.buf.Claim.Release()
			msg.buf.Claim = nil
		}
		if msg.Vec.Alloc != nil {
			msg.Vec.Alloc.Release()
		}
	}
}

// acquire finds or makes the registration of a receive's memory, unless it is small or comes from this rank itself.
func (m *messages) acquire(msg *Message, graph bool) error {
	switch {
	case msg.Vec.Bytes() <= m.eager:
		msg.buf = team.Buf{Why: "small enough to travel in packets"}
		return nil
	case !msg.Recv:
		return nil
	case msg.Peer == m.c.Team().Rank():
		msg.word = kernels.Word(0, int(uintptr(msg.Vec.Ptr)))
		return nil
	}
	msg.buf, msg.word = team.Buf{}, 0
	if err := m.d.AcquireBuffer(&team.Work{Graph: graph}, &msg.Vec, &msg.buf, !graph); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	msg.word = gpu.WordOf(&msg.buf)
	return nil
}

// throughFIFO returns the lane's large FIFO if msg is, or should be, received through it; nil if the small one is enough.
func (m *messages) throughFIFO(msg *Message) *gpu.Extra {
	l := &m.d.Layout
	least := max(m.eager, fifoLeast*l.Slots*l.Slot)
	if !msg.Recv || msg.word != 0 || msg.buf.NotImported || msg.Vec.Bytes() <= least {
		return nil
	}
	return &m.lanes[laneOf(msg.Peer, true)].fifo
}

// fifoLeast is how often a message must fill the small FIFO before a larger one is made.
const fifoLeast = 4

// note records ms for LastOp and Stats; LastOp shows the last of them. Only the sender knows how a receive's bytes
// come, so a receive is recorded like this rank's own sends.
func (m *messages) note(ms []Message) {
	seq := m.number(1) + 1
	for i := range ms {
		ms[i].seq = seq
		n := m.noteOf(&ms[i], ms)
		m.c.NoteMessage(n.Info())
	}
}

// number reserves the n sequence numbers after the one that it returns.
func (m *messages) number(n uint64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ops += n
	return m.ops - n
}

// noteOf returns how msg goes, which is started together with all.
func (m *messages) noteOf(msg *Message, all []Message) team.MessageNote {
	n := team.MessageNote{Kind: team.KindSend, Direct: true, Device: true, Seq: msg.seq, Bytes: msg.Vec.Bytes(),
		Algorithm: "push"}
	for i := range all {
		if all[i].to != 0 {
			n.Algorithm = "copy engine"
		}
	}
	if msg.Recv {
		n.Kind, n.Direct, n.Why = team.KindRecv, msg.word != 0, msg.buf.Why
	}
	if n.Bytes <= m.eager {
		n.Algorithm, n.Direct, n.Why = "packets", false, msg.buf.Why
	}
	return n
}

// lanesOf returns the set of lanes of ms.
func lanesOf(ms []Message) (lanes gpu.LaneSet) {
	for i := range ms {
		lanes.Add(laneOf(ms[i].Peer, ms[i].Recv))
	}
	return lanes
}

// message returns msg as a kernel's parameter.
func (m *messages) message(msg *Message) kernels.Message {
	form := kernels.ByPackets
	if msg.Vec.Bytes() > m.eager {
		form = kernels.ByPush
	}
	return kernels.Message{At: uint64(uintptr(msg.Vec.Ptr)), Bytes: uint64(msg.Vec.Bytes()), Word: msg.word,
		Head: kernels.Head(form, msg.Vec.Type, msg.Vec.Len)}
}

// half returns the part of m before a copy, or after it, as a kernel's parameter.
func (m *Message) half(form int) kernels.Message {
	word := m.word
	if !m.Recv {
		word = m.want
	}
	return kernels.Message{Word: word, Head: kernels.Head(form, m.Vec.Type, m.Vec.Len)}
}

// notes describes messages that are started together, but for those with ranks of other hosts; those of a graph have no numbers.
func (m *messages) notes(ms []Message) (ns []team.MessageNote) {
	near, _ := m.split(ms)
	for i := range near {
		ns = append(ns, m.noteOf(&near[i], near))
	}
	return ns
}
