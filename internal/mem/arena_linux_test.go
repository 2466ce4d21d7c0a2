package mem

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// memory returns how much memory the pages of f's file take.
func memory(t *testing.T, f *shm.File) int {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(f.FD(), &st))
	return int(st.Blocks) * 512
}

// mapName returns the name in /proc of the mapping of size bytes at b.
func mapName(b []byte, size int) string {
	at := uintptr(unsafe.Pointer(&b[0]))
	return fmt.Sprintf("%x-%x", at, at+uintptr(size))
}

// peerView maps the arena of a as a peer does, and returns a's bytes there.
func peerView(t *testing.T, a *Allocation) []byte {
	t.Helper()
	f := a.arena.file
	p, err := f.Map(0, f.Size(), false)
	require.NoError(t, err)
	t.Cleanup(func() { shm.Unmap(p, f.Size()) })
	return unsafe.Slice((*byte)(unsafe.Add(p, a.At.Offset)), a.Bytes)
}

func TestQuarantine(t *testing.T) {
	h := newHeap(t, false)
	const size = 1 << 20
	other, kept := alloc(t, h, size), alloc(t, h, size)
	file, at := kept.arena.file, kept.At
	laggard := peerView(t, kept)
	fill(laggard, 1)
	all := memory(t, file)
	lift := h.Quarantine()
	again := h.Quarantine()
	require.True(t, h.Quarantined())
	require.NoError(t, h.Retire(kept))
	require.True(t, testkit.Faults(kept.Ptr))
	require.Equal(t, all-size, memory(t, file), "the memory is the system's again")
	require.Equal(t, make([]byte, size), laggard)
	fill(laggard, 2) // like a peer that timed out: it must not fault, and nobody must see it
	for range 20 {
		a := alloc(t, h, size)
		require.False(t, a.At.Arena == at.Arena && overlap(uintptr(a.At.Offset), size, uintptr(at.Offset), size))
		require.Equal(t, make([]byte, size), bytesOf(a))
		fill(laggard, 3)
		require.Equal(t, make([]byte, size), bytesOf(a))
		require.NoError(t, h.Retire(a))
	}
	require.Equal(t, make([]byte, size), bytesOf(other))

	lift()
	lift()
	require.True(t, h.Quarantined(), "the other one holds")
	again()
	require.False(t, h.Quarantined())
	// Reused memory is complete, and zero.
	back := alloc(t, h, size)
	for back.At.Arena != at.Arena || back.At.Offset != at.Offset {
		require.Equal(t, at.Arena, back.At.Arena, "the place is used again")
		back = alloc(t, h, size)
	}
	require.Equal(t, make([]byte, size), bytesOf(back))
	require.Equal(t, all-back.arena.holes.sum(), memory(t, file), "memory is there before it is touched")
	for back.arena.free.sum() > 0 {
		alloc(t, h, shm.PageSize)
	}
	require.Equal(t, all, memory(t, file))
	require.NoError(t, h.Close())
	h.Quarantine()()
}

// An allocation that a peer never releases is not reused, whatever happens to others.
func TestQuarantineOfOne(t *testing.T) {
	h := newHeap(t, false)
	one, two := alloc(t, h, 1<<20), alloc(t, h, 1<<20)
	file, all := one.arena.file, memory(t, one.arena.file)
	one.Quarantine()
	lift := h.Quarantine()
	require.NoError(t, h.Retire(one))
	require.NoError(t, h.Retire(two))
	require.Equal(t, all-2<<20, memory(t, file))
	lift()
	require.Equal(t, int64(one.pages), h.Stats().HeldBytes)
	for range 12 {
		a := alloc(t, h, 1<<20)
		require.False(t, a.At.Arena == one.At.Arena && overlap(uintptr(a.At.Offset), a.pages, uintptr(one.At.Offset), one.pages))
	}
	require.Equal(t, all-1<<20, memory(t, file))
}

// A program that keeps allocating and freeing after a time-out reaches no limit.
func TestCyclesInQuarantine(t *testing.T) {
	testkit.LongOrRace(t)
	h := newHeap(t, false)
	alloc(t, h, 1)
	h.Quarantine()
	before := measure(t)
	for range 100 {
		require.NoError(t, h.Retire(alloc(t, h, 3<<20)))
		s := h.Stats()
		require.LessOrEqual(t, s.Arenas, 3)
		held := 0
		for _, a := range h.arenas {
			held += memory(t, a.file)
		}
		require.LessOrEqual(t, held, 32<<20)
	}
	require.LessOrEqual(t, measure(t).descriptors, before.descriptors+3)
	require.LessOrEqual(t, measure(t).mappings, before.mappings+20)
}

