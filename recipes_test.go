package ubcoll_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// lines returns text with one space in place of each run of blanks, and none around lines.
func lines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

// What docs/from-mpi.md shows is code of the examples, word by word, and each file of recipes is shown there. A block of one
// line is a call, not a recipe.
func TestRecipesShown(t *testing.T) {
	page, err := os.ReadFile("docs/from-mpi.md")
	require.NoError(t, err)
	files, err := filepath.Glob("recipe_*_example_test.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	code, shown := map[string]string{}, map[string]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		code[name] = lines(string(text))
	}
	for _, block := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if strings.Count(block[1], "\n") == 1 {
			continue
		}
		i := slices.IndexFunc(files, func(name string) bool { return strings.Contains(code[name], lines(block[1])) })
		require.GreaterOrEqual(t, i, 0, "in no recipe:\n%s", block[1])
		shown[files[i]] = true
	}
	for _, name := range files {
		require.True(t, shown[name], name)
	}
}

// onRanks runs f on some numbers of ranks.
func onRanks(t *testing.T, f func(ctx context.Context, c *ubcoll.Comm) error) {
	for _, n := range []int{1, 2, 3, 5} {
		require.NoError(t, ubcoll.Local(t.Context(), n, ubcoll.Options{}, f), "%d ranks", n)
	}
}

func sameAll[T comparable](got, want []T) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("%v, not %v", got, want)
	}
	return nil
}

func TestRecipeKeys(t *testing.T) {
	inf := float32(math.Inf(1))
	special := []float32{-inf, -math.MaxFloat32, -1, -math.SmallestNonzeroFloat32, 0, math.SmallestNonzeroFloat32, 1, math.MaxFloat32, inf}
	for _, seed := range testkit.Seeds(t) {
		r := rand.New(rand.NewPCG(seed, 0))
		draw := func() floatInt {
			v := special[r.IntN(len(special))]
			if r.IntN(2) == 0 {
				v = float32(r.NormFloat64())
			}
			return floatInt{v, []uint32{0, 1, r.Uint32(), math.MaxUint32}[r.IntN(4)]}
		}
		for range 1000 {
			a, b := draw(), draw()
			require.Equal(t, a, fromKey(a.key()))
			want := cmp.Or(cmp.Compare(a.Value, b.Value), -cmp.Compare(a.Index, b.Index))
			require.Equal(t, want, cmp.Compare(a.key(), b.key()), "%v, %v", a, b)
		}
	}
	negative := float32(math.Copysign(0, -1))
	require.Greater(t, floatInt{negative, 1}.key(), floatInt{0, 2}.key(), "-0 and 0 are equal")
	require.Greater(t, floatInt{0, 1}.key(), floatInt{negative, 2}.key())
	nan := math.Float32frombits(0x7fc00000)
	require.Greater(t, floatInt{nan, 0}.key(), floatInt{inf, 0}.key(), "a NaN is above infinity")
}

// MPI_MINLOC by the negative values, as the page says.
func TestRecipeMinLoc(t *testing.T) {
	onRanks(t, func(ctx context.Context, c *ubcoll.Comm) error {
		x := []floatInt{{-float32(c.Rank()/2 + 1), uint32(c.Rank())}}
		if err := maxLoc(ctx, c, x); err != nil {
			return err
		}
		return sameAll(x, []floatInt{{-1, 0}})
	})
}

// MPI_LXOR by the lowest bit of a sum, which may wrap around.
func TestRecipeLXOR(t *testing.T) {
	onRanks(t, func(ctx context.Context, c *ubcoll.Comm) error {
		x := []uint8{1, uint8(c.Rank()) & 1}
		if err := coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum); err != nil {
			return err
		}
		return sameAll([]uint8{x[0] & 1, x[1] & 1}, []uint8{uint8(c.Size()) & 1, uint8(c.Size()/2) & 1})
	})
}

func TestRecipeScan(t *testing.T) {
	for _, f := range []struct {
		name string
		scan func(ctx context.Context, c *ubcoll.Comm, dst, src []int64) error
	}{{"gathered", exscan}, {"in rounds", exscanLong}} {
		t.Run(f.name, func(t *testing.T) {
			for _, length := range []int{0, 1, 1000} {
				onRanks(t, func(ctx context.Context, c *ubcoll.Comm) error {
					src, dst, want := make([]int64, length), make([]int64, length), make([]int64, length)
					for i := range src {
						src[i], dst[i] = int64(i+1)<<c.Rank(), -1
						want[i] = int64(i+1)<<c.Rank() - int64(i+1)
					}
					return errors.Join(f.scan(ctx, c, dst, src), sameAll(dst, want))
				})
			}
		})
	}
}

