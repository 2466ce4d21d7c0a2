package sweep

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/bench"
)

func TestParseFaults(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"all at once, with lines", `
[sweep]
operation = ["all_reduce", "allreduce"]
bytes = ["8..64M x4", "4X"]
types = "float32"
reduction = "mean"
algorithm = "rong"
registration = ["on"]
device = "gpu"
graph = -1
ranks = [2, -2]
in_place = "no"
variant = "putt"
[run]
repeats = 0
colour = 1
`, `x.toml:3: sweep.operation: unknown value "allreduce" (one of all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, alltoall, all_gatherv, gatherv, scatterv, alltoallv, pingpong, sendrecv, mbw_mr, barrier, channel, window, put_bw, accumulate, fetch_add, compare_and_swap): did you mean all_reduce?
x.toml:4: sweep.bytes: invalid size "4X" (digits, then possibly K, M or G, as in 4M)
x.toml:5: sweep.types: unknown key: did you mean type?
x.toml:6: sweep.reduction: unknown value "mean" (one of sum, prod, min, max, avg, mulsum): did you mean avg?
x.toml:7: sweep.algorithm: unknown value "rong" (one of auto, ring, one-shot, two-shot, push, doubling, halving, chain, tree, scatter, pairwise, collnet): did you mean ring?
x.toml:8: sweep.registration: unknown value "on" (one of explicit, auto, off, slices)
x.toml:9: sweep.device: unknown value "gpu" (one of auto, host, cuda): did you mean cuda?
x.toml:10: sweep.graph: must be 0 (no graph) to 10000 launches, not -1
x.toml:11: sweep.ranks: must be 0 (all) or more, not -2
x.toml:12: sweep.in_place: must be true or false, not a string
x.toml:13: sweep.variant: unknown value "putt" (one of all, get, packet, put): did you mean put?
x.toml:15: run.repeats: must be 1 to 10000, not 0
x.toml:16: run.colour: unknown key (known here: repeats, seed, iterations, warmup, min_time, max_time, checks, loop, churn, root, timeout, net_timeout, devices, nvls)`},
		{"no such network", "[sweep]\nnet = ['tcp', 'ib']", `x.toml:2: sweep.net: unknown value "ib" (one of auto, tcp, verbs, ofi)`},
		{"no such provider", "[sweep]\nnet = ['tcp', 'ofi:']", `x.toml:2: sweep.net: unknown value "ofi:" (one of auto, tcp, verbs, ofi): did you mean ofi?`},
		{"range down", "[sweep]\nbytes = '64..8'", "x.toml:2: sweep.bytes: 64..8 goes down: want the smaller size first"},
		{"range from 0", "[sweep]\nbytes = '0..8'", "x.toml:2: sweep.bytes: a range from 0 never gets beyond it: want 1 or more"},
		{"most below least", "[run]\nmin_time = '20ms'\nmax_time = '10ms'",
			"x.toml:3: run.max_time: must be 0 (no limit) or at least run.min_time, which is 20ms, not 10ms"},
		{"most below the usual least", "[run]\nmax_time = '10ms'",
			"x.toml:2: run.max_time: must be 0 (no limit) or at least run.min_time, which is 50ms, not 10ms"},
		{"less than no time", "[run]\nmax_time = '-1s'", "x.toml:2: run.max_time: must be 0 (no limit) or longer, not -1s"},
		{"no duration", "[run]\nmax_time = 5", `x.toml:2: run.max_time: invalid duration "5" (as in 90s, 10m, 1h30m)`},
		{"factor", "[sweep]\nbytes = '1..8 x1'",
			`x.toml:2: sweep.bytes: "1" is no factor from 2 on; a range is FROM..TO xFACTOR, as in 8..64M x4`},
		{"empty list", "[sweep]\nranks = []", "x.toml:2: sweep.ranks: must have a value at least, not an empty array"},
		{"too large", "[sweep]\nbytes = '2048G'", "x.toml:2: sweep.bytes: must be 1024G at most, not 2048G"},
		{"too many", "[sweep]\nranks = [" + strings.Repeat("2,", 400) + "2]\ngraph = [" + strings.Repeat("2,", 400) + "2]",
			"x.toml:1: sweep: the lists have 1.61e+05 combinations, and 1.61e+05 with repeats, more than 100000 and 1000000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("x.toml", []byte(c.text))
			require.EqualError(t, err, c.want)
			require.ErrorIs(t, err, ubcoll.ErrArgument)
		})
	}
}

