package ipc

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/register"
)

// ways runs a test through /proc and through the socket.
func ways(t *testing.T, f func(t *testing.T)) {
	t.Run("proc", f)
	t.Run("socket", func(t *testing.T) {
		viaSocket(t)
		f(t)
	})
}

func TestOneProcess(t *testing.T) {
	ways(t, func(t *testing.T) {
		a, b := newRank(t, false, secret), newRank(t, false, secret)
		x := b.alloc(t, 10000, "of b")
		p := a.attach(t, b.card(t))
		require.Same(t, p, a.attach(t, b.card(t)), "communicators share it")
		require.Equal(t, "of b", read(t, p, x.At, 4))
		ptr, err := p.Resolve(x.At.Add(100), 9900)
		require.NoError(t, err)
		require.NotEqual(t, unsafe.Add(x.Ptr, 100), ptr, "ranks map each other, as processes do")
		*(*byte)(ptr) = 'w'
		require.Equal(t, byte('w'), unsafe.Slice((*byte)(x.Ptr), 101)[100])

		require.True(t, p.Live(x.At))
		require.NoError(t, b.heap.Retire(x))
		require.False(t, p.Live(x.At), "its generation is over")
		y := b.alloc(t, 10000, "later")
		require.Equal(t, x.At.Offset, y.At.Offset)
		require.False(t, p.Live(x.At))
		require.True(t, p.Live(y.At))
		require.Equal(t, "later", read(t, p, y.At, 5))
		require.NoError(t, p.Close())
		require.Equal(t, "later", read(t, p, y.At, 5), "the mappings are the domain's")
	})
}

func TestTwoProcesses(t *testing.T) {
	ways(t, func(t *testing.T) {
		before := measure(t)
		a := newRank(t, false, secret)
		c, r := startPeer(t, nil)
		p := a.attach(t, r.Card)
		require.Equal(t, "first", read(t, p, r.At, 5))
		r = c.tell(t, "alloc 8388608 on-demand") // too large for the first arena; no doorbell rings
		require.Equal(t, uint32(1), r.At.Arena)
		require.Equal(t, "on-demand", read(t, p, r.At, 9))
		c.tell(t, "attach "+string(a.card(t)))
		r = c.tell(t, "alloc 67108864 background")
		require.Equal(t, uint32(2), r.At.Arena)
		testkit.Eventually(t, func() bool { return p.imported() == 3 })
		require.Equal(t, "background", read(t, p, r.At, 10))
		require.True(t, p.Live(r.At))
		c.tell(t, "free")
		require.False(t, p.Live(r.At))

		require.NoError(t, c.Cmd.Process.Kill())
		c.Cmd.Wait()
		require.Equal(t, string(make([]byte, 10)), read(t, p, r.At, 10), "what is mapped stays, without its memory")
		if !avoidProc.Load() {
			late := newRank(t, false, secret)
			_, err := late.Attach(context.Background(), r.Card)
			require.ErrorIs(t, err, fault.ErrPeerLost)
			late.close()
		}
		a.close()
		testkit.Eventually(t, func() bool { return measure(t).mappings == before.mappings })
	})
}

// A peer that is killed loses its descriptors and its socket some time before the system tells that it has ended. An
// import that fails meanwhile says that the peer is lost.
func TestImportFromADyingPeer(t *testing.T) {
	ways(t, func(t *testing.T) {
		a := newRank(t, false, secret)
		c, r := startPeer(t, nil)
		m := a.attach(t, r.Card)
		r = c.tell(t, "alloc 134217728 large") // which the system needs long to free; no doorbell rings
		require.NoError(t, c.Cmd.Process.Kill())
		testkit.Eventually(t, func() bool {
			f, err := m.fetch(context.Background(), m.card.Directory)
			if err == nil {
				return f.Close() != nil
			}
			require.ErrorIs(t, err, fault.ErrPeerLost)
			require.NotErrorIs(t, err, fault.ErrNotSupported)
			return true
		})
		_, err := m.Resolve(r.At, 5)
		require.ErrorIs(t, err, fault.ErrPeerLost)
	})
}

