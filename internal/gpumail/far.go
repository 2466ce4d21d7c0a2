package gpumail

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
)

// far is the messages of device memory with ranks of other hosts. A call has a kernel in its place on the stream, which
// copies between the device and buffers of the host what this process tells it, and a goroutine that moves the messages
// between these buffers and the other host: the caller's, if it blocks, or the stream's. That goroutine makes no call of
// the driver, which may be kept by a full queue behind the very kernel.
type far struct {
	m    *messages
	mail *mail.Mail

	mu      sync.Mutex
	lanes   map[int]*farLane
	running int
	runs    sync.WaitGroup // goroutines of requests
}

func newFar(m *messages, between *mail.Mail) *far {
	return &far{m: m, mail: between, lanes: map[int]*farLane{}}
}

// farRun is messages that start together.
type farRun struct {
	f         *far
	op        string
	copier    *gpu.Copier
	own       *gpu.Stream // of a call that is waited for; nil: it is on a stream of the user's
	bounces   []bounce
	left      int  // copies that are still to be told, if all goes well
	last      bool // the last one was told
	direct    bool // RDMA devices use memory of the device
	noted     []team.MessageNote
	uncounted bool          // count no longer has it
	ended     chan struct{} // closed when a goroutine has run it; nil: whoever waits runs it
	err       error
}

// lane returns the lane of messages to peer or, if recv, from it.
func (f *far) lane(peer int, recv bool) *farLane {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := laneOf(peer, recv)
	l := f.lanes[at]
	if l == nil {
		l = new(farLane)
		f.lanes[at] = l
	}
	return l
}

// newRun prepares to start calls together. It reserves the memory. captured: the kernel will run later, any number of times.
// stream: it is on a stream of the user's.
func (f *far) newRun(op string, calls []mail.Call, stream, captured bool) (*farRun, error) {
	bytes := 0
	for i := range calls {
		k := &calls[i]
		n := k.Vec.Bytes()
		bytes += n
		if err := f.lane(k.Peer, k.Recv).reserve(f.m.d.Domain, n); err != nil {
			return nil, err
		}
	}
	copier, err := f.m.d.Proxy.NewCopier(bytes, captured)
	if err != nil {
		return nil, err
	}
	r := f.runOf(op, calls, copier)
	if !captured { // else each run of the kernel does
		r.reach(stream)
	}
	return r, nil
}

// runOf is a run of calls by a kernel that there is.
func (f *far) runOf(op string, calls []mail.Call, copier *gpu.Copier) *farRun {
	r := &farRun{f: f, op: op, copier: copier, bounces: make([]bounce, len(calls))}
	for i := range calls {
		k := &calls[i]
		r.bounces[i].set(f.lane(k.Peer, k.Recv), k)
		r.left += r.bounces[i].parts
	}
	return r
}

// reach lets RDMA devices use the memory of messages where they reach it.
func (r *farRun) reach(stream bool) {
	for i := range r.bounces {
		b := &r.bounces[i]
		k := b.msg.Vec
		k.Ptr = b.memory()
		if b.reach(r.f.reach(&k, b.recv, stream, r.copier.Captured())); b.claim != nil {
			r.direct = true
			r.left -= b.parts
		}
	}
}

// drop gives back what a run has that does not begin.
func (r *farRun) drop() {
	for i := range r.bounces {
		r.bounces[i].end()
	}
}

// place gives the messages their places in the order.
func (r *farRun) place() error {
	for i := range r.bounces {
		if err := r.bounces[i].place(r.f.mail, r.op); err != nil {
			r.takeBack(i)
			return err
		}
	}
	r.f.count(1)
	return nil
}

// takeBack takes back the places of the first n messages, which did not begin.
func (r *farRun) takeBack(n int) {
	r.f.mail.Withdraw(r.messages()[:n])
	r.drop()
}

