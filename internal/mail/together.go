package mail

import (
	"context"
	"errors"
	"fmt"
	"slices"

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

	m        *Mail
	stream   *engine.Stream
	op       string
	onDevice bool
	group    bool
	turn     bool // they run in the communicator's turn
	acquire  Acquire
	host     []Call
	device   deviceMessages
	placed   []*Message // messages of host memory that have their places, on a stream
}

// Together makes messages for a call op on s; nil is no stream. They are of host memory or, if onDevice, of device
// memory.
func (m *Mail) Together(s *engine.Stream, op string, onDevice bool, acquire Acquire) *Together {
	return &Together{m: m, stream: s, op: op, onDevice: onDevice, acquire: acquire}
}

// Usable returns why nothing can be sent or received now, or nil.
func (t *Together) Usable(ctx context.Context) error {
	if err := t.m.Usable(t.op); err != nil {
		return err
	}
	if ctx = engine.Context(ctx); ctx.Err() != nil {
		return t.m.Error(t.op, -1, "", reason.Ended(ctx))
	}
	return nil
}

// Usable returns why the communicator cannot do messages now, as an error of op, or nil.
func (m *Mail) Usable(op string) error {
	if err := m.c.Err(); err != nil {
		return err
	}
	if err := m.c.BetweenHosts(op); err != nil {
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

// Group makes one Together of ts, which are all on the same stream, for a group. collectives says that the group runs
// collectives before them.
func (m *Mail) Group(ts []*Together, collectives bool) *Together {
	g := &Together{m: m, stream: ts[0].stream, op: "group", group: true, turn: collectives, acquire: ts[0].acquire}
	for _, t := range ts {
		g.host, g.device = append(g.host, t.host...), append(g.device, t.device...)
	}
	return g
}

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
	c.host, c.device = slices.Clone(t.host), slices.Clone(t.device)
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

func (t *Together) messages() []*Message {
	ms := make([]*Message, len(t.host))
	for i := range t.host {
		k := &t.host[i]
		ms[i] = NewMessage(k.Peer, &k.Vec, k.Recv, t.acquire)
		if ms[i].exact = true; t.group {
			ms[i].told = new(engine.OpInfo)
		}
	}
	return ms
}

// Run implements team.Operation. On a device's stream it queues them.
func (t *Together) Run(ctx context.Context) error {
	defer t.m.c.Tracer.Begin(ctx, t.op).End()
	ms := t.placed
	t.placed = nil
	for _, h := range ms {
		h.lane.Lock()
		h.queued = false
		h.lane.Unlock()
	}
	if ms == nil && len(t.host) > 0 {
		ms = t.messages()
		if err := t.m.Start(t.op, ms); err != nil {
			return err
		}
	}
	var told []engine.OpInfo
	var device *Transfer
	var errs []error
	if len(t.device) > 0 {
		var err error
		if device, err = t.Transfer(ctx); err != nil {
			errs = append(errs, err)
		} else if t.group {
			told = messageInfos(t.device)
		}
	}
	if len(ms) > 0 {
		infos, err := t.await(ctx, ms)
		told, errs = append(infos, told...), append(errs, err)
	}
	if device != nil {
		errs = append(errs, device.Wait(ctx))
	}
	if t.group {
		t.m.c.NoteGroup(told, t.turn)
	}
	return errors.Join(errs...)
}

// await waits for messages of host memory. It joins the errors of single messages.
func (t *Together) await(ctx context.Context, ms []*Message) (infos []engine.OpInfo, err error) {
	if err := t.m.Await(ctx, t.op, ms); err != nil {
		return nil, err
	}
	var errs []error
	for _, h := range ms {
		if h.Err != nil {
			errs = append(errs, h.Err)
		} else if t.group {
			infos = append(infos, *h.told)
		}
		h.PutBack()
	}
	return infos, errors.Join(errs...)
}

// Transfer starts messages of device memory. On a stream nothing more is to do, and the Transfer is nil; else the
// caller waits for it.
func (t *Together) Transfer(ctx context.Context) (*Transfer, error) {
	return t.m.transfer(engine.Context(ctx), t.stream, t.op, t.device, !t.AtOnce)
}