func TestNewArenaInTheBackground(t *testing.T) {
	a, b := newRank(t, false, secret), newRank(t, false, secret)
	p := a.attach(t, b.card(t))
	b.attach(t, a.card(t))
	require.Zero(t, p.imported())
	for i := range 3 {
		x := b.alloc(t, 4<<20<<i, "new")
		require.Equal(t, uint32(i), x.At.Arena)
		testkit.Eventually(t, func() bool { return p.imported() == i+1 })
		require.Equal(t, "new", read(t, p, x.At, 3))
	}
	// Nothing must fill their page tables: that would use processors of ranks that run operations.
	time.Sleep(50 * time.Millisecond)
	last := (*p.arenas.Load())[2]
	require.Less(t, testkit.ResidentKiB(t, last.base), 1<<10, "of %d bytes", last.size)
}

// Waiting makes progress: a rank without its importer imports while it waits.
func TestProgress(t *testing.T) {
	a, b := newRank(t, false, secret), newRank(t, false, secret)
	p := a.attach(t, b.card(t))
	b.attach(t, a.card(t))
	stopImporter(a)
	b.alloc(t, 1, "new")
	require.Zero(t, p.imported())
	a.Progress()
	require.Equal(t, 1, p.imported())
}

// stopImporter ends the background goroutine as Close does.
func stopImporter(r *rank) {
	bell := &r.heap.Directory().Doorbell
	r.closed.Store(true)
	bell.Add(1)
	shm.FutexWake((*uint32)(unsafe.Pointer(bell)))
	<-r.done
	r.closed.Store(false)
}

func TestResolveRefused(t *testing.T) {
	a, b := newRank(t, false, secret), newRank(t, false, secret)
	x := b.alloc(t, 4<<20, "")
	p := a.attach(t, b.card(t))
	const size = 4 << 20
	for _, c := range []struct {
		name string
		l    mem.Location
		n    int
		ok   bool
	}{
		{"all", x.At, size, true},
		{"the last byte", x.At.Add(size - 1), 1, true},
		{"nothing at the end", x.At.Add(size), 0, true},
		{"one too many", x.At, size + 1, false},
		{"beyond the end", x.At.Add(size - 1), 2, false},
		{"at the end", x.At.Add(size), 1, false},
		{"an offset that wraps around", x.At.Add(math.MaxUint64), 1, false},
		{"an offset that is negative as an int", x.At.Add(1 << 63), 0, false},
		{"a huge length", x.At.Add(1), math.MaxInt, false},
		{"a negative length", x.At, -1, false},
		{"an arena that is none", mem.Location{Arena: 1}, 1, false},
		{"an arena beyond the directory", mem.Location{Arena: mem.MaxArenas}, 1, false},
		{"the last arena number", mem.Location{Arena: math.MaxUint32}, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ptr, err := p.Resolve(c.l, c.n)
			if !c.ok {
				require.ErrorIs(t, err, fault.ErrStale)
				require.Nil(t, ptr)
				return
			}
			require.NoError(t, err)
			require.Equal(t, unsafe.Add((*p.arenas.Load())[0].base, c.l.Offset), ptr)
		})
	}
}

