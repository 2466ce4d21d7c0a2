package register

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ubcoll/ubcoll/fault"
)

// model is the cache as a plain list. It predicts every answer of the cache, eviction included.
type model struct {
	cache      *Cache
	backend    *fake
	maxRegions int
	maxBytes   int64
	clock      uint64
	claims     []*modelClaim // kept until their last use has left
	refs       []*modelRef
	uses       []modelUse
	mems       []Memory // the newest description of each ID
	freed      map[[2]uint64]*int
	extents    int // made so far
	hits       int64
	misses     int64
	evicted    int64
}

type modelClaim struct {
	real         *Claim
	mem          Memory
	extent       int // its number: after Invalidate a memory may have a second extent
	start, end   uintptr
	local, graph int
	auto         bool
	uses         int
	used         uint64
	closing      bool
	stale        bool
}

type modelRef struct {
	real  *Ref
	cl    *modelClaim
	graph bool
	open  bool
}

type modelUse struct {
	real *Claim
	cl   *modelClaim
}

func (cl *modelClaim) held() bool { return cl.local+cl.graph > 0 }

// sweep drops claims that have ended.
func (m *model) sweep() {
	var left []*modelClaim
	for _, cl := range m.claims {
		if !cl.closing && !cl.held() && !cl.auto {
			cl.closing = true
		}
		if !cl.closing || cl.uses > 0 {
			left = append(left, cl)
		}
	}
	m.claims = left
}

func (m *model) pinned() (bytes int64, extents int) {
	seen := map[int]bool{}
	for _, cl := range m.claims {
		if !seen[cl.extent] {
			seen[cl.extent] = true
			bytes += int64((cl.mem.Base+uintptr(cl.mem.Bytes)+4095)&^4095 - cl.mem.Base&^4095)
			extents++
		}
	}
	return bytes, extents
}

func (m *model) retire(bad func(Memory) bool) {
	for _, cl := range m.claims {
		if !cl.stale && bad(cl.mem) {
			cl.stale, cl.closing = true, true
		}
	}
	m.sweep()
}

// live is the number of mem's extent, or 0.
func (m *model) live(mem Memory) int {
	for _, cl := range m.claims {
		if cl.mem == mem && !cl.stale {
			return cl.extent
		}
	}
	return 0
}

// reserve predicts evictions, and whether a limit is reached.
func (m *model) reserve(mem Memory) bool {
	keep := m.live(mem) != 0
	need := int64((mem.Base+uintptr(mem.Bytes)+4095)&^4095 - mem.Base&^4095)
	for {
		pinned, _ := m.pinned()
		count := m.maxRegions > 0 && len(m.claims) >= m.maxRegions
		size := m.maxBytes > 0 && !keep && pinned+need > m.maxBytes
		if !count && !size {
			return true
		}
		if size && need > m.maxBytes || !m.evict() {
			return false
		}
	}
}

func (m *model) evict() bool {
	busy := false
	defer func() {
		if busy {
			m.clock++
		}
	}()
	tried := map[*modelClaim]bool{}
	for {
		var top *modelClaim
		for _, cl := range m.claims {
			if !cl.auto || cl.held() || cl.closing || tried[cl] {
				continue
			}
			if top == nil || cl.used < top.used || cl.used == top.used && cl.start < top.start {
				top = cl
			}
		}
		if top == nil {
			return false
		}
		tried[top] = true
		if top.uses == 0 {
			top.closing = true
			m.evicted++
			m.sweep()
			return true
		}
		busy = true
		top.used = m.clock
	}
}

// join predicts Register, RetainGraph and RegisterAuto.
func (m *model) join(t *rapid.T, mem Memory, addr uintptr, n int, why purpose) {
	done := m.freed[[2]uint64{mem.ID, mem.Generation}]
	if done != nil && *done > 0 {
		return // the memory has been given back: it must not be registered
	}
	var ref *Ref
	var use *Claim
	var err error
	switch why {
	case forLocal:
		ref, err = m.cache.Register(mem, addr, n)
	case forGraph:
		ref, err = m.cache.RetainGraph(mem, addr, n)
	case forUse:
		use, err = m.cache.RegisterAuto(mem, addr, n)
	}
	if done != nil {
		require.ErrorIs(t, err, fault.ErrStale)
		return
	}
	for _, cl := range m.claims {
		if !cl.stale && cl.mem.ID == mem.ID && cl.mem.Generation > mem.Generation {
			require.ErrorIs(t, err, fault.ErrStale)
			return
		}
	}
	end := uintptr(mem.Base) + uintptr(mem.Bytes)
	m.retire(func(o Memory) bool {
		return o != mem && (o.ID == mem.ID || o.Base < end && mem.Base < o.Base+uintptr(o.Bytes))
	})
	var cl *modelClaim
	for _, old := range m.claims {
		if !old.closing && old.start == addr && old.end == addr+uintptr(n) {
			cl = old
		}
	}
	if cl == nil {
		extent := m.live(mem)
		if !m.reserve(mem) {
			require.ErrorIs(t, err, fault.ErrLimit)
			return
		}
		if extent == 0 {
			m.extents++
			extent = m.extents
		}
		cl = &modelClaim{mem: mem, extent: extent, start: addr, end: addr + uintptr(n), used: m.clock}
		m.clock++
		m.claims = append(m.claims, cl)
	} else if why == forUse {
		cl.used = m.clock
	}
	require.NoError(t, err)
	switch why {
	case forLocal:
		cl.local++
	case forGraph:
		cl.graph++
	case forUse:
		cl.auto = cl.auto || cl.local == 0
		cl.uses++
		m.uses = append(m.uses, modelUse{use, cl})
	}
	if ref != nil {
		m.refs = append(m.refs, &modelRef{real: ref, cl: cl, graph: why == forGraph, open: true})
		use = ref.Claim()
	}
	if cl.real == nil {
		cl.real = use
	}
	require.Same(t, cl.real, use)
}

