package coll_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestDeviceAcrossOrder queues collectives between hosts on two streams in turn, beside collectives on host memory: they run
// in the order of the calls.
func TestDeviceAcrossOrder(t *testing.T) { stagedAndPhased(t, testDeviceAcrossOrder) }

func testDeviceAcrossOrder(t *testing.T) {
	coll.SetStagedPart(t, 4096)
	requireAll(t, devicesOnHosts(t, "aabb", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err1 := gputest.Floats(ctx, c, dev, 5000, 1)
		s, err2 := ubcoll.NewStream(dev)
		u, err3 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		x := []int32{1}
		for k := range 20 {
			to := c.On([]*ubcoll.Stream{s, u}[k%2])
			if err := testkit.InOrder(
				func() error { return coll.AllReduce(ctx, to, b.Vec(), b.Vec(), ubcoll.Sum) },
				func() error { return coll.AllReduce(ctx, to, b.Vec(), b.Vec(), ubcoll.Avg) },
				func() error { return coll.Barrier(ctx, to) }); err != nil {
				return err
			}
			if k%5 == 4 { // behind what is queued
				if err := coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum); err != nil {
					return err
				}
				if o := c.LastOp(); o.Seq != uint64(3*(k+1)+(k+1)/5) {
					return fmt.Errorf("round %d: %v", k, o)
				}
			}
		}
		if x[0] != 256 {
			return fmt.Errorf("%v", x)
		}
		return errors.Join(s.Sync(ctx), u.Sync(ctx), gputest.All(ctx, c, b, 1<<40), s.Close(), u.Close(), b.Free())
	}))
}

// TestDeviceAcrossQueuedGroups: groups and graphs on a stream of a device are queued, and a graph that is closed while its
// launches are queued ends with the last of them.
func TestDeviceAcrossQueuedGroups(t *testing.T) { stagedAndPhased(t, testDeviceAcrossQueuedGroups) }

func testDeviceAcrossQueuedGroups(t *testing.T) {
	coll.SetStagedPart(t, 4096)
	requireAll(t, devicesOnHosts(t, "aabb", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err1 := gputest.Floats(ctx, c, dev, 5000, 1)
		s, err2 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		calls := func(v *ubcoll.Comm) error {
			return errors.Join(coll.AllReduce(ctx, v, b.Vec(), b.Vec(), ubcoll.Sum), coll.Barrier(ctx, v),
				coll.Broadcast(ctx, v, b.Vec().Slice(0, 10), 3))
		}
		for range 3 {
			if err := ubcoll.Group(ctx, c.On(s), calls); err != nil {
				return err
			}
		}
		g, err := graph.Capture(ctx, c.On(s), calls)
		if err != nil {
			return err
		}
		for range 4 {
			if err := g.Launch(ctx); err != nil {
				return err
			}
		}
		return errors.Join(g.Close(), s.Sync(ctx), gputest.All(ctx, c, b, 1<<14), s.Close(), b.Free())
	}))
}

// TestDeviceAcrossCaptured captures collectives between hosts in a CUDA graph of the program's own, and replays it between
// calls of all kinds on the same stream.
func TestDeviceAcrossCaptured(t *testing.T) { stagedAndPhased(t, testDeviceAcrossCaptured) }

func testDeviceAcrossCaptured(t *testing.T) {
	coll.SetStagedPart(t, 4096)
	requireAll(t, devicesOnHosts(t, "aabb", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err1 := gputest.Floats(ctx, c, dev, 5000, 1)
		cu, s, end, err2 := gputest.Foreign(dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		calls := func(v *ubcoll.Comm) error {
			return errors.Join(coll.AllReduce(ctx, v, b.Vec(), b.Vec(), ubcoll.Sum), coll.Broadcast(ctx, v, b.Vec().Slice(0, 10), 3))
		}
		if err := cu.BeginCapture(); err != nil {
			return err
		}
		err := errors.Join(calls(c.On(s)), ubcoll.Group(ctx, c.On(s), calls), coll.Barrier(ctx, c.On(s)))
		g, err2 := cu.EndCapture()
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if err := testkit.WantsOf(c.Rank(), "free of what is captured", b.Free(), ubcoll.ErrInUse); err != nil {
			return err
		}
		for range 3 {
			if err := testkit.InOrder(
				func() error { return g.Launch(cu) },
				func() error { return calls(c.On(s)) }, // which waits for the graph
				func() error { return g.Launch(cu) },
				func() error { return s.Sync(ctx) },
				func() error { return coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Avg) }); err != nil {
				return err
			}
		}
		// A replay of which one rank's part is refused leaves the others their errors, too.
		return errors.Join(gputest.All(ctx, c, b, 1<<30), g.Close(), end())
	}))
}

