package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// DeviceMessage is one send or receive of device memory.
type DeviceMessage struct {
	Vec  team.Vec
	Peer int
	Recv bool

	buf  team.Buf // of a receive
	word uint64   // where it is for the sender; 0: staged
	to   uint64   // of a send that a copy engine does: where to, here, and what the receiver's word must be then
	want uint64
}

// Messages are sends and receives of device memory that are started together. Implements team.Operation.
type Messages []DeviceMessage

// Len is their number.
func (ms Messages) Len() int { return len(ms) }

// Vec is the memory of one.
func (ms Messages) Vec(i int) *team.Vec { return &ms[i].Vec }

// Clone is a copy.
func (ms Messages) Clone() team.Operation { return slices.Clone(ms) }

// messagesOf are those that w is, or nil.
func messagesOf(w *team.Work) Messages {
	ms, _ := w.Other.(Messages)
	return ms
}

// OnDevice reports whether v is a message's memory on a device, or is to be, on s, a stream of one.
func OnDevice(s *Stream, v *team.Vec) bool {
	return !v.Dev.IsHost() || gpuStreamOf(s) != nil
}

// Transfer is messages that were started together.
type Transfer struct {
	m     *gpuMail
	op    string
	line  int // of the status page
	after *mark
	done  bool
	err   error
}