func plan(t *testing.T, ranks int, text string) *Plan {
	t.Helper()
	s, err := Parse("x.toml", []byte(text))
	require.NoError(t, err)
	p, err := s.Plan(ranks)
	require.NoError(t, err)
	return p
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name, text string
		ranks      int
		want       string
	}{
		{"one", "", 2, "all_reduce 32M float32 sum auto explicit host ranks=2\n1 point, 1 repeat: 1 measurement\n"},
		{"range and list", "[sweep]\nbytes = ['8..40 x2', '1K', 8]", 2, `all_reduce 8 float32 sum auto explicit host ranks=2
all_reduce 16 float32 sum auto explicit host ranks=2
all_reduce 32 float32 sum auto explicit host ranks=2
all_reduce 1K float32 sum auto explicit host ranks=2
4 points, 1 repeat: 4 measurements
`},
		{"what an operation has not is no axis", `[sweep]
operation = ["broadcast", "barrier"]
bytes = [64, 128]
reduction = ["sum", "max"]
algorithm = ["auto", "ring"]`, 2, `broadcast 64 float32 explicit host ranks=2
broadcast 128 float32 explicit host ranks=2
barrier 0 float32 explicit host ranks=2
3 points, 1 repeat: 3 measurements
`},
		{"networks", "[sweep]\nbytes = 8\nnet = ['auto', 'tcp', 'verbs', 'ofi', 'ofi:tcp']", 2, `all_reduce 8 float32 sum auto explicit host ranks=2
all_reduce 8 float32 sum auto explicit host tcp ranks=2
all_reduce 8 float32 sum auto explicit host verbs ranks=2
all_reduce 8 float32 sum auto explicit host ofi ranks=2
all_reduce 8 float32 sum auto explicit host ofi:tcp ranks=2
5 points, 1 repeat: 5 measurements
`},
		{"each operation has its own ways between hosts", `[sweep]
operation = ["all_reduce", "reduce", "all_gather", "alltoall"]
bytes = "1M"
algorithm = ["auto", "ring", "two-shot", "doubling", "tree", "pairwise"]`, 2, `all_reduce 1M float32 sum auto explicit host ranks=2
all_reduce 1M float32 sum ring explicit host ranks=2
all_reduce 1M float32 sum two-shot explicit host ranks=2
all_reduce 1M float32 sum doubling explicit host ranks=2
reduce 1M float32 sum explicit host ranks=2
reduce 1M float32 sum tree explicit host ranks=2
all_gather 1M float32 explicit host ranks=2
all_gather 1M float32 doubling explicit host ranks=2
all_gather 1M float32 pairwise explicit host ranks=2
alltoall 1M float32 explicit host ranks=2
10 points, 1 repeat: 10 measurements
`},
		{"nothing that an operation has", `[sweep]
operation = ["all_reduce", "reduce", "gather"]
algorithm = "chain"`, 2, `all_reduce 32M float32 sum auto explicit host ranks=2
reduce 32M float32 sum chain explicit host ranks=2
gather 32M float32 explicit host ranks=2
3 points, 1 repeat: 3 measurements
`},
		{"what is impossible is said", `[sweep]
operation = ["all_gather", "alltoall", "channel"]
bytes = [8]
type = ["float64", "bool"]
ranks = [2, 9]
in_place = [true, false]
registration = ["off", "explicit"]
`, 4, `all_gather 8 bool off host ranks=2 in_place
all_gather 8 bool off host ranks=2
all_gather 8 bool explicit host ranks=2 in_place
all_gather 8 bool explicit host ranks=2
alltoall 8 bool off host ranks=2
alltoall 8 bool explicit host ranks=2
channel 8 uint8 put explicit host ranks=2
channel 8 uint8 get explicit host ranks=2
channel 8 uint8 packet explicit host ranks=2
  skipped 6: 8 bytes have no float64 for each of 2 ranks (all_gather 8 float64 off host ranks=2 in_place)
  skipped 28: 9 ranks in a job of 4 (all_gather 8 float64 off host ranks=9 in_place)
  skipped 4: alltoall has no variant that is in place (alltoall 8 float64 off host ranks=2 in_place)
  skipped 6: channel has no variant that is in place (channel 8 uint8 put off host ranks=2 in_place)
  skipped 3: channel moves registered memory only (-R 1) (channel 8 uint8 put off host ranks=2)
9 points, 1 repeat: 9 measurements
`},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, plan(t, c.ranks, c.text).Print(true)) })
	}
	s, err := Parse("x.toml", []byte("[sweep]\ntype = 'bool'"))
	require.NoError(t, err)
	_, err = s.Plan(2)
	require.ErrorContains(t, err, "no combination of the lists is possible:\n  skipped 1: no [sum] of [bool]")
}

