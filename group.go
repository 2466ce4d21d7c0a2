package ubcoll

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpumail"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Group records the collectives and the messages (p2p.Send, Recv and SendRecv) that calls makes on g, and then runs
// them as one operation. The collectives run in call order, and nothing else of this communicator runs between them.
// The messages start together, so their order in the group cannot make ranks wait for each other; between two ranks,
// messages match in group order. A message must have exactly as many elements as its receive ([ErrMismatch]), so Recv
// returns dst.Len() at once. A message that touches memory which a collective of the group writes sends or leaves
// undefined data.
//
// A group with collectives is collective: all ranks make the same ones. Messages may differ between ranks, and a group
// of messages alone concerns only the ranks that have them. Group blocks until all is done; on a view made by On it
// queues the group. calls runs on the caller's goroutine. Its own calls on g do not wait, and g is unusable afterwards
// ([ErrClosed]).
//
// The first collective that fails ends the group on all ranks alike, and Group returns its error, which says which call
// it is. None of the messages has then been sent or received, except on a stream of a device, where they are queued
// already. Errors of messages are joined; on a device only the first one is reported.
//
// If calls returns an error, or a call on g has failed, this rank runs nothing, and Group returns that error. The other
// ranks are told if a collective had been called before, if a collective failed, or if nothing had been called. On a
// stream of a device the communicator then breaks if this rank had called a message, because the peers have queued
// operations that wait for it. In all other cases nobody is told, as with any message that is not sent: a rank that
// waits for such a message, or for a collective that was to follow, keeps waiting.
//
// On host memory, small collectives that follow each other travel in one exchange, except where one reads what another
// of them writes, with more than 16 ranks, and between hosts. On device memory, one kernel runs small all-reduces of one
// type that follow each other in the group: if one of them fails, none has been done. Types and lengths alone decide what
// runs together. If ranks' groups differ in these, their kernels may not meet, which is ErrMismatch and breaks the
// communicator.
//
// A communicator records one group at a time, groups of messages alone included; several goroutines can use [Comm.Dup]
// and p2p.Exchange. While calls runs, a collective that any goroutine calls on c itself would run before the group: it
// is [ErrArgument], and so is the group. Messages may be sent on c meanwhile. Calls that return a request (p2p.ISend,
// IRecv, Exchange) are ErrArgument in a group, because the messages of a group end together. A group without calls
// returns nil and costs nothing. Allowed in capture, with messages of device memory. Source: NCCL's ncclGroupStart and
// ncclGroupEnd.
func Group(ctx context.Context, c *Comm, calls func(g *Comm) error) error {
	v, b := c.view(), batches.Get().(*batch)
	failed, own, err := new(inside.Recording).Do(v, &b.recorded, "Group", b, func(g *inside.Comm) error {
		if calls == nil {
			return inside.ErrNoCalls
		}
		return calls((*Comm)(g))
	})
	switch {
	case err != nil:
		b.over()
		return err
	case own != nil:
		return b.refuse(ctx, v, failed, own)
	}
	return b.submit(ctx, v)
}

// batch is what a group records.
type batch struct {
	recorded engine.Recorded
	works    []team.Work    // the collectives; beyond its length, too, all works are empty
	messages *mail.Batch    // of host memory; or nil
	device   *gpumail.Batch // of device memory; or nil
}

// batches has empty batches to use again.
var batches = sync.Pool{New: func() any { return new(batch) }}

// over lets go of the memory, when all has run, is queued on a device or has been recorded again.
func (b *batch) over() {
	clear(b.works)
	b.works = b.works[:0]
	if b.messages != nil {
		b.messages.Withdraw()
		b.messages.PutBack()
		b.messages = nil
	}
	b.device = nil
	b.recorded = engine.Recorded{}
	batches.Put(b)
}

// add adds an empty work.
func (b *batch) add() *team.Work {
	n := len(b.works)
	if n == cap(b.works) {
		b.works = append(b.works, team.Work{})
	}
	b.works = b.works[:n+1]
	return &b.works[n]
}

// drop takes back the work that was added last.
func (b *batch) drop() {
	last := len(b.works) - 1
	b.works[last] = team.Work{}
	b.works = b.works[:last]
}

