//go:build linux && cgo && (amd64 || arm64)

package coll_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/collnet"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/collectives"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/internal/testkit/switchtest"
)

// onSwitch is onHosts with options, where a switch does what it can.
func onSwitch(t *testing.T, hosts string, o engine.Options, do func(c *ubcoll.Comm) error) []error {
	t.Helper()
	o.Algorithm = cmp.Or(o.Algorithm, "collnet")
	return onHostsWith(t, hosts, inside.Providers.Network, o, do)
}

// lastBy checks by which algorithm the last operation went, and what it says of the plugin.
func lastBy(c *ubcoll.Comm, algorithm, says string) error {
	last := c.LastOp()
	if got := last.Levels[len(last.Levels)-1].Algorithm; algorithm == "collnet" != (got == "collnet") || !strings.Contains(last.String(), says) {
		return fmt.Errorf("%v, not by %s, or without %q", last, algorithm, says)
	}
	return nil
}

// TestCollNet runs everything that the plugin declares, and what it does not.
func TestCollNet(t *testing.T) {
	switchtest.Use(t)
	layouts := []string{"abbc"}
	if testkit.Full() {
		layouts = append(layouts, "ab", "aabb", "abcd", "aaab")
	}
	types := dtype.All()
	if race.Enabled || testing.Short() {
		types = []dtype.Type{dtype.Int16, dtype.BFloat16, dtype.Int64}
	}
	for _, hosts := range layouts {
		t.Run(hosts, func(t *testing.T) {
			t.Logf("TEST_SEED=%d", conform.Seed())
			defer testkit.NoLeaks(t)()
			requireAll(t, onSwitch(t, hosts, engine.Options{}, func(c *ubcoll.Comm) error {
				return collectives.OffloadOf(t.Context(), c, types)
			}))
		})
	}
}

// TestCollNetChoice: the plugin is used where it costs less than the best way, by its speed, or where it is asked for.
func TestCollNetChoice(t *testing.T) {
	for _, k := range []struct {
		name, flag string
		asked      ubcoll.Algorithm
		bytes      int
		want       string
	}{
		{"slow", "-DSPEED=1000", "", 4 << 20, "ring"},
		{"fast", "-DSPEED=400000", "", 4 << 20, "collnet"},
		{"another is asked for", "-DSPEED=400000", "doubling", 4 << 20, "doubling"},
		{"one of another operation", "-DSPEED=400000", "chain", 4 << 20, "collnet"},
		{"asked for", "-DSPEED=1000", "collnet", 4 << 20, "collnet"},
		{"small", "-DSPEED=400000", "collnet", 64, "exchange"},
		{"of no speed", "-DSPEED=0", "", 4 << 20, "ring"},
	} {
		t.Run(k.name, func(t *testing.T) {
			switchtest.Use(t, k.flag)
			requireAll(t, onHostsWith(t, "abc", inside.Providers.Network, engine.Options{Algorithm: string(k.asked)}, func(c *ubcoll.Comm) error {
				v := ubcoll.Of(make([]float32, k.bytes/4))
				if err := coll.AllReduce(t.Context(), c, v, v, ubcoll.Sum); err != nil {
					return err
				}
				if got := c.LastOp().Levels[0].Algorithm; got != k.want {
					return fmt.Errorf("%s, not %s", got, k.want)
				}
				return nil
			}))
		})
	}
}