func (m *model) find(t *rapid.T, addr uintptr, n int, generation uint64, graph bool) {
	got := m.cache.FindLocal
	if graph {
		got = m.cache.FindGraph
	}
	real := got(addr, n, generation)
	var found *modelClaim
	possible := false
	for _, cl := range m.claims {
		in := cl.local > 0 || cl.auto
		if graph {
			in = cl.graph > 0
		}
		if in && !cl.closing && n > 0 && cl.start <= addr && addr+uintptr(n) <= cl.end {
			possible = possible || generation == 0 || generation == cl.mem.Generation
			if cl.real == real {
				found = cl
			}
		}
	}
	require.Equal(t, possible, real != nil, "[%#x,+%d) generation %d", addr, n, generation)
	if real == nil {
		m.misses++
		return
	}
	require.NotNil(t, found, "found %v, which does not contain [%#x,+%d)", real, addr, n)
	m.hits++
	found.uses++
	found.used = m.clock
	m.uses = append(m.uses, modelUse{real, found})
}

// TestModel makes all calls at random and compares with the model after each step.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{
			backend:    &fake{kind: IPC},
			maxRegions: rapid.SampledFrom([]int{0, 0, 2, 4, 8}).Draw(t, "max regions"),
			maxBytes:   rapid.SampledFrom([]int64{0, 0, 8192, 20480}).Draw(t, "max bytes"),
			freed:      map[[2]uint64]*int{},
		}
		var errs errList
		var err error
		m.cache, err = New(Config{MaxRegions: m.maxRegions, MaxBytes: m.maxBytes, PageSize: 4096,
			Backends: []Backend{m.backend}, OnError: errs.add})
		require.NoError(t, err)
		// Two IDs share addresses, so that one replaces the other; one is not page aligned.
		describe := func(id, generation uint64) Memory { // every third generation is at another address
			base := []uintptr{0x10000, 0x12000, 0x20000, 0x30010, 0x11000}[id-1]
			return mem(id, generation, base+4096*uintptr(generation%3/2), 8192)
		}
		for id := range uint64(5) {
			m.mems = append(m.mems, describe(id+1, 1))
		}
		addr := func(mem Memory) (uintptr, int) { // only a few distinct ranges, so that claims nest, overlap and repeat
			off := rapid.SampledFrom([]int{0, 0, 64, 1024, 4096, 5000}).Draw(t, "offset")
			n := rapid.SampledFrom([]int{1, 64, 1024, 3192, 8192}).Draw(t, "bytes")
			return mem.Base + uintptr(off), min(n, mem.Bytes-off)
		}
		anyMem := func() Memory { return rapid.SampledFrom(m.mems).Draw(t, "memory") }
		t.Repeat(map[string]func(*rapid.T){
			"register": func(t *rapid.T) {
				mem := anyMem()
				a, n := addr(mem)
				m.join(t, mem, a, n, rapid.SampledFrom([]purpose{forLocal, forGraph, forUse, forUse}).Draw(t, "why"))
			},
			"old generation": func(t *rapid.T) {
				mem := anyMem()
				if mem.Generation > 1 {
					mem = describe(mem.ID, mem.Generation-1)
					m.join(t, mem, mem.Base, 64, forLocal)
				}
			},
			"find": func(t *rapid.T) {
				mem := anyMem()
				a, n := addr(mem)
				n = rapid.IntRange(0, n).Draw(t, "n")
				m.find(t, a, n, rapid.SampledFrom([]uint64{0, 0, mem.Generation, mem.Generation + 1}).Draw(t, "generation"),
					rapid.Bool().Draw(t, "graph"))
			},
			"acquire": func(t *rapid.T) {
				if len(m.refs) == 0 {
					t.Skip("no references")
				}
				r := rapid.SampledFrom(m.refs).Draw(t, "ref")
				cl, err := r.real.Acquire()
				switch {
				case !r.open:
					require.ErrorIs(t, err, fault.ErrClosed)
				case r.cl.stale:
					require.ErrorIs(t, err, fault.ErrStale)
				default:
					require.NoError(t, err)
					m.hits++
					r.cl.uses++
					m.uses = append(m.uses, modelUse{cl, r.cl})
				}
			},
			"release": func(t *rapid.T) {
				if len(m.uses) == 0 {
					t.Skip("nothing in use")
				}
				i := rapid.IntRange(0, len(m.uses)-1).Draw(t, "use")
				u := m.uses[i]
				m.uses = append(m.uses[:i:i], m.uses[i+1:]...)
				u.real.Release()
				u.cl.uses--
				m.sweep()
			},
			"quiet": func(t *rapid.T) { // leaves idle claims that can be evicted
				for _, u := range m.uses {
					u.real.Release()
					u.cl.uses--
				}
				m.uses = nil
				for _, r := range m.refs {
					if !r.open {
						continue
					}
					require.NoError(t, r.real.Close())
					if r.graph {
						r.cl.graph--
					} else {
						r.cl.local--
					}
				}
				m.refs = nil
				m.sweep()
			},
			"close": func(t *rapid.T) {
				if len(m.refs) == 0 {
					t.Skip("no references")
				}
				r := rapid.SampledFrom(m.refs).Draw(t, "ref")
				err := r.real.Close()
				if !r.open {
					require.ErrorIs(t, err, fault.ErrClosed)
					return
				}
				require.NoError(t, err)
				r.open = false
				if r.graph {
					r.cl.graph--
				} else {
					r.cl.local--
				}
				m.sweep()
			},
			"forget": func(t *rapid.T) {
				i := rapid.IntRange(0, len(m.mems)-1).Draw(t, "memory")
				mem := m.mems[i]
				if m.freed[[2]uint64{mem.ID, mem.Generation}] != nil {
					return
				}
				done := new(int)
				err := m.cache.Forget(mem, func(error) { *done++ })
				for _, cl := range m.claims {
					if cl.mem == mem && !cl.stale && cl.held() {
						require.ErrorIs(t, err, fault.ErrInUse)
						return
					}
				}
				require.NoError(t, err)
				m.retire(func(o Memory) bool { return o.ID == mem.ID })
				m.freed[[2]uint64{mem.ID, mem.Generation}] = done
			},
			"next generation": func(t *rapid.T) {
				i := rapid.IntRange(0, len(m.mems)-1).Draw(t, "memory")
				m.mems[i] = describe(m.mems[i].ID, m.mems[i].Generation+1)
			},
			"invalidate": func(t *rapid.T) {
				mem := anyMem()
				a, n := addr(mem)
				require.NoError(t, m.cache.Invalidate(a, n))
				m.retire(func(o Memory) bool { return o.Base < a+uintptr(n) && a < o.Base+uintptr(o.Bytes) })
			},
			"": func(t *rapid.T) { m.check(t, &errs) },
		})
		for _, u := range m.uses {
			u.real.Release()
		}
		_ = m.cache.Close() // other tests check the open references that it names
		require.Zero(t, m.backend.count(), "something is still registered")
		for mem, done := range m.freed {
			require.Equal(t, 1, *done, "memory %v", mem)
		}
		require.Empty(t, errs.String())
	})
}

