package register

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestStress looks up, registers, evicts, forgets and invalidates from several goroutines. The holder of a use reads
// the backend's handle, which Deregister writes: so a use after deregistration is a data race.
func TestStress(t *testing.T) {
	backend := &fake{kind: IPC}
	var errs errList
	c := newCache(t, Config{MaxRegions: 20, Backends: []Backend{backend}, OnError: errs.add})
	const ids = 16
	var generations [ids]atomic.Uint64
	for i := range generations {
		generations[i].Store(1)
	}
	describe := func(id int) Memory {
		return mem(uint64(id+1), generations[id].Load(), uintptr(0x100000+id*0x10000), 0x8000)
	}
	use := func(cl *Claim) {
		h, err := cl.Handle(IPC)
		if err != nil || h.(*fakeHandle).gone {
			t.Errorf("%v has no handle: %v", cl, err)
		}
		if h, _ := cl.Handle(IPC); h.(*fakeHandle).gone {
			t.Errorf("%v was deregistered in use", cl)
		}
		cl.Release()
	}
	const rounds = 10000
	var forgotten, done atomic.Int64
	seed := testkit.Random(t).Uint64()
	var wg sync.WaitGroup
	for g := range uint64(6) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, g))
			var refs []*Ref
			for range rounds {
				id := r.IntN(ids)
				m := describe(id)
				addr, n := m.Base+uintptr(r.IntN(8)*0x1000), 1+r.IntN(0x1000)
				switch k := r.IntN(20); {
				case k < 10:
					if cl := c.FindLocal(addr, n, 0); cl != nil {
						if cl.Addr() > addr || cl.Addr()+uintptr(cl.Len()) < addr+uintptr(n) {
							t.Errorf("found %v for [%#x,+%d)", cl, addr, n)
						}
						if r.IntN(4) == 0 {
							runtime.Gosched() // let other goroutines end it
						}
						use(cl)
					}
				case k < 13:
					cl, err := c.RegisterAuto(m, m.Base, m.Bytes)
					if err == nil {
						use(cl)
					} else {
						requireOneOf(t, err, fault.ErrLimit, fault.ErrStale)
					}
				case k < 16 && len(refs) < 4:
					var ref *Ref
					var err error
					if k == 15 {
						ref, err = c.RetainGraph(m, addr, n)
					} else {
						ref, err = c.Register(m, addr, n)
					}
					if err == nil {
						refs = append(refs, ref)
					} else {
						requireOneOf(t, err, fault.ErrLimit, fault.ErrStale)
					}
				case k < 18 && len(refs) > 0:
					if cl, err := refs[0].Acquire(); err == nil {
						use(cl)
					} else {
						requireOneOf(t, err, fault.ErrStale)
					}
					if err := refs[0].Close(); err != nil {
						t.Error(err)
					}
					refs = slices.Delete(refs, 0, 1)
				case k == 18:
					switch err := c.Forget(m, func(error) { done.Add(1) }); {
					case err == nil:
						forgotten.Add(1)
						generations[id].CompareAndSwap(m.Generation, m.Generation+1)
					default:
						requireOneOf(t, err, fault.ErrInUse, fault.ErrStale)
					}
				case r.IntN(20) == 0:
					if err := c.Invalidate(addr, n); err != nil {
						t.Error(err)
					}
				default:
					c.Explain(addr, n)
					c.Stats()
				}
			}
			for _, ref := range refs {
				if err := ref.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	checkIndex(t, c.local)
	checkIndex(t, c.graph)
	checkIndex(t, c.places)
	require.NoError(t, c.Close())
	require.Equal(t, forgotten.Load(), done.Load())
	require.Zero(t, backend.count())
	require.Empty(t, errs.String())
	s := c.Stats()
	require.Equal(t, s.Registrations, s.Deregistrations)
	require.Zero(t, s.Regions+s.Extents+int(s.RegisteredBytes)+len(c.queue)+len(c.leaving)+len(c.extents))
	require.NotZero(t, s.Evictions)
	require.NotZero(t, s.Hits)
}

func requireOneOf(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if errors.Is(err, target) {
			return
		}
	}
	t.Errorf("%v is none of %v", err, targets)
}

// TestNoSpuriousMiss: some claim always contains the address, while others around it come and go, and longer and
// shorter ones replace it. A lookup during several changes must not miss it.
func TestNoSpuriousMiss(t *testing.T) {
	ix := newIndex(false)
	const addr, end = 500000, 500064
	a := &Claim{start: 100, end: 1000000}
	b := &Claim{start: addr - 10, end: addr + 1000}
	ix.insert(a)
	for i := range uint64(3000) {
		ix.insert(&Claim{start: i * 333, end: i*333 + 50})
	}
	var stop atomic.Bool
	var misses, finds atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			if ix.find(addr, end) == nil {
				misses.Add(1)
			}
			finds.Add(1)
		}
	})
	r := testkit.Random(t)
	for i := 0; i < 20000 || finds.Load() < 1000; i++ {
		ix.insert(b)
		ix.remove(a)
		x := &Claim{start: r.Uint64N(1000000), end: 1000001}
		ix.insert(x)
		if x.start <= addr {
			ix.remove(x)
			x = nil
		}
		ix.insert(a)
		ix.remove(b)
		if x != nil {
			ix.remove(x)
		}
	}
	stop.Store(true)
	wg.Wait()
	require.Zero(t, misses.Load(), "of %d", finds.Load())
}
