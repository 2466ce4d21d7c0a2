package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// watchedJob is a job of 3 processes whose ranks are Watchers.
type watchedJob struct {
	under, ranks []bootstrap.Bootstrap
	group        int // ranks of a process
}

// watchedKind is a kind of bootstrap whose ranks are Watchers.
type watchedKind struct {
	name  string
	env   bool // its processes can die
	group int
	start func(t *testing.T) []bootstrap.Bootstrap
}

var watchedKinds = []watchedKind{
	{"local", false, 1, func(*testing.T) []bootstrap.Bootstrap { return bootstrap.Local(3) }},
	{"env", true, 1, func(t *testing.T) []bootstrap.Bootstrap { return joinAll(t, 3, abstract(t)) }},
	{"env on tcp", true, 1, func(t *testing.T) []bootstrap.Bootstrap { return joinAll(t, 3, freePort(t)) }},
	{"per process over local", false, 2, func(*testing.T) []bootstrap.Bootstrap { return bootstrap.Local(3) }},
	{"per process over env", true, 2, func(t *testing.T) []bootstrap.Bootstrap { return joinAll(t, 3, abstract(t)) }},
}

func (k watchedKind) job(t *testing.T) watchedJob {
	j := watchedJob{k.start(t), nil, k.group}
	if j.ranks = j.under; k.group > 1 {
		j.ranks = perProcess(j.under, k.group)
	}
	return j
}

func watcher(b bootstrap.Bootstrap) bootstrap.Watcher { return b.(bootstrap.Watcher) }

// isBroken reports what b tells now.
func isBroken(b bootstrap.Bootstrap) bool {
	select {
	case <-watcher(b).Broken():
		return true
	default:
		return false
	}
}

// others are the ranks that are not of process p.
func (j watchedJob) others(p int) (others []bootstrap.Bootstrap) {
	for _, b := range j.ranks {
		if b.Rank()/j.group != p {
			others = append(others, b)
		}
	}
	return others
}

// watchedEvent is what breaks a job.
type watchedEvent struct {
	name  string
	run   func(t *testing.T, j watchedJob, p int) // by the first rank of process p, or all of them
	want  error
	alone bool                     // the job breaks even if nobody makes a call
	can   func(k watchedKind) bool // nil: with every kind
}

var watchedEvents = []watchedEvent{
	{"aborts", func(_ *testing.T, j watchedJob, p int) { j.ranks[p*j.group].Abort(3) }, fault.ErrAborted, true, nil},
	{"dies", func(_ *testing.T, j watchedJob, p int) { bootstrap.Die(j.under[p]) }, fault.ErrPeerLost, true,
		func(k watchedKind) bool { return k.env }},
	{"gives up", func(t *testing.T, j watchedJob, p int) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := j.ranks[p].AllGather(ctx, nil)
		require.ErrorIs(t, err, context.Canceled)
	}, fault.ErrPeerLost, true, func(k watchedKind) bool { return k.group == 1 }}, // PerProcess tells its own ranks alone
	{"closes", func(t *testing.T, j watchedJob, p int) {
		require.NoError(t, together(j.ranks[p*j.group:(p+1)*j.group], bootstrap.Bootstrap.Close))
	}, fault.ErrPeerLost, false, nil},
}

// TestWatcher: whatever breaks a job, all others are told, whether they make a call or not, and their next call says the
// same.
func TestWatcher(t *testing.T) {
	for _, k := range watchedKinds {
		for _, e := range watchedEvents {
			if e.can != nil && !e.can(k) {
				continue
			}
			for p := range 3 {
				for _, pending := range []bool{true, false} {
					if pending || e.alone {
						t.Run(fmt.Sprintf("%s/process %d %s/pending %v", k.name, p, e.name, pending), func(t *testing.T) {
							t.Parallel()
							breaks(t, k.job(t), e, p, pending)
						})
					}
				}
			}
		}
	}
}

