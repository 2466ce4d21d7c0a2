//go:build cgo

package mr_test

import (
	"log/slog"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/fdtrace"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// TestDouble runs the other tests over the double.
func TestDouble(t *testing.T) {
	skip := "-test.skip=^TestDouble"
	if _, err := exec.LookPath("strace"); err != nil {
		t.Logf("without TestHitCalls: %v", err)
		skip += "|^TestHitCalls$"
	}
	for name, knobs := range map[string]verbstest.Knobs{
		"one NIC":                     {"DEVICES": "1"},
		"three NICs on Ethernet":      {"DEVICES": "3", "LINK": "Ethernet"},
		"keys that come back at once": {"DEVICES": "2", "TAGS": "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := verbstest.Again(t, knobs, "-test.run=^Test", skip)
			require.NotContains(t, out, "--- SKIP")
			require.Contains(t, out, "--- PASS: TestKeyRecurs")
		})
	}
}

// left counts the double's objects that a backend makes.
func left(t testing.TB) []int {
	t.Helper()
	var n []int
	for _, what := range []string{"context", "pd", "mr", "pinned"} {
		n = append(n, verbstest.Count(t, what))
	}
	return n
}

var nothing = []int{0, 0, 0, 0}

// TestDoubleFailures: if a NIC fails, the others keep nothing, and the error has its name and its own error.
func TestDoubleFailures(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"DEVICES": "3"}, func(t *testing.T) {
		var kept []register.Memory
		b, err := mr.Open(mr.Config{Keep: func(m register.Memory) { kept = append(kept, m) }})
		require.NoError(t, err)
		require.Len(t, b.NICs(), 3)
		m, _ := memory(t, 8192)
		idle := left(t)
		for i, name := range []string{"double0", "double1", "double2"} {
			fail := func(errno string) { verbstest.Set(t, "FAIL", "reg_mr:"+string(rune('1'+i))+":"+errno) }
			for errno, is := range map[string]error{"ENOMEM": fault.ErrLimit, "EIO": unix.EIO, "EOPNOTSUPP": fault.ErrNotSupported} {
				fail(errno)
				_, err := b.Register(m)
				require.ErrorIs(t, err, is)
				require.ErrorContains(t, err, "RDMA device "+name+", "+string(rune('1'+i))+" of 3")
				require.Equal(t, idle, left(t), "%s on %s", errno, name)
				fail(errno)
				_, err = b.Exact(m, m.Base, 10, 0)
				require.ErrorIs(t, err, is)
				require.Equal(t, idle, left(t), "%s on %s", errno, name)
			}
		}
		verbstest.Set(t, "FAIL", "reg_mr:3:ENOMEM,dereg_mr:1:EBUSY")
		_, err = b.Register(m)
		require.ErrorIs(t, err, fault.ErrLimit)
		require.ErrorContains(t, err, "with room for 4194304 regions")
		require.ErrorContains(t, err, "RDMA device double0, 1 of 3: ibv_dereg_mr")
		require.Equal(t, 1, verbstest.Count(t, "mr"), "of the NIC that did not let go")
		require.Equal(t, []register.Memory{m}, kept)

		verbstest.Set(t, "FAIL", "")
		r := registered(t, b, m)
		verbstest.Set(t, "FAIL", "dereg_mr:2:EBUSY")
		err = b.Deregister(m, r)
		require.ErrorIs(t, err, unix.EBUSY)
		require.ErrorContains(t, err, "RDMA device double1, 2 of 3")
		require.Equal(t, 2, verbstest.Count(t, "mr"))
		require.Equal(t, []register.Memory{m, m}, kept)
		require.ErrorIs(t, b.Valid(r.Token()), fault.ErrStale)

		require.NoError(t, b.Close(), "the NICs let go now")
		require.Equal(t, nothing, left(t))
	})
}

// TestDoubleStubborn: Close reports a region that a NIC never deregisters, and no other NIC is affected.
func TestDoubleStubborn(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"DEVICES": "2"}, func(t *testing.T) {
		b, err := mr.Open(mr.Config{})
		require.NoError(t, err)
		m, _ := memory(t, 4096)
		r := registered(t, b, m)
		verbstest.Set(t, "FAIL", "dereg_mr:1:EBUSY")
		require.Error(t, b.Deregister(m, r))
		verbstest.Set(t, "FAIL", "dereg_mr:*:EBUSY")
		err = b.Close()
		require.ErrorIs(t, err, unix.EBUSY)
		require.ErrorContains(t, err, "double0")
		require.NotContains(t, err.Error(), "double1")
		require.Equal(t, []int{1, 1, 1, 4096}, left(t))
		fdtrace.Forget() // what reads the device's events stays with the device
	})
}

