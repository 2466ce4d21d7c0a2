// Package collnet is the COLLNET backend of a rank's registration cache, and this rank's part of the groups of its communicators
// whose collectives a CollNet plugin does.
//
// The plugin's interface registers memory with each group. Registered memory is registered with all groups that there are then, and
// with a later one when an operation first uses it there.
package collnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/collnet"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/register"
)

// limit is how long a call may take that no operation waits for.
const limit = 2 * time.Second

// Backend implements register.Backend. Any goroutine may use it. The plugin is loaded for the first group.
type Backend struct {
	name string // of the plugin, as the user gave it
	id   uint64 // of the job
	log  *slog.Logger
	keep func(register.Memory) // has memory never used again

	loading sync.Mutex // held while the plugin is loaded
	plugin  *collnet.Plugin
	none    error // why it cannot be

	mu      sync.Mutex // guards what follows, and what regions have
	groups  []*Group
	regions []*Region
}

// FromEnv returns the backend of the plugin that the environment names, or nil. id is a number of the job. keep is called for memory
// that a plugin may use for ever.
func FromEnv(log *slog.Logger, id uint64, keep func(register.Memory)) (*Backend, error) {
	name, err := env.CollNet.Get()
	if err != nil || name == "" {
		return nil, err
	}
	return &Backend{name: name, id: id, log: log, keep: keep}, nil
}

// load loads the plugin, once.
func (b *Backend) load(ctx context.Context) (*collnet.Plugin, error) {
	b.loading.Lock()
	defer b.loading.Unlock()
	if b.plugin == nil && b.none == nil {
		b.plugin, b.none = collnet.Load(ctx, b.name, b.id, b.log)
	}
	return b.plugin, b.none
}

// Kind implements register.Backend.
func (b *Backend) Kind() register.BackendKind { return register.COLLNET }

// Register implements register.Backend.
func (b *Backend) Register(m register.Memory) (any, error) {
	if !m.Device.IsHost() {
		return nil, fmt.Errorf("memory of a device, whose data go to the fabric through the host: %w", fault.ErrNotSupported)
	}
	r := &Region{b: b, m: m, with: map[*Group]registration{}}
	b.mu.Lock()
	b.regions = append(b.regions, r)
	groups := slices.Clone(b.groups)
	b.mu.Unlock()
	for _, g := range groups {
		if _, err := r.in(g); err != nil && !passing(err) {
			return nil, errors.Join(err, b.Deregister(m, r))
		}
	}
	return r, nil
}

// Deregister implements register.Backend.
func (b *Backend) Deregister(_ register.Memory, handle any) (err error) {
	r := handle.(*Region)
	b.mu.Lock()
	b.regions = slices.DeleteFunc(b.regions, func(o *Region) bool { return o == r })
	with := r.with
	r.with = nil
	b.mu.Unlock()
	for g, in := range with {
		if in.err == nil {
			err = errors.Join(err, g.deregister(r.m, in.handle))
		}
	}
	return err
}

// Region is the backend's handle.
type Region struct {
	b    *Backend
	m    register.Memory
	with map[*Group]registration // nil: deregistered
}

type registration struct {
	handle collnet.Handle
	err    error
}

// String is like "in 1 group".
func (r *Region) String() string {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	n := 0
	for _, in := range r.with {
		if in.err == nil {
			n++
		}
	}
	switch n {
	case 0:
		return "no group of this rank's has used it"
	case 1:
		return "in 1 group"
	}
	return fmt.Sprintf("in %d groups", n)
}

// in registers the region with a group, unless it is.
func (r *Region) in(g *Group) (collnet.Handle, error) {
	r.b.mu.Lock()
	in, ok := r.with[g]
	r.b.mu.Unlock()
	if ok {
		return in.handle, in.err
	}
	if in.handle, in.err = g.register(r.m); passing(in.err) {
		return in.handle, in.err
	}
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if old, ok := r.with[g]; ok || r.with == nil { // by another goroutine meanwhile
		if in.err == nil {
			go func() { g.failed(g.deregister(r.m, in.handle)) }()
		}
		return old.handle, old.err
	}
	r.with[g] = in
	return in.handle, in.err
}

