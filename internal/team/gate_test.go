package team

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// A watched gate refuses nothing before it is closed, though Enter says so, and does all else as others do.
func TestGate(t *testing.T) {
	for name, watched := range map[string]bool{"plain": false, "watched": true} {
		t.Run(name, func(t *testing.T) {
			var g Gate
			if watched {
				g.Watch()
			}
			require.False(t, g.Closed())
			require.False(t, g.InUse())
			require.Zero(t, g.Uses())
			for n := range int64(3) {
				require.Equal(t, !watched, g.Enter())
				require.False(t, g.Closed())
				require.True(t, g.InUse())
				require.Equal(t, n+1, g.Uses())
			}
			require.False(t, g.Leave())
			first, last := g.Close()
			require.True(t, first)
			require.False(t, last)
			require.True(t, g.Closed())
			require.False(t, g.InUse())
			require.Negative(t, g.Uses())
			require.False(t, g.Enter())
			require.False(t, g.Leave())
			first, last = g.Close()
			require.False(t, first || last)
			require.False(t, g.Leave())
			require.True(t, g.Leave(), "the last use")
			require.False(t, g.Enter())
			require.False(t, g.Leave(), "the caller was told before")
			g.Drain()

			var unused Gate
			if watched {
				unused.Watch()
			}
			first, last = unused.Close()
			require.True(t, first && last)
		})
	}
}

// Of many users of a watched gate, and those who close it, one is told to release.
func TestWatchedGateTogether(t *testing.T) {
	for range 200 {
		var g Gate
		g.Watch()
		var told, used atomic.Int64
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for range 20 {
					if g.Enter() {
						t.Error("the gate is not watched")
					}
					if !g.Closed() {
						used.Add(1)
					}
					if g.Leave() {
						told.Add(1)
					}
				}
				if i == 0 {
					if _, last := g.Close(); last {
						told.Add(1)
					}
				}
			})
		}
		all.Wait()
		require.Equal(t, int64(1), told.Load())
		require.Positive(t, used.Load())
	}
}
