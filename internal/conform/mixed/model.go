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

func (c *call) reduces() bool {
	return c.kind == "all_reduce" || c.kind == "reduce_scatter" || c.kind == "reduce"
}

func (c *call) vectors() bool { return len(c.kind) > 2 && c.kind[len(c.kind)-2:] == "_v" }

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
func (c *call) places(n, r int) (src, dst place) {
	size := c.typ.Size()
	one := c.count * size
	at := func(p place, n int) place { return place{p.slot, p.at, n} }
	atRoot := r == c.root
	switch c.kind {
	case "all_reduce":
		src, dst = at(c.src, one), at(c.dst, one)
		if c.inPlace {
			dst = src
		}
	case "reduce":
		src, dst = at(c.src, one), nowhere
		if atRoot {
			if dst = at(c.dst, one); c.inPlace {
				dst = src
			}
		}
	case "reduce_scatter":
		src, dst = at(c.src, n*one), at(c.dst, one)
		if c.inPlace {
			dst = src.part(r*one, one)
		}
	case "all_gather", "gather":
		src, dst = at(c.src, one), nowhere
		if c.kind == "all_gather" || atRoot {
			if dst = at(c.dst, n*one); c.inPlace {
				src = dst.part(r*one, one)
			}
		}
	case "broadcast":
		src, dst = at(c.src, one), nowhere
		if !atRoot {
			src, dst = nowhere, src
		}
	case "scatter":
		src, dst = nowhere, at(c.dst, one)
		if atRoot {
			if src = at(c.src, n*one); c.inPlace {
				dst = src.part(r*one, one)
			}
		}
	case "all_to_all":
		src, dst = at(c.src, n*one), at(c.dst, n*one)
	case "all_gather_v", "gather_v":
		in := due(c.fit, n, c.root)
		src, dst = at(c.src, c.fit[r][0]*size), nowhere
		if c.kind == "gather_v" {
			src.n = c.fit[r][c.root] * size
		} else {
			in = due(c.fit, n, 0)
		}
		if c.kind == "all_gather_v" || atRoot {
			if dst = at(c.dst, sumOfInts(in)*size); c.inPlace {
				src = dst.part(sumOfInts(in[:r])*size, src.n)
			}
		}
	case "scatter_v":
		src, dst = nowhere, at(c.dst, c.fit[c.root][r]*size)
		if atRoot {
			if src = at(c.src, sumOfInts(c.fit[r][:n])*size); c.inPlace {
				dst = src.part(sumOfInts(c.fit[r][:r])*size, dst.n)
			}
		}
	case "all_to_all_v":
		src, dst = at(c.src, sumOfInts(c.fit[r][:n])*size), at(c.dst, sumOfInts(due(c.fit, n, r))*size)
	default:
		src, dst = nowhere, nowhere
	}
	return src, dst
}

// apply does c to the memory of members: world ranks, in the order of their ranks in the communicator.
func (c *call) apply(m memories, members []int) {
	n := len(members)
	srcs := make([][]byte, n)
	for r, w := range members {
		src, _ := c.places(n, r)
		srcs[r] = slices.Clone(m.of(w, src))
	}
	for r, w := range members {
		_, dst := c.places(n, r)
		if dst.slot >= 0 {
			copy(m.of(w, dst), c.result(n, r, srcs))
		}
	}
}

// result returns what rank r of n gets, from the beginning of its destination.
func (c *call) result(n, r int, srcs [][]byte) (out []byte) {
	size := c.typ.Size()
	one := c.count * size
	switch c.kind {
	case "all_reduce", "reduce":
		return c.reduce(srcs, 0)
	case "reduce_scatter":
		return c.reduce(srcs, r*c.count)
	case "all_gather", "gather":
		for _, s := range srcs {
			out = append(out, s...)
		}
	case "broadcast":
		return srcs[c.root]
	case "scatter":
		return srcs[c.root][r*one:][:one]
	case "all_to_all":
		for _, s := range srcs {
			out = append(out, s[r*one:][:one]...)
		}
	case "all_gather_v", "gather_v":
		for _, s := range srcs {
			out = append(out, s...)
		}
	case "scatter_v":
		return srcs[c.root][sumOfInts(c.counts[c.root][:r])*size:][:c.counts[c.root][r]*size]
	case "all_to_all_v":
		for from, s := range srcs {
			out = append(out, s[sumOfInts(c.counts[from][:r])*size:][:c.counts[from][r]*size]...)
		}
	}
	return out
}

// reduce combines count elements of all sources, from element first on.
func (c *call) reduce(srcs [][]byte, first int) []byte {
	out := make([]byte, c.count*c.typ.Size())
	for i := range c.count {
		switch {
		case c.typ.Float():
			setElement(c.typ, out, i, verify.Encode(c.typ, c.reduceFloats(srcs, first+i)))
		case c.typ == dtype.Bool:
			setElement(c.typ, out, i, c.reduceBools(srcs, first+i))
		default:
			setElement(c.typ, out, i, c.reduceIntegers(srcs, first+i))
		}
	}
	return out
}

func (c *call) reduceFloats(srcs [][]byte, i int) (acc float64) {
	for r, s := range srcs {
		x := verify.Decode(c.typ, element(c.typ, s, i))
		if c.red == "premulsum" {
			x *= c.factors[r]
		}
		switch {
		case r == 0:
			acc = x
		case c.red == "prod":
			acc *= x
		case c.red == "min":
			acc = math.Min(acc, x)
		case c.red == "max":
			acc = math.Max(acc, x)
		default:
			acc += x
		}
	}
	switch {
	case c.red == "avg" && c.typ == dtype.Float64:
		acc /= float64(len(srcs))
	case c.red == "avg":
		acc = float64(float32(acc) / float32(len(srcs)))
	}
	return acc
}

// reduceBools returns whether any source's byte is not 0 or, for min, all of them are not.
func (c *call) reduceBools(srcs [][]byte, i int) uint64 {
	trues := 0
	for _, s := range srcs {
		if s[i] != 0 {
			trues++
		}
	}
	if c.red == "max" && trues > 0 || trues == len(srcs) {
		return 1
	}
	return 0
}

func (c *call) reduceIntegers(srcs [][]byte, i int) (acc uint64) {
	for r, s := range srcs {
		x := verify.Extend(c.typ, element(c.typ, s, i))
		if c.red == "premulsum" {
			x = verify.Extend(c.typ, x*uint64(int64(c.factors[r])))
		}
		less := x < acc
		if c.typ.Signed() {
			less = int64(x) < int64(acc)
		}
		switch {
		case r == 0:
			acc = x
		case c.red == "prod":
			acc = verify.Extend(c.typ, acc*x)
		case c.red == "min" && less, c.red == "max" && !less:
			acc = x
		case c.red == "min", c.red == "max":
		default:
			acc = verify.Extend(c.typ, acc+x)
		}
	}
	switch {
	case c.red != "avg":
	case c.typ.Signed():
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
func (c *call) op(r int) ubcoll.Op {
	switch c.red {
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
	return ubcoll.PreMulSum(c.factors[r])
}