// affine is x*a+b modulo 2^16, with a in the upper half and b in the lower one.
type affine = uint32

// compose is f, and after it g: an operation that is associative, but not commutative.
func compose(f, g affine) affine {
	a, b := f>>16*(g>>16), f&0xffff*(g>>16)+g
	return a<<16 | b&0xffff
}

func TestRecipeReduceBy(t *testing.T) {
	of := func(rank, i int) affine { return affine(2*rank+3)<<16 | affine(7*rank+i)&0xffff }
	require.NotEqual(t, compose(of(0, 0), of(1, 0)), compose(of(1, 0), of(0, 0)))
	for _, f := range []struct {
		name   string
		reduce func(ctx context.Context, c *ubcoll.Comm, x []affine, op func(a, b affine) affine) error
	}{{"gathered", reduceBy[affine]}, {"in parts", reduceLongBy[affine]}} {
		t.Run(f.name, func(t *testing.T) {
			for _, each := range []int{0, 1, 200} {
				onRanks(t, func(ctx context.Context, c *ubcoll.Comm) error {
					x, want := make([]affine, each*c.Size()), make([]affine, each*c.Size())
					for i := range x {
						x[i], want[i] = of(c.Rank(), i), of(0, i)
						for r := 1; r < c.Size(); r++ {
							want[i] = compose(want[i], of(r, i))
						}
					}
					return errors.Join(f.reduce(ctx, c, x, compose), sameAll(x, want))
				})
			}
		})
	}
}

func TestRecipePack(t *testing.T) {
	m := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12} // 3 rows
	block := make([]int, 6)
	pack(block, m[1:], 3, 2, 4)
	require.Equal(t, []int{2, 3, 6, 7, 10, 11}, block)
	back := make([]int, len(m))
	unpack(back[1:], block, 3, 2, 4)
	require.Equal(t, []int{0, 2, 3, 0, 0, 6, 7, 0, 0, 10, 11, 0}, back)
}

func TestRecipeServer(t *testing.T) {
	const steps = 3
	o := ubcoll.Options{Timeout: testkit.Limit}
	t.Run("all workers end", func(t *testing.T) {
		for _, length := range []int{1, 10000} { // that travels with its announcement, and that waits for its receive
			onRanks(t, func(ctx context.Context, c *ubcoll.Comm) error {
				params := make([]float64, length)
				if c.Rank() > 0 {
					return work(ctx, c, params, steps)
				}
				return errors.Join(serve(ctx, c, params), equal(params[length-1], steps*float64(c.Size()-1)))
			})
		}
	})
	t.Run("a worker fails", func(t *testing.T) {
		fault := errors.New("a worker's own reason")
		var served error
		err := ubcoll.Local(t.Context(), 3, o, func(ctx context.Context, c *ubcoll.Comm) error {
			params := make([]float64, 1)
			switch c.Rank() {
			case 0:
				served = serve(ctx, c, params)
				return served
			case 1:
				return fault
			}
			return work(ctx, c, params, steps)
		})
		require.ErrorIs(t, err, fault)
		require.ErrorIs(t, served, ubcoll.ErrAborted)
	})
	t.Run("the context ends", func(t *testing.T) {
		serving, end := context.WithCancel(t.Context())
		err := ubcoll.Local(t.Context(), 2, o, func(ctx context.Context, c *ubcoll.Comm) error {
			params := make([]float64, 1)
			if c.Rank() == 0 {
				return serve(serving, c, params)
			}
			if err := p2p.Send(ctx, c, 0, ubcoll.Of(params)); err != nil {
				return err
			}
			if _, err := p2p.Recv(ctx, c, 0, ubcoll.Of(params)); err != nil {
				return err
			}
			end() // the server is in its loop; nobody sends it anything more
			_, err := p2p.Recv(ctx, c, 0, ubcoll.Of(params))
			return err
		})
		require.ErrorIs(t, err, context.Canceled)
	})
}
