//go:build nvls && linux && cgo && (amd64 || arm64)

package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func init() { children["multicast"] = childMulticast }

// multicastGPUs returns n devices of the emulated driver. Nothing here runs on another one.
func multicastGPUs(t testing.TB, n int) []*cuda.Context {
	t.Helper()
	if cuda.Have().Err == nil && !cuda.MulticastEmulated() {
		t.Skip("not over the emulated driver")
	}
	return gpus(t, n)
}

const grain = 2 << 20

// member is a rank of a team.
type member struct {
	c    *cuda.Context
	m    *cuda.Multicast
	mem  cuda.Allocation
	own  cuda.Addr // of mem
	size int
	at   cuda.Addr // of m
	undo []func() error
}

func (r *member) later(f func() error) { r.undo = append(r.undo, f) }

// leave goes back, last step first, and tries each step that fails once more.
func (r *member) leave() (err error) {
	for _, f := range slices.Backward(r.undo) {
		if e := f(); e != nil {
			err = errors.Join(err, e, f())
		}
	}
	r.undo = nil
	return err
}

// memory makes n bytes, mapped, for r's device.
func (r *member) memory(n int) (err error) {
	r.size = n
	if r.mem, err = r.c.Create(n); err != nil {
		return err
	}
	r.later(func() error { return r.c.Release(r.mem) })
	p, err := r.c.ReserveAligned(n, grain)
	if err != nil {
		return err
	}
	r.later(func() error { return r.c.Unreserve(p, n) })
	if err := r.c.Map(p, n, r.mem); err != nil {
		return err
	}
	r.later(func() error { return r.c.Unmap(p, n) })
	r.own = p
	return r.c.Access(p, n, r.c.Device())
}

// team goes through the steps of Multicast for all devices, in order. The first half of the memory is bound by its handle,
// the second by its address, so that the halves are exchanged in the object.
func team(cs []*cuda.Context, n int) (all []*member, err error) {
	for _, c := range cs {
		all = append(all, &member{c: c})
	}
	steps := []func(i int, r *member) error{
		func(_ int, r *member) error { return r.memory(n) },
		func(i int, r *member) (err error) {
			if i == 0 {
				r.m, err = r.c.CreateMulticast(len(cs), n)
			} else {
				var fd int
				if fd, err = all[0].m.Export(); err != nil {
					return err
				}
				r.m, err = r.c.ImportMulticast(fd, len(cs), n)
				err = errors.Join(err, unix.Close(fd))
			}
			if r.m != nil {
				r.later(r.m.Close)
			}
			return err
		},
		func(_ int, r *member) error { return r.m.AddDevice() },
		func(_ int, r *member) error {
			err := r.m.Bind(n/2, r.mem, 0, n/2)
			if err == nil {
				r.later(func() error { return r.m.Unbind(n/2, n/2) })
			}
			return err
		},
		func(_ int, r *member) error {
			err := r.m.BindAddr(0, r.own+cuda.Addr(n/2), n/2)
			if err == nil {
				r.later(func() error { return r.m.Unbind(0, n/2) })
			}
			return err
		},
		func(_ int, r *member) (err error) {
			if r.at, err = r.m.Map(); err == nil {
				r.later(r.m.Unmap)
			}
			return err
		},
	}
	for _, step := range steps {
		for i, r := range all {
			if err := step(i, r); err != nil {
				return all, err
			}
		}
	}
	return all, nil
}

func leaveAll(all []*member) (err error) {
	for _, r := range all {
		err = errors.Join(err, r.leave())
	}
	return err
}

const multimemPTX = ".version 8.1\n.target sm_90\n.visible .entry multimem_st() {}\n.visible .entry multimem_ld_reduce() {}\n" +
	".visible .entry add() {}\n"

func multimem(t testing.TB, c *cuda.Context, name string) *cuda.Function {
	m, err := c.LoadModule(multimemPTX)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	k, err := m.Function(name)
	require.NoError(t, err)
	return k
}

type multimemParams struct {
	dst, src cuda.Addr
	n        uint32
}