// TestDoubleClosing: closing a registration reports the failure of each backend, NET's first.
func TestDoubleClosing(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"DEVICES": "2"}, func(t *testing.T) {
		b := open(t, mr.Config{})
		m, _ := memory(t, 4096)
		c := cache(t, &other{kind: register.IPC, late: unix.EIO}, &other{kind: register.COLLNET, late: unix.ENXIO}, b,
			&other{kind: register.NVLS, late: unix.EPERM})
		ref, err := c.Register(m, m.Base, 10)
		require.NoError(t, err)
		verbstest.Set(t, "FAIL", "dereg_mr:1:EBUSY")
		err = ref.Close()
		require.Regexp(t, `(?s)^NET could not deregister .* double0, 1 of 2.*\nNVLS could not.*\nCOLLNET could not.*\nIPC could not`,
			err.Error())
		require.EqualValues(t, 1, c.Stats().NET.Failures)
		require.NoError(t, c.Close())
	})
}

// TestDoubleOpening: if one device fails to open, none stays open.
func TestDoubleOpening(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"DEVICES": "3"}, func(t *testing.T) {
		for _, fail := range []string{"open_device:2:EACCES", "alloc_pd:2:ENOMEM", "query_port:2:EIO"} {
			verbstest.Set(t, "FAIL", fail)
			_, err := mr.Open(mr.Config{})
			require.Error(t, err, fail)
			require.Regexp(t, `RDMA device double[12], which UBCOLL_IB_HCA=\^=double[12] would leave out`, err.Error())
			require.Equal(t, nothing, left(t), fail)
		}
	})
}

// TestDoubleSelection: the NICs are the selected devices with an active port, by name.
func TestDoubleSelection(t *testing.T) {
	for name, c := range map[string]struct {
		port, list string
		want       []string
		says       string
	}{
		"all":         {"up", "", []string{"double0", "double1", "double2"}, ""},
		"one":         {"up", "=double1", []string{"double1"}, ""},
		"a port":      {"up", "double:1", []string{"double0", "double1", "double2"}, ""},
		"not one":     {"up", "^double1", []string{"double0", "double2"}, ""},
		"a port down": {"double1=down", "", []string{"double0", "double2"}, ""},
		"all down":    {"down", "", nil, "double0:1 is down, double1:1 is down, double2:1 is down"},
		"none":        {"up", "mlx5", nil, "double0 is not selected"},
		"no port":     {"up", "double:2", nil, "double0:1 is not selected"},
	} {
		t.Run(name, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"DEVICES": "3", "PORT": c.port}, func(t *testing.T) {
				b, err := mr.Open(mr.Config{Select: selection(t, c.list)})
				if c.want == nil {
					require.ErrorIs(t, err, fault.ErrNotSupported)
					require.ErrorContains(t, err, c.says)
					require.Equal(t, nothing, left(t))
					return
				}
				require.NoError(t, err)
				var names []string
				for _, n := range b.NICs() {
					names = append(names, n.Device.Name())
					require.Equal(t, []int{1}, n.Ports)
				}
				require.Equal(t, c.want, names)
				require.NoError(t, b.Close())
				require.Equal(t, nothing, left(t))
			})
		})
	}
}

// TestDoubleNearest: of the selected devices with an active port the nearest ones are opened, up to MostNICs, and no other is.
func TestDoubleNearest(t *testing.T) {
	for name, c := range map[string]struct {
		far        map[string]int
		port, list string
		want       []string
	}{
		"two of two sockets":     {map[string]int{"double0": 21, "double1": 10, "double2": 21, "double3": 10}, "up", "=double0,double1,double2,double3", []string{"double1", "double3"}},
		"the near one is down":   {map[string]int{"double0": 21, "double1": 10, "double2": 21}, "double1=down", "=double0,double1,double2", []string{"double0", "double2"}},
		"the near one is not it": {map[string]int{"double0": 21, "double1": 10, "double2": 31}, "up", "=double0,double2", []string{"double0"}},
		"all alike":              {nil, "up", "", []string{"double0", "double1", "double2", "double3"}},
		"by name":                {map[string]int{"double4": 10, "double0": 10, "double2": 10, "double1": 11, "double3": 11}, "up", "", []string{"double0", "double2", "double4"}},
	} {
		t.Run(name, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"DEVICES": "5", "PORT": c.port}, func(t *testing.T) {
				defer mr.SetDistance(func(name string) int { return c.far[name] })()
				b, err := mr.Open(mr.Config{Select: selection(t, c.list)})
				require.NoError(t, err)
				require.Equal(t, c.want, names(b))
				require.LessOrEqual(t, verbstest.Count(t, "context"), mr.MostNICs)
				require.NoError(t, b.Close())
				require.Equal(t, nothing, left(t))
			})
		})
	}
}

// TestDoubleAtomics: a NIC without atomics can still register.
func TestDoubleAtomics(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"ATOMICS": "0"}, func(t *testing.T) {
		b := open(t, mr.Config{})
		m, _ := memory(t, 4096)
		r := registered(t, b, m)
		_, err := r.For(verbs.LocalWrite | verbs.RemoteWrite)
		require.NoError(t, err)
		_, err = r.For(verbs.RemoteAtomic)
		require.ErrorIs(t, err, mr.ErrAccess)
		require.ErrorContains(t, err, "double0 lacks REMOTE_ATOMIC, since it has no atomics")
		require.NoError(t, b.Deregister(m, r))
	})
}