// Times reach the measurement. A file without a minimum asks for few calls, not for those that size alone gives.
func TestTimes(t *testing.T) {
	for text, want := range map[string][2]time.Duration{
		"":                                    {50 * time.Millisecond, 0},
		"min_time = '5ms'\nmax_time = '20ms'": {5 * time.Millisecond, 20 * time.Millisecond},
		"min_time = '0s'":                     {1, 0},
		"iterations = 7\nmax_time = '1ms'":    {50 * time.Millisecond, time.Millisecond},
	} {
		s, err := Parse("x.toml", []byte("[run]\n"+text))
		require.NoError(t, err)
		p, err := s.Plan(2)
		require.NoError(t, err)
		c, err := s.config(p.Points[0])
		require.NoError(t, err)
		require.Equal(t, want, [2]time.Duration{c.MinTime, c.MaxTime}, text)
	}
}

// An estimate names what it is of, and follows the number of measurements and their times.
func TestEstimate(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"[sweep]\nbytes = 8", "about 1s, if each rank has an idle processor: estimated from sizes and calls of 50ms at least (min_time) for each " +
			"measurement, not tried here\n"},
		{"[sweep]\nbytes = '4M'\n[run]\nrepeats = 100\nmin_time = '10s'\nmax_time = '10s'", "about 16m43s, if each rank has an idle processor: " +
			"estimated from sizes and calls of 10s at least (min_time), 10s at most (max_time), for each measurement, not tried here\n"},
		{"[sweep]\nbytes = ['4M', '5M', '6M', '7M']\n[run]\nrepeats = 100\nmin_time = '10s'\nmax_time = '10s'", "about 1h6m54s, if each rank has an idle " +
			"processor: estimated from sizes and calls of 10s at least (min_time), 10s at most (max_time), for each measurement, not tried here\n"},
		{"[sweep]\nbytes = 8\n[run]\niterations = 1", "about 1s, if each rank has an idle processor: estimated from sizes and 1 call for each " +
			"measurement, not tried here\n"},
	} {
		s, err := Parse("x.toml", []byte(c.text))
		require.NoError(t, err)
		require.Equal(t, c.want, s.Estimate(plan(t, 2, c.text)))
	}
}

// The repeats take turns, each in an order of its own, which depends only on the seed.
func TestTurns(t *testing.T) {
	text := "[sweep]\nbytes = '8..64K x2'\n[run]\nrepeats = 3\nseed = "
	p := plan(t, 2, text+"5")
	turns, n := p.Turns(), len(p.Points)
	require.Len(t, turns, 3*n)
	require.Equal(t, turns, plan(t, 2, text+"5").Turns())
	require.NotEqual(t, turns, plan(t, 2, text+"6").Turns())
	for r := range 3 {
		seen := map[int]bool{}
		for _, x := range turns[r*n:][:n] {
			require.Equal(t, r, x.Repeat)
			seen[x.Point] = true
		}
		require.Len(t, seen, n)
	}
	require.NotEqual(t, turns[0].Point*1000+turns[1].Point*100+turns[2].Point,
		turns[n].Point*1000+turns[n+1].Point*100+turns[n+2].Point)
}

