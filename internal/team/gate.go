package team

import (
	"sync/atomic"
	"time"
)

// Gate counts the uses of something that any goroutine may close at any time. What it holds is released when the last
// use has left.
type Gate struct {
	n    atomic.Int64 // uses, plus gateClosed or, while it is open, gateWatched
	done atomic.Bool  // one caller has been told to release
}

const (
	gateClosed  = -1 << 62
	gateWatched = -1 << 61
)

// Watch lets Enter return false although the gate is open, so that whoever looks at each use costs nothing where nobody does.
// Call it before the first use.
func (g *Gate) Watch() { g.n.Store(gateWatched) }

// Enter begins a use. It returns false after Close; the caller must Leave in both cases. Of a watched gate it always returns
// false: Closed then tells.
func (g *Gate) Enter() bool { return g.n.Add(1) > 0 }

// Leave ends a use, or an Enter that failed. It reports whether the caller must release what the gate holds.
func (g *Gate) Leave() bool { return g.n.Add(-1) == gateClosed && !g.done.Swap(true) }

// Close refuses new uses. first is false if the gate was closed before; last reports whether the caller must release
// what the gate holds.
func (g *Gate) Close() (first, last bool) {
	for {
		v := g.n.Load()
		if v < gateWatched {
			return false, false
		}
		uses := usesOf(v)
		if g.n.CompareAndSwap(v, uses+gateClosed) {
			return true, uses == 0 && !g.done.Swap(true)
		}
	}
}

// Closed reports whether the gate is closed.
func (g *Gate) Closed() bool { return g.n.Load() < gateWatched }

// Uses returns how many uses an open gate has; a negative number if it is closed.
func (g *Gate) Uses() int64 { return usesOf(g.n.Load()) }

// usesOf is how many uses an open gate has whose count is v; a negative number if it is closed.
func usesOf(v int64) int64 {
	if v < 0 && v >= gateWatched {
		v -= gateWatched
	}
	return v
}

// InUse reports whether an open gate is in use.
func (g *Gate) InUse() bool { return g.Uses() > 0 }

// Drain closes a gate whose uses are all short, and waits until the last one has left.
func (g *Gate) Drain() {
	g.Close()
	PauseUntil(func() bool { return g.n.Load() == gateClosed })
}

// PauseUntil waits until over returns true, for other goroutines of this process that take their time.
func PauseUntil(over func() bool) {
	for pause := 20 * time.Microsecond; !over(); pause = min(2*pause, time.Millisecond) {
		time.Sleep(pause)
	}
}
