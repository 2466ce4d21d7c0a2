package main

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// A scale returns ticks between low and high in several ways, of which the first that suits an axis is the best.
type scale func(low, high float64) [][]tick

// sizes are powers of two, some of them with a label: 1 KiB, 64 KiB, 1 MiB.
func sizes(low, high float64) (ways [][]tick) {
	from, to := int(math.Ceil(math.Log2(low)-1e-9)), int(math.Floor(math.Log2(high)+1e-9))
	for _, step := range []int{1, 2, 4, 5, 10, 20, 40, 80} {
		var ticks []tick
		for e := max(from, 0); e <= to; e++ {
			t := tick{value: math.Ldexp(1, e)}
			if e%step == 0 {
				t.label = sizeLabel(1 << e)
			}
			ticks = append(ticks, t)
		}
		ways = append(ways, ticks)
	}
	return ways
}

func sizeLabel(bytes uint64) string {
	unit := (bits.Len64(bytes) - 1) / 10
	return fmt.Sprintf("%d %s", bytes>>(10*unit), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}[unit])
}

// times are 1, 2, ..., 9 times powers of ten microseconds. All have labels, or 1, 2 and 5, or the powers, or some of these.
// Where none of this suits, because low and high are too close together, they are even steps.
func times(low, high float64) (ways [][]tick) {
	from, to := int(math.Floor(math.Log10(low))), int(math.Ceil(math.Log10(high)))
	for _, labelled := range []struct {
		digits []int
		step   int
	}{{[]int{1, 2, 3, 4, 5, 6, 7, 8, 9}, 1}, {[]int{1, 2, 5}, 1}, {[]int{1}, 1}, {[]int{1}, 2}, {[]int{1}, 3}, {[]int{1}, 6}} {
		var ticks []tick
		for e := from; e <= to; e++ {
			for digit := 1; digit <= 9; digit++ {
				t := tick{value: float64(digit) * math.Pow10(e)}
				if t.value < low || t.value > high {
					continue
				}
				if e%labelled.step == 0 && slices.Contains(labelled.digits, digit) {
					t.label = timeLabel(t.value)
				}
				ticks = append(ticks, t)
			}
		}
		ways = append(ways, ticks)
	}
	return append(ways, even(low, high, timeLabel)...)
}

func timeLabel(us float64) string {
	unit, scale := "ns", 1e3
	for _, u := range []struct {
		name string
		from float64
	}{{"µs", 1}, {"ms", 1e3}, {"s", 1e6}} {
		if us >= u.from*(1-1e-9) {
			unit, scale = u.name, 1/u.from
		}
	}
	return fmt.Sprintf("%.4g %s", us*scale, unit)
}

// bandwidths are even steps.
func bandwidths(low, high float64) [][]tick {
	return even(low, high, func(v float64) string { return fmt.Sprintf("%.4g", v) })
}

// even returns multiples of 1, 2 or 5 times a power of ten, all with labels.
func even(low, high float64, label func(float64) string) (ways [][]tick) {
	power := math.Pow(10, math.Floor(math.Log10((high-low)/10)))
	for _, step := range []float64{1 * power, 2 * power, 5 * power, 10 * power, 20 * power, 50 * power} {
		var ticks []tick
		for i := math.Ceil(low / step); i*step <= high; i++ {
			ticks = append(ticks, tick{i * step, label(i * step)})
		}
		ways = append(ways, ticks)
	}
	return ways
}
