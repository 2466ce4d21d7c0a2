//go:build linux && cgo && (amd64 || arm64)

package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestDouble runs this package's tests over the double, in other processes: the double must pass what soft-RoCE passes.
func TestDouble(t *testing.T) {
	for name, knobs := range map[string]verbstest.Knobs{
		"InfiniBand":                  {"SYSFS": verbstest.Sysfs(t)},
		"Ethernet":                    {"SYSFS": verbstest.Sysfs(t), "LINK": "Ethernet"},
		"keys that come back at once": {"SYSFS": verbstest.Sysfs(t), "TAGS": "1"},
		"on demand":                   {"SYSFS": verbstest.Sysfs(t), "ODP": "31", "IN_ORDER": "1"},
		"old contexts":                {"SYSFS": verbstest.Sysfs(t), "EXTENSION": "none"},
	} {
		t.Run(name, func(t *testing.T) {
			if len(knobs) > 1 {
				testkit.LongOrRace(t)
			}
			out := verbstest.Again(t, knobs, "-test.run=^Test", "-test.skip=^TestDouble|^TestABI$|^TestMemoryLimit$")
			require.NotContains(t, out, "--- SKIP")
			require.Contains(t, out, "--- PASS: TestWalk")
		})
	}
}

// TestDoubleLimit: memory beyond the limit is refused by name, with what to do; smaller memory still registers.
func TestDoubleLimit(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"MEMLOCK": "65536"}, func(t *testing.T) {
		e := newEnd(t, device(t), config{})
		m := memory(t, 128<<10)
		e.register(t, m[:48<<10], verbs.LocalWrite)
		_, err := e.pd.Register(address(m), 32<<10, verbs.LocalWrite)
		require.ErrorIs(t, err, fault.ErrLimit)
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.Equal(t, 48<<10, verbstest.Count(t, "pinned"))
		e.register(t, m[64<<10:80<<10], verbs.LocalWrite)
	})
}

// TestDoubleNoMemory: the error for ENOMEM blames RLIMIT_MEMLOCK only where it can be the cause.
func TestDoubleNoMemory(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"ODP": "31", "DMABUF": "1"}, func(t *testing.T) {
		d := device(t)
		pd, err := d.AllocPD()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pd.Close()) })
		cq, err := d.CreateCQ(8, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cq.Close()) })
		m := memory(t, 256<<10)
		var was unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &was))
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: was.Max}))
		verbstest.Set(t, "FAIL", "reg_mr:*:ENOMEM,reg_dmabuf_mr:*:ENOMEM,create_cq:*:ENOMEM,create_qp:*:ENOMEM,create_srq:*:ENOMEM")
		register := func(offset, n int, access verbs.Access) error {
			_, err := pd.Register(address(m)+uintptr(offset), n, access)
			return err
		}
		const other, limit = "or the device no room", "RLIMIT_MEMLOCK is 65536 bytes"
		page := os.Getpagesize()
		for _, c := range []struct {
			name string
			err  error
			says string
		}{
			{"beyond the limit", register(0, 128<<10, 0), fmt.Sprintf("raise it to %d or more", 128<<10)},
			{"beyond it for a page's sake", register(100, 64<<10, 0), fmt.Sprintf("raise it to %d or more", 64<<10+page)},
			{"within it", register(0, 64<<10, 0), other},
			{"on demand", register(0, 128<<10, verbs.OnDemand), other},
			{"dma-buf", func() error { _, err := pd.RegisterDMABuf(0, 0, address(m), 128<<10, 0); return err }(), other},
			{"completion queue", func() error { _, err := d.CreateCQ(8, nil); return err }(), limit},
			{"shared queue", func() error { _, err := pd.CreateSRQ(8, 0); return err }(), limit},
			{"queue pair", func() error {
				_, err := pd.CreateQP(verbs.QPConfig{Send: cq, Receive: cq, Work: 1})
				return err
			}(), limit},
		} {
			require.ErrorIs(t, c.err, fault.ErrLimit, c.name)
			require.ErrorContains(t, c.err, c.says, c.name)
		}
	})
}

