package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/internal/fault"
)

// gate counts the uses of something that may be closed at any time, from any goroutine: what it holds is given up when
// the last use has left.
type gate struct {
	n    atomic.Int64 // uses, plus gateClosed
	done atomic.Bool
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

// noun is what a communicator closes when it closes.
type noun interface {
	// use is its gate.
	use() *gate
	// giveUp ends it, once. quick: do not wait for peers' copies, of memory that is not used again anyway.
	giveUp(quick bool) error
	// name is what a user calls it.
	name() string
}

// nouns are the channels and windows of a communicator.
type nouns struct {
	mu   sync.Mutex
	open map[noun]bool
	links
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
		n.giveUp(true) // its errors are for Close to return, which has
	}
}

// shut closes n, once.
func shut(n noun, quick bool) error {
	first, last := n.use().close()
	switch {
	case !first:
		return fmt.Errorf("%s: %w", n.name(), fault.ErrClosed)
	case last:
		return n.giveUp(quick)
	}
	return nil
}

// close closes all. Without quick it waits until their uses have ended, which they do soon: copies are never long, and
// waits look whether what they belong to is closed.
func (ns *nouns) close(quick bool) error {
	var errs []error
	for i := 0; ; i++ {
		all := ns.list()
		for _, n := range all {
			if !n.use().isClosed() {
				errs = append(errs, shut(n, quick))
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