// TestDeviceAcrossUsersStream: an operation takes what the stream has done before, and what is queued behind it gets its
// result.
func TestDeviceAcrossUsersStream(t *testing.T) {
	gputest.Enough(t, 2) // what ranks that share a device queue at the same time, past the library, may get the same queue of it
	requireAll(t, devicesOnHosts(t, "ab", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		const n = 100_000
		b, err1 := gputest.Floats(ctx, c, dev, 2*n, 0)
		cu, s, end, err2 := gputest.Foreign(dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		v := b.Vec().As(dtype.Uint8).Slice(0, n)
		at := cuda.Addr(uintptr((*inside.Vec)(&v).Team().Ptr))
		got := make([]byte, n)
		for k := range 20 {
			if err := testkit.InOrder(
				func() error { return cu.Fill(at, byte(k+1), n) },
				func() error { return coll.AllReduce(ctx, c.On(s), v, v, ubcoll.Sum) },
				func() error { return cu.Copy(at+n, at, n) },
				func() error { return s.Sync(ctx) }, // a download before that might wait in the driver, where the other rank needs it
				func() error { return cu.Download(got, at+n) }, cu.Sync); err != nil {
				return err
			}
			for i, x := range got {
				if x != byte(2*(k+1)) {
					return fmt.Errorf("round %d: byte %d is %d", k, i, x)
				}
			}
		}
		return errors.Join(s.Sync(ctx), end(), b.Free())
	}))
}

// TestDeviceAcrossFreed frees buffers right after operations on them have been queued: these still run.
func TestDeviceAcrossFreed(t *testing.T) { stagedAndPhased(t, testDeviceAcrossFreed) }

func testDeviceAcrossFreed(t *testing.T) {
	coll.SetStagedPart(t, 4096)
	requireAll(t, devicesOnHosts(t, "aabb", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err1 := gputest.Floats(ctx, c, dev, 5000, 1)
		s, err2 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		for range 20 {
			a, err := gputest.Floats(ctx, c, dev, 5000, 1)
			if err != nil {
				return err
			}
			if err := testkit.InOrder(
				func() error { return coll.AllReduce(ctx, c.On(s), a.Vec(), a.Vec(), ubcoll.Sum) },
				func() error { return coll.AllReduce(ctx, c.On(s), b.Vec(), a.Vec(), ubcoll.Sum) },
				a.Free); err != nil {
				return err
			}
		}
		return errors.Join(s.Sync(ctx), gputest.All(ctx, c, b, 16), s.Close(), b.Free())
	}))
}

// TestDeviceAcrossQueuedEnds ends communicators between hosts while operations are queued that wait for a rank which makes no
// call: by Abort, by the deadline, and by that rank's end. All get the error by Sync, and can close.
func TestDeviceAcrossQueuedEnds(t *testing.T) { stagedAndPhased(t, testDeviceAcrossQueuedEnds) }

func testDeviceAcrossQueuedEnds(t *testing.T) {
	for _, k := range []struct {
		name string
		o    engine.Options
		end  func(c *ubcoll.Comm)
		want error
	}{
		{"abort", engine.Options{}, func(c *ubcoll.Comm) { c.Abort(errors.New("enough")) }, ubcoll.ErrAborted},
		{"deadline", engine.Options{Timeout: 300 * time.Millisecond}, func(c *ubcoll.Comm) { time.Sleep(600 * time.Millisecond) },
			ubcoll.ErrTimeout},
		{"close", engine.Options{}, func(c *ubcoll.Comm) { c.Close() }, ubcoll.ErrPeerLost},
	} {
		for _, captured := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, captured %v", k.name, captured), func(t *testing.T) {
				begin := time.Now()
				errs := devicesOnHosts(t, "aabb", k.o, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					b, err1 := gputest.Floats(ctx, c, dev, 5000, 1)
					cu, s, end, err2 := gputest.Foreign(dev)
					if err := errors.Join(err1, err2, coll.Barrier(ctx, c)); err != nil {
						return err
					}
					if c.Rank() == 3 {
						time.Sleep(20 * time.Millisecond)
						k.end(c)
						return end()
					}
					if captured {
						if err := cu.BeginCapture(); err != nil {
							return err
						}
					}
					for range 10 {
						if err := coll.AllReduce(ctx, c.On(s), b.Vec(), b.Vec(), ubcoll.Sum); err != nil && c.Err() == nil {
							return err
						}
					}
					if captured {
						g, err := cu.EndCapture()
						if err == nil {
							err = g.Launch(cu)
						}
						if err != nil {
							return err
						}
						defer g.Close()
					}
					if err := s.Close(); !captured && !errors.Is(err, ubcoll.ErrBusy) && c.Err() == nil {
						return fmt.Errorf("close of a stream with work: %w", err)
					}
					err := s.Sync(ctx)
					if !errors.Is(err, k.want) || !errors.Is(c.Err(), k.want) {
						return fmt.Errorf("rank %d: %w; %w", c.Rank(), err, c.Err())
					}
					if n := strings.Count(err.Error(), "\n"); n > 1 {
						return fmt.Errorf("%d lines: %w", n, err)
					}
					return end()
				})
				for _, err := range errs {
					if err != nil && !errors.Is(err, k.want) && !errors.Is(err, ubcoll.ErrClosed) { // a second Close
						t.Error(err)
					}
				}
				require.Less(t, time.Since(begin), testkit.Limit)
			})
		}
	}
}

