package mixed

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/verify"
)

// The naive reference of random programs: the memory of all ranks as bytes, and what each operation does to it, element
// by element. It shares no code with what it checks.

// place is n bytes in a slot of some rank. nowhere has slot -1.
type place struct{ slot, at, n int }

var nowhere = place{slot: -1}

func (p place) part(at, n int) place { return place{p.slot, p.at + at, n} }

// memories has the slots of every rank.
type memories [][][]byte

func (m memories) of(rank int, p place) []byte {
	if p.slot < 0 {
		return nil
	}
	return m[rank][p.slot][p.at : p.at+p.n]
}

var operations = []string{"all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast", "gather", "scatter",
	"all_to_all", "all_gather_v", "gather_v", "scatter_v", "all_to_all_v", "barrier"}

var reductions = []string{"sum", "prod", "min", "max", "avg", "premulsum"}

// call is one collective, as all ranks see it. Its ranks are those of the communicator.
type call struct {
	kind    string
	typ     dtype.Type
	red     string
	factors []float64 // for premulsum, by rank
	root    int
	count   int
	counts  [][]int // for operations with count vectors: elements from and to each rank
	fit     [][]int // the counts that the buffers have room for: launches of graphs change counts
	src     place   // only slot and beginning
	dst     place
	inPlace bool

	send, recv []int // this rank's counts, which a graph reads
}

func (k *call) reduces() bool {
	return k.kind == "all_reduce" || k.kind == "reduce_scatter" || k.kind == "reduce"
}

func (k *call) vectors() bool { return len(k.kind) > 2 && k.kind[len(k.kind)-2:] == "_v" }

func sumOfInts(xs []int) (n int) {
	for _, x := range xs {
		n += x
	}
	return n
}

// due returns how much rank r of n gets from each rank, by counts.
func due(counts [][]int, n, r int) []int {
	out := make([]int, n)
	for from := range out {
		out[from] = counts[from][r]
	}
	return out
}

// places returns the source and the destination of rank r of n.
func (k *call) places(n, r int) (src, dst place) {
	size := k.typ.Size()
	one := k.count * size
	at := func(p place, n int) place { return place{p.slot, p.at, n} }
	atRoot := r == k.root
	switch k.kind {
	case "all_reduce":
		src, dst = at(k.src, one), at(k.dst, one)
		if k.inPlace {
			dst = src
		}
	case "reduce":
		src, dst = at(k.src, one), nowhere
		if atRoot {
			if dst = at(k.dst, one); k.inPlace {
				dst = src
			}
		}
	case "reduce_scatter":
		src, dst = at(k.src, n*one), at(k.dst, one)
		if k.inPlace {
			dst = src.part(r*one, one)
		}
	case "all_gather", "gather":
		src, dst = at(k.src, one), nowhere
		if k.kind == "all_gather" || atRoot {
			if dst = at(k.dst, n*one); k.inPlace {
				src = dst.part(r*one, one)
			}
		}
	case "broadcast":
		src, dst = at(k.src, one), nowhere
		if !atRoot {
			src, dst = nowhere, src
		}
	case "scatter":
		src, dst = nowhere, at(k.dst, one)
		if atRoot {
			if src = at(k.src, n*one); k.inPlace {
				dst = src.part(r*one, one)
			}
		}
	case "all_to_all":
		src, dst = at(k.src, n*one), at(k.dst, n*one)
	case "all_gather_v", "gather_v":
		in := due(k.fit, n, k.root)
		src, dst = at(k.src, k.fit[r][0]*size), nowhere
		if k.kind == "gather_v" {
			src.n = k.fit[r][k.root] * size
		} else {
			in = due(k.fit, n, 0)
		}
		if k.kind == "all_gather_v" || atRoot {
			if dst = at(k.dst, sumOfInts(in)*size); k.inPlace {
				src = dst.part(sumOfInts(in[:r])*size, src.n)
			}
		}
	case "scatter_v":
		src, dst = nowhere, at(k.dst, k.fit[k.root][r]*size)
		if atRoot {
			if src = at(k.src, sumOfInts(k.fit[r][:n])*size); k.inPlace {
				dst = src.part(sumOfInts(k.fit[r][:r])*size, dst.n)
			}
		}
	case "all_to_all_v":
		src, dst = at(k.src, sumOfInts(k.fit[r][:n])*size), at(k.dst, sumOfInts(due(k.fit, n, r))*size)
	default:
		src, dst = nowhere, nowhere
	}
	return src, dst
}

// apply does k to the memory of members: world ranks, in the order of their ranks in the communicator.
func (k *call) apply(m memories, members []int) {
	n := len(members)
	srcs := make([][]byte, n)
	for r, w := range members {
		src, _ := k.places(n, r)
		srcs[r] = slices.Clone(m.of(w, src))
	}
	for r, w := range members {
		_, dst := k.places(n, r)
		if dst.slot >= 0 {
			copy(m.of(w, dst), k.result(n, r, srcs))
		}
	}
}

