package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// StepKind is what a step of a channel does.
type StepKind uint8

// The kinds.
const (
	StepPut StepKind = 1 + iota
	StepGet
	StepSignal
	StepRelaxedSignal
	StepWait
	StepPutPackets
	StepGetPackets
	StepFlush
)

// Step is one operation on a channel. Offsets are from the start of the memory of the rank that has it.
type Step struct {
	Kind     StepKind
	Dst, Src int
	N        int // bytes of data
	Width    int // of a packet
}

// packed is how much memory the packets take.
func (s *Step) packed() int {
	half := s.Width / 2
	return (s.N + half - 1) / half * s.Width
}

var stepNames = [...]string{"", "put", "get", "signal", "signal", "wait", "put_packets", "get_packets", "flush"}

// channelBlocks is how many blocks move 1 MiB, and the most that packets take, or a kernel that is launched early: two
// of those fit on a device beside each other, and the kernels of the other side too.
const channelBlocks = 64

// Sizes of copies of channels, in bytes.
const (
	copyBlock     = 1 << 20 / channelBlocks // that a block copies at once
	packetBlock   = 4 << 10                 // that a block puts into packets at once
	copyEngineMin = 32 << 20                // what copy engines move faster than kernels
)

// span is bytes of one of the two memories.
type span struct{ at, n int }

func (a span) meets(b span) bool { return a.at < b.at+b.n && b.at < a.at+a.n }

// touch is what a step reads and writes: here (0) and there (1).
type touch struct{ reads, writes [2]span }

func (t *touch) meets(u *touch) bool {
	for i := range t.reads {
		if t.writes[i].meets(u.reads[i]) || t.writes[i].meets(u.writes[i]) || t.reads[i].meets(u.writes[i]) {
			return true
		}
	}
	return false
}

// touches is what s reads and writes, after a check that the memories have it.
func (g *gpuLink) touches(s *Step) (t touch, err error) {
	n, half := s.N, 0
	if s.Kind == StepPutPackets || s.Kind == StepGetPackets {
		switch {
		case s.Width != 8 && s.Width != 16:
			return t, fmt.Errorf("packets of %d bytes (8 or 16): %w", s.Width, fault.ErrArgument)
		case s.N < 0 || s.N > 1<<46:
			return t, fmt.Errorf("%d bytes as packets: %w", s.N, fault.ErrArgument)
		}
		half = s.packed()
	}
	switch s.Kind {
	case StepPut:
		t.reads[0], t.writes[1] = span{s.Src, n}, span{s.Dst, n}
	case StepGet:
		t.reads[1], t.writes[0] = span{s.Src, n}, span{s.Dst, n}
	case StepPutPackets:
		t.reads[0], t.writes[1] = span{s.Src, n}, span{s.Dst, half}
	case StepGetPackets:
		t.reads[0], t.writes[0] = span{s.Src, half}, span{s.Dst, n}
	}
	what := [2]string{"the registration", fmt.Sprintf("rank %d's memory", g.rank)}
	for i, most := range g.bytes {
		for _, x := range []span{t.reads[i], t.writes[i]} {
			if x.at < 0 || x.n < 0 || x.at > most || x.n > most-x.at {
				return t, outside(x.at, x.n, most, what[i])
			}
		}
	}
	if half > 0 {
		at := g.there + cuda.Addr(s.Dst)
		if s.Kind == StepGetPackets {
			at = g.here + cuda.Addr(s.Src)
			if t.reads[0].meets(t.writes[0]) {
				return t, fmt.Errorf("packets [%d,+%d) overlap their destination [%d,+%d): %w", s.Src, half, s.Dst, n,
					fault.ErrArgument)
			}
		}
		if uintptr(at)%uintptr(s.Width) != 0 {
			return t, fmt.Errorf("packets at %#x, which is no multiple of %d: %w", uintptr(at), s.Width, fault.ErrArgument)
		}
	}
	return t, nil
}

// OnDevice reports whether the link is between memory of devices: Launch does its steps.
func (l *Link) OnDevice() bool { return l.gpu != nil }

// Launch queues steps on s, or on a stream of the channel's own, and waits: in as few kernels as can do them. If
// anything is wrong with one of them, none is queued.
func (l *Link) Launch(ctx context.Context, s *Stream, steps []Step) error {
	if len(steps) == 0 {
		return nil
	}
	op := stepNames[steps[0].Kind]
	if err := l.Begin(ctx); err != nil {
		return l.Error(op, err)
	}
	defer l.End()
	if err := l.gpu.launch(ctx, s, steps); err != nil {
		return l.Error(op, err)
	}
	for i := range steps {
		switch k := &steps[i]; k.Kind {
		case StepPut, StepPutPackets, StepGet:
			l.countAlone(k.Kind != StepGet, k.N)
		}
	}
	return nil
}