// What one device stores at the object's address, all have, and what it loads there is the sum.
func TestMulticast(t *testing.T) {
	for n := 2; n <= 8; n++ {
		t.Run(fmt.Sprint(n, " devices"), func(t *testing.T) {
			cs := multicastGPUs(t, n)
			before := emulated.CountOf(t)
			const size = 2 * grain
			all, err := team(cs, size)
			require.NoError(t, err)
			now := emulated.CountOf(t)
			require.Equal(t, [2]int{n, 2 * n}, [2]int{now["multicast"] - before["multicast"], now["bound"] - before["bound"]})
			var streams []*cuda.Stream
			for _, c := range cs {
				streams = append(streams, stream(t, c))
			}
			read := func(i int, at cuda.Addr, bytes int) []byte {
				b := make([]byte, bytes)
				require.NoError(t, streams[i].Download(b, at))
				return b
			}
			for i, r := range all {
				value := byte(i + 1)
				require.NoError(t, streams[i].Fill(r.at, value, size))
				require.NoError(t, streams[i].Fill(r.at+grain-1, value+100, 2)) // across both bindings
				require.NoError(t, streams[i].Sync())
				for j, q := range all {
					got := read(j, q.own, size)
					// The object's first half is the second half of the memory.
					require.Equal(t, []byte{value + 100, value}, []byte{got[0], got[1]}, "device %d", j)
					require.Equal(t, []byte{value, value + 100}, got[size-2:], "device %d", j)
					require.Equal(t, size-2, bytes.Count(got, []byte{value}), "device %d", j)
				}
				require.NoError(t, streams[i].Upload(r.at+grain, []byte{9, 8, 7, 6, value, 0, 0, 0}))
				require.NoError(t, streams[i].Copy(r.at, r.own, 8))
				require.NoError(t, streams[i].Sync())
				for j, q := range all {
					require.Equal(t, []byte{9, 8, 7, 6, value, 0, 0, 0}, read(j, q.own+grain, 8), "device %d", j)
				}
			}
			for i, r := range all { // each device has numbers of its own in its memory
				words := make([]byte, 4096)
				for w := range 1024 {
					words[4*w], words[4*w+1] = byte(w), byte(i+1)
				}
				require.NoError(t, streams[i].Upload(r.own, words))
			}
			launch := cuda.Launch{Grid: 2, Block: 32}
			sum := alloc(t, cs[1], 4096)
			require.NoError(t, multimem(t, cs[1], "multimem_ld_reduce").Launch(streams[1], launch,
				params(multimemParams{sum, all[1].at + grain, 1024})))
			require.NoError(t, multimem(t, cs[1], "multimem_st").Launch(streams[1], launch, params(multimemParams{all[1].at, sum, 1024})))
			require.NoError(t, streams[1].Sync())
			for j, q := range all {
				got := read(j, q.own+grain, 4096)
				for w := range 1024 {
					v := uint32(n*(w&0xff)) + uint32(n*(n+1)/2)<<8
					require.Equal(t, []byte{byte(v), byte(v >> 8), byte(v >> 16), 0}, got[4*w:4*w+4], "device %d, word %d", j, w)
				}
			}
			require.NoError(t, leaveAll(all))
			require.Equal(t, before, emulated.CountOf(t))
		})
	}
}

// Whatever fails, going back leaves nothing.
func TestMulticastFailures(t *testing.T) {
	for _, n := range []int{2, 3, 8} {
		t.Run(fmt.Sprint(n, " devices"), func(t *testing.T) {
			if n == 8 {
				testkit.Long(t)
			}
			cs := multicastGPUs(t, n)
			before := emulated.CountOf(t)
			descriptors := func() int {
				d, err := os.ReadDir("/proc/self/fd")
				require.NoError(t, err)
				return len(d)
			}
			files := descriptors()
			for _, call := range []string{"cuMulticastGetGranularity", "cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem",
				"cuMulticastBindAddr", "cuMulticastUnbind", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
				"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease",
				"cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode"} {
				failures := 0
				for k := 1; ; k++ {
					t.Setenv("UBCOLL_EMULATE_FAIL", fmt.Sprintf("%s:%d=801", call, k))
					all, err := team(cs, 2*grain)
					err = errors.Join(err, leaveAll(all))
					t.Setenv("UBCOLL_EMULATE_FAIL", "")
					require.Equal(t, before, emulated.CountOf(t), "%s, call %d: %v", call, k, err)
					require.Equal(t, files, descriptors(), "%s, call %d", call, k)
					if err == nil {
						break
					}
					require.ErrorIs(t, err, fault.ErrNotSupported, "%s, call %d", call, k)
					failures++
				}
				require.Positive(t, failures, call)
				t.Log(call, failures)
			}
		})
	}
}

