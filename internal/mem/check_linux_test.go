//go:build invariants

package mem

import (
	"bytes"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestInvariants(t *testing.T) {
	for _, k := range []struct {
		name  string
		files bool // needs memory files
		spoil func(h *Heap, a, b *Allocation)
		says  string
	}{
		{"the directory has another generation", false,
			func(h *Heap, a, b *Allocation) { h.dir.slots[a.At.Slot].Store(99) }, "is not what the directory has"},
		{"a slot of two", false, func(h *Heap, a, b *Allocation) { b.At.Slot = a.At.Slot }, "slot 0"},
		{"a free slot in use", false,
			func(h *Heap, a, b *Allocation) { h.freeSlots = append(h.freeSlots, a.At.Slot) }, "free twice, or in use"},
		{"not sorted", false,
			func(h *Heap, a, b *Allocation) { h.live[0], h.live[1] = h.live[1], h.live[0] }, "is listed before"},
		{"two at one place", false, func(h *Heap, a, b *Allocation) { h.live[0].pages = 1 << 30 }, "overlaps"},
		{"freed, and found", false, func(h *Heap, a, b *Allocation) { a.freed.Store(true) }, "has been freed"},
		{"free memory in use", true,
			func(h *Heap, a, b *Allocation) { a.arena.free.add(int(a.At.Offset), a.pages) }, "is in two places"},
		{"free memory that is not sorted", true, func(h *Heap, a, b *Allocation) {
			a.arena.free = append(spans{{1 << 20, 4096}}, a.arena.free...)
		}, "is not behind"},
		{"held memory in use", true, func(h *Heap, a, b *Allocation) {
			h.held = append(h.held, held{a.arena, span{int(b.At.Offset), b.pages}, true})
		}, "is in two places"},
		{"an arena's count", true, func(h *Heap, a, b *Allocation) { a.arena.live-- }, "counts 1"},
	} {
		t.Run(k.name, func(t *testing.T) {
			h, err := New(1, !k.files)
			require.NoError(t, err)
			a, err := h.Alloc(100)
			require.NoError(t, err)
			b, err := h.Alloc(100)
			require.NoError(t, err)
			h.mu.Lock()
			h.check()
			k.spoil(h, a, b)
			testkit.Violation(t, k.says, h.check)
			h.mu.Unlock()
			require.NoError(t, h.Close())
		})
	}
}

func TestHoldsAreCounted(t *testing.T) {
	h, err := New(1, false)
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Close()) }()
	a, err := h.Alloc(100)
	require.NoError(t, err)
	require.True(t, a.Hold())
	a.Release()
	testkit.Violation(t, "released more often than held", a.Release)
	require.True(t, a.Hold(), "back to 0")

	b, err := h.Alloc(100)
	require.NoError(t, err)
	b.WhenIdle(func() {})
	testkit.Violation(t, "released more often than held", b.Release)
	b.uses.Add(1)

	c, err := h.Alloc(100)
	require.NoError(t, err)
	require.True(t, c.Hold())
	defer func(was time.Duration) { idleLimit = was }(idleLimit)
	idleLimit = 0
	testkit.Violation(t, "1 operations hold it", func() { _ = h.Retire(c) })
	c.Release()
	require.NoError(t, h.Retire(c))
}

// Freed memory has a pattern, where it can still be read: on the Go heap, and by who has mapped the arena.
func TestFreedMemoryHasAPattern(t *testing.T) {
	for _, goHeap := range []bool{false, true} {
		h, err := New(2, goHeap)
		require.NoError(t, err)
		a, err := h.Alloc(200 << 10)
		require.NoError(t, err)
		p := a.Ptr
		if !goHeap {
			p, err = a.arena.file.Map(int(a.At.Offset), a.pages, false)
			require.NoError(t, err)
		}
		view := unsafe.Slice((*byte)(p), a.pages)
		require.Equal(t, make([]byte, len(view)), view)
		require.NoError(t, h.Retire(a))
		if goHeap {
			for i := 0; i < len(view); i += 8 * freedWords {
				require.EqualValues(t, uint64(freedWord), *(*uint64)(unsafe.Pointer(&view[i])))
			}
		} else {
			require.True(t, bytes.Equal(bytes.Repeat([]byte{freedByte}, len(view)), view))
		}
		b, err := h.Alloc(200 << 10)
		require.NoError(t, err)
		require.Equal(t, make([]byte, b.Bytes), unsafe.Slice((*byte)(b.Ptr), b.Bytes), "zeroed again")
		require.NoError(t, h.Close())
	}
}

func TestLocksAreCounted(t *testing.T) {
	h := newHeap(t, false)
	a := alloc(t, h, 100)
	require.NoError(t, a.Lock())
	require.NoError(t, a.Unlock())
	testkit.Violation(t, "unlocked more often than locked", func() { _ = a.Unlock() })
}
