package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// drawn is the folder of the figures that the drawing program's tests draw.
const drawn = "../../cmd/ubcoll-plot/testdata"

func readAll(t *testing.T, args ...string) (runs []*Run) {
	t.Helper()
	for _, a := range args {
		r, err := Read(a)
		require.NoError(t, err)
		runs = append(runs, r)
	}
	return runs
}

func figuresOf(t *testing.T, args ...string) []Figure {
	t.Helper()
	figures, err := Figures(readAll(t, args...), nil, nil)
	require.NoError(t, err)
	return figures
}

// The numbers of figures: golden files, which the drawing program reads in its tests.
func TestFigures(t *testing.T) {
	for _, c := range []struct{ name, results, want string }{
		{"a folder of ubcoll run", "testdata/sweep", "sweep.json"},
		{"its lines", "testdata/sweep/points.jsonl", "sweep.json"},
		{"its table", "testdata/sweep/points.csv", "sweep.json"},
		{"a page of a script", "testdata/page.md", "page.json"},
		{"several operations, in disorder", "testdata/grid.csv", "grid.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			figures := figuresOf(t, c.results)
			require.Len(t, figures, 1, "barriers have no sizes")
			require.Empty(t, figures[0].Name)
			text, err := json.Marshal(figures[0])
			require.NoError(t, err)
			want, err := os.ReadFile(filepath.Join(drawn, c.want))
			require.NoError(t, err)
			require.JSONEq(t, string(want), string(text))
		})
	}
	p := figuresOf(t, "testdata/sweep")[0].Panels[0].Series[0].Points
	require.Equal(t, []string{"eager", "push"}, p[1].Took)
	require.Equal(t, []int{0, 0, 3}, []int{p[0].Wrong, p[1].Wrong, p[2].Wrong})
	require.Equal(t, []any{3, 0.75}, []any{p[0].Repeats, p[0].Confidence})
}

func benchReport() *bench.Report {
	no := 0
	result := func(us float64) *bench.Result {
		alg, bus := bench.Bandwidth("all_reduce", 4, 4096, us)
		return &bench.Result{Time: us, AlgBW: alg, BusBW: bus, Wrong: &no, Algorithm: "push",
			Spread: &stats.Spread{Calls: 20, Min: us / 2, Median: us, P95: 4 * us, Max: 9 * us}}
	}
	return &bench.Report{Schema: bench.SchemaVersion, Version: "v1", Args: []string{"ubcoll", "bench"}, Env: map[string]string{"A": "b"},
		Config:  bench.Settings{Op: "all_reduce", Ranks: 4, Registration: "local", Device: "host", Protocol: "each", Average: "max"},
		Ranks:   []bench.RankInfo{{Hostname: "h", Name: "d"}, {Hostname: "h", Name: "d"}},
		Results: []bench.Row{{Size: 4096, Count: 1024, Type: "float", Reduction: "sum", Root: -1, Out: result(8), In: result(6)}},
	}
}