// breaks breaks a job by what process p does, while the others wait in a call if pending is set.
func breaks(t *testing.T, j watchedJob, e watchedEvent, p int, pending bool) {
	others := j.others(p)
	for _, b := range others {
		require.False(t, isBroken(b))
		require.NoError(t, watcher(b).Cause())
	}
	var calls sync.WaitGroup
	if pending {
		for _, b := range others {
			calls.Go(func() { _, _ = b.AllGather(t.Context(), nil) })
		}
	}
	e.run(t, j, p)
	for _, b := range others {
		testkit.Eventually(t, func() bool { return isBroken(b) })
		saysBroken(t, b, p*j.group, e.want)
	}
	calls.Wait()
	for _, b := range others {
		cause := watcher(b).Cause()
		_, err := b.AllGather(t.Context(), nil)
		require.Equal(t, cause, err)
	}
	for _, b := range j.ranks {
		if err := b.Close(); err != nil {
			require.ErrorIs(t, err, fault.ErrClosed)
		}
	}
}

// saysBroken checks what b says about the rank that broke the job.
func saysBroken(t *testing.T, b bootstrap.Bootstrap, about int, want error) {
	t.Helper()
	e, ok := errors.AsType[*fault.Error](watcher(b).Cause())
	require.True(t, ok, "%v", watcher(b).Cause())
	require.ErrorIs(t, e, want)
	require.Equal(t, about, e.Peer, "%v", e)
	require.Equal(t, b.Rank(), e.Rank, "%v", e)
}

// A rank that closes in good order breaks nothing until another waits for it.
func TestWatcherClosedBefore(t *testing.T) {
	for _, k := range watchedKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			j := k.job(t)
			require.NoError(t, together(j.ranks[j.group:2*j.group], bootstrap.Bootstrap.Close))
			others := j.others(1)
			time.Sleep(50 * time.Millisecond) // time for what must not happen
			for _, b := range others {
				require.False(t, isBroken(b))
			}
			require.Error(t, together(others[:j.group], func(b bootstrap.Bootstrap) error { // rank 0's process
				_, err := b.AllGather(t.Context(), nil)
				return err
			}))
			for _, b := range others {
				testkit.Eventually(t, func() bool { return isBroken(b) })
				saysBroken(t, b, j.group, fault.ErrPeerLost)
			}
			require.NoError(t, together(others, bootstrap.Bootstrap.Close))
		})
	}
}

// Nothing is told of a job that ends well, whoever closes first, and watching it costs no goroutine for each call.
func TestWatcherHealthy(t *testing.T) {
	defer testkit.NoLeaks(t)()
	for _, k := range watchedKinds {
		t.Run(k.name, func(t *testing.T) {
			j := k.job(t)
			for _, b := range j.ranks {
				broken := watcher(b).Broken()
				require.Equal(t, broken, watcher(b).Broken())
				require.Zero(t, testing.AllocsPerRun(10, func() { _, _ = watcher(b).Broken(), watcher(b).Cause() }))
			}
			require.NoError(t, together(j.ranks, func(b bootstrap.Bootstrap) error {
				if _, err := b.AllGather(t.Context(), nil); err != nil {
					return err
				}
				return b.Close()
			}))
			for _, b := range j.ranks {
				require.False(t, isBroken(b))
				require.NoError(t, watcher(b).Cause())
			}
		})
	}
}

// A rank that broke the job itself is told, too.
func TestWatcherOfItself(t *testing.T) {
	for _, k := range watchedKinds {
		t.Run(k.name, func(t *testing.T) {
			j := k.job(t)
			for _, b := range []bootstrap.Bootstrap{j.ranks[j.group], j.ranks[0]} { // the first cause stays
				b.Abort(2)
				require.True(t, isBroken(j.ranks[j.group]))
				saysBroken(t, j.ranks[j.group], -1, fault.ErrAborted)
			}
			require.NoError(t, together(j.ranks, bootstrap.Bootstrap.Close))
		})
	}
}
