package mem

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// smallSpace makes a heap with windows of n bytes.
func smallSpace(t *testing.T, n int) *Heap {
	h := newHeap(t, false)
	h.space.window = n
	return h
}

// pieces returns the number of mappings in the windows.
func (s *space) pieces(t *testing.T) (n int) {
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		var from, to uintptr
		_, err := fmt.Sscanf(line, "%x-%x", &from, &to)
		require.NoError(t, err)
		for _, w := range s.windows {
			if from < uintptr(w.off+w.n) && uintptr(w.off) < to {
				n++
			}
		}
	}
	return n
}

// Addresses come from new windows while little has been freed, and then from the oldest freed ones.
func TestAddressesAreReused(t *testing.T) {
	testkit.LongOrRace(t)
	const window, size = 64 << 20, 1 << 20
	h := smallSpace(t, window)
	var past []*Allocation
	first := map[uintptr]int{}
	for i := range 1000 {
		a := alloc(t, h, size)
		if at, ok := first[a.Base()]; ok {
			require.GreaterOrEqual(t, i-at, window/2/size, "the address of round %d in round %d", at, i)
		}
		first[a.Base()] = i
		require.Equal(t, make([]byte, size), bytesOf(a))
		bytesOf(a)[0] = 1
		require.NoError(t, h.Retire(a))
		past = append(past, a)
		for _, p := range past[max(0, i-window/2/size+2):] {
			require.True(t, testkit.Faults(p.Ptr), "a stale view of what was freed in the last rounds")
		}
	}
	require.Len(t, h.space.windows, 1)
	require.Len(t, first, window/size)
}

// While the queue is short, a full window is followed by another one.
func TestFreshAddressesFirst(t *testing.T) {
	const pages = 16
	h := smallSpace(t, pages*shm.PageSize)
	var last *Allocation
	for range pages {
		last = alloc(t, h, 1)
	}
	require.Len(t, h.space.windows, 1)
	require.NoError(t, h.Retire(last))
	require.NotEqual(t, last.Base(), alloc(t, h, 1).Base())
	require.True(t, testkit.Faults(last.Ptr))
	require.Len(t, h.space.windows, 2)
}

// A full window is followed by another one as often as the queue is short: addresses that are used again are not in the
// queue any more.
func TestFreshAddressesAgain(t *testing.T) {
	const pages = 16
	h := smallSpace(t, pages*shm.PageSize)
	for range 10 * pages { // one after the other: half a window in the queue is not short
		require.NoError(t, h.Retire(alloc(t, h, 1)))
	}
	require.Len(t, h.space.windows, 1)
	for range pages { // takes what is in the queue
		alloc(t, h, 1)
	}
	last := alloc(t, h, 1)
	require.Len(t, h.space.windows, 2)
	require.NoError(t, h.Retire(last))
	require.NotEqual(t, last.Base(), alloc(t, h, 1).Base())
	require.Equal(t, shm.PageSize, h.space.queued)
}

// Random allocations never share an address with a live one, however often addresses are reused.
func TestAddressesAtRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	h := smallSpace(t, 8<<20)
	var live []*Allocation
	for i := range 3000 {
		if len(live) > 0 && (len(live) > 30 || r.IntN(2) == 0) {
			k := r.IntN(len(live))
			a := live[k]
			require.Equal(t, byte(a.At.Generation), bytesOf(a)[0])
			require.Equal(t, byte(a.At.Generation), bytesOf(a)[a.Bytes-1])
			require.NoError(t, h.Retire(a))
			require.True(t, testkit.Faults(a.Ptr))
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		n := 1 + r.IntN(1<<r.IntN(22))
		a := alloc(t, h, n)
		for _, b := range live {
			require.False(t, overlap(a.Base(), a.pages, b.Base(), b.pages), "round %d", i)
		}
		bytesOf(a)[0], bytesOf(a)[n-1] = byte(a.At.Generation), byte(a.At.Generation)
		live = append(live, a)
	}
	t.Logf("%d windows", len(h.space.windows))
}

// An allocation larger than a window gets its own window, with room for some more of its size.
func TestLargeWindow(t *testing.T) {
	space := testkit.Status("VmSize")
	h := smallSpace(t, 1<<20)
	a, b := alloc(t, h, 1<<20), alloc(t, h, 1)
	require.Len(t, h.space.windows, 1)
	require.Equal(t, perWindow<<20, h.space.windows[0].n)
	require.False(t, testkit.Faults(a.Ptr) || testkit.Faults(b.Ptr))
	alloc(t, h, 5<<20)
	require.Len(t, h.space.windows, 2)
	require.NoError(t, h.Close())
	require.Less(t, testkit.Status("VmSize"), space+1<<30)
}