// withdraw undoes place: nothing was queued.
func (r *farRun) withdraw() {
	r.takeBack(len(r.bounces))
	r.f.count(-1)
}

// count counts the runs under way.
func (f *far) count(n int) {
	f.mu.Lock()
	f.running += n
	f.mu.Unlock()
}

func (r *farRun) messages() []*mail.Message {
	ms := make([]*mail.Message, len(r.bounces))
	for i := range r.bounces {
		ms[i] = r.bounces[i].msg
	}
	return ms
}

// advance moves the copies on.
func (r *farRun) advance() (busy bool) {
	for i := range r.bounces {
		if r.bounces[i].advance(r) {
			busy = true
		}
	}
	return busy
}

func (r *farRun) over() bool {
	for i := range r.bounces {
		if !r.bounces[i].over() {
			return false
		}
	}
	return true
}

// run moves the messages until they are done, once the kernel runs.
func (r *farRun) run(ctx context.Context) error {
	err := r.move(ctx)
	if e := r.end(); err == nil {
		err = e
	}
	r.uncount()
	return err
}

// uncount ends what place has counted.
func (r *farRun) uncount() {
	if !r.uncounted {
		r.uncounted = true
		r.f.count(-1)
	}
}

func (r *farRun) move(ctx context.Context) error {
	c := r.f.m.c
	if err := r.f.m.d.Proxy.Begin(ctx, r.copier, r.own); err != nil {
		return r.failed(ctx, err)
	}
	ms := r.messages()
	r.f.mail.Begin(ms)
	var w gpu.DeviceWait
	copies := func() (busy bool, err error) {
		if busy = r.advance(); !busy {
			w = gpu.DeviceWait{}
			return false, nil
		}
		_, err = w.Step(r.f.m.d, nil)
		return busy, err
	}
	if err := r.f.mail.AwaitBounced(ctx, r.op, ms, copies); err != nil {
		return err
	}
	for w = (gpu.DeviceWait{}); r.advance() || !r.over(); {
		if e := c.Broken(); e != nil {
			return e
		}
		if _, err := w.Step(r.f.m.d, nil); err != nil {
			return c.FailOpen(r.f.m.error(r.op, "device", err))
		}
	}
	if err := r.flush(); err != nil {
		return c.FailOpen(r.f.m.error(r.op, "device", err))
	}
	var errs []error
	for i, msg := range ms {
		if msg.Err != nil {
			errs = append(errs, r.f.m.onDevice(msg.Err))
			continue
		}
		n := r.f.noteOf(&r.bounces[i])
		r.noted = append(r.noted, n)
		c.NoteMessage(n.Info())
	}
	if r.op == "group" {
		c.NoteGroup(r.noted, false)
	}
	err := errors.Join(errs...)
	if len(errs) == 1 {
		err = errs[0]
	}
	if r.copier.Captured() && err != nil { // before the kernel ends, and so Sync
		r.f.m.d.Report(err)
		err = nil
	}
	if !r.last { // some messages failed, or none has data, or the kernel stays until all is over
		r.uncount()
		r.copier.Copy(0, 0, 0, true)
	}
	return err
}

// flush makes visible on the device what RDMA devices have written there, if that needs a call of the driver: the caller's, who waits.
func (r *farRun) flush() error {
	if !r.direct || r.f.m.d.Domain.Ordered() {
		return nil
	}
	for i := range r.bounces {
		if b := &r.bounces[i]; b.recv && b.direct.Load() > 0 {
			return r.f.m.d.Domain.Context.FlushRDMAWrites()
		}
	}
	return nil
}

// onDevice adds to the error of a message that it was of memory of a device.
func (m *messages) onDevice(err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok {
		d := *e
		d.Device = m.d.Domain.Context.Device()
		return &d
	}
	return err
}