// Transfer starts ms together. On a stream that is all, and the Transfer is nil, as it is where r takes them; else the
// caller waits for it. If anything is wrong with one of them, none is started.
func (m *Mail) Transfer(ctx context.Context, s *Stream, r Recorder, op string, ms []DeviceMessage) (*Transfer, error) {
	ctx = Context(ctx)
	c := m.c
	fail := func(peer int, err error) (*Transfer, error) {
		e := m.Error(op, peer, "", err)
		if d := c.device; d != nil {
			e.Device = d.gpu.ctx.Device()
		}
		return nil, e
	}
	if err := context.Cause(ctx); err != nil {
		return fail(-1, err)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	for i := range ms {
		if err := m.CheckDevice(s, op, &ms[i]); err != nil {
			return nil, err
		}
	}
	if op == "send" && ms[0].Peer == c.Rank() && ms[0].Vec.Bytes() > kernels.EagerBytes {
		return fail(c.Rank(), waitsForItself(ms[0].Vec.Bytes(), kernels.EagerBytes))
	}
	if r != nil {
		return nil, r.Record(c, team.Work{Kind: team.KindMessages, Other: Messages(ms)})
	}
	if err := m.lostPeer(op); err != nil {
		return nil, m.Fail(op, -1, err)
	}
	t, err := m.gpu.start(ctx, gpuStreamOf(s), op, ms)
	var e *fault.Error
	if err != nil && !errors.As(err, &e) {
		return fail(-1, err)
	}
	return t, err
}

// CheckDevice is what is wrong with a message for s, or for none, as an error of op, or nil.
func (m *Mail) CheckDevice(s *Stream, op string, h *DeviceMessage) error {
	peer, err := h.Peer, m.checkDevice(s, h)
	if uint(peer) >= uint(len(m.boxes)) {
		peer, err = -1, fmt.Errorf("rank %d of %d ranks: %w", h.Peer, len(m.boxes), fault.ErrArgument)
	}
	if err == nil {
		return nil
	}
	return m.Error(op, peer, "", err)
}

// checkDevice is what is wrong with a message, or nil.
func (m *Mail) checkDevice(s *Stream, h *DeviceMessage) error {
	mine, none := m.c.GPU()
	switch dev := h.Vec.Dev; {
	case none != nil:
		on := dev
		if on.IsHost() {
			on = s.Device()
		}
		return fmt.Errorf("memory or a stream on %v: %w", on, none)
	case dev.IsHost() && h.Vec.Bytes() > 0 && s != nil:
		return fmt.Errorf("the memory is on %v, the stream on %v: %w", dev, s.Device(), fault.ErrArgument)
	case dev.IsHost() && h.Vec.Bytes() > 0:
		return fmt.Errorf("memory on %v and on %v together: %w", dev, mine, fault.ErrArgument)
	case !dev.IsHost() && dev != mine:
		return fmt.Errorf("memory on %v, and this rank's device is %v: %w", dev, mine, fault.ErrArgument)
	case s != nil && s.Device() != mine:
		return fmt.Errorf("memory on %v, and the stream is on %v: %w", mine, s.Device(), fault.ErrArgument)
	}
	return h.Vec.Check()
}

// lostPeer is why what is queued now would wait in vain, or nil: a rank has seen a failure.
func (m *Mail) lostPeer(op string) error {
	w := team.Waiting{Op: op, Step: "launch"}
	return m.gated(op, -1, func() *fault.Error {
		for r := range m.team.Peers {
			if v := m.team.Peers[r].Lost(); v != 0 && r != m.c.Rank() {
				return m.team.LostError(&w, r, v)
			}
		}
		return nil
	})
}

// start queues ms on s, or on a stream of a lane's own.
func (m *gpuMail) start(ctx context.Context, s *gpuStream, op string, ms []DeviceMessage) (*Transfer, error) {
	if _, err := m.load(); err != nil {
		return nil, err
	}
	graph := s != nil && s.capturing()
	if graph {
		for i := range ms {
			if err := m.d.keep(&ms[i].Vec); err != nil {
				return nil, err
			}
		}
	}
	held, err := m.prepare(ms, graph)
	defer letGo(ms, held)
	if err != nil {
		return nil, err
	}
	t := &Transfer{m: m, op: op}
	if s == nil {
		select {
		case t.line = <-m.spare:
		case <-ctx.Done():
			return nil, fault.Ended(ctx)
		}
	}
	var begun bool
	t.after, begun, err = m.queue(s, t.line, ms)
	switch {
	case begun, err != nil && !errors.Is(err, fault.ErrClosed) && !errors.Is(err, fault.ErrLimit):
		return nil, m.d.c.failOpen(m.error(op, "device", err)) // the line stays with what may be queued
	case err != nil:
		m.giveBack(t.line)
		return nil, err
	}
	m.note(ms)
	if s != nil {
		m.letGo(t.after)
		return nil, nil
	}
	return t, nil
}

func (m *gpuMail) giveBack(line int) {
	if line > 0 {
		m.spare <- line
	}
}

func (m *gpuMail) error(op, step string, err error) *fault.Error {
	e := m.mail.Error(op, -1, step, err)
	e.Device = m.d.gpu.ctx.Device()
	return e
}

// Test reports whether all messages are done; then its error is theirs.
func (t *Transfer) Test() (bool, error) {
	if t.done {
		return true, t.err
	}
	done, err := t.m.reached(t.after)
	if !done && err == nil {
		return false, nil
	}
	return true, t.finish(err)
}

// Wait waits until all are done. If ctx ends first, the communicator is broken, and they end at once.
func (t *Transfer) Wait(ctx context.Context) error {
	if t.done {
		return t.err
	}
	c := t.m.d.c
	var since time.Time // that the communicator is broken
	err := await(func() (bool, error) { return t.m.reached(t.after) }, func(time.Duration) error {
		if ctx.Err() != nil {
			c.failOpen(t.m.error(t.op, "wait", fault.Ended(ctx))) // kernels end soon, and until then they use the memory
		}
		switch {
		case c.broken.Load() == nil:
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > deviceGrace:
			return fmt.Errorf("what is queued has not ended after %v: %w", deviceGrace, fault.ErrTimeout)
		}
		return nil
	})
	return t.finish(err)
}

// finish takes what the kernels have said; err is what the driver says.
func (t *Transfer) finish(err error) error {
	m := t.m
	c := m.d.c
	m.letGo(t.after)
	t.done, t.after = true, nil
	if err != nil {
		t.err = c.failOpen(m.error(t.op, "device", err))
		return t.err // the line stays with what may still write it
	}
	var e *fault.Error
	var fatal bool
	m.d.mu.Lock()
	closed := m.d.gone
	if !closed {
		s := m.status(t.line)
		if e, fatal = m.told(t.op, s); fatal && errors.Is(e, fault.ErrAborted) {
			if first := m.fatal(); first != nil {
				e = first
			}
		}
		if !fatal {
			s.Error.Store(kernels.OK)
			s.Claim.Store(0)
			m.giveBack(t.line)
		}
	}
	m.d.mu.Unlock()
	if fatal {
		c.failOpen(e)
	}
	switch b := c.broken.Load(); {
	case b != nil && (fatal || closed):
		t.err = b
	case e != nil:
		t.err = e
	}
	return t.err // nil for messages that were done before another one broke the communicator
}

// prepare holds the memory of ms, and finds the registrations of what is received. held is how many it holds.
func (m *gpuMail) prepare(ms []DeviceMessage, graph bool) (held int, err error) {
	for i := range ms {
		h := &ms[i]
		if h.Vec.Alloc != nil && !h.Vec.Alloc.Hold() {
			return i, fmt.Errorf("the buffer at %p has been freed: %w", h.Vec.Ptr, fault.ErrStale)
		}
		if err := m.acquire(h, graph); err != nil {
			return i + 1, err
		}
	}
	return len(ms), nil
}

// letGo undoes prepare.
func letGo(ms []DeviceMessage, held int) {
	for i := range ms[:held] {
		h := &ms[i]
		if h.buf.Claim != nil {
			h.buf.Claim.Release()
			h.buf.Claim = nil
		}
		if h.Vec.Alloc != nil {
			h.Vec.Alloc.Release()
		}
	}
}

// acquire finds or makes the registration of what is received, unless it is small, or its word is known: see prepare.
func (m *gpuMail) acquire(h *DeviceMessage, graph bool) error {
	c := m.d.c
	switch {
	case h.Vec.Bytes() <= kernels.EagerBytes:
		h.buf = team.Buf{Why: "small enough to travel in packets"}
		return nil
	case !h.Recv:
		return nil
	case h.Peer == c.rank:
		h.word = kernels.Word(0, int(uintptr(h.Vec.Ptr)))
		return nil
	}
	h.buf, h.word = team.Buf{}, 0
	if err := m.d.acquireOne(&team.Work{Graph: graph}, &h.Vec, &h.buf); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	h.word = deviceWord(&h.buf)
	return nil
}

// note keeps for LastOp and Stats how ms went, of which LastOp tells the last one. How a receive's bytes come is the
// sender's business: it is told as this rank's own sends went.
func (m *gpuMail) note(ms []DeviceMessage) {
	seq := m.number(1) + 1
	for i := range ms {
		k, way, b := ms[i].went(ms)
		m.d.c.NoteMessage(k, seq, ms[i].Vec.Bytes(), way, b)
	}
}

// number takes n sequence numbers: those after the one that it returns.
func (m *gpuMail) number(n uint64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ops += n
	return m.ops - n
}

// went is how a message goes that is started with all.
func (h *DeviceMessage) went(all []DeviceMessage) (k team.Kind, way string, b BufferInfo) {
	k, way, b = team.KindSend, "push", BufferInfo{Used: h.Vec.Bytes() > 0, Direct: true}
	for i := range all {
		if all[i].to != 0 {
			way = "copy engine"
		}
	}
	if h.Recv {
		k, b.Direct, b.Why = team.KindRecv, h.word != 0, h.buf.Why
	}
	if h.Vec.Bytes() <= kernels.EagerBytes {
		way, b.Direct, b.Why = "packets", false, h.buf.Why
	}
	return k, way, b
}
