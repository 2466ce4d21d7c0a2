package chart

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// Version is the version of Figure's JSON, which cmd/ubcoll-plot reads. It changes whenever a key does.
const Version = 2

// Figure describes one picture: panels, each with bus bandwidth and time against size.
type Figure struct {
	Version int     `json:"version"`
	Title   string  `json:"title"` // what all its lines have in common
	Note    string  `json:"note"`  // what the points and the bars are
	Panels  []Panel `json:"panels"`
	Limits  []Limit `json:"limits"` // of the bandwidth

	Name string `json:"-"` // for files: what is constant in it and not in all figures; "" if it is the only one
}

// Panel is a part of a figure. No line is in two of them.
type Panel struct {
	Title  string   `json:"title"` // what its lines have in common, and those of other panels have not
	Series []Series `json:"series"`
}

// Series is a line.
type Series struct {
	Name   string  `json:"name"`
	Look   int     `json:"look"`   // from 0: its colour, dashes and marks, and its place among others, the same in all figures
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

const (
	few      = 4  // lines of a panel, if they differ in more than one thing
	most     = 8  // lines of a panel, anyway: the eye does not tell more apart
	mostWays = 3  // ways between hosts that a line's name has
	legend   = 16 // lines of a figure, which its legend names
	page     = 16 // panels of a figure: they fill a page
)

// parting are the axes by which lines come into several panels, and panels into several figures: the first ones first, as
// few as possible. Runs and contenders stay together.
var parting = []int{operation, elements, ranks, reduction, variant, hosts, device, root, graphs, protocol, average, inPlace, registration, algorithm}

// Figures returns the figure of runs, which has a panel for each operation, or more if there are too many lines. If it
// does not fit on a page, there are several figures. Figures, panels and lines are in the order of their values on the
// axes, whatever the order of the measurements, and a line looks the same in all of them.
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
	of := map[key][]sample{}
	for _, s := range samples {
		if s.bytes > 0 && s.time > 0 { // not barriers
			of[s.key] = append(of[s.key], s)
		}
	}
	all := slices.SortedFunc(maps.Keys(of), key.compare)
	for _, r := range runs {
		if !slices.ContainsFunc(all, func(k key) bool { return k[theRun] == r.Name }) {
			return nil, fmt.Errorf("there is nothing to draw of %s: no measurement with a size%s: %w", r.File, says(choices), ubcoll.ErrArgument)
		}
	}
	panels := panelAxes(all)
	lines := lineAxes(all, panels)
	looks := lineLooks(all, lines)
	files := figureAxes(all, panels, lines)
	var figures []Figure
	for _, keys := range group(all, files) {
		said := common(keys, lines)
		ways := map[key]string{}
		for _, line := range group(keys, lines) {
			ways[line[0].on(lines)] = waysOf(line, of)
		}
		f := Figure{Version: Version, Title: said.title(all), Limits: append([]Limit{}, limits...), Name: keys[0].on(files).file(all)}
		for _, some := range group(keys, panels) {
			p := Panel{Title: common(some, lines).without(said).title(all)}
			for _, k := range some {
				p.Series = append(p.Series, Series{k.line(lines) + ways[k.on(lines)], looks[k.on(lines)], k.bound(), points(of[k])})
			}
			slices.SortFunc(p.Series, func(a, b Series) int { return cmp.Compare(a.Look, b.Look) })
			f.Panels = append(f.Panels, p)
		}
		if n := len(group(keys, lines)); n > legend {
			return nil, fmt.Errorf("%s: %d lines are more than one figure can show: take fewer results, or choose (-only): %w",
				cmp.Or(f.Title, f.Panels[0].Title), n, ubcoll.ErrArgument)
		}
		f.Note = note(f.allPoints())
		figures = append(figures, f)
	}
	return figures, nil
}