// Addresses that others may have after a failure are neither reused nor unmapped.
func TestLostAddresses(t *testing.T) {
	h := smallSpace(t, 16*shm.PageSize)
	a := alloc(t, h, 1)
	file := h.arenas[0].file
	h.arenas[0].file = new(shm.File) // has no size: nothing is mapped
	_, err := h.Alloc(shm.PageSize)
	require.Error(t, err)
	require.Empty(t, h.space.lost, "nothing was tried, so that nothing is lost")
	closed, err := shm.Create("closed", shm.RoundUp(firstArena))
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	h.arenas[0].file = closed // then nobody knows what the kernel has removed
	_, err = h.Alloc(shm.PageSize)
	require.ErrorIs(t, err, shm.ErrLost)
	require.Len(t, h.space.lost, 1)
	h.arenas[0].file = file
	require.Equal(t, 1, h.arenas[0].live)
	b := alloc(t, h, 1)
	require.Equal(t, a.At.Offset+uint64(shm.PageSize), b.At.Offset, "the arena's places are not lost")
	require.Equal(t, a.Base()+2*uintptr(shm.PageSize), b.Base(), "behind what is lost")
	base, end := h.space.windows[0].off, h.space.windows[0].off+h.space.windows[0].n

	// The last page of the window, one in the middle, and one elsewhere.
	pages := []int{end - shm.PageSize, base + 8*shm.PageSize, base - 100*shm.PageSize}
	for _, at := range pages[:2] {
		h.space.free.cut(at, shm.PageSize)
	}
	for _, at := range pages {
		h.space.abandon(pointerTo(at), shm.PageSize)
	}
	for range 13 {
		c := alloc(t, h, shm.PageSize)
		if len(h.space.windows) > 1 {
			break
		}
		require.NotContains(t, pages, int(c.Base()))
	}
	require.NoError(t, h.Close())
	for _, at := range pages[:2] {
		require.Equal(t, "reserved", state(t, at))
		require.NoError(t, shm.Unmap(pointerTo(at), shm.PageSize))
	}
	require.NoError(t, shm.Unmap(pointerTo(base+shm.PageSize), shm.PageSize))
	require.Equal(t, "unmapped", state(t, base))
	require.Equal(t, "unmapped", state(t, base+9*shm.PageSize))
}

func pointerTo(at int) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

// state returns the state of a page.
func state(t *testing.T, at int) string {
	var in byte
	_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(at), uintptr(shm.PageSize), uintptr(unsafe.Pointer(&in)))
	switch e {
	case 0:
		return "reserved"
	case unix.ENOMEM:
		return "unmapped"
	}
	t.Fatal(e)
	return ""
}

// childCycles allocates and frees more bytes than it has addresses.
func childCycles() error {
	const room, size, rounds = 600 << 20, 4 << 20, 500
	limit := testkit.Status("VmSize") + room
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: uint64(limit), Max: uint64(limit)}); err != nil {
		return err
	}
	h, err := New(1, false)
	if err != nil {
		return err
	}
	kept, err := h.Alloc(1 << 20)
	if err != nil {
		return err
	}
	*(*byte)(kept.Ptr) = 1
	var last *Allocation
	for i := range rounds {
		a, err := h.Alloc(size)
		if err != nil {
			return fmt.Errorf("after %d MiB under a limit of %d MiB: %w", i*size>>20, room>>20, err)
		}
		*(*byte)(a.Ptr) = 1
		if err := h.Retire(a); err != nil {
			return err
		}
		if !testkit.Faults(a.Ptr) || last != nil && !testkit.Faults(last.Ptr) {
			return fmt.Errorf("round %d: a stale view does not fault", i)
		}
		last = a
	}
	if err := check(*(*byte)(kept.Ptr) == 1 && testkit.Status("VmSize") < limit-room/2,
		"most of the address space is gone"); err != nil {
		return err
	}
	return h.Close()
}

func TestCyclesInLimitedSpace(t *testing.T) {
	testkit.LongOrRace(t)
	if race.Enabled {
		t.Skip("the race detector reserves address space of its own")
	}
	limited(t, "cycles")
}

// Addresses in the queue must keep only few page tables.
func TestPageTables(t *testing.T) {
	testkit.LongOrRace(t)
	h := newHeap(t, false)
	const rounds, size = 20000, 128 << 10
	before := testkit.Status("VmPTE")
	for range rounds {
		a, err := h.Alloc(size)
		if err == nil {
			err = h.Retire(a)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// The kernel by itself would keep 4 KiB for each 2 MiB, 5 MiB in all.
	tables := testkit.Status("VmPTE") - before
	t.Logf("%d bytes of page tables", tables)
	require.Less(t, tables, rounds*size/512/4)
}
