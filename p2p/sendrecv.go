package p2p

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
)

var (
	errMismatch = fault.ErrMismatch
	errLimit    = fault.ErrLimit
)

// Send sends src to peer, which calls Recv. Blocking until src is the caller's again: a message of 2 KiB at most (less
// for more than 16 ranks) is copied and does not wait for its Recv, unless 8 such messages are on their way to that
// peer already; a larger one does wait. To this rank itself only what does not wait can be sent so (ErrArgument,
// ErrLimit): use SendRecv or a Group. Of device memory 64 KiB and 2 messages take the place of 2 KiB and 8, and on a
// stream it is queued; a third one to this rank itself waits for a Recv of another goroutine or stream. Any goroutine.
// Source: MPI_Send (MPI-4.1, 3.2.1), ncclSend.
func Send(ctx context.Context, c *ubcoll.Comm, peer int, src ubcoll.Vec) error {
	e, v := c.Engine(), src.Engine()
	if e.OnDevice(&v) {
		_, err := doDevice(ctx, e, "send", engine.DeviceMessage{Vec: v, Peer: peer})
		return err
	}
	if err := check(ctx, e, "send", peer, &v); err != nil {
		return err
	}
	n := v.Bytes()
	sent, free, err := sendNow(e.Comm, "send", e.Mail(peer), &v, n)
	switch {
	case sent || err != nil:
		return err
	case peer == e.Rank() && !free:
		return selfError(e, n)
	}
	_, err = one(ctx, e.Comm, "send", newMessage(peer, &v, false))
	return err
}

// sendNow sends a message that does not wait for its receive, if there is room, and nothing is before it: free.
func sendNow(c *engine.Comm, op string, m *engine.Mail, v *team.Vec, n int) (sent, free bool, err error) {
	if n > c.EagerLimit() {
		return false, false, nil
	}
	l := &m.Send
	if err := l.Enter(); err != nil {
		return false, false, c.MessageError(op, m.Peer, "", err)
	}
	free, err = room(c, m)
	free = free && l.Idle()
	if sent = free && c.Quick(v); sent {
		postSmall(c, m, v, n)
	}
	l.Unlock()
	if err != nil {
		err = c.FailMessage(op, m.Peer, err)
	}
	return sent, free, err
}

func selfError(e *engine.View, n int) error {
	if n > e.EagerLimit() {
		return e.MessageError("send", e.Rank(), "", fmt.Errorf(
			"%d bytes to this rank itself, more than %d, would wait for a Recv that comes later (use SendRecv or a Group): %w",
			n, e.EagerLimit(), fault.ErrArgument))
	}
	return e.MessageError("send", e.Rank(), "", fmt.Errorf(
		"%d messages to this rank itself have not been received yet (use SendRecv or a Group): %w", engine.MailSlots, errLimit))
}

// Recv receives the next message from peer into dst, and returns how many elements it had; dst may be longer, but
// on a device (ErrMismatch). Blocking until they are there; of device memory on a stream it is queued, and returns what
// it asks for. Any goroutine. Source: MPI_Recv (MPI-4.1, 3.2.4), ncclRecv.
func Recv(ctx context.Context, c *ubcoll.Comm, peer int, dst ubcoll.Vec) (int, error) {
	e, v := c.Engine(), dst.Engine()
	if e.OnDevice(&v) {
		return doDevice(ctx, e, "recv", engine.DeviceMessage{Vec: v, Peer: peer, Recv: true})
	}
	if err := check(ctx, e, "recv", peer, &v); err != nil {
		return 0, err
	}
	return recvFrom(ctx, e.Comm, "recv", peer, &v)
}

func recvFrom(ctx context.Context, c *engine.Comm, op string, peer int, v *team.Vec) (int, error) {
	if v.Bytes() < sharedBytes {
		if n, done, err := recvNow(c, c.Mail(peer), v); done {
			return n, err
		}
	}
	return one(ctx, c, op, newMessage(peer, v, true))
}

// recvNow receives a message that comes soon and takes little time, if no other receive waits.
func recvNow(c *engine.Comm, m *engine.Mail, v *team.Vec) (n int, done bool, err error) {
	l := &m.Recv
	if err := l.Enter(); err != nil {
		return 0, true, c.MessageError("recv", m.Peer, "", err)
	}
	if l.Waiting.Head != nil || !c.Quick(v) {
		l.Unlock()
		return 0, false, nil
	}
	var s *engine.Slot
	for i := c.Team().Looks(); s == nil && i > 0; i-- {
		s = arrived(m)
	}
	if s == nil {
		l.Unlock()
		return 0, false, nil
	}
	h, err := readHead(c, m, s.Head)
	if err != nil {
		l.Unlock()
		return 0, true, c.FailMessage("recv", m.Peer, err)
	}
	n, done, err = take(c, m, s, h, v)
	l.Unlock()
	if err != nil && !done {
		return 0, true, c.FailMessage("recv", m.Peer, err)
	}
	return n, done, err
}

