package shm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func create(t *testing.T, n int) *shm.File {
	t.Helper()
	f, err := shm.Create("test", n)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func mapAll(t *testing.T, f *shm.File, populate bool) []byte {
	t.Helper()
	p, err := f.Map(0, f.Size(), populate)
	require.NoError(t, err)
	t.Cleanup(func() { shm.Unmap(p, f.Size()) })
	return unsafe.Slice((*byte)(p), f.Size())
}

func TestCreate(t *testing.T) {
	page := shm.PageSize
	for _, c := range []struct {
		name    string
		n, size int
	}{
		{"one byte", 1, page}, {"a page", page, page}, {"a page and a byte", page + 1, 2 * page}, {"a MiB", 1 << 20, 1 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := create(t, c.n)
			require.Equal(t, c.size, f.Size())
			var st unix.Stat_t
			require.NoError(t, unix.Fstat(f.FD(), &st))
			require.Equal(t, int64(c.size), st.Size)
			require.GreaterOrEqual(t, st.Blocks*512, st.Size, "its pages must be allocated")
			require.Equal(t, st.Ino, f.Ref().Inode)
			require.Equal(t, os.Getpid(), f.Ref().Process.PID)
			require.Equal(t, make([]byte, c.size), mapAll(t, f, true))
		})
	}
	for _, n := range []int{0, -1, math.MinInt} {
		t.Run(fmt.Sprint("refused ", n), func(t *testing.T) {
			_, err := shm.Create("test", n)
			require.ErrorIs(t, err, fault.ErrArgument)
		})
	}
}

func TestSeals(t *testing.T) {
	f := create(t, 4*shm.PageSize)
	size := int64(f.Size())
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.FD()), unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(again)
	for _, fd := range []int{f.FD(), again} {
		for _, n := range []int64{0, size - 1, size + 1, 2 * size} {
			require.Equal(t, unix.EPERM, unix.Ftruncate(fd, n), "ftruncate to %d", n)
		}
		require.Equal(t, unix.EPERM, unix.Fallocate(fd, 0, 0, size+1), "growth")
		_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
		require.Equal(t, unix.EPERM, err, "further seals")
	}
	flags, err := unix.FcntlInt(uintptr(f.FD()), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC, "programs that the user starts must not inherit it")
}

// Two mappings, made through two descriptors, show the same memory.
func TestOpen(t *testing.T) {
	f := create(t, 3*shm.PageSize)
	g, err := shm.Open(f.Ref())
	require.NoError(t, err)
	defer g.Close()
	require.NotEqual(t, f.FD(), g.FD())
	a, b := mapAll(t, f, false), mapAll(t, g, true)
	copy(a[shm.PageSize:], "written by one")
	require.Equal(t, a, b)
	copy(b[len(b)-9:], "and other")
	require.Equal(t, a, b)
}

func TestOpenOfAnotherProcess(t *testing.T) {
	c := testkit.Start(t, testkit.Child("own"))
	var r shm.Ref
	c.Read(t, &r)
	require.Equal(t, c.Cmd.Process.Pid, r.Process.PID)
	require.NoError(t, r.Process.Check(), "whatever the process calls itself")
	f, err := shm.Open(r)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, r, f.Ref())
	mine := mapAll(t, f, true)
	require.Equal(t, "from the child", string(mine[:14]))

	require.NoError(t, c.Cmd.Process.Kill())
	c.Cmd.Wait()
	require.Equal(t, "from the child", string(mine[:14]), "a mapping outlives its maker")
	require.ErrorIs(t, r.Process.Check(), fault.ErrPeerLost)
	_, err = shm.Open(r)
	require.ErrorIs(t, err, fault.ErrPeerLost)
	_, err = new(shm.Watch).Add(r.Process)
	require.ErrorIs(t, err, fault.ErrPeerLost)
}

