package ubcoll

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Group collects the collectives and the messages (p2p.Send, Recv and SendRecv) that calls makes on g and does them as
// one: the collectives run in call order, and nothing else of this communicator comes between; the messages start
// together, so that their order in the group cannot make ranks wait for each other, and between two ranks it is the
// order of the messages. A message has exactly as many elements as its receive ([ErrMismatch]), so that Recv returns
// dst.Len() at once. What a message that touches what a collective of the group writes sends or leaves is undefined.
//
// Collective if there are collectives: all ranks make the same. Messages may differ between ranks, and a group of
// messages alone is the business of those that have them. It blocks until all is done, or queues it, on a view made by
// On. calls runs on the caller's goroutine; its own calls on g wait for nothing, and g is of no use after it
// ([ErrClosed]).
//
// The first collective that fails ends the group, on all ranks alike, and Group returns its error: then none of the
// messages has been sent or received (but on a stream of a device, where they are queued already). The errors of
// messages are joined (of those on a device the first one is told).
//
// If calls itself returns an error, or a call on g has failed, nothing of this rank is run, and Group returns it. If a
// collective had been called before, or has failed, or nothing had been called, the other ranks are told, and on a stream of a device, where they
// have queued what waits for this rank's messages, the communicator breaks if it had called one. Otherwise nobody is
// told, as of any message that is not sent: who waits for it, or for a collective that was to follow, goes on to wait.
//
// Of device memory, small all-reduces of one type that follow each other in the group are done together, by one kernel:
// if one of those fails, none of them has been done. What goes together is a function of types and lengths, so ranks
// whose groups differ in these may find that kernels do not meet, which is ErrMismatch and breaks the communicator.
//
// One group at a time is recorded on a communicator, messages alone included: for several goroutines there are
// [Comm.Dup] and p2p.Exchange. A collective that anybody calls on c itself while calls runs, and which would run
// before the group, is [ErrArgument], and so is the group; messages may be sent on c meanwhile. What returns a request
// (p2p.ISend, IRecv, Exchange) is ErrArgument in a group, whose own end is the end of all. A group without calls is
// nil, and costs nothing. Allowed in capture, with messages of device memory. Source: NCCL's ncclGroupStart and
// ncclGroupEnd.
func Group(ctx context.Context, c *Comm, calls func(g *Comm) error) error {
	v, b := c.view(), &batch{}
	call, own, err := v.Recording("Group", b, func(g *inside.Comm) error {
		if calls == nil {
			return inside.ErrNoCalls
		}
		return calls((*Comm)(g))
	})
	if err != nil {
		return err
	}
	b.end()
	if own != nil {
		return b.refuse(ctx, v, call, own)
	}
	return b.submit(ctx, v)
}

// batch is what a group records.
type batch struct {
	mu       sync.Mutex
	works    []team.Work
	messages []*mail.Together
	done     bool
}

// end is the end of the recording.
func (b *batch) end() {
	b.mu.Lock()
	b.done = true
	b.mu.Unlock()
}

// Record implements engine.Recorder.
func (b *batch) Record(c *engine.Comm, w team.Work) error {
	t, message := w.Other.(*mail.Together)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.done:
		return c.LocalError(w.Kind.String(), fmt.Errorf("on the *Comm of a Group that has ended (use the one that Group was "+
			"called on): %w", fault.ErrClosed))
	case message && w.Err != nil:
		return w.Err
	case message && t.Requests:
		return c.LocalError(w.Kind.String(), fmt.Errorf("a request in a group, whose end is that of all its messages (use "+
			"p2p.Send, Recv or SendRecv): %w", fault.ErrArgument))
	case message:
		b.messages = append(b.messages, t)
	default:
		if n := len(b.works); n > 0 {
			b.works[n-1].Together = true
		}
		b.works = append(b.works, w)
	}
	return nil
}

// submit runs what was recorded, or queues it.
func (b *batch) submit(ctx context.Context, v *inside.View) error {
	if len(b.messages) == 0 {
		return v.SubmitAll(ctx, "group", b.works, nil)
	}
	t := v.Mail.Group(b.messages, len(b.works) > 0)
	works := append(b.works, team.Work{Kind: team.KindMessages, Other: t})
	switch {
	case v.Recorder != nil:
		return v.SubmitAll(ctx, "group", works, nil)
	case len(b.works) == 0:
		if err := t.Usable(ctx); err != nil { // nobody has heard of it
			return err
		}
		return t.Do(ctx)
	}
	return v.SubmitAll(ctx, "group", works, t.Withdraw)
}

// refuse runs nothing, since own has gone wrong on this rank with call, the zero Work if that is not known. The peers
// wait for the group's collectives, on the host or on their devices: they are told.
func (b *batch) refuse(ctx context.Context, v *inside.View, call team.Work, own error) error {
	messages := len(b.messages) > 0 || call.Kind == team.KindMessages
	switch {
	case len(b.works) > 0:
		call = team.Work{Kind: b.works[0].Kind, Kernel: b.works[0].Kernel}
	case call.Kind == team.KindRefused && messages:
		call.Kind = team.KindMessages
	}
	if v.Recorder != nil || call.Kind == team.KindMessages {
		if v.Recorder != nil { // whoever records this one tells the peers
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