// What ubcoll bench writes says the same in all three forms, and names what ubcoll run measures as that does.
func TestBenchFiles(t *testing.T) {
	dir := t.TempDir()
	var all []Figure
	for _, suffix := range []string{"json", "jsonl", "csv"} {
		file := filepath.Join(dir, "r."+suffix)
		require.NoError(t, benchReport().Write(file, false))
		figures := figuresOf(t, file)
		require.Len(t, figures, 1)
		all = append(all, figures[0])
		require.Equal(t, all[0], figures[0], suffix)
	}
	f := all[0]
	require.Equal(t, "all_reduce, float32, sum, 4 ranks, registered, host memory", f.Title)
	require.Equal(t, "Medians of calls, bars: from the fastest call to the 95th percentile", f.Note)
	series := f.Panels[0].Series
	require.Equal(t, []string{"out of place", "in place"}, []string{series[0].Name, series[1].Name})
	p := series[0].Points[0]
	require.Equal(t, Range{8, 4, 32}, p.Time)
	require.InDeltaSlice(t, []float64{0.768, 0.192, 1.536}, []float64{p.BusBW.Median, p.BusBW.Low, p.BusBW.High}, 1e-12)
	// Of several operations it writes a list.
	several := benchReport()
	several.Config.Op = "broadcast"
	file := filepath.Join(dir, "several.json")
	require.NoError(t, bench.WriteAll([]*bench.Report{benchReport(), several}, file, false))
	figures := figuresOf(t, file)
	require.Len(t, figures, 1)
	require.Equal(t, series, figures[0].Panels[0].Series)
	require.Equal(t, []string{"all_reduce", "broadcast"}, []string{figures[0].Panels[0].Title, figures[0].Panels[1].Title})
	require.Equal(t, "float32, sum, 4 ranks, registered, host memory", figures[0].Title)
	require.Equal(t, []Fact{{"command", "ubcoll bench"}, {"ubcoll", "v1"}}, slices.DeleteFunc(readAll(t, file)[0].Origin,
		func(f Fact) bool { return f.What != "command" && f.What != "ubcoll" }))
	// Added to a file, the measurements are repeats.
	file = filepath.Join(dir, "r.jsonl")
	require.NoError(t, benchReport().Write(file, true))
	require.Equal(t, 2, figuresOf(t, file)[0].Panels[0].Series[0].Points[0].Repeats)
}

// Several results are lines of one figure.
func TestLines(t *testing.T) {
	names := func(f Figure) (all []string) {
		require.Len(t, f.Panels, 1)
		require.Empty(t, f.Panels[0].Title, "the figure's title says it")
		for _, s := range f.Panels[0].Series {
			all = append(all, s.Name)
		}
		return all
	}
	f := figuresOf(t, "before=testdata/sweep", "after=testdata/sweep/points.csv")[0]
	require.Equal(t, []string{"after, the library's choice", "after, ring", "before, the library's choice", "before, ring"}, names(f))
	runs := readAll(t, "before=testdata/sweep", "after=testdata/sweep/points.csv")
	ring, err := ParseOnly("algorithm=ring")
	require.NoError(t, err)
	figures, err := Figures(runs, []Only{ring}, []Limit{{"NVLink", 450}})
	require.NoError(t, err)
	require.Equal(t, []string{"after", "before"}, names(figures[0]))
	require.Equal(t, "all_reduce, float32, sum, 4 ranks, ring, registered, host memory", figures[0].Title)
	require.Equal(t, []Limit{{"NVLink", 450}}, figures[0].Limits)

	// What some files do not say is in no name that is clear without it.
	other := filepath.Join(t.TempDir(), "other.csv")
	require.NoError(t, os.WriteFile(other, []byte("operation,size,time,bus_bw,ranks\nall_reduce,8,1,1,4\n"), 0o644))
	f = figuresOf(t, "testdata/sweep", other)[0]
	require.Equal(t, "all_reduce, 4 ranks", f.Title)
	require.Equal(t, []string{"other, the library's choice", "sweep, the library's choice", "sweep, ring"}, names(f))
	require.NoError(t, os.WriteFile(other, []byte("operation,size,time,bus_bw,type\nall_reduce,8,1,1,int8\nall_reduce,8,2,2,\n"), 0o644))
	require.Equal(t, []string{"other", "int8"}, names(figuresOf(t, other)[0]))
}

