package cpu

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestSixteenBitsExhaustive combines every 16-bit value with every special value and some random ones.
func TestSixteenBitsExhaustive(t *testing.T) {
	testkit.SkipRace(t)
	r := testkit.Random(t)
	const n = 1 << 16
	for _, ty := range []dtype.Type{dtype.Float16, dtype.BFloat16, dtype.Int16, dtype.Uint16} {
		all, other, got := make([]byte, 2*n), make([]byte, 2*n), make([]byte, 2*n)
		for i := range n {
			store(ty, all, i, uint64(i))
		}
		partners := special(ty)
		for range 6 {
			partners = append(partners, r.Uint64()&0xffff)
		}
		if race || testing.Short() {
			partners = partners[len(partners)-2:]
		}
		for _, p := range partners {
			for i := range n {
				store(ty, other, i, p)
			}
			for _, op := range allOps {
				want := naiveAll(ty, op, [][]byte{all, other}, n, 0)
				swapped := naiveAll(ty, op, [][]byte{other, all}, n, 0)
				eachLevelQuietly(func(l level) {
					Reduce(ty, op, at(got), at(all), at(other), n, false)
					same(t, ty, want, got, op, l, p)
					Reduce(ty, op, at(got), at(other), at(all), n, true)
					same(t, ty, swapped, got, op, l, p)
				})
			}
		}
		for _, div := range []int{2, 3, 5, 41, 47, 200, 1 << 17} {
			want := naiveAll(ty, Sum, [][]byte{all}, n, div)
			eachLevelQuietly(func(l level) {
				ReduceN(ty, Sum, at(got), []unsafe.Pointer{at(all)}, n, div, false)
				same(t, ty, want, got, "div", div, l)
			})
		}
	}
}

// TestAddFractions adds sums that are carried divided, in all lengths around the blocks, in place and not.
func TestAddFractions(t *testing.T) {
	r := testkit.Random(t)
	for _, ty := range []dtype.Type{dtype.Float16, dtype.BFloat16} {
		wide := func(b []byte, i int) float32 {
			if v := load(ty, b, i); ty == dtype.Float16 {
				return dtype.F16(v).Float32()
			} else {
				return dtype.BF16(v).Float32()
			}
		}
		for _, n := range []int{0, 1, 3, 4, 63, 64, 1000, 4096, 4097, 12345} {
			for _, k := range []struct{ as, bs, div int }{{1, 1, 2}, {2, 1, 3}, {2, 1, 4}, {3, 1, 4}, {4, 1, 5}, {8, 1, 16},
				{512, 488, 1000}, {3, 3, 6}, {3, 3, 8}, {1, 7, 8}, {2, 5, 7}, {4, 3, 7}} {
				a, b, want := elements(r, ty, n), elements(r, ty, n), make([]byte, 2*n)
				for i := range n {
					unit := min(Fraction(k.as), Fraction(k.bs)) // both are multiples: less overflows
					x, y := wide(a, i)*float32(Fraction(k.as)/unit), wide(b, i)*float32(Fraction(k.bs)/unit)
					div := k.div
					if div%unit == 0 {
						unit, div = 1, div/unit
					}
					f := (x + y) * float32(unit) / float32(div)
					if ty == dtype.Float16 {
						store(ty, want, i, uint64(dtype.ToF16(f)))
					} else {
						store(ty, want, i, uint64(dtype.ToBF16(f)))
					}
				}
				eachLevelQuietly(func(l level) {
					got := make([]byte, 2*n)
					AddFractions(ty, at(got), at(a), at(b), n, k.as, k.bs, k.div)
					same(t, ty, want, got, l, k)
					copy(got, b)
					AddFractions(ty, at(got), at(a), at(got), n, k.as, k.bs, k.div)
					same(t, ty, want, got, "in place of b", l, k)
					copy(got, a)
					AddFractions(ty, at(got), at(got), at(b), n, k.as, k.bs, k.div)
					same(t, ty, want, got, "in place of a", l, k)
				})
			}
		}
	}
	got := []byte{1, 2, 3, 4}
	AddFractions(dtype.Float32, at(got), at(got), at(got), 1, 2, 2, 4)
	require.Equal(t, []byte{1, 2, 3, 4}, got, "a type that is not for it")
	require.Equal(t, []int{1, 2, 4, 4, 8}, []int{Fraction(1), Fraction(2), Fraction(3), Fraction(4), Fraction(5)})
}

// eachLevelQuietly is eachLevel without subtests, for many small cases.
func eachLevelQuietly(f func(l level)) {
	was := current
	defer func() { current = was }()
	for l := levelGo; l <= levelAVX512; l++ {
		if l.available() {
			current = l
			f(l)
		}
	}
}

