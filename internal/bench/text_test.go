package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/stats"
)

// scraped is what scrapers of nccl-tests' tables take from a row, counting from the right.
type scraped struct {
	size, count                int
	outTime, outBW, inTime, in float64
	outWrong, inWrong          string
}

// scrape does what they do: skip comments, count columns from the right, look for two lines of the footer.
func scrape(t *testing.T, table string, perCall bool) (rows []scraped, busBW float64) {
	number := func(s string) float64 {
		x, err := strconv.ParseFloat(s, 64)
		require.NoError(t, err)
		return x
	}
	width := 4
	if perCall {
		width = 8
	}
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if strings.HasPrefix(line, "#") || len(f) == 0 {
			continue
		}
		require.Len(t, f, 5+2*width, "%q", line)
		out, in := f[len(f)-2*width:], f[len(f)-width:]
		rows = append(rows, scraped{int(number(f[0])), int(number(f[1])), number(out[0]), number(out[2]), number(in[0]),
			number(in[2]), out[3], in[3]})
	}
	require.Regexp(t, `(?m)^# Out of bounds values : \d+ (OK|FAILED)$`, table)
	m := regexp.MustCompile(`(?m)^# Avg bus bandwidth    : (\S+) `).FindStringSubmatch(table)
	require.NotNil(t, m)
	return rows, number(m[1])
}

// sample is a report with numbers of all widths.
func sample(cfg *Config) *Report {
	zero, many := 0, 1234567
	spread := &stats.Spread{Calls: 20, Min: 1, Median: 2, Mean: 2.5, P95: 3, P99: 4, P999: 56789.125, Max: 123456.7, StdDev: 1, CV: 40}
	r := &Report{Schema: SchemaVersion, Version: "v1", Args: []string{"x"}, Env: map[string]string{},
		Start:  time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Config: Settings{Op: cfg.Op, Threads: 2, Ranks: 2, Level: "avx2", Average: "max"},
		Ranks: []RankInfo{
			{Rank: 0, PID: 77, Hostname: "node1", Index: 0, Name: "host memory, avx2", PCI: "0000:00:00.0"},
			{Rank: 1, PID: 123456, Hostname: "node1", Index: 1, Name: "host memory, avx2", PCI: "0000:00:00.0"}},
		Setup: &Setup{Bytes: 1 << 20, Alloc: 1000.25, Register: 12},
		Cache: &CacheTimes{Hits: 99, Misses: 1, HitRate: 0.99, HitP50: 22.8, HitP99: 50, ChurnBytes: churnBytes,
			Churn: *spread},
		Results: []Row{
			{Size: 8, Count: 2, Type: "float", Reduction: "sum", Root: -1, Out: &Result{Time: 0.285, AlgBW: 0.028, BusBW: 0.028, Rate: 1e6 / 0.285, Wrong: &zero, Spread: spread,
				Algorithm: "one-shot", Source: "direct", Destination: "direct", Hits: 40},
				In: &Result{Time: 12.3456, AlgBW: 1.5, BusBW: 1.5, Wrong: &many, Spread: spread, Algorithm: "ring",
					Source: "staged: a Go slice", Misses: 2}},
			{Size: 1 << 30, Count: 1 << 28, Type: "bfloat16", Reduction: "none", Root: 3, Out: &Result{Algorithm: "two-shot", Time: 12345.67, AlgBW: 1234.5,
				BusBW: 12345.6, Spread: spread}},
			{Size: 4, Count: 1, Type: "int8", Reduction: "max", Out: &Result{Algorithm: "two-shot", Time: 1234567.8, AlgBW: 99999, BusBW: 1234567,
				Spread: spread},
				In: &Result{Algorithm: "two-shot", Time: 123456789, AlgBW: 0, BusBW: 0, Spread: spread}},
		},
		Wrong: Bounds{1234567, false}, Average: BusBW{Bandwidth: 2.91501}, Errors: []string{}}
	if cfg.Overlap {
		r.Results[0].Out.Overlap, r.Results[0].In.Overlap = newOverlap(15, 10, 10.25), newOverlap(30, 10, 20)
		r.Results[1].Out.Overlap = newOverlap(1234567.8, 1234567, 1234567)
	}
	return r
}

func print(cfg *Config, r *Report) string {
	var b bytes.Buffer
	x := &text{w: &b, cfg: cfg}
	x.header(r)
	x.columns()
	for i := range r.Results {
		x.row(&r.Results[i])
	}
	x.footer(r)
	return b.String()
}