// check compares everything that is visible from outside.
func (m *model) check(t *rapid.T, errs *errList) {
	bytes, extents := m.pinned()
	s := m.cache.Stats()
	require.Equal(t, len(m.claims), s.Regions)
	require.Equal(t, extents, s.Extents)
	require.Equal(t, extents, m.backend.count())
	require.Equal(t, extents, s.IPC.Complete)
	require.Equal(t, bytes, s.RegisteredBytes)
	require.Equal(t, m.hits, s.Hits)
	require.Equal(t, m.misses, s.Misses)
	require.Equal(t, m.evicted, s.Evictions)
	require.EqualValues(t, len(m.claims), s.Registrations-s.Deregistrations)
	if m.maxRegions > 0 {
		require.LessOrEqual(t, s.Regions, m.maxRegions)
	}
	for _, cl := range m.claims {
		require.False(t, cl.real.ended.Load(), "%v has ended", cl.real)
		require.Equal(t, cl.uses, cl.real.inFlight())
		require.Equal(t, cl.stale, cl.real.Valid() != nil)
		h, err := cl.real.Handle(IPC)
		require.NoError(t, err)
		require.False(t, h.(*fakeHandle).gone, "deregistered while %v is alive", cl.real)
	}
	for id, done := range m.freed {
		busy := 0
		for _, cl := range m.claims {
			if cl.mem.ID == id[0] && cl.mem.Generation == id[1] {
				busy = 1
			}
		}
		require.Equal(t, 1-busy, *done, fmt.Sprintf("memory %v was given back with uses in flight, or was not", id))
	}
}
