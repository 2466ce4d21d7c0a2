package gpumail

import (
	"context"
	"errors"
	"slices"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Batch is messages of device memory that start together: those of a call, or of a group. It implements team.Operation.
// It is not used again, because its messages may still be under way when it has run.
type Batch struct {
	Requests bool        // the caller wants Requests, to ask when they are done
	Host     *mail.Batch // the group's messages of host memory, which start with them; or nil

	m        *Mail
	stream   *engine.Stream
	op       string
	group    bool
	messages []Message
}

// NewBatch makes messages that have been checked, for a call op on s; nil is no stream.
func (m *Mail) NewBatch(s *engine.Stream, op string, calls []mail.Call) *Batch {
	return &Batch{m: m, stream: s, op: op, messages: messagesFor(calls)}
}

// Group makes an empty Batch for a group with messages like b's.
func (b *Batch) Group() *Batch { return &Batch{m: b.m, stream: b.stream, op: "group", group: true} }

// Add adds copies of the messages of device memory of other, which are on the same stream.
func (b *Batch) Add(other *Batch) { b.messages = append(b.messages, other.messages...) }

// OnHost implements team.Operation.
func (b *Batch) OnHost() bool { return b.Host != nil && b.Host.OnHost() }

// Len implements team.Operation.
func (b *Batch) Len() int {
	n := len(b.messages)
	if b.Host != nil {
		n += b.Host.Len()
	}
	return n
}

// Vec implements team.Operation.
func (b *Batch) Vec(i int) *team.Vec {
	if b.Host != nil {
		n := b.Host.Len()
		if i < n {
			return b.Host.Vec(i)
		}
		i -= n
	}
	return &b.messages[i].Vec
}

// Clone implements team.Operation.
func (b *Batch) Clone() team.Operation {
	c := *b
	c.messages = slices.Clone(b.messages)
	if b.Host != nil {
		c.Host = b.Host.Clone().(*mail.Batch)
	}
	return &c
}

// SelfBlocked implements team.Operation.
func (b *Batch) SelfBlocked() error {
	if b.op != "send" {
		return nil
	}
	k, rank := &b.messages[0].Call, b.m.c.Rank()
	n := k.Vec.Bytes()
	if k.Peer != rank || n <= b.m.on.eager {
		return nil
	}
	return b.m.on.host.Error(b.op, rank, "", mail.WaitsForItself(n, b.m.on.eager))
}

// Do sends and receives, or queues this on the stream.
func (b *Batch) Do(ctx context.Context) error {
	if err := b.SelfBlocked(); err != nil {
		return err
	}
	return b.run(engine.Context(ctx), false, true)
}

// Place implements team.Operation.
func (b *Batch) Place() error {
	if b.Host == nil {
		return nil
	}
	return b.Host.Place()
}

// Run implements team.Operation. On a stream it queues the messages of device memory. They are a part of an operation.
func (b *Batch) Run(ctx context.Context, turn bool) error { return b.run(ctx, turn, false) }

// run is Run. whole says that the messages are an operation of their own.
func (b *Batch) run(ctx context.Context, turn, whole bool) error {
	if t := b.m.c.Tracer; t != nil {
		if whole {
			t.Count()
		}
		defer t.Mark(ctx, b.op).End()
	}
	var errs []error
	if b.Host != nil {
		var err error
		if errs, err = b.Host.Start(); err != nil {
			return err
		}
	}
	t, err := b.m.on.start(engine.Context(ctx), b.stream, b.op, b.messages, true)
	if err != nil {
		errs = append(errs, err)
	}
	var notes []team.MessageNote
	if b.Host != nil {
		errs = append(errs, b.Host.Await(ctx)...)
		notes = b.Host.Notes()
	}
	if t != nil {
		errs = append(errs, t.Wait(ctx))
	}
	if b.group {
		if err == nil {
			notes = append(notes, b.m.on.notes(b.messages)...)
		}
		if t != nil && t.far != nil { // on a stream, these are noted when they are done
			notes = append(notes, t.far.noted...)
		}
		b.m.c.NoteGroup(notes, turn)
	}
	return errors.Join(errs...)
}