func TestFaults(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		return file
	}
	for _, c := range []struct{ name, results, want string }{
		{"nothing there", filepath.Join(dir, "x"), "there is no such file: want a folder of ubcoll run"},
		{"the experiment", "configs/two.toml", "ubcoll run configs/two.toml writes its results to results/two"},
		{"the folder above", "testdata", "did you mean testdata/sweep?"},
		{"a folder without", dir, "there is no points.jsonl in it"},
		{"empty", write("empty", " \n"), "it is empty: want a folder of ubcoll run"},
		{"other JSON", write("o.json", `{"a": 1}`), "as JSON: no results: want"},
		{"a list of others", write("l.json", "[{}]"), "as JSON: version 0 of these files, not 1"},
		{"bad JSON", write("b.json", `{"a": `), "as JSON: unexpected EOF"},
		{"a later version", write("v.json", `{"schema_version": 99, "results": []}`), "version 99 of these files, not 1"},
		{"a later version's lines", write("v.jsonl", `{"schema_version": 99, "config": {}}`), "version 99 of these files, not 1"},
		{"another table", write("t.csv", "a,b\n1,2\n"), `as CSV: no column "size" in the first line`},
		{"no number", write("n.csv", "size,time,bus_bw\n8,x,2\n"), `line 2: strconv.ParseFloat: parsing "x"`},
		{"an empty table", write("e.csv", "size,time,bus_bw\n"), "it has no measurement yet"},
		{"a page of text", write("p.md", "# Title\n"), `as a page: no section "Samples"`},
		{"a page of something else", write("q.md", "# Title\n\n## Samples\n\nContender, ranks, bytes, microseconds.\n\n```\nours 2 8 1\n```\n"),
			`"Title" is no operation (all_reduce, `},
		{"a run that has begun", write("r.jsonl", `{"kind":"run","schema_version":1}`+"\n"), "it has no measurement yet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(c.results)
			require.ErrorContains(t, err, c.want)
		})
	}
	for _, c := range []struct{ name, only, want string }{
		{"no value", "ranks", `"ranks": want an axis and its values`},
		{"no axis", "rank=2", "unknown axis \"rank\" (one of run, contender, operation, "},
		{"nearest axis", "rank=2", "did you mean ranks?"},
		{"no measurement", "ranks=3", "no measurement has ranks=3: there is 4"},
		{"nearest value", "algorithm=rong", "no measurement has algorithm=rong: there is auto, ring: did you mean ring?"},
		{"nothing to draw", "operation=barrier", "there is nothing to draw of testdata/sweep: no measurement with a size and operation=barrier"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := ParseOnly(c.only)
			if err == nil {
				_, err = Figures(readAll(t, "testdata/sweep"), []Only{o}, nil)
				require.ErrorIs(t, err, ubcoll.ErrArgument)
			}
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := Figures(readAll(t, "testdata/sweep", "testdata/sweep/points.csv", "testdata/sweep"), nil, nil)
	require.ErrorContains(t, err, "are both called sweep: give one another name, as new=testdata/sweep")
	var many []string
	for i := range 9 {
		many = append(many, fmt.Sprintf("r%d=testdata/sweep", i))
	}
	figures, err := Figures(readAll(t, many...), nil, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"the library's choice", "ring"}, []string{figures[0].Panels[0].Title, figures[0].Panels[1].Title})
	for i := range 9 {
		many = append(many, fmt.Sprintf("s%d=testdata/sweep", i))
	}
	_, err = Figures(readAll(t, many...), nil, nil)
	require.ErrorContains(t, err, "18 lines are more than one figure can show")
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		x    float64
		want string
	}{{0, "0.000"}, {0.00209, "0.00209"}, {0.5, "0.500"}, {3.14159, "3.142"}, {99.99, "99.99"}, {123.45, "123.5"}, {1234567, "1234567"}} {
		require.Equal(t, c.want, number(c.x))
	}
	require.Empty(t, Range{2, 2, 2}.Interval())
	require.Equal(t, "[1.000, 20.00]", Range{2, 1, 20}.Interval())
	require.Equal(t, "64 KiB", Point{Bytes: 1 << 16}.Size())
	require.Equal(t, "1000 B", Point{Bytes: 1000}.Size())
}

