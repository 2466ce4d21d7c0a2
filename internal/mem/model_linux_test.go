package mem

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// modelled is an allocation in the naive model.
type modelled struct {
	a       *Allocation
	base    uintptr
	n       int
	adopted bool
	fill    byte
}

// model is a list, searched from end to end.
type model struct {
	h           *Heap
	goHeap      bool
	live        []modelled
	past        []modelled // freed
	generations map[uint64]bool
	foreign     unsafe.Pointer
	quarantined []Location // their bytes are in quarantinedPages
	sizes       []int
	quarantine  bool
	fill        byte
}

const foreignBytes = 64 << 10

func overlap(p uintptr, n int, q uintptr, m int) bool { return p < q+uintptr(m) && q < p+uintptr(n) }

func (m *model) add(t *rapid.T, a *Allocation, adopted bool) {
	require.False(t, m.generations[a.At.Generation], "generation %d twice", a.At.Generation)
	m.generations[a.At.Generation] = true
	require.True(t, m.h.Directory().Live(a.At))
	for _, o := range m.live {
		require.False(t, overlap(a.Base(), a.Bytes, o.base, o.n), "addresses of %d and %d", a.At.Generation, o.a.At.Generation)
		require.NotEqual(t, o.a.At.Slot, a.At.Slot)
		if !m.goHeap && !adopted && !o.adopted && a.At.Arena == o.a.At.Arena {
			require.False(t, overlap(uintptr(a.At.Offset), shm.RoundUp(a.Bytes), uintptr(o.a.At.Offset), shm.RoundUp(o.n)),
				"offsets of %+v and %+v", a.At, o.a.At)
		}
	}
	if !m.goHeap && !adopted {
		for _, o := range m.past {
			require.False(t, !o.adopted && overlap(a.Base(), shm.RoundUp(a.Bytes), o.base, shm.RoundUp(o.n)), "an address is used again")
		}
		for i, q := range m.quarantined {
			require.False(t, q.Arena == a.At.Arena &&
				overlap(uintptr(a.At.Offset), shm.RoundUp(a.Bytes), uintptr(q.Offset), m.sizes[i]), "%+v is in quarantine", q)
		}
		require.LessOrEqual(t, int(a.At.Offset)+shm.RoundUp(a.Bytes), m.h.Directory().Arena(int(a.At.Arena), shm.Process{}).Size)
	}
	m.fill++
	if !adopted {
		require.Equal(t, a.Bytes, bytes.Count(bytesOf(a), []byte{0}), "memory must be zeroed")
		// Bytes behind the end must be zeroed next time, too.
		fill(unsafe.Slice((*byte)(a.Ptr), shm.RoundUp(a.Bytes)), m.fill|1)
	}
	m.live = append(m.live, modelled{a, a.Base(), a.Bytes, adopted, m.fill | 1})
}

func (m *model) alloc(t *rapid.T) {
	n := rapid.OneOf(rapid.IntRange(1, 3*4096), rapid.IntRange(1, 1<<20), rapid.Just(4096),
		rapid.IntRange(3<<20, 5<<20)).Draw(t, "bytes")
	if len(m.live) > 40 {
		t.Skip("enough")
	}
	a, err := m.h.Alloc(n)
	require.NoError(t, err)
	m.add(t, a, false)
}

func (m *model) adopt(t *rapid.T) {
	off := rapid.IntRange(0, foreignBytes-1).Draw(t, "offset")
	n := rapid.IntRange(1, min(8192, foreignBytes-off)).Draw(t, "bytes")
	p := unsafe.Add(m.foreign, off)
	taken := false
	for _, o := range m.live {
		taken = taken || overlap(uintptr(p), n, o.base, o.n)
	}
	a, err := m.h.Adopt(p, n, nil)
	if taken {
		require.Error(t, err)
		return
	}
	require.NoError(t, err)
	m.add(t, a, true)
}

func (m *model) free(t *rapid.T) {
	if len(m.live) == 0 {
		t.Skip("nothing lives")
	}
	i := rapid.IntRange(0, len(m.live)-1).Draw(t, "which")
	o := m.live[i]
	m.live = append(m.live[:i:i], m.live[i+1:]...)
	if !o.adopted {
		require.Equal(t, o.n, bytes.Count(bytesOf(o.a), []byte{o.fill}), "its contents")
	}
	require.NoError(t, m.h.Retire(o.a))
	require.False(t, m.h.Directory().Live(o.a.At))
	if !m.goHeap && !o.adopted {
		require.True(t, testkit.Faults(o.a.Ptr))
		if m.quarantine {
			m.quarantined = append(m.quarantined, o.a.At)
			m.sizes = append(m.sizes, shm.RoundUp(o.n))
		}
	}
	m.past = append(m.past, o)
}

func (m *model) lookup(t *rapid.T) {
	from := uintptr(m.foreign)
	if all := append(m.live[:len(m.live):len(m.live)], m.past...); len(all) > 0 {
		o := all[rapid.IntRange(0, len(all)-1).Draw(t, "near")]
		from = o.base + uintptr(rapid.SampledFrom([]int{0, 1, o.n / 2, o.n - 1, o.n, -1}).Draw(t, "at"))
	}
	n := rapid.OneOf(rapid.IntRange(0, 10000), rapid.Just(0), rapid.IntRange(-1, 2<<20)).Draw(t, "bytes")
	var want *Allocation
	for _, o := range m.live {
		if n >= 0 && from >= o.base && from+uintptr(n) <= o.base+uintptr(o.n) {
			// An empty range between two neighbours is in both; Lookup finds the one that starts there.
			if want == nil || o.base == from {
				want = o.a
			}
		}
	}
	require.Same(t, want, m.h.Lookup(from, n), "[%#x,+%d)", from, n)
}

func (m *model) check(t *rapid.T) {
	s := m.h.Stats()
	require.Equal(t, len(m.live), s.Allocations)
	var n int64
	for _, o := range m.live {
		n += int64(o.n)
		require.True(t, m.h.Directory().Live(o.a.At))
	}
	require.Equal(t, n, s.LiveBytes)
}

func TestModel(t *testing.T) {
	modes(t, func(t *testing.T, goHeap bool) {
		foreign, err := shm.Reserve(foreignBytes)
		require.NoError(t, err)
		defer shm.Unmap(foreign, foreignBytes)
		rapid.Check(t, func(t *rapid.T) {
			domains++
			h, err := New(domains, goHeap)
			require.NoError(t, err)
			defer h.Close()
			m := &model{h: h, goHeap: goHeap, generations: map[uint64]bool{}, foreign: foreign}
			t.Repeat(map[string]func(*rapid.T){
				"alloc": m.alloc, "alloc again": m.alloc, "adopt": m.adopt, "free": m.free, "lookup": m.lookup,
				"quarantine": func(t *rapid.T) {
					if rapid.IntRange(0, 9).Draw(t, "rarely") > 0 {
						t.Skip("not yet")
					}
					h.Quarantine()
					m.quarantine = true
				},
				"": m.check,
			})
		})
	})
}