// failed returns the error of a run whose kernel failed, and breaks the communicator.
func (r *farRun) failed(ctx context.Context, err error) error {
	c := r.f.m.c
	step := "device"
	switch {
	case c.Broken() != nil:
		return c.Broken()
	case ctx.Err() != nil:
		step = "launch"
	}
	return c.FailOpen(r.f.m.error(r.op, step, err))
}

// end waits until the kernel ends, and gives back what it used.
func (r *farRun) end() error {
	err := r.f.m.d.Proxy.End(r.copier, r.own)
	r.drop()
	if err != nil {
		return r.f.m.c.FailOpen(r.f.m.error(r.op, "device", err))
	}
	return nil
}

// noteOf describes for LastOp and Stats how a message that is done went.
func (f *far) noteOf(b *bounce) team.MessageNote {
	n := team.MessageNote{Kind: team.KindSend, Direct: b.wasDirect(), Device: true, Seq: b.msg.Seq(), Bytes: b.msg.Vec.Bytes(),
		Algorithm: "rendezvous", Why: b.why, Between: f.mail.LinkTo(b.msg.Peer)}
	if !n.Direct {
		n.Why = bounced(b.why)
	}
	if b.recv {
		n.Kind = team.KindRecv
	}
	if n.Bytes <= mail.MediumFar {
		n.Algorithm = "eager"
	}
	return n
}

// goRun runs r in a goroutine.
func (r *farRun) goRun(ctx context.Context) {
	r.ended = make(chan struct{})
	r.f.runs.Add(1)
	go func() {
		defer r.f.runs.Done()
		r.err = r.run(ctx)
		close(r.ended)
	}()
}

// start starts near, messages with ranks of this host, and away together, on s, or on streams of their own.
func (f *far) start(ctx context.Context, s *engine.Stream, op string, near, away []Message, wait bool) (*Transfer, error) {
	m := f.m
	g := gpu.StreamOf(s)
	captured := g != nil && g.Captured()
	held, err := m.prepareFar(away, captured)
	defer unprepare(away, held)
	if err != nil {
		return nil, err
	}
	calls := make([]mail.Call, len(away))
	for i := range away {
		calls[i] = away[i].Call
	}
	r, err := f.newRun(op, calls, g != nil, captured)
	if err != nil {
		return nil, err
	}
	if g != nil {
		return nil, f.queue(ctx, s, g, r, calls, near, captured)
	}
	var t *Transfer
	if len(near) > 0 {
		if t, err = m.begin(ctx, nil, op, near, wait); err != nil {
			r.drop()
			r.copier.GiveBack()
			return nil, err
		}
	} else {
		t = &Transfer{m: m, op: op, none: true}
	}
	if err := f.launchOwn(r); err != nil {
		return nil, f.failed(r, len(near) > 0, err)
	}
	if t.far = r; !wait {
		r.goRun(context.WithoutCancel(ctx))
	}
	return t, nil
}

// failed returns the error of messages whose kernel could not be queued. It breaks the communicator if others of the call were
// queued, or the device is to blame.
func (f *far) failed(r *farRun, others bool, err error) error {
	r.drop()
	if !others && (errors.Is(err, fault.ErrClosed) || errors.Is(err, fault.ErrLimit)) {
		r.copier.GiveBack()
		return err
	}
	return f.m.c.FailOpen(f.m.error(r.op, "device", err)) // the page stays: others may be about to use it
}

// launchOwn queues r's kernel on a stream of its own.
func (f *far) launchOwn(r *farRun) error {
	d := f.m.d
	l := r.bounces[0].lane
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := f.own(l)
	if err != nil {
		return err
	}
	r.own = s
	done, err := d.Domain.BeginQueueing(s)
	if err != nil {
		return err
	}
	defer done()
	d.Watch()
	if err := r.place(); err != nil {
		return err
	}
	r.advance()
	if err := s.Use(r.copier.Launch); err != nil {
		r.withdraw()
		return err
	}
	return nil
}

