package kernels

import (
	"bytes"
	"fmt"
	"math"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
)

// Kinds and reductions, as in src/abi.h.
const (
	allReduce = 1 + iota
	barrier
	reduceScatter
	reduce
	allGather
	broadcast
	gather
	scatter
	allToAll
	allGatherV
	gatherV
	scatterV
	allToAllV
)

const (
	sum = 1 + iota
	prod
	least
	most
	avg
	premulsum
)

type operation struct {
	kernel               string
	kind, op, root       int
	t                    dtype.Type
	count                int
	push, inPlace        bool
	alike                bool // all buffers are direct, and at the same places
	blocks, threads, odd int  // odd: the rank that runs another operation; -1: none

	counts [][]int // from each rank to each, for operations with counts
	from   int     // the rank from which the odd rank expects another count; -1: it has another signature
}

type plain operation // without String

func (o operation) String() string { return fmt.Sprintf("%+v", plain(o)) }

// lens returns the elements of rank r's source and destination, and how much farther the destination begins if in
// place.
func (o operation) lens(r, n int) (src, dst, apart int) {
	c, root := o.count, r == o.root
	if o.kind >= allGatherV {
		for q := range n {
			if o.kind != allGatherV || q == r {
				src += o.counts[r][q]
			}
			dst += o.counts[q][r]
			if q >= r {
				continue
			}
			if o.kind == scatterV {
				apart += o.counts[r][q]
			} else {
				apart -= o.counts[q][r]
			}
		}
		return src, dst, apart
	}
	when := func(yes bool, n int) int {
		if yes {
			return n
		}
		return 0
	}
	switch o.kind {
	case reduceScatter:
		return c * n, c, r * c
	case reduce:
		return c, when(root, c), 0
	case allGather:
		return c, c * n, -r * c
	case broadcast:
		return when(root, c), when(!root, c), 0
	case gather:
		return c, when(root, c*n), -r * c
	case scatter:
		return when(root, c*n), c, r * c
	case allToAll:
		return c * n, c * n, 0
	}
	return c, c, 0
}

func (o operation) signature() uint64 {
	return uint64(o.kind)<<59 | uint64(o.t)<<55 | uint64(o.op)<<52 | uint64(o.root)<<40 | uint64(o.count)
}

// quiet makes all NaNs alike, since nobody promises their bits.
func quiet(t dtype.Type, b []byte) []byte {
	b = bytes.Clone(b)
	for i := 0; i+t.Size() <= len(b); i += t.Size() {
		at := unsafe.Pointer(&b[i])
		switch t {
		case dtype.Float16:
			if f := *(*dtype.F16)(at); f.Float32() != f.Float32() {
				*(*dtype.F16)(at) = 0x7fff
			}
		case dtype.BFloat16:
			if f := *(*dtype.BF16)(at); f.Float32() != f.Float32() {
				*(*dtype.BF16)(at) = 0x7fff
			}
		case dtype.Float32:
			if f := *(*float32)(at); f != f {
				*(*uint32)(at) = 0x7fffffff
			}
		case dtype.Float64:
			if f := *(*float64)(at); f != f {
				*(*uint64)(at) = math.MaxInt64
			}
		}
	}
	return b
}

// want returns what rank r's destination must hold.
func (w *world) want(o operation, r int) []byte {
	n, size := len(w.ranks), o.t.Size()
	part := func(from, i int) []byte { return w.ranks[from].input[i*o.count*size:][:o.count*size] }
	_, elements, _ := o.lens(r, n)
	out := make([]byte, 0, elements*size)
	if elements == 0 {
		return out
	}
	switch o.kind {
	case allGatherV, gatherV, scatterV, allToAllV:
		for q := range n {
			first := 0
			for d := 0; d < r && o.kind != allGatherV; d++ {
				first += o.counts[q][d]
			}
			out = append(out, w.ranks[q].input[first*size:][:o.counts[q][r]*size]...)
		}
		return out
	case allGather, gather:
		for q := range n {
			out = append(out, part(q, 0)...)
		}
		return out
	case broadcast:
		return append(out, part(o.root, 0)...)
	case scatter:
		return append(out, part(o.root, r)...)
	case allToAll:
		for q := range n {
			out = append(out, part(q, r)...)
		}
		return out
	}
	srcs, div := make([]unsafe.Pointer, n), 1
	for q := range n {
		i := 0
		if o.kind == reduceScatter {
			i = r
		}
		in := bytes.Clone(part(q, i))
		srcs[q] = unsafe.Pointer(&in[0])
		if o.op == premulsum {
			cpu.Scale(o.t, srcs[q], srcs[q], o.count, w.ranks[q].factor)
		}
	}
	if o.op == avg {
		div = n
	}
	out = out[:elements*size]
	op := []cpu.Op{sum: cpu.Sum, prod: cpu.Prod, least: cpu.Min, most: cpu.Max, avg: cpu.Sum, premulsum: cpu.Sum}[o.op]
	if o.kernel == Ring && n > 1 { // each slice starts at its own rank, and is rounded at each step
		stride := ((len(out)+n-1)/n + 15) / 16 * 16
		for s := 0; s*stride < len(out); s++ {
			at := s * stride
			k, in := min(stride, len(out)-at)/size, bytes.Clone(unsafe.Slice((*byte)(srcs[s]), len(out)))
			acc := unsafe.Pointer(&in[at])
			for i := 1; i < n; i++ {
				by, to, x := 1, unsafe.Pointer(&out[at]), unsafe.Add(srcs[(s+i)%n], at)
				if i == n-1 {
					by = div
				}
				if o.op == avg && o.t.Float() && o.t.Size() == 2 { // carried as a fraction of the sum
					if i < n-1 {
						by = cpu.Fraction(i + 1)
					}
					cpu.AddFractions(o.t, to, acc, x, k, i, 1, by)
				} else {
					cpu.ReduceN(o.t, op, to, []unsafe.Pointer{acc, x}, k, by, false)
				}
				copy(in[at:at+k*size], out[at:])
			}
		}
		return out
	}
	cpu.ReduceN(o.t, op, unsafe.Pointer(&out[0]), srcs, o.count, div, false)
	return out
}
