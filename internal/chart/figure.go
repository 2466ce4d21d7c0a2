package chart

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// Version is the version of Figure's JSON, which cmd/ubcoll-plot reads. It changes whenever a key does.
const Version = 1

// Figure describes one picture: bus bandwidth and time against size.
type Figure struct {
	Version int      `json:"version"`
	Title   string   `json:"title"`
	Note    string   `json:"note"` // what the points and the bars are
	Series  []Series `json:"series"`
	Limits  []Limit  `json:"limits"` // of the bandwidth

	Name string `json:"-"` // for files: lower-case letters, digits, dashes and underscores

	first key
}

// Series is a line.
type Series struct {
	Name   string  `json:"name"`
	Bound  bool    `json:"bound"`  // what the hardware can do: drawn without points
	Points []Point `json:"points"` // by size
}

// Point sums up the measurements of one size.
type Point struct {
	Bytes int   `json:"bytes"`
	Time  Range `json:"time_us"`
	BusBW Range `json:"bus_bw"` // GB/s

	Repeats    int      `json:"-"`
	Confidence float64  `json:"-"` // of the bars; 0: they are the calls' spread, or there are none
	Took       []string `json:"-"` // which algorithms
	Wrong      int      `json:"-"` // wrong elements
}

// Range is a median and the ends of its bar. Without a bar, both ends are the median.
type Range struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Limit is a bandwidth that cannot be exceeded, the same for all sizes.
type Limit struct {
	Name  string  `json:"name"`
	BusBW float64 `json:"bus_bw"` // GB/s
}

// confidence is the confidence of the bars, if there are enough repeats for it.
const confidence = 0.95

// most is the number of series up to which a figure is not split. The eye does not tell more apart.
const most = 8

// Figures returns the figures of runs, at least one for each operation. It splits an operation further that has too
// many series for one figure.
func Figures(runs []*Run, choices []Only, limits []Limit) ([]Figure, error) {
	var samples []sample
	names := map[string]string{}
	for _, r := range runs {
		if other, taken := names[r.Name]; taken {
			return nil, fmt.Errorf("%s and %s are both called %s: give one another name, as new=%s: %w", other, r.File, r.Name, r.File,
				ubcoll.ErrArgument)
		}
		names[r.Name] = r.File
		for _, s := range r.samples {
			s.key[theRun] = r.Name
			samples = append(samples, s)
		}
	}
	samples, err := choose(samples, choices)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ubcoll.ErrArgument)
	}
	samples = slices.DeleteFunc(samples, func(s sample) bool { return s.bytes <= 0 || !(s.time > 0) }) // such as barriers
	for _, r := range runs {
		if !slices.ContainsFunc(samples, func(s sample) bool { return s.key[theRun] == r.Name }) {
			return nil, fmt.Errorf("there is nothing to draw of %s: no measurement with a size%s: %w", r.File, says(choices), ubcoll.ErrArgument)
		}
	}
	var figures []Figure
	for _, of := range split(samples, operation) {
		for _, some := range small(of) {
			figures = append(figures, figure(some, limits))
		}
	}
	for i := range figures {
		if n := len(figures[i].Series); n > 2*most {
			return nil, fmt.Errorf("%s: %d lines are more than one figure can show: take fewer results, or choose (-only): %w",
				figures[i].Title, n, ubcoll.ErrArgument)
		}
	}
	name(figures)
	return figures, nil
}

// name names figures after their operations. If an operation has several figures, their names also say what tells them
// apart.
func name(figures []Figure) {
	for i := range figures {
		f := &figures[i]
		words := []string{f.first[operation]}
		for axis := range axes {
			v := f.first[axis]
			apart := func(g Figure) bool { return g.first[operation] == words[0] && g.first[axis] != v }
			if axis > operation && v != "" && slices.ContainsFunc(figures, apart) {
				words = append(words, axes[axis].name, v)
			}
		}
		f.Name = notInNames.ReplaceAllString(strings.ToLower(strings.Join(words, "-")), "-")
	}
}

// split divides samples by their values on an axis, in the order in which the values appear.
func split(samples []sample, axis int) (parts [][]sample) {
	at := map[string]int{}
	for _, s := range samples {
		i, known := at[s.key[axis]]
		if !known {
			i = len(parts)
			at[s.key[axis]] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], s)
	}
	return parts
}

// small splits samples until each part has few enough series for a figure, if possible. Runs and contenders stay
// together.
func small(samples []sample) [][]sample {
	keys := map[key]bool{}
	for _, s := range samples {
		keys[s.key] = true
	}
	if len(keys) <= most {
		return [][]sample{samples}
	}
	for _, axis := range []int{elements, ranks, reduction, variant, device, root, graphs, protocol, average, inPlace, registration, algorithm} {
		if parts := split(samples, axis); len(parts) > 1 {
			var all [][]sample
			for _, p := range parts {
				all = append(all, small(p)...)
			}
			return all
		}
	}
	return [][]sample{samples}
}

