package verify

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// elementsOf is how many elements tests use. Bools need more, since few of them show an error.
func elementsOf(t dtype.Type) int {
	if t == dtype.Bool {
		return 20000
	}
	return 200
}

// each calls f for every type, operation and several numbers of ranks, with all ranks' inputs.
func each(t *testing.T, ranks []int, f func(t *testing.T, d Data, srcs []unsafe.Pointer, r *rand.Rand)) {
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	ranks = testkit.Sample(2, ranks)
	for _, ty := range dtype.All() {
		for _, op := range []string{"sum", "prod", "min", "max", "avg"} {
			if ty == dtype.Bool && op != "min" && op != "max" {
				continue
			}
			for _, n := range ranks {
				if n > 20 && ty != dtype.Float16 && ty != dtype.BFloat16 {
					continue // other types have room for the sums of any number
				}
				d := Data{Type: ty, Ranks: n, Seed: seed, Average: op == "avg"}
				for o := cpu.Sum; o <= cpu.Max; o++ {
					if o.String() == op {
						d.Op = o
					}
				}
				var srcs []unsafe.Pointer
				elements := elementsOf(ty)
				for rank := range n {
					p := unsafe.Pointer(&make([]uint64, elements)[0])
					d.Fill(p, elements, rank)
					srcs = append(srcs, p)
				}
				t.Run(fmt.Sprintf("%v/%s/ranks=%d", ty, op, n), func(t *testing.T) { f(t, d, srcs, r) })
			}
		}
	}
}

func (d Data) div() int {
	if d.Average {
		return d.Ranks
	}
	return 1
}

// TestExactInEveryOrder reduces all at once, and also from a random rank on with a rounding after every rank, as a ring
// does.
func TestExactInEveryOrder(t *testing.T) {
	each(t, []int{1, 2, 3, 4, 7, 16, 17, 300, 2100}, func(t *testing.T, d Data, srcs []unsafe.Pointer, r *rand.Rand) {
		elements := elementsOf(d.Type)
		p := unsafe.Pointer(&make([]uint64, elements)[0])
		cpu.ReduceN(d.Type, d.Op, p, srcs, elements, d.div(), false)
		wrong, first := d.Check(p, 0, elements)
		require.Zero(t, wrong, first)

		start := r.IntN(d.Ranks)
		cpu.Copy(p, srcs[start], elements*d.Type.Size(), false)
		for i := 1; i < d.Ranks; i++ {
			cpu.Reduce(d.Type, d.Op, p, srcs[(start+i)%d.Ranks], p, elements, false)
		}
		cpu.ReduceN(d.Type, d.Op, p, []unsafe.Pointer{p}, elements, d.div(), false)
		wrong, first = d.Check(p, 0, elements)
		require.Zero(t, wrong, "from rank %d: %v", start, first)

		wrong, first = d.Check(unsafe.Add(p, 9*d.Type.Size()), 9, elements-9)
		require.Zero(t, wrong, first)
		for rank, s := range srcs {
			wrong, first = d.CheckInput(unsafe.Add(s, d.Type.Size()), 1, elements-1, rank)
			require.Zero(t, wrong, first)
		}
	})
}

func TestEveryFaultIsNoticed(t *testing.T) {
	each(t, []int{2, 4, 7}, func(t *testing.T, d Data, srcs []unsafe.Pointer, r *rand.Rand) {
		elements := elementsOf(d.Type)
		p := unsafe.Pointer(&make([]uint64, elements)[0])
		reduce := func(srcs []unsafe.Pointer) { cpu.ReduceN(d.Type, d.Op, p, srcs, elements, d.div(), false) }
		reduce(srcs)
		for bit := range 8 * d.Type.Size() {
			i := r.IntN(elements)
			right := load(d.Type, p, i)
			store(d.Type, p, i, right^1<<bit)
			wrong, first := d.Check(p, 0, elements)
			require.Equal(t, 1, wrong, "bit %d flipped", bit)
			require.Equal(t, i, first.Index)
			require.Equal(t, d.format(right), first.Want)
			require.Equal(t, d.format(right^1<<bit), first.Got)
			store(d.Type, p, i, right)
		}
		few := elements / 20 // at least this many elements must show the error
		notice := func(what string, x Data) {
			wrong, _ := x.Check(p, 0, elements)
			require.Greater(t, wrong, few, what)
		}
		other := d
		other.Seed++
		notice("another seed", other)
		wrong, _ := d.Check(p, 1, elements)
		require.Greater(t, wrong, few, "shifted by one element")
		reduce(srcs[1:])
		notice("a rank is missing", d)
		twice := append([]unsafe.Pointer{srcs[1]}, srcs[1:]...)
		reduce(twice)
		notice("a rank is there twice and another not at all", d)
		wrong, _ = d.CheckInput(srcs[0], 0, elements, 1)
		require.Greater(t, wrong, elements/4, "another rank's input")
	})
}

func TestNaNIsWrong(t *testing.T) {
	x := []float32{float32(math.NaN()), float32(math.Inf(1))}
	d := Data{Type: dtype.Float32, Ranks: 2}
	wrong, first := d.Check(unsafe.Pointer(&x[0]), 5, 2)
	require.Equal(t, 2, wrong)
	require.Equal(t, 5, first.Index)
	require.Contains(t, first.String(), "element 5: got NaN, want ")
}

func TestInputsAreSpread(t *testing.T) {
	seed := testkit.Seed(t)
	for _, ty := range []dtype.Type{dtype.Float32, dtype.BFloat16, dtype.Int32, dtype.Uint64} {
		d := Data{Type: ty, Ranks: 2, Seed: seed}
		seen := map[uint64]bool{}
		for i := range 1000 {
			seen[d.input(0, i)] = true
			seen[d.input(1, i)] = true
		}
		require.Greater(t, len(seen), 200, "%v", ty)
	}
}

func ExampleData() {
	d := Data{Type: dtype.Int32, Ranks: 2}
	a, b := make([]int32, 3), make([]int32, 3)
	d.Fill(unsafe.Pointer(&a[0]), 3, 0)
	d.Fill(unsafe.Pointer(&b[0]), 3, 1)
	for i := range a {
		a[i] += b[i]
	}
	wrong, _ := d.Check(unsafe.Pointer(&a[0]), 0, 3)
	fmt.Println(wrong, "wrong")
	a[1]++
	wrong, first := d.Check(unsafe.Pointer(&a[0]), 0, 3)
	fmt.Println(wrong, "wrong, the first at", first.Index)
	// Output:
	// 0 wrong
	// 1 wrong, the first at 1
}

// TestFactor multiplies the sources first, as a pre-multiplied sum does, and checks that leaving it out shows.
func TestFactor(t *testing.T) {
	each(t, []int{1, 3, 16}, func(t *testing.T, d Data, srcs []unsafe.Pointer, _ *rand.Rand) {
		if d.Op != cpu.Sum || d.Average {
			t.Skip("the factor is for sums")
		}
		d.Factor = 2
		elements := elementsOf(d.Type)
		p := unsafe.Pointer(&make([]uint64, elements)[0])
		cpu.ReduceN(d.Type, d.Op, p, srcs, elements, 1, false)
		wrong, _ := d.Check(p, 0, elements)
		require.Greater(t, wrong, elements/4, "not multiplied")
		for _, s := range srcs {
			cpu.Scale(d.Type, s, s, elements, 2)
		}
		cpu.ReduceN(d.Type, d.Op, p, srcs, elements, 1, false)
		wrong, first := d.Check(p, 0, elements)
		require.Zero(t, wrong, first)
	})
}