func TestFromEnvironment(t *testing.T) {
	t.Setenv("UBCOLL_ALGO", "ring")
	t.Setenv("UBCOLL_REGISTER", "off")
	t.Setenv("UBCOLL_TIMEOUT", "90s")
	s := Default()
	require.NoError(t, s.FromEnvironment())
	require.Equal(t, []string{"ring"}, s.Sweep.Algorithm)
	require.Equal(t, []string{"off"}, s.Sweep.Registration)
	require.Equal(t, "1m30s", s.Run.Timeout.String())
	for _, k := range []struct{ file, variable, want ubcoll.DevicePolicy }{
		{ubcoll.DevicesAuto, ubcoll.DevicesShare, ubcoll.DevicesShare},
		{ubcoll.DevicesShare, ubcoll.DevicesOff, ubcoll.DevicesOff},
		{ubcoll.DevicesShare, ubcoll.DevicesAuto, ubcoll.DevicesAuto},
		{ubcoll.DevicesRequired, ubcoll.DevicesShare, ubcoll.DevicesRequired}, // and UBCOLL_CUDA says that they are shared
	} {
		t.Setenv("UBCOLL_CUDA", k.variable.String())
		s, err := Parse("x.toml", []byte("[run]\ndevices = \""+k.file.String()+"\""))
		require.NoError(t, err)
		require.NoError(t, s.FromEnvironment())
		require.Equal(t, k.want, s.Run.Devices, k)
	}
	require.Equal(t, "off", s.Run.NVLS)
	t.Setenv("UBCOLL_ALGO", "rung")
	require.ErrorContains(t, s.FromEnvironment(), `UBCOLL_ALGO="rung"`)
}

func record(p Point, repeat int, us float64) Record {
	return Record{Kind: "point", Repeat: repeat, Point: p, Result: &bench.Result{Time: us}}
}

func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	start := Start{Kind: "run", Schema: Schema, Ranks: 2, Settings: map[string]string{"x": "1"}}
	open := func(start Start) (*Store, error) { return Open(dir, start, false) }
	s, err := open(start)
	require.NoError(t, err)
	_, err = open(start)
	require.ErrorContains(t, err, "another run is writing here")
	p := Point{Operation: "all_reduce", Bytes: 8}
	require.NoError(t, s.Write(start))
	require.NoError(t, s.Write(record(p, 0, 5)))
	require.NoError(t, s.Write(record(p, 1, 6)))
	require.NoError(t, s.Close())
	name := filepath.Join(dir, PointsFile)
	whole, err := os.ReadFile(name)
	require.NoError(t, err)

	// If a file is cut off within its last line, only that line is lost.
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for _, at := range []int{last, last + 1, (last + len(whole)) / 2, len(whole) - 1} {
		require.NoError(t, os.WriteFile(name, whole[:at], 0o644))
		s, err := open(start)
		require.NoError(t, err)
		require.Len(t, s.Records, 1, "at %d", at)
		require.NoError(t, s.Write(record(p, 1, 6)))
		require.NoError(t, s.Close())
		again, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, string(whole), string(again))
	}
	require.NoError(t, os.WriteFile(name, append(bytes.Clone(whole), "{torn}\n"...), 0o644))
	s, err = open(start)
	require.NoError(t, err)
	require.Len(t, s.Records, 2)
	require.NoError(t, s.Close())

	other := start
	other.Ranks, other.Settings = 3, map[string]string{"x": "2"}
	_, err = open(other)
	require.ErrorContains(t, err, "is of another run:\n  x: was 1, is 2\n  ranks: was 2, is 3\n")
	require.ErrorIs(t, err, ubcoll.ErrArgument)
	s, err = Open(dir, other, true)
	require.NoError(t, err)
	require.Empty(t, s.Records)
	require.NoError(t, s.Close())
	kept, err := os.ReadFile(name + ".1")
	require.NoError(t, err)
	require.Equal(t, string(whole), string(kept))

	for text, want := range map[string]string{
		"hello\n":                            ":1: no results of ubcoll run",
		"{\"kind\":\"point\"}\n":             "the first line is not of kind",
		string(whole[:last]) + "x\n{}\n{}\n": ":3: no results of ubcoll run",
		"{\"kind\":\"run\"}\n":               "version 0 of these files, not 1",
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
		_, err := open(start)
		require.ErrorContains(t, err, want)
	}
}