// Begin implements engine.Recorder. The caller fills the work where it will run.
func (b *batch) Begin() *team.Work { return b.add() }

// Record implements engine.Recorder.
func (b *batch) Record(c *engine.Comm, w *team.Work) error {
	switch t := w.Other.(type) {
	case *mail.Batch:
		return b.addMessages(c, w, t.Requests, t, nil)
	case *gpumail.Batch:
		return b.addMessages(c, w, t.Requests, t.Host, t)
	}
	if n := len(b.works); n > 1 {
		b.works[n-2].Grouped = true
	}
	return nil
}

// Messages implements mail.Recorder.
func (b *batch) Messages(m *mail.Mail, s *engine.Stream, acquire mail.Acquire) *mail.Batch {
	if b.messages == nil {
		b.messages = m.Group(s, acquire)
	}
	return b.messages
}

// addMessages adds messages instead of w, the work that was added last. host and device may be nil.
func (b *batch) addMessages(c *engine.Comm, w *team.Work, requests bool, host *mail.Batch, device *gpumail.Batch) error {
	op, wrong := w.Kind.String(), w.Err
	b.drop()
	switch {
	case wrong != nil:
		return wrong
	case requests:
		return c.LocalError(op, fmt.Errorf("a request in a group, whose end is that of all its messages (use p2p.Send, Recv "+
			"or SendRecv): %w", fault.ErrArgument))
	}
	if host != nil {
		if b.messages == nil {
			b.messages = host.Group()
		}
		b.messages.Add(host)
	}
	if device != nil {
		if b.device == nil {
			b.device = device.Group()
		}
		b.device.Add(device)
	}
	return nil
}

// submit runs what was recorded, or queues it.
func (b *batch) submit(ctx context.Context, v *inside.View) error {
	if b.messages != nil || b.device != nil {
		if len(b.works) == 0 && v.Recorder == nil {
			return b.submitMessages(ctx, v)
		}
		b.addOperation()
	}
	if v.Stream != nil && v.Recorder == nil {
		return v.SubmitAll(ctx, "group", b.works, b.over)
	}
	err := v.SubmitAll(ctx, "group", b.works, nil)
	b.over()
	return err
}

// addOperation adds the messages as one work.
func (b *batch) addOperation() {
	w := b.add()
	w.Kind = team.KindMessages
	if b.device != nil {
		b.device.Host = b.messages
		w.Other = b.device
		return
	}
	w.Other = b.messages
}

// submitMessages is submit for a group of messages alone.
func (b *batch) submitMessages(ctx context.Context, v *inside.View) error {
	err := v.Mail.UsableNow(ctx, "group")
	switch {
	case err != nil: // no peer knows of it yet
	case b.device != nil:
		b.device.Host = b.messages
		err = b.device.Do(ctx)
	default:
		err = b.messages.Do(ctx)
	}
	if v.Stream == nil {
		b.over()
	}
	return err
}

// refuse runs nothing, because call failed on this rank with own; call is the zero Called if it is not known. The peers
// wait for the group's collectives, on the host or on their devices, so refuse tells them.
func (b *batch) refuse(ctx context.Context, v *inside.View, call engine.Called, own error) error {
	defer b.over()
	messages := b.messages != nil || b.device != nil || call.Kind == team.KindMessages
	switch {
	case len(b.works) > 0:
		first := &b.works[0]
		call = engine.Called{Kind: first.Kind, Kernel: first.Kernel}
	case call.Kind == team.KindRefused && messages:
		call.Kind = team.KindMessages
	}
	if v.Recorder != nil || call.Kind == team.KindMessages {
		if v.Recorder != nil { // the recorder of this group tells the peers
			v.FailRecording(call, own)
		}
		var e *Error
		if errors.As(own, &e) {
			return own
		}
		return v.LocalError("group", own)
	}
	refused := team.Work{Kind: team.KindBarrier, Err: own, Ends: true}
	if call.Kind != team.KindRefused {
		refused.Kind, refused.Kernel = call.Kind, call.Kernel
	}
	err := v.SubmitAll(ctx, "group", []team.Work{refused}, nil)
	if messages && v.Stream != nil && v.Stream.OnDevice() != nil {
		v.Abort(own) // the peers have queued messages that wait for this rank's
	}
	return err
}