// figure returns the figure of samples, which all have the same operation.
func figure(samples []sample, limits []Limit) Figure {
	f := Figure{Version: Version, Limits: append([]Limit{}, limits...), first: samples[0].key}
	var order []key
	of := map[key][]sample{}
	for _, s := range samples {
		if of[s.key] == nil {
			order = append(order, s.key)
		}
		of[s.key] = append(of[s.key], s)
	}
	// The title says what all series have in common, and their names say what tells them apart. Names have the axes on
	// which series have different values. If that is not enough, they also have the axes on which some series have a
	// value and others have none.
	var title []string
	var apart, unsaid []int
	for i, a := range axes {
		values := map[string]bool{}
		for _, k := range order {
			values[k[i]] = true
		}
		v := order[0][i]
		switch {
		case len(values) == 2 && values[""]:
			unsaid = append(unsaid, i)
		case len(values) > 1:
			apart = append(apart, i)
		case v != "" && v != a.usual && i != theRun:
			title = append(title, a.say(v))
		}
	}
	f.Title = strings.Join(title, ", ")
	names := seriesNames(order, apart)
	if len(slices.Compact(slices.Sorted(slices.Values(names)))) < len(names) {
		names = seriesNames(order, slices.Sorted(slices.Values(append(apart, unsaid...))))
	}
	for i, k := range order {
		f.Series = append(f.Series, Series{Name: names[i], Bound: k[contender] == "bound", Points: points(of[k])})
	}
	f.Note = note(f.Series)
	return f
}

// seriesNames names each key by its values on some axes, or, if it has none there, by its run.
func seriesNames(keys []key, on []int) (names []string) {
	for _, k := range keys {
		var words []string
		for _, i := range on {
			if k[i] != "" {
				words = append(words, axes[i].say(k[i]))
			}
		}
		names = append(names, cmp.Or(strings.Join(words, ", "), k[theRun]))
	}
	return names
}

var notInNames = regexp.MustCompile(`[^a-z0-9_]+`)

// points returns the points of a series.
func points(samples []sample) (all []Point) {
	bySize := map[int][]sample{}
	for _, s := range samples {
		bySize[s.bytes] = append(bySize[s.bytes], s)
	}
	for _, bytes := range slices.Sorted(maps.Keys(bySize)) {
		all = append(all, pointOf(bytes, bySize[bytes]))
	}
	return all
}

// pointOf sums up the repeats of one size.
func pointOf(bytes int, repeats []sample) Point {
	p := Point{Bytes: bytes, Repeats: len(repeats)}
	var times, bandwidths []float64
	for _, s := range repeats {
		times, bandwidths = append(times, s.time), append(bandwidths, s.busBW)
		p.Wrong += s.wrong
		if s.took != "" && !slices.Contains(p.Took, s.took) {
			p.Took = append(p.Took, s.took)
		}
	}
	slices.Sort(p.Took)
	t, b := stats.MedianOf(times, confidence), stats.MedianOf(bandwidths, confidence)
	p.Time, p.BusBW, p.Confidence = Range{t.Median, t.Low, t.High}, Range{b.Median, b.Low, b.High}, t.Confidence
	// The bar of a single measurement is the spread of its calls, which is no confidence interval.
	if c := repeats[0].calls; len(repeats) == 1 && c != nil && c.Min > 0 {
		p.Time.Low, p.Time.High = min(c.Min, t.Median), max(c.P95, t.Median)
		p.BusBW.Low, p.BusBW.High = b.Median*t.Median/p.Time.High, b.Median*t.Median/p.Time.Low
	}
	return p
}

// note says what the points and the bars mean.
func note(series []Series) string {
	few, many, least := math.MaxInt, 0, 1.0
	spread, single := false, false
	for _, s := range series {
		for _, p := range s.Points {
			switch {
			case p.Repeats > 1:
				few, many, least = min(few, p.Repeats), max(many, p.Repeats), min(least, p.Confidence)
			case p.Time.Low < p.Time.High:
				spread = true
			default:
				single = true
			}
		}
	}
	var says []string
	if many > 0 {
		repeats := fmt.Sprint(many)
		if few < many {
			repeats = fmt.Sprintf("%d to %d", few, many)
		}
		bars := "confidence intervals of 95 % or more"
		if least < confidence {
			bars = fmt.Sprintf("the whole range, which is a confidence interval of %.0f %%", math.Floor(100*least))
		}
		says = append(says, fmt.Sprintf("medians of %s repeats, bars: %s", repeats, bars))
	}
	if spread {
		says = append(says, "medians of calls, bars: from the fastest call to the 95th percentile")
	}
	if single {
		says = append(says, "single measurements without bars")
	}
	text := strings.Join(says, "; ")
	return strings.ToUpper(text[:1]) + text[1:]
}

// Interval returns the ends of the bar as text, in brackets; "" if there is no bar.
func (r Range) Interval() string {
	if r.Low == r.High {
		return ""
	}
	return "[" + number(r.Low) + ", " + number(r.High) + "]"
}

// Value returns the median as text.
func (r Range) Value() string { return number(r.Median) }

// number formats x without an exponent, with four significant digits, or with three below 1.
func number(x float64) string {
	digits := 3
	for limit := 10.0; digits > 0 && x >= limit; limit *= 10 {
		digits--
	}
	for limit := 0.1; digits < 9 && x > 0 && x < limit; limit /= 10 {
		digits++
	}
	return fmt.Sprintf("%.*f", digits, x)
}

// Wrong returns how many points of the figures have wrong elements.
func Wrong(figures []Figure) (n int) {
	for _, f := range figures {
		for _, s := range f.Series {
			for _, p := range s.Points {
				n += cmp.Compare(p.Wrong, 0)
			}
		}
	}
	return n
}