// Offer is what a group begins with: Join or Close ends it.
type Offer struct {
	Card
	b        *Backend
	listener *collnet.Listener
	device   int
}

// Offer begins a group on the first device that has room for one more. It may block until ctx ends.
func (b *Backend) Offer(ctx context.Context) (*Offer, error) {
	p, err := b.load(ctx)
	if err != nil {
		return nil, err
	}
	o := &Offer{b: b, device: -1}
	b.mu.Lock()
	for i, d := range p.Devices {
		if used := b.on(i); used < d.Groups && o.device < 0 {
			o.device = i
		}
	}
	b.mu.Unlock()
	if o.device < 0 {
		return nil, fmt.Errorf("all groups of the CollNet plugin %q are taken, of which its devices have %d: %w", p.Name, p.Devices[0].Groups,
			fault.ErrLimit)
	}
	reduces, err := p.Reductions(ctx)
	if err != nil {
		return nil, err
	}
	if o.listener, err = p.Listen(ctx, o.device); err != nil {
		return nil, err
	}
	d := p.Devices[o.device]
	o.Card = Card{Name: p.Name, Handle: o.listener.Handle, Bytes: d.Bytes, Speed: d.Speed}
	for _, t := range dtype.All() {
		for op, its := range ops {
			if reduces.Has(t, its) {
				o.Card.Reduces[t] |= 1 << op
			}
		}
	}
	return o, nil
}

// on is how many groups a device has.
func (b *Backend) on(device int) (n int) {
	for _, g := range b.groups {
		if g.device == device {
			n++
		}
	}
	return n
}

// Close ends an offer that nothing has come of.
func (o *Offer) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return o.listener.Close(ctx)
}

// Join makes the group of the members that have told these handles, of which this is number rank. n bytes of memory at window are the
// group's own, from the allocation m. It blocks until all have called it, or ctx ends, and ends o.
func (o *Offer) Join(ctx context.Context, handles [][collnet.HandleBytes]byte, rank int, m register.Memory) (*Group, error) {
	raw, err := o.listener.Connect(ctx, handles, rank)
	if err != nil {
		return nil, err
	}
	g := &Group{b: o.b, raw: raw, device: o.device, name: o.b.plugin.Name, own: m}
	if g.window, err = g.register(m); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	o.b.groups = append(o.b.groups, g)
	return g, nil
}

// Stuck is how many of the plugin's threads this process has given up.
func Stuck() int { return collnet.Stuck() }

var (
	errGone = fmt.Errorf("the group is closed: %w", fault.ErrClosed)
	errBusy = fmt.Errorf("a collective of the group is under way: %w", fault.ErrBusy)
)

// passing reports whether the error says nothing of the memory.
func passing(err error) bool { return errors.Is(err, errGone) || errors.Is(err, errBusy) }

// register registers memory with the group, unless it is busy.
func (g *Group) register(m register.Memory) (h collnet.Handle, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return h, errGone
	case g.running.Load() != nil:
		return h, errBusy
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return g.raw.Register(ctx, m.Base, m.Bytes)
}

// deregister undoes register: while a collective is under way, before the next one, so that nobody waits for it.
func (g *Group) deregister(m register.Memory, h collnet.Handle) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return nil // it was deregistered then
	case g.running.Load() != nil:
		g.later = append(g.later, kept{m, h})
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return g.giveBack(ctx, kept{m, h})
}

// giveBack deregisters memory. What the plugin may still use is kept.
func (g *Group) giveBack(ctx context.Context, all ...kept) (first error) {
	for _, k := range all {
		if err := g.raw.Deregister(ctx, k.handle); err != nil {
			g.b.keep(k.memory)
			if first == nil {
				first = err
			}
		}
	}
	return first
}

// failed logs what no caller can be told.
func (g *Group) failed(err error) {
	if err != nil && !errors.Is(err, hw.ErrNotSupported) {
		g.b.log.Warn("ubcoll: a group of a CollNet plugin", "plugin", g.name, "error", err)
	}
}
