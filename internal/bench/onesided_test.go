package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestOneSided(t *testing.T) {
	for _, name := range []string{"channel", "window"} {
		for _, n := range testkit.Sample(4, []int{3, 1, 2, 4}) {
			for _, loop := range testkit.Sample(2, []bool{false, true}) {
				t.Run(fmt.Sprintf("%s/%d/%v", name, n, loop), func(t *testing.T) {
					cfg := small(name)
					cfg.Checks, cfg.Loop, cfg.Cache = 2, loop, false
					rep, table, err := measure(t, n, cfg)
					require.NoError(t, err)
					require.Len(t, rep.Results, 3*len(operationOf(name).variants))
					require.Equal(t, Bounds{0, true}, rep.Wrong)
					for _, r := range rep.Results {
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
	for i, name := range []string{"channel", "window", "channel", "window"} {
		for _, graphs := range []int{0, 2} {
			n := 2 + i/2
			t.Run(fmt.Sprintf("%s/%d/%d", name, n, graphs), func(t *testing.T) {
				if graphs > 0 { // where ranks share a device, it has no room for so many kernels that wait
					gputest.Enough(t, n)
				}
				cfg := small(name)
				cfg.Device, cfg.Graphs, cfg.Checks, cfg.Iterations = CUDA, graphs, 2, 4
				rep, table, err := measure(t, n, cfg)
				require.NoError(t, err)
				require.Equal(t, CUDA, rep.Config.Device)
				require.Len(t, rep.Results, 3*len(operationOf(name).variants))
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
