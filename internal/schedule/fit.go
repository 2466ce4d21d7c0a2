package schedule

import "math"

// Point is a measurement: how many nanoseconds a collective took that consists of such terms.
type Point struct {
	Terms Terms
	Ns    float64
}

// Fit returns the model that fits measurements best: its relative errors' squares are least. m is the model by which items
// were cut meanwhile. Where measurements do not tell two prices apart, their ratio is m's.
func (m Model) Fit(points []Point) Model {
	type row [prices]float64 // of the relative costs
	var rows []row
	var wants []float64
	scale := 0.0 // of measurements to m's costs
	for _, p := range points {
		r := row(p.Terms.all())
		for i := range r {
			r[i] *= unit[i] / p.Ns
		}
		rows, wants = append(rows, r), append(wants, 1)
		scale += math.Log(p.Ns / m.Price(p.Terms))
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