// If going back fails as well, the object knows what is left.
func TestMulticastUndone(t *testing.T) {
	for _, fail := range []string{"cuMemSetAccess:1=801,cuMemUnmap:1=801", "cuMemSetAccess:1=801,cuMemAddressFree:1=801",
		"cuMemMap:1=801,cuMemAddressFree:1=801"} {
		t.Run(fail, func(t *testing.T) {
			c := multicastGPUs(t, 1)[0]
			before := emulated.CountOf(t)
			m, err := c.CreateMulticast(1, grain)
			require.NoError(t, err)
			require.NoError(t, m.AddDevice())
			t.Setenv("UBCOLL_EMULATE_FAIL", fail)
			_, err = m.Map()
			require.ErrorIs(t, err, fault.ErrNotSupported)
			t.Setenv("UBCOLL_EMULATE_FAIL", "")
			require.ErrorIs(t, m.Close(), fault.ErrInUse)
			require.ErrorIs(t, testkit.ErrOf(m.Map()), fault.ErrInUse)
			require.NoError(t, m.Unmap())
			require.ErrorIs(t, m.Unmap(), fault.ErrArgument)
			require.NoError(t, m.Close())
			require.NoError(t, m.Close(), "again")
			require.ErrorIs(t, m.AddDevice(), fault.ErrClosed)
			require.Equal(t, before, emulated.CountOf(t))
		})
	}
}

