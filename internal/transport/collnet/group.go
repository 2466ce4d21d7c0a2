package collnet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/collnet"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/register"
)

// Group implements transport.Fabric.
type Group struct {
	b      *Backend
	raw    *collnet.Group
	device int
	name   string
	own    register.Memory // the group's own memory
	window collnet.Handle  // of it

	running atomic.Pointer[call] // or nil; others than the communicator's turn only look whether there is one
	cancel  context.CancelFunc
	used    []register.Memory // by collectives since the last that has ended well

	mu     sync.Mutex // held during calls that are no collectives, and as one begins
	closed bool
	later  []kept // to be given back
}

// call is a collective under way.
type call struct {
	over chan struct{} // closed at the end
	err  error         // then
}

// Name implements transport.Fabric.
func (g *Group) Name() string { return g.name }

// Usable implements transport.Fabric.
func (g *Group) Usable(handle any) error {
	_, err := handle.(*Region).in(g)
	return err
}

// Begin implements transport.Fabric.
func (g *Group) Begin(ctx context.Context, o transport.Offload) {
	c := &call{over: make(chan struct{})}
	ctx, g.cancel = context.WithCancel(ctx)
	src, err1 := g.memory(o.Src)
	dst, err2 := g.memory(o.Dst)
	g.mu.Lock()
	if len(g.later) > 0 {
		short, cancel := context.WithTimeout(ctx, limit)
		g.failed(g.giveBack(short, g.later...))
		cancel()
		g.later = nil
	}
	g.running.Store(c)
	g.mu.Unlock()
	if err := errors.Join(err1, err2); err != nil {
		c.err = err
		close(c.over)
		return
	}
	go func() {
		defer close(c.over)
		c.err = g.run(ctx, o, dst, src)
	}()
}

// memory is registered memory as the plugin knows it.
func (g *Group) memory(m transport.OffloadMemory) (collnet.Memory, error) {
	if m.Handle == nil {
		return collnet.Memory{At: m.At, Handle: g.window}, nil
	}
	r := m.Handle.(*Region)
	h, err := r.in(g)
	g.used = append(g.used, r.m)
	return collnet.Memory{At: m.At, Handle: h}, err
}

func (g *Group) run(ctx context.Context, o transport.Offload, dst, src collnet.Memory) error {
	op, w := ops[o.Op], collnet.Window{From: o.From, To: o.To, Step: o.Step}
	switch o.Kind {
	case transport.OffloadAllReduce:
		return g.raw.AllReduce(ctx, dst, src, o.Block/o.Type.Size(), o.Step, o.Type, op)
	case transport.OffloadAllGather:
		return g.raw.AllGather(ctx, dst, src, o.Block, w)
	}
	return g.raw.ReduceScatter(ctx, dst, src, o.Block, w, o.Type, op)
}

var ops = map[cpu.Op]collnet.Op{cpu.Sum: collnet.Sum, cpu.Prod: collnet.Prod, cpu.Max: collnet.Max, cpu.Min: collnet.Min}

// Over implements transport.Fabric.
func (g *Group) Over() (bool, error) {
	c := g.running.Load()
	if c == nil {
		return true, nil
	}
	select {
	case <-c.over:
	default:
		return false, nil
	}
	g.cancel()
	if c.err == nil {
		g.used = g.used[:0]
	}
	g.running.Store(nil)
	var failed *collnet.Error
	if errors.As(c.err, &failed) && failed.Remote() {
		return true, fmt.Errorf("%w: %w", c.err, fault.ErrPeerLost)
	}
	return true, c.err
}

// Close implements transport.Fabric.
func (g *Group) Close() (err error) {
	if c := g.running.Load(); c != nil { // of a communicator that broke
		g.cancel()
		<-c.over // soon: the thread is given up, if need be
		g.running.Store(nil)
	}
	b := g.b
	var registered []kept
	if g.window != (collnet.Handle{}) {
		registered = append(registered, kept{g.own, g.window})
	}
	b.mu.Lock()
	b.groups = slices.DeleteFunc(b.groups, func(o *Group) bool { return o == g })
	for _, r := range b.regions {
		if in, ok := r.with[g]; ok {
			delete(r.with, g)
			if in.err == nil {
				registered = append(registered, kept{r.m, in.handle})
			}
		}
	}
	b.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err = g.giveBack(ctx, append(registered, g.later...)...)
	if end := g.raw.Close(ctx); end != nil {
		for _, m := range append(g.used, g.own) {
			b.keep(m)
		}
		err = errors.Join(err, end)
	}
	return err
}

// kept is memory that the group has registered.
type kept struct {
	memory register.Memory
	handle collnet.Handle
}
