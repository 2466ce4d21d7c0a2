package stats

import (
	"math"
	"slices"
)

// Ratio compares two samples of positive values.
type Ratio struct {
	Value      float64 // the second sample's median divided by the first's
	Low, High  float64 // the confidence interval of the ratio
	Confidence float64 // confidence of that interval, 0 to 1
}

// RatioOf returns how much larger b's values are than a's: 1 means equal. It is NaN if a or b is empty.
//
// The interval is that of Moses, which inverts the rank sum test of Wilcoxon, Mann and Whitney. It is computed on
// logarithms, so it is one of a ratio: it goes from the k-th smallest to the k-th largest of all ratios of a value of b
// to a value of a. Its only assumption on the distributions is that b's is a's times a factor. k is the largest value
// that gives at least the wanted confidence. Samples of fewer than four values cannot reach 95 %: then the interval
// spans all ratios, and Confidence is what that achieves (90 % for three values each, 0 for one each). Source:
// Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3rd edition (2014), section 4.3.
func RatioOf(a, b []float64, confidence float64) Ratio {
	if len(a) == 0 || len(b) == 0 {
		nan := math.NaN()
		return Ratio{nan, nan, nan, 0}
	}
	var all []float64
	for _, x := range a {
		for _, y := range b {
			all = append(all, y/x)
		}
	}
	slices.Sort(all)
	below := belowOf(len(a), len(b))
	k := 1
	for k+1 <= len(all)/2 && 1-2*below(k) >= confidence {
		k++
	}
	return Ratio{Median(b) / Median(a), all[k-1], all[len(all)-k], max(0, 1-2*below(k-1))}
}

// exactPairs is the most pairs of values for which the distribution is computed exactly.
const exactPairs = 2500

// belowOf returns the probability that the Mann-Whitney statistic of n and m values from the same distribution is u or
// less.
func belowOf(n, m int) func(u int) float64 {
	if n*m > exactPairs {
		mean, deviation := float64(n*m)/2, math.Sqrt(float64(n*m)*float64(n+m+1)/12)
		return func(u int) float64 { return math.Erfc((mean-float64(u)-0.5)/deviation/math.Sqrt2) / 2 }
	}
	// p[j][u] is the probability for the values so far and j of the m others. The largest value is one of the n with
	// probability n/(n+m), and then it is above all m others: the recurrence of Mann and Whitney.
	p := make([][]float64, m+1)
	for j := range p {
		p[j] = make([]float64, n*m+1)
		p[j][0] = 1
	}
	for i := 1; i <= n; i++ {
		next := make([][]float64, m+1)
		next[0] = p[0]
		for j := 1; j <= m; j++ {
			next[j] = make([]float64, n*m+1)
			for u := range next[j] {
				if u >= j {
					next[j][u] = p[j][u-j] * float64(i) / float64(i+j)
				}
				next[j][u] += next[j-1][u] * float64(j) / float64(i+j)
			}
		}
		p = next
	}
	sum := 0.0
	below := make([]float64, n*m+1)
	for u, q := range p[m] {
		sum += q
		below[u] = sum
	}
	return func(u int) float64 { return below[max(0, min(u, n*m))] }
}

// GeometricMean is the n-th root of the product of n positive values; NaN if there are none.
func GeometricMean(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sum := 0.0
	for _, v := range values {
		sum += math.Log(v)
	}
	return math.Exp(sum / float64(len(values)))
}
