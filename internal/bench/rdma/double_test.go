//go:build linux && cgo && (amd64 || arm64)

package rdma

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestDouble runs the tests that need a device over a double of one.
func TestDouble(t *testing.T) {
	testkit.LongOrRace(t)
	for name, knobs := range map[string]verbstest.Knobs{"InfiniBand": nil, "Ethernet": {"LINK": "Ethernet"},
		"little inline": {"MAX_INLINE": "64"}} {
		t.Run(name, func(t *testing.T) { verbstest.Again(t, knobs, "-test.run=^(TestRun|TestRefused|TestRanks)$") })
	}
}

// quick returns a short run of all tables.
func quick() Config {
	return Config{MinBytes: 8, MaxBytes: 64, Iterations: 20, MaxRegion: leastRegion, GID: -1}
}

// A failure on one rank ends the run on both, by name, and leaves nothing behind.
func TestDoubleFailures(t *testing.T) {
	verbstest.Over(t, nil, func(t *testing.T) {
		for _, c := range testkit.Sample(2, []struct {
			name, knob, value string
			is                error // nil: it is random which rank's failure is reported first, and as what
			says              string
		}{
			{"a put", "STATUS", "WRITE:1:RETRY_EXC_ERR", fault.ErrPeerLost, "put of 8 bytes: "},
			{"a put later", "STATUS", "WRITE:60:REM_ACCESS_ERR", fault.ErrStale, "put of "},
			{"a get", "STATUS", "READ:3:REM_ACCESS_ERR", fault.ErrStale, "get of 8 bytes: "},
			{"an atomic", "STATUS", "FETCH_ADD:30:REM_OP_ERR", nil, "fetch_add of 8 bytes: "},
			{"a port", "PORT", "down", fault.ErrNotSupported, "double0:1 is down"},
			{"a queue", "FAIL", "create_cq:1:ENOMEM", nil, "ibv_create_cq"},
			{"the last region", "FAIL", "reg_mr:2:ENOMEM", nil, "ibv_reg_mr"},
			{"a region to measure", "FAIL", "reg_mr:5:ENOMEM", fault.ErrLimit, "ibv_reg_mr"},
		}) {
			t.Run(c.name, func(t *testing.T) {
				verbstest.Set(t, c.knob, c.value)
				_, _, err := measure(t, 2, quick())
				verbstest.Set(t, c.knob, map[string]string{"PORT": "up"}[c.knob])
				require.Error(t, err)
				if c.is != nil {
					require.ErrorIs(t, err, c.is)
				}
				require.ErrorContains(t, err, c.says)
				for _, what := range []string{"context", "pd", "mr", "qp", "cq"} {
					require.Zero(t, verbstest.Count(t, what), what)
				}
			})
		}
		_, _, err := measure(t, 2, quick())
		require.NoError(t, err)
	})
}

// A device without atomic operations is measured without them.
func TestDoubleNoAtomics(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"ATOMICS": "0"}, func(t *testing.T) {
		rep, table, err := measure(t, 2, quick())
		require.NoError(t, err)
		require.Contains(t, table, "# fetch_add: a device has no atomic operations\n")
		require.Len(t, rep.Latency, 2*4)
	})
}

// If the user has not asked for a size, regions end with the largest that can be locked.
func TestDoubleLockLimit(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"MEMLOCK": "131072"}, func(t *testing.T) {
		cfg := quick()
		cfg.MaxRegion = -1
		rep, table, err := measure(t, 2, cfg)
		require.NoError(t, err)
		require.Len(t, rep.Registration, 3) // 4, 16 and 64 KiB; 256 KiB are too many
		require.Contains(t, rep.Limit, "ibv_reg_mr")
		require.Contains(t, table, "# no larger region: ")
		cfg.MaxRegion = 1 << 20
		_, _, err = measure(t, 2, cfg)
		require.ErrorIs(t, err, fault.ErrLimit)
	})
}

// A rank that was woken before it goes to sleep does not sleep.
func TestDoubleWokenBefore(t *testing.T) {
	verbstest.Over(t, nil, func(t *testing.T) {
		cfg := quick()
		o := ubcoll.Options{Timeout: testkit.Limit, Devices: ubcoll.DevicesOff, Register: ubcoll.RegisterExplicit}
		require.NoError(t, ubcoll.Local(t.Context(), 2, o, func(ctx context.Context, c *ubcoll.Comm) error {
			e, _, err := connect(ctx, c, &cfg)
			if err != nil {
				return err
			}
			if c.Rank() == 0 {
				if _, err = e.qp.Post(verbs.Work{Op: verbs.Send, Flags: verbs.Signaled}); err == nil {
					e.unseen++
					err = testkit.InOrder(
						func() error { return coll.Barrier(ctx, c) },
						func() error { return e.drain(ctx) })
				}
			} else if err = coll.Barrier(ctx, c); err == nil {
				err = testkit.InOrder(e.rest, func() error { return e.idle(ctx) })
			}
			return errors.Join(err, coll.Barrier(ctx, c), e.close())
		}))
	})
}
