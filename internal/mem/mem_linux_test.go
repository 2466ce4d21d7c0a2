package mem

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestAlloc(t *testing.T) {
	modes(t, func(t *testing.T, goHeap bool) {
		h := newHeap(t, goHeap)
		for _, n := range []int{1, 2, 4095, 4096, 4097, 1 << 20, 5 << 20} {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				a := alloc(t, h, n)
				require.Equal(t, n, a.Bytes)
				require.Zero(t, a.Base()%uintptr(shm.PageSize), "page-aligned")
				require.True(t, a.Live())
				require.Same(t, h, a.Heap())
				require.Equal(t, Arena, a.Origin)
				require.True(t, h.Directory().Live(a.At))
				b := bytesOf(a)
				require.Equal(t, make([]byte, n), b)
				b[0], b[n-1] = 1, 2
				require.Same(t, a, h.Lookup(a.Base(), n))
				require.NoError(t, h.Retire(a))
				require.False(t, a.Live())
				require.Nil(t, h.Lookup(a.Base(), n))
				require.False(t, h.Directory().Live(a.At))
				require.ErrorIs(t, h.Retire(a), fault.ErrClosed)
			})
		}
		for _, n := range []int{0, -1, math.MinInt} {
			_, err := h.Alloc(n)
			require.ErrorIs(t, err, fault.ErrArgument, "%d bytes", n)
		}
		for _, n := range []int{1<<46 + 1, math.MaxInt} {
			_, err := h.Alloc(n)
			require.ErrorIs(t, err, fault.ErrLimit, "%d bytes", n)
		}
		s := h.Stats()
		require.Zero(t, s.Allocations)
		require.Zero(t, s.LiveBytes)
	})
}

func TestContains(t *testing.T) {
	a := &Allocation{Ptr: unsafe.Pointer(new([4096]byte)), Bytes: 100}
	for _, c := range []struct {
		name   string
		off, n int
		want   bool
	}{
		{"all", 0, 100, true}, {"first", 0, 1, true}, {"last", 99, 1, true}, {"nothing at the end", 100, 0, true},
		{"beyond", 99, 2, false}, {"after", 100, 1, false}, {"before", -1, 1, false}, {"too long", 0, 101, false},
		{"negative", 1, -1, false}, {"huge", 1, math.MaxInt, false}, {"far", 1 << 40, 0, false},
	} {
		require.Equal(t, c.want, a.Contains(a.Base()+uintptr(c.off), c.n), c.name)
	}
	runtime.KeepAlive(a)
}

// A new allocation must not show data of an earlier one, and an earlier view must not show the new one.
func TestStaleViewFaults(t *testing.T) {
	h := newHeap(t, false)
	a := alloc(t, h, 3*shm.PageSize)
	bytesOf(a)[0], bytesOf(a)[2*shm.PageSize] = 1, 2
	for i := range 3 {
		require.False(t, testkit.Faults(unsafe.Add(a.Ptr, i*shm.PageSize)))
	}
	require.NoError(t, h.Retire(a))
	b := alloc(t, h, 3*shm.PageSize)
	require.Equal(t, a.At.Offset, b.At.Offset, "the memory is used again")
	require.NotEqual(t, a.Base(), b.Base(), "the address is not")
	require.NotEqual(t, a.At.Generation, b.At.Generation)
	require.False(t, h.Directory().Live(a.At))
	require.True(t, h.Directory().Live(b.At))
	require.Equal(t, make([]byte, b.Bytes), bytesOf(b))
	for i := range 3 {
		require.True(t, testkit.Faults(unsafe.Add(a.Ptr, i*shm.PageSize)))
		require.False(t, testkit.Faults(unsafe.Add(b.Ptr, i*shm.PageSize)))
	}
}

func TestClose(t *testing.T) {
	alloc(t, newHeap(t, false), 1) // what the first allocation costs for good
	before, space := measure(t), testkit.Status("VmSize")
	h, err := New(77, false)
	require.NoError(t, err)
	dir := h.DirectoryRef()
	small, big, freed := alloc(t, h, 1), alloc(t, h, 40<<20), alloc(t, h, 10)
	require.NoError(t, h.Retire(freed))
	during := measure(t)
	require.Greater(t, during.descriptors, before.descriptors)
	require.Greater(t, during.shared, before.shared)
	require.Greater(t, testkit.Status("VmSize"), space+windowSize-1)

	require.NoError(t, h.Close())
	for _, a := range []*Allocation{small, big, freed} {
		require.True(t, testkit.Faults(a.Ptr))
		require.False(t, h.Directory().Live(a.At))
	}
	after := measure(t)
	require.Equal(t, before.descriptors, after.descriptors)
	require.Equal(t, before.shared, after.shared)
	require.Less(t, testkit.Status("VmSize"), space+1<<30)

	require.ErrorIs(t, h.Close(), fault.ErrClosed)
	_, err = h.Alloc(1)
	require.ErrorIs(t, err, fault.ErrClosed)
	_, err = h.Adopt(unsafe.Pointer(new(int)), 8, nil)
	require.ErrorIs(t, err, fault.ErrClosed)
	require.Nil(t, h.File(dir), "no descriptor is handed out any more")
	require.False(t, small.Live(), "what was left ended with the heap")
	require.ErrorIs(t, h.Retire(small), fault.ErrClosed)
}

