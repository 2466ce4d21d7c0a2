package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

const fuseArena = 512 // elements of each rank's memory

// fuseCall is a call of a random group. src and dst are offsets by rank.
type fuseCall struct {
	kind        string
	count, root int
	src, dst    []int
}

// lens is how many elements a call's source and destination have.
func (f *fuseCall) lens(size int) (src, dst int) {
	src, dst = f.count, f.count
	switch f.kind {
	case "all_gather", "gather":
		dst *= size
	case "reduce_scatter", "scatter":
		src *= size
	case "all_to_all":
		src, dst = src*size, dst*size
	case "barrier":
		src, dst = 0, 0
	}
	return src, dst
}

var fuseKinds = []string{"all_reduce", "all_reduce", "broadcast", "reduce", "all_gather", "gather", "reduce_scatter",
	"scatter", "all_to_all", "barrier"}

// randomCall returns a call whose source and destination do not overlap; those of different calls may.
func randomCall(rng *rand.Rand, size int) fuseCall {
	k := fuseCall{kind: fuseKinds[rng.IntN(len(fuseKinds))], count: rng.IntN(24), root: rng.IntN(size)}
	if rng.IntN(20) == 0 {
		k.kind, k.count = "all_reduce", 200 // does not fit with many others
	}
	src, dst := k.lens(size)
	for range size {
		s, d := rng.IntN(fuseArena-src+1), rng.IntN(fuseArena-dst+1)
		for src > 0 && dst > 0 && s < d+dst && d < s+src {
			s, d = rng.IntN(fuseArena-src+1), rng.IntN(fuseArena-dst+1)
		}
		if k.kind == "broadcast" || k.kind == "all_reduce" && rng.IntN(2) == 0 {
			d = s
		}
		k.src, k.dst = append(k.src, s), append(k.dst, d)
	}
	return k
}

// do makes the call on c, with memory m.
func (f *fuseCall) do(ctx context.Context, c *ubcoll.Comm, m ubcoll.Vec) error {
	r := c.Rank()
	ns, nd := f.lens(c.Size())
	src, dst := m.Slice(f.src[r], f.src[r]+ns), m.Slice(f.dst[r], f.dst[r]+nd)
	switch f.kind {
	case "all_reduce":
		return coll.AllReduce(ctx, c, dst, src, ubcoll.Sum)
	case "broadcast":
		return coll.Broadcast(ctx, c, dst, f.root)
	case "reduce":
		return coll.Reduce(ctx, c, dst, src, ubcoll.Sum, f.root)
	case "all_gather":
		return coll.AllGather(ctx, c, dst, src)
	case "gather":
		return coll.Gather(ctx, c, dst, src, f.root)
	case "reduce_scatter":
		return coll.ReduceScatter(ctx, c, dst, src, ubcoll.Sum)
	case "scatter":
		return coll.Scatter(ctx, c, dst, src, f.root)
	case "all_to_all":
		return coll.AllToAll(ctx, c, dst, src)
	}
	return coll.Barrier(ctx, c)
}

// model does the call on the memory of all ranks, naively.
func (f *fuseCall) model(mems [][]int32) {
	size, n := len(mems), f.count
	ns, _ := f.lens(size)
	srcs := make([][]int32, size)
	sum := make([]int32, ns)
	for r := range mems {
		srcs[r] = append([]int32{}, mems[r][f.src[r]:][:ns]...)
		for i, v := range srcs[r] {
			sum[i] += v
		}
	}
	for r := range mems {
		dst := mems[r][f.dst[r]:]
		switch f.kind {
		case "all_reduce":
			copy(dst, sum)
		case "broadcast":
			copy(dst, srcs[f.root])
		case "reduce":
			if r == f.root {
				copy(dst, sum)
			}
		case "all_gather", "gather":
			for p := 0; p < size && (f.kind == "all_gather" || r == f.root); p++ {
				copy(dst[p*n:], srcs[p])
			}
		case "reduce_scatter":
			copy(dst, sum[r*n:][:n])
		case "scatter":
			copy(dst, srcs[f.root][r*n:][:n])
		case "all_to_all":
			for p := range size {
				copy(dst[p*n:], srcs[p][r*n:][:n])
			}
		}
	}
}

// Random groups and graphs of small calls, which travel together, have the result of their calls one by one, whatever
// memory the calls share and whichever ranks call Group.
func TestFusedRandom(t *testing.T) {
	for _, seed := range testkit.Seeds(t) {
		for _, size := range []int{2, 3, 5} {
			t.Run(fmt.Sprintf("%d/%d", seed, size), func(t *testing.T) { fusedRandom(t, seed, size) })
		}
	}
}

