package mail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Call is a send or receive as the caller asked for it.
type Call struct {
	Vec  team.Vec
	Peer int
	Recv bool
}

// Together is messages that start together: those of a group, or of a call on a stream or under recording. A receive
// takes exactly as many elements as it has room for. It implements team.Operation.
type Together struct {
	Requests bool // the caller wants Requests, to ask when they are done
	AtOnce   bool // and fails instead of waiting if too many are not done
	Turn     bool // they run in the communicator's turn, with the collectives of their group

	m        *Mail
	stream   *engine.Stream
	op       string
	onDevice bool
	group    bool
	acquire  Acquire
	host     []Call
	device   deviceMessages
	placed   []*Message // messages of host memory that have their places, on a stream

	// Memory to use again.
	open  []*Message
	notes []team.MessageNote
}

// togethers has empty Togethers to use again.
var togethers = sync.Pool{New: func() any { return new(Together) }}

// Together makes messages for a call op on s; nil is no stream. They are of host memory or, if onDevice, of device
// memory.
func (m *Mail) Together(s *engine.Stream, op string, onDevice bool, acquire Acquire) *Together {
	t := togethers.Get().(*Together)
	t.m, t.stream, t.op, t.onDevice, t.acquire = m, s, op, onDevice, acquire
	return t
}

// PutBack takes back a Together that has run, or whose calls others have copied. Messages of device memory may still be
// under way; their memory is not used again.
func (t *Together) PutBack() {
	if len(t.device) > 0 {
		return
	}
	clear(t.host)
	clear(t.open)
	*t = Together{host: t.host[:0], open: t.open[:0], notes: t.notes[:0]}
	togethers.Put(t)
}

// Recorder is a recorder that has one Together for all messages of host memory, those of a group.
type Recorder interface {
	// Messages returns the Together for the caller to add messages to, between the recording's Enter and Leave.
	Messages(m *Mail, s *engine.Stream, acquire Acquire) *Together
}

// Usable returns why nothing can be sent or received now, or nil.
func (t *Together) Usable(ctx context.Context) error { return t.m.UsableNow(ctx, t.op) }

// UsableNow is Usable with a context that must not have ended.
func (m *Mail) UsableNow(ctx context.Context, op string) error {
	if err := m.Usable(op); err != nil {
		return err
	}
	if ctx = engine.Context(ctx); ctx.Err() != nil {
		return m.Error(op, -1, "", reason.Ended(ctx))
	}
	return nil
}

// Usable returns why the communicator cannot do messages now, as an error of op, or nil.
func (m *Mail) Usable(op string) error {
	if err := m.c.Err(); err != nil {
		return err
	}
	if err := m.c.BetweenHosts(""); err != nil {
		return m.c.LocalError(op, err)
	}
	return nil
}

// Call adds a message, or returns what is wrong with it.
func (t *Together) Call(k Call) error {
	if t.onDevice {
		h := DeviceMessage{Call: k}
		if err := t.m.checkDevice(t.stream, t.op, &h); err != nil {
			return err
		}
		t.device = append(t.device, h)
		return nil
	}
	if err := t.m.Check(t.op, k.Peer, &k.Vec); err != nil {
		return err
	}
	t.host = append(t.host, k)
	return nil
}

// Check returns what is wrong with a message of host memory, as an error of op, or nil.
func (m *Mail) Check(op string, peer int, v *team.Vec) error {
	if uint(peer) >= uint(len(m.boxes)) {
		return m.Error(op, -1, "", fmt.Errorf("rank %d of %d ranks: %w", peer, len(m.boxes), fault.ErrArgument))
	}
	if err := v.Check(); err != nil {
		return m.Error(op, peer, "", err)
	}
	return nil
}

// Group makes an empty Together for the messages of a group on s.
func (m *Mail) Group(s *engine.Stream, acquire Acquire) *Together {
	g := m.Together(s, "group", false, acquire)
	g.group = true
	return g
}

// Group makes an empty Together for a group with messages like t's.
func (t *Together) Group() *Together { return t.m.Group(t.stream, t.acquire) }

