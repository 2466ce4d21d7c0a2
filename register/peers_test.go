package register

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Tests named after NCCL show that this cache does not have a weakness of NCCL's registration cache. Tests named after
// UCX check the guarantee of the test of that name in its test_rcache.cc, or an equivalent one where that test needs
// merging or hooks.

// TestNCCL_UnregisterInFlight: NCCL has no in-use guard.
func TestNCCL_UnregisterInFlight(t *testing.T) {
	b := &fake{kind: NET}
	c := newCache(t, Config{Backends: []Backend{b}})
	m := mem(1, 1, 0x10000, 4096)
	r := mustRegister(t, c, m, m.Base, 4096)
	one, two := c.FindLocal(m.Base, 10, 0), c.FindLocal(m.Base, 10, 0)
	require.NoError(t, r.Close())
	requireMiss(t, c, m.Base, 10)
	one.Release()
	require.Equal(t, 1, b.count(), "deregistered under a running operation")
	two.Release()
	require.Zero(t, b.count())
}

// TestNCCL_AddressReuse: NCCL does not identify allocations, and hits for a new one at the address of a freed one.
func TestNCCL_AddressReuse(t *testing.T) {
	b := &fake{kind: NET}
	c := newCache(t, Config{Backends: []Backend{b}})
	old, now := mem(1, 1, 0x10000, 4096), mem(1, 2, 0x10000, 4096)
	for _, how := range []string{"not forgotten", "forgotten"} {
		cl, err := c.RegisterAuto(old, old.Base, 4096)
		require.NoError(t, err)
		cl.Release()
		if how == "forgotten" {
			require.NoError(t, c.Forget(old, func(error) {}))
			requireMiss(t, c, old.Base, 64)
		}
		require.Nil(t, c.FindLocal(now.Base, 64, now.Generation), "hit the old registration")
		r := mustRegister(t, c, now, now.Base, 4096)
		cl = c.FindLocal(now.Base, 64, now.Generation)
		h, err := cl.Handle(NET)
		require.NoError(t, err)
		require.Equal(t, now, h.(*fakeHandle).mem)
		cl.Release()
		require.Nil(t, c.FindLocal(old.Base, 64, old.Generation), "the old view hits the new memory")
		require.NoError(t, r.Close())
		old.Generation, now.Generation = old.Generation+2, now.Generation+2
	}
	require.Zero(t, b.count())
}

// TestNCCL_Limits: NCCL has no limits and no eviction.
func TestNCCL_Limits(t *testing.T) {
	b := &fake{kind: NET}
	c := newCache(t, Config{MaxRegions: 10, MaxBytes: 8 * 4096, Backends: []Backend{b}})
	for i := range uint64(1000) {
		m := mem(i+1, 1, uintptr(0x10000+i*8192), 4096)
		cl, err := c.RegisterAuto(m, m.Base, 4096)
		require.NoError(t, err)
		cl.Release()
		require.LessOrEqual(t, b.count(), 8)
	}
	require.EqualValues(t, 992, c.Stats().Evictions)
	require.Equal(t, [2]int{1000, 992}, b.calls())
}

// TestNCCL_Counters: NCCL counts nothing.
func TestNCCL_Counters(t *testing.T) {
	c := newCache(t, Config{Backends: []Backend{&fake{kind: NET}}})
	m := mem(1, 1, 0x10000, 4096)
	r := mustRegister(t, c, m, m.Base, 4096)
	for range 5 {
		requireHit(t, c, m.Base+8, 8)
	}
	requireMiss(t, c, m.Base+4090, 8)
	s := c.Stats()
	require.Positive(t, s.RegisterTime)
	s.RegisterTime = 0
	require.Equal(t, Stats{Hits: 5, Misses: 1, Registrations: 1, Regions: 1, Extents: 1, RegisteredBytes: 4096,
		NET: BackendStats{Complete: 1, Registered: 1}}, s)
	require.NoError(t, r.Close())
	s = c.Stats()
	require.Positive(t, s.DeregisterTime)
	require.EqualValues(t, 5, s.Hits, "hits of what is closed count")
	require.EqualValues(t, 1, s.Deregistrations)
}

