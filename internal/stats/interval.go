package stats

import (
	"math"
	"slices"
)

// Interval is a median, and a confidence interval around it.
type Interval struct {
	Median     float64
	Low, High  float64
	Confidence float64 // of that interval, 0 to 1; 0 says that one value has none
}

// MedianOf is the median of values with its confidence interval; NaN if there are none.
//
// The interval inverts the sign test: it goes from the k-th smallest to the k-th largest value, and assumes nothing of
// the distribution. k is the largest with which the confidence is at least the wanted one. Fewer than six values do not
// have 95 %: then the interval spans them all, and Confidence says what that is worth (94 % for five, 75 % for three).
// Source: Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3rd edition (2014), section 3.6.
func MedianOf(values []float64, confidence float64) Interval {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	if n == 0 {
		nan := math.NaN()
		return Interval{nan, nan, nan, 0}
	}
	// outside is the probability that fewer than k of n values lie on a given side of the true median.
	outside, k := choose(n, 0), 1
	for k+1 <= n/2 && 1-2*(outside+choose(n, k)) >= confidence {
		outside += choose(n, k)
		k++
	}
	return Interval{Median(s), s[k-1], s[n-k], max(0, 1-2*outside)}
}

// choose is the probability of k heads in n tosses.
func choose(n, k int) float64 {
	log := func(m int) float64 { l, _ := math.Lgamma(float64(m + 1)); return l }
	return math.Exp(log(n) - log(k) - log(n-k) - float64(n)*math.Ln2)
}
