package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// gate counts the uses of something that may be closed at any time, from any goroutine: what it holds is given up when
// the last use has left.
type gate struct {
	n    atomic.Int64 // uses, plus gateClosed
	done atomic.Bool  // somebody gives up what is held
	over atomic.Bool  // and has, with err
	err  error
	left atomic.Bool // no Close waits for that
}

const gateClosed = -1 << 62

// enter begins a use; false after close.
func (g *gate) enter() bool { return g.n.Add(1) > 0 }

// leave ends a use, or an enter that failed. It reports whether the caller is to give up what is held.
func (g *gate) leave() bool { return g.n.Add(-1) == gateClosed && !g.done.Swap(true) }

// close lets nobody in any more. first is false if it was closed before; last reports whether the caller is to give up
// what is held.
func (g *gate) close() (first, last bool) {
	for {
		v := g.n.Load()
		if v < 0 {
			return false, false
		}
		if g.n.CompareAndSwap(v, v+gateClosed) {
			return true, v == 0 && !g.done.Swap(true)
		}
	}
}

func (g *gate) isClosed() bool { return g.n.Load() < 0 }

// drain closes a gate whose uses are never long, and waits until the last one has left.
func (g *gate) drain() {
	for g.close(); g.n.Load() != gateClosed; {
		time.Sleep(20 * time.Microsecond)
	}
}

// noun is what a communicator closes when it closes.
type noun interface {
	// use is its gate.
	use() *gate
	// giveUp ends it, once. quick: if the communicator is broken, what is on a device ends with it, later.
	giveUp(quick bool) error
	// failed is for an error of giveUp that no Close returns.
	failed(err error)
	// name is what a user calls it.
	name() string
	// counts is what it has moved.
	counts() *moved
}

// moved counts puts, gets and their bytes.
type moved struct{ puts, gets, bytes atomic.Uint64 }

// count counts a put or get, of any goroutine.
func (m *moved) count(put bool, n int) {
	m.which(put).Add(1)
	m.bytes.Add(uint64(n))
}

// countAlone is count for who is one goroutine at a time.
func (m *moved) countAlone(put bool, n int) {
	w := m.which(put)
	spin.Release(w, w.Load()+1)
	spin.Release(&m.bytes, m.bytes.Load()+uint64(n))
}

func (m *moved) which(put bool) *atomic.Uint64 {
	if put {
		return &m.puts
	}
	return &m.gets
}

func (m *moved) counts() *moved { return m }

func (m *moved) add(o *moved) {
	m.puts.Add(o.puts.Load())
	m.gets.Add(o.gets.Load())
	m.bytes.Add(o.bytes.Load())
}

// nouns are the channels and windows of a communicator.
type nouns struct {
	mu   sync.Mutex
	open map[noun]bool
	gone moved // what those that are not open any more have moved
	links
	places []*team.Place // of their tables, by rank
	gpu    *gpuEnds
}

// moved is what all have moved so far.
func (ns *nouns) moved() *moved {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	all := new(moved)
	all.add(&ns.gone)
	for n := range ns.open {
		all.add(n.counts())
	}
	return all
}

func (ns *nouns) add(n noun) {
	ns.mu.Lock()
	if ns.open == nil {
		ns.open = map[noun]bool{}
	}
	ns.open[n] = true
	ns.mu.Unlock()
}

func (ns *nouns) remove(n noun) {
	ns.mu.Lock()
	if ns.open[n] {
		ns.gone.add(n.counts())
	}
	delete(ns.open, n)
	ns.mu.Unlock()
}

func (ns *nouns) list() []noun {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	var all []noun
	for n := range ns.open {
		all = append(all, n)
	}
	return all
}

// busy is the name of one that is in use, or "".
func (ns *nouns) busy() string {
	for _, n := range ns.list() {
		if n.use().n.Load() > 0 {
			return n.name()
		}
	}
	return ""
}

// begin begins a use of n: fault.ErrClosed after its end.
func begin(n noun) error {
	if n.use().enter() {
		return nil
	}
	end(n)
	return fmt.Errorf("%s: %w", n.name(), fault.ErrClosed)
}

// end ends a use of n.
func end(n noun) {
	if n.use().leave() {
		finish(n, true)
	}
}

func finish(n noun, quick bool) {
	g := n.use()
	g.err = n.giveUp(quick)
	if g.left.Load() {
		n.failed(g.err)
	}
	g.over.Store(true)
}

// shut closes n, once. Without quick it waits until the last use has ended, so that what n held is free when it
// returns: uses end soon, since copies are never long, and waits look whether what they belong to is closed.
func shut(n noun, quick bool) error {
	g := n.use()
	if quick && !g.isClosed() {
		g.left.Store(true)
	}
	first, last := g.close()
	switch {
	case !first:
		return fmt.Errorf("%s: %w", n.name(), fault.ErrClosed)
	case last:
		finish(n, quick)
	}
	if quick {
		return nil
	}
	for pause := 10 * time.Microsecond; !g.over.Load(); pause = min(2*pause, time.Millisecond) {
		time.Sleep(pause)
	}
	return g.err
}

// close closes all. Without quick it waits until their uses have ended.
func (ns *nouns) close(quick bool) error {
	var errs []error
	for i := 0; ; i++ {
		all := ns.list()
		for _, n := range all {
			if n.use().isClosed() {
				continue
			}
			if err := shut(n, quick); !errors.Is(err, fault.ErrClosed) { // by its owner, just now
				errs = append(errs, err)
			}
		}
		if quick || len(all) == 0 {
			return errors.Join(errs...)
		}
		if i > 0 {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// nounPart is the channels and windows of a communicator, as the engine sees them.
type nounPart struct{ c *Comm }

// NewNouns makes c's channels and windows.
func NewNouns(c *Comm, _ Attachment) Attachment { return &nounPart{c} }

func (p *nounPart) AreaBytes() int { return int(unsafe.Sizeof(team.Place{})) }

// Lay sets where ranks publish their tables.
func (p *nounPart) Lay(rank int, at unsafe.Pointer) {
	if p.c.nouns.places == nil {
		p.c.nouns.places = make([]*team.Place, p.c.size)
	}
	p.c.nouns.places[rank] = (*team.Place)(at)
}

func (p *nounPart) Advance() {}
func (p *nounPart) Pass()    {}

func (p *nounPart) Count(s *Stats) {
	m := p.c.nouns.moved()
	s.Puts, s.Gets, s.OneSided = m.puts.Load(), m.gets.Load(), m.bytes.Load()
}

func (p *nounPart) Shut(bool) error {
	if busy := p.c.nouns.busy(); busy != "" {
		return fmt.Errorf("%s is in use: %w", busy, fault.ErrBusy)
	}
	return nil
}

func (p *nounPart) Reopen()      {}
func (p *nounPart) Close() error { return p.c.nouns.close(false) }
func (p *nounPart) Abort()       { p.c.nouns.close(true) }