// TestDeviceAcrossFails makes driver calls fail at each step of an operation of three parts. All ranks refuse it alike, or those
// that have not finished it break. The next operation tells all of that.
func TestDeviceAcrossFails(t *testing.T) {
	emulated.Only(t)
	t.Run("staged", func(t *testing.T) { testDeviceAcrossFails(t, "ab", 2) })
	t.Run("phased", func(t *testing.T) {
		coll.SetPhased(t, 1, 2048)
		testDeviceAcrossFails(t, "aabb", 12)
	})
}

// testDeviceAcrossFails has that many launches fail.
func testDeviceAcrossFails(t *testing.T, hosts string, launches int) {
	type calls struct {
		name string
		most int
	}
	coll.SetStagedPart(t, 8000)
	for _, call := range []calls{{"cuMemHostRegister_v2", 12}, {"cuLaunchKernelEx", launches}, {"cuStreamQuery", 14}} {
		seen := make(map[bool]int)
		for k := range call.most {
			t.Run(fmt.Sprintf("%s:%d", call.name, k+1), func(t *testing.T) {
				t.Setenv("UBCOLL_EMULATE_FAIL", "")
				failed, broken := make([]bool, len(hosts)), make([]bool, len(hosts))
				errs := devicesOnHosts(t, hosts, engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					b, err := gputest.Floats(ctx, c, dev, 5000, 1)
					if err != nil {
						return err
					}
					if err := coll.Barrier(ctx, c); err != nil {
						return err
					}
					if c.Rank() == 0 {
						os.Setenv("UBCOLL_EMULATE_FAIL", fmt.Sprintf("%s:%d", call.name, k+1))
					}
					if err := coll.Barrier(ctx, c); err != nil { // a rank that has left it has broken the communicator
						failed[c.Rank()], broken[c.Rank()] = true, c.Err() != nil
						return err
					}
					begin := time.Now()
					err = coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum)
					next := coll.Barrier(ctx, c)
					failed[c.Rank()], broken[c.Rank()] = err != nil, c.Err() != nil
					t.Logf("rank %d: %v; %v", c.Rank(), err, next)
					os.Setenv("UBCOLL_EMULATE_FAIL", "") // Close is to work
					switch {
					case time.Since(begin) > testkit.Limit: // Options.Timeout is longer
						return fmt.Errorf("rank %d: %w after %v", c.Rank(), err, time.Since(begin))
					case (next != nil) != broken[c.Rank()]:
						return fmt.Errorf("rank %d: %w, then %w, broken by %w", c.Rank(), err, next, c.Err())
					case next != nil:
						return nil
					}
					x := float32(len(hosts))
					if err != nil {
						x = 1
					}
					return errors.Join(gputest.All(ctx, c, b, x), b.Free())
				})
				for _, err := range errs {
					var e *ubcoll.Error
					if err != nil && !(broken[0] && errors.As(err, &e)) { // of Close
						t.Error(err)
					}
				}
				for r := range broken {
					require.Equal(t, broken[0], broken[r])
					require.True(t, broken[0] || failed[0] == failed[r], failed)
				}
				if slices.Contains(failed, true) {
					seen[broken[0]]++
				}
			})
		}
		t.Logf("%s: %d refusals, %d broken", call.name, seen[false], seen[true])
		if call.name != "cuStreamQuery" { // who waits may not need to ask
			require.NotZero(t, seen[false]+seen[true], call.name)
		}
	}
}

// TestDeviceAcrossNone queues on a stream of a device that the communicator does not use: the call says why.
func TestDeviceAcrossNone(t *testing.T) {
	s, err := ubcoll.NewStream(ubcoll.CUDA(0))
	if err != nil {
		testkit.Missing(t, "cuda", err)
		return
	}
	requireAll(t, onHosts(t, "ab", func(c *ubcoll.Comm) error {
		x := []int32{1}
		err := coll.AllReduce(t.Context(), c.On(s), ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum)
		return testkit.WantsOf(c.Rank(), "all_reduce", err, ubcoll.ErrNotSupported)
	}))
	require.NoError(t, s.Close())
}
