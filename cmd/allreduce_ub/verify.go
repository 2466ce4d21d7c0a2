package main

import (
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/ubcoll/ubcoll/dtype"
)

// corruptHook names the rank whose result is spoilt before it is verified. Tests use it to show that a wrong element
// makes the job fail.
const corruptHook = "UBCOLL_TEST_CORRUPT"

// corrupt changes one element if the hook names this rank.
func corrupt[T dtype.Elem](rank int, got []T) error {
	s, ok := os.LookupEnv(corruptHook)
	if !ok {
		return nil
	}
	r, err := strconv.Atoi(s)
	if err != nil {
		return exitError{fmt.Errorf("%s=%q: want a rank", corruptHook, s), exitUsage}
	}
	if r == rank {
		i := len(got) / 2
		got[i] = element[T](value(got[i]) + 1)
	}
	return nil
}

// finding is what a rank has found in its result: how many elements are wrong, and the first of those; or element 0.
type finding struct {
	wrong, index  uint64
	expected, got float64
}

// findingWords is how many words a finding takes to send.
const findingWords = 4

func (f finding) words() []uint64 {
	return []uint64{f.wrong, f.index, math.Float64bits(f.expected), math.Float64bits(f.got)}
}

func findingOf(w []uint64) finding {
	return finding{w[0], w[1], math.Float64frombits(w[2]), math.Float64frombits(w[3])}
}

// check compares every element with the reduction of the ranks' numbers 0 to n-1.
func check[T dtype.Elem](got []T, op string, n int) finding {
	want, tolerance := expected[T](op, n)
	f := finding{expected: want, got: value(got[0])}
	for i, g := range got {
		if v := value(g); !(math.Abs(v-want) <= tolerance) { // also true for NaN
			if f.wrong++; f.wrong == 1 {
				f.index, f.got = uint64(i), v
			}
		}
	}
	return f
}

// expected returns the reduction of 0 to n-1 by op, as T holds it, and how far a right result may differ: not at all
// for integers, which wrap; for others by one rounding per rank, since the algorithm chooses the order.
func expected[T dtype.Elem](op string, n int) (want, tolerance float64) {
	values := make([]float64, n) // as T holds them
	for r := range n {
		values[r] = value(element[T](float64(r)))
	}
	want = values[0]
	for _, v := range values[1:] {
		switch op {
		case "sum", "avg":
			want += v
		case "prod":
			want *= v
		case "min":
			want = min(want, v)
		case "max":
			want = max(want, v)
		}
	}
	eps := epsilon[T]()
	if op == "min" || op == "max" {
		return want, 0
	}
	tolerance = float64(n) * eps * want
	want = value(element[T](want)) // integers wrap
	if op == "avg" {
		want /= float64(n)
		if eps == 0 {
			want = math.Trunc(want)
		}
		tolerance /= float64(n)
		tolerance += eps * want
		want = value(element[T](want))
	}
	return want, tolerance
}

// epsilon is the distance from 1 to the next value of T; 0 for integers.
func epsilon[T dtype.Elem]() float64 {
	switch dtype.Of[T]() {
	case dtype.Float16:
		return 1.0 / (1 << 10)
	case dtype.BFloat16:
		return 1.0 / (1 << 7)
	case dtype.Float32:
		return 1.0 / (1 << 23)
	case dtype.Float64:
		return 1.0 / (1 << 52)
	}
	return 0
}

// element returns v as a T: rounded; wrapped for an integer type, where bool counts as one with a single bit.
func element[T dtype.Elem](v float64) T {
	var e any
	switch dtype.Of[T]() {
	case dtype.Int8:
		e = int8(int64(v))
	case dtype.Uint8:
		e = uint8(int64(v))
	case dtype.Int16:
		e = int16(int64(v))
	case dtype.Uint16:
		e = uint16(int64(v))
	case dtype.Int32:
		e = int32(int64(v))
	case dtype.Uint32:
		e = uint32(int64(v))
	case dtype.Int64:
		e = int64(v)
	case dtype.Uint64:
		e = uint64(v)
	case dtype.Float16:
		e = dtype.ToF16(float32(v))
	case dtype.BFloat16:
		e = dtype.ToBF16(float32(v))
	case dtype.Float32:
		e = float32(v)
	case dtype.Float64:
		e = v
	case dtype.Bool:
		e = int64(v)&1 != 0
	}
	return e.(T)
}

// value returns e as a float64, exact below 2^53.
func value[T dtype.Elem](e T) float64 {
	switch e := any(e).(type) {
	case int8:
		return float64(e)
	case uint8:
		return float64(e)
	case int16:
		return float64(e)
	case uint16:
		return float64(e)
	case int32:
		return float64(e)
	case uint32:
		return float64(e)
	case int64:
		return float64(e)
	case uint64:
		return float64(e)
	case dtype.F16:
		return float64(e.Float32())
	case dtype.BF16:
		return float64(e.Float32())
	case float32:
		return float64(e)
	case float64:
		return e
	case bool:
		if e {
			return 1
		}
		return 0
	}
	return math.NaN() // jobs have no other types
}

// fill sets every element of s to v.
func fill[T dtype.Elem](s []T, v float64) []T {
	e := element[T](v)
	for i := range s {
		s[i] = e
	}
	return s
}