// A report has all points and all that the files say of themselves, and whatever these are called is text.
func TestReport(t *testing.T) {
	runs := readAll(t, "<b>=testdata/sweep")
	figures, err := Figures(runs, nil, nil)
	require.NoError(t, err)
	var page bytes.Buffer
	picture := []byte("<?xml version=\"1.0\"?>\n<!-- by -->\n<svg width=\"1pt\"></svg>\n")
	require.NoError(t, WriteReport(&page, "", runs, figures, [][]byte{picture}, time.Unix(0, 0)))
	text := page.String()
	require.Equal(t, 6, strings.Count(text, "<tr><td>"), "a row for each point")
	for _, want := range []string{"<title>Results: &lt;b&gt;</title>", "1970-01-01 00:00 UTC", "<svg width=", "ubcoll run two.toml", "devel 0123456789ab",
		"a (2), b (2)", "UBCOLL_LOG=info", "[1.500, 3.500]", "75 %", "eager, push", "3 wrong elements", "Wrong elements in 1 of the points",
		"algorithm = [&#34;auto&#34;, &#34;ring&#34;]"} {
		require.Contains(t, text, want)
	}
	for _, no := range []string{"<?xml", "<b>", "<script", "http:", "https:"} {
		require.NotContains(t, text, no)
	}
}

// Between hosts, lines say which ways they took, and figures what carried the data.
func TestWays(t *testing.T) {
	for _, k := range []struct {
		name, rows string
		title      string
		lines      []string
	}{
		{"of one operation", `
all_reduce,auto,64,exchange,tcp eth0
all_reduce,auto,4096,doubling,tcp eth0
all_reduce,auto,8192,halving,tcp eth0
all_reduce,ring,64,exchange,tcp eth0
all_reduce,ring,8192,ring,tcp eth0
all_reduce,halving,8192,doubling,tcp eth0`, "all_reduce, tcp eth0", []string{"the library's choice (doubling, halving)", "halving (doubling)", "ring"}},
		{"of several", `
all_reduce,auto,64,doubling,tcp eth0
all_reduce,auto,65,halving,tcp eth0
broadcast,,64,tree,tcp eth0
broadcast,,65,scatter,tcp eth0
broadcast,tree,64,tree,tcp eth0`, "tcp eth0", []string{"the library's choice", "the library's choice", "tree"}},
		{"over several wires", `
all_reduce,auto,64,halving,tcp eth0
all_reduce,auto,64,halving,tcp eth0 (4 connections)`, "all_reduce", []string{"tcp eth0 (halving)", "tcp eth0 (4 connections) (halving)"}},
		{"on one host", `
all_reduce,auto,64,,
all_reduce,ring,64,,`, "all_reduce", []string{"the library's choice", "ring"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			var b strings.Builder
			b.WriteString("operation,requested_algorithm,size,way,wire,algorithm,time,bus_bw\n")
			for line := range strings.Lines(strings.TrimSpace(k.rows)) {
				b.WriteString(strings.TrimSpace(line) + ",x,1,1\n")
			}
			file := filepath.Join(t.TempDir(), "points.csv")
			require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
			figures := figuresOf(t, file)
			require.Len(t, figures, 1)
			require.Equal(t, k.title, figures[0].Title)
			var lines []string
			for _, p := range figures[0].Panels {
				for _, s := range p.Series {
					lines = append(lines, s.Name)
				}
			}
			require.Equal(t, k.lines, lines)
		})
	}
	// So many hosts are lines of their own.
	file := filepath.Join(t.TempDir(), "points.csv")
	require.NoError(t, os.WriteFile(file, []byte("operation,ranks,hosts,size,time,bus_bw\nput_bw,4,2,8,1,1\nput_bw,4,4,8,1,1\n"), 0o600))
	p := figuresOf(t, file)[0].Panels[0]
	require.Equal(t, []string{"2 hosts", "4 hosts"}, []string{p.Series[0].Name, p.Series[1].Name})
	// What bench writes has both.
	r := benchReport()
	r.Results[0].Out.Way, r.Results[0].Out.Wire, r.Results[0].In.Way, r.Results[0].In.Wire = "halving", "tcp eth0", "ring", "tcp eth0"
	file = filepath.Join(t.TempDir(), "x.json")
	require.NoError(t, r.Write(file, false))
	f := figuresOf(t, file)[0]
	require.Equal(t, "all_reduce, float32, sum, 4 ranks, registered, host memory, tcp eth0", f.Title)
	require.Equal(t, []string{"out of place (halving)", "in place (ring)"}, []string{f.Panels[0].Series[0].Name, f.Panels[0].Series[1].Name})
}