// panelAxes returns the axes by which lines come into panels. They are the same for all operations, so that what tells
// lines apart is the same in all panels.
func panelAxes(all []key) []int {
	by := []int{operation}
	for _, axis := range parting[1:] {
		if slices.ContainsFunc(group(all, by), func(panel []key) bool { return crowded(panel) && len(values(panel, axis)) > 1 }) {
			by = append(by, axis)
		}
	}
	return by
}

// crowded tells whether these are too many lines for a panel.
func crowded(panel []key) bool {
	things := 0
	for axis := range axes {
		if differ(panel, axis) {
			things++
		}
	}
	return len(panel) > most || len(panel) > few && things > 1
}

// withAgreement is the way of small data, whatever was asked for.
const withAgreement = "exchange"

// waysOf says for the name of a line which ways between hosts it took, in the order of the sizes: " (doubling, halving)". It says
// nothing if these are many, or the only one is the one that was asked for. Small data are left out.
func waysOf(line []key, of map[key][]sample) string {
	from := map[string]int{} // the least size
	for _, k := range line {
		for _, s := range of[k] {
			if at, has := from[s.way]; s.way != "" && s.way != withAgreement && (!has || s.bytes < at) {
				from[s.way] = s.bytes
			}
		}
	}
	ways := slices.SortedFunc(maps.Keys(from), func(a, b string) int { return cmp.Or(cmp.Compare(from[a], from[b]), cmp.Compare(a, b)) })
	if len(ways) == 0 || len(ways) > mostWays || len(ways) == 1 && maps.Equal(values(line, algorithm), map[string]bool{ways[0]: true}) {
		return ""
	}
	return " (" + strings.Join(ways, ", ") + ")"
}

// lineAxes returns the axes that tell lines apart: those on which lines of a panel have different values. If that is not
// enough, they are also those on which some lines of a panel have a value and others have none. Runs are always told
// apart.
func lineAxes(all []key, panels []int) []int {
	var apart, unsaid []int
	parts := group(all, panels)
	for axis := range axes {
		switch {
		case axis == theRun && differ(all, axis), slices.ContainsFunc(parts, func(panel []key) bool { return len(values(panel, axis)) > 1 }):
			apart = append(apart, axis)
		case slices.ContainsFunc(parts, func(panel []key) bool { return differ(panel, axis) }):
			unsaid = append(unsaid, axis)
		}
	}
	if slices.ContainsFunc(parts, func(panel []key) bool { return len(group(panel, apart)) < len(panel) }) {
		return slices.Sorted(slices.Values(append(apart, unsaid...)))
	}
	return apart
}

// lineLooks numbers the lines in the order of their values on the axes that tell them apart, with bounds behind the others.
func lineLooks(all []key, lines []int) map[key]int {
	looks := map[key]int{}
	for _, bounds := range []bool{false, true} {
		for _, line := range group(all, lines) {
			if line[0].bound() == bounds {
				looks[line[0].on(lines)] = len(looks)
			}
		}
	}
	return looks
}

// figureAxes returns the axes by which panels come into figures: as few as it takes for figures to fit on a page.
func figureAxes(all []key, panels, lines []int) (by []int) {
	large := func(figure []key) bool {
		return len(group(figure, panels)) > page || len(group(figure, lines)) > legend
	}
	for _, axis := range panels {
		if !slices.ContainsFunc(group(all, by), large) {
			break
		}
		by = append(by, axis)
	}
	return by
}

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
func note(points []Point) string {
	few, many, least := math.MaxInt, 0, 1.0
	spread, single := false, false
	for _, p := range points {
		switch {
		case p.Repeats > 1:
			few, many, least = min(few, p.Repeats), max(many, p.Repeats), min(least, p.Confidence)
		case p.Time.Low < p.Time.High:
			spread = true
		default:
			single = true
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
		for _, p := range f.allPoints() {
			n += cmp.Compare(p.Wrong, 0)
		}
	}
	return n
}

func (f *Figure) allPoints() (all []Point) {
	for _, p := range f.Panels {
		for _, s := range p.Series {
			all = append(all, s.Points...)
		}
	}
	return all
}