// TestCollNetWithout: where a host cannot join, all do without, say why, and nothing is left.
func TestCollNetWithout(t *testing.T) {
	for _, k := range []struct{ name, plugin, fault, says string }{ // the second call is another rank's
		{"no plugin", "nowhere", "", `no CollNet plugin "nowhere": `},
		{"no library", "/dev/null", "", "no CollNet plugin"},
		{"too old", "9", "", "is a CollNet plugin of version 9, want 10 or 11"},
		{"too new", "12", "", "is a CollNet plugin of version 12, want 10 or 11"},
		{"init of one", "11", "init=fail@2", `rank 2: init of the CollNet plugin "switch": an internal error (3)`},
		{"devices", "10", "devices=lie", "has no devices (0)"},
		{"properties", "11", "properties=lie", "says ptrSupport is 0"},
		{"short calls", "11", "properties=short", "says maxCollBytes is 1"},
		{"reductions", "11", "reduceSupport=fail@50", "reduceSupport of the"},
		{"listen", "11", "listen=fail@2", "listen of the"},
		{"connect of one", "11", "connect=fail@2", "connect of the"},
		{"the window", "11", "regMr=fail@2", "regMr of the"},
	} {
		t.Run(k.name, func(t *testing.T) {
			switchtest.Start(t)
			path := k.plugin
			if len(path) <= 2 {
				path = switchtest.Plugin(t, path)
			}
			t.Setenv("UBCOLL_COLLNET_PLUGIN", path)
			t.Setenv("COLLNET_SWITCH_FAULT", k.fault)
			timeout := testkit.Limit
			if k.fault == "connect=fail@2" { // the others' connect does not return: nothing ends it
				timeout = 8 * time.Second
			} else {
				defer testkit.NoLeaks(t)()
			}
			requireAll(t, onSwitch(t, "aab", engine.Options{Timeout: timeout}, func(c *ubcoll.Comm) error {
				if err := checkAcross(c, 100_000, 1); err != nil {
					return err
				}
				v := ubcoll.Of(make([]float32, 100_000))
				err := coll.AllReduce(t.Context(), c, v, v, ubcoll.Sum)
				// Which rank fails when two do the same is open.
				return errors.Join(err, lastBy(c, "", strings.TrimPrefix(k.says, "rank 2: ")), lastBy(c, "", "(not by CollNet: rank "))
			}))
		})
	}
}

