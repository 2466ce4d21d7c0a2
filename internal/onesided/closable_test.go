package onesided

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

type testClosable struct {
	uses
	counters
	ended   atomic.Int32
	err     error
	failure error // of failed
}

func (n *testClosable) failed(err error) { n.failure = err }

func (n *testClosable) Err() error { return nil }

func (n *testClosable) name() string { return "the thing" }

func (n *testClosable) giveUp(bool) error { n.ended.Add(1); return n.err }

// TestGate lets many goroutines use something while another one closes it: it is given up once, after the last use.
func TestGate(t *testing.T) {
	for range 200 {
		n := &testClosable{}
		var inside atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for begin(n) == nil {
					inside.Add(1)
					if n.ended.Load() != 0 {
						t.Error("used after its end")
					}
					inside.Add(-1)
					end(n)
				}
			})
		}
		errs := make([]error, 3)
		for i := range errs {
			wg.Go(func() { errs[i] = shut(n, false) })
		}
		wg.Wait()
		closed := 0
		for _, err := range errs {
			if err == nil {
				closed++
				continue
			}
			require.ErrorIs(t, err, fault.ErrClosed)
		}
		require.Equal(t, 1, closed)
		require.Equal(t, int32(1), n.ended.Load())
		require.ErrorIs(t, begin(n), fault.ErrClosed)
		require.Equal(t, int32(1), n.ended.Load())
	}
}

func TestGateWaitsForTheLastUse(t *testing.T) {
	for _, quick := range []bool{false, true} {
		n := &testClosable{err: errors.New("giving up failed")}
		require.NoError(t, begin(n))
		closed := make(chan error, 1)
		go func() { closed <- shut(n, quick) }()
		testkit.Eventually(t, n.Closed)
		if quick {
			require.NoError(t, <-closed)
		}
		require.Error(t, begin(n))
		time.Sleep(10 * time.Millisecond) // time in which Close must not return
		require.Empty(t, closed)
		require.Equal(t, int32(0), n.ended.Load())
		end(n)
		require.Equal(t, int32(1), n.ended.Load())
		if quick {
			require.ErrorIs(t, n.failure, n.err)
		} else {
			require.ErrorIs(t, <-closed, n.err)
			require.NoError(t, n.failure)
		}
	}
}

// racingClosable is closed by its owner after a communicator has seen that it is open.
type racingClosable struct {
	testClosable
	looks int
}

func (n *racingClosable) use() *uses {
	if n.looks++; n.looks == 2 {
		n.uses.Close()
	}
	return &n.uses
}

func TestSpaceClosesWithOwners(t *testing.T) {
	sp := &Space{}
	n := &racingClosable{}
	sp.add(n)
	require.NoError(t, sp.closeAll(true))
	require.True(t, n.Closed())
}