func TestOffsetsAreReused(t *testing.T) {
	h := newHeap(t, false)
	var grew int
	h.OnArena(func() { grew++ })
	for i := range 200 {
		a := alloc(t, h, 1<<20+i)
		require.NoError(t, h.Retire(a))
	}
	require.Equal(t, 1, h.Stats().Arenas)
	require.Equal(t, 1, grew, "peers are told of new arenas only")
	// Holes are merged again, in whatever order they were made.
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 2, 1, 3}, {1, 3, 0, 2}, {1, 2, 3, 0}} {
		var as []*Allocation
		for range 4 {
			as = append(as, alloc(t, h, 1<<20))
		}
		for _, i := range order {
			require.NoError(t, h.Retire(as[i]))
		}
		require.Equal(t, spans{{0, firstArena}}, h.arenas[0].free, "%v", order)
	}
	require.Equal(t, 1, h.Stats().Arenas)
	require.Equal(t, int64(firstArena), h.Stats().ArenaBytes)
}

func TestAdopt(t *testing.T) {
	modes(t, func(t *testing.T, goHeap bool) {
		h := newHeap(t, goHeap)
		foreign, err := shm.Reserve(16 * shm.PageSize)
		require.NoError(t, err)
		defer shm.Unmap(foreign, 16*shm.PageSize)
		at := func(n int) unsafe.Pointer { return unsafe.Add(foreign, n) }

		own := alloc(t, h, 100)
		a, err := h.Adopt(at(1000), 1000, nil) // needs no alignment
		require.NoError(t, err)
		require.Equal(t, Adopted, a.Origin)
		require.Equal(t, "adopted", a.Origin.String())
		require.Same(t, a, h.Lookup(a.Base()+999, 1))
		require.Nil(t, h.Lookup(a.Base()-1, 2))
		require.NotEqual(t, own.At.Slot, a.At.Slot)
		for _, c := range []struct {
			name string
			p    unsafe.Pointer
			n    int
			want error
		}{
			{"nil", nil, 1, fault.ErrArgument},
			{"nothing", at(0), 0, fault.ErrArgument},
			{"negative", at(0), -1, fault.ErrArgument},
			{"around the end of the address space", at(0), math.MaxInt, fault.ErrInUse},
			{"the same", at(1000), 1000, fault.ErrInUse},
			{"its first byte", at(1000), 1, fault.ErrInUse},
			{"its last byte", at(1999), 1, fault.ErrInUse},
			{"from before into it", at(0), 1001, fault.ErrInUse},
			{"from it to after", at(1999), 2, fault.ErrInUse},
			{"around it", at(0), 4000, fault.ErrInUse},
			{"memory of this heap", own.Ptr, 10, fault.ErrInUse},
			{"before it", at(0), 1000, nil},
			{"after it", at(2000), 1000, nil},
		} {
			t.Run(c.name, func(t *testing.T) {
				live := h.Stats().Allocations
				b, err := h.Adopt(c.p, c.n, nil)
				if c.want != nil {
					require.ErrorIs(t, err, c.want)
					require.Equal(t, live, h.Stats().Allocations)
					return
				}
				require.NoError(t, err)
				require.NoError(t, h.Retire(b))
			})
		}
		require.NoError(t, h.Retire(a))
		require.Nil(t, h.Lookup(a.Base(), 1))
		b, err := h.Adopt(at(1000), 1000, nil)
		require.NoError(t, err)
		require.NotEqual(t, a.At.Generation, b.At.Generation)
		require.False(t, h.Directory().Live(a.At))
	})
}

