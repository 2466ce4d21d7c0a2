package coll_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// untilError repeats all-reduces of n elements until one fails, and returns its error. Peers can access the buffers of
// every other one.
func untilError(ctx context.Context, c *ubcoll.Comm, n int) error {
	for i, of := 0, [2][2][]float32{}; ; i = 1 - i {
		if of[i][0] == nil {
			src, dst, free, err := twoBuffers(c, n, i == 1, false)
			if err != nil {
				return err
			}
			defer free()
			of[i] = [2][]float32{src, dst}
		}
		if err := coll.AllReduce(ctx, c, ubcoll.Of(of[i][1]), ubcoll.Of(of[i][0]), ubcoll.Sum); err != nil {
			return err
		}
	}
}

// TestAcrossEnds: whatever one rank of one host does during the others' calls, all ranks of all hosts learn of it, and
// name that rank.
func TestAcrossEnds(t *testing.T) {
	const layout = "aabbc"
	for _, what := range []struct {
		name string
		is   error
		do   func(c *ubcoll.Comm) error // what the one rank does, during the others' calls
	}{
		{"abort", fault.ErrAborted, func(c *ubcoll.Comm) error {
			time.AfterFunc(20*time.Millisecond, func() { c.Abort(fmt.Errorf("enough: %w", fault.ErrLimit)) })
			return untilError(context.Background(), c, 1<<20)
		}},
		{"abort outside of a call", fault.ErrAborted, func(c *ubcoll.Comm) error {
			c.Abort(fmt.Errorf("enough: %w", fault.ErrLimit))
			return c.Err()
		}},
		{"close", fault.ErrPeerLost, func(c *ubcoll.Comm) error { return fault.ErrPeerLost }},
		{"end of a context", fault.ErrAborted, func(c *ubcoll.Comm) error {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(20*time.Millisecond, cancel)
			err := untilError(ctx, c, 1<<20)
			if !errors.Is(err, context.Canceled) {
				return err
			}
			return fault.ErrAborted
		}},
		{"nothing", fault.ErrTimeout, func(c *ubcoll.Comm) error {
			// Until the others' deadline: a rank without connections learns of it when its host's leader closes.
			for c.Err() == nil && (c.LocalRank() == 0 || (*inside.Comm)(c).View().Team().ClosedPeer() < 0) {
				time.Sleep(10 * time.Millisecond)
			}
			return fault.ErrTimeout
		}},
	} {
		who := []int{1, 2, 4}
		if race.Enabled || testing.Short() {
			who = []int{2}
		}
		for _, one := range who {
			t.Run(what.name, func(t *testing.T) {
				if what.is == fault.ErrTimeout {
					testkit.LongOrRace(t)
					if one != who[0] && !testkit.Full() {
						t.Skip("it waits for as long again")
					}
				}
				errs := onHosts(t, layout, func(c *ubcoll.Comm) error {
					(*inside.Comm)(c).View().SetTimeout(map[bool]time.Duration{true: 3 * time.Second, false: time.Hour}[what.name == "nothing"])
					var err error
					if c.Rank() == one {
						err = what.do(c)
					} else {
						err = untilError(context.Background(), c, 1<<20)
					}
					if c.Rank() == one {
						if !errors.Is(err, what.is) {
							t.Errorf("rank %d: %v", one, err)
						}
						return nil
					}
					e, ok := errors.AsType[*fault.Error](err)
					refused := what.name == "end of a context" && errors.Is(err, context.Canceled) // it ended between two calls
					if !ok || !errors.Is(err, what.is) && !refused || e.Peer != one {
						t.Errorf("rank %d: %v, not about rank %d", c.Rank(), err, one)
					}
					return nil
				})
				require.NoError(t, errors.Join(errs...))
			})
		}
	}
}

// BenchmarkAcrossAbort measures the time from one rank's Abort until the last rank has its error, with one iteration
// each: during all-reduces of 4 MiB, and while all others wait.
func BenchmarkAcrossAbort(b *testing.B) {
	for name, busy := range map[string]bool{"traffic": true, "waiting": false} {
		b.Run(name, func(b *testing.B) {
			var late []time.Duration
			for b.Loop() {
				var aborted, last atomic.Int64
				done := make(chan struct{})
				errs := onHosts(b, "aabbc", func(c *ubcoll.Comm) error {
					if c.Rank() == 1 {
						time.AfterFunc(20*time.Millisecond, func() {
							aborted.Store(time.Now().UnixNano())
							c.Abort(errors.New("enough"))
							close(done)
						})
						if !busy {
							<-done
							return nil
						}
					}
					err := untilError(context.Background(), c, 1<<20)
					for now := time.Now().UnixNano(); ; {
						if old := last.Load(); old >= now || last.CompareAndSwap(old, now) {
							break
						}
					}
					if !errors.Is(err, fault.ErrAborted) {
						return err
					}
					return nil
				})
				require.NoError(b, errors.Join(errs...))
				late = append(late, time.Duration(last.Load()-aborted.Load()))
			}
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)/2])/1e6, "ms/median")
			b.ReportMetric(float64(late[len(late)-1])/1e6, "ms/worst")
		})
	}
}

// What a rank needs to reach others does not go with the first rank of its host, which has it for all: after that rank
// has closed everything, the others connect to ranks that they have not talked to before.
func TestAcrossFirstLeaves(t *testing.T) {
	var left sync.WaitGroup
	left.Add(1)
	onHosts(t, "aabbc", func(c *ubcoll.Comm) error {
		ctx := context.Background()
		rest, err := c.Split(ctx, min(c.Rank(), 1), 0)
		if err == nil {
			err = errors.Join(checkAcross(c, 10, 0), c.Close())
		}
		if c.Rank() == 0 {
			err = errors.Join(err, rest.Close())
			left.Done()
		} else if left.Wait(); err == nil {
			var some *ubcoll.Comm
			if some, err = rest.Split(ctx, map[int]int{1: 0, 2: -1, 3: 0, 4: 0}[c.Rank()], 0); err == nil && some != nil {
				err = errors.Join(checkAcross(some, 1000, 1), some.Close())
			}
			err = errors.Join(err, rest.Close())
		}
		if err != nil {
			t.Errorf("rank %d: %v", c.Rank(), err)
		}
		return nil
	})
}

// A leader that closes a communicator has looked at its host's other ranks before these see that it leaves, and free what
// it looks at. Otherwise it might tell other hosts, which still use the communicator, of damage. Builds with invariants
// give freed memory a pattern.
func TestAcrossLeaderCloses(t *testing.T) {
	for range testkit.Often(200) {
		errs := onHosts(t, "aab", func(c *ubcoll.Comm) error {
			d, err := c.Dup(context.Background()) // c stays open: with the last communicator, areas stay
			if err == nil {
				err = checkAcross(d, 10, 0)
			}
			if err == nil && c.Rank() == 2 {
				err = coll.Barrier(context.Background(), d)
			}
			return errors.Join(err, d.Close())
		})
		requireAll(t, errs[:2])
		require.ErrorContains(t, errs[2], "closed its communicator")
	}
}
