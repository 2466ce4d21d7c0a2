package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// alone runs f as the only rank of a job.
func alone(t *testing.T, f func(ctx context.Context, c *ubcoll.Comm) error) {
	t.Helper()
	require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{}, f))
}

// The source and the destination of a copy may overlap.
func TestCopyWithin(t *testing.T) {
	alone(t, func(ctx context.Context, c *ubcoll.Comm) error {
		const n = 300_000
		b, err := ubcoll.Alloc[uint32](c, ubcoll.Host, n)
		require.NoError(t, err)
		for _, off := range []int{0, 1, 1000, n / 2} {
			t.Run(fmt.Sprint(off), func(t *testing.T) {
				for _, in := range []bool{true, false} {
					mine := b.Slice()
					for i := range mine {
						mine[i] = uint32(i)
					}
					want := slices.Clone(mine)
					if in {
						copy(want, want[off:])
						require.NoError(t, b.CopyFrom(ctx, mine[off:]))
					} else {
						copy(want[off:], want)
						require.NoError(t, b.CopyTo(ctx, mine[off:]))
					}
					require.True(t, slices.Equal(want, mine), "in: %v", in)
				}
			})
		}
		return b.Free()
	})
}

// A large copy does not hold up the garbage collector; if it did, the median would be as long as a copy. Both times are
// this process's processor time, so the machine's other load does not matter.
func TestCopiesStop(t *testing.T) {
	testkit.LongOrRace(t)
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("needs two processors")
	}
	alone(t, func(ctx context.Context, c *ubcoll.Comm) error {
		const n = 256 << 20
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
		require.NoError(t, err)
		s := make([]byte, n)
		for _, k := range []struct {
			name string
			call func(context.Context, []byte) error
		}{{"CopyFrom", b.CopyFrom}, {"CopyTo", b.CopyTo}} {
			t.Run(k.name, func(t *testing.T) {
				require.NoError(t, k.call(ctx, s)) // makes the pages present
				var stop atomic.Bool
				calls, before := 0, testkit.ProcessorTime(t)
				done := make(chan error, 1)
				go func() {
					var err error
					for err == nil && !stop.Load() {
						err = k.call(ctx, s)
						calls++
					}
					done <- err
				}()
				var used []time.Duration
				for range 40 {
					var m runtime.MemStats
					from := testkit.ProcessorTime(t)
					runtime.ReadMemStats(&m) // stops the world
					used = append(used, testkit.ProcessorTime(t)-from)
					time.Sleep(time.Millisecond)
				}
				stop.Store(true)
				require.NoError(t, <-done)
				call := (testkit.ProcessorTime(t) - before) / time.Duration(calls)
				slices.Sort(used)
				t.Logf("processor time of a stop: median %v, longest %v, of a copy %v", used[20], used[39], call)
				require.Less(t, used[20], call/2)
			})
		}
		return b.Free()
	})
}

// A broken communicator quarantines freed memory until all ranks have closed it, and no longer.
func TestQuarantineEnds(t *testing.T) {
	if race.Enabled {
		t.Skip("goroutine ranks have no memory files under the race detector")
	}
	held := func(c *ubcoll.Comm) int64 {
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 1<<20)
		require.NoError(t, err)
		require.NoError(t, b.Free())
		return c.Stats().Memory.HeldBytes
	}
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		for range 3 {
			dup, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			dup.Abort(errors.New("a test"))
			if n := held(c); n != 1<<20 {
				return fmt.Errorf("%d bytes are held after an abort", n)
			}
			if c.Rank() == 1 {
				if err := dup.Close(); err != nil {
					return err
				}
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if n := held(c); n != 2<<20 {
				return fmt.Errorf("%d bytes are held while a rank has not closed", n)
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if c.Rank() == 0 {
				if err := dup.Close(); err != nil {
					return err
				}
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if n := held(c); n != 0 {
				return fmt.Errorf("%d bytes are held though all ranks have closed", n)
			}
		}
		return nil
	}))
}