func lengths() (ns []int) {
	for n := range 68 {
		ns = append(ns, n)
	}
	if race {
		return append(ns, 127, 1000, 4099)
	}
	if testing.Short() {
		return append(testkit.Sample(7, ns), 127, 4099)
	}
	return append(ns, 127, 1000, 4099, 65537)
}

func TestReduce(t *testing.T) {
	r := testkit.Random(t)
	for _, ty := range dtype.All() {
		for _, op := range opsOf(ty) {
			for _, n := range lengths() {
				srcs := [][]byte{elements(r, ty, n), elements(r, ty, n)}
				same2 := [][]byte{srcs[0], srcs[0]}
				want, wantSame := naiveAll(ty, op, srcs, n, 0), naiveAll(ty, op, same2, n, 0)
				eachLevelQuietly(func(l level) {
					for _, mode := range []string{"apart", "dst is a", "dst is b", "all one"} {
						a, b, dst := elements(r, ty, n), elements(r, ty, n), elements(r, ty, n+2)
						copy(a, srcs[0])
						copy(b, srcs[1])
						before := bytes.Clone(dst)
						d, w := dst[ty.Size():][:n*ty.Size()], want
						switch mode {
						case "dst is a":
							d = a
						case "dst is b":
							d = b
						case "all one":
							d, b, w = a, a, wantSame
						}
						stream := r.IntN(2) == 0
						Reduce(ty, op, at(d), at(a), at(b), n, stream)
						same(t, ty, w, d, op, n, l, mode, stream)
						if l != levelGo && n > 0 { // sizes that Reduce would leave to Go
							if copy(a, srcs[0]); mode != "all one" {
								copy(b, srcs[1])
							}
							reducePiece(ty, op, at(d), at(a), at(b), n, stream)
							same(t, ty, w, d, op, n, l, mode, stream)
						}
						copy(before[ty.Size():], dst[ty.Size():][:n*ty.Size()])
						require.Equal(t, before, dst, "wrote beside its %d elements", n)
					}
				})
			}
		}
	}
}

func TestReduceMulti(t *testing.T) {
	r := testkit.Random(t)
	divs := []int{0, 1, 2, 3, 7, 8, 100, 300, 1 << 33}
	for _, ty := range dtype.All() {
		for ns := 1; ns <= 18; ns++ {
			for _, n := range []int{1, 5, 63, 1000, 65537} {
				if n == 65537 && (race || testing.Short() || ns%8 > 2) {
					continue
				}
				ops := opsOf(ty)
				op, div, nd := ops[r.IntN(len(ops))], divs[r.IntN(len(divs))], 1+r.IntN(10)
				if ty == dtype.Float32 && n < 16 {
					op, div = Sum, 0 // Sum of few float32 has code of its own
				}
				var srcs, kept [][]byte
				for range ns {
					srcs = append(srcs, elements(r, ty, n))
					kept = append(kept, bytes.Clone(srcs[len(srcs)-1]))
				}
				want := naiveAll(ty, op, srcs, n, div)
				eachLevelQuietly(func(l level) {
					var dsts [][]byte
					for range nd {
						dsts = append(dsts, elements(r, ty, n))
					}
					place := r.IntN(ns)
					dsts[r.IntN(nd)] = srcs[place]
					stream := r.IntN(2) == 0
					ReduceMulti(ty, op, ats(dsts), ats(srcs), n, div, stream)
					for _, d := range dsts {
						same(t, ty, want, d, op, n, l, ns, nd, div, stream)
					}
					copy(srcs[place], kept[place])
					require.Equal(t, kept, srcs, "wrote to a source")
					ReduceN(ty, op, at(dsts[0]), ats(srcs), n, div, stream)
					same(t, ty, want, dsts[0], op, n, l, ns, div, stream)
					for i := range srcs {
						copy(srcs[i], kept[i])
					}
					if l != levelGo && ns <= maxSources { // sizes that ReduceMulti would leave to Go
						d := elements(r, ty, n)
						p := piece{t: ty, op: op, n: n, div: div, stream: stream}
						if ty == dtype.Bool {
							p.div = 1
						}
						reduceMultiPiece(p, nil, nil, ats(srcs), ats([][]byte{d}))
						same(t, ty, want, d, op, n, l, ns, div, stream)
					}
				})
			}
		}
	}
}