// FuzzResolve checks that no location from a peer yields an address outside the peer's arenas.
func FuzzResolve(f *testing.F) {
	f.Add(uint32(0), uint32(0), uint64(1), uint64(0), 1)
	f.Add(uint32(1), uint32(1), uint64(2), uint64(8<<20-1), 1)
	f.Add(uint32(2), uint32(9), uint64(2), uint64(8<<20), math.MaxInt)
	f.Add(uint32(1), uint32(0), uint64(2), uint64(1)<<63, -1)
	f.Add(uint32(0), uint32(0), uint64(0), uint64(math.MaxUint64), math.MinInt)
	a, b, g := newRank(f, false, secret), newRank(f, false, secret), newRank(f, true, secret)
	for i := range 2 {
		b.alloc(f, 4<<20<<i, "")
	}
	own := g.alloc(f, 5000, "")
	p, q := a.attach(f, b.card(f)), a.attach(f, g.card(f))
	f.Fuzz(func(t *testing.T, arena, slot uint32, generation, offset uint64, n int) {
		l := mem.Location{Arena: arena, Slot: slot, Generation: generation, Offset: offset}
		ptr, err := p.Resolve(l, n)
		p.Live(l)
		if err == nil {
			in := (*p.arenas.Load())[arena]
			from := uintptr(ptr) - uintptr(in.base)
			require.True(t, n >= 0 && uintptr(ptr) >= uintptr(in.base) && from <= uintptr(in.size) &&
				uintptr(n) <= uintptr(in.size)-from, "%+v, %d bytes", l, n)
		} else {
			require.ErrorIs(t, err, fault.ErrStale)
		}
		if ptr, err = q.Resolve(l, n); err == nil {
			from := uintptr(ptr) - own.Base()
			require.True(t, slot == own.At.Slot && generation == own.At.Generation && uintptr(ptr) >= own.Base() &&
				from+uintptr(n) <= 8192, "%+v, %d bytes", l, n)
		}
	})
}

func TestGoHeap(t *testing.T) {
	before := measure(t)
	a, b := newRank(t, true, secret), newRank(t, true, secret)
	x := b.alloc(t, 100, "shared")
	p := a.attach(t, b.card(t))
	ptr, err := p.Resolve(x.At, 100)
	require.NoError(t, err)
	require.Equal(t, x.Ptr, ptr)
	require.True(t, p.Live(x.At))
	require.NoError(t, b.heap.Retire(x))
	require.False(t, p.Live(x.At))
	_, err = p.Resolve(x.At, 100)
	require.ErrorIs(t, err, fault.ErrStale)
	testkit.Eventually(t, func() bool { return measure(t).descriptors == before.descriptors })

	gone := newRank(t, true, secret)
	card := gone.card(t)
	gone.close()
	_, err = a.Attach(context.Background(), card)
	require.ErrorIs(t, err, fault.ErrStale)
	a.Progress()
}

func TestAttachRefused(t *testing.T) {
	before := measure(t)
	a, b, closed := newRank(t, false, secret), newRank(t, false, secret), newRank(t, false, secret)
	gone := closed.card(t)
	closed.close()
	var good card
	require.NoError(t, json.Unmarshal(b.card(t), &good))
	was := measure(t)
	with := func(change func(*card)) json.RawMessage {
		k := good
		change(&k)
		raw, err := json.Marshal(k)
		require.NoError(t, err)
		return raw
	}
	for _, c := range []struct {
		name string
		card json.RawMessage
		want error // nil: any error
	}{
		{"no card", nil, nil},
		{"garbage", json.RawMessage(`{"domain": "x"`), nil},
		{"another domain", with(func(k *card) { k.Domain++ }), fault.ErrStale},
		{"another inode", with(func(k *card) { k.Directory.Inode++ }), fault.ErrStale},
		{"another descriptor", with(func(k *card) { k.Directory.FD = 0 }), fault.ErrStale},
		{"another size", with(func(k *card) { k.Directory.Size -= shm.PageSize }), fault.ErrStale},
		{"an earlier process", with(func(k *card) { k.Process.Start--; k.Directory.Process.Start-- }), fault.ErrPeerLost},
		{"two processes", with(func(k *card) { k.Process.PID++ }), fault.ErrStale},
		{"a rank that has closed", gone, fault.ErrStale},
		{"a Go-heap domain elsewhere", with(func(k *card) { k.Directory = shm.Ref{} }), fault.ErrStale},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := a.Attach(context.Background(), c.card)
			require.Error(t, err)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
			requireFoot(t, was)
		})
	}
	a.attach(t, b.card(t)) // the failures must not have spoiled it
	a.close()
	_, err := a.Attach(context.Background(), b.card(t))
	require.ErrorIs(t, err, fault.ErrClosed)
	b.close()
	testkit.Eventually(t, func() bool { return measure(t).descriptors == before.descriptors })
}

