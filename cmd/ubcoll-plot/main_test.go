package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"image"
	_ "image/png"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot/vg"
)

// The figures are those whose numbers the tests of ubcoll plot hold.
func figure(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func picture(t *testing.T, format string, figure []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := run([]string{format}, bytes.NewReader(figure), &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// texts is what stands in a picture, which is well-formed.
func texts(t *testing.T, svg []byte) (all []string) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := token.(xml.CharData); ok && strings.TrimSpace(string(c)) != "" {
			all = append(all, string(c))
		}
	}
}

func TestSVG(t *testing.T) {
	for _, c := range []struct {
		name, figure string
		texts        []string
		count        map[string]int // of what is drawn, by its style
	}{
		{"repeats of two algorithms", "sweep.json",
			[]string{"all_reduce, float32, sum, 4 ranks, registered, host memory", "the library's choice", "ring", "Bus bandwidth (GB/s)",
				"Time of a call", "Size", "1 KiB", "16 KiB", "256 KiB", "10 µs", "100 µs", "0", "6", "12",
				"Medians of 3 repeats, bars: the whole range, which is a confidence interval of 75 %"},
			map[string]int{
				`style="fill:#0072B2"`: 7, `style="fill:#D55E00"`: 7, // 3 marks in both panels and one in the legend
				`style="fill:none;stroke:#0072B2;stroke-width:0.7"`: 18, // 3 bars of 3 lines in both
				`style="fill:none;stroke:#D55E00;stroke-width:0.7"`: 18,
				`stroke-dasharray:6,2"`:                             3,
			}},
		{"peers and a bound", "page.json", []string{"ubcoll", "Open MPI", "the hardware's bound"},
			map[string]int{`style="fill:#0072B2"`: 5, `style="fill:#D55E00"`: 5, `stroke:#0072B2;stroke-width:0.7"`: 6,
				`stroke:#555555;stroke-width:1.2;stroke-dasharray:1,2"`: 3}},
		// Each of four panels has two plots, with two points of each line, and the legend is there once.
		{"a grid", "grid.json", []string{"float32", "all_reduce, 2 ranks", "all_reduce, 10 ranks", "broadcast, 2 ranks", "broadcast, 10 ranks",
			"registered, out of place", "registered, in place", "staged, out of place", "staged, in place"},
			map[string]int{`style="fill:#0072B2"`: 17, `style="fill:#D55E00"`: 17, `style="fill:#009E73"`: 17, `stroke:#CC79A7;stroke-width:1.1`: 9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			svg := picture(t, "svg", figure(t, c.figure))
			said := texts(t, svg)
			for _, want := range c.texts {
				if !slices.Contains(said, want) {
					t.Errorf("no %q among %q", want, said)
				}
			}
			for _, want := range c.texts[1:] {
				if n := len(slices.DeleteFunc(slices.Clone(said), func(s string) bool { return s != want })); n > 2 {
					t.Errorf("%q is said %d times", want, n)
				}
			}
			for want, n := range c.count {
				if got := strings.Count(string(svg), want); got != n {
					t.Errorf("%d times %s, not %d", got, want, n)
				}
			}
		})
	}
}

// The same figure gives the same picture, of a size for print.
func TestPNG(t *testing.T) {
	text := picture(t, "png", figure(t, "sweep.json"))
	config, format, err := image.DecodeConfig(bytes.NewReader(text))
	if err != nil || format != "png" || config.Width != 2102 {
		t.Errorf("%v, %q, %d dots wide", err, format, config.Width)
	}
	if !bytes.Equal(text, picture(t, "png", figure(t, "sweep.json"))) {
		t.Error("another picture")
	}
}

// Many lines, long names and extreme sizes and times leave all text in the picture.
func TestExtremes(t *testing.T) {
	f := Figure{Version: version, Title: strings.Repeat("title ", 60), Note: strings.Repeat("note ", 100),
		Limits: []Limit{{strings.Repeat("limit ", 60), 1e6}}}
	for i := range 3 {
		p := Panel{Title: strings.Repeat("panel ", 100*i)}
		for i := range 16 {
			s := Series{Name: fmt.Sprintf("series %d %s", i, strings.Repeat("name ", 5*i)), Look: i}
			for e := 0; e <= 40; e += 4 {
				us := math.Pow(10, float64(e)/4-3)
				s.Points = append(s.Points, Point{1 << e, Range{us, us / 10, us * 10}, Range{1 / us, 0, 2 / us}})
			}
			p.Series = append(p.Series, s)
		}
		p.Series = append(p.Series, Series{Name: "none", Look: 17})
		f.Panels = append(f.Panels, p)
	}
	one := Figure{Version: version, Panels: []Panel{{"", []Series{{Name: "one point", Points: []Point{{8, Range{1, 1, 1}, Range{}}}}, {Name: "none", Look: 1}}}}}
	for name, f := range map[string]Figure{"many": f, "one point": one} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			svg := picture(t, "svg", text)
			for _, fault := range overlaps(t, svg) {
				t.Error(fault)
			}
			if strings.Contains(string(svg), "NaN") || strings.Contains(string(svg), "Inf") {
				t.Error("there is no such place")
			}
		})
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		name      string
		of        scale
		low, high float64
		length    vg.Length // of the axis
		want      string
	}{
		{"few sizes", sizes, 8, 64, 200, "8 B, 16 B, 32 B, 64 B"},
		{"sizes", sizes, 7, 70 << 20, 200, "16 B, 256 B, 4 KiB, 64 KiB, 1 MiB, 16 MiB"},
		{"sizes with little room", sizes, 7, 70 << 20, 80, "1 KiB, 1 MiB"},
		{"all sizes", sizes, 1, 1 << 40, 200, "1 B, 1 KiB, 1 MiB, 1 GiB, 1 TiB"},
		{"one size", sizes, 900, 1100, 80, "1 KiB"},
		{"two powers", times, 1, 12, 150, "1 µs, 2 µs, 5 µs, 10 µs"},
		{"one power", times, 0.9, 8, 150, "1 µs, 2 µs, 5 µs"},
		{"no power", times, 2.9, 4.2, 150, "3 µs, 4 µs"},
		{"nothing but one", times, 1.8, 2.9, 60, "2 µs, 2.5 µs"},
		{"times", times, 0.3, 2e6, 150, "1 µs, 10 µs, 100 µs, 1 ms, 10 ms, 100 ms, 1 s"},
		{"times with little room", times, 0.3, 2e6, 60, "1 µs, 100 µs, 10 ms, 1 s"},
		{"short times", times, 0.05, 20, 150, "100 ns, 1 µs, 10 µs"},
		{"bandwidths", bandwidths, 0, 477, 150, "0, 100, 200, 300, 400"},
		{"small bandwidths", bandwidths, 0, 0.0031, 60, "0, 0.001, 0.002, 0.003"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := axis{low: c.low, high: c.high, log: c.low > 0, to: c.length}
			extent := func(string) vg.Length { return small * 1.5 }
			if strings.Contains(c.want, "B") {
				extent = letters{size: small}.width
			}
			var got []string
			for _, k := range a.ticks(c.of, extent) {
				if k.label != "" {
					got = append(got, k.label)
				}
			}
			if got := strings.Join(got, ", "); got != c.want {
				t.Errorf("%s, not %s", got, c.want)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	panels := func(p string) string { return `{"version": 2, "limits": [{"name": "l"}], "panels": [` + p + `]}` }
	point := func(p string) string { return panels(`{"series": [{"name": "s", "points": [` + p + `]}]}`) }
	const time, bandwidth = `"time_us": {"low": 1, "median": 2, "high": 3}`, `"bus_bw": {"low": 1, "median": 2, "high": 3}`
	for _, c := range []struct {
		name, in string
		args     []string
		want     string
	}{
		{"no format", "", nil, "want one argument, svg or png, not 0"},
		{"two", "", []string{"svg", "png"}, "want one argument, svg or png, not 2"},
		{"another format", "", []string{"pdf"}, `unknown format "pdf": want svg or png`},
		{"nothing", "", []string{"svg"}, "the figure on standard input: unexpected end of JSON input"},
		{"an earlier version", `{"version": 1}`, []string{"svg"}, "it is of version 1, and this ubcoll-plot draws version 2"},
		{"empty", `{"version": 2}`, []string{"png"}, "it has no panels"},
		{"an empty panel", panels(`{"series": [{"name": "s"}]}`), []string{"png"}, "panel 0 has no points"},
		{"two names of a look", panels(`{"series": [{"name": "s"}, {"name": "r"}]}`), []string{"png"},
			`series "r" has look 0, and so has series "s": want a number from 0 for each name`},
		{"a look below 0", panels(`{"series": [{"name": "s", "look": -1}]}`), []string{"png"}, `series "s" has look -1`},
		{"twice", panels(`{"series": [{"name": "s"}, {"name": "s"}]}`), []string{"png"}, `panel 0 has series "s" twice`},
		{"no time", point(`{"bytes": 8, ` + bandwidth + `}`), []string{"svg"}, `series "s", 8 bytes: want times more than 0`},
		{"a size of 0", point(`{"bytes": 0, ` + time + `,` + bandwidth + `}`), []string{"svg"}, "0 bytes after 0: want sizes that grow"},
		{"no order", point(`{"bytes": 8, ` + time + `, "bus_bw": {"low": 3, "median": 2, "high": 4}}`), []string{"svg"}, "low <= median <= high"},
		{"a limit of 0", point(`{"bytes": 8, ` + time + `,` + bandwidth + `}`), []string{"svg"},
			`limit "l": want a bandwidth of more than 0, not 0`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(c.args, strings.NewReader(c.in), &out)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, not %s", err, c.want)
			}
			if out.Len() > 0 {
				t.Error("half a picture")
			}
		})
	}
	var out bytes.Buffer
	if err := run([]string{"-h"}, strings.NewReader(""), &out); err != nil || !strings.HasPrefix(out.String(), "Usage: ubcoll-plot") {
		t.Error(err, out.String())
	}
}

// go install takes a module at a version only if it replaces none; and a program that draws needs no ranks.
func TestInstallable(t *testing.T) {
	text, err := exec.Command("go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Module           struct{ Path string }
		Require          []struct{ Path string }
		Replace, Exclude []any
	}
	if err := json.Unmarshal(text, &mod); err != nil {
		t.Fatal(err)
	}
	if mod.Module.Path != "github.com/ubcoll/ubcoll/cmd/ubcoll-plot" || mod.Replace != nil || mod.Exclude != nil {
		t.Errorf("%+v", mod)
	}
	for _, r := range mod.Require {
		if strings.HasPrefix(r.Path, "github.com/ubcoll/") {
			t.Errorf("it needs %s", r.Path)
		}
	}
}
