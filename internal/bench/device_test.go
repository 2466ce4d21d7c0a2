package bench

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/register"
)

func TestMain(m *testing.M) {
	testkit.Rapid()
	gputest.Main(4, func() int { return testkit.Main(m) })
}

// needDevices turns devices on, which ranks share where there are fewer than n, and skips the test where there are none.
// It returns how many there are.
func needDevices(t *testing.T, n int) int {
	t.Helper()
	t.Setenv(env.CUDA.Name, "share")
	all, err := cuda.Devices()
	if err != nil {
		testkit.Missing(t, "cuda", err)
	}
	return min(n, len(all))
}

func TestOnDevices(t *testing.T) {
	rng := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	for i := range operations {
		op := &operations[i]
		if !op.device || testkit.Daily() && i%6 != 0 {
			continue
		}
		n := 2 + i%2
		if op.name == multiPair {
			n = 4
		}
		cfg := small(op.name)
		cfg.Device, cfg.Buffers, cfg.Checks, cfg.Graphs = Auto, i/2%2, 2*(i%3/2+1)%4, i%3
		cfg.Types = []dtype.Type{dtype.All()[rng.IntN(len(dtype.All()))]}
		if cfg.Types[0] == dtype.Bool {
			cfg.Reductions = []ubcoll.Op{ubcoll.Max}
		}
		t.Run(fmt.Sprintf("%s/%d/%d/%v", op.name, n, cfg.Buffers, cfg.Types[0]), func(t *testing.T) {
			testkit.Turn(t, i, 3)
			devices := needDevices(t, n)
			var rep *Report
			var table bytes.Buffer
			o := ubcoll.Options{Timeout: testkit.Limit, Register: register.Explicit}
			err := ubcoll.Local(t.Context(), n, o, func(ctx context.Context, c *ubcoll.Comm) error {
				mine, err := Run(ctx, c, cfg, Program{Version: "test", Threads: n}, &table, nil)
				if c.Rank() == 0 {
					rep = mine
				}
				return err
			})
			require.NoError(t, err)
			require.Equal(t, CUDA, rep.Config.Device)
			require.Equal(t, "loop", rep.Config.Protocol)
			require.Equal(t, Bounds{0, true}, rep.Wrong)
			for r, i := range rep.Ranks {
				require.Equal(t, fmt.Sprintf("cuda:%d", r%devices), i.Device)
				require.Contains(t, table.String(), i.Name)
			}
			for _, row := range rep.Results {
				require.Equal(t, op.outOfPlace, row.In == nil)
				require.Equal(t, op.name == barrier || cfg.Checks == 0, row.Out.Wrong == nil)
				require.Positive(t, row.Out.Time)
				if cfg.Buffers == GoSlices && cfg.Graphs == 0 && op.name != barrier && row.Size > 0 { // captures register
					require.NotContains(t, row.Out.Source+row.Out.Destination, "direct")
				}
			}
		})
	}
}

// Each rank maps both buffers of each other one, for the first call that needs them, and no more.
func TestFirstUse(t *testing.T) {
	testkit.LongOrRace(t)
	needDevices(t, 4)
	cfg := small("all_reduce")
	cfg.MinBytes, cfg.MaxBytes, cfg.Iterations, cfg.Paths, cfg.Graphs, cfg.Device = 1<<20, 2<<20, 2, true, 1, CUDA
	rep, table, err := measure(t, 4, cfg)
	require.NoError(t, err)
	require.Positive(t, rep.Setup.FirstUse)
	require.Contains(t, table, fmt.Sprintf("in which ranks opened %d of their peers' buffers; later %d, staging memory included\n",
		rep.Setup.Opened, rep.Setup.OpenedLater))
	if emulated.Active() { // devices that need no staging memory here
		require.Zero(t, rep.Setup.OpenedLater)
		require.Equal(t, 2*4*3, rep.Setup.Opened)
	} else { // a rank's buffers may lie in one of the driver's allocations
		require.Contains(t, []int{12, 15, 18, 21, 24}, rep.Setup.Opened)
	}
}

// What is verified on devices has to fail there too.
func TestVerifyOnDevices(t *testing.T) {
	testkit.LongOrRace(t)
	needDevices(t, 3)
	v := Verification{Device: Auto, MinBytes: 8, MaxBytes: 1 << 10, Ops: []string{"all_reduce", "gather"}, Seed: testkit.Seed(t) >> 32}
	out, err := verifyOn(t, 3, v)
	require.NoError(t, err, out)
	require.Contains(t, out, "verify: 3 ranks on CUDA devices: ")
	require.Contains(t, out, " of 2 operations on 13 types")

	o := operationOf("all_gather")
	good := o.run
	defer func() { o.run = good }()
	o.run = func(ctx context.Context, c *ubcoll.Comm, _ *args) error { return coll.Barrier(ctx, c) } // moves nothing
	v.Ops = []string{"all_gather"}
	out, err = verifyOn(t, 2, v)
	require.ErrorIs(t, err, ErrFailed)
	require.Equal(t, mostPrinted, strings.Count(out, "verify: all_gather"))
}