// Whatever a file contains, reading it returns complete lines, and reading those again returns the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "{\"kind\":\"run\",\"schema_version\":1}\n{\"kind\":\"point\",\"time\":1}\n", "{}\n", "x",
		"{\"kind\":\"run\",\"schema_version\":1}\n{\"kind\":\"poi"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		starts, records, whole, err := parse(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, whole, int64(len(b)))
		require.True(t, whole == 0 || b[whole-1] == '\n')
		again, more, n, err := parse(b[:whole])
		require.NoError(t, err)
		require.Equal(t, []any{starts, records, whole}, []any{again, more, n})
	})
}

func FuzzSpec(f *testing.F) {
	for _, s := range []string{"", "[sweep]\nbytes = ['8..64M x4', 3]\n[run]\nrepeats = 2", "[sweep]\noperation = ['barrier']"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse("f.toml", b)
		if err != nil || s.product() > 1000 {
			return
		}
		_ = s.settings()
		if p, err := s.Plan(4); err == nil {
			require.NotEmpty(t, p.Points)
		}
	})
}

func TestProgress(t *testing.T) {
	at := time.Unix(1000, 0)
	var b strings.Builder
	p := Progress{W: &b, Terminal: true}
	p.step(at, 2, 6, "x")
	p.step(at.Add(10*time.Second), 3, 6, "y")
	p.clear()
	require.Equal(t, "[======              ] 2/6: x"+"\r"+strings.Repeat(" ", 29)+"\r"+
		"[==========          ] 3/6, 30s left: y"+"\r"+strings.Repeat(" ", 39)+"\r", b.String())
	b.Reset()
	p = Progress{W: &b}
	for i := range 7 {
		p.step(at.Add(time.Duration(i)*10*time.Second), i, 7, fmt.Sprint(i))
	}
	require.Equal(t, "ubcoll run: 3 of 7 measurements, 40s left: 3\nubcoll run: 6 of 7 measurements, 10s left: 6\n", b.String())
}

func TestCompare(t *testing.T) {
	p, q, r := Point{Operation: "all_reduce", Bytes: 8, Ranks: 2}, Point{Operation: "barrier", Ranks: 2}, Point{Operation: "gather", Ranks: 2}
	var a, b []Record
	for i := range 5 {
		a = append(a, record(p, i, float64(10+i)), record(q, i, 4), record(r, i, 1))
		b = append(b, record(p, i, float64(20+2*i)), record(q, i, 2))
	}
	var out strings.Builder
	slower, mean, err := Compare(a, b, 50, &out)
	require.NoError(t, err)
	require.Equal(t, `    A (us)      B (us)      B/A  interval          conf.  point
     12.00       24.00    2.000  1.571 - 2.545       97%  all_reduce 8 ranks=2  slower
      4.00        2.00    0.500  0.500 - 0.500       97%  barrier 0 ranks=2
geometric mean of 2 ratios: 1.000 (above 1: B is slower)
in one of the runs only: 1 point
`, out.String())
	require.Equal(t, []Point{p}, slower)
	require.False(t, mean)
	slower, mean, err = Compare(a[:1], b[:1], 60, &out)
	require.NoError(t, err)
	require.True(t, mean)
	require.Len(t, slower, 1)
	_, _, err = Compare(a, nil, 0, &out)
	require.ErrorContains(t, err, "no point in common")
}

// Every sweep in configs/ can be read, and has points.
func TestConfigs(t *testing.T) {
	files, err := filepath.Glob("../../configs/*.toml")
	require.NoError(t, err)
	n := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		if !strings.Contains(string(b), "\n[sweep]\n") {
			continue
		}
		n++
		plan(t, 8, string(b))
	}
	require.GreaterOrEqual(t, n, 8)
}

// A folder that is a link to nothing is not made behind it.
func TestDanglingLink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "r")
	require.NoError(t, os.Symlink(filepath.Join(dir, "gone"), link))
	_, err := Open(link, Start{}, false)
	require.ErrorIs(t, err, ubcoll.ErrArgument)
	require.ErrorContains(t, err, link+" is a link to "+filepath.Join(dir, "gone")+", where there is no folder")
}
