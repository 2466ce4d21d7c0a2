package mail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Call is a send or receive as the caller asked for it.
type Call struct {
	Vec  team.Vec
	Peer int
	Recv bool
}

// Batch is messages that start together: those of a group, or of a call on a stream or under recording. A receive
// takes exactly as many elements as it has room for. It implements team.Operation.
type Batch struct {
	Requests bool // the caller wants Requests, to ask when they are done

	m       *Mail
	stream  *engine.Stream
	op      string
	group   bool
	acquire Acquire
	calls   []Call
	placed  []*Message // those that have their places, on a stream

	// Memory to use again.
	open  []*Message // those under way
	notes []team.MessageNote
}

// batches has empty Batches to use again.
var batches = sync.Pool{New: func() any { return new(Batch) }}

// NewBatch makes an empty Batch for a call op on s; nil is no stream.
func (m *Mail) NewBatch(s *engine.Stream, op string, acquire Acquire) *Batch {
	b := batches.Get().(*Batch)
	b.m, b.stream, b.op, b.acquire = m, s, op, acquire
	return b
}

// PutBack takes back a Batch that has run, or whose calls others have copied.
func (b *Batch) PutBack() {
	clear(b.calls)
	clear(b.open)
	*b = Batch{calls: b.calls[:0], open: b.open[:0], notes: b.notes[:0]}
	batches.Put(b)
}

// Recorder is a recorder that has one Batch for all messages, those of a group.
type Recorder interface {
	// Messages returns the Batch for the caller to add messages to, between the recording's Enter and Leave.
	Messages(m *Mail, s *engine.Stream, acquire Acquire) *Batch
}

// UsableNow is Usable with a context that must not have ended.
func (m *Mail) UsableNow(ctx context.Context, op string) error {
	if err := m.Usable(); err != nil {
		return err
	}
	if ctx = engine.Context(ctx); ctx.Err() != nil {
		return m.Error(op, -1, "", reason.Ended(ctx))
	}
	return nil
}

// Usable returns why the communicator cannot do messages now, or nil.
func (m *Mail) Usable() error {
	return m.c.Err()
}

// Check returns what is wrong with a message of v, or for v if recv is set, as an error of op, or nil.
func (m *Mail) Check(op string, peer int, v *team.Vec, recv bool) error {
	if uint(peer) >= uint(m.Size()) {
		return m.Error(op, -1, "", fmt.Errorf("rank %d of %d ranks: %w", peer, m.Size(), fault.ErrArgument))
	}
	if err := v.CheckAs(recv); err != nil {
		return m.Error(op, peer, "", err)
	}
	return nil
}

// Group makes an empty Batch for the messages of a group on s.
func (m *Mail) Group(s *engine.Stream, acquire Acquire) *Batch {
	b := m.NewBatch(s, "group", acquire)
	b.group = true
	return b
}

// Group makes an empty Batch for a group with messages like b's.
func (b *Batch) Group() *Batch { return b.m.Group(b.stream, b.acquire) }

// Add adds copies of the messages of other, which are on the same stream.
func (b *Batch) Add(other *Batch) { b.calls = append(b.calls, other.calls...) }

// AddCall adds a message that has been checked.
func (b *Batch) AddCall(k *Call) { b.calls = append(b.calls, *k) }

// OnHost implements team.Operation.
func (b *Batch) OnHost() bool { return len(b.calls) > 0 }

// Len implements team.Operation.
func (b *Batch) Len() int { return len(b.calls) }

// Vec implements team.Operation.
func (b *Batch) Vec(i int) *team.Vec { return &b.calls[i].Vec }

// Clone implements team.Operation.
func (b *Batch) Clone() team.Operation {
	c := *b
	c.calls, c.open, c.notes = slices.Clone(b.calls), nil, nil
	return &c
}

// SelfBlocked implements team.Operation.
func (b *Batch) SelfBlocked() error {
	if b.op != "send" {
		return nil
	}
	k := &b.calls[0]
	n := k.Vec.Bytes()
	if k.Peer != b.m.rank || n <= b.m.eager {
		return nil
	}
	return b.m.Error(b.op, b.m.rank, "", WaitsForItself(n, b.m.eager))
}

// Do sends and receives, or queues this on the stream.
func (b *Batch) Do(ctx context.Context) error {
	ctx = engine.Context(ctx)
	if err := b.SelfBlocked(); err != nil {
		return err
	}
	if b.stream == nil {
		return b.run(ctx, false, true)
	}
	return b.stream.Do(ctx, b.m.c, func(ctx context.Context) error { return b.run(ctx, false, true) }, b.Place)
}

// Place implements team.Operation. It gives messages that do not go at once their places in the order, where they wait
// for Run or Withdraw: messages from one rank to another keep the order of the calls, whatever their streams. In the same
// step, the caller takes their places on the stream, or their turn.
func (b *Batch) Place() error {
	if len(b.calls) == 0 {
		return nil
	}
	ms := b.messages()
	for _, msg := range ms {
		msg.queued = true
	}
	if err := b.m.Start(b.op, ms); err != nil {
		return err
	}
	b.placed = ms
	return nil
}

// Withdraw takes back placed messages that are not to run.
func (b *Batch) Withdraw() {
	for _, msg := range b.placed {
		msg.lane.Lock()
		msg.lane.waiting.remove(msg)
		msg.release()
		msg.lane.Unlock()
	}
	b.placed = nil
}

// message makes the i-th message.
func (b *Batch) message(i int) *Message {
	k := &b.calls[i]
	msg := NewMessage(k.Peer, &k.Vec, k.Recv, b.acquire)
	msg.exact, msg.note = true, b.note(i)
	return msg
}