// What Adopt was given is called once: by Return, or by Close.
func TestReturn(t *testing.T) {
	modes(t, func(t *testing.T, goHeap bool) {
		h := newHeap(t, goHeap)
		foreign, err := shm.Reserve(16 * shm.PageSize)
		require.NoError(t, err)
		defer shm.Unmap(foreign, 16*shm.PageSize)
		called := map[string]int{}
		adopt := func(name string) *Allocation {
			a, err := h.Adopt(unsafe.Add(foreign, 100*len(called)), 100, func() {
				require.True(t, h.mu.TryLock(), "no lock is held")
				h.mu.Unlock()
				called[name]++
			})
			require.NoError(t, err)
			called[name] = 0
			return a
		}
		_, err = h.Adopt(nil, 1, func() { called["refused"]++ })
		require.Error(t, err)
		a := adopt("returned")
		_, err = h.Adopt(a.Ptr, 1, func() { called["refused"]++ })
		require.ErrorIs(t, err, fault.ErrInUse)
		require.NoError(t, h.Retire(a))
		require.Zero(t, called["returned"])
		h.Return(a)
		h.Return(a)
		require.Equal(t, 1, called["returned"])

		kept := adopt("in quarantine")
		kept.Quarantine()
		require.NoError(t, h.Retire(kept))
		h.Return(kept)
		retired := adopt("only retired")
		require.NoError(t, h.Retire(retired))
		adopt("live")
		held := adopt("held")
		require.True(t, held.Hold())
		plain, err := h.Adopt(unsafe.Add(foreign, 4096), 1, nil)
		require.NoError(t, err)
		require.NoError(t, h.Retire(plain))
		h.Return(plain)
		own := alloc(t, h, 1)
		require.NoError(t, h.Retire(own))
		h.Return(own)
		require.Equal(t, map[string]int{"returned": 1, "in quarantine": 0, "only retired": 0, "live": 0, "held": 0}, called)

		closed := make(chan error)
		go func() { closed <- h.Close() }()
		require.True(t, testkit.Until(func() bool { return !held.Live() }))
		h.Return(held) // comes too early, and is left to Close
		held.Release()
		require.NoError(t, <-closed)
		h.Return(held)
		h.Return(retired)
		require.Equal(t, map[string]int{"returned": 1, "in quarantine": 1, "only retired": 1, "live": 1, "held": 1}, called)
		_, err = h.Adopt(foreign, 1, func() { called["refused"]++ })
		require.ErrorIs(t, err, fault.ErrClosed)
		require.NotContains(t, called, "refused")
	})
}

func TestFile(t *testing.T) {
	h, other := newHeap(t, false), newHeap(t, false)
	alloc(t, h, 1)
	alloc(t, other, 1)
	self, err := shm.Self()
	require.NoError(t, err)
	arena := h.Directory().Arena(0, self)
	require.Equal(t, h.arenas[0].file.Ref(), arena)
	require.Same(t, h.arenas[0].file, h.File(arena))
	require.Same(t, h.dirFile, h.File(h.DirectoryRef()))
	for name, change := range map[string]func(*shm.Ref){
		"inode": func(r *shm.Ref) { r.Inode++ }, "descriptor": func(r *shm.Ref) { r.FD++ },
		"size": func(r *shm.Ref) { r.Size++ }, "process": func(r *shm.Ref) { r.Process.Start++ },
		"all": func(r *shm.Ref) { *r = other.Directory().Arena(0, self) }, "none": func(r *shm.Ref) { *r = shm.Ref{} },
	} {
		r := arena
		change(&r)
		require.Nil(t, h.File(r), name)
	}
	require.Nil(t, newHeap(t, true).File(shm.Ref{}))
}

func TestDirectory(t *testing.T) {
	h := newHeap(t, false)
	p := unsafe.Pointer(h.Directory())
	d, err := CheckDirectory(p, h.Domain)
	require.NoError(t, err)
	_, err = CheckDirectory(p, h.Domain+1)
	require.ErrorIs(t, err, fault.ErrStale)
	d.magic++
	_, err = CheckDirectory(p, h.Domain)
	require.ErrorIs(t, err, fault.ErrStale)
	require.Zero(t, DirectorySize%shm.PageSize)
	require.Zero(t, unsafe.Offsetof(d.Doorbell)%128, "peers write the doorbell: it has its cache lines to itself")
	require.GreaterOrEqual(t, unsafe.Offsetof(d.table)-unsafe.Offsetof(d.Doorbell), uintptr(128))

	a := alloc(t, h, 1)
	for name, l := range map[string]Location{
		"no generation":      {Slot: a.At.Slot},
		"another generation": {Slot: a.At.Slot, Generation: a.At.Generation + 1},
		"another slot":       {Slot: a.At.Slot + 1, Generation: a.At.Generation},
		"a slot beyond":      {Slot: MaxSlots, Generation: a.At.Generation},
		"a slot far beyond":  {Slot: math.MaxUint32, Generation: a.At.Generation},
		"an empty slot":      {Slot: a.At.Slot + 1},
	} {
		require.False(t, d.Live(l), name)
	}
	require.True(t, d.Live(a.At.Add(100)))
	d.arenas.Store(math.MaxUint64)
	require.Equal(t, MaxArenas, d.Arenas(), "whatever the owner writes")
	d.arenas.Store(1)
}

