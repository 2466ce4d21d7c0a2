package main

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"gonum.org/v1/plot"
)

// sizeTicks are powers of two, some of them with a label: 1 KiB, 64 KiB, 1 MiB.
type sizeTicks struct{}

// Ticks implements plot.Ticker.
func (sizeTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	from, to := int(math.Ceil(math.Log2(low)-1e-9)), int(math.Floor(math.Log2(high)+1e-9))
	step := 1
	for _, step = range []int{1, 2, 4, 5, 10} {
		if to/step-(from+step-1)/step < 7 {
			break
		}
	}
	for e := max(from, 0); e <= to; e++ {
		t := plot.Tick{Value: math.Ldexp(1, e)}
		if e%step == 0 {
			t.Label = sizeLabel(1 << e)
		}
		ticks = append(ticks, t)
	}
	return ticks
}

func sizeLabel(bytes uint64) string {
	unit := (bits.Len64(bytes) - 1) / 10
	return fmt.Sprintf("%d %s", bytes>>(10*unit), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}[unit])
}

// timeTicks are 1, 2, ..., 9 times powers of ten microseconds. The powers have labels. If that gives fewer than two
// labels, 2 and 5 have labels too; if it still does, all have.
type timeTicks struct{}

// Ticks implements plot.Ticker.
func (timeTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for _, labelled := range [][]int{{1}, {1, 2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9}} {
		ticks = ticks[:0]
		labels := 0
		for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
			for digit := 1; digit <= 9; digit++ {
				t := plot.Tick{Value: float64(digit) * math.Pow(10, e)}
				if t.Value < low || t.Value > high {
					continue
				}
				if slices.Contains(labelled, digit) {
					t.Label = timeLabel(t.Value)
					labels++
				}
				ticks = append(ticks, t)
			}
		}
		if labels > 1 {
			break
		}
	}
	return ticks
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

// evenTicks are multiples of 1, 2 or 5 times a power of ten.
type evenTicks struct{}

// Ticks implements plot.Ticker.
func (evenTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	power := math.Pow(10, math.Floor(math.Log10((high-low)/4)))
	step := power
	for _, m := range []float64{1, 2, 5, 10} {
		if step = m * power; (high-low)/step <= 6 {
			break
		}
	}
	for i := math.Ceil(low / step); i*step <= high; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: fmt.Sprintf("%.4g", i*step)})
	}
	return ticks
}