// Add adds copies of t's messages, which are on the same stream.
func (g *Together) Add(t *Together) {
	g.host, g.device = append(g.host, t.host...), append(g.device, t.device...)
}

// AddCall adds a message of host memory that has been checked.
func (g *Together) AddCall(k *Call) { g.host = append(g.host, *k) }

// OnHost implements team.Operation.
func (t *Together) OnHost() bool { return !t.onDevice && len(t.host) > 0 }

// Len implements team.Operation.
func (t *Together) Len() int { return len(t.host) + len(t.device) }

// Vec implements team.Operation.
func (t *Together) Vec(i int) *team.Vec {
	if i < len(t.host) {
		return &t.host[i].Vec
	}
	return &t.device[i-len(t.host)].Vec
}

// Clone implements team.Operation.
func (t *Together) Clone() team.Operation {
	c := *t
	c.host, c.device, c.open, c.notes = slices.Clone(t.host), slices.Clone(t.device), nil, nil
	return &c
}

// Alone implements team.Operation.
func (t *Together) Alone() error {
	if t.op != "send" {
		return nil
	}
	v, most := t.Vec(0), t.m.eager
	if t.onDevice {
		most = kernels.EagerBytes
	}
	if t.peer() != t.m.rank || v.Bytes() <= most {
		return nil
	}
	return t.m.Error(t.op, t.m.rank, "", waitsForItself(v.Bytes(), most))
}

// peer is the peer of the first message.
func (t *Together) peer() int {
	if len(t.host) > 0 {
		return t.host[0].Peer
	}
	return t.device[0].Peer
}

// Do sends and receives, or queues this on the stream.
func (t *Together) Do(ctx context.Context) error {
	ctx = engine.Context(ctx)
	if err := t.Alone(); err != nil {
		return err
	}
	if t.stream == nil || t.stream.OnDevice() != nil {
		return t.Run(ctx)
	}
	return t.stream.Do(ctx, t.m.c, t.Run, t.Place)
}

// Place implements team.Operation. It gives messages of host memory that do not go at once their places in the order,
// where they wait for Run or Withdraw: messages from one rank to another keep the order of the calls, whatever their
// streams. In the same step, the caller takes their places on the stream, or their turn.
func (t *Together) Place() error {
	if len(t.host) == 0 {
		return nil
	}
	ms := t.messages()
	for _, h := range ms {
		h.queued = true
	}
	if err := t.m.Start(t.op, ms); err != nil {
		return err
	}
	t.placed = ms
	return nil
}

// Withdraw takes back placed messages that are not to run.
func (t *Together) Withdraw() {
	for _, h := range t.placed {
		h.lane.Lock()
		h.lane.waiting.remove(h)
		h.release()
		h.lane.Unlock()
	}
	t.placed = nil
}

// message makes the i-th message of host memory.
func (t *Together) message(i int) *Message {
	k := &t.host[i]
	h := NewMessage(k.Peer, &k.Vec, k.Recv, t.acquire)
	h.exact, h.told = true, t.note(i)
	return h
}

func (t *Together) messages() []*Message {
	t.open = t.open[:0]
	for i := range t.host {
		t.open = append(t.open, t.message(i))
	}
	return t.open
}

// note is where it is noted how the i-th message of host memory went, for a group; or nil.
func (t *Together) note(i int) *team.MessageNote {
	if !t.group {
		return nil
	}
	if len(t.notes) == 0 {
		t.notes = append(t.notes, make([]team.MessageNote, len(t.host))...)
	}
	return &t.notes[i]
}

