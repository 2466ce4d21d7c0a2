package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// devicesOnHosts is onHosts with a device for each rank, or without devices skips the test.
func devicesOnHosts(t testing.TB, hosts string, o engine.Options, do func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error) []error {
	t.Helper()
	t.Setenv(env.CUDA.Name, "share")
	var mu sync.Mutex
	var missing error
	errs := onHostsWith(t, hosts, inside.Providers.Network, o, func(c *ubcoll.Comm) error {
		dev, err := c.GPU()
		if err != nil {
			mu.Lock()
			missing = err
			mu.Unlock()
			return nil
		}
		return do(t.Context(), c, dev)
	})
	if gputest.Sharers(t, len(hosts)) > 4 && errors.Is(missing, ubcoll.ErrLimit) {
		t.Skip(missing) // as goroutines of one process
	}
	if missing != nil {
		testkit.Missing(t, "cuda", missing)
	}
	return errs
}

// stagedAndPhased runs a test twice: all-reduces are combined by the processors, and by the devices of a host.
func stagedAndPhased(t *testing.T, test func(*testing.T)) {
	t.Run("staged", test)
	t.Run("phased", func(t *testing.T) {
		coll.SetPhased(t, 1, 2048)
		test(t)
	})
}

// acrossDevices are the layouts of tests of devices on several hosts.
var acrossDevices = []string{"ab", "aabb", "abc", "aabbcc", "abab", "aab"}

// TestDeviceAcross runs collectives with random arguments on device memory between hosts, in one part and in many, blocking
// and on streams.
func TestDeviceAcross(t *testing.T) {
	const most = 600 << 10
	seed := testkit.Seed(t)
	for i, hosts := range acrossDevices {
		for j, part := range []int{4 << 20, 50_000, 1} {
			t.Run(fmt.Sprintf("%s/parts of %d", hosts, part), func(t *testing.T) {
				testkit.Turn(t, i+j, 3)
				coll.SetStagedPart(t, part)
				if part == 50_000 {
					coll.SetPhased(t, 1, 4096)
				}
				trials := testkit.Often(280)
				requireAll(t, devicesOnHosts(t, hosts, engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					a, err1 := newMemory(c, dev, most)
					b, err2 := newMemory(c, dev, most)
					if err := errors.Join(err1, err2); err != nil {
						return err
					}
					queued, sync, end, err := gputest.View(ctx, c, dev, true)
					if err != nil {
						return err
					}
					same := rand.New(rand.NewPCG(seed, uint64(i)))
					own := rand.New(rand.NewPCG(seed, uint64(c.Rank())+100))
					long := most
					if part == 1 { // a part has a line of each block, and each takes an agreement of the hosts
						long = 6_000
					}
					for range trials {
						view, wait := c, func() error { return nil }
						if same.IntN(2) == 0 {
							view, wait = queued, sync
						}
						var err error
						if same.IntN(4) == 0 {
							err = newParts(same, c.Size(), long).run(ctx, view, a, b, own.IntN(8), wait)
						} else {
							k := newTrial(same, c.Size(), long)
							k.shift = own.IntN(8)
							err = k.run(ctx, view, a, b, wait)
						}
						if err != nil {
							return fmt.Errorf("rank %d: %w", c.Rank(), err)
						}
					}
					return errors.Join(end(), a.buf.Free(), b.buf.Free())
				}))
			})
		}
	}
}

// TestDeviceAcrossTold: LastOp says that the data were copied through host memory, and what the hosts did; an operation of
// several parts is one operation.
func TestDeviceAcrossTold(t *testing.T) {
	coll.SetStagedPart(t, 64<<10)
	requireAll(t, devicesOnHosts(t, "aabb", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := gputest.Floats(ctx, c, dev, 100_000, 1)
		if err != nil {
			return err
		}
		before := c.Stats()
		for i := range 2 {
			if err := coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum); err != nil {
				return err
			}
			o := c.LastOp()
			s := o.String()
			if o.Seq != uint64(1+i) || o.Bytes != 400_000 || o.Took == 0 || !strings.Contains(s, "through page-locked host memory") ||
				!strings.Contains(s, "over 2 hosts") {
				return fmt.Errorf("%+v: %s", o, s)
			}
		}
		after := c.Stats()
		if n := after.Operations - before.Operations; n != 2 {
			return fmt.Errorf("%d operations", n)
		}
		if n := after.Bytes - before.Bytes; n != 800_000 {
			return fmt.Errorf("%d bytes", n)
		}
		return errors.Join(gputest.All(ctx, c, b, 16), b.Free())
	}))
}