// TestDoubleEvents: a port goes down and comes back, and a shared queue runs short.
func TestDoubleEvents(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"PORT": "down_after:2"}, func(t *testing.T) {
		a, b := pair(t, config{})
		mine, theirs := a.register(t, memory(t, 4096), verbs.LocalWrite), b.register(t, memory(t, 4096), verbs.LocalWrite|verbs.Remote)
		for range 2 {
			require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, 64)))
		}
		require.ErrorIs(t, a.do(t, work(verbs.Write, mine, theirs, 64)), fault.ErrPeerLost)
		next := func(want verbs.EventType) verbs.Event {
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
			defer cancel()
			e, err := a.device.NextEvent(ctx)
			require.NoError(t, err)
			require.Equal(t, want, e.Type, "%v", e)
			return e
		}
		require.Equal(t, 1, next(verbs.EventPortDown).Port)
		p, err := a.device.Port(1)
		require.NoError(t, err)
		require.Equal(t, verbs.PortDown, p.State)
		verbstest.Set(t, "PORT", "up")
		next(verbs.EventPortActive)
		again(t, a, b, config{})
		require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, 64)))

		s, err := b.pd.CreateSRQ(4, 2)
		require.NoError(t, err)
		qp, err := b.pd.CreateQP(verbs.QPConfig{Send: b.cq, Receive: b.cq, Shared: s, Work: 1})
		require.NoError(t, err)
		require.NoError(t, b.qp.Close())
		b.qp = qp
		for range 2 {
			_, err := s.Post(verbs.Receive{Local: theirs.Address(), Length: 64, Key: theirs.LKey()})
			require.NoError(t, err)
		}
		require.NoError(t, a.qp.Reset())
		a.init(t, config{})
		b.init(t, config{})
		connect(t, a, b)
		require.NoError(t, a.do(t, work(verbs.Send, mine, nil, 8)))
		next(verbs.EventSRQLimit)
		require.NoError(t, b.qp.Close())
		b.qp = nil
		require.NoError(t, s.Close())
	})
}

// TestDoubleGlobal: an InfiniBand port that wants global headers gets them.
func TestDoubleGlobal(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"GRH": "1"}, func(t *testing.T) {
		a, b := pair(t, config{})
		mine, theirs := a.register(t, memory(t, 4096), verbs.LocalWrite), b.register(t, memory(t, 4096), verbs.LocalWrite|verbs.Remote)
		require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, 64)))
	})
}

// TestDoubleFailures: calls and work that the double fails are errors that name them, and leave nothing behind.
func TestDoubleFailures(t *testing.T) {
	verbstest.Over(t, nil, func(t *testing.T) {
		d := device(t)
		kinds := []string{"context", "pd", "mr", "qp", "cq", "srq", "channel"}
		count := func() (n []int) {
			for _, k := range kinds {
				n = append(n, verbstest.Count(t, k))
			}
			return n
		}
		pd, err := d.AllocPD()
		require.NoError(t, err)
		cq, err := d.CreateCQ(8, nil)
		require.NoError(t, err)
		m := memory(t, 4096)
		before := count()
		for call, do := range map[string]func() error{
			"open_device":         func() error { _, err := verbs.Open(d.Name()); return err },
			"alloc_pd":            func() error { _, err := d.AllocPD(); return err },
			"reg_mr":              func() error { _, err := pd.Register(address(m), len(m), 0); return err },
			"create_cq":           func() error { _, err := d.CreateCQ(8, nil); return err },
			"create_comp_channel": func() error { _, err := d.CreateChannel(); return err },
			"create_srq":          func() error { _, err := pd.CreateSRQ(8, 2); return err },
			"modify_srq":          func() error { _, err := pd.CreateSRQ(8, 2); return err },
			"create_qp": func() error {
				_, err := pd.CreateQP(verbs.QPConfig{Send: cq, Receive: cq, Work: 1})
				return err
			},
			"query_port": func() error { _, err := d.Port(1); return err },
		} {
			verbstest.Set(t, "FAIL", call+":1:ENOMEM")
			err := do()
			require.ErrorIs(t, err, fault.ErrLimit, call)
			require.Equal(t, before, count(), call)
		}
		verbstest.Set(t, "FAIL", "")
		require.NoError(t, cq.Close())
		require.NoError(t, pd.Close())

		a, b := pair(t, config{})
		mine, theirs := a.register(t, m, verbs.LocalWrite), b.register(t, m, verbs.LocalWrite|verbs.Remote)
		for status, is := range map[string]error{"RETRY_EXC_ERR": fault.ErrPeerLost, "REM_ACCESS_ERR": fault.ErrStale,
			"RNR_RETRY_EXC_ERR": fault.ErrLimit, "LOC_PROT_ERR": fault.ErrArgument} {
			verbstest.Set(t, "STATUS", "WRITE:1:"+status+":0x1234")
			err := a.do(t, work(verbs.Write, mine, theirs, 64))
			require.ErrorIs(t, err, is)
			require.ErrorContains(t, err, "0x1234")
			again(t, a, b, config{})
		}
		verbstest.Set(t, "STATUS", "")
		require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, 64)))

		for _, errno := range []syscall.Errno{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
			require.NoError(t, a.qp.Reset())
			a.init(t, config{})
			verbstest.Set(t, "FAIL", fmt.Sprintf("modify_qp:1:%d", errno))
			err := a.qp.Connect(b.address, "b")
			require.ErrorIs(t, err, fault.ErrPeerLost)
			require.ErrorIs(t, err, errno)
			require.ErrorContains(t, err, "nobody there answers")
		}
		verbstest.Set(t, "FAIL", "")
		again(t, a, b, config{})
		require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, 64)))
	})
}

