package engine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/cuda/kernels"
)

// neighbours are n parameters that are kept in one place.
func neighbours(n int) (all []kernels.Params) {
	for src := uint64(0); len(all) < n; src += 256 {
		if p := (kernels.Params{Src: src}); setOf(&p) == 0 {
			all = append(all, p)
		}
	}
	return all
}

// transcript does launches, a letter for each, that all have one place, and says what is in it then: sights, worth, and *
// for a graph, which each third sight makes.
func transcript(t *repeats, launches string, all []kernels.Params, f *cuda.Function) (line string) {
	for _, l := range launches {
		e := t.sight(f, cuda.Launch{Grid: 1, Block: 32, Early: true}, &all[l-'a'])
		if e != nil && e.seen == repeatAfter && e.graph == nil {
			e.graph = new(cuda.Graph)
		}
	}
	for i := range t.sets[0] {
		e := &t.sets[0][i]
		for k := range all {
			if e.f == nil || e.params != all[k] {
				continue
			}
			line += fmt.Sprintf(" %c%d/%d", 'a'+k, e.seen, e.worth)
			if e.graph != nil {
				line += "*"
			}
		}
	}
	return strings.TrimSpace(line)
}

func TestRepeats(t *testing.T) {
	for _, x := range []struct{ launches, want string }{
		{"a", "a1/16"},
		{"aa", "a2/16"},
		{"aaa", "a3/16*"},
		{"aaaaa", "a3/16*"},
		{"abab", "a2/16 b2/16"},
		{"ababab", "a3/16* b3/16*"},
		{"aaabcd", "a3/16* b1/16 c1/16 d1/16"},
		{"aaabcde", "a3/15* b1/15 c1/15 d1/15"},
		{"aaabcdea", "a3/16* b1/15 c1/15 d1/15"},
		{"aaabcd" + strings.Repeat("ea", 16), "a3/16* b1/0 c1/0 d1/0"},
		{"aaabcd" + strings.Repeat("ea", 17), "a3/16* e1/16 c1/0 d1/0"},
		{"aaabcd" + strings.Repeat("ea", 20), "a3/16* e3/16* c1/0 d1/0"},
		{"aaabcd" + strings.Repeat("e", 16), "a3/0* b1/0 c1/0 d1/0"},
		{"aaabcd" + strings.Repeat("e", 17), "e1/16 b1/0 c1/0 d1/0"},
		{"aaabcd" + strings.Repeat("e", 17) + "a", "e1/16 a1/16 c1/0 d1/0"},
		{strings.Repeat("abcde", 10), "a3/15* b3/15* c3/15* d3/15*"},
	} {
		t.Run(x.launches, func(t *testing.T) {
			var r repeats
			require.Equal(t, x.want, transcript(&r, x.launches, neighbours(5), new(cuda.Function)))
			require.NoError(t, r.close())
			for i := range r.sets[0] {
				require.Nil(t, r.sets[0][i].graph)
			}
		})
	}
}

// What differs in one bit is another launch, and so is that of another kernel or shape.
func TestRepeatsDiffer(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	f, shape := new(cuda.Function), cuda.Launch{Grid: 1, Block: 32, Early: true}
	var p kernels.Params
	for i := range p.Bytes() {
		p.Bytes()[i] = byte(r.Uint32())
	}
	var table repeats
	first := table.sight(f, shape, &p)
	require.Same(t, first, table.sight(f, shape, &p))
	for bit := range 8 * len(p.Bytes()) {
		q := p
		q.Bytes()[bit/8] ^= 1 << (bit % 8)
		require.NotSame(t, first, table.sight(f, shape, &q), "bit %d", bit)
		require.Same(t, first, table.sight(f, shape, &p), "is kept")
	}
	require.NotSame(t, first, table.sight(&cuda.Function{MaxThreads: 1}, shape, &p))
	shape.Grid = 2
	require.NotSame(t, first, table.sight(f, shape, &p))
}

// A launch is kept once at most, all that fit are kept, and none of them costs an allocation.
func TestRepeatsAtRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	f, shape := new(cuda.Function), cuda.Launch{Grid: 1, Block: 32, Early: true}
	params := make([]kernels.Params, 200)
	for i := range params {
		params[i] = kernels.Params{Src: uint64(i) << 21, Dst: r.Uint64() &^ 15, Count: r.Uint64()}
	}
	var table repeats
	for range 20_000 {
		i := r.IntN(1 + r.IntN(len(params))) // some more often than others
		e := table.sight(f, shape, &params[i])
		require.True(t, e == nil || e.params == params[i] && e.worth == repeatWorth && e.seen >= 1)
	}
	seen := map[kernels.Params]bool{}
	for i := range table.sets {
		for k := range table.sets[i] {
			e := &table.sets[i][k]
			require.NotNil(t, e.f, "%d are too few for that", len(params))
			require.False(t, seen[e.params])
			require.Equal(t, uint64(i), setOf(&e.params))
			seen[e.params] = true
		}
	}
	few := neighbours(repeatWays)
	for round := range 2 * repeatWorth {
		for i := range few {
			e := table.sight(f, shape, &few[i])
			require.True(t, e != nil || round <= repeatWorth, "round %d", round)
		}
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		table.sight(f, shape, &params[r.IntN(len(params))])
	}))
}