func fusedRandom(t *testing.T, seed uint64, size int) {
	rounds := testkit.Often(4000)
	require.NoError(t, ubcoll.Local(context.Background(), size, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		rng := rand.New(rand.NewPCG(seed, uint64(size))) // the same on all ranks
		b, err := ubcoll.Alloc[int32](c, ubcoll.Host, fuseArena)
		if err != nil {
			return err
		}
		for round := range rounds {
			mems := make([][]int32, size)
			for r := range mems {
				mems[r] = make([]int32, fuseArena)
				for i := range mems[r] {
					mems[r][i] = rng.Int32N(1000)
				}
			}
			copy(b.Slice(), mems[c.Rank()])
			calls := make([]fuseCall, rng.IntN(30))
			for i := range calls {
				calls[i] = randomCall(rng, size)
				calls[i].model(mems)
			}
			how, single := rng.IntN(3), rng.IntN(size)
			all := func(c *ubcoll.Comm) error {
				for i := range calls {
					if err := calls[i].do(ctx, c, b.Vec()); err != nil {
						return fmt.Errorf("call %d: %w", i, err)
					}
				}
				return nil
			}
			switch {
			case how == 0 && c.Rank() == single:
				err = all(c)
			case how == 1 && len(calls) > 0:
				g, gerr := graph.Capture(ctx, c, all)
				if gerr != nil {
					return gerr
				}
				err = g.Launch(ctx)
				if cerr := g.Close(); err == nil {
					err = cerr
				}
			default:
				err = ubcoll.Group(ctx, c, all)
			}
			if err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
			for i, v := range b.Slice() {
				if v != mems[c.Rank()][i] {
					return fmt.Errorf("round %d (how %d): element %d is %d, not %d: %+v", round, how, i, v, mems[c.Rank()][i], calls)
				}
			}
		}
		return b.Free()
	}))
}

// If a call of a group of small calls is wrong on a rank, those before it are done, all ranks return the same error,
// which names the call, and the communicator stays usable with the same numbers on all ranks.
func TestFusedRefused(t *testing.T) {
	for name, k := range map[string]struct {
		wrong func(ctx context.Context, g *ubcoll.Comm, v ubcoll.Vec, freed ubcoll.Vec) error // rank 1's call 3
		want  error
	}{
		"another count": {func(ctx context.Context, g *ubcoll.Comm, v, _ ubcoll.Vec) error {
			return coll.AllReduce(ctx, g, v.Slice(0, 1), v.Slice(0, 1), ubcoll.Sum)
		}, ubcoll.ErrMismatch},
		"another kind": {func(ctx context.Context, g *ubcoll.Comm, v, _ ubcoll.Vec) error {
			return coll.Broadcast(ctx, g, v, 0)
		}, ubcoll.ErrMismatch},
		"too large to travel with others": {func(ctx context.Context, g *ubcoll.Comm, v, _ ubcoll.Vec) error {
			big := ubcoll.Of(make([]int32, 1<<20))
			return coll.AllReduce(ctx, g, big, big, ubcoll.Sum)
		}, ubcoll.ErrMismatch},
		"bad argument": {func(ctx context.Context, g *ubcoll.Comm, v, _ ubcoll.Vec) error {
			return coll.AllReduce(ctx, g, v, v, ubcoll.Op{})
		}, ubcoll.ErrArgument},
		"freed memory": {func(ctx context.Context, g *ubcoll.Comm, _, freed ubcoll.Vec) error {
			return coll.AllReduce(ctx, g, freed, freed, ubcoll.Sum)
		}, ubcoll.ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			const size = 3
			var errs [size]error
			var seqs [size]uint64
			require.NoError(t, ubcoll.Local(context.Background(), size, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
				b, err := ubcoll.Alloc[int32](c, ubcoll.Host, 8)
				if err != nil {
					return err
				}
				data := make([][]int32, 5)
				errs[c.Rank()] = ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
					for i := range data {
						data[i] = []int32{1, 2, 3, 4, 5, 6, 7, 8}
						v := ubcoll.Of(data[i])
						if c.Rank() == 1 && i == 3 {
							freed := b.Vec()
							if name == "freed memory" {
								defer b.Free() // after the call has been recorded
							}
							if err := k.wrong(ctx, g, v, freed); err != nil {
								return err
							}
							continue
						}
						if err := coll.AllReduce(ctx, g, v, v, ubcoll.Sum); err != nil {
							return err
						}
					}
					return nil
				})
				for i := range data {
					want := int32(1)
					if i < 3 {
						want = size
					}
					if i != 3 && data[i][0] != want {
						return fmt.Errorf("rank %d: call %d: %d, not %d", c.Rank(), i, data[i][0], want)
					}
				}
				if err := coll.Barrier(ctx, c); err != nil {
					return err
				}
				seqs[c.Rank()] = c.LastOp().Seq
				return nil
			}))
			for r := range errs {
				require.ErrorIs(t, errs[r], k.want, "rank %d", r)
				require.ErrorContains(t, errs[r], "call 4 of 5", "rank %d", r)
				var e *ubcoll.Error
				require.ErrorAs(t, errs[r], &e)
				require.Equal(t, uint64(4), e.Seq, "rank %d", r)
				about := 1
				if r == 1 && !errors.Is(k.want, ubcoll.ErrMismatch) {
					about = -1 // its own arguments
				}
				require.Equal(t, about, e.Peer, "rank %d: %v", r, e)
				require.Equal(t, uint64(5), seqs[r], "rank %d", r)
			}
		})
	}
}

// The members of a group of small calls have the numbers that the calls have one by one, and LastOp names each.
func TestFusedNumbers(t *testing.T) {
	require.NoError(t, ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		for round := range uint64(3) {
			err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
				for range 70 { // more than travel together
					v := ubcoll.Of([]int32{1, 2})
					if err := coll.AllReduce(ctx, g, v, v, ubcoll.Sum); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			o := c.LastOp()
			if len(o.Members) != 70 || o.Seq != round*70+70 {
				return fmt.Errorf("round %d: %d members, number %d", round, len(o.Members), o.Seq)
			}
			for i, m := range o.Members {
				if m.Seq != round*70+uint64(i)+1 || m.Bytes != 8 {
					return fmt.Errorf("member %d: %+v", i, m)
				}
			}
		}
		if n := c.Stats().Operations; n != 210 {
			return fmt.Errorf("%d operations", n)
		}
		return nil
	}))
}
