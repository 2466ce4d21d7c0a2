package engine

import (
	"sync/atomic"
	"time"
)

// gate counts the uses of something that may be closed at any time, from any goroutine: what it holds is given up when
// the last use has left.
type gate struct {
	n    atomic.Int64 // uses, plus gateClosed
	done atomic.Bool  // somebody gives up what is held
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

// inUse reports whether there is a use, of what is not closed.
func (g *gate) inUse() bool { return g.n.Load() > 0 }

// drain closes a gate whose uses are never long, and waits until the last one has left.
func (g *gate) drain() {
	g.close()
	pauseUntil(func() bool { return g.n.Load() == gateClosed })
}

// pauseUntil waits for other goroutines of this process, which take their time.
func pauseUntil(over func() bool) {
	for pause := 10 * time.Microsecond; !over(); pause = min(2*pause, time.Millisecond) {
		time.Sleep(pause)
	}
}