func (g *gpuLink) launch(ctx context.Context, s *Stream, steps []Step) error {
	var touched [16]touch
	all := touched[:0]
	for i := range steps {
		t, err := g.touches(&steps[i])
		if err != nil {
			return err
		}
		all = append(all, t)
	}
	return g.submit(ctx, s, steps, all)
}

// submit is launch, of steps that touch all, and are within the memories.
func (g *gpuLink) submit(ctx context.Context, s *Stream, steps []Step, all []touch) error {
	claim, err := g.r.Acquire()
	if err != nil {
		return err
	}
	claim.Release() // the link has one of its own
	on, err := g.c.queues(s)
	if err != nil {
		return err
	}
	own, side := on == nil, sideOf(steps)
	g.launching.Lock()
	if on, err = g.ready(on, side, steps); err == nil {
		if err = g.queue(on, steps, all, uint32(side)); err != nil {
			err = g.linkFailed(err)
		}
	}
	g.launching.Unlock()
	if err != nil || !own {
		return err
	}
	return g.wait(ctx, on)
}

// queues is where on s, which may be nil, what has no turn is queued.
func (c *Comm) queues(s *Stream) (*gpuStream, error) {
	on := gpuStreamOf(s)
	switch {
	case s == nil:
		return nil, nil
	case on == nil:
		return nil, fmt.Errorf("memory on %v, and the stream is on %v: %w", c.device.gpu.ctx.Device(), s.dev,
			fault.ErrArgument)
	}
	return on, c.onGPU(s.dev)
}

func sideOf(steps []Step) int {
	side := -1
	for i := range steps {
		mine := kernels.SideOut
		if k := steps[i].Kind; k == StepWait || k == StepGetPackets {
			mine = kernels.SideIn
		}
		if side >= 0 && side != mine {
			mine = kernels.SideBoth
		}
		side = mine
	}
	return side
}

// ready is the stream to queue steps on, unless the peer has taken back the memory that they reach for, or the end has
// ended. The caller has launching locked, as it has until they are queued: watch gives no memory up meanwhile.
func (g *gpuLink) ready(s *gpuStream, side int, steps []Step) (*gpuStream, error) {
	for i := range steps {
		k := steps[i].Kind
		if g.rank != g.c.rank && (k == StepPut || k == StepGet || k == StepPutPackets) {
			if err := g.remote.live(); err != nil {
				return nil, err
			}
		}
	}
	if err := g.told(); err != nil || s != nil {
		return s, err
	}
	if g.own[side] == nil {
		own, err := newStream(g.d.gpu.ctx)
		if err != nil {
			return nil, err
		}
		g.own[side] = own
	}
	return g.own[side], nil
}

// queue queues steps, cut where a step touches what one before it does: within a kernel, nothing but signals wait for
// all blocks. The caller has launching locked.
func (g *gpuLink) queue(s *gpuStream, steps []Step, all []touch, side uint32) error {
	if !g.streams[s] {
		g.streams[s] = true
		s.enter(endUser{g})
		g.d.gpu.add(s)
	}
	g.d.watch()
	return s.use(func(cu *cuda.Stream) error {
		g.captured = g.captured || s.capturing()
		early := g.d.gpu.ctx.Early() && s.takesEarly()
		most := kernels.ChannelGrid
		if side != kernels.SideOut && !s.capturing() && g.d.running(s) {
			most = g.d.room.channels
		}
		if err := g.order(s, cu, side); err != nil {
			return err
		}
		for from := 0; from < len(steps); {
			if k := steps[from].Kind; steps[from].N >= copyEngineMin && (k == StepPut || k == StepGet) {
				dst, src := g.addresses(&steps[from])
				if err := cu.Copy(dst, src, steps[from].N); err != nil {
					return err
				}
				from++
				continue
			}
			to := from
			for ; to < len(steps) && to-from < kernels.MaxSteps; to++ {
				if k := steps[to].Kind; steps[to].N >= copyEngineMin && (k == StepPut || k == StepGet) {
					break
				}
				clash := false
				for i := from; i < to; i++ {
					clash = clash || all[to].meets(&all[i])
				}
				if clash {
					break
				}
			}
			if err := g.kernel(s, cu, steps[from:to], side, most, early); err != nil {
				return err
			}
			from = to
		}
		return nil
	})
}

// order has what is queued next on s begin after what the same side of the channel has queued on other streams, as the
// calls came: its kernels count alone.
func (g *gpuLink) order(s *gpuStream, cu *cuda.Stream, side uint32) error {
	if s.capturing() { // when it runs, and after what, is for whoever captures it to say
		return nil
	}
	if err := g.follow(s, cu, side); err != nil {
		return err
	}
	g.last[side] = s
	return nil
}

