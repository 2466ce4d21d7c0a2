// Package stats sums up the times of a measurement, and compares those of two measurements. It is all local arithmetic.
package stats

import (
	"math"
	"slices"
)

// Spread sums up the times of many calls.
type Spread struct {
	Calls  int     `json:"calls"`
	Min    float64 `json:"min_us"`
	Median float64 `json:"p50_us"`
	Mean   float64 `json:"avg_us"`
	P95    float64 `json:"p95_us"`
	P99    float64 `json:"p99_us"`
	P999   float64 `json:"p99.9_us"`
	Max    float64 `json:"max_us"`
	StdDev float64 `json:"stdev_us"`
	CV     float64 `json:"cv_pct"`
}

// SpreadOf sorts us, which must not be empty, and sums it up.
func SpreadOf(us []float64) Spread {
	slices.Sort(us)
	n := len(us)
	s := Spread{Calls: n, Min: us[0], Median: Percentile(us, 500), P95: Percentile(us, 950),
		P99: Percentile(us, 990), P999: Percentile(us, 999), Max: us[n-1]}
	for _, t := range us {
		s.Mean += t
	}
	s.Mean /= float64(n)
	for _, t := range us {
		s.StdDev += (t - s.Mean) * (t - s.Mean)
	}
	s.StdDev = math.Sqrt(s.StdDev / float64(n))
	if s.Mean > 0 {
		s.CV = 100 * s.StdDev / s.Mean
	}
	return s
}

// Percentile returns the smallest value that at least p thousandths of the sorted values do not exceed.
func Percentile(sorted []float64, p int) float64 {
	return sorted[max(0, (len(sorted)*p+999)/1000-1)]
}

// Median returns the middle one of values, or the mean of the middle two; NaN if there are none. It does not change
// values.
func Median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	switch {
	case n == 0:
		return math.NaN()
	case n%2 == 1:
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}