// TestNCCL_Explain: NCCL cannot say why an operation copied.
func TestNCCL_Explain(t *testing.T) {
	c := newCache(t, Config{Backends: []Backend{&fake{kind: NET, regErr: errFake}, &fake{kind: IPC}}})
	m := mem(1, 1, 0x10000, 8192)
	mustRegister(t, c, m, m.Base+100, 1000)
	require.Contains(t, c.Explain(m.Base+100, 10), "hit")
	require.Contains(t, c.Explain(m.Base+100, 10), errFake.Error())
	require.Contains(t, c.Explain(m.Base+1090, 20), "ends 10 bytes before its end")
}

// TestNCCL_GraphShadowsLocal: NCCL returns the record that starts first, even if only a graph holds it, and so misses
// the user's own.
func TestNCCL_GraphShadowsLocal(t *testing.T) {
	for _, first := range []string{"local", "graph"} {
		t.Run(first+" first", func(t *testing.T) {
			c := newCache(t, Config{})
			m := mem(1, 1, 0x10000, 1<<20)
			var g *Ref
			var err error
			if first == "graph" {
				g, err = c.RetainGraph(m, m.Base, m.Bytes)
				require.NoError(t, err)
			}
			r := mustRegister(t, c, m, m.Base+4096, 4096)
			if first == "local" {
				g, err = c.RetainGraph(m, m.Base, m.Bytes)
				require.NoError(t, err)
			}
			requireHit(t, c, m.Base+4096, 4096)
			requireMiss(t, c, m.Base, 64)
			cl := c.FindGraph(m.Base+4096, 4096, 0)
			require.Same(t, g.Claim(), cl)
			cl.Release()
			require.NoError(t, g.Close())
			requireHit(t, c, m.Base+4096, 4096)
			require.NoError(t, r.Close())
		})
	}
}

// TestNCCL_RefUnderflow: in NCCL, one deregistration too many while a graph holds the record makes the count -1, which
// reads as registered forever.
func TestNCCL_RefUnderflow(t *testing.T) {
	b := &fake{kind: NET}
	c := newCache(t, Config{Backends: []Backend{b}})
	m := mem(1, 1, 0x10000, 4096)
	r := mustRegister(t, c, m, m.Base, 4096)
	g, err := c.RetainGraph(m, m.Base, 4096)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	for range 3 {
		require.ErrorIs(t, r.Close(), fault.ErrClosed)
	}
	requireMiss(t, c, m.Base, 64)
	require.NoError(t, g.Close())
	require.ErrorIs(t, g.Close(), fault.ErrClosed)
	require.Zero(t, b.count(), "never freed")
	require.Nil(t, r.Claim())
}

// TestNCCL_PageNeighbour: because NCCL rounds to pages, it hits for a neighbour that was not registered.
func TestNCCL_PageNeighbour(t *testing.T) {
	c := newCache(t, Config{})
	m := mem(1, 1, 0x10000, 4096)
	mustRegister(t, c, m, m.Base+64, 128)
	requireHit(t, c, m.Base+64, 128)
	for _, miss := range [][2]int{{0, 64}, {63, 1}, {63, 2}, {192, 1}, {191, 2}, {64, 129}, {0, 4096}} {
		requireMiss(t, c, m.Base+uintptr(miss[0]), miss[1])
	}
	require.Contains(t, c.Explain(m.Base+192, 64), "on the same page: only exact bytes hit")
	// Two allocations may share a page.
	n := mem(2, 1, 0x10000+4096, 100)
	o := mem(3, 1, 0x10000+4196, 100)
	mustRegister(t, c, n, n.Base, 100)
	mustRegister(t, c, o, o.Base, 100)
	requireHit(t, c, n.Base, 100)
	requireHit(t, c, o.Base, 100)
	requireMiss(t, c, n.Base, 200)
}

// TestNCCL_StaleHandle: NCCL's handle is a pointer, which names another record once malloc reuses the memory.
func TestNCCL_StaleHandle(t *testing.T) {
	c := newCache(t, Config{})
	m := mem(1, 1, 0x10000, 4096)
	old := mustRegister(t, c, m, m.Base, 4096)
	require.NoError(t, old.Close())
	now := mustRegister(t, c, m, m.Base, 4096)
	require.ErrorIs(t, old.Close(), fault.ErrClosed)
	_, err := old.Acquire()
	require.ErrorIs(t, err, fault.ErrClosed)
	requireHit(t, c, m.Base, 4096)
	require.NoError(t, now.Close())
}