// The rules, as this package refuses them and, where it does not look, as the driver does.
func TestMulticastRules(t *testing.T) {
	type scene struct {
		cs  []*cuda.Context
		all []*member
		m   *cuda.Multicast // of the first rank
	}
	const n = 4 * grain // of the object; half of it is bound
	for _, x := range []struct {
		name  string
		do    func(t *testing.T, s scene) error
		class error
		text  string
	}{
		{"create for more devices than there are", func(t *testing.T, s scene) error {
			return testkit.ErrOf(s.cs[0].CreateMulticast(100, n))
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"create for none", func(t *testing.T, s scene) error { return testkit.ErrOf(s.cs[0].CreateMulticast(0, n)) }, fault.ErrArgument, ""},
		{"create with an odd size", func(t *testing.T, s scene) error {
			return testkit.ErrOf(s.cs[0].CreateMulticast(2, n+4096))
		}, fault.ErrArgument, "no multiple of the granularity, 2097152"},
		{"import of what is none", func(t *testing.T, s scene) error {
			f, err := os.Create(filepath.Join(t.TempDir(), "file"))
			require.NoError(t, err)
			defer f.Close()
			return testkit.ErrOf(s.cs[0].ImportMulticast(int(f.Fd()), 2, n))
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"add twice", func(t *testing.T, s scene) error { return s.m.AddDevice() }, fault.ErrArgument, "was added before"},
		{"add twice, by another reference", func(t *testing.T, s scene) error {
			fd, err := s.m.Export()
			require.NoError(t, err)
			defer unix.Close(fd)
			m, err := s.cs[0].ImportMulticast(fd, 2, n)
			require.NoError(t, err)
			defer m.Close()
			return m.AddDevice()
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"add one too many", func(t *testing.T, s scene) error {
			fd, err := s.m.Export()
			require.NoError(t, err)
			defer unix.Close(fd)
			m, err := s.cs[2].ImportMulticast(fd, 2, n)
			require.NoError(t, err)
			defer m.Close()
			return m.AddDevice()
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"bind before the device is added", func(t *testing.T, s scene) error {
			m, err := s.cs[0].CreateMulticast(1, n)
			require.NoError(t, err)
			defer m.Close()
			return m.Bind(0, s.all[0].mem, 0, grain)
		}, fault.ErrArgument, "cuda:0 was not added"},
		{"map before the device is added", func(t *testing.T, s scene) error {
			m, err := s.cs[0].CreateMulticast(1, n)
			require.NoError(t, err)
			defer m.Close()
			return testkit.ErrOf(m.Map())
		}, fault.ErrArgument, "cuda:0 was not added"},
		{"bind where something is bound", func(t *testing.T, s scene) error {
			return s.m.Bind(0, s.all[0].mem, 0, grain)
		}, fault.ErrInUse, "memory is bound from 0 to"},
		{"the same, for the driver", func(t *testing.T, s scene) error {
			return s.m.Trust().Bind(grain, s.all[0].mem, 0, grain)
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"bind beyond the object", func(t *testing.T, s scene) error {
			return s.m.Bind(n, s.all[0].mem, 0, grain)
		}, fault.ErrArgument, "multiples of 2097152 fit"},
		{"the same, for the driver", func(t *testing.T, s scene) error {
			return s.m.Trust().Bind(n-grain, s.all[0].mem, 0, 2*grain)
		}, fault.ErrArgument, ""},
		{"bind more than the memory has", func(t *testing.T, s scene) error {
			return s.m.Bind(2*grain, s.all[0].mem, grain, 2*grain)
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"bind at an odd offset", func(t *testing.T, s scene) error {
			return s.m.Bind(3*grain+4096, s.all[0].mem, 0, 4096)
		}, fault.ErrArgument, "multiples of 2097152 fit"},
		{"the same, for the driver", func(t *testing.T, s scene) error {
			return s.m.Trust().Bind(3*grain+4096, s.all[0].mem, 0, 4096)
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"bind from an odd offset", func(t *testing.T, s scene) error {
			return s.m.Trust().Bind(3*grain, s.all[0].mem, 4096, grain)
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"bind an odd address", func(t *testing.T, s scene) error {
			return s.m.BindAddr(3*grain, s.all[0].own+4096, grain)
		}, fault.ErrArgument, "multiples of 2097152 fit"},
		{"bind memory of Alloc", func(t *testing.T, s scene) error {
			p := alloc(t, s.cs[0], 4*grain)
			return s.m.BindAddr(3*grain, (p+grain-1)/grain*grain, grain)
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"bind memory of the host", func(t *testing.T, s scene) error {
			p := cuda.Addr(uintptr(mapping(t, 2*grain)))
			return s.m.BindAddr(3*grain, (p+grain-1)/grain*grain, grain)
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"bind what is not mapped", func(t *testing.T, s scene) error {
			p, err := s.cs[0].ReserveAligned(grain, grain)
			require.NoError(t, err)
			defer s.cs[0].Unreserve(p, grain)
			return s.m.BindAddr(3*grain, p, grain)
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"bind memory of a device that is not in the team", func(t *testing.T, s scene) error {
			r := &member{c: s.cs[2]}
			require.NoError(t, r.memory(grain))
			defer r.leave()
			return s.m.Bind(3*grain, r.mem, 0, grain)
		}, fault.ErrArgument, "INVALID_DEVICE"},
		{"bind the object itself", func(t *testing.T, s scene) error {
			return s.m.BindAddr(3*grain, s.all[0].at, grain)
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"unbind what is not bound", func(t *testing.T, s scene) error { return s.m.Unbind(3*grain, grain) }, fault.ErrArgument, "nothing was bound"},
		{"the same, for the driver", func(t *testing.T, s scene) error { return s.m.Trust().UnbindAny(3*grain, grain) },
			fault.ErrArgument, "INVALID_VALUE"},
		{"unbind a part", func(t *testing.T, s scene) error { return s.m.Trust().UnbindAny(0, grain/2) }, fault.ErrArgument, "INVALID_VALUE"},
		{"map twice", func(t *testing.T, s scene) error { return testkit.ErrOf(s.m.Map()) }, fault.ErrInUse, "mapped already"},
		{"close with memory bound", func(t *testing.T, s scene) error { return s.m.Close() }, fault.ErrInUse, "memory is bound at"},
		{"the same, for the driver", func(t *testing.T, s scene) error {
			require.NoError(t, s.m.Unmap())
			err := s.m.Trust().Close()
			_, mapping := s.m.Map()
			require.NoError(t, mapping)
			return err
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"free memory that is bound", func(t *testing.T, s scene) error {
			r := s.all[0]
			require.NoError(t, r.c.Release(r.mem)) // the mapping is left
			err := r.c.Unmap(r.own, r.size)
			r.mem, _ = r.c.Retain(r.own)
			return err
		}, fault.ErrArgument, "INVALID_VALUE"},
		{"access for a device that is not in the team", func(t *testing.T, s scene) error {
			return s.cs[0].Access(s.all[0].at, n, hw.CUDA(2))
		}, fault.ErrArgument, "INVALID_DEVICE"},
		{"a device without multicast", func(t *testing.T, s scene) error {
			t.Setenv("UBCOLL_EMULATE_MULTICAST", "0")
			return testkit.ErrOf(s.cs[0].CreateMulticast(2, n))
		}, hw.ErrNotSupported, "cuda:0 has no multicast"},
		{"no room in the switches", func(t *testing.T, s scene) error {
			t.Setenv("UBCOLL_EMULATE_FAIL", "cuMulticastBindMem:1=2")
			return s.m.Bind(3*grain, s.all[0].mem, 0, grain)
		}, fault.ErrLimit, "OUT_OF_MEMORY"},
		{"no fabric manager", func(t *testing.T, s scene) error {
			t.Setenv("UBCOLL_EMULATE_FAIL", "cuMulticastBindMem:1=802")
			return s.m.Bind(3*grain, s.all[0].mem, 0, grain)
		}, hw.ErrNotSupported, "SYSTEM_NOT_READY"},
	} {
		t.Run(x.name, func(t *testing.T) {
			cs := multicastGPUs(t, 3)
			before := emulated.CountOf(t)
			var all []*member
			for i, c := range cs[:2] {
				r := &member{c: c}
				all = append(all, r)
				require.NoError(t, r.memory(2*grain))
				if i == 0 {
					m, err := c.CreateMulticast(2, n)
					require.NoError(t, err)
					r.m = m
				} else {
					fd, err := all[0].m.Export()
					require.NoError(t, err)
					r.m, err = c.ImportMulticast(fd, 2, n)
					require.NoError(t, err)
					require.NoError(t, unix.Close(fd))
				}
				r.later(r.m.Close)
				require.NoError(t, r.m.AddDevice())
			}
			for _, r := range all {
				require.NoError(t, r.m.Bind(0, r.mem, 0, 2*grain))
				r.later(func() error { r.m.Trust(); return r.m.UnbindAny(0, 2*grain) })
				at, err := r.m.Map()
				require.NoError(t, err)
				r.at = at
				r.later(r.m.Unmap)
			}
			now := emulated.CountOf(t)
			err := x.do(t, scene{cs, all, all[0].m})
			t.Log(err)
			require.ErrorIs(t, err, x.class)
			require.ErrorContains(t, err, x.text)
			require.Equal(t, now, emulated.CountOf(t), "a call that is refused changes nothing")
			require.NoError(t, leaveAll(all))
			require.Equal(t, before, emulated.CountOf(t))
		})
	}
}

// The granularity may be more than that of memory.
func TestMulticastGranularity(t *testing.T) {
	c := multicastGPUs(t, 1)[0]
	least, best, err := c.MulticastGranularity(1, grain)
	require.NoError(t, err)
	require.Equal(t, [2]int{grain, 2 * grain}, [2]int{least, best})
	t.Setenv("UBCOLL_EMULATE_MULTICAST_GRANULARITY", fmt.Sprint(8*grain))
	require.ErrorIs(t, testkit.ErrOf(c.CreateMulticast(1, grain)), fault.ErrArgument)
	m, err := c.CreateMulticast(1, 8*grain)
	require.NoError(t, err)
	require.NoError(t, m.AddDevice())
	p, err := m.Map()
	require.NoError(t, err)
	require.Zero(t, p%(8*grain))
	require.NoError(t, m.Unmap())
	require.NoError(t, m.Close())
}

// Binding and mapping wait for the other devices.
func TestMulticastWaits(t *testing.T) {
	for _, x := range []string{"bind", "map"} {
		for _, comes := range []bool{true, false} {
			t.Run(fmt.Sprint(x, ", the other comes: ", comes), func(t *testing.T) {
				cs := multicastGPUs(t, 2)
				before := emulated.CountOf(t)
				if !comes {
					t.Setenv("UBCOLL_EMULATE_MULTICAST_WAIT", "30")
				}
				a, b := &member{c: cs[0]}, &member{c: cs[1]}
				require.NoError(t, a.memory(grain))
				var err error
				a.m, err = cs[0].CreateMulticast(2, grain)
				require.NoError(t, err)
				a.later(a.m.Close)
				fd, err := a.m.Export()
				require.NoError(t, err)
				b.m, err = cs[1].ImportMulticast(fd, 2, grain)
				require.NoError(t, err)
				require.NoError(t, unix.Close(fd))
				b.later(b.m.Close)
				require.NoError(t, a.m.AddDevice())
				done := make(chan error, 1)
				go func() {
					if x == "bind" {
						done <- a.m.Bind(0, a.mem, 0, grain)
						return
					}
					_, err := a.m.Map()
					done <- err
				}()
				if !comes {
					require.ErrorContains(t, <-done, "ILLEGAL_STATE")
				} else {
					select {
					case err := <-done:
						require.Fail(t, "it did not wait", "%v", err)
					case <-time.After(20 * time.Millisecond): // gives what should not happen the time to
					}
					require.NoError(t, b.m.AddDevice())
					require.NoError(t, <-done)
					if x == "bind" {
						a.later(func() error { return a.m.Unbind(0, grain) })
					} else {
						a.later(a.m.Unmap)
					}
				}
				require.NoError(t, leaveAll([]*member{a, b}))
				require.Equal(t, before, emulated.CountOf(t))
			})
		}
	}
}

// childMulticast is one rank of a team of processes. A byte from its parent, and one back, are a meeting.
func childMulticast() error {
	file, err := net.FileConn(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	conn := file.(*net.UnixConn)
	var rank, size int
	if _, err := fmt.Sscan(os.Getenv("UBCOLL_TEST_MEMBER"), &rank, &size); err != nil {
		return err
	}
	fd, err := receiveFD(conn)
	if err != nil {
		return err
	}
	meet := func() error {
		if _, err := conn.Write([]byte{1}); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, 1))
		return err
	}
	c, err := cuda.Primary(hw.CUDA(rank))
	if err != nil {
		return err
	}
	s, err := c.NewStream()
	if err != nil {
		return err
	}
	r := &member{c: c}
	if r.m, err = c.ImportMulticast(fd, size, grain); err != nil {
		return err
	}
	got := make([]byte, grain)
	return testkit.InOrder(
		func() error { return unix.Close(fd) },
		func() error { return r.memory(grain) }, r.m.AddDevice, meet,
		func() error { return r.m.Bind(0, r.mem, 0, grain) },
		func() (err error) { r.at, err = r.m.Map(); return }, meet, // all are bound
		meet, // the parent has stored
		func() error { return s.Download(got, r.own) },
		func() error {
			if n := bytes.Count(got, []byte{77}); n != grain {
				return fmt.Errorf("rank %d has %d of %d bytes of what rank 0 stored", rank, n, grain)
			}
			return nil
		},
		meet, // all have looked
		func() error { return s.Fill(r.at+cuda.Addr(rank), byte(rank), 1) }, s.Sync, meet, // all have stored
		meet, // the parent has looked
		r.m.Unmap, func() error { return r.m.Unbind(0, grain) }, r.m.Close, r.leave, s.Close, c.Close)
}

func receiveFD(conn *net.UnixConn) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return -1, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return -1, fmt.Errorf("%d messages: %w", len(msgs), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// A process for each rank: one makes the object, and the others import it.
func TestMulticastProcesses(t *testing.T) {
	for _, n := range []int{2, 3, 8} {
		t.Run(fmt.Sprint(n, " processes"), func(t *testing.T) {
			if n == 8 {
				testkit.Long(t)
			}
			c := multicastGPUs(t, n)[0]
			before := emulated.CountOf(t)
			s := stream(t, c)
			r := &member{c: c}
			require.NoError(t, r.memory(grain))
			var err error
			r.m, err = c.CreateMulticast(n, grain)
			require.NoError(t, err)
			var socks []int
			var outputs []*bytes.Buffer
			var ends []func() error
			for rank := 1; rank < n; rank++ {
				pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				require.NoError(t, err)
				theirs := os.NewFile(uintptr(pair[1]), "theirs")
				cmd := testkit.Child("multicast", testkit.NoSleep, fmt.Sprintf("UBCOLL_TEST_MEMBER=%d %d", rank, n))
				cmd.ExtraFiles = []*os.File{theirs}
				out := new(bytes.Buffer)
				cmd.Stdout, cmd.Stderr = out, out
				require.NoError(t, cmd.Start())
				theirs.Close()
				defer unix.Close(pair[0])
				fd, err := r.m.Export()
				require.NoError(t, err)
				require.NoError(t, unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0))
				require.NoError(t, unix.Close(fd))
				socks, outputs, ends = append(socks, pair[0]), append(outputs, out), append(ends, cmd.Wait)
			}
			meet := func() {
				t.Helper()
				for i, fd := range socks {
					k, err := unix.Read(fd, make([]byte, 1))
					if err != nil || k != 1 {
						ends[i]()
						require.Fail(t, "a child ended", "%d: %v: %s", i+1, err, outputs[i])
					}
				}
				for _, fd := range socks {
					_, err := unix.Write(fd, []byte{1})
					require.NoError(t, err)
				}
			}
			require.NoError(t, r.m.AddDevice())
			meet()
			require.NoError(t, r.m.Bind(0, r.mem, 0, grain))
			r.at, err = r.m.Map()
			require.NoError(t, err)
			meet()
			require.NoError(t, s.Fill(r.at, 77, grain))
			require.NoError(t, s.Sync())
			meet()
			meet()
			meet()
			got, want := make([]byte, grain), bytes.Repeat([]byte{77}, grain)
			for rank := 1; rank < n; rank++ {
				want[rank] = byte(rank)
			}
			require.NoError(t, s.Download(got, r.own))
			require.True(t, bytes.Equal(want, got))
			meet()
			require.NoError(t, r.m.Unmap())
			require.NoError(t, r.m.Unbind(0, grain))
			require.NoError(t, r.m.Close())
			require.NoError(t, r.leave())
			for i, end := range ends {
				require.NoError(t, end(), "%s", outputs[i])
			}
			require.Equal(t, before, emulated.CountOf(t))
		})
	}
}

// A driver that is not the emulated one is asked for nothing unless two variables say so.
func TestMulticastFake(t *testing.T) {
	if os.Getenv("UBCOLL_TEST_LIBRARY") == "" {
		for _, x := range []struct {
			name string
			env  []string
			want string
		}{
			{"unset", []string{"UBCOLL_NVLS="}, "multicast is off unless UBCOLL_NVLS=on: not supported"},
			{"off", []string{"UBCOLL_NVLS=off"}, "multicast is off unless UBCOLL_NVLS=on: not supported"},
			{"wrong", []string{"UBCOLL_NVLS=perhaps"}, `UBCOLL_NVLS="perhaps": want one of off, on: invalid argument`},
		} {
			t.Run(x.name, func(t *testing.T) {
				log := filepath.Join(t.TempDir(), "log")
				out := other(t, fakeDriver(t), append(x.env, "UBCOLL_TEST_FAKE_LOG="+log, "UBCOLL_TEST_FAKE_DEVICES=2"),
					"-test.run=^TestMulticastFake$", "-test.v")
				require.Contains(t, out, "--- PASS: TestMulticastFake")
				require.Contains(t, out, "create: "+x.want+"\n")
				b, err := os.ReadFile(log)
				require.NoError(t, err)
				require.Contains(t, string(b), "cuDeviceGetCount")
				require.NotContains(t, string(b), "cuMulticast")
			})
		}
		return
	}
	c, err := cuda.Primary(hw.CUDA(0))
	require.NoError(t, err)
	require.False(t, cuda.MulticastEmulated())
	for name, err := range map[string]error{"create": testkit.ErrOf(c.CreateMulticast(2, grain)),
		"import": testkit.ErrOf(c.ImportMulticast(0, 2, grain))} {
		require.Error(t, err, name)
		fmt.Println(strings.TrimSpace(name + ": " + err.Error()))
	}
	_, _, err = c.MulticastGranularity(2, grain)
	require.Equal(t, cuda.HaveMulticast().Err, err)
}