// TestDoubleLimit: memory beyond the NICs' limit fails by the limit's name, is logged once, and works on where another
// backend has it all.
func TestDoubleLimit(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"DEVICES": "2", "MEMLOCK": "65536"}, func(t *testing.T) {
		log, said := testkit.Logs(slog.LevelWarn)
		b := open(t, mr.Config{Log: log})
		c := cache(t, b, &other{kind: register.IPC})
		small, _ := memory(t, 16384)
		large, _ := memory(t, 40960) // on both NICs
		more, _ := memory(t, 40960)
		for _, m := range []register.Memory{small, large, more} {
			ref, err := c.Register(m, m.Base, m.Bytes)
			require.NoError(t, err)
			defer func() { require.NoError(t, ref.Close()) }()
		}
		require.Equal(t, []any{register.BackendStats{Complete: 1, Registered: 1, Failures: 2}, register.BackendStats{Complete: 3, Registered: 3}},
			[]any{c.Stats().NET, c.Stats().IPC})
		text := c.Explain(large.Base, 1)
		require.Contains(t, text, "NET failed: RDMA device double0, 1 of 2")
		require.Contains(t, text, "the system has no memory, or the device no room, for it")
		require.Contains(t, text, "IPC complete")
		require.Equal(t, 32768, verbstest.Count(t, "pinned"))
		require.Regexp(t, `^[^\n]*the RDMA devices cannot have registered memory[^\n]*cannot allocate memory[^\n]*\n$`, said.String(), "once")

		alone := cache(t, b)
		_, err := alone.Register(more, more.Base, 1)
		require.ErrorIs(t, err, fault.ErrLimit, "nobody else has it")
		require.ErrorContains(t, err, "40960 bytes")
	})
}

// TestDoubleDMABuf: device memory is registered by a descriptor, which is then closed.
func TestDoubleDMABuf(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"DEVICES": "2", "DMABUF": "1"}, func(t *testing.T) {
		b := open(t, mr.Config{})
		m, _, g, fd := onGPU(t, 4*4096) // its addresses are not used
		b.UseGPU(g)
		open := testkit.Descriptors(t)
		r := registered(t, b, m)
		e := export(t, b, m, 8192+10, 100, all)
		require.Equal(t, []int{2, open}, []int{g.asked, testkit.Descriptors(t)})
		require.Equal(t, []int{4, 0}, []int{verbstest.Count(t, "mr"), verbstest.Count(t, "pinned")})
		for i := range b.NICs() {
			p := newPeer(t, b, i)
			p.local[0] = byte(10 + i)
			require.NoError(t, p.do(t, verbs.Write, r.Token(), 100+i, 1))
			require.NoError(t, p.do(t, verbs.Write, e.Token(), i, 1))
		}
		got := make([]byte, 2)
		for _, at := range []int64{4096 + 100, 4096 + 8192 + 10} {
			_, err := unix.Pread(fd, got, at)
			require.NoError(t, err)
			require.Equal(t, []byte{10, 11}, got)
		}
		require.NoError(t, e.Close())
		require.NoError(t, b.Deregister(m, r))
	})
}

// TestDoubleFromEnv: if there is no device, or it cannot be opened, auto goes on, and on fails.
func TestDoubleFromEnv(t *testing.T) {
	for name, c := range map[string]struct {
		devices, fail, says string
		is                  error
		aloud               bool
	}{
		"none":         {"0", "", "no RDMA device", fault.ErrNotSupported, false},
		"no way to it": {"1", "open_device:*:EACCES", "/dev/infiniband", unix.EACCES, true},
	} {
		t.Run(name, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"DEVICES": c.devices, "FAIL": c.fail}, func(t *testing.T) {
				log, said := testkit.Logs(slog.LevelInfo)
				t.Setenv("UBCOLL_IB", "auto")
				t.Setenv("UBCOLL_REQUIRE", "")
				b, absent, err := mr.FromEnv(log, true, "", "", nil)
				require.NoError(t, err)
				require.Nil(t, b)
				require.ErrorIs(t, absent, c.is)
				require.ErrorContains(t, absent, c.says)
				require.Equal(t, c.aloud, said.String() != "", said)
				t.Setenv("UBCOLL_IB", "on")
				b, _, err = mr.FromEnv(log, true, "", "", nil)
				require.Nil(t, b)
				require.ErrorIs(t, err, c.is)
				require.ErrorContains(t, err, "UBCOLL_IB=on: ")
				require.ErrorContains(t, err, c.says)
				t.Setenv("UBCOLL_IB", "auto")
				b, _, err = mr.FromEnv(log, true, "verbs", "", nil)
				require.Nil(t, b)
				require.ErrorIs(t, err, c.is)
				require.ErrorContains(t, err, "Options.Net is verbs: ")
				t.Setenv("UBCOLL_REQUIRE", "verbs")
				b, _, err = mr.FromEnv(log, true, "", "", nil)
				require.Nil(t, b)
				require.ErrorIs(t, err, c.is)
				require.ErrorContains(t, err, "UBCOLL_REQUIRE lists verbs: ")
			})
		})
	}
}