func TestMaxSlots(t *testing.T) {
	testkit.LongOrRace(t)
	h := newHeap(t, false)
	as := make([]*Allocation, MaxSlots)
	for i := range as {
		as[i] = alloc(t, h, 1)
	}
	_, err := h.Alloc(1)
	require.ErrorIs(t, err, fault.ErrLimit)
	_, err = h.Adopt(unsafe.Pointer(&as[0].Bytes), 8, nil)
	require.ErrorIs(t, err, fault.ErrLimit)
	require.NoError(t, h.Retire(as[100]))
	again := alloc(t, h, 1)
	require.Equal(t, as[100].At.Slot, again.At.Slot)
	require.NotEqual(t, as[100].At.Generation, again.At.Generation)
	_, err = h.Alloc(1)
	require.ErrorIs(t, err, fault.ErrLimit)
	require.Equal(t, MaxSlots, h.Stats().Allocations)
}

func TestMaxArenas(t *testing.T) {
	h := newHeap(t, false)
	alloc(t, h, firstArena) // the arena is full
	h.dir.arenas.Store(MaxArenas)
	_, err := h.Alloc(1)
	require.ErrorIs(t, err, fault.ErrLimit)
	require.ErrorContains(t, err, "8192 memory files")
	h.dir.arenas.Store(1)
	alloc(t, h, 1)
}

func TestLimits(t *testing.T) {
	t.Run("descriptors", func(t *testing.T) { limited(t, "nofile") })
	t.Run("memory", func(t *testing.T) { limited(t, "nomemory") })
	for _, room := range testkit.Sample(3, []int{300, 520, 1030}) {
		t.Run(fmt.Sprintf("%d MiB of address space", room), func(t *testing.T) {
			if race.Enabled {
				t.Skip("the race detector reserves address space of its own")
			}
			limited(t, "space", fmt.Sprintf("HEADROOM=%d", room))
		})
	}
}

func TestGoHeap(t *testing.T) {
	h := newHeap(t, true)
	require.True(t, h.GoHeap())
	require.Zero(t, h.DirectoryRef())
	require.Same(t, h, Find(h.Domain))
	require.Nil(t, Find(h.Domain+1000))
	a, b := alloc(t, h, 5000), alloc(t, h, 10)
	end := uint64(a.pages)
	for _, c := range []struct {
		name string
		l    Location
		n    int
		ok   bool
	}{
		{"start", a.At, 5000, true},
		{"inside", a.At.Add(4000), 1000, true},
		{"its last page", a.At, a.pages, true},
		{"nothing at the end", a.At.Add(uintptr(end)), 0, true},
		{"beyond", a.At, a.pages + 1, false},
		{"at the end", a.At.Add(uintptr(end)), 1, false},
		{"a huge offset", a.At.Add(math.MaxUint64), 1, false},
		{"a large offset", a.At.Add(1 << 62), 1, false},
		{"a negative length", a.At, -1, false},
		{"a huge length", a.At.Add(1), math.MaxInt, false},
		{"another's generation", Location{Slot: a.At.Slot, Generation: b.At.Generation}, 1, false},
		{"no generation", Location{Slot: a.At.Slot}, 1, false},
		{"an empty slot", Location{Slot: 7, Generation: 1}, 1, false},
		{"no slot", Location{Slot: MaxSlots, Generation: 1}, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := h.Resolve(c.l, c.n)
			if !c.ok {
				require.ErrorIs(t, err, fault.ErrStale)
				return
			}
			require.NoError(t, err)
			require.Equal(t, unsafe.Add(a.Ptr, c.l.Offset), p)
		})
	}
	require.NoError(t, h.Retire(a))
	_, err := h.Resolve(a.At, 1)
	require.ErrorIs(t, err, fault.ErrStale)
	require.NoError(t, h.Close())
	require.Nil(t, Find(h.Domain))
	require.ErrorIs(t, h.Close(), fault.ErrClosed)
	bytesOf(b)[0] = 1 // Go keeps it as long as somebody refers to it
}

