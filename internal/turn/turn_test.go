package turn

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func isReady(k *Ticket) bool {
	select {
	case <-k.Ready:
		return true
	default:
		return false
	}
}

func TestTurnScript(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		var u Turn
		for range 3 {
			k, ok := u.Enter()
			require.True(t, ok)
			require.Nil(t, k)
			require.False(t, u.tryBlock())
			u.Leave()
		}
		require.True(t, u.tryBlock())
		u.Leave()
		require.Zero(t, u.state.Load())
	})
	t.Run("a second blocking call is refused", func(t *testing.T) {
		var u Turn
		u.Enter()
		_, ok := u.Enter()
		require.False(t, ok)
		u.Leave()
		_, ok = u.Enter()
		require.True(t, ok)
	})
	t.Run("a blocking call waits for what is queued, and only one does", func(t *testing.T) {
		var u Turn
		a, b := u.Take(), u.Take()
		require.True(t, isReady(a))
		require.False(t, isReady(b))
		block, ok := u.Enter()
		require.True(t, ok)
		require.False(t, isReady(block))
		_, ok = u.Enter()
		require.False(t, ok, "one blocking call waits already")
		require.False(t, u.tryBlock())
		c := u.Take() // queued behind the blocking call
		u.Leave()
		require.True(t, isReady(b))
		require.False(t, isReady(block))
		u.Leave()
		require.True(t, isReady(block))
		_, ok = u.Enter()
		require.False(t, ok, "one blocking call runs")
		require.False(t, isReady(c))
		u.Leave()
		require.True(t, isReady(c))
		u.Leave()
		require.Zero(t, u.state.Load())
		require.Empty(t, u.queue)
	})
	t.Run("calls wait for Close to decide", func(t *testing.T) {
		var u Turn
		k, ok := u.Close()
		require.True(t, ok)
		require.Nil(t, k)
		again, ok := u.Close()
		require.True(t, ok)
		block, ok := u.Enter()
		require.True(t, ok)
		_, ok = u.Close()
		require.False(t, ok, "a blocking call waits")
		_, ok = u.Enter()
		require.False(t, ok, "one blocking call waits already")
		queued := u.Take()
		u.Leave()
		require.True(t, isReady(again))
		require.False(t, isReady(block))
		u.Leave()
		require.True(t, isReady(block))
		_, ok = u.Close()
		require.False(t, ok, "a blocking call runs")
		u.Leave()
		require.True(t, isReady(queued))
		_, ok = u.Close()
		require.False(t, ok, "a stream's operation runs")
		u.Leave()
		require.Zero(t, u.state.Load())
		require.Empty(t, u.queue)
	})
	t.Run("a stream waits for a blocking call", func(t *testing.T) {
		var u Turn
		u.Enter()
		a := u.Take()
		require.False(t, isReady(a))
		_, ok := u.Enter()
		require.False(t, ok)
		u.Leave()
		require.True(t, isReady(a))
		u.Leave()
		require.Zero(t, u.state.Load())
	})
}

// Many goroutines: one runs at a time, and everything that is admitted runs.
func TestTurnStress(t *testing.T) {
	var u Turn
	var running, ran, busy atomic.Int32
	plain := 0 // protected only by the turn: the race detector watches it
	op := func() {
		if n := running.Add(1); n != 1 {
			t.Errorf("%d operations run at once", n)
		}
		plain++
		runtime.Gosched()
		running.Add(-1)
		u.Leave()
	}
	var wg sync.WaitGroup
	const each = 500
	for range 3 {
		wg.Go(func() {
			for range each {
				k, ok := u.Enter()
				if !ok {
					busy.Add(1)
					runtime.Gosched()
					continue
				}
				if k != nil {
					<-k.Ready
				}
				ran.Add(1)
				op()
			}
		})
		wg.Go(func() {
			for range each {
				k := u.Take()
				<-k.Ready
				ran.Add(1)
				op()
			}
		})
	}
	wg.Wait()
	require.Equal(t, int32(6*each), ran.Load()+busy.Load())
	require.Equal(t, int(ran.Load()), plain)
	require.GreaterOrEqual(t, ran.Load(), int32(3*each), "streams are never refused")
	require.Zero(t, u.state.Load())
	require.Empty(t, u.queue)
}

// Tickets taken in order run in order, while blocking calls come and go.
func TestTurnOrder(t *testing.T) {
	var u Turn
	const n = 300
	var order []int
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if k, ok := u.Enter(); ok {
				if k != nil {
					<-k.Ready
				}
				u.Leave()
			}
			runtime.Gosched()
		}
	})
	var ops sync.WaitGroup
	for i := range n {
		k := u.Take()
		ops.Go(func() {
			<-k.Ready
			order = append(order, i)
			u.Leave()
		})
	}
	ops.Wait()
	close(stop)
	wg.Wait()
	for i := range n {
		require.Equal(t, i, order[i])
	}
}