// own returns the lane's own stream. The caller has locked the lane.
func (f *far) own(l *farLane) (*gpu.Stream, error) {
	if l.own == nil {
		s, err := f.m.d.Domain.NewStream()
		if err != nil {
			return nil, err
		}
		l.own = s
		f.m.d.Domain.Add(s)
	}
	return l.own, nil
}

// queue queues r, and near beside it, on s, whose part on the device is g.
func (f *far) queue(ctx context.Context, s *engine.Stream, g *gpu.Stream, r *farRun, calls []mail.Call, near []Message, captured bool) error {
	m := f.m
	g.Enter(m.d, m.d.Domain)
	m.d.Watch()
	if captured {
		if err := f.fork(ctx, g, r, near, true); err != nil {
			return f.failed(r, len(near) > 0, err)
		}
		f.keep(r, calls)
		return nil
	}
	return s.Proxy(ctx, m.c, func() error {
		err := r.place()
		if err == nil {
			r.advance()
			if err = f.fork(ctx, g, r, near, false); err != nil {
				r.withdraw()
			}
		}
		if err != nil {
			return f.failed(r, len(near) > 0, err)
		}
		return nil
	}, r.run)
}

// fork queues r's kernel on g; or, if near has messages, on another stream, so that it runs beside theirs.
func (f *far) fork(ctx context.Context, g *gpu.Stream, r *farRun, near []Message, captured bool) (err error) {
	d := f.m.d.Domain
	if len(near) == 0 {
		done, err := d.BeginQueueing(g)
		if err != nil {
			return err
		}
		defer done()
		return g.Use(func(cu *cuda.Stream) error {
			g.Follows(0, 0)
			return r.copier.Launch(cu)
		})
	}
	begin, err1 := d.Context.NewEvent(false)
	end, err2 := d.Context.NewEvent(false)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, begin.Close(), end.Close()) }()
	l := r.bounces[0].lane
	l.mu.Lock()
	defer l.mu.Unlock()
	own, err := f.own(l)
	if err != nil {
		return err
	}
	branch := own.Driver
	if captured {
		f.m.branches.Lock()
		defer f.m.branches.Unlock()
		err = g.Use(func(cu *cuda.Stream) error {
			branch, err = f.m.branches.Take(d, cu, nil)
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := g.Use(begin.Record); err != nil {
		return err
	}
	if _, err := f.m.begin(ctx, g, r.op, near, true); err != nil {
		return err
	}
	done, err := d.BeginQueueing(own)
	if err != nil {
		return err
	}
	defer done()
	return errors.Join(branch.Wait(begin), r.copier.Launch(branch), end.Record(branch), g.Use(func(cu *cuda.Stream) error {
		return cu.Wait(end)
	}))
}

// keep keeps what was captured, and runs it from now on whenever its kernel runs.
func (f *far) keep(r *farRun, calls []mail.Call) {
	op, copier := r.op, r.copier
	f.m.d.Proxy.Keep(copier, func() (func() error, error) {
		r := f.runOf(op, calls, copier)
		r.reach(true)
		return func() error { return r.run(context.Background()) }, r.place()
	})
}

// shut returns fault.ErrBusy while messages are on their way.
func (f *far) shut() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running > 0 {
		return fmt.Errorf("a message of device memory, from or to another host, is on its way (its call, Request.Wait "+
			"or Stream.Sync ends it): %w", fault.ErrBusy)
	}
	return nil
}

// close frees what it has. Nothing is queued any more.
func (f *far) close() error {
	f.m.d.Proxy.Halt()
	f.runs.Wait()
	var errs []error
	d := f.m.d.Domain
	for _, l := range f.lanes {
		if s := l.own; s != nil {
			s.Quiet()
			d.Remove(s)
			errs = append(errs, s.End())
		}
		for i := range l.sizes {
			if memory := l.sizes[i].memory; memory != nil {
				f.m.d.GivePinned(memory)
			}
		}
	}
	return errors.Join(errs...)
}
