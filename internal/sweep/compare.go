package sweep

import (
	"fmt"
	"io"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// confidence is the confidence of the intervals that Compare prints, if there are enough repeats.
const confidence = 0.95

// Compare writes to out how much longer B takes than A, for each point that both runs have: the ratio of the medians
// over the repeats, with the confidence interval of stats.RatioOf; and at the end the geometric mean. It returns the
// points whose whole interval is slower by more than threshold percent, and whether the mean is.
func Compare(a, b []Record, threshold float64, out io.Writer) (slower []Point, mean bool, err error) {
	times := func(records []Record) (order []Point, of map[Point][]float64) {
		of = map[Point][]float64{}
		for _, r := range records {
			if of[r.Point] == nil {
				order = append(order, r.Point)
			}
			of[r.Point] = append(of[r.Point], r.Result.Time)
		}
		return order, of
	}
	points, as := times(a)
	others, bs := times(b)
	limit := 1 + threshold/100
	var ratios []float64
	only := 0
	fmt.Fprintf(out, "%10s  %10s  %7s  %-16s  %5s  %s\n", "A (us)", "B (us)", "B/A", "interval", "conf.", "point")
	for _, p := range points {
		if bs[p] == nil {
			only++
			continue
		}
		r := stats.RatioOf(as[p], bs[p], confidence)
		if !(r.Value > 0) || r.Value > 1e300 {
			fmt.Fprintf(out, "%10.2f  %10.2f  %7s  %-16s  %5s  %v\n", stats.Median(as[p]), stats.Median(bs[p]), "-", "-", "-", p)
			continue // a time of 0 cannot be compared
		}
		ratios = append(ratios, r.Value)
		mark := ""
		if r.Low > limit {
			slower = append(slower, p)
			mark = "  slower"
		}
		fmt.Fprintf(out, "%10.2f  %10.2f  %7.3f  %-16s  %4.0f%%  %v%s\n", stats.Median(as[p]), stats.Median(bs[p]), r.Value,
			fmt.Sprintf("%.3f - %.3f", r.Low, r.High), 100*r.Confidence, p, mark)
	}
	if len(ratios) == 0 {
		return nil, false, fmt.Errorf("the runs have no point in common: %w", ubcoll.ErrArgument)
	}
	for _, p := range others {
		if as[p] == nil {
			only++
		}
	}
	g := stats.GeometricMean(ratios)
	fmt.Fprintf(out, "geometric mean of %s: %.3f (above 1: B is slower)\n", plural.Count(len(ratios), "ratio"), g)
	if only > 0 {
		fmt.Fprintf(out, "in one of the runs only: %s\n", plural.Count(only, "point"))
	}
	return slower, g > limit, nil
}