// TestHalfRoundsOnce sums values that would be lost if every step rounded to the half type.
func TestHalfRoundsOnce(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		for _, n := range []int{3, 5000} {
			for _, ranks := range []int{5, 17} {
				first, rest, dst := make([]dtype.BF16, n), make([]dtype.BF16, n), make([]dtype.BF16, n)
				srcs := []unsafe.Pointer{unsafe.Pointer(&first[0])}
				for range ranks - 1 {
					srcs = append(srcs, unsafe.Pointer(&rest[0]))
				}
				for i := range n {
					first[i], rest[i] = dtype.ToBF16(256), dtype.ToBF16(0.5)
				}
				ReduceN(dtype.BFloat16, Sum, unsafe.Pointer(&dst[0]), srcs, n, 0, false)
				require.Equal(t, dtype.ToBF16(256+float32(ranks-1)/2), dst[n-1])
				require.NotEqual(t, dtype.ToBF16(256), dst[n-1])
			}
		}
	})
}

func TestScale(t *testing.T) {
	r := testkit.Random(t)
	for _, ty := range dtype.All() {
		if ty == dtype.Bool {
			continue // bools have no products: TestBadArgumentsDoNothing
		}
		for _, n := range lengths() {
			for _, factor := range []float64{0, 1, -3.75, 0.1, 1e10, -1e300, math.Inf(1), math.NaN()} {
				src := elements(r, ty, n)
				k := elements(r, ty, 1)
				switch whole := math.Trunc(factor); {
				case ty == dtype.Float16: // computed in float32: compared below
				case ty == dtype.BFloat16:
				case ty == dtype.Float32:
					store(ty, k, 0, uint64(math.Float32bits(float32(factor))))
				case ty == dtype.Float64:
					store(ty, k, 0, math.Float64bits(factor))
				case math.Abs(whole) < 1<<63:
					store(ty, k, 0, uint64(int64(whole)))
				default:
					store(ty, k, 0, 0)
				}
				want := make([]byte, len(src))
				for i := range n {
					x := load(ty, src, i)
					switch ty {
					case dtype.Float16:
						store(ty, want, i, uint64(dtype.ToF16(dtype.F16(x).Float32()*float32(factor))))
					case dtype.BFloat16:
						store(ty, want, i, uint64(dtype.ToBF16(dtype.BF16(x).Float32()*float32(factor))))
					default:
						store(ty, want, i, naive(ty, Prod, [][]byte{src[i*ty.Size():], k}, 0, 0))
					}
				}
				eachLevelQuietly(func(l level) {
					got := elements(r, ty, n)
					Scale(ty, at(got), at(src), n, factor)
					same(t, ty, want, got, n, factor, l)
					copy(got, src)
					Scale(ty, at(got), at(got), n, factor)
					same(t, ty, want, got, n, factor, l, "in place")
				})
			}
		}
	}
}

func TestCopy(t *testing.T) {
	r := testkit.Random(t)
	eachLevel(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 63, 511, 512, 1000, 65535, 65536, 65537, 200001} {
			for _, stream := range []bool{false, true} {
				src, dst := elements(r, dtype.Uint8, n), elements(r, dtype.Uint8, n+2)
				first, last := dst[0], dst[n+1]
				Copy(at(dst[1:]), at(src), n, stream)
				require.True(t, bytes.Equal(src, dst[1:n+1]), "%d bytes, stream=%v", n, stream)
				require.Equal(t, []byte{first, last}, []byte{dst[0], dst[n+1]})
			}
		}
	})
}

func TestBadArgumentsDoNothing(t *testing.T) {
	x := []float32{1, 2}
	p := unsafe.Pointer(&x[0])
	Reduce(dtype.Invalid, Sum, p, p, p, 2, false)
	Reduce(dtype.Float32, Max+1, p, p, p, 2, false)
	Reduce(dtype.Float32, Sum, p, p, p, -1, false)
	ReduceN(dtype.Type(200), Sum, p, []unsafe.Pointer{p, p}, 2, 0, false)
	ReduceN(dtype.Float32, Sum, p, nil, 2, 0, false)
	ReduceMulti(dtype.Float32, Sum, nil, []unsafe.Pointer{p}, 2, 0, false)
	Scale(dtype.Float32, p, p, 0, 5)
	Copy(p, nil, 0, true)
	require.Equal(t, []float32{1, 2}, x)
	eachLevelQuietly(func(l level) {
		for _, n := range []int{3, 1000} {
			want := bytes.Repeat([]byte{0, 1, 7}, n/3)
			b := bytes.Clone(want)
			for _, op := range []Op{Sum, Prod} {
				Reduce(dtype.Bool, op, at(b), at(b), at(b), len(b), false)
				ReduceN(dtype.Bool, op, at(b), []unsafe.Pointer{at(b), at(b), at(b)}, len(b), 0, false)
			}
			Scale(dtype.Bool, at(b), at(b), len(b), 0)
			require.Equal(t, want, b, "%v: bools have no sums and products", l)
		}
	})
	require.Equal(t, "invalid", (Max + 1).String())
}