// SendRecv sends src to one peer and receives from another, or the same, or this rank itself, at the same time, and
// returns how many elements it received. Blocking until both are done; of device memory on a stream they are queued.
// Any goroutine. Source: MPI_Sendrecv (MPI-4.1, 3.10).
func SendRecv(ctx context.Context, c *ubcoll.Comm, to int, src ubcoll.Vec, from int, dst ubcoll.Vec) (int, error) {
	e, v, w := c.Engine(), src.Engine(), dst.Engine()
	if e.OnDevice(&v) || e.OnDevice(&w) {
		return doDevice(ctx, e, "send_recv", engine.DeviceMessage{Vec: v, Peer: to},
			engine.DeviceMessage{Vec: w, Peer: from, Recv: true})
	}
	if err := check(ctx, e, "send_recv", to, &v); err != nil {
		return 0, err
	}
	if err := check(ctx, e, "send_recv", from, &w); err != nil {
		return 0, err
	}
	sent, _, err := sendNow(e.Comm, "send_recv", e.Mail(to), &v, v.Bytes())
	switch {
	case err != nil:
		return 0, err
	case sent:
		return recvFrom(ctx, e.Comm, "send_recv", from, &w)
	}
	s, r := newMessage(to, &v, false), newMessage(from, &w, true)
	ms := [2]*engine.Message{s, r}
	if err := start(e.Comm, "send_recv", ms[:]); err != nil {
		return 0, err
	}
	if err := await(ctx, e.Comm, "send_recv", ms[:]); err != nil {
		return 0, err
	}
	n := r.Got
	if err = s.Err; r.Err != nil {
		err = errors.Join(s.Err, r.Err)
	}
	messages.Put(s)
	messages.Put(r)
	return n, err
}

// messages are messages that are not in use.
var messages = sync.Pool{New: func() any { return new(engine.Message) }}

func newMessage(peer int, v *team.Vec, recv bool) *engine.Message {
	h := messages.Get().(*engine.Message)
	set(h, peer, v, recv)
	return h
}

func set(h *engine.Message, peer int, v *team.Vec, recv bool) {
	*h = engine.Message{Peer: peer, Vec: *v, Recv: recv, Bytes: v.Bytes()}
}

// one sends or receives h.
func one(ctx context.Context, c *engine.Comm, op string, h *engine.Message) (int, error) {
	l, advance := lane(c, h)
	if err := c.Hold(h); err != nil {
		return 0, c.MessageError(op, h.Peer, "", err)
	}
	if err := l.Enter(); err != nil {
		h.LetGo()
		return 0, c.MessageError(op, h.Peer, "", err)
	}
	h.Lane = l
	l.Waiting.Push(h)
	err := c.Usable() // since the call was checked: whoever failed has taken its memory back
	m := c.Mail(h.Peer)
	for i := c.Team().Looks(); i > 0 && err == nil && !h.Done.Load(); i-- {
		_, err = advance(c, m)
	}
	l.Unlock()
	ms := [1]*engine.Message{h}
	if err != nil {
		err = abandon(c, ms[:], c.FailMessage(op, h.Peer, err))
	} else if !h.Done.Load() {
		err = await(ctx, c, op, ms[:])
	}
	if err != nil {
		return 0, err
	}
	n, err := h.Got, h.Err
	messages.Put(h)
	return n, err
}

// lane is where h goes, and what moves it on there.
func lane(c *engine.Comm, h *engine.Message) (*engine.Lane, func(*engine.Comm, *engine.Mail) (bool, error)) {
	if h.Recv {
		return &c.Mail(h.Peer).Recv, advanceRecv
	}
	return &c.Mail(h.Peer).Send, advanceSend
}

// start gives ms their places in the order. An error says that memory has been freed, or the communicator closed,
// meanwhile.
func start(c *engine.Comm, op string, ms []*engine.Message) error {
	for i, h := range ms {
		if err := c.Hold(h); err != nil {
			letGo(ms[:i])
			return c.MessageError(op, h.Peer, "", err)
		}
	}
	for i, h := range ms {
		l, _ := lane(c, h)
		if err := l.Enter(); err != nil {
			letGo(ms[i:]) // those before have been abandoned with their lanes
			return c.MessageError(op, h.Peer, "", err)
		}
		h.Lane = l
		l.Waiting.Push(h)
		l.Unlock()
	}
	return nil
}

func letGo(ms []*engine.Message) {
	for _, h := range ms {
		h.LetGo()
	}
}

// check is what is wrong with a call.
func check(ctx context.Context, e *engine.View, op string, peer int, v *team.Vec) error {
	ctx = engine.Context(ctx)
	if e.Stream == nil && e.Recorder == nil && v.Dev.IsHost() && uint(peer) < uint(e.Size()) && ctx.Err() == nil {
		if err := v.Check(); err != nil {
			return e.MessageError(op, peer, "", err)
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
		err = fmt.Errorf("messages of host memory on a stream: %w", hw.ErrNotSupported)
	case uint(peer) >= uint(e.Size()):
		err = fmt.Errorf("rank %d of %d ranks: %w", peer, e.Size(), fault.ErrArgument)
		peer = -1
	}
	return e.MessageError(op, peer, "", err)
}
