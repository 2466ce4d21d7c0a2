package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestOneSided(t *testing.T) {
	for _, op := range oneSided {
		name, ranks := op.name, []int{3, 1, 2, 4}
		if op.window {
			ranks = []int{4, 2}
		}
		for _, n := range testkit.Sample(4, ranks) {
			for _, loop := range testkit.Sample(2, []bool{false, true}) {
				t.Run(fmt.Sprintf("%s/%d/%v", name, n, loop), func(t *testing.T) {
					cfg := small(name)
					cfg.Checks, cfg.Loop, cfg.Cache = 2, loop, false
					rep, table, err := measure(t, n, cfg)
					require.NoError(t, err)
					require.Len(t, rep.Results, rows(name))
					require.Equal(t, Bounds{0, true}, rep.Wrong)
					for _, r := range rep.Results {
						require.Equal(t, r.Size, r.Count*op.elements.Size())
						require.Equal(t, op.window, r.Out.Rate > 0)
						require.Nil(t, r.In)
						require.NotNil(t, r.Out.Wrong)
						require.Contains(t, table, r.Reduction)
					}
				})
			}
		}
	}
	cfg := small("channel")
	cfg.Buffers = GoSlices
	_, _, err := measure(t, 2, cfg)
	require.ErrorIs(t, err, ubcoll.ErrArgument)
}

// rows is how many rows a run of small sizes has.
func rows(name string) int {
	o := operationOf(name)
	if o.bytes > 0 {
		return 1
	}
	return 3 * max(1, len(o.variants))
}

// TestOneSidedBetweenHosts: what one-sided operations and messages do to memory of other hosts is right, and files say over what.
func TestOneSidedBetweenHosts(t *testing.T) {
	t.Setenv("UBCOLL_CUDA", "off")
	for i, ranks := range []conform.Layout{conform.Cyclic(2, 1, 1), conform.Block(2, 2), conform.Block(1, 1)} {
		if testkit.Daily() && i > 0 {
			break
		}
		for j, name := range []string{"channel", "window", putBandwidth, "accumulate", "fetch_add", "compare_and_swap", "pingpong", "sendrecv", multiPair} {
			t.Run(fmt.Sprintf("%s/%v", name, ranks), func(t *testing.T) {
				testkit.Turn(t, i+j, 3)
				var rep *Report
				require.NoError(t, ranks.Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
					cfg := small(name)
					cfg.Checks, cfg.Cache = 2, false
					mine, err := Run(ctx, c, cfg, Program{}, io.Discard, nil)
					if c.Rank() == 0 {
						rep = mine
					}
					return err
				}))
				require.Len(t, rep.Results, rows(name))
				require.Equal(t, Bounds{0, true}, rep.Wrong)
				for _, r := range rep.Results {
					require.Regexp(t, "^tcp .", r.Out.Wire)
					require.Equal(t, operationOf(name).open == nil, r.Out.Way != "", r.Out.Way)
					require.Equal(t, len(slices.Compact(slices.Sorted(slices.Values(ranks)))), r.Out.Hosts())
				}
			})
		}
	}
}

// TestPairs: pairs are neighbours, unless all of them were on one host of several.
func TestPairs(t *testing.T) {
	for _, k := range []struct {
		ranks conform.Layout
		want  []int
	}{
		{conform.Block(5), []int{1, 0, 3, 2, -1}},
		{conform.Block(1, 1), []int{1, 0}},
		{conform.Block(1, 2), []int{1, 0, -1}},
		{conform.Block(2, 2), []int{2, 3, 0, 1}},
		{conform.Block(2, 2, 1), []int{2, 3, 0, 1, -1}},
		{conform.Cyclic(2, 2), []int{1, 0, 3, 2}},
	} {
		got := make([]int, len(k.ranks))
		require.NoError(t, k.ranks.Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, func(_ context.Context, c *ubcoll.Comm) error {
			got[c.Rank()] = placeOf(c, -1).pair()
			return nil
		}))
		require.Equal(t, k.want, got, "%v", k.ranks)
	}
}

// Some operations have one element type, or one size.
func TestFixed(t *testing.T) {
	for _, k := range []struct {
		name  string
		t     dtype.Type
		bytes int
	}{{"all_reduce", dtype.Invalid, -1}, {"x", dtype.Invalid, -1}, {barrier, dtype.Invalid, 0}, {"window", dtype.Uint8, -1},
		{"accumulate", dtype.Float32, -1}, {"fetch_add", dtype.Uint64, 8}} {
		typ, bytes := Fixed(k.name)
		require.Equal(t, k.t, typ, k.name)
		require.Equal(t, k.bytes, bytes, k.name)
	}
	cfg := Default("accumulate")
	require.Equal(t, 4<<20, cfg.MaxBytes)
	require.NoError(t, cfg.Fits(2))
	cfg.MinBytes = 3
	require.ErrorContains(t, cfg.Fits(2), "3 bytes have no float32")
	cfg = Default("fetch_add")
	require.Equal(t, []int{8}, cfg.sizes())
	cfg.MinBytes = 0
	require.NoError(t, cfg.Fits(2))
	cfg.Device = CUDA
	require.ErrorIs(t, cfg.Validate(), ubcoll.ErrNotSupported)
	cfg = Default(putBandwidth)
	require.ErrorContains(t, cfg.Fits(3), "put_bw has rank i send to rank i+n/2")
}

