package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gonum.org/v1/plot/vg"
)

// box is where something is in a picture, from the lower left.
type box struct {
	what                     string
	left, bottom, right, top float64
}

func (b box) touches(o box, space float64) bool {
	return b.left < o.right+space && o.left < b.right+space && b.bottom < o.top+space && o.bottom < b.top+space
}

// crossed tells whether a line from one point to another comes into b.
func (b box) crossed(x, y, toX, toY float64) bool {
	from, to := 0.0, 1.0
	for _, side := range [][4]float64{{x, toX, b.left, b.right}, {y, toY, b.bottom, b.top}} {
		at, d := side[0], side[1]-side[0]
		if d == 0 {
			if at <= side[2] || at >= side[3] {
				return false
			}
			continue
		}
		enter, leave := (side[2]-at)/d, (side[3]-at)/d
		from, to = max(from, min(enter, leave)), min(to, max(enter, leave))
	}
	return from < to
}

var (
	textElement = regexp.MustCompile(`(?s)<text [^>]*?x="([^"]+)" y="([^"]+)"[^>]*font-weight:(\w+)[^>]*font-size:([0-9.]+)px[^>]*>([^<]*)</text>`)
	lineElement = regexp.MustCompile(`<path d="M([^"]+)" style="[^"]*stroke:#(\w+)`)
	viewBox     = regexp.MustCompile(`viewBox="0 0 ([0-9.]+) ([0-9.]+)"`)
)

func numbers(t *testing.T, parts ...string) (all []float64) {
	t.Helper()
	for _, p := range parts {
		x, err := strconv.ParseFloat(p, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	return all
}

// overlaps returns what is wrong with where text is: outside of the picture, or on other text, on a line, or nearly so.
func overlaps(t *testing.T, svg []byte) (faults []string) {
	t.Helper()
	size := viewBox.FindStringSubmatch(string(svg))
	paper := numbers(t, size[1:]...)
	var texts []box
	for _, m := range textElement.FindAllStringSubmatch(string(svg), -1) {
		n := numbers(t, m[1], m[2], m[4])
		x, y, high := n[0], -n[1], n[2]
		said := html.UnescapeString(m[5])
		long := letters{vg.Length(high), m[3] == "bold"}.width(said).Points()
		b := box{fmt.Sprintf("%q", said), x, y - 0.21*high, x + long, y + 0.73*high}
		if b.left < 0 || b.bottom < 0 || b.right > paper[0]+0.01 || b.top > paper[1] {
			faults = append(faults, fmt.Sprintf("%s is not in the picture: %+v", b.what, b))
		}
		texts = append(texts, b)
	}
	if len(texts) != bytes.Count(svg, []byte("<text ")) {
		t.Fatal("some text is not understood")
	}
	for i, b := range texts {
		for _, o := range texts[:i] {
			if b.touches(o, 0.5) {
				faults = append(faults, fmt.Sprintf("%s touches %s", b.what, o.what))
			}
		}
	}
	for _, m := range lineElement.FindAllStringSubmatch(string(svg), -1) {
		if strings.ContainsAny(m[1], "AZ") { // a mark
			continue
		}
		points := strings.Split(m[1], "L")
		for i := range points[1:] {
			ends := numbers(t, slices.Concat(strings.Split(points[i], ","), strings.Split(points[i+1], ","))...)
			for _, b := range texts {
				near := box{b.what, b.left - 1.5, b.bottom - 1.5, b.right + 1.5, b.top + 1.5}
				if near.crossed(ends[0], ends[1], ends[2], ends[3]) {
					faults = append(faults, fmt.Sprintf("%s touches a line of colour %s", b.what, m[2]))
				}
			}
		}
	}
	return faults
}

// grid returns a figure with this many panels, and as many lines in each.
func grid(panels, lines int, from, to int, us, slope float64) *Figure {
	f := &Figure{Version: version, Title: "host memory, registered", Note: "Medians of 3 repeats, bars: the whole range",
		Limits: []Limit{{"NVLink", 45}, {"PCIe", 30}}}
	for i := range panels {
		p := Panel{Title: fmt.Sprintf("all_reduce, bfloat16, mulsum, %d ranks", i+2)}
		for j := range lines {
			s := Series{Name: fmt.Sprintf("registered by the library, %d", j), Look: j}
			for e := from; e <= to; e++ {
				time := us * (1 + float64(j)) * math.Exp2(float64(e-from)*slope)
				bw := math.Exp2(float64(e)) / time / 1e3
				s.Points = append(s.Points, Point{1 << e, Range{time, time / 1.1, time * 1.1}, Range{bw, bw / 1.1, bw * 1.1}})
			}
			p.Series = append(p.Series, s)
		}
		if panels == 1 {
			p.Title = ""
		}
		f.Panels = append(f.Panels, p)
	}
	return f
}

// No text touches other text, a tick or a line, or stands out of the picture.
func TestNothingTouches(t *testing.T) {
	draw := func(name string, text []byte) {
		t.Run(name, func(t *testing.T) {
			for _, fault := range overlaps(t, picture(t, "svg", text)) {
				t.Error(fault)
			}
		})
	}
	for _, name := range []string{"sweep.json", "page.json", "grid.json"} {
		draw(name, figure(t, name))
	}
	for _, c := range []struct {
		name          string
		panels, lines int
		from, to      int
		us, slope     float64
	}{
		{"one panel", 1, 4, 3, 26, 2, 0.7},
		{"two panels", 2, 4, 3, 26, 2, 0.7},
		{"three panels", 3, 16, 0, 40, 0.001, 0.9},
		{"an odd number of panels", 5, 1, 3, 13, 0.3, 0.2},
		{"a page", 16, 4, 3, 13, 0.3, 0.2},
		{"a page of one size", 16, 2, 10, 10, 5.2, 1},
		{"a page of all sizes", 16, 3, 0, 40, 0.001, 0.9},
		{"a page of nearly the same times", 16, 1, 20, 30, 5.3, 0.03},
	} {
		text, err := json.Marshal(grid(c.panels, c.lines, c.from, c.to, c.us, c.slope))
		if err != nil {
			t.Fatal(err)
		}
		draw(c.name, text)
	}
}
