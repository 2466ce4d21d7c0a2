package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func isReady(k *ticket) bool {
	select {
	case <-k.ready:
		return true
	default:
		return false
	}
}

func TestTurnScript(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		var u turn
		for range 3 {
			k, ok := u.enter()
			require.True(t, ok)
			require.Nil(t, k)
			require.False(t, u.tryBlock())
			u.leave()
		}
		require.True(t, u.tryBlock())
		u.leave()
		require.Zero(t, u.state.Load())
	})
	t.Run("a second blocking call is refused", func(t *testing.T) {
		var u turn
		u.enter()
		_, ok := u.enter()
		require.False(t, ok)
		u.leave()
		_, ok = u.enter()
		require.True(t, ok)
	})
	t.Run("a blocking call waits for what is queued, and only one does", func(t *testing.T) {
		var u turn
		a, b := u.take(), u.take()
		require.True(t, isReady(a))
		require.False(t, isReady(b))
		block, ok := u.enter()
		require.True(t, ok)
		require.False(t, isReady(block))
		_, ok = u.enter()
		require.False(t, ok, "one blocking call waits already")
		require.False(t, u.tryBlock())
		c := u.take() // queued behind the blocking call
		u.leave()
		require.True(t, isReady(b))
		require.False(t, isReady(block))
		u.leave()
		require.True(t, isReady(block))
		_, ok = u.enter()
		require.False(t, ok, "one blocking call runs")
		require.False(t, isReady(c))
		u.leave()
		require.True(t, isReady(c))
		u.leave()
		require.Zero(t, u.state.Load())
		require.Empty(t, u.queue)
	})
	t.Run("calls wait for Close to decide", func(t *testing.T) {
		var u turn
		k, ok := u.close()
		require.True(t, ok)
		require.Nil(t, k)
		again, ok := u.close()
		require.True(t, ok)
		block, ok := u.enter()
		require.True(t, ok)
		_, ok = u.close()
		require.False(t, ok, "a blocking call waits")
		_, ok = u.enter()
		require.False(t, ok, "one blocking call waits already")
		queued := u.take()
		u.leave()
		require.True(t, isReady(again))
		require.False(t, isReady(block))
		u.leave()
		require.True(t, isReady(block))
		_, ok = u.close()
		require.False(t, ok, "a blocking call runs")
		u.leave()
		require.True(t, isReady(queued))
		_, ok = u.close()
		require.False(t, ok, "a stream's operation runs")
		u.leave()
		require.Zero(t, u.state.Load())
		require.Empty(t, u.queue)
	})
	t.Run("a stream waits for a blocking call", func(t *testing.T) {
		var u turn
		u.enter()
		a := u.take()
		require.False(t, isReady(a))
		_, ok := u.enter()
		require.False(t, ok)
		u.leave()
		require.True(t, isReady(a))
		u.leave()
		require.Zero(t, u.state.Load())
	})
}

// Many goroutines: one runs at a time, and all that is admitted runs.
func TestTurnStress(t *testing.T) {
	var u turn
	var running, ran, busy atomic.Int32
	plain := 0 // under no lock but the turn: the race detector watches it
	op := func() {
		if n := running.Add(1); n != 1 {
			t.Errorf("%d operations run at once", n)
		}
		plain++
		runtime.Gosched()
		running.Add(-1)
		u.leave()
	}
	var wg sync.WaitGroup
	const each = 500
	for range 3 {
		wg.Go(func() {
			for range each {
				k, ok := u.enter()
				if !ok {
					busy.Add(1)
					runtime.Gosched()
					continue
				}
				if k != nil {
					<-k.ready
				}
				ran.Add(1)
				op()
			}
		})
		wg.Go(func() {
			for range each {
				k := u.take()
				<-k.ready
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

// What is taken in order runs in order, while blocking calls come and go.
func TestTurnOrder(t *testing.T) {
	var u turn
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
			if k, ok := u.enter(); ok {
				if k != nil {
					<-k.ready
				}
				u.leave()
			}
			runtime.Gosched()
		}
	})
	var ops sync.WaitGroup
	for i := range n {
		k := u.take()
		ops.Go(func() {
			<-k.ready
			order = append(order, i)
			u.leave()
		})
	}
	ops.Wait()
	close(stop)
	wg.Wait()
	for i := range n {
		require.Equal(t, i, order[i])
	}
}