// TestMemoryBesidePointers reduces elements of an object that also holds Go pointers, which cgo's own check refuses.
func TestMemoryBesidePointers(t *testing.T) {
	type mixed struct {
		name *string
		data [4096]float32
	}
	name := "x"
	m := &mixed{name: &name}
	m.data[4095] = 1
	p := unsafe.Pointer(&m.data)
	Reduce(dtype.Float32, Sum, p, p, p, len(m.data), true)
	ReduceN(dtype.Float32, Sum, p, []unsafe.Pointer{p, p, p}, len(m.data), 0, false)
	require.Equal(t, float32(6), m.data[4095])
}

func TestNoAllocation(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		for _, n := range []int{4, 100000} {
			var bufs [10][]float32
			var srcs [10]unsafe.Pointer
			for i := range bufs {
				bufs[i] = make([]float32, n)
				srcs[i] = unsafe.Pointer(&bufs[i][0])
			}
			require.Zero(t, testing.AllocsPerRun(10, func() {
				Reduce(dtype.Float32, Sum, srcs[0], srcs[1], srcs[2], n, false)
				Reduce(dtype.BFloat16, Max, srcs[0], srcs[1], srcs[2], n, true)
				ReduceN(dtype.Float32, Sum, srcs[0], srcs[:4], n, 4, false)
				ReduceMulti(dtype.Int32, Sum, srcs[:10], srcs[:], n, 4, true)
				Scale(dtype.Float16, srcs[0], srcs[1], n, 2)
				Copy(srcs[0], srcs[1], 4*n, true)
			}))
		}
	})
}

func TestMove(t *testing.T) {
	const n = 1 << 20
	for _, c := range []struct{ dst, src, n int }{
		{0, 0, n}, {0, n / 2, n / 2}, {n / 2, 0, n / 2}, {1, 0, n - 1}, {0, 1, n - 1}, {100000, 0, 300001},
		{0, 100000, 300001}, {65536, 0, 200000}, {0, 0, 0}, {5, 3, 1}, {3, 5, 4},
	} {
		got := make([]byte, n)
		for i := range got {
			got[i] = byte(i * i >> 7)
		}
		want := slices.Clone(got)
		copy(want[c.dst:c.dst+c.n], want[c.src:c.src+c.n])
		Move(unsafe.Pointer(&got[c.dst]), unsafe.Pointer(&got[c.src]), c.n)
		require.True(t, bytes.Equal(want, got), "%+v", c)
	}
}

// TestTheCollectorIsNotHeldUp stops the world again and again while another goroutine makes only long calls. If a copy
// could not be stopped inside, the median stop would take as long as a call. Both are measured in processor time of
// this process, so the machine's other work has no influence.
func TestTheCollectorIsNotHeldUp(t *testing.T) {
	testkit.LongOrRace(t)
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("needs two processors")
	}
	n := 256 << 20
	if race {
		n = 32 << 20
	}
	a, b := make([]byte, n), make([]byte, n)
	for i := 0; i < n; i += 4096 { // else they share one page of zeroes
		a[i], b[i] = 1, 1
	}
	for _, c := range []struct {
		name string
		call func()
	}{
		{"copy", func() { Copy(at(a), at(b), n, false) }},
		{"stream", func() { Copy(at(a), at(b), n, true) }},
		{"move", func() { Move(at(a), at(b), n) }},
		{"move on", func() { Move(at(a[1:]), at(a), n-1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stop atomic.Bool
			calls, before := 0, testkit.ProcessorTime(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for !stop.Load() {
					c.call()
					calls++
				}
			}()
			var took, used []time.Duration
			for range 40 {
				var m runtime.MemStats
				from, cpu := time.Now(), testkit.ProcessorTime(t)
				runtime.ReadMemStats(&m)
				used = append(used, testkit.ProcessorTime(t)-cpu)
				took = append(took, time.Since(from))
				time.Sleep(time.Millisecond)
			}
			stop.Store(true)
			<-done
			call := (testkit.ProcessorTime(t) - before) / time.Duration(calls)
			slices.Sort(took)
			slices.Sort(used)
			t.Logf("stop the world: median %v, longest %v; processor time: median %v, longest %v, of a call %v",
				took[20], took[39], used[20], used[39], call)
			require.Less(t, used[20], call/2)
		})
	}
}

func ExampleReduceN() {
	a, b, c := []int32{1, 2}, []int32{10, 20}, []int32{-5, -6}
	srcs := []unsafe.Pointer{unsafe.Pointer(&a[0]), unsafe.Pointer(&b[0]), unsafe.Pointer(&c[0])}
	ReduceN(dtype.Int32, Sum, unsafe.Pointer(&a[0]), srcs, len(a), 0, false)
	fmt.Println(a)
	// Output: [6 16]
}