// TestDoubleKept: an object that the library failed to destroy still exists, is counted, and closes later.
func TestDoubleKept(t *testing.T) {
	verbstest.Over(t, nil, func(t *testing.T) {
		d, pd, channel, cq, srq, qp, mr := oneOfEach(t)
		for _, c := range []struct {
			call  string
			close func() error
			use   func() error
		}{
			{"destroy_qp", qp.Close, func() error { _, err := qp.State(); return err }},
			{"dereg_mr", mr.Close, func() error { return nil }},
			{"destroy_srq", srq.Close, func() error { _, err := srq.Post(verbs.Receive{}); return err }},
			{"destroy_cq", cq.Close, func() error { return cq.Notify(false) }},
			{"destroy_comp_channel", channel.Close, func() error {
				ctx, cancel := context.WithCancelCause(t.Context())
				cancel(nil)
				if err := channel.Wait(ctx); !errors.Is(err, context.Canceled) {
					return fmt.Errorf("wait: %w", err)
				}
				return nil
			}},
			{"dealloc_pd", pd.Close, func() error { _, err := d.PKey(1, 0); return err }},
			{"close_device", d.Close, func() error { _, err := d.Port(1); return err }},
		} {
			verbstest.Set(t, "FAIL", c.call+":1:EIO")
			require.ErrorIs(t, c.close(), syscall.EIO, c.call)
			require.NoError(t, c.use(), c.call)
			require.NoError(t, c.close(), c.call)
			require.ErrorIs(t, c.close(), fault.ErrClosed, c.call)
		}
	})
}

// TestDoubleWithout: if the library lacks a function, calls that need it say so, and all others work.
func TestDoubleWithout(t *testing.T) {
	t.Run("needed", func(t *testing.T) {
		verbstest.Over(t, verbstest.Knobs{"WITHOUT": "_ibv_query_gid_table"}, func(t *testing.T) {
			require.ErrorIs(t, verbs.Have().Err, hw.ErrNotSupported)
			require.ErrorContains(t, verbs.Have().Err, "_ibv_query_gid_table")
		})
	})
	t.Run("not needed", func(t *testing.T) {
		verbstest.Over(t, verbstest.Knobs{"WITHOUT": "ibv_reg_dmabuf_mr,ibv_query_qp_data_in_order"}, func(t *testing.T) {
			a, _ := pair(t, config{})
			require.False(t, a.device.Limits().DMABuf)
			require.False(t, a.qp.InOrder(verbs.Write))
			_, err := a.pd.RegisterDMABuf(0, 0, 0x1000, 4096, verbs.LocalWrite)
			require.ErrorIs(t, err, hw.ErrNotSupported)
		})
	})
	t.Run("no device", func(t *testing.T) {
		verbstest.Over(t, verbstest.Knobs{"DEVICES": "0"}, func(t *testing.T) {
			require.ErrorIs(t, verbs.Have().Err, hw.ErrNotSupported)
		})
	})
}