// A process that is killed loses its descriptors some time before the system tells that it has ended.
func TestOpenOfAnEndingProcess(t *testing.T) {
	for range testkit.Often(50) {
		c := testkit.Start(t, testkit.Child("large"))
		var r shm.Ref
		c.Read(t, &r)
		require.NoError(t, c.Cmd.Process.Kill())
		testkit.Eventually(t, func() bool {
			f, err := shm.Open(r)
			if err == nil {
				return f.Close() != nil
			}
			require.ErrorIs(t, err, fault.ErrPeerLost)
			return true
		})
	}
}

// This one stays in that state.
func TestOpenOfAHeadlessProcess(t *testing.T) {
	c := testkit.Start(t, testkit.Child("headless"))
	var r shm.Ref
	c.Read(t, &r)
	_, err := shm.Open(r)
	require.ErrorIs(t, err, fault.ErrPeerLost)
	require.ErrorIs(t, r.Process.Check(), fault.ErrPeerLost)
}

func TestOpenRefused(t *testing.T) {
	c := testkit.Start(t, testkit.Child("own"))
	var childs shm.Ref
	c.Read(t, &childs)
	f, other, closed := create(t, shm.PageSize), create(t, shm.PageSize), create(t, shm.PageSize)
	require.NoError(t, closed.Close())
	good := f.Ref()

	unsealed, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	half, err := unix.MemfdCreate("half", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	_, err = unix.FcntlInt(uintptr(half), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	require.NoError(t, err)
	disk, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	require.NoError(t, err)
	dir, err := os.Open(".")
	require.NoError(t, err)
	program, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	pipe, pipeIn, err := os.Pipe()
	require.NoError(t, err)
	defer func() {
		for _, fd := range []int{unsealed, half, pair[0], pair[1]} {
			unix.Close(fd)
		}
		for _, f := range []*os.File{disk, dir, program, pipe, pipeIn} {
			f.Close()
		}
	}()
	// as returns a Ref of descriptor fd in which only the kind of file is wrong.
	as := func(fd int) shm.Ref {
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(fd, &st))
		return shm.Ref{Process: good.Process, FD: fd, Inode: st.Ino, Size: int(st.Size)}
	}
	with := func(change func(*shm.Ref)) shm.Ref { r := good; change(&r); return r }

	for _, k := range []struct {
		name string
		ref  shm.Ref
		want error
	}{
		{"another inode", with(func(r *shm.Ref) { r.Inode++ }), fault.ErrStale},
		{"another descriptor", with(func(r *shm.Ref) { r.FD = other.FD() }), fault.ErrStale},
		{"a closed descriptor", closed.Ref(), fault.ErrStale},
		{"a negative descriptor", with(func(r *shm.Ref) { r.FD = -1 }), fault.ErrStale},
		{"a huge descriptor", with(func(r *shm.Ref) { r.FD = math.MaxInt }), fault.ErrStale},
		{"a smaller size", with(func(r *shm.Ref) { r.Size -= shm.PageSize }), fault.ErrStale},
		{"a larger size", with(func(r *shm.Ref) { r.Size += shm.PageSize }), fault.ErrStale},
		{"a negative size", with(func(r *shm.Ref) { r.Size = -r.Size }), fault.ErrStale},
		{"another start time", with(func(r *shm.Ref) { r.Process.Start++ }), fault.ErrPeerLost},
		{"another process", with(func(r *shm.Ref) { r.Process = childs.Process }), fault.ErrStale},
		{"another process' file", with(func(r *shm.Ref) { r.Process, r.FD = childs.Process, childs.FD }), fault.ErrStale},
		{"no such process", with(func(r *shm.Ref) { r.Process.PID = 1 << 30 }), fault.ErrPeerLost},
		{"process 0", with(func(r *shm.Ref) { r.Process.PID = 0 }), fault.ErrPeerLost},
		{"a negative process", with(func(r *shm.Ref) { r.Process.PID *= -1 }), fault.ErrPeerLost},
		{"nothing", shm.Ref{}, fault.ErrPeerLost},
		{"an unsealed memory file", as(unsealed), fault.ErrStale},
		{"a half sealed memory file", as(half), fault.ErrStale},
		{"a file on disk", as(int(disk.Fd())), fault.ErrStale},
		{"a folder", as(int(dir.Fd())), fault.ErrStale},
		{"the running program", as(int(program.Fd())), nil}, // busy, or not writable for us
		{"a socket", as(pair[0]), fault.ErrStale},
		{"a pipe", as(int(pipe.Fd())), fault.ErrStale},
	} {
		t.Run(k.name, func(t *testing.T) {
			before := testkit.Descriptors(t)
			_, err := shm.Open(k.ref)
			require.Error(t, err)
			if k.want != nil {
				require.ErrorIs(t, err, k.want)
			}
			require.Equal(t, before, testkit.Descriptors(t))
		})
	}
}

// Adopt checks what Open checks, and closes the descriptors that it refuses.
func TestAdopt(t *testing.T) {
	f, other := create(t, 1), create(t, 1)
	before := testkit.Descriptors(t)
	dup := func(f *shm.File) int {
		fd, err := unix.FcntlInt(uintptr(f.FD()), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		return fd
	}
	g, err := shm.Adopt(dup(f), f.Ref())
	require.NoError(t, err)
	copy(mapAll(t, f, true), "x")
	require.Equal(t, "x", string(mapAll(t, g, true)[:1]))
	require.NoError(t, g.Close())
	_, err = shm.Adopt(dup(other), f.Ref())
	require.ErrorIs(t, err, fault.ErrStale)
	_, err = shm.Adopt(-1, f.Ref())
	require.ErrorIs(t, err, unix.EBADF)
	require.Equal(t, before, testkit.Descriptors(t))
}

func TestMapRange(t *testing.T) {
	page := shm.PageSize
	f := create(t, 4*page)
	copy(mapAll(t, f, false)[2*page:], "third page")
	for _, c := range []struct {
		name   string
		off, n int
		ok     bool
	}{
		{"all", 0, 4 * page, true},
		{"the third page", 2 * page, page, true},
		{"nothing", 0, 0, false},
		{"beyond", 0, 5 * page, false},
		{"at the end", 4 * page, page, false},
		{"far beyond", math.MaxInt &^ (page - 1), page, false},
		{"too long", page, math.MaxInt &^ (page - 1), false},
		{"negative offset", -page, page, false},
		{"negative length", page, -page, false},
		{"half a page in", page / 2, page, false},
		{"half a page", 0, page / 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := f.Map(c.off, c.n, true)
			if !c.ok {
				require.ErrorIs(t, err, fault.ErrArgument)
				require.ErrorIs(t, f.MapAt(nil, c.off, c.n), fault.ErrArgument)
				return
			}
			require.NoError(t, err)
			defer shm.Unmap(p, c.n)
			require.Equal(t, "third page", string(unsafe.Slice((*byte)(p), c.n)[2*page-c.off:][:10]))
		})
	}
}

func TestReserve(t *testing.T) {
	page := shm.PageSize
	f := create(t, 2*page)
	copy(mapAll(t, f, false)[page:], "second page")
	base, err := shm.Reserve(8 * page)
	require.NoError(t, err)
	at := func(i int) unsafe.Pointer { return unsafe.Add(base, i*page) }
	for i := range 8 {
		require.True(t, testkit.Faults(at(i)), "page %d", i)
	}
	require.NoError(t, f.MapAt(at(3), 0, 2*page))
	for i := range 8 {
		require.Equal(t, i != 3 && i != 4, testkit.Faults(at(i)), "page %d", i)
	}
	require.Equal(t, "second page", string(unsafe.Slice((*byte)(at(4)), 11)))
	require.NoError(t, shm.Retire(at(3), page))
	require.True(t, testkit.Faults(at(3)))
	require.Equal(t, "second page", string(unsafe.Slice((*byte)(at(4)), 11)), "the neighbour stays")
	require.NoError(t, shm.Retire(at(4), page))
	for i := range 8 {
		require.True(t, testkit.Faults(at(i)), "page %d", i)
	}
	require.NoError(t, shm.Unmap(base, 8*page))
	_, err = shm.Reserve(1 << 60)
	require.ErrorIs(t, err, fault.ErrLimit)
}

func TestPopulate(t *testing.T) {
	const size = 1 << 20
	f := create(t, size)
	eager, err := f.Map(0, size, true)
	require.NoError(t, err)
	defer shm.Unmap(eager, size)
	require.Equal(t, size>>10, testkit.ResidentKiB(t, eager))
	lazy, err := f.Map(0, size, false)
	require.NoError(t, err)
	defer shm.Unmap(lazy, size)
	require.Zero(t, testkit.ResidentKiB(t, lazy))
	copy(unsafe.Slice((*byte)(eager), size), "kept")
	shm.Populate(lazy, size/2)
	require.Equal(t, size>>11, testkit.ResidentKiB(t, lazy))
	require.Equal(t, "kept", string(unsafe.Slice((*byte)(lazy), 4)))
}

func TestWatch(t *testing.T) {
	first, second := testkit.Start(t, testkit.Child("own")), testkit.Start(t, testkit.Child("own"))
	var a, b shm.Ref
	first.Read(t, &a)
	second.Read(t, &b)
	before := testkit.Descriptors(t)
	var w shm.Watch
	one, err := w.Add(a.Process)
	require.NoError(t, err)
	two, err := w.Add(b.Process)
	require.NoError(t, err)
	again, err := w.Add(a.Process)
	require.NoError(t, err)
	require.Same(t, one, again)
	require.Equal(t, before+2, testkit.Descriptors(t))
	for range 100 {
		w.Look()
		require.False(t, one.Dead() || two.Dead())
	}
	require.NoError(t, first.Cmd.Process.Kill())
	// Not waited for yet: for its peers, a zombie is dead.
	testkit.Eventually(t, func() bool { w.Look(); return one.Dead() })
	first.Cmd.Wait()
	w.Look()
	require.True(t, one.Dead(), "and stays so")
	require.False(t, two.Dead())
	require.NoError(t, second.Cmd.Process.Kill())
	testkit.Eventually(t, func() bool { w.Look(); return two.Dead() })
	require.NoError(t, w.Close())
	w.Look()
	_, err = w.Add(a.Process)
	require.ErrorIs(t, err, fault.ErrClosed)

	self, err := shm.Self()
	require.NoError(t, err)
	for name, k := range map[string]struct {
		change func(p *shm.Process)
		want   error
	}{
		"another start":     {func(p *shm.Process) { p.Start++ }, fault.ErrPeerLost},
		"another namespace": {func(p *shm.Process) { p.Namespace++ }, os.ErrPermission},
	} {
		other := self
		k.change(&other)
		_, err = new(shm.Watch).Add(other)
		require.ErrorIs(t, err, k.want, name)
		require.ErrorIs(t, other.Check(), k.want, name)
	}
	self.Namespace++
	_, err = shm.Open(shm.Ref{Process: self})
	require.ErrorIs(t, err, os.ErrPermission)
	require.LessOrEqual(t, testkit.Descriptors(t), before)
}

// A descriptor that a process makes of itself serves peers that cannot see the process.
func TestWatchAdopt(t *testing.T) {
	before := testkit.Descriptors(t)
	var w shm.Watch
	fd, err := shm.OwnPIDFD()
	require.NoError(t, err)
	hidden := shm.Process{PID: 1, Namespace: 1}
	one, err := w.Adopt(hidden, fd)
	require.NoError(t, err)
	fd, err = shm.OwnPIDFD()
	require.NoError(t, err)
	again, err := w.Adopt(hidden, fd)
	require.NoError(t, err)
	require.Same(t, one, again, "and the second descriptor is closed")
	require.Equal(t, before+1, testkit.Descriptors(t))
	w.Look()
	require.False(t, one.Dead())
	_, err = w.Adopt(shm.Process{PID: 2}, 1<<20)
	require.Error(t, err, "no descriptor")
	require.NoError(t, w.Close())
	require.Equal(t, before, testkit.Descriptors(t))
}

func TestFutex(t *testing.T) {
	f := create(t, 1)
	a, b := mapAll(t, f, true), mapAll(t, f, true)
	here, there := (*uint32)(unsafe.Pointer(&a[0])), (*uint32)(unsafe.Pointer(&b[0]))

	t.Run("returns when the word differs", func(t *testing.T) {
		start := time.Now()
		shm.FutexWait(here, 1, int64(2*testkit.Limit))
		require.Less(t, time.Since(start), testkit.Limit)
	})
	t.Run("returns when time is up", func(t *testing.T) {
		start := time.Now()
		shm.FutexWait(here, 0, int64(20*time.Millisecond))
		require.GreaterOrEqual(t, time.Since(start), 10*time.Millisecond)
		require.Less(t, time.Since(start), testkit.Limit)
	})
	t.Run("wakes all, through another mapping", func(t *testing.T) {
		const sleepers = 4
		done := make(chan time.Duration, sleepers)
		for range sleepers {
			go func() {
				start := time.Now()
				for atomic.LoadUint32(here) == 0 {
					shm.FutexWait(here, 0, int64(2*testkit.Limit))
				}
				done <- time.Since(start)
			}()
		}
		time.Sleep(20 * time.Millisecond)
		atomic.StoreUint32(there, 1)
		shm.FutexWake(there)
		for range sleepers {
			require.Less(t, <-done, testkit.Limit)
		}
	})
	t.Run("wakes another process", func(t *testing.T) {
		atomic.StoreUint32(here, 0)
		c := testkit.Start(t, testkit.Child("sleep"))
		require.NoError(t, json.NewEncoder(c.In).Encode(f.Ref()))
		var ready string
		c.Read(t, &ready)
		time.Sleep(20 * time.Millisecond)
		atomic.StoreUint32(here, 1)
		shm.FutexWake(here)
		var slept time.Duration
		c.Read(t, &slept)
		require.Less(t, slept, testkit.Limit)
	})
}

func TestLimits(t *testing.T) {
	t.Run("descriptors", func(t *testing.T) { testkit.RunChild(t, "nofile") })
	t.Run("file size", func(t *testing.T) { testkit.RunChild(t, "fsize") })
	t.Run("memory", func(t *testing.T) { testkit.RunChild(t, "nomemory") })
}

func TestHostID(t *testing.T) {
	a, err := shm.HostID()
	require.NoError(t, err)
	b, err := shm.HostID()
	require.NoError(t, err)
	require.Equal(t, a, b)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	name, err := os.Hostname()
	require.NoError(t, err)
	net, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	require.Equal(t, name+"/"+string(bytes.TrimSpace(boot))+"/"+net, a)
}

func TestGroup(t *testing.T) {
	mine := shm.Group()
	t.Logf("%q", mine)
	child := func(session bool) string {
		cmd := testkit.Child("group")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Equal(t, mine, child(false))
	// A process that is older than any session has no group, even where the kernel groups sessions.
	enabled, err := os.ReadFile("/proc/sys/kernel/sched_autogroup_enabled")
	if err == nil && string(bytes.TrimSpace(enabled)) == "1" {
		require.NotEqual(t, mine, child(true), "a session's own")
	} else {
		require.Equal(t, "", mine)
		require.Equal(t, "", child(true))
	}
	shm.Nap()
}

func TestHave(t *testing.T) {
	require.NoError(t, shm.Have().Err)
}

func TestNothingIsLeft(t *testing.T) {
	before := testkit.Descriptors(t)
	for range 1000 {
		f, err := shm.Create("round", 1)
		require.NoError(t, err)
		g, err := shm.Open(f.Ref())
		require.NoError(t, err)
		p, err := g.Map(0, g.Size(), true)
		require.NoError(t, err)
		require.NoError(t, shm.Unmap(p, g.Size()))
		require.NoError(t, g.Close())
		require.NoError(t, f.Close())
	}
	require.Equal(t, before, testkit.Descriptors(t))
	left, err := filepath.Glob("/dev/shm/ubcoll*")
	require.NoError(t, err)
	require.Empty(t, left)
}
