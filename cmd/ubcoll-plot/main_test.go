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
	"regexp"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot"
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
				"Time of a call", "Size", "1 KiB", "16 KiB", "256 KiB", "10 µs", "100 µs", "0", "5", "10",
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
	} {
		t.Run(c.name, func(t *testing.T) {
			svg := picture(t, "svg", figure(t, c.figure))
			said := texts(t, svg)
			for _, want := range c.texts {
				if !slices.Contains(said, want) {
					t.Errorf("no %q among %q", want, said)
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
		Limits: []Limit{{strings.Repeat("limit ", 20), 1e6}}}
	for i := range 16 {
		s := Series{Name: fmt.Sprintf("series %d %s", i, strings.Repeat("name ", 5*i))}
		for e := 0; e <= 40; e += 4 {
			us := math.Pow(10, float64(e)/4-3)
			s.Points = append(s.Points, Point{1 << e, Range{us, us / 10, us * 10}, Range{1 / us, 0, 2 / us}})
		}
		f.Series = append(f.Series, s)
	}
	f.Series = append(f.Series, Series{Name: "one point", Points: []Point{{8, Range{1, 1, 1}, Range{}}}}, Series{Name: "none"})
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	svg := picture(t, "svg", text)
	for _, m := range regexp.MustCompile(`<text x="([^"]+)" y="-([^"]+)"`).FindAllSubmatch(svg, -1) {
		var x, y float64
		fmt.Sscan(string(m[1]), &x)
		fmt.Sscan(string(m[2]), &y)
		if l := newLayout(&f); x < 0 || x > float64(width) || y < 0 || y > float64(l.height) {
			t.Errorf("text at %g, %g", x, y)
		}
	}
	if strings.Contains(string(svg), "NaN") || strings.Contains(string(svg), "Inf") {
		t.Error("there is no such place")
	}
	one, err := json.Marshal(Figure{Version: version, Series: f.Series[16:]})
	if err != nil {
		t.Fatal(err)
	}
	if svg := picture(t, "svg", one); strings.Contains(string(svg), "NaN") || strings.Contains(string(svg), "Inf") {
		t.Error("there is no such place in that of one point")
	}
}

func TestTicks(t *testing.T) {
	labels := func(ticks []plot.Tick) string {
		var all []string
		for _, k := range ticks {
			if k.Label != "" {
				all = append(all, k.Label)
			}
		}
		return strings.Join(all, ", ")
	}
	for _, c := range []struct {
		name      string
		of        plot.Ticker
		low, high float64
		want      string
	}{
		{"few sizes", sizeTicks{}, 8, 64, "8 B, 16 B, 32 B, 64 B"},
		{"sizes", sizeTicks{}, 7, 70 << 20, "16 B, 256 B, 4 KiB, 64 KiB, 1 MiB, 16 MiB"},
		{"all sizes", sizeTicks{}, 1, 1 << 40, "1 B, 1 KiB, 1 MiB, 1 GiB, 1 TiB"},
		{"two powers", timeTicks{}, 1, 12, "1 µs, 10 µs"},
		{"one power", timeTicks{}, 0.9, 8, "1 µs, 2 µs, 5 µs"},
		{"no power", timeTicks{}, 2.9, 4.2, "3 µs, 4 µs"},
		{"times", timeTicks{}, 0.3, 2e6, "1 µs, 10 µs, 100 µs, 1 ms, 10 ms, 100 ms, 1 s"},
		{"short times", timeTicks{}, 0.05, 20, "100 ns, 1 µs, 10 µs"},
		{"bandwidths", evenTicks{}, 0, 477, "0, 100, 200, 300, 400"},
		{"small bandwidths", evenTicks{}, 0, 0.0031, "0, 0.001, 0.002, 0.003"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := labels(c.of.Ticks(c.low, c.high)); got != c.want {
				t.Errorf("%s, not %s", got, c.want)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	point := func(p string) string { return `{"version": 1, "series": [{"name": "s", "points": [` + p + `]}]}` }
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
		{"a later version", `{"version": 2}`, []string{"svg"}, "it is of version 2, and this ubcoll-plot draws version 1"},
		{"empty", `{"version": 1}`, []string{"png"}, "it has no points"},
		{"no time", point(`{"bytes": 8, ` + bandwidth + `}`), []string{"svg"}, `series "s", 8 bytes: want times more than 0`},
		{"a size of 0", point(`{"bytes": 0, ` + time + `,` + bandwidth + `}`), []string{"svg"}, "0 bytes after 0: want sizes that grow"},
		{"no order", point(`{"bytes": 8, ` + time + `, "bus_bw": {"low": 3, "median": 2, "high": 4}}`), []string{"svg"}, "low <= median <= high"},
		{"a limit of 0", point(`{"bytes": 8, ` + time + `,` + bandwidth + `}`)[:len(point(`{"bytes": 8, `+time+`,`+bandwidth+`}`))-1] +
			`, "limits": [{"name": "l"}]}`, []string{"svg"}, `limit "l": want a bandwidth of more than 0, not 0`},
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