// Run implements team.Operation. On a device's stream it queues them.
func (t *Together) Run(ctx context.Context) error {
	defer t.m.c.Tracer.Begin(ctx, t.op).End()
	open, errs, err := t.start()
	if err != nil {
		t.open, t.notes = nil, nil // abandoned messages refer to them
		return err
	}
	var device *Transfer
	if len(t.device) > 0 {
		if device, err = t.Transfer(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	queued := t.group && err == nil
	if len(open) > 0 {
		if err := t.m.Await(ctx, t.op, open); err != nil {
			errs = append(errs, err)
			t.open, t.notes = nil, nil // abandoned messages refer to them
		} else {
			errs = append(errs, over(open)...)
		}
	}
	if device != nil {
		errs = append(errs, device.Wait(ctx))
	}
	if t.group {
		t.notes = slices.DeleteFunc(t.notes, func(n team.MessageNote) bool { return n.Kind == team.KindRefused })
		if queued {
			t.notes = append(t.notes, messageNotes(t.device)...)
		}
		t.m.c.NoteGroup(t.notes, t.Turn)
		t.notes = t.notes[:0]
	}
	return errors.Join(errs...)
}

// over takes back messages that are done, and returns their errors.
func over(ms []*Message) (errs []error) {
	for _, h := range ms {
		if h.Err != nil {
			errs = append(errs, h.Err)
		}
		h.PutBack()
	}
	return errs
}

// start starts the messages of host memory, or lets those go on that have their places. It returns those that are not
// done yet, and the errors of others. If err is not nil, nothing is under way.
func (t *Together) start() (open []*Message, errs []error, err error) {
	if open, t.placed = t.placed, nil; open != nil {
		for _, h := range open {
			h.lane.Lock()
			h.queued = false
			h.lane.Unlock()
		}
		return open, nil, nil
	}
	for i := range t.host {
		if !t.m.quick(&t.host[i].Vec) {
			ms := t.messages()
			return ms, nil, t.m.Start(t.op, ms)
		}
	}
	return t.exchange()
}

// exchange sends and receives, each in order, as long as it need not wait long, and starts the messages that remain.
func (t *Together) exchange() (open []*Message, errs []error, err error) {
	t.open = t.open[:0]
	next := [2]int{} // of the sends, and of the receives
	for idle := 0; idle < t.m.Looks && (next[0] < len(t.host) || next[1] < len(t.host)); idle++ {
		for d := range next {
			before := next[d]
			var waits bool
			var es []error
			next[d], waits, es = t.some(before, d == 1)
			errs = append(errs, es...)
			if waits { // the peer may wait for this rank to start it
				idle = t.m.Looks
			} else if next[d] > before {
				idle = 0
			}
		}
		if errs != nil && t.m.c.Err() != nil {
			return nil, nil, t.m.c.Err()
		}
	}
	for d := range next {
		for i := next[d]; i < len(t.host); i++ {
			if t.host[i].Recv == (d == 1) {
				t.open = append(t.open, t.message(i))
			}
		}
	}
	if err := t.m.Start(t.op, t.open); err != nil {
		return nil, nil, errors.Join(append(errs, err)...)
	}
	return t.open, errs, nil
}

// some sends, or receives if recv is set, from message i on, up to the first message that takes a wait, which is next.
// long says that it is a large one. Messages with the same peer that follow each other need its lane only once: a lock
// for each would wait for the message before to have left this processor.
func (t *Together) some(i int, recv bool) (next int, long bool, errs []error) {
	var b *Box
	for done := true; i < len(t.host); i++ {
		k := &t.host[i]
		if k.Recv != recv {
			continue
		}
		if long = k.Vec.Bytes() > t.m.eager; long {
			break
		}
		if b == nil || b.Peer != k.Peer {
			b.leave(recv)
			b = t.m.Box(k.Peer)
			if err := b.lane(recv).Enter(); err != nil {
				return i, false, append(errs, t.m.Error(t.op, k.Peer, "", err))
			}
		}
		var err error
		if recv {
			_, done, err = t.m.recvHeld(b, &k.Vec, true, 1, t.note(i))
		} else {
			done, _, err = t.m.sendHeld(b, &k.Vec, k.Vec.Bytes(), t.note(i))
		}
		if err != nil && !done {
			b.leave(recv)
			return i, false, append(errs, t.m.Fail(t.op, k.Peer, err))
		}
		if err != nil {
			errs = append(errs, err)
		}
		if !done {
			break
		}
	}
	b.leave(recv)
	return i, long, errs
}

// Transfer starts messages of device memory. On a stream nothing more is to do, and the Transfer is nil; else the
// caller waits for it.
func (t *Together) Transfer(ctx context.Context) (*Transfer, error) {
	return t.m.transfer(engine.Context(ctx), t.stream, t.op, t.device, !t.AtOnce)
}