// The golden files are what C's printf makes of nccl-tests' format strings. UPDATE=1 rewrites them.
func TestTable(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
	}{
		{"default", func(*Config) {}},
		{"percall", func(c *Config) { c.PerCall = true }},
		{"paths", func(c *Config) { c.Paths = true }},
		{"latency", func(c *Config) { c.Op = "channel" }}, // with perftest's columns
		{"mbw_mr", func(c *Config) { c.Op = multiPair }},  // with osu_mbw_mr's
		{"overlap", func(c *Config) { c.Overlap = true }}, // with those of OSU's nonblocking collectives
		{"pingpong", func(c *Config) { c.Op = "pingpong" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Default("all_reduce")
			cfg.MinBytes, cfg.StepFactor, cfg.Iterations, cfg.Warmup = 8, 2, 20, 5
			c.change(&cfg)
			got, file := print(&cfg, sample(&cfg)), filepath.Join("testdata", c.name+".golden")
			if os.Getenv("UPDATE") != "" {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), got)

			rows, busBW := scrape(t, got, cfg.PerCall)
			require.Equal(t, []scraped{
				{8, 2, 0.28, 0.03, 12.35, 1.5, "0", "1.23457e+06"},
				{1 << 30, 1 << 28, 12345.7, 12346, 0, 0, "N/A", "N/A"},
				{4, 1, 1234568, 1e6, 1.2e8, 0, "N/A", "N/A"},
			}, rows)
			require.Equal(t, 2.91501, busBW)
		})
	}
}

// The lines below were printed by nccl-tests itself, but for the numbers.
func TestLinesOfNCCLTests(t *testing.T) {
	cfg := Default("all_reduce")
	table := print(&cfg, sample(&cfg))
	for _, line := range []string{
		"#                                                              out-of-place                       in-place          ",
		"#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",
		"#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",
		"           8             2     float     sum      -1     0.28    0.03    0.03       0    12.35    1.50    1.50  1.23457e+06",
		"# Out of bounds values : 1234567 FAILED",
		"# Avg bus bandwidth    : 2.91501 ",
	} {
		require.Contains(t, table, "\n"+line+"\n")
	}
}

func TestNumber(t *testing.T) {
	for _, c := range []struct {
		v     float64
		width int
		want  string
	}{
		{0, 7, "   0.00"}, {0.004, 7, "   0.00"}, {9999.99, 7, "9999.99"}, {9999.999, 7, "10000.00"}, {10000, 7, "10000.0"},
		{99999.9, 7, "99999.9"}, {100000, 7, " 100000"}, {9999999, 7, "9999999"}, {1e8, 7, "1.0e+08"}, {1e300, 7, "1.0e+300"},
		{999.99, 6, "999.99"}, {1000, 6, "1000.0"}, {10000, 6, " 10000"}, {999999, 6, "999999"}, {1e7, 6, " 1e+07"},
	} {
		require.Equal(t, c.want, number(c.v, c.width), "%v in %d", c.v, c.width)
	}
}

func TestWrite(t *testing.T) {
	cfg := Default("all_reduce")
	r, dir := sample(&cfg), t.TempDir()
	read := func(name string) []byte {
		path := filepath.Join(dir, name)
		require.NoError(t, r.Write(path, false))
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		return b
	}
	var whole map[string]any
	require.NoError(t, json.Unmarshal(read("a.json"), &whole))
	require.EqualValues(t, SchemaVersion, whole["schema_version"])
	results := whole["results"].([]any)
	require.Len(t, results, 3)
	first := results[0].(map[string]any)
	require.Equal(t, 0.285, first["out_of_place"].(map[string]any)["time"])
	require.Nil(t, results[1].(map[string]any)["in_place"])
	require.Equal(t, false, whole["out_of_bounds"].(map[string]any)["okay"])
	require.Nil(t, whole["average_bus_bandwidth"].(map[string]any)["okay"])

	rows, err := csv.NewReader(bytes.NewReader(read("a.csv"))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1+5)
	at := map[string]int{}
	for i, name := range rows[0] {
		at[name] = i
	}
	lines := strings.Split(strings.TrimSpace(string(read("a.jsonl"))), "\n")
	require.Len(t, lines, 5)
	i := 0
	for _, row := range r.Results {
		for inPlace, v := range []*Result{row.Out, row.In} {
			if v == nil {
				continue
			}
			line := rows[1+i]
			require.Equal(t, strconv.Itoa(SchemaVersion), line[at["schema_version"]])
			require.Equal(t, strconv.Itoa(row.Size), line[at["size"]])
			require.Equal(t, strconv.FormatBool(inPlace == 1), line[at["in_place"]])
			x, err := strconv.ParseFloat(line[at["time"]], 64)
			require.NoError(t, err)
			require.Equal(t, v.Time, x)
			require.Equal(t, v.Source, line[at["source"]])

			var rec map[string]any
			require.NoError(t, json.Unmarshal([]byte(lines[i]), &rec))
			require.EqualValues(t, SchemaVersion, rec["schema_version"])
			key := []string{"out_of_place", "in_place"}
			require.Equal(t, v.Time, rec[key[inPlace]].(map[string]any)["time"])
			require.NotContains(t, rec, key[1-inPlace])
			i++
		}
	}
}