// follow is order for what is none of the channel's.
func (g *gpuLink) follow(s *gpuStream, cu *cuda.Stream, side uint32) error {
	for k, last := range g.last {
		if last == nil || last == s || uint32(k) != side && k != kernels.SideBoth && side != kernels.SideBoth {
			continue
		}
		e := &g.events[k] // sides that run at the same time have one each
		if *e == nil {
			var err error
			if *e, err = g.d.gpu.ctx.NewEvent(false); err != nil {
				return err
			}
		}
		if err := last.before(cu, *e); err != nil {
			return err
		}
	}
	return nil
}

// addresses are where a copy goes and comes from.
func (g *gpuLink) addresses(s *Step) (dst, src cuda.Addr) {
	switch s.Kind {
	case StepPut, StepPutPackets:
		return g.there + cuda.Addr(s.Dst), g.here + cuda.Addr(s.Src)
	case StepGet:
		return g.here + cuda.Addr(s.Dst), g.there + cuda.Addr(s.Src)
	}
	return g.here + cuda.Addr(s.Dst), g.here + cuda.Addr(s.Src)
}

var stepCodes = [...]uint64{StepPut: kernels.StepCopy, StepGet: kernels.StepCopy, StepSignal: kernels.StepSignal,
	StepRelaxedSignal: kernels.StepRelaxedSignal, StepWait: kernels.StepWait, StepPutPackets: kernels.StepPutPackets,
	StepGetPackets: kernels.StepGetPackets}

// kernel queues one kernel, of so many blocks at most.
func (g *gpuLink) kernel(on *gpuStream, cu *cuda.Stream, steps []Step, side uint32, most int, early bool) error {
	p := &g.params
	p.Side, p.Steps, p.Spread = side, 0, 0
	blocks, threads := 1, warp
	for i := range steps {
		s := &steps[i]
		if s.Kind == StepFlush {
			continue // a kernel is done when the next one begins
		}
		x := kernels.Step{What: stepCodes[s.Kind]}
		if s.Kind != StepWait && s.Kind != StepSignal && s.Kind != StepRelaxedSignal {
			dst, src := g.addresses(s)
			x = kernels.Step{What: x.What | uint64(s.Width)<<32, Dst: uint64(dst), Src: uint64(src), Bytes: uint64(s.N)}
			each, block, limit := 16, copyBlock, most
			if s.Width > 0 {
				each, block, limit = s.Width/2, packetBlock, min(most, channelBlocks)
			}
			blocks = max(blocks, min((s.N+block-1)/block, limit))
			threads = max(threads, min((s.N+each-1)/each, kernels.MaxThreads))
			p.Spread = p.Steps + 1
		}
		p.Step[p.Steps] = x
		p.Steps++
	}
	if p.Steps == 0 {
		return nil
	}
	// Few threads for few bytes: all of them do all steps.
	l := cuda.Launch{Grid: min(blocks, g.c.multiprocessors), Block: min((threads+warp-1)/warp*warp, g.d.threads, g.f.MaxThreads)}
	l.Early = on.follows(int32(l.Grid), g.d.blocks) && early && l.Grid <= channelBlocks
	return g.f.Launch(cu, l, p.Bytes())
}

// warp is how many threads a device runs as one.
const warp = 32

// linkFailed breaks the communicator with what the driver said; a closed stream is the caller's.
func (g *gpuLink) linkFailed(err error) error {
	if !errors.Is(err, fault.ErrClosed) {
		g.d.failedOn(g.op, err)
	}
	return err
}

// drain waits until what puts, gets and signals is done.
func (g *gpuLink) drain(ctx context.Context) error {
	g.launching.Lock()
	last := g.last
	g.launching.Unlock()
	for k, s := range last {
		if s == nil || k == kernels.SideIn {
			continue
		}
		var early error
		err := s.await(func(time.Duration) error {
			switch {
			case ctx.Err() != nil:
				early = fault.Ended(ctx)
			case g.of.use().isClosed() || g.c.closing.Load():
				early = fmt.Errorf("%s was closed during the wait: %w", g.of.name(), fault.ErrClosed)
			}
			return early
		})
		if early != nil {
			return early
		}
		if err != nil {
			return g.linkFailed(err)
		}
	}
	return g.told()
}

// wait waits until the steps of a blocking call are done.
func (g *gpuLink) wait(ctx context.Context, s *gpuStream) error {
	c := g.c
	err := s.await(func(waited time.Duration) error {
		switch {
		case ctx.Err() != nil:
			g.fail(fault.Ended(ctx))
		case g.of.use().isClosed() || c.closing.Load():
			g.fail(fmt.Errorf("%s was closed during the wait: %w", g.of.name(), fault.ErrClosed))
		}
		if waited > c.opts.Timeout+deviceGrace {
			return fmt.Errorf("what is queued has not ended after %v: %w", waited.Round(time.Second), fault.ErrTimeout)
		}
		return nil
	})
	if err != nil {
		return g.linkFailed(err)
	}
	return g.told()
}
