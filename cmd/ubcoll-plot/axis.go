package main

import (
	"math"

	"gonum.org/v1/plot/vg"
)

// axis maps values to places on paper.
type axis struct {
	low, high float64 // the values at its ends
	log       bool
	from, to  vg.Length // its ends
}

// at returns the place of a value.
func (a *axis) at(value float64) vg.Length {
	part := (value - a.low) / (a.high - a.low)
	if a.log {
		part = math.Log(value/a.low) / math.Log(a.high/a.low)
	}
	return a.from + (a.to-a.from)*vg.Length(part)
}

// tick is a mark on an axis. Some have labels.
type tick struct {
	value float64
	label string
}

// mostLabels is the number of labels of an axis that are read without counting.
const mostLabels = 7

// ticks returns ticks with labels that have room beside each other, the most of these, but at least two if possible.
// extent is what a label takes of the axis.
func (a *axis) ticks(of scale, extent func(label string) vg.Length) (best []tick) {
	most := 0
	for _, ticks := range of(a.low, a.high) {
		if n, roomy := a.room(ticks, extent); roomy && n > most && most < 2 {
			best, most = ticks, n
		}
	}
	return best
}

// room tells how many of the ticks have labels, and whether there is room for these.
func (a *axis) room(ticks []tick, extent func(label string) vg.Length) (labels int, roomy bool) {
	free := vg.Length(math.Inf(-1))
	for _, t := range ticks {
		if t.label == "" {
			continue
		}
		at, half := a.at(t.value), extent(t.label)/2
		if at-half < free {
			return labels, false
		}
		labels, free = labels+1, at+half
	}
	return labels, labels <= mostLabels
}
