package register

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// checkIndex walks the whole tree and fails if an invariant does not hold.
func checkIndex(t *testing.T, ix *index) {
	t.Helper()
	r := ix.root.Load()
	n, _ := checkBelow(t, r.top, r.height, 0, maxAddr, true)
	require.Equal(t, ix.n, n)
	for i := range ix.hints.Load().slots {
		if cl := ix.hints.Load().slots[i].Load(); cl != nil {
			require.Contains(t, ix.claimsIn(cl.start, cl.start+1), cl, "a hint to what is not in the tree")
		}
	}
}

func checkBelow(t *testing.T, p unsafe.Pointer, height int, lo, hi uint64, isRoot bool) (n int, reach uint64) {
	t.Helper()
	if height == 0 {
		l := (*leaf)(p)
		n = l.len()
		require.True(t, isRoot || n > 0, "an empty leaf is linked")
		for i := range leafFan {
			if i >= n {
				require.Nil(t, l.claims[i])
				require.EqualValues(t, unused, l.starts[i])
				continue
			}
			cl := l.claims[i]
			require.Equal(t, cl.start, l.starts[i])
			require.True(t, lo <= cl.start && cl.start <= hi, "%#x is outside of [%#x,%#x]", cl.start, lo, hi)
			require.True(t, i == 0 || l.starts[i-1] <= cl.start, "the order is broken")
			reach = max(reach, cl.end)
			require.Equal(t, reach, l.reach[i])
		}
		return n, reach
	}
	nd := (*inner)(p)
	require.True(t, nd.n > 1 || nd.n == 1 && !isRoot)
	for i := range nd.n {
		low, high := lo, hi
		if i > 0 {
			low = nd.keys[i]
		}
		if i+1 < nd.n {
			high = nd.keys[i+1]
		}
		if i > 0 && i%8 == 0 {
			require.Equal(t, nd.keys[i], nd.guide[i/8])
		}
		m, top := checkBelow(t, nd.kids[i], height-1, low, high, false)
		require.Equal(t, top, nd.reach[i], "reach is not exact while no writer runs")
		n += m
		reach = max(reach, top)
	}
	return n, reach
}

// TestIndex inserts, removes and looks up at random, and compares with a scan of a list.
func TestIndex(t *testing.T) {
	for _, shape := range []struct {
		name   string
		random func(r *rand.Rand) (start, size uint64)
		steps  int
	}{
		{"disjoint ascending or so", func(r *rand.Rand) (uint64, uint64) { return r.Uint64N(1<<16) * 8192, 4096 }, 20000},
		{"overlaps", func(r *rand.Rand) (uint64, uint64) { return r.Uint64N(4096), 1 + r.Uint64N(512) }, 20000},
		{"many equal starts", func(r *rand.Rand) (uint64, uint64) { return r.Uint64N(8), 1 + r.Uint64N(4096) }, 4000},
		{"a few very long", func(r *rand.Rand) (uint64, uint64) {
			if r.IntN(50) == 0 {
				return r.Uint64N(1 << 20), 1 << 20
			}
			return r.Uint64N(1 << 20), 64
		}, 20000},
	} {
		for _, private := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/private=%v", shape.name, private), func(t *testing.T) {
				r := testkit.Random(t)
				ix := newIndex(private)
				var all []*Claim
				for step := range shape.steps {
					start, size := shape.random(r)
					grow := step/2000%2 == 0 // in waves, so that the tree gets deep and then empty again
					switch k := r.IntN(10); {
					case k < 5 && grow || k < 2:
						cl := &Claim{start: start, end: start + size}
						ix.insert(cl)
						all = append(all, cl)
					case k < 7 && len(all) > 0:
						i := r.IntN(len(all))
						require.True(t, ix.remove(all[i]))
						require.False(t, ix.remove(all[i]))
						all = slices.Delete(all, i, i+1)
					default:
						addr, n := start+r.Uint64N(size), 1+r.Uint64N(size)
						want := slices.ContainsFunc(all, func(cl *Claim) bool { return cl.start <= addr && addr+n <= cl.end })
						got := ix.find(addr, addr+n)
						require.Equal(t, want, got != nil, "[%#x,+%d)", addr, n)
						if got != nil {
							require.True(t, got.start <= addr && addr+n <= got.end)
						}
						require.Equal(t, want, ix.stab(&query{addr: addr, end: addr + n}) != nil)
					}
					if step%997 == 0 {
						checkIndex(t, ix)
					}
				}
				var want []*Claim
				lo, hi := uint64(0), uint64(maxAddr)
				ix.ascend(lo, hi, func(cl *Claim) bool { want = append(want, cl); return true })
				require.ElementsMatch(t, all, want)
				for _, cl := range all {
					require.Contains(t, ix.claimsIn(cl.start, cl.start+1), cl)
					got := ix.exact(cl.start, cl.end)
					require.True(t, got != nil && got.start == cl.start && got.end == cl.end)
					require.True(t, ix.remove(cl))
				}
				checkIndex(t, ix)
				require.Equal(t, root{top: ix.root.Load().top}, *ix.root.Load(), "an empty tree has no height")
				require.Len(t, ix.hints.Load().slots, minHints, "the hints shrink with the tree")
			})
		}
	}
}

// TestIndexClosing looks for a claim behind closing claims, which must not cause a miss.
func TestIndexClosing(t *testing.T) {
	ix, cache := newIndex(false), newCache(t, Config{})
	want := &Claim{start: 0, end: 1 << 20}
	ix.insert(want)
	for i := range uint64(200) {
		cl := &Claim{start: 1000 + i, end: 1<<20 - i}
		cl.ended.Store(true)
		cl.ext = &extent{cache: cache}
		cl.state.Store(closing)
		ix.insert(cl)
	}
	require.Same(t, want, ix.find(1200, 1300))
}

// TestNCCL_LinearScan: the cost of a lookup, hit or miss, grows with the logarithm of the claims. (NCCL scans a list.)
func TestNCCL_LinearScan(t *testing.T) {
	for _, n := range []int{10, 1000, 100000} {
		t.Run(fmt.Sprintf("claims=%d", n), func(t *testing.T) {
			ix := newIndex(false)
			for i := range uint64(n) {
				ix.insert(&Claim{start: i * 8192, end: i*8192 + 4096})
			}
			ix.insert(&Claim{start: 100, end: uint64(n) * 8192}) // starts far left of most addresses that it contains
			bound := 2 * (ix.root.Load().height + 1)
			r := testkit.Random(t)
			for range 1000 {
				i := r.Uint64N(uint64(n))
				for _, q := range []*query{
					{addr: i*8192 + 64, end: i*8192 + 1088},   // in the nearest claim
					{addr: i*8192 + 4000, end: i*8192 + 5000}, // only in the long one
					{addr: i*8192 + 4000, end: 1 << 50},       // in none
				} {
					cl := ix.stab(q)
					require.Equal(t, q.end < 1<<50, cl != nil)
					require.LessOrEqual(t, q.visits, bound)
				}
			}
		})
	}
}

func TestClaimIsOneLine(t *testing.T) {
	require.EqualValues(t, 56, unsafe.Sizeof(Claim{}), "the size class is 64, which is a cache line")
	require.EqualValues(t, 384, unsafe.Sizeof(leaf{}))
	require.EqualValues(t, 56, unsafe.Offsetof(inner{}.guide))
}
