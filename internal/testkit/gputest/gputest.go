// Package gputest has what tests of several packages need to run ranks on devices.
package gputest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Main is for the TestMain of a package whose tests have devices only where they ask for them by Run, so that tests of
// host memory are the same everywhere. It calls emulated.Main, whose emulated driver has this many devices, with run. If
// UBCOLL_TEST_DEVICES has another number, it has that many, with as many multiprocessors as an H100, and ranks share them.
func Main(devices int, run func() int) {
	n := os.Getenv("UBCOLL_TEST_DEVICES")
	if n != "" && os.Getenv("UBCOLL_EMULATE_SMS") == "" {
		os.Setenv("UBCOLL_EMULATE_SMS", "132")
	}
	os.Setenv("UBCOLL_EMULATE_DEVICES", cmp.Or(n, strconv.Itoa(devices)))
	emulated.Main(func() int {
		os.Setenv(env.CUDA.Name, "off")
		return run()
	})
}

// Run runs f on n goroutine ranks that have a device each, or share devices where there are fewer. Without devices it
// skips the test, or fails it if UBCOLL_REQUIRE has cuda. It skips it, too, if three or more ranks that share a device
// use more streams at once than the device has queues, or if it has no room for messages between more than eight. No wait
// lasts longer than testkit.Limit unless o says so.
func Run(t *testing.T, n int, o ubcoll.Options, f func(context.Context, *ubcoll.Comm, ubcoll.Device) error) {
	t.Helper()
	t.Setenv(env.CUDA.Name, "share")
	if o.Timeout == 0 {
		o.Timeout = testkit.Limit
	}
	var missing error
	err := ubcoll.Local(t.Context(), n, o, func(ctx context.Context, c *ubcoll.Comm) error {
		dev, err := c.GPU()
		if err != nil {
			if c.Rank() == 0 {
				missing = err
			}
			return nil
		}
		return f(ctx, c, dev)
	})
	if Sharers(t, n) > 2 && errors.Is(err, ubcoll.ErrLimit) && strings.Contains(err.Error(), "CUDA_DEVICE_MAX_CONNECTIONS") ||
		Sharers(t, n) > 8 && errors.Is(err, ubcoll.ErrNotSupported) && strings.Contains(err.Error(), "ranks share a device of") {
		t.Skip(err)
	}
	require.NoError(t, err)
	if missing != nil {
		testkit.Missing(t, "cuda", missing)
	}
}

// Both runs f on n ranks of one host, and then on n hosts.
func Both(t *testing.T, n int, o ubcoll.Options, f func(context.Context, *ubcoll.Comm, ubcoll.Device) error) {
	t.Helper()
	t.Run("one host", func(t *testing.T) { Run(t, n, o, f) })
	if n > 1 {
		t.Run("hosts", func(t *testing.T) { Across(t, "abcdefgh"[:n], o, f) })
	}
}

// Across is Run on hosts: rank i claims to be on the one that the i-th letter of hosts names.
func Across(t testing.TB, hosts string, o ubcoll.Options, f func(context.Context, *ubcoll.Comm, ubcoll.Device) error) {
	t.Helper()
	t.Setenv(env.CUDA.Name, "share")
	if o.Timeout == 0 {
		o.Timeout = testkit.Limit
	}
	bs := enginetest.Hosts(bootstrap.Local(len(hosts)), func(r int) string { return "host-" + hosts[r:r+1] })
	errs, missing := make([]error, len(bs)), make([]error, len(bs))
	var wg sync.WaitGroup
	for r, b := range bs {
		wg.Go(func() {
			c, err := ubcoll.Open(t.Context(), b, o)
			if err == nil {
				var dev ubcoll.Device
				if dev, missing[r] = c.GPU(); missing[r] == nil {
					err = f(t.Context(), c, dev)
				}
				err = errors.Join(err, c.Close())
			}
			errs[r] = errors.Join(err, b.Close())
		})
	}
	wg.Wait()
	err, none := errors.Join(errs...), errors.Join(missing...)
	if Sharers(t, len(hosts)) > 2 && errors.Is(errors.Join(err, none), ubcoll.ErrLimit) {
		t.Skip(err, none) // too many for one device, as goroutines of a process
	}
	require.NoError(t, err)
	if none != nil {
		testkit.Missing(t, "cuda", none)
	}
}

// Sharers returns the most of n ranks that have the same device, or 0 without devices.
func Sharers(t testing.TB, n int) int {
	if cuda.Have().Err != nil {
		return 0
	}
	all, err := cuda.Devices()
	require.NoError(t, err)
	return (n + len(all) - 1) / max(len(all), 1)
}

// Enough skips the test if there are devices, but fewer than n: it shows what ranks with a device each do.
// scripts/test-gpu lists what was skipped for that, by this text.
func Enough(t *testing.T, n int) {
	t.Helper()
	if d := cuda.Have(); d.Err == nil {
		all, err := cuda.Devices()
		require.NoError(t, err)
		if len(all) < n {
			t.Skipf("%d devices, and %d wanted", len(all), n)
		}
	}
}

// Floats returns a new buffer of n elements on dev, all equal to x. The caller frees it.
func Floats(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, n int, x float32) (*ubcoll.Buffer[float32], error) {
	b, err := ubcoll.Alloc[float32](c, dev, n)
	if err != nil {
		return nil, err
	}
	return b, b.CopyFrom(ctx, slices.Repeat([]float32{x}, n))
}

// All returns an error, which names c's rank, unless all elements of b are x.
func All(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[float32], x float32) error {
	got := make([]float32, b.Len())
	if err := b.CopyTo(ctx, got); err != nil {
		return err
	}
	for i, y := range got {
		if y != x {
			return fmt.Errorf("rank %d: element %d is %v, not %v", c.Rank(), i, y, x)
		}
	}
	return nil
}

// View returns a communicator for blocking calls: c itself; or, if queued is set, one for queued calls: c on a new
// stream of dev, which may be the host. sync waits for queued calls and returns their errors. end closes the stream.
// For blocking calls both do nothing.
func View(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, queued bool) (
	view *ubcoll.Comm, sync, end func() error, err error) {
	if !queued {
		none := func() error { return nil }
		return c, none, none, nil
	}
	s, err := ubcoll.NewStream(dev)
	if err != nil {
		return nil, nil, nil, err
	}
	return c.On(s), func() error { return s.Sync(ctx) }, s.Close, nil
}

// Foreign makes a stream of dev without the library, for tests that capture it themselves, and borrows it. end closes
// both.
func Foreign(dev ubcoll.Device) (cu *cuda.Stream, s *ubcoll.Stream, end func() error, err error) {
	c, err := cuda.Primary(dev)
	if err != nil {
		return nil, nil, nil, err
	}
	if cu, err = c.NewStream(); err != nil {
		return nil, nil, nil, errors.Join(err, c.Close())
	}
	if s, err = ubcoll.StreamFrom(dev, cu.Handle()); err != nil {
		return nil, nil, nil, errors.Join(err, cu.Close(), c.Close())
	}
	return cu, s, func() error { return errors.Join(s.Close(), cu.Close(), c.Close()) }, nil
}
