package schedule

import "math"

// Point is a measurement: how long a collective took by a way, with so many bytes.
type Point struct {
	Way          Way
	Hosts, Bytes int
	Broadcast    bool
	Ns           float64
}

// Fit returns the model that fits measurements best: its relative errors' squares are least. m is the model by which items
// were cut meanwhile. Where measurements do not tell two prices apart, their ratio is m's.
//
// What an operation costs whatever its way, as to agree, is fitted, too, for all-reduces and for broadcasts, and left out.
func (m Model) Fit(points []Point) Model {
	const prices = len(terms{})
	type row [prices + 2]float64 // of the relative costs; the last two are the constants
	var rows []row
	var wants []float64
	scale := 0.0 // of measurements to m's costs
	for _, p := range points {
		t := m.terms(p.Way, p.Hosts, p.Bytes)
		var r row
		for i := range t {
			r[i] = t[i] * unit[i] / p.Ns
		}
		r[prices] = 1e3 / p.Ns // constants are microseconds
		if p.Broadcast {
			r[prices], r[prices+1] = 0, r[prices]
		}
		rows, wants = append(rows, r), append(wants, 1)
		scale += math.Log(p.Ns / m.Cost(p.Way, p.Hosts, p.Bytes))
	}
	scale = math.Exp(scale / float64(max(len(points), 1)))
	var x, least row
	for i, p := range m.prices() {
		x[i] = scale * float64(*p)
		least[i] = max(x[i]/100, 1)
		var r row // pulls a little to m's price, as often as the measurements are many
		r[i] = 0.002 * math.Sqrt(float64(len(points))) / x[i]
		rows, wants = append(rows, r), append(wants, r[i]*x[i])
	}
	// Coordinate descent: each unknown in turn is what is best given the others, and not less than its least. The sum of
	// squares is convex, so this ends at its least.
	for range 20_000 {
		for i := range x {
			var up, down float64
			for k := range rows {
				r := &rows[k]
				if r[i] == 0 {
					continue
				}
				rest := wants[k]
				for j := range x {
					if j != i {
						rest -= r[j] * x[j]
					}
				}
				up += r[i] * rest
				down += r[i] * r[i]
			}
			if down > 0 {
				x[i] = max(up/down, least[i])
			}
		}
	}
	fitted := m
	fitted.Only = 0
	for i, p := range fitted.prices() {
		*p = int(math.Round(x[i]))
	}
	return fitted
}