// TestDeviceAcrossGroups: collectives on device memory work in groups, beside those on host memory, and in graphs that no
// stream of a device runs.
func TestDeviceAcrossGroups(t *testing.T) {
	requireAll(t, devicesOnHosts(t, "aabb", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := gputest.Floats(ctx, c, dev, 5000, 1)
		if err != nil {
			return err
		}
		host, err := ubcoll.Alloc[int32](c, ubcoll.Host, 1)
		if err != nil {
			return err
		}
		x := host.Slice()
		x[0] = int32(c.Rank())
		calls := func(v *ubcoll.Comm) error {
			return errors.Join(coll.AllReduce(ctx, v, b.Vec(), b.Vec(), ubcoll.Sum), coll.AllReduce(ctx, v, host.Vec(), host.Vec(), ubcoll.Max),
				coll.Broadcast(ctx, v, b.Vec().Slice(0, 10), 3), coll.Barrier(ctx, v))
		}
		if err := ubcoll.Group(ctx, c, calls); err != nil {
			return err
		}
		if err := gputest.All(ctx, c, b, 4); err != nil || x[0] != 3 {
			return fmt.Errorf("%v, %v", x, err)
		}
		g, err := graph.Capture(ctx, c, calls)
		if err != nil {
			return err
		}
		for range 3 {
			if err := g.Launch(ctx); err != nil {
				return err
			}
		}
		return errors.Join(gputest.All(ctx, c, b, 256), g.Close(), b.Free(), host.Free())
	}))
}

// TestDeviceAcrossDiffer: ranks of which some have device memory, or other counts, or which refuse, all get the same error,
// and the communicator stays usable. An operation of several parts fails at the first.
func TestDeviceAcrossDiffer(t *testing.T) { stagedAndPhased(t, testDeviceAcrossDiffer) }

func testDeviceAcrossDiffer(t *testing.T) {
	coll.SetStagedPart(t, 4000)
	requireAll(t, devicesOnHosts(t, "aabb", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := gputest.Floats(ctx, c, dev, 5000, 1)
		if err != nil {
			return err
		}
		queued, sync, end, err := gputest.View(ctx, c, dev, true)
		if err != nil {
			return err
		}
		defer end()
		host := make([]float32, 5000)
		freed, err := gputest.Floats(ctx, c, dev, 5000, 1)
		if err != nil {
			return err
		}
		gone := freed.Vec()
		if err := freed.Free(); err != nil {
			return err
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		for odd := range c.Size() {
			for _, k := range []struct {
				name, want string
				is         error
				ctx        context.Context
				vec        ubcoll.Vec
			}{
				{"host memory", "called all_reduce(count 5000, float32, sum)", ubcoll.ErrMismatch, ctx, ubcoll.Of(host)},
				{"count", "called all_reduce(count 4000, float32, sum, device memory)", ubcoll.ErrMismatch, ctx, b.Vec().Slice(0, 4000)},
				{"freed", "has been freed", ubcoll.ErrStale, ctx, gone},
				{"context", "canceled", context.Canceled, ended, b.Vec()},
			} {
				cx, v := ctx, b.Vec()
				if c.Rank() == odd {
					cx, v = k.ctx, k.vec
				}
				for _, to := range []*ubcoll.Comm{c, queued} {
					if to == queued && k.name == "host memory" { // which is an error of its own there
						continue
					}
					err := errors.Join(coll.AllReduce(cx, to, v, v, ubcoll.Sum), sync())
					var e *ubcoll.Error
					if !errors.Is(err, k.is) || !strings.Contains(err.Error(), k.want) || !errors.As(err, &e) {
						return fmt.Errorf("rank %d, %s of rank %d, on a stream %v: %v", c.Rank(), k.name, odd, to == queued, err)
					}
					if err := errors.Join(c.Err(), gputest.All(ctx, c, b, 1)); err != nil {
						return fmt.Errorf("%s: %w", k.name, err)
					}
				}
			}
		}
		return errors.Join(coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum), gputest.All(ctx, c, b, 4), b.Free())
	}))
}

// TestDeviceAcrossLimit: page-locked memory counts under UBCOLL_MAX_PINNED. A rank that cannot have it refuses.
func TestDeviceAcrossLimit(t *testing.T) {
	if race.Enabled {
		t.Skip("memory of the heap is not page-locked, and does not count")
	}
	t.Setenv(env.MaxPinned.Name, "3M")
	for _, err := range devicesOnHosts(t, "ab", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := gputest.Floats(ctx, c, dev, 1<<20, 1)
		if err != nil {
			return err
		}
		err = coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum)
		if !errors.Is(err, ubcoll.ErrLimit) || !strings.Contains(err.Error(), "page-locked memory for what goes between hosts") || c.Err() != nil {
			return fmt.Errorf("%v, %v", err, c.Err())
		}
		part := b.Vec().Slice(0, 1000)
		if err := coll.AllReduce(ctx, c, part, part, ubcoll.Sum); err != nil {
			return err
		}
		if n := c.Stats().Cache.RegisteredBytes; n < 64<<10 {
			return fmt.Errorf("%d bytes are registered", n)
		}
		return b.Free()
	}) {
		require.NoError(t, err)
	}
}
