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
	v, b := c.view(), &batch{}
	own, err := b.recording.Do(v, "Group", b, func(g *inside.Comm) error {
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
		return b.refuse(ctx, v, b.recording.Failed, own)
	}
	return b.submit(ctx, v)
}

// batch is what a group records.
type batch struct {
	recording inside.Recording

	mu       sync.Mutex
	works    *[]team.Work   // of workLists, or nil
	messages *mail.Together // or nil
	done     bool
}

// workLists has empty lists of works to use again.
var workLists = sync.Pool{New: func() any { return new([]team.Work) }}

// list is the recorded collectives.
func (b *batch) list() []team.Work {
	if b.works == nil {
		return nil
	}
	return *b.works
}

// over lets go of the memory, when all has run, is queued on a device or has been recorded again.
func (b *batch) over() {
	if b.works != nil {
		clear(*b.works)
		*b.works = (*b.works)[:0]
		workLists.Put(b.works)
		b.works = nil
	}
	if b.messages != nil {
		b.messages.Withdraw()
		b.messages.PutBack()
		b.messages = nil
	}
}

// add appends w to the works.
func (b *batch) add(w *team.Work) {
	if b.works == nil {
		b.works = workLists.Get().(*[]team.Work)
	}
	if n := len(*b.works); n > 0 && w.Other == nil {
		(*b.works)[n-1].Together = true
	}
	*b.works = append(*b.works, *w)
}

func (b *batch) end() {
	b.mu.Lock()
	b.done = true
	b.mu.Unlock()
}

// Record implements engine.Recorder.
func (b *batch) Record(c *engine.Comm, w *team.Work) error {
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
		if b.messages == nil {
			b.messages = t.Group()
		}
		b.messages.Add(t)
	default:
		b.add(w)
	}
	return nil
}

// submit runs what was recorded, or queues it.
func (b *batch) submit(ctx context.Context, v *inside.View) error {
	if t := b.messages; t != nil {
		if b.works == nil && v.Recorder == nil {
			return b.submitMessages(ctx, v)
		}
		t.Turn = b.works != nil
		b.add(&team.Work{Kind: team.KindMessages, Other: t})
	}
	if v.Stream != nil && v.Recorder == nil {
		return v.SubmitAll(ctx, "group", b.list(), b.over)
	}
	err := v.SubmitAll(ctx, "group", b.list(), nil)
	b.over()
	return err
}

// submitMessages is submit for a group of messages alone.
func (b *batch) submitMessages(ctx context.Context, v *inside.View) error {
	err := b.messages.Usable(ctx) // else no peer knows of it yet
	if err == nil {
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
	messages := b.messages != nil || call.Kind == team.KindMessages
	switch {
	case b.works != nil:
		first := &(*b.works)[0]
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