// Freed memory goes back to the system, arena by arena. A program that frees and allocates in turns pays for that once.
func TestArenasAreReleased(t *testing.T) {
	h := newHeap(t, false)
	alloc(t, h, 1)
	grew := 0
	h.OnArena(func() { grew++ })
	const size = 32 << 20
	a := alloc(t, h, size)
	ref, view := a.arena.file.Ref(), peerView(t, a)
	fill(view, 1)
	descriptors := measure(t).descriptors
	require.NoError(t, h.Retire(a))
	require.Equal(t, int64(firstArena), h.Stats().ArenaBytes)
	require.Equal(t, descriptors-1, measure(t).descriptors)
	require.Zero(t, h.Directory().Arena(int(a.At.Arena), ref.Process).Size, "peers see that it is no more")
	require.Nil(t, h.File(ref))
	require.Equal(t, 1, grew)
	// A peer's mapping of it stays, and has no memory.
	var st unix.Stat_t
	f, err := unix.Open("/proc/self/map_files/"+mapName(view, ref.Size), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil { // only if run as root
		require.NoError(t, unix.Fstat(f, &st))
		require.Equal(t, ref.Inode, st.Ino)
		require.Zero(t, st.Blocks)
		unix.Close(f)
	}
	require.Equal(t, make([]byte, size), view)

	b := alloc(t, h, size)
	require.NotEqual(t, a.At.Arena, b.At.Arena, "numbers are not used again")
	require.Equal(t, 2, grew)
	for range 5 {
		require.NoError(t, h.Retire(b))
		b = alloc(t, h, size)
	}
	require.Equal(t, 2, grew, "it is kept, now that it was missed")
	require.NoError(t, h.Retire(b))
	require.Equal(t, int64(firstArena+size), h.Stats().ArenaBytes)
}

// When memory is short, nothing is kept for later.
func TestSpareMemoryIsGivenUp(t *testing.T) {
	limited(t, "spare")
}

func childSpare() error {
	h, err := New(1, false)
	if err != nil {
		return err
	}
	h.spare = 1 << 30
	var first *Allocation
	for range 2 {
		if first, err = h.Alloc(6 << 20); err != nil {
			return err
		}
		if err := h.Retire(first); err != nil {
			return err
		}
	}
	// A limit on descriptors stands for any other limit: exactly one more fits.
	fd, err := unix.Dup(0)
	if err != nil {
		return err
	}
	unix.Close(fd)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(fd), Max: uint64(fd)}); err != nil {
		return err
	}
	a, err := h.Alloc(20 << 20)
	if err != nil {
		return err
	}
	return check(h.Stats().Arenas == 1 && a.At.Arena == 1, "the idle arena should have made room")
}

// Spans behave like sets of numbers.
func TestSpans(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	var s spans
	var set [64]bool
	for range 20000 {
		off := r.IntN(len(set))
		n := 1 + r.IntN(min(8, len(set)-off))
		in := false
		for _, b := range set[off : off+n] {
			in = in || b
		}
		switch r.IntN(3) {
		case 0:
			if !in {
				s.add(off, n)
				for i := range n {
					set[off+i] = true
				}
			}
		case 1:
			require.Equal(t, in, s.cut(off, n))
			for i := range n {
				set[off+i] = false
			}
		default:
			at, ok := s.first(n)
			run := bytes.Repeat([]byte{1}, n)
			var flat []byte
			for _, b := range set {
				flat = append(flat, map[bool]byte{true: 1}[b])
			}
			want := bytes.Index(flat, run)
			require.Equal(t, want >= 0, ok)
			if ok {
				require.Equal(t, want, at)
				for i := range n {
					set[at+i] = false
				}
			}
		}
		var again spans
		for i, b := range set {
			if b {
				again.add(i, 1)
			}
		}
		require.Equal(t, len(again), len(s))
		for i := range s {
			require.Equal(t, again[i], s[i])
		}
	}
}