// An arena that its owner has released has nothing for peers that have not imported it. Later arenas are imported.
func TestReleasedArena(t *testing.T) {
	ways(t, func(t *testing.T) {
		a, b := newRank(t, false, secret), newRank(t, false, secret)
		early := a.attach(t, b.card(t))
		a.importAll() // b has not attached a: no doorbell rings
		b.alloc(t, 1, "")
		gone := b.alloc(t, 32<<20, "gone")
		require.Equal(t, "gone", read(t, early, gone.At, 4))
		require.NoError(t, b.heap.Retire(gone))
		kept := b.alloc(t, 32<<20, "kept")
		require.NotEqual(t, gone.At.Arena, kept.At.Arena)
		late := newRank(t, false, secret).attach(t, b.card(t))
		for _, p := range []*peer{early, late} {
			require.Equal(t, "kept", read(t, p, kept.At, 4))
			require.False(t, p.Live(gone.At))
		}
		require.Equal(t, string(make([]byte, 4)), read(t, early, gone.At, 4), "its mapping stays, without memory")
		_, err := late.Resolve(gone.At, 1)
		require.ErrorIs(t, err, fault.ErrStale)
	})
}

// A peer writes its own directory, so everything in it is checked.
func TestForgedDirectory(t *testing.T) {
	for _, c := range []struct {
		name  string
		forge func(size, inode, fd *uint64)
	}{
		{"half a page", func(size, _, _ *uint64) { *size -= 100 }},
		{"larger than the file", func(size, _, _ *uint64) { *size *= 2 }},
		{"smaller than the file", func(size, _, _ *uint64) { *size /= 2 }},
		{"a negative size", func(size, _, _ *uint64) { *size = 1 << 63 }},
		{"the largest size", func(size, _, _ *uint64) { *size = math.MaxInt }},
		{"another inode", func(_, inode, _ *uint64) { *inode++ }},
		{"no descriptor", func(_, _, fd *uint64) { *fd = math.MaxUint64 }},
		{"standard input", func(_, _, fd *uint64) { *fd = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newRank(t, false, secret), newRank(t, false, secret)
			p := a.attach(t, b.card(t))
			a.importAll()
			x := b.alloc(t, 1, "") // b has not attached a: nothing is imported yet
			self, err := shm.Self()
			require.NoError(t, err)
			ref := b.heap.Directory().Arena(0, self)
			size, inode, fd := entry(t, b.heap.Directory(), ref)
			c.forge(size, inode, fd)
			was := measure(t)
			_, err = p.Resolve(x.At, 1)
			require.ErrorIs(t, err, fault.ErrStale)
			_, err = newRank(t, false, secret).Attach(context.Background(), b.card(t))
			require.ErrorIs(t, err, fault.ErrStale)
			require.Equal(t, was.mappings+1, measure(t).mappings, "one more rank's own directory")
		})
	}
}

// entry finds the words of the directory that name r.
func entry(t *testing.T, d *mem.Directory, r shm.Ref) (size, inode, fd *uint64) {
	t.Helper()
	words := unsafe.Slice((*uint64)(unsafe.Pointer(d)), 1024)
	for i := range words[:1000] {
		if words[i] == uint64(r.FD) && words[i+1] == r.Inode && words[i+2] == uint64(r.Size) {
			return &words[i+2], &words[i+1], &words[i]
		}
	}
	require.Fail(t, "the arena is not in the directory")
	return nil, nil, nil
}