func (b *Batch) messages() []*Message {
	b.open = b.open[:0]
	for i := range b.calls {
		b.open = append(b.open, b.message(i))
	}
	return b.open
}

// note is where it is noted how the i-th message went, for a group; or nil.
func (b *Batch) note(i int) *team.MessageNote {
	if !b.group {
		return nil
	}
	if len(b.notes) == 0 {
		b.notes = append(b.notes, make([]team.MessageNote, len(b.calls))...)
	}
	return &b.notes[i]
}

// Run implements team.Operation. The messages are a part of an operation.
func (b *Batch) Run(ctx context.Context, turn bool) error { return b.run(ctx, turn, false) }

// run is Run. whole says that the messages are an operation of their own.
func (b *Batch) run(ctx context.Context, turn, whole bool) error {
	if t := b.m.c.Tracer; t != nil {
		if whole {
			t.Count()
		}
		defer t.Mark(ctx, b.op).End()
	}
	errs, err := b.Start()
	if err != nil {
		return err
	}
	errs = append(errs, b.Await(ctx)...)
	if b.group {
		b.m.c.NoteGroup(b.Notes(), turn)
	}
	return errors.Join(errs...)
}

// Start starts the messages, or lets those go on that have their places. The caller then calls Await. errs are the errors
// of messages that are over. If err is not nil, nothing is under way.
func (b *Batch) Start() (errs []error, err error) {
	open, errs, err := b.start()
	if err != nil {
		b.open, b.notes = nil, nil // abandoned messages refer to them
		return nil, err
	}
	b.open = open
	return errs, nil
}

// Await waits until the messages that Start has left under way are done, and returns their errors.
func (b *Batch) Await(ctx context.Context) []error {
	if len(b.open) == 0 {
		return nil
	}
	if err := b.m.Await(ctx, b.op, b.open); err != nil {
		b.open, b.notes = nil, nil // abandoned messages refer to them
		return []error{err}
	}
	return over(b.open)
}

// Notes takes how the messages of a group went, after Await. The slice is the caller's until PutBack.
func (b *Batch) Notes() []team.MessageNote {
	ns := slices.DeleteFunc(b.notes, func(n team.MessageNote) bool { return n.Kind == team.KindRefused })
	b.notes = ns[:0]
	return ns
}

// over takes back messages that are done, and returns their errors.
func over(ms []*Message) (errs []error) {
	for _, msg := range ms {
		if msg.Err != nil {
			errs = append(errs, msg.Err)
		}
		msg.PutBack()
	}
	return errs
}

// start is Start, and returns the messages that are not done yet.
func (b *Batch) start() (open []*Message, errs []error, err error) {
	if open, b.placed = b.placed, nil; open != nil {
		for _, msg := range open {
			msg.lane.Lock()
			msg.queued = false
			msg.lane.Unlock()
		}
		return open, nil, nil
	}
	for i := range b.calls {
		if !b.m.quick(&b.calls[i].Vec) {
			ms := b.messages()
			return ms, nil, b.m.Start(b.op, ms)
		}
	}
	return b.exchange()
}

// exchange sends and receives, each in order, as long as it need not wait long, and starts the messages that remain.
func (b *Batch) exchange() (open []*Message, errs []error, err error) {
	b.open = b.open[:0]
	next := [2]int{} // of the sends, and of the receives
	for idle := 0; idle < b.m.Looks && (next[0] < len(b.calls) || next[1] < len(b.calls)); idle++ {
		for d := range next {
			before := next[d]
			var waits bool
			var es []error
			next[d], waits, es = b.some(before, d == 1)
			errs = append(errs, es...)
			if waits { // the peer may wait for this rank to start it
				idle = b.m.Looks
			} else if next[d] > before {
				idle = 0
			}
		}
		if errs != nil && b.m.c.Err() != nil {
			return nil, nil, b.m.c.Err()
		}
	}
	for d := range next {
		for i := next[d]; i < len(b.calls); i++ {
			if b.calls[i].Recv == (d == 1) {
				b.open = append(b.open, b.message(i))
			}
		}
	}
	if err := b.m.Start(b.op, b.open); err != nil {
		return nil, nil, errors.Join(append(errs, err)...)
	}
	return b.open, errs, nil
}

// some sends, or receives if recv is set, from message i on, up to the first message that takes a wait, which is next.
// long says that it is a large one. Messages with the same peer that follow each other need its lane only once: a lock
// for each would wait for the message before to have left this processor.
func (b *Batch) some(i int, recv bool) (next int, long bool, errs []error) {
	var box *Box
	for done := true; i < len(b.calls); i++ {
		k := &b.calls[i]
		if k.Recv != recv {
			continue
		}
		if long = k.Vec.Bytes() > b.m.eagerTo(b.m.Box(k.Peer)); long {
			break
		}
		if box == nil || box.Peer != k.Peer {
			box.leave(recv)
			box = b.m.Box(k.Peer)
			if err := box.lane(recv).Enter(); err != nil {
				return i, false, append(errs, b.m.Error(b.op, k.Peer, "", err))
			}
		}
		var err error
		if recv {
			_, done, err = b.m.recvHeld(box, &k.Vec, true, 1, b.note(i))
		} else {
			done, _, err = b.m.sendHeld(box, &k.Vec, k.Vec.Bytes(), b.note(i))
		}
		if err != nil && !done {
			box.leave(recv)
			return i, false, append(errs, b.m.Fail(b.op, k.Peer, err))
		}
		if err != nil {
			errs = append(errs, err)
		}
		if !done {
			break
		}
	}
	box.leave(recv)
	return i, long, errs
}
