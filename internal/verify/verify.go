// Package verify fills buffers with data whose reduction every rank can compute, and checks every element of the
// result, bit for bit. Everything here is local, never blocks, touches only the memory that the caller owns and passes,
// and may be called concurrently.
//
// It needs no tolerance: the data are chosen so that combining them is exact in any order. Sums of floats are sums of
// integers that the type can hold for all ranks; products are of powers of two; integers wrap, in the same way for any
// order; an average's one division is rounded once. Bools are arbitrary bytes, and are 0 often enough that a missing
// rank shows.
package verify

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
)

// Data describes the data of a reduction. It must be the same on every rank. Type, Op (for bools Min or Max, unless
// nothing is reduced) and Ranks (at least 1) must be valid. Average, with Op Sum, divides the sum by Ranks. Factor,
// with Op Sum, is a small power of two by which the reduction multiplies every input first; 0 means none.
type Data struct {
	Type    dtype.Type
	Op      cpu.Op
	Average bool
	Factor  int
	Ranks   int
	Seed    uint64
}

// Mismatch is a wrong element: its index in the whole buffer, its value and the right value in decimal. Floats that
// look the same there differ in the sign of a zero or in a NaN's bits.
type Mismatch struct {
	Index     int
	Got, Want string
}

// String is "element 3: got 5, want 6".
func (m Mismatch) String() string {
	return fmt.Sprintf("element %d: got %s, want %s", m.Index, m.Got, m.Want)
}

// Fill writes rank's n input elements to p.
func (d Data) Fill(p unsafe.Pointer, n, rank int) { d.FillPart(p, 0, n, rank) }

// FillPart writes n of rank's input elements to p, from element first on.
func (d Data) FillPart(p unsafe.Pointer, first, n, rank int) {
	for i := range n {
		store(d.Type, p, i, d.input(rank, first+i))
	}
}

// Check compares the n elements at p with those of all ranks' reduction, from element first on. It returns how many are
// wrong, and the first of them.
func (d Data) Check(p unsafe.Pointer, first, n int) (wrong int, at Mismatch) {
	return d.compare(p, first, n, d.reduced)
}

// CheckInput compares the n elements at p with those of rank's input, from element first on: the result of a collective
// that only moves data. It returns how many are wrong, and the first of them.
func (d Data) CheckInput(p unsafe.Pointer, first, n, rank int) (wrong int, at Mismatch) {
	return d.compare(p, first, n, func(i int) uint64 { return d.input(rank, i) })
}

func (d Data) compare(p unsafe.Pointer, first, n int, right func(i int) uint64) (wrong int, at Mismatch) {
	for i := range n {
		got, want := load(d.Type, p, i), right(first+i)
		if got == want {
			continue
		}
		if wrong == 0 {
			at = Mismatch{Index: first + i, Got: d.format(got), Want: d.format(want)}
		}
		wrong++
	}
	return wrong, at
}

// input returns the bits of rank's i-th element.
func (d Data) input(rank, i int) uint64 {
	h := Mix(d.Seed + Mix(uint64(rank)<<40+uint64(i)))
	bits := 8 * d.Type.Size()
	random := h >> (64 - bits)
	switch {
	case d.Type == dtype.Bool && (h%uint64(max(d.Ranks, 2)) == 0) != (d.Op == cpu.Max):
		return 0 // for Max 0 on most ranks, else on few: so each rank can decide the result
	case !d.Type.Float() && d.Op == cpu.Prod:
		return random | 1 // with even factors the result would soon be 0
	case !d.Type.Float():
		return random
	case d.Op == cpu.Sum:
		return Encode(d.Type, d.summand(h, rank, i))
	case d.Op == cpu.Prod: // neighbours cancel out, else many ranks would overflow
		x := [2]float64{2, 0.5}[rank&1]
		if h>>63 != 0 {
			x = -x
		}
		return Encode(d.Type, x)
	}
	if x := Decode(d.Type, random); x-x != 0 { // min and max take any values except NaN and the infinities
		random ^= 1 << (bits - 2) // second highest bit of the exponent
	}
	return random
}

// summand returns an integer such that the sum over all ranks needs no more digits than the type has. If there are too
// many ranks for that, only as many as fit have an integer other than 0.
func (d Data) summand(h uint64, rank, i int) float64 {
	limit := 1 << 53
	switch d.Type {
	case dtype.Float16:
		limit = 1 << 11
	case dtype.BFloat16:
		limit = 1 << 8
	case dtype.Float32:
		limit = 1 << 24
	}
	if d.Ranks > limit {
		if every := (d.Ranks + limit - 1) / limit; (rank+i)%every != 0 {
			return 0
		}
		return float64(int(h>>63)*2 - 1)
	}
	largest := uint64(limit / d.Ranks)
	return float64(int64(h%(2*largest+1)) - int64(largest))
}

// reduced returns the bits of the i-th element of the result.
func (d Data) reduced(i int) uint64 {
	if !d.Type.Float() {
		return d.reducedInteger(i)
	}
	r := Decode(d.Type, d.input(0, i))
	for rank := 1; rank < d.Ranks; rank++ {
		x := Decode(d.Type, d.input(rank, i))
		switch d.Op {
		case cpu.Sum:
			r += x
		case cpu.Prod:
			r *= x
		case cpu.Min:
			r = min(r, x)
		case cpu.Max:
			r = max(r, x)
		}
	}
	r *= float64(max(d.Factor, 1))
	switch {
	case d.Average && d.Type == dtype.Float64:
		r /= float64(d.Ranks)
	case d.Average:
		r = float64(float32(r) / float32(d.Ranks))
	}
	return Encode(d.Type, r)
}

func (d Data) reducedInteger(i int) uint64 {
	if d.Type == dtype.Bool {
		return d.reducedBool(i)
	}
	r := Extend(d.Type, d.input(0, i))
	for rank := 1; rank < d.Ranks; rank++ {
		x := Extend(d.Type, d.input(rank, i))
		less := x < r
		if d.Type.Signed() {
			less = int64(x) < int64(r)
		}
		switch {
		case d.Op == cpu.Sum:
			r = Extend(d.Type, r+x)
		case d.Op == cpu.Prod:
			r = Extend(d.Type, r*x)
		case (d.Op == cpu.Min) == less:
			r = x
		}
	}
	r = Extend(d.Type, r*uint64(max(d.Factor, 1)))
	switch {
	case d.Average && d.Type.Signed():
		r = uint64(int64(r) / int64(d.Ranks))
	case d.Average:
		r /= uint64(d.Ranks)
	}
	unused := 64 - 8*d.Type.Size()
	return r << unused >> unused
}

// reducedBool returns 1 if any rank's element is not 0; with Min, if all are not 0.
func (d Data) reducedBool(i int) uint64 {
	for rank := range d.Ranks {
		switch x := d.input(rank, i); {
		case d.Op == cpu.Max && x != 0:
			return 1
		case d.Op == cpu.Min && x == 0:
			return 0
		}
	}
	if d.Op == cpu.Max {
		return 0
	}
	return 1
}

// format returns the element in decimal.
func (d Data) format(bits uint64) string {
	switch {
	case d.Type.Float():
		return fmt.Sprint(Decode(d.Type, bits))
	case d.Type.Signed():
		return fmt.Sprint(int64(Extend(d.Type, bits)))
	}
	return fmt.Sprint(bits)
}