func TestBackend(t *testing.T) {
	a := newRank(t, false, secret)
	x := a.alloc(t, 5000, "")
	foreign, err := shm.Reserve(shm.PageSize)
	require.NoError(t, err)
	defer shm.Unmap(foreign, shm.PageSize)
	y, err := a.heap.Adopt(foreign, shm.PageSize, nil)
	require.NoError(t, err)
	of := func(x *mem.Allocation) register.Memory {
		return register.Memory{Generation: x.At.Generation, Base: x.Base(), Bytes: x.Bytes}
	}
	require.Equal(t, register.IPC, a.Kind())
	state, err := a.Register(of(x))
	require.NoError(t, err)
	require.Equal(t, x.At, state)
	require.NoError(t, a.Deregister(of(x), state))
	_, err = a.Register(of(y))
	require.ErrorIs(t, err, fault.ErrNotSupported)
	old := of(x)
	require.NoError(t, a.heap.Retire(x))
	_, err = a.Register(old)
	require.ErrorIs(t, err, fault.ErrStale)
	z := of(a.alloc(t, 5000, ""))
	z.Generation--
	_, err = a.Register(z)
	require.ErrorIs(t, err, fault.ErrStale)
}

// Ranks publish, import and resolve all at once.
func TestConcurrent(t *testing.T) {
	ranks := []*rank{newRank(t, false, secret), newRank(t, false, secret), newRank(t, false, secret)}
	for _, r := range ranks {
		for _, o := range ranks {
			if r != o {
				r.attach(t, o.card(t))
			}
		}
	}
	var wg sync.WaitGroup
	for i, r := range ranks {
		wg.Go(func() {
			for k := range 40 {
				text := fmt.Sprintf("rank %d round %02d", i, k)
				a, err := r.heap.Alloc(600 << 10)
				if err != nil {
					t.Error(err)
					return
				}
				copy(unsafe.Slice((*byte)(a.Ptr), 100), text)
				for j, o := range ranks {
					if j == i {
						continue
					}
					o.mu.Lock()
					p := o.peers[r.heap.Domain]
					o.mu.Unlock()
					ptr, err := p.Resolve(a.At, len(text))
					if err != nil {
						t.Error(err)
					} else if got := string(unsafe.Slice((*byte)(ptr), len(text))); got != text {
						t.Errorf("rank %d reads %q, not %q", j, got, text)
					}
					o.Progress()
				}
				if k%3 > 0 {
					if err := r.heap.Retire(a); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestNothingIsLeft(t *testing.T) {
	round := func() {
		a, b := newRank(t, false, secret), newRank(t, false, secret)
		x := b.alloc(t, 5<<20, "x")
		require.Equal(t, "x", read(t, a.attach(t, b.card(t)), x.At, 1))
		b.attach(t, a.card(t))
		a.close()
		b.close()
	}
	round()
	before := measure(t)
	for range 20 {
		round()
	}
	viaSocket(t)
	for range 20 {
		round()
	}
	requireFoot(t, before)
	// TestMain looks for goroutines.
}

// nobody is another user that this process may switch to.
func nobody(t *testing.T) *syscall.SysProcAttr {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process of another user")
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}}
}

func TestAnotherUser(t *testing.T) {
	t.Run("comes to us", func(t *testing.T) {
		attr := nobody(t)
		a := newRank(t, false, secret)
		was := measure(t)
		cmd := testkit.Child("stranger")
		cmd.Dir = "/"
		cmd.SysProcAttr = attr
		cmd.Stdin = strings.NewReader(string(a.card(t)))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "permission denied; over its socket: user 0, not 65534: permission denied")
		testkit.Eventually(t, func() bool { return measure(t).descriptors == was.descriptors })
	})
	t.Run("is who we go to", func(t *testing.T) {
		_, r := startPeer(t, nobody(t))
		a := newRank(t, false, secret)
		viaSocket(t) // root may open everything through /proc
		_, err := a.Attach(context.Background(), r.Card)
		require.ErrorIs(t, err, os.ErrPermission)
		require.ErrorContains(t, err, "user 65534, not 0")
	})
}