// TestPassiveNotices has rank 0 leave its calls out, or what it has fetched spoiled.
func TestPassiveNotices(t *testing.T) {
	for i := range oneSided {
		op := &oneSided[i]
		if !op.passive {
			continue
		}
		faults := []string{"does nothing"}
		if op.bytes > 0 {
			faults = append(faults, "fetches something else")
		}
		for _, fault := range faults {
			open := op.open
			op.open = func(ctx context.Context, c *ubcoll.Comm, e *ends) error {
				err := open(ctx, c, e)
				run := e.run
				e.run = func(ctx context.Context, variant string, n int) error {
					switch {
					case c.Rank() > 0:
					case fault == faults[0]:
						return nil
					default:
						err := run(ctx, variant, n)
						e.part(1, 16)[8] ^= 1
						return err
					}
					return run(ctx, variant, n)
				}
				return err
			}
			_, _, err := measure(t, 2, small(op.name))
			op.open = open
			require.ErrorIs(t, err, ErrFailed, "%s %s", op.name, fault)
		}
	}
}

// TestOneSidedNotices has one rank's last byte spoiled.
func TestOneSidedNotices(t *testing.T) {
	for _, name := range []string{"channel", "window"} {
		op := operationOf(name)
		open := op.open
		var runs atomic.Int32
		op.open = func(ctx context.Context, c *ubcoll.Comm, e *ends) error {
			err := open(ctx, c, e)
			run := e.run
			e.run = func(ctx context.Context, variant string, n int) error {
				err := run(ctx, variant, n)
				if n > 1 && c.Rank() == 1 && variant == op.variants[0] {
					runs.Add(1)
					e.part(1, n)[n-1] ^= 0x40
				}
				return err
			}
			return err
		}
		_, _, err := measure(t, 2, small(name))
		op.open = open
		require.ErrorIs(t, err, ErrFailed)
		require.Positive(t, runs.Load())
	}
}

func TestOneSidedOnDevices(t *testing.T) {
	testkit.LongOrRace(t)
	needDevices(t, 3)
	for i, name := range []string{"channel", "window", "channel", "window", putBandwidth} {
		for _, graphs := range []int{0, 2} {
			n := 2 + i/2%2
			t.Run(fmt.Sprintf("%s/%d/%d", name, n, graphs), func(t *testing.T) {
				if graphs > 0 { // where ranks share a device, it has no room for so many kernels that wait
					gputest.Enough(t, n)
				}
				cfg := small(name)
				cfg.Device, cfg.Graphs, cfg.Checks, cfg.Iterations = CUDA, graphs, 2, 4
				rep, table, err := measure(t, n, cfg)
				require.NoError(t, err)
				require.Equal(t, CUDA, rep.Config.Device)
				require.Len(t, rep.Results, rows(name))
				require.Equal(t, Bounds{0, true}, rep.Wrong)
				for _, r := range rep.Results {
					require.Positive(t, r.Out.Time)
					require.Contains(t, table, r.Reduction)
				}
			})
		}
	}
	cfg := small("channel")
	cfg.Device, cfg.Graphs, cfg.Iterations = CUDA, 1, 3
	require.ErrorIs(t, cfg.Validate(), ubcoll.ErrArgument)
}

// TestOneSidedOnDevicesOfHosts: between hosts there are no packets of device memory. Where others are measured as well, one line
// says so.
func TestOneSidedOnDevicesOfHosts(t *testing.T) {
	const left = "# Left out: packet on devices of several hosts (on host memory: -device host): not supported\n"
	for _, k := range []struct {
		op, device string
		variants   []string
		want       string
		rows       int // 0: it is not supported
	}{
		{"channel", Auto, nil, CUDA, 6},
		{"channel", CUDA, nil, CUDA, 6},
		{"channel", CUDA, []string{"get"}, CUDA, 3},
		{"channel", Host, nil, Host, 9},
		{"channel", Auto, []string{packet}, Host, 3},
		{"channel", CUDA, []string{packet}, "", 0},
		{"window", Auto, nil, CUDA, 6},
		{"accumulate", Auto, nil, Host, 3},
		{"all_reduce", Auto, nil, CUDA, 3},
	} {
		t.Run(fmt.Sprint(k.op, " ", k.device, " ", k.variants), func(t *testing.T) {
			cfg := small(k.op)
			cfg.Device, cfg.Variants, cfg.Iterations, cfg.Cycles, cfg.Cache = k.device, k.variants, 4, 1, false
			var rep *Report
			var table bytes.Buffer
			gputest.Across(t, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, _ ubcoll.Device) error {
				mine, err := Run(ctx, c, cfg, Program{}, &table, nil)
				if k.rows == 0 {
					return testkit.Wants(err, ubcoll.ErrNotSupported)
				}
				if c.Rank() == 0 {
					rep = mine
				}
				return err
			})
			if k.rows == 0 {
				return
			}
			require.Len(t, rep.Results, k.rows)
			require.Equal(t, k.want, rep.Config.Device)
			require.Equal(t, Bounds{0, true}, rep.Wrong)
			lines := 0
			if k.op == "channel" && k.want == CUDA && k.variants == nil {
				lines = 1
			}
			require.Equal(t, lines, strings.Count(table.String(), left), table.String())
		})
	}
}