// TestCollNetGroups: a plugin has no more groups than its device, and a communicator that closes gives its own back.
func TestCollNetGroups(t *testing.T) {
	switchtest.Use(t, "-DGROUPS=1")
	requireAll(t, onSwitch(t, "abc", engine.Options{}, func(c *ubcoll.Comm) error {
		v := ubcoll.Of(make([]float32, 100_000))
		try := func(c *ubcoll.Comm, by, says string) error {
			return errors.Join(coll.AllReduce(t.Context(), c, v, v, ubcoll.Sum), lastBy(c, by, says))
		}
		err := try(c, "collnet", "")
		for range 2 {
			d, err2 := c.Dup(t.Context())
			if err = errors.Join(err, err2); err != nil {
				return err
			}
			err = errors.Join(try(d, "", "all groups of the CollNet plugin"), d.Close())
		}
		return errors.Join(err, try(c, "collnet", ""))
	}))
	t.Setenv("UBCOLL_COLLNET_PLUGIN", switchtest.Plugin(t, "11", "-DGROUPS=2"))
	requireAll(t, onSwitch(t, "abc", engine.Options{}, func(c *ubcoll.Comm) error {
		v := ubcoll.Of(make([]float32, 100_000))
		for range 3 {
			d, err := c.Dup(t.Context())
			if err != nil {
				return err
			}
			err = errors.Join(coll.AllReduce(t.Context(), d, v, v, ubcoll.Sum), lastBy(d, "collnet", ""), d.Close())
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// TestCollNetFaults lets the plugin fail under way: all ranks have a typed error in time, and nothing is left.
func TestCollNetFaults(t *testing.T) {
	for _, k := range []struct {
		fault, says string
		is          error
		stuck       bool
	}{
		{"iallreduce=fail@9", "iallreduce of the CollNet plugin", nil, false},
		{"iallreduce=null@9", "has not done what all hosts have begun", ubcoll.ErrTimeout, false},
		{"test=fail@9", "test of the", nil, false},
		{"test=never@9", "has not done what all hosts have begun", ubcoll.ErrTimeout, false},
		{"test=short@9", "bytes have come", nil, false},
		{"iallreduce=hang@9", "has not done what all hosts have begun", ubcoll.ErrTimeout, true},
		{"test=hang@9", "has not done what all hosts have begun", ubcoll.ErrTimeout, true},
		{"test=never@9,closeColl=hang", "has not done what all hosts have begun", ubcoll.ErrTimeout, true},
	} {
		for _, registered := range testkit.Turns(t, 2, []bool{true, false}) {
			t.Run(fmt.Sprintf("%s/%v", k.fault, registered), func(t *testing.T) {
				testkit.LongOrRace(t)
				switchtest.Use(t)
				before := collnet.Stuck()
				if !k.stuck {
					defer testkit.NoLeaks(t)()
				}
				t.Setenv("COLLNET_SWITCH_FAULT", k.fault)
				begun := time.Now()
				logger, log := testkit.Logs(slog.LevelWarn)
				var memory [][]float32
				var mu sync.Mutex
				errs := onSwitch(t, "abb", engine.Options{Timeout: time.Second, Logger: logger}, func(c *ubcoll.Comm) error {
					v := ubcoll.Of(make([]float32, 1<<18))
					var err error
					if registered {
						var b *ubcoll.Buffer[float32]
						if b, err = ubcoll.Alloc[float32](c, ubcoll.Host, 1<<18); err != nil {
							return err
						}
						v = b.Vec()
						if k.stuck && c.Rank() < 2 { // leaders pass it to the plugin, or may
							mu.Lock()
							memory = append(memory, b.Slice())
							mu.Unlock()
						}
					}
					for err == nil {
						err = coll.AllReduce(t.Context(), c, v, v, ubcoll.Max)
					}
					return err
				})
				found := false
				for r, err := range errs {
					require.Error(t, err, "rank %d", r)
					var f *ubcoll.Error
					require.ErrorAs(t, err, &f)
					require.ErrorContains(t, err, k.says, "rank %d", r)
					found = found || k.is == nil || errors.Is(err, k.is)
					require.True(t, k.is == nil || errors.Is(err, k.is) || errors.Is(err, ubcoll.ErrAborted), "rank %d: %v", r, err)
				}
				require.True(t, found, errs)
				require.Less(t, time.Since(begun), testkit.Limit)
				require.Equal(t, k.stuck, collnet.Stuck() > before)
				for _, v := range memory {
					v[0]++ // a thread that was given up may still do so
				}
				require.NotContains(t, log.String(), "registrations left")
			})
		}
	}
}

// TestCollNetAbort: a rank that aborts ends a call that is never complete, on all ranks, and nothing is left of it: no thread, no
// descriptor, no registration.
func TestCollNetAbort(t *testing.T) {
	switchtest.Use(t)
	t.Setenv("COLLNET_SWITCH_FAULT", "test=never")
	before := collnet.Stuck()
	defer testkit.NoLeaks(t)()
	logger, log := testkit.Logs(slog.LevelWarn)
	for r, err := range onSwitch(t, "aabc", engine.Options{Timeout: testkit.Limit, Logger: logger}, func(c *ubcoll.Comm) error {
		b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 1<<18)
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			time.AfterFunc(100*time.Millisecond, func() { c.Abort(errors.New("it takes too long")) })
		}
		return errors.Join(coll.AllReduce(t.Context(), c, b.Vec(), b.Vec(), ubcoll.Max), b.Free())
	}) {
		require.ErrorIs(t, err, ubcoll.ErrAborted, "rank %d", r)
		require.ErrorContains(t, err, "it takes too long", "rank %d", r)
	}
	require.Equal(t, before, collnet.Stuck())
	require.NotContains(t, log.String(), "registrations left")
}

// TestCollNetSwitchDies kills the switch under a call.
func TestCollNetSwitchDies(t *testing.T) {
	sw := switchtest.Use(t)
	defer testkit.NoLeaks(t)()
	for r, err := range onSwitch(t, "aabc", engine.Options{Timeout: testkit.Limit}, func(c *ubcoll.Comm) error {
		v := ubcoll.Of(make([]float32, 1<<18))
		for i := 0; ; i++ {
			if err := coll.AllReduce(t.Context(), c, v, v, ubcoll.Max); err != nil {
				return err
			}
			if i == 10 && c.Rank() == 0 {
				if err := sw.Process.Signal(os.Kill); err != nil {
					return err
				}
			}
		}
	}) {
		require.True(t, errors.Is(err, ubcoll.ErrPeerLost) || errors.Is(err, ubcoll.ErrAborted), "rank %d: %v", r, err)
		require.ErrorContains(t, err, `of the CollNet plugin "switch": a remote error (6)`)
	}
}

// TestCollNetMemory: registered memory is registered with the plugin, is used in place where a host has one rank, and is given back.
func TestCollNetMemory(t *testing.T) {
	switchtest.Use(t)
	logger, log := testkit.Logs(slog.LevelWarn)
	requireAll(t, onSwitch(t, "ab", engine.Options{Logger: logger}, func(c *ubcoll.Comm) error {
		b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 1<<18)
		if err != nil {
			return err
		}
		v := b.Vec()
		r, err := c.RegisterBuffer(v)
		if err != nil {
			return err
		}
		if s := c.Stats().Cache.COLLNET; s.Complete == 0 || s.Failures > 0 {
			return fmt.Errorf("%+v", s)
		}
		err = coll.AllReduce(t.Context(), c, v, v, ubcoll.Max)
		if last := c.LastOp(); err == nil && !strings.Contains(last.String(), "source and destination direct between hosts") {
			err = fmt.Errorf("not in place: %v", last)
		}
		if text := c.Explain(v); err == nil && !strings.Contains(text, "COLLNET complete: in 1 group") {
			err = errors.New(text)
		}
		d, err2 := c.Dup(t.Context())
		if err = errors.Join(err, err2); err != nil {
			return err
		}
		err = coll.AllReduce(t.Context(), d, v, v, ubcoll.Max)
		if text := c.Explain(v); err == nil && !strings.Contains(text, "COLLNET complete: in 2 groups") {
			err = errors.New(text)
		}
		err = errors.Join(err, d.Close())
		if text := c.Explain(v); err == nil && !strings.Contains(text, "COLLNET complete: in 1 group") {
			err = errors.New(text)
		}
		had := c.Stats().Cache.COLLNET.Complete
		err = errors.Join(err, r.Close(), b.Free())
		if left := c.Stats().Cache.COLLNET.Complete; left >= had && err == nil {
			err = fmt.Errorf("%d registrations are left of %d", left, had)
		}
		return err
	}))
	require.NotContains(t, log.String(), "registrations left")
}

// TestDeviceCollNet: device memory goes through the plugin, too, in all the ways in which it is called.
func TestDeviceCollNet(t *testing.T) {
	seed := testkit.Seed(t)
	for i, hosts := range []string{"aabb", "abc"} {
		t.Run(hosts, func(t *testing.T) {
			testkit.Turn(t, i, 2)
			switchtest.Use(t)
			trials := testkit.Often(200)
			requireAll(t, devicesOnHosts(t, hosts, engine.Options{Algorithm: "collnet"}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				const most = 2 << 20
				a, err1 := newMemory(c, dev, most)
				b, err2 := newMemory(c, dev, most)
				if err := errors.Join(err1, err2); err != nil {
					return err
				}
				queued, sync, end, err := gputest.View(ctx, c, dev, true)
				if err != nil {
					return err
				}
				same, some := rand.New(rand.NewPCG(seed, uint64(i))), 0
				for k := 0; k < trials || some < 5; k++ {
					view, wait := c, func() error { return nil }
					if same.IntN(2) == 0 {
						view, wait = queued, sync
					}
					if err := newTrial(same, c.Size(), most).run(ctx, view, a, b, wait); err != nil {
						return fmt.Errorf("rank %d: %w", c.Rank(), err)
					}
					if lastBy(c, "collnet", `plugin "switch"`) == nil {
						some++
					}
				}
				return errors.Join(end(), a.buf.Free(), b.buf.Free())
			}))
		})
	}
}
