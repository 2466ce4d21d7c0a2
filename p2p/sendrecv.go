package p2p

import (
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Send sends src to peer, which calls Recv. Blocking until src is the caller's again: a message of 2 KiB at most (less
// for more than 16 ranks) is copied and does not wait for its Recv, unless 8 such messages are on their way to that
// peer already; a larger one does wait. To this rank itself only what does not wait can be sent so (ErrArgument,
// ErrLimit): use SendRecv or a Group. Of device memory 64 KiB and 2 messages take the place of 2 KiB and 8, and on a
// stream it is queued; a third one to this rank itself waits for a Recv of another goroutine or stream. Any goroutine.
// Source: MPI_Send (MPI-4.1, 3.2.1), ncclSend.
func Send(ctx context.Context, c *ubcoll.Comm, peer int, src ubcoll.Vec) error {
	e, v := (*inside.Comm)(c).View(), (*inside.Vec)(&src).Team()
	if mail.OnDevice(e.Stream, v) {
		_, err := doDevice(ctx, e, "send", mail.DeviceMessage{Vec: *v, Peer: peer})
		return err
	}
	if err := check(ctx, e, "send", peer, v); err != nil {
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

// Recv receives the next message from peer into dst, and returns how many elements it had; dst may be longer, but
// on a device (ErrMismatch). Blocking until they are there; of device memory on a stream it is queued, and returns what
// it asks for. Any goroutine. Source: MPI_Recv (MPI-4.1, 3.2.4), ncclRecv.
func Recv(ctx context.Context, c *ubcoll.Comm, peer int, dst ubcoll.Vec) (int, error) {
	e, v := (*inside.Comm)(c).View(), (*inside.Vec)(&dst).Team()
	if mail.OnDevice(e.Stream, v) {
		return doDevice(ctx, e, "recv", mail.DeviceMessage{Vec: *v, Peer: peer, Recv: true})
	}
	if err := check(ctx, e, "recv", peer, v); err != nil {
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

// SendRecv receives from one peer into dst and sends src to another, or the same, or this rank itself, at the same time,
// and returns how many elements it received. Blocking until both are done; of device memory on a stream they are queued.
// Any goroutine. Source: MPI_Sendrecv (MPI-4.1, 3.10).
func SendRecv(ctx context.Context, c *ubcoll.Comm, from int, dst ubcoll.Vec, to int, src ubcoll.Vec) (int, error) {
	e, v, w := (*inside.Comm)(c).View(), (*inside.Vec)(&src).Team(), (*inside.Vec)(&dst).Team()
	if !v.Dev.IsHost() || mail.OnDevice(e.Stream, w) {
		return doDevice(ctx, e, "send_recv", mail.DeviceMessage{Vec: *v, Peer: to},
			mail.DeviceMessage{Vec: *w, Peer: from, Recv: true})
	}
	if err := check(ctx, e, "send_recv", to, v); err != nil {
		return 0, err
	}
	if err := check(ctx, e, "send_recv", from, w); err != nil {
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

// check is what is wrong with a call.
func check(ctx context.Context, e *inside.View, op string, peer int, v *team.Vec) error {
	ctx = engine.Context(ctx)
	if e.Stream == nil && e.Recorder == nil && v.Dev.IsHost() && uint(peer) < uint(e.Size()) && ctx.Err() == nil {
		if err := v.Check(); err != nil {
			return e.Mail.Error(op, peer, "", err)
		}
		return e.Err()
	}
	err := context.Cause(ctx)
	if none := e.Err(); none != nil {
		return none
	}
	switch {
	case e.Recorder != nil:
		err = fmt.Errorf("messages of host memory in a group of collectives (use p2p.Group) or in capture: %w",
			fault.ErrArgument)
	case e.Stream != nil:
		err = fmt.Errorf("messages of host memory on a stream: %w", fault.ErrNotSupported)
	case uint(peer) >= uint(e.Size()):
		err = fmt.Errorf("rank %d of %d ranks: %w", peer, e.Size(), fault.ErrArgument)
		peer = -1
	}
	return e.Mail.Error(op, peer, "", err)
}