// A file that is there is left as it is, or gets more lines where that makes sense.
func TestWriteKeepsFiles(t *testing.T) {
	cfg := Default("all_reduce")
	r, dir := sample(&cfg), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, lines := range map[string][]int{"x.json": {1, 0}, "x.csv": {6, 11}, "x.jsonl": {5, 10}} {
		count := func() int {
			b, err := os.ReadFile(at(name))
			require.NoError(t, err)
			if strings.HasSuffix(name, ".json") {
				return 1
			}
			return strings.Count(string(b), "\n")
		}
		require.NoError(t, r.Write(at(name), false))
		require.Equal(t, lines[0], count(), name)
		err := r.Write(at(name), false)
		require.ErrorIs(t, err, ubcoll.ErrArgument)
		require.ErrorContains(t, err, "is there already")
		require.Equal(t, lines[0], count(), name)
		err = r.Write(at(name), true)
		if lines[1] == 0 {
			require.ErrorIs(t, err, ubcoll.ErrArgument)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, lines[1], count(), name)
	}
	f, err := os.Open(at("x.csv"))
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	require.Equal(t, rows[1], rows[6], "one header")
	all, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, all, 3, "no other files")

	require.NoError(t, WriteAll([]*Report{r, r}, at("two.csv"), false))
	b, err := os.ReadFile(at("two.csv"))
	require.NoError(t, err)
	two, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
	require.NoError(t, err)
	require.Equal(t, rows, two, "as when one is added to the other")

	require.NoError(t, r.Write(at("new.csv"), true), "to add to nothing is to begin")
	require.NoError(t, os.WriteFile(at("other.csv"), []byte("a,b\n1,2\n"), 0o600))
	require.ErrorContains(t, r.Write(at("other.csv"), true), "has other columns")
	require.ErrorIs(t, r.Write(at("x.txt"), false), ubcoll.ErrArgument)
	require.ErrorIs(t, r.Write(at("no/x.csv"), false), os.ErrNotExist)
}

// The algorithm that was asked for stands beside the one that ran, and the table says where they differ.
func TestRequestedAlgorithm(t *testing.T) {
	cfg := Default("all_reduce")
	cfg.MinBytes, cfg.StepFactor = 8, 2
	r := sample(&cfg)
	r.Config.Algorithm = "ring"
	table := print(&cfg, r)
	require.Contains(t, table, "# Algorithm asked for: ring\n")
	require.Equal(t, []string{"#   not ring: out-of-place one-shot", "#   not ring: out-of-place two-shot",
		"#   not ring: out-of-place two-shot, in-place two-shot"}, regexp.MustCompile("#   not .*").FindAllString(table, -1))
	rows, _ := scrape(t, table, false)
	require.Len(t, rows, 3)
	r.Config.Algorithm = "two-shot"
	require.Contains(t, print(&cfg, r), "#   not two-shot: out-of-place one-shot, in-place ring\n")
	r.Results[1].Out.Algorithm = "two-shot, pushed"
	require.NotContains(t, print(&cfg, r), "#   not two-shot: out-of-place two-shot")
	cfg.Op = "all_gather"
	table = print(&cfg, r)
	require.Contains(t, table, "# Algorithm asked for: two-shot, which all_gather does not have\n")
	require.NotContains(t, table, "#   not ")
	r.Config.Algorithm = "doubling"
	table = print(&cfg, r)
	require.Contains(t, table, "# Algorithm asked for: doubling\n")
	require.Contains(t, table, "#   not doubling: out-of-place one-shot, in-place ring\n")
}