func TestConcurrent(t *testing.T) {
	modes(t, func(t *testing.T, goHeap bool) {
		h := newHeap(t, goHeap)
		const workers, rounds = 8, 150
		generations := make([][]uint64, workers)
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				var mine []*Allocation
				for i := range rounds {
					a, err := h.Alloc(1 + (i*7919+w*131)%(3*shm.PageSize))
					if err != nil {
						t.Error(err)
						return
					}
					generations[w] = append(generations[w], a.At.Generation)
					b := bytesOf(a)
					if n := bytes.Count(b, []byte{0}); n != len(b) {
						t.Errorf("%d of %d bytes are zero", n, len(b))
						return
					}
					fill(b, byte(w+1))
					if mine = append(mine, a); len(mine) < 5 {
						continue
					}
					old := mine[0]
					mine = mine[1:]
					if got := h.Lookup(old.Base(), old.Bytes); got != old {
						t.Errorf("Lookup gave %v", got)
					}
					if n := bytes.Count(bytesOf(old), []byte{byte(w + 1)}); n != old.Bytes {
						t.Errorf("%d of %d bytes are still there", n, old.Bytes)
					}
					if err := h.Retire(old); err != nil {
						t.Error(err)
					}
				}
				for _, a := range mine {
					if err := h.Retire(a); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		all := slices.Concat(generations...)
		slices.Sort(all)
		require.Len(t, slices.Compact(all), workers*rounds, "generations are unique")
		require.Zero(t, h.Stats().Allocations)
	})
}

// Exactly one of many concurrent frees succeeds.
func TestConcurrentRetire(t *testing.T) {
	h := newHeap(t, false)
	a := alloc(t, h, 1)
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = h.Retire(a) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			require.ErrorIs(t, err, fault.ErrClosed)
		}
	}
	require.Equal(t, 1, won)
	require.Equal(t, spans{{0, firstArena}}, h.arenas[0].free)
}

func TestManyRounds(t *testing.T) {
	rounds := 100000
	if race.Enabled || testing.Short() {
		rounds /= 10
	}
	h := newHeap(t, false)
	round := func(i int) {
		a, err := h.Alloc(1 + i%3*shm.PageSize)
		if err != nil {
			t.Fatal(err)
		}
		*(*byte)(a.Ptr) = 1
		if err := h.Retire(a); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		round(i)
	}
	// The heap's memory only: the runtime's own depends on processors and the race detector.
	inUse := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before, shared, used := measure(t), testkit.Status("RssShmem"), inUse()
	pieces := h.space.pieces(t)
	for i := range rounds {
		round(i)
	}
	after := measure(t)
	require.Equal(t, before.descriptors, after.descriptors)
	require.LessOrEqual(t, h.space.pieces(t), pieces+1)
	require.Equal(t, before.shared, after.shared)
	require.LessOrEqual(t, testkit.Status("RssShmem"), shared+3*shm.PageSize)
	require.Less(t, inUse(), used+1<<20)
}

// Close waits for what holds an allocation, also if the allocation is being freed, and no Hold succeeds after it.
func TestCloseWaitsForHolds(t *testing.T) {
	modes(t, func(t *testing.T, goHeap bool) {
		h, err := New(1, goHeap)
		require.NoError(t, err)
		used, freed := alloc(t, h, 4096), alloc(t, h, 4096)
		require.True(t, used.Hold())
		require.True(t, freed.Hold())
		freed.WhenIdle(func() { require.NoError(t, h.Retire(freed)) })
		closed := make(chan error, 1)
		go func() { closed <- h.Close() }()
		testkit.Eventually(t, func() bool { return !used.Live() })
		*(*byte)(used.Ptr), *(*byte)(freed.Ptr) = 1, 1
		used.Release()
		*(*byte)(freed.Ptr) = 1
		freed.Release()
		require.NoError(t, <-closed)
		require.False(t, used.Hold())
		require.False(t, used.HoldLast())
	})
}

func TestHoldLast(t *testing.T) {
	h := newHeap(t, true)
	a := alloc(t, h, 4096)
	require.True(t, a.Hold())
	require.False(t, a.HoldLast())
	a.Release()
	require.True(t, a.HoldLast())
	require.False(t, a.Hold())
	idle := 0
	a.WhenIdle(func() { idle++ })
	require.Zero(t, idle)
	a.Release()
	require.Equal(t, 1, idle)
	require.Equal(t, 0, a.Holders())
	require.NoError(t, h.Retire(a))
}
