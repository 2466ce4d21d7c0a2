package team

import (
	"sync/atomic"
	"time"
)

// Gate counts the uses of something that may be closed at any time, from any goroutine: what it holds is given up when
// the last use has left.
type Gate struct {
	n    atomic.Int64 // uses, plus gateClosed
	done atomic.Bool  // somebody gives up what is held
}

const gateClosed = -1 << 62

// Enter begins a use; false after Close.
func (g *Gate) Enter() bool { return g.n.Add(1) > 0 }

// Leave ends a use, or an Enter that failed. It reports whether the caller is to give up what is held.
func (g *Gate) Leave() bool { return g.n.Add(-1) == gateClosed && !g.done.Swap(true) }

// Close lets nobody in any more. first is false if it was closed before; last reports whether the caller is to give up
// what is held.
func (g *Gate) Close() (first, last bool) {
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

// Closed reports whether it is closed.
func (g *Gate) Closed() bool { return g.n.Load() < 0 }

// InUse reports whether there is a use, of what is not closed.
func (g *Gate) InUse() bool { return g.n.Load() > 0 }

// Drain closes a gate whose uses are never long, and waits until the last one has left.
func (g *Gate) Drain() {
	g.Close()
	PauseUntil(func() bool { return g.n.Load() == gateClosed })
}

// PauseUntil waits for other goroutines of this process, which take their time.
func PauseUntil(over func() bool) {
	for pause := 20 * time.Microsecond; !over(); pause = min(2*pause, time.Millisecond) {
		time.Sleep(pause)
	}
}