// result returns what rank r of n gets, from the beginning of its destination.
func (k *call) result(n, r int, srcs [][]byte) (out []byte) {
	size := k.typ.Size()
	one := k.count * size
	switch k.kind {
	case "all_reduce", "reduce":
		return k.reduce(srcs, 0)
	case "reduce_scatter":
		return k.reduce(srcs, r*k.count)
	case "all_gather", "gather":
		for _, s := range srcs {
			out = append(out, s...)
		}
	case "broadcast":
		return srcs[k.root]
	case "scatter":
		return srcs[k.root][r*one:][:one]
	case "all_to_all":
		for _, s := range srcs {
			out = append(out, s[r*one:][:one]...)
		}
	case "all_gather_v", "gather_v":
		for _, s := range srcs {
			out = append(out, s...)
		}
	case "scatter_v":
		return srcs[k.root][sumOfInts(k.counts[k.root][:r])*size:][:k.counts[k.root][r]*size]
	case "all_to_all_v":
		for from, s := range srcs {
			out = append(out, s[sumOfInts(k.counts[from][:r])*size:][:k.counts[from][r]*size]...)
		}
	}
	return out
}

// reduce combines count elements of all sources, from element first on.
func (k *call) reduce(srcs [][]byte, first int) []byte {
	out := make([]byte, k.count*k.typ.Size())
	for i := range k.count {
		switch {
		case k.typ.Float():
			setElement(k.typ, out, i, verify.Encode(k.typ, k.reduceFloats(srcs, first+i)))
		case k.typ == dtype.Bool:
			setElement(k.typ, out, i, k.reduceBools(srcs, first+i))
		default:
			setElement(k.typ, out, i, k.reduceIntegers(srcs, first+i))
		}
	}
	return out
}

func (k *call) reduceFloats(srcs [][]byte, i int) (acc float64) {
	for r, s := range srcs {
		x := verify.Decode(k.typ, element(k.typ, s, i))
		if k.red == "premulsum" {
			x *= k.factors[r]
		}
		switch {
		case r == 0:
			acc = x
		case k.red == "prod":
			acc *= x
		case k.red == "min":
			acc = math.Min(acc, x)
		case k.red == "max":
			acc = math.Max(acc, x)
		default:
			acc += x
		}
	}
	switch {
	case k.red == "avg" && k.typ == dtype.Float64:
		acc /= float64(len(srcs))
	case k.red == "avg":
		acc = float64(float32(acc) / float32(len(srcs)))
	}
	return acc
}

// reduceBools returns whether any source's byte is not 0 or, for min, all of them are not.
func (k *call) reduceBools(srcs [][]byte, i int) uint64 {
	trues := 0
	for _, s := range srcs {
		if s[i] != 0 {
			trues++
		}
	}
	if k.red == "max" && trues > 0 || trues == len(srcs) {
		return 1
	}
	return 0
}

func (k *call) reduceIntegers(srcs [][]byte, i int) (acc uint64) {
	for r, s := range srcs {
		x := verify.Extend(k.typ, element(k.typ, s, i))
		if k.red == "premulsum" {
			x = verify.Extend(k.typ, x*uint64(int64(k.factors[r])))
		}
		less := x < acc
		if k.typ.Signed() {
			less = int64(x) < int64(acc)
		}
		switch {
		case r == 0:
			acc = x
		case k.red == "prod":
			acc = verify.Extend(k.typ, acc*x)
		case k.red == "min" && less, k.red == "max" && !less:
			acc = x
		case k.red == "min", k.red == "max":
		default:
			acc = verify.Extend(k.typ, acc+x)
		}
	}
	switch {
	case k.red != "avg":
	case k.typ.Signed():
		acc = uint64(int64(acc) / int64(len(srcs)))
	default:
		acc /= uint64(len(srcs))
	}
	return acc
}

func element(t dtype.Type, b []byte, i int) uint64 {
	var w [8]byte
	copy(w[:], b[i*t.Size():][:t.Size()])
	return binary.LittleEndian.Uint64(w[:])
}

func setElement(t dtype.Type, b []byte, i int, v uint64) {
	var w [8]byte
	binary.LittleEndian.PutUint64(w[:], v)
	copy(b[i*t.Size():][:t.Size()], w[:])
}

// op returns the reduction that rank r passes.
func (k *call) op(r int) ubcoll.Op {
	switch k.red {
	case "sum":
		return ubcoll.Sum
	case "prod":
		return ubcoll.Prod
	case "min":
		return ubcoll.Min
	case "max":
		return ubcoll.Max
	case "avg":
		return ubcoll.Avg
	}
	return ubcoll.PreMulSum(k.factors[r])
}