// TestNCCL_ManyCommunicators: in NCCL, one buffer of k communicators is registered k times.
func TestNCCL_ManyCommunicators(t *testing.T) {
	b := &fake{kind: NET}
	c := newCache(t, Config{Backends: []Backend{b}})
	m := mem(1, 1, 0x10000, 1<<20)
	refs := make([]*Ref, 8)
	var wg sync.WaitGroup
	for i := range refs {
		wg.Go(func() {
			var err error
			refs[i], err = c.Register(m, m.Base, m.Bytes)
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, r := range refs {
		require.Equal(t, 1, b.count())
		require.Same(t, refs[0].cl, r.cl)
		require.NoError(t, r.Close())
	}
	require.Equal(t, [2]int{1, 1}, b.calls())
}

// TestNCCL_OrderAfterRemove: NCCL's cache of memory regions moves the last entry into the hole, which breaks the order,
// so later lookups miss existing entries.
func TestNCCL_OrderAfterRemove(t *testing.T) {
	c := newCache(t, Config{})
	refs := map[int]*Ref{}
	for i := range 500 {
		m := mem(uint64(i+1), 1, uintptr(0x10000+i*8192), 4096)
		refs[i] = mustRegister(t, c, m, m.Base, 4096)
	}
	r := testkit.Random(t)
	for _, i := range r.Perm(500)[:400] {
		require.NoError(t, refs[i].Close())
		delete(refs, i)
	}
	for i := range 500 {
		if addr := uintptr(0x10000 + i*8192); refs[i] != nil {
			requireHit(t, c, addr, 4096)
		} else {
			requireMiss(t, c, addr, 4096)
		}
	}
	checkIndex(t, c.local)
}

// TestNCCL_CleanupGoesOn: when NCCL cannot deregister, it only writes a line to its log.
func TestNCCL_CleanupGoesOn(t *testing.T) {
	var order []string
	var backends []Backend
	for _, k := range []BackendKind{IPC, COLLNET, NVLS, NET} {
		backends = append(backends, &fake{kind: k, derErr: fmt.Errorf("%v is broken: %w", k, errFake),
			log: func(s string) { order = append(order, strings.Fields(s)[0]+" "+strings.Fields(s)[1]) }})
	}
	var errs errList
	c := newCache(t, Config{Backends: backends, OnError: errs.add})
	m := mem(1, 1, 0x10000, 4096)
	r := mustRegister(t, c, m, m.Base, 4096)
	order = nil
	err := r.Close()
	require.Equal(t, []string{"NET deregister", "NVLS deregister", "COLLNET deregister", "IPC deregister"}, order)
	for _, k := range []BackendKind{NET, NVLS, COLLNET, IPC} {
		require.ErrorContains(t, err, k.String()+" is broken")
	}
	require.Empty(t, errs.String(), "they were returned")
	s := c.Stats()
	require.EqualValues(t, 4, s.BackendFailures)
	for _, of := range []BackendStats{s.NET, s.NVLS, s.COLLNET, s.IPC} {
		require.Equal(t, BackendStats{Registered: 1, Failures: 1}, of)
	}
}

// TestNCCL_CloseWithLeftovers: NCCL cleans leftovers up after what they need is gone. Here Close names them, and claims
// in flight keep their handles.
func TestNCCL_CloseWithLeftovers(t *testing.T) {
	b := &fake{kind: NET}
	c := newCache(t, Config{Backends: []Backend{b}})
	m, o := mem(7, 1, 0x10000, 4096), mem(8, 1, 0x20000, 4096)
	r := mustRegister(t, c, m, m.Base+16, 32)
	_, err := c.RetainGraph(o, o.Base, 64)
	require.NoError(t, err)
	cl := c.FindLocal(m.Base+16, 32, 0)
	err = c.Close()
	require.ErrorIs(t, err, fault.ErrInUse)
	require.ErrorContains(t, err, "2 claims; [0x10010,+32) of memory 7 generation 1 (arena, host): 1 local, 0 graph; "+
		"[0x20000,+64) of memory 8 generation 1 (arena, host): 0 local, 1 graph")
	h, err := cl.Handle(NET)
	require.NoError(t, err)
	require.False(t, h.(*fakeHandle).gone)
	free := 0
	require.NoError(t, c.Forget(m, func(error) { free++ }))
	require.Zero(t, free)
	cl.Release()
	require.Zero(t, b.count())
	require.Equal(t, 1, free)
	require.ErrorIs(t, r.Close(), fault.ErrClosed)
	require.ErrorIs(t, c.Close(), fault.ErrClosed)
	_, err = c.RegisterAuto(m, m.Base, 1)
	require.ErrorIs(t, err, fault.ErrClosed)
	requireMiss(t, c, m.Base+16, 32)
}

// TestUCX_get_unmapped: after unmap and a new mapping at the same address, get gives a new region.
func TestUCX_get_unmapped(t *testing.T) {
	c := newCache(t, Config{Backends: []Backend{&fake{kind: NET}}})
	m := mem(1, 1, 0x10000, 4096)
	old, err := c.RegisterAuto(m, m.Base, 4096)
	require.NoError(t, err)
	old.Release()
	require.NoError(t, c.Invalidate(m.Base, 4096))
	m.Generation++
	now, err := c.RegisterAuto(m, m.Base, 4096)
	require.NoError(t, err)
	require.NotSame(t, old, now)
	h, err := now.Handle(NET)
	require.NoError(t, err)
	require.EqualValues(t, 2, h.(*fakeHandle).mem.Generation)
	now.Release()
}

// TestUCX_put_and_invalidate: a region that is invalidated after the last put ends at once.
func TestUCX_put_and_invalidate(t *testing.T) {
	b := &fake{kind: NET}
	c := newCache(t, Config{Backends: []Backend{b}})
	m := mem(1, 1, 0x10000, 4096)
	cl, err := c.RegisterAuto(m, m.Base, 4096)
	require.NoError(t, err)
	cl.Release()
	require.Equal(t, 1, b.count())
	require.NoError(t, c.Invalidate(m.Base, 1))
	require.Zero(t, b.count())
}

// TestUCX_release_inuse: a region that is invalidated in use ends with the last put.
func TestUCX_release_inuse(t *testing.T) {
	b := &fake{kind: NET}
	c := newCache(t, Config{Backends: []Backend{b}})
	m := mem(1, 1, 0x10000, 4096)
	cl, err := c.RegisterAuto(m, m.Base, 4096)
	require.NoError(t, err)
	require.NoError(t, c.Invalidate(m.Base, 4096))
	require.Equal(t, 1, b.count())
	require.ErrorIs(t, cl.Valid(), fault.ErrStale)
	cl.Release()
	require.Zero(t, b.count())
}

// TestUCX_merge: overlapping regions, and adjacent ones with the gap between them, share one registration that contains
// both. (UCX registers their union anew; here the whole allocation is registered from the start.)
func TestUCX_merge(t *testing.T) {
	b := &fake{kind: NET}
	c := newCache(t, Config{Backends: []Backend{b}})
	m := mem(1, 1, 0x10000, 65536)
	var handle any
	for _, r := range [][2]int{{0, 16384}, {8192, 16384}, {40960, 8192}, {0, 65536}} {
		cl := mustRegister(t, c, m, m.Base+uintptr(r[0]), r[1]).Claim()
		h, err := cl.Handle(NET)
		require.NoError(t, err)
		require.True(t, handle == nil || handle == h)
		handle = h
	}
	require.Equal(t, [2]int{1, 0}, b.calls())
}

// TestUCX_merge_inv: invalidating a part of merged regions invalidates all of them, in use or not.
func TestUCX_merge_inv(t *testing.T) {
	b := &fake{kind: NET}
	c := newCache(t, Config{Backends: []Backend{b}})
	m := mem(1, 1, 0x10000, 65536)
	one := mustRegister(t, c, m, m.Base, 16384)
	two := mustRegister(t, c, m, m.Base+8192, 16384)
	cl := c.FindLocal(m.Base, 64, 0)
	require.NoError(t, c.Invalidate(m.Base+20000, 10))
	requireMiss(t, c, m.Base, 64)
	requireMiss(t, c, m.Base+8192, 16384)
	for _, r := range []*Ref{one, two} {
		_, err := r.Acquire()
		require.ErrorIs(t, err, fault.ErrStale)
		require.NoError(t, r.Close())
	}
	require.Equal(t, 1, b.count())
	cl.Release()
	require.Zero(t, b.count())
}

// TestUCX_merge_expand_prot: a region grows while the smaller one is in use, which keeps working. (Protections do not
// differ here: an allocation is registered for all access, or registration fails.)
func TestUCX_merge_expand_prot(t *testing.T) {
	b := &fake{kind: NET}
	c := newCache(t, Config{Backends: []Backend{b}})
	m := mem(1, 1, 0x10000, 65536)
	small := mustRegister(t, c, m, m.Base+4096, 4096)
	cl := c.FindLocal(m.Base+4096, 4096, 0)
	big := mustRegister(t, c, m, m.Base, 65536)
	require.NoError(t, small.Close())
	h, err := cl.Handle(NET)
	require.NoError(t, err)
	require.False(t, h.(*fakeHandle).gone)
	cl.Release()
	requireHit(t, c, m.Base+4096, 4096)
	require.NoError(t, big.Close())
	require.Equal(t, [2]int{1, 1}, b.calls())
}

// TestUCX_register_failure: a failed registration is an error and leaves nothing behind, and automatic registration
// does not retry forever; a second backend still counts.
func TestUCX_register_failure(t *testing.T) {
	b := &fake{kind: NET, regErr: errFake}
	c := newCache(t, Config{Backends: []Backend{b}})
	m := mem(1, 1, 0x10000, 4096)
	for range 5 {
		_, err := c.RegisterAuto(m, m.Base, 4096)
		require.ErrorIs(t, err, errFake)
	}
	require.Equal(t, [2]int{1, 0}, b.calls())
	s := c.Stats()
	require.Zero(t, s.Regions+s.Extents+int(s.RegisteredBytes))
	requireMiss(t, c, m.Base, 64)
	b.fail(nil, nil)
	r := mustRegister(t, c, m, m.Base, 4096)
	requireHit(t, c, m.Base, 64)
	require.NoError(t, r.Close())
	require.NoError(t, c.Close())
}

// TestUCX_limits: by_count, by_size, by_size_inuse.
func TestUCX_limits(t *testing.T) {
	region := func(i int) Memory { return mem(uint64(i+1), 1, uintptr(0x10000+i*0x10000), 8192) }
	for _, tt := range []struct {
		name   string
		config Config
		inUse  bool
		live   int // how many of 4, registered one after the other, stay
		err    error
	}{
		{"by_count", Config{MaxRegions: 2}, false, 2, nil},
		{"by_size", Config{MaxBytes: 3 * 8192}, false, 3, nil},
		{"by_size_inuse", Config{MaxBytes: 3 * 8192}, true, 3, fault.ErrLimit},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &fake{kind: NET}
			tt.config.Backends = []Backend{b}
			c := newCache(t, tt.config)
			var last error
			for i := range 4 {
				var cl *Claim
				cl, last = c.RegisterAuto(region(i), region(i).Base, 8192)
				if last == nil && !tt.inUse {
					cl.Release()
				}
			}
			require.Equal(t, tt.live, b.count())
			require.True(t, errors.Is(last, tt.err), "%v", last)
		})
	}
}

// TestUCX_stats: hits, and the deregistration that an unmap causes.
func TestUCX_stats(t *testing.T) {
	c := newCache(t, Config{Backends: []Backend{&fake{kind: NET}}})
	m := mem(1, 1, 0x10000, 4096)
	mustRegister(t, c, m, m.Base, 4096)
	requireHit(t, c, m.Base, 64)
	require.NoError(t, c.Invalidate(m.Base, 4096))
	s := c.Stats()
	s.RegisterTime, s.DeregisterTime = 0, 0
	require.Equal(t, Stats{Hits: 1, Registrations: 1, Deregistrations: 1, NET: BackendStats{Registered: 1}}, s)
}

// TestUCX_inv_q: regions that wait to be invalidated do not pile up.
func TestUCX_inv_q(t *testing.T) {
	c := newCache(t, Config{})
	for i := range uint64(40000) {
		m := mem(i%16+1, i/16+1, uintptr(0x10000+i%16*8192), 4096)
		mustRegister(t, c, m, m.Base, 4096)
		require.NoError(t, c.Invalidate(m.Base, 4096))
	}
	require.Zero(t, len(c.leaving)+len(c.extents)+len(c.queue)+c.local.n+c.places.n)
}
