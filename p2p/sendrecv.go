package p2p

import (
	"context"
	"errors"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpumail"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Send sends src to peer, which calls [Recv]. Blocking until the caller may change src again. A message of at most 2
// KiB (less for more than 16 ranks) is copied and does not wait for its Recv, unless 8 such messages are on their way
// to that peer already; a larger one waits for its Recv. To another host up to 8 KiB are copied, and up to 32 KiB if
// there is room, also of device memory. A message to this rank itself must not need to wait
// (ErrArgument, ErrLimit): otherwise use [SendRecv] or a Group. For device memory the limits are 64 KiB and 2 messages;
// a third one to this rank itself waits for a Recv of another goroutine or stream. A tuning table may lower both sizes
// (UBCOLL_TUNING). On a stream it is queued, and src must not change until the stream has run it; in a Group it starts
// with the group. Allowed in capture if src is device memory. Any goroutine. Source: MPI_Send (MPI-4.1, 3.2.1), ncclSend.
//
// ErrArgument for a peer that is no rank, a Vec that is not valid, and a stream on another device than the memory;
// ErrStale, ErrLimit, ErrClosed and the error of a context that had ended: nothing is sent. ErrMismatch if the message
// has another type than its receive, or does not fit; the sender of a message that was copied does not learn this.
// ErrPeerLost, ErrTimeout, ErrAborted and a context that ends during the call break the communicator.
func Send(ctx context.Context, c *ubcoll.Comm, peer int, src ubcoll.Vec) error {
	e, v := (*inside.Comm)(c).View(), (*inside.Vec)(&src).Team()
	if !waits(e, v) {
		_, err := startCalls(ctx, e, "send", mail.Call{Vec: *v, Peer: peer})
		return err
	}
	if t := e.Tracer; t != nil {
		defer t.Begin(ctx, "send").End()
	}
	if err := check(ctx, e, "send", peer, v, false); err != nil {
		return err
	}
	m := e.Mail
	sent, free, err := m.SendNow("send", m.Box(peer), v, v.Bytes())
	switch {
	case sent || err != nil:
		return err
	case peer == e.Rank() && !free:
		return m.SelfError(v.Bytes())
	}
	_, err = m.Do(ctx, "send", mail.NewMessage(peer, v, false, acquire))
	return err
}

// Recv receives the next message from peer into dst, and returns how many elements it had. dst may be longer, except on
// a device, on a stream or in a Group (ErrMismatch). Blocking until the elements are there. On a stream it is queued.
// In a Group the message comes with the group, and Recv returns dst.Len(). Allowed in capture if dst is device memory.
// Any goroutine. Source: MPI_Recv (MPI-4.1, 3.2.4), ncclRecv.
//
// ErrArgument for a peer that is no rank, a Vec that is not valid, and a stream on another device than the memory;
// ErrStale, ErrLimit, ErrClosed and the error of a context that had ended: nothing is received. ErrMismatch if the
// message has another type or does not fit: it is consumed, and dst is unchanged. ErrPeerLost, ErrTimeout, ErrAborted
// and a context that ends during the call break the communicator.
func Recv(ctx context.Context, c *ubcoll.Comm, peer int, dst ubcoll.Vec) (int, error) {
	e, v := (*inside.Comm)(c).View(), (*inside.Vec)(&dst).Team()
	if !waits(e, v) {
		return startCalls(ctx, e, "recv", mail.Call{Vec: *v, Peer: peer, Recv: true})
	}
	if t := e.Tracer; t != nil {
		defer t.Begin(ctx, "recv").End()
	}
	if err := check(ctx, e, "recv", peer, v, true); err != nil {
		return 0, err
	}
	return recvFrom(ctx, e.Mail, "recv", peer, v)
}

func recvFrom(ctx context.Context, m *mail.Mail, op string, peer int, v *team.Vec) (int, error) {
	if n, done, err := m.RecvNow(m.Box(peer), v); done {
		return n, err
	}
	return m.Do(ctx, op, mail.NewMessage(peer, v, true, acquire))
}

// SendRecv receives from one peer into dst and at the same time sends src to another peer, the same peer, or this rank
// itself. It returns how many elements it received. Blocking until both are done; on a stream or in a Group as [Send]
// and [Recv]. Allowed in capture if both are device memory. Any goroutine. Source: MPI_Sendrecv (MPI-4.1, 3.10).
//
// Errors as in Send and Recv, joined if both fail. If an argument of either is wrong, nothing is sent or received.
func SendRecv(ctx context.Context, c *ubcoll.Comm, from int, dst ubcoll.Vec, to int, src ubcoll.Vec) (int, error) {
	e, v, w := (*inside.Comm)(c).View(), (*inside.Vec)(&src).Team(), (*inside.Vec)(&dst).Team()
	if !waits(e, v) || !w.Dev.IsHost() {
		return startCalls(ctx, e, "send_recv", mail.Call{Vec: *v, Peer: to}, mail.Call{Vec: *w, Peer: from, Recv: true})
	}
	if t := e.Tracer; t != nil {
		defer t.Begin(ctx, "send_recv").End()
	}
	if err := check(ctx, e, "send_recv", to, v, false); err != nil {
		return 0, err
	}
	if err := check(ctx, e, "send_recv", from, w, true); err != nil {
		return 0, err
	}
	m := e.Mail
	sent, _, err := m.SendNow("send_recv", m.Box(to), v, v.Bytes())
	switch {
	case err != nil:
		return 0, err
	case sent:
		return recvFrom(ctx, m, "send_recv", from, w)
	}
	s, r := mail.NewMessage(to, v, false, acquire), mail.NewMessage(from, w, true, acquire)
	ms := [2]*mail.Message{s, r}
	if err := m.Start("send_recv", ms[:]); err != nil {
		return 0, err
	}
	if err := m.Await(ctx, "send_recv", ms[:]); err != nil {
		return 0, err
	}
	n := r.Got
	if err = s.Err; r.Err != nil {
		err = errors.Join(s.Err, r.Err)
	}
	s.PutBack()
	r.PutBack()
	return n, err
}

// check returns what is wrong with a blocking call on host memory.
func check(ctx context.Context, e *inside.View, op string, peer int, v *team.Vec, recv bool) error {
	if uint(peer) < uint(e.Mail.Size()) && ctx != nil && ctx.Err() == nil {
		if err := v.CheckAs(recv); err != nil {
			return e.Mail.Error(op, peer, "", err)
		}
		return e.Err()
	}
	if none := e.Mail.Usable(); none != nil {
		return none
	}
	if ctx = engine.Context(ctx); ctx.Err() != nil {
		return e.Mail.Error(op, peer, "", reason.Ended(ctx))
	}
	return e.Mail.Check(op, peer, v, recv)
}

// waits reports whether a call on v runs at once and blocks, on host memory: it is not on a device, queued or recorded.
func waits(e *inside.View, v *team.Vec) bool {
	return e.Stream == nil && e.Recorder == nil && v.Dev.IsHost()
}

// startCalls makes calls that do not block, or are not on the host. n is how many elements the last one receives: all
// that it has room for, because any other number is an error.
func startCalls(ctx context.Context, e *inside.View, op string, calls ...mail.Call) (n int, err error) {
	device := onDevice(e, calls)
	n = calls[len(calls)-1].Vec.Len
	if k, ok := e.Recorder.(*engine.Recording); ok && !device {
		done, err := record(ctx, e, k, op, calls)
		switch {
		case err != nil:
			return 0, err
		case done:
			return n, nil
		}
	}
	err = e.Mail.UsableNow(ctx, op)
	for i := 0; i < len(calls) && err == nil; i++ {
		err = unfit(e, op, device, &calls[i])
	}
	if err = submit(ctx, e, op, device, calls, false, err); err != nil {
		return 0, err
	}
	return n, nil
}

// onDevice reports whether calls are on a device: by their memory, or by the stream. Calls of empty memory go with the
// others.
func onDevice(e *inside.View, calls []mail.Call) bool {
	for i := range calls {
		if gpumail.OnDevice(e.Stream, &calls[i].Vec) {
			return true
		}
	}
	return false
}

// unfit returns what is wrong with a call, as an error of op, or nil.
func unfit(e *inside.View, op string, device bool, k *mail.Call) error {
	if device {
		return e.GPUMail.Check(e.Stream, op, k)
	}
	return e.Mail.Check(op, k.Peer, &k.Vec, k.Recv)
}

// record adds calls on host memory to a group. done is false if k is none: each call is then recorded by itself.
func record(ctx context.Context, e *inside.View, k *engine.Recording, op string, calls []mail.Call) (done bool, err error) {
	r, ok := k.Enter().(mail.Recorder)
	if ok {
		err = addTo(ctx, e, r, op, calls)
	}
	k.Leave()
	if err != nil {
		e.FailRecording(engine.Called{Kind: team.KindMessages}, err)
	}
	return ok, err
}

func addTo(ctx context.Context, e *inside.View, r mail.Recorder, op string, calls []mail.Call) error {
	if err := e.Mail.UsableNow(ctx, op); err != nil {
		return err
	}
	for i := range calls {
		if err := e.Mail.Check(op, calls[i].Peer, &calls[i].Vec, calls[i].Recv); err != nil {
			return err
		}
	}
	t := r.Messages(e.Mail, e.Stream, acquire)
	for i := range calls {
		t.AddCall(&calls[i])
	}
	return nil
}

// submit runs, queues or records calls together, as op. If something is wrong with them, it only tells a recorder.
// requests says that the caller wants a Request.
func submit(ctx context.Context, e *inside.View, op string, device bool, calls []mail.Call, requests bool,
	wrong error) error {
	if wrong != nil && e.Recorder == nil {
		return wrong
	}
	if device {
		t := e.GPUMail.NewBatch(e.Stream, op, calls)
		if t.Requests = requests; e.Recorder != nil {
			return recordBatch(e, t, wrong)
		}
		return t.Do(ctx)
	}
	t := e.Mail.NewBatch(e.Stream, op, acquire)
	t.Requests = requests
	for i := range calls {
		t.AddCall(&calls[i])
	}
	if e.Recorder == nil {
		return t.Do(ctx)
	}
	err := recordBatch(e, t, wrong)
	t.PutBack() // the recorder has copied it
	return err
}

// recordBatch records t, or that something is wrong with it.
func recordBatch(e *inside.View, t team.Operation, wrong error) error {
	w := e.Recorder.Begin()
	w.Kind, w.Other, w.Err = team.KindMessages, t, wrong
	err := e.Recorder.Record(e.Comm, w)
	if wrong != nil {
		return wrong
	}
	return err
}
