package main

import (
	"bytes"
	"crypto/rand"
	"encoding/csv"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/dtype"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// children are what this test binary does as another process that is not the program.
var children = map[string]func() error{}

// The tests run the program as users do: this test binary started again, with main for its tests.
func TestMain(m *testing.M) {
	testkit.Children(children)
	if testkit.IsProgram() {
		if !env.CUDA.IsSet() { // as in this process, devices are for tests that ask for them
			os.Setenv(env.CUDA.Name, "off")
		}
		main()
		os.Exit(0)
	}
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		panic("started as the program, without " + testkit.ProgramVar + ": its tests would start themselves for ever")
	}
	gputest.Main(3, m.Run)
}

// The same numbers go to the table and to every kind of file.
func TestBench(t *testing.T) {
	for _, suffix := range testkit.Sample(3, []string{".json", ".jsonl", ".csv"}) {
		file := filepath.Join(t.TempDir(), "x"+suffix)
		stdout, stderr, code := testkit.Program(t, nil, "bench", "all_reduce", "-b", "8", "-e", "64K", "-f", "4",
			"-n", "5", "-J", file)
		require.Equal(t, 0, code, stderr)
		require.Empty(t, stderr, "no terminal, no heartbeat")
		require.Contains(t, stdout, "# Out of bounds values : 0 OK\n")
		require.Contains(t, stdout, "# Results written to "+file+"\n")
		var rows [][]string
		for line := range strings.Lines(stdout) {
			if f := strings.Fields(line); len(f) > 0 && f[0] != "#" {
				require.Len(t, f, 13)
				rows = append(rows, f)
			}
		}
		require.Len(t, rows, 7) // 8 to 32K
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		times := timesIn(t, suffix, b)
		require.Len(t, times, 7)
		for i, row := range rows {
			shown, err := strconv.ParseFloat(row[5], 64)
			require.NoError(t, err)
			require.InDelta(t, times[i], shown, 0.006+times[i]/1e4)
		}
	}
}

// A file of results that is there is refused before anything is measured, or added to.
func TestOutputIsThere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.csv")
	args := []string{"bench", "all_reduce", "-b", "64", "-e", "64", "-n", "2", "--algorithm", "ring", "-J", file}
	lines := func() int {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(b), ",ring,") // asked for, and taken
		return strings.Count(string(b), "\n")
	}
	_, stderr, code := testkit.Program(t, nil, args...)
	require.Equal(t, 0, code, stderr)
	require.Equal(t, 3, lines())
	stdout, stderr, code := testkit.Program(t, nil, args...)
	require.Equal(t, 6, code)
	require.Contains(t, stderr, "is there already: remove it, name another, or add to it (-append")
	require.Empty(t, stdout)
	stdout, stderr, code = testkit.Program(t, nil, append(args, "-append")...)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "# Results written to "+file+"\n")
	require.Equal(t, 5, lines())
	all, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, all, 1)
}

// Several operations have a table each below one header, and go to one file.
func TestSeveralOperations(t *testing.T) {
	for _, suffix := range testkit.Sample(3, []string{".json", ".jsonl", ".csv"}) {
		file := filepath.Join(t.TempDir(), "x"+suffix)
		stdout, stderr, code := testkit.Program(t, nil, "bench", "all_reduce,broadcast", "barrier", "-b", "64", "-e", "64", "-n", "2",
			"-device", "host", "-J", file)
		require.Equal(t, 0, code, stderr)
		for want, n := range map[string]int{"# ubcoll version ": 1, "# Using devices": 1, "#  Rank  0 ": 1, "# nThread 2 ": 3,
			"# Collective test starting: ": 3, "# Avg bus bandwidth ": 3, "# Results written to ": 1} {
			require.Equal(t, n, strings.Count(stdout, want), want)
		}
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		type report struct {
			Config struct{ Operation string }
		}
		var ops []string
		switch suffix {
		case ".json":
			var all []report
			require.NoError(t, json.Unmarshal(b, &all))
			for _, r := range all {
				ops = append(ops, r.Config.Operation)
			}
		case ".jsonl":
			for line := range strings.Lines(string(b)) {
				var r report
				require.NoError(t, json.Unmarshal([]byte(line), &r))
				ops = append(ops, r.Config.Operation)
			}
		case ".csv":
			rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
			require.NoError(t, err)
			at := slices.Index(rows[0], "operation")
			for _, row := range rows[1:] {
				ops = append(ops, row[at])
			}
		}
		require.Equal(t, []string{"all_reduce", "broadcast", "barrier"}, slices.Compact(ops))
	}
	file := filepath.Join(t.TempDir(), "x.jsonl")
	_, stderr, code := testkit.Program(t, nil, "bench", "all_reduce,broadcast", "-b", "64", "-e", "64", "-n", "2", "-device", "host",
		"--min-busbw", "1e9", "-J", file)
	require.Equal(t, 7, code)
	require.Contains(t, stderr, "all_reduce: the average bus bandwidth")
	require.Contains(t, stderr, "broadcast: the average bus bandwidth", "the others are measured all the same")
	if testkit.Daily() {
		return
	}
	stdout, stderr, code := testkit.Program(t, nil, "bench", "all", "-b", "64", "-e", "64", "-n", "2", "-device", "host", "-R", "0",
		"-t", "3")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "# Left out: channel moves registered memory only (-R 1): invalid argument\n")
	require.Contains(t, stdout, "# Left out: mbw_mr has rank i send to rank i+n/2: want an even number of ranks, not 3: ")
	require.Contains(t, stdout, "# Collective test concluded: sendrecv\n")
	_, stderr, code = testkit.Program(t, nil, "bench", "mbw_mr", "-t", "3", "-device", "host")
	require.Equal(t, 6, code)
	require.Contains(t, stderr, "want an even number of ranks, not 3")
}

// timesIn is the out-of-place times of a file.
func timesIn(t *testing.T, suffix string, b []byte) (times []float64) {
	type row struct {
		Out *struct{ Time float64 } `json:"out_of_place"`
	}
	switch suffix {
	case ".json":
		var all struct{ Results []row }
		require.NoError(t, json.Unmarshal(b, &all))
		for _, r := range all.Results {
			times = append(times, r.Out.Time)
		}
	case ".jsonl":
		for d := json.NewDecoder(bytes.NewReader(b)); ; {
			var r row
			if err := d.Decode(&r); err == io.EOF {
				break
			} else {
				require.NoError(t, err)
			}
			if r.Out != nil {
				times = append(times, r.Out.Time)
			}
		}
	case ".csv":
		rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
		require.NoError(t, err)
		at := map[string]int{}
		for i, name := range rows[0] {
			at[name] = i
		}
		for _, r := range rows[1:] {
			if r[at["in_place"]] == "false" {
				x, err := strconv.ParseFloat(r[at["time"]], 64)
				require.NoError(t, err)
				times = append(times, x)
			}
		}
	}
	return times
}

// A graph's times are a loop's; verifying says so in one line.
func TestGraphsAndVerify(t *testing.T) {
	stdout, stderr, code := testkit.Program(t, nil, "bench", "all_reduce", "-b", "1K", "-e", "1K", "-G", "3", "-n", "5",
		"-device", "host")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "warmup iters: 5 iters: 5 agg iters: 1 validation: 1 graph: 3 unalign: 0\n")
	stdout, stderr, code = testkit.Program(t, nil, "verify", "-e", "1K", "-t", "3", "-device", "host", "all_reduce",
		"broadcast")
	require.Equal(t, 0, code, stderr)
	require.Regexp(t, `(?m)^verify: 3 ranks on host memory: \d+ calls of 2 operations .*: OK\n$`, stdout)
	stdout, stderr, code = testkit.Program(t, nil, "verify", "broadcast", "-b", "5K", "-e", "5K", "-d", "float,int8", "-device", "host")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, " calls of 1 operation on 2 types, 5120 to 5120 bytes, ")
}

// verify takes operations and flags in the order in which bench takes them, and in any other.
func TestVerifyArguments(t *testing.T) {
	for _, c := range []struct {
		args string
		ops  []string
	}{
		{"", nil},
		{"-b 1K -t 3", nil},
		{"all_reduce -b 1K -t 3", []string{"all_reduce"}},
		{"all_reduce,broadcast alltoall -b 1K -t 3 -e 2K", []string{"all_reduce", "broadcast", "alltoall"}},
		{"-b 1K -t 3 all_reduce broadcast", []string{"all_reduce", "broadcast"}},
		{"all_reduce -b 1K broadcast -t 3 all_reduce", []string{"all_reduce", "broadcast"}},
		{"all -b 1K -t 3", nil},
		{"all_reduce,all -b 1K -t 3", nil},
	} {
		v, job, own, err := parseVerify(strings.Fields(c.args), io.Discard)
		require.NoError(t, err, c.args)
		require.Equal(t, c.ops, v.Ops, c.args)
		require.Equal(t, ubcoll.Options{Timeout: time.Minute, Register: ubcoll.RegisterExplicit}, job)
		if c.args != "" {
			require.Equal(t, []int{1 << 10, 3}, []int{v.MinBytes, own.threads}, c.args)
		}
	}
	_, job, own, err := parseVerify([]string{"-devices", "share", "-T", "9s", "-nvls", "off"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, ofProcess{nvls: "off"}, own)
	require.Equal(t, ubcoll.Options{Timeout: 9 * time.Second, Register: ubcoll.RegisterExplicit, Devices: ubcoll.DevicesShare}, job)
}

// Two processes of a job, of two ranks each, have one table, and one exit code.
func TestRanksPerProcess(t *testing.T) {
	for _, c := range testkit.Sample(4, []struct {
		name         string
		args         string
		code         int
		stdout, errs string
	}{
		{"bench", "bench all_reduce -b 8 -e 8K -f 32 -n 3 -w 1 -t 2 -device host", 0, "# Avg bus bandwidth", ""},
		{"verify", "verify -e 1K -t 2 -device host all_gather", 0, "verify: 4 ranks on host memory: ", ""},
		{"too slow", "bench all_reduce -b 64 -e 64 -n 3 -t 2 -device host --min-busbw 1e9", 7, "", "less than 1e+09"},
		{"bad root", "bench reduce -b 64 -e 64 -n 3 -t 2 -device host -r 4", 6, "", "root 4 of 4 ranks"},
	}) {
		t.Run(c.name, func(t *testing.T) {
			var out, errOut [2]string
			var codes [2]int
			var wait sync.WaitGroup
			name := rand.Text()
			for r := range 2 {
				wait.Go(func() {
					out[r], errOut[r], codes[r] = testkit.Program(t, bootstrap.EnvVars(r, 2, "unix:@"+name, name),
						strings.Fields(c.args)...)
				})
			}
			wait.Wait()
			require.Equal(t, [2]int{c.code, c.code}, codes, "%s", errOut)
			require.Empty(t, out[1])
			if c.code == 0 {
				require.Equal(t, 1, strings.Count(out[0], c.stdout), out[0])
				require.Empty(t, errOut[0]+errOut[1])
				return
			}
			for r := range 2 { // which of its ranks says it is chance
				require.Contains(t, errOut[r], c.errs)
				require.Equal(t, 1, strings.Count(errOut[r], "ubcoll: rank "), errOut[r])
			}
		})
	}
	name := rand.Text()
	stdout, stderr, code := testkit.Program(t, bootstrap.EnvVars(0, 1, "unix:@"+name, name), "bench", "barrier", "-t", "3",
		"-device", "host")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "# nThread 3 ")
	require.Contains(t, stdout, "#  Rank  2 ")
}

func TestExitCodes(t *testing.T) {
	quick := []string{"-b", "64", "-e", "64", "-n", "2"}
	for _, c := range []struct {
		name   string
		env    []string
		args   []string
		code   int
		stderr string
	}{
		{"too slow", nil, append([]string{"bench", "all_reduce", "--min-busbw", "1e9"}, quick...), 7, "less than 1e+09"},
		{"output", nil, []string{"bench", "barrier", "-J", "x.txt"}, 6, "ends in .json, .jsonl or .csv"},
		{"symmetric", nil, []string{"bench", "all_reduce", "-R", "2"}, 5, "symmetric windows"},
		{"policy", nil, []string{"bench", "all_reduce", "-x", "1"}, 5, "-x, --cta_policy 1, which nccl-tests has"},
		{"graphs", nil, []string{"bench", "pingpong", "-G", "20"}, 5, "pingpong on devices or in graphs"},
		{"no GPU", []string{"UBCOLL_CUDA=off"}, append([]string{"bench", "all_reduce", "-device", "cuda"}, quick...), 5,
			"not supported"},
		{"tune without a GPU", []string{"UBCOLL_CUDA=off"}, []string{"tune", "-device", "cuda"}, 5, "not supported"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, stderr, code := testkit.Program(t, c.env, c.args...)
			require.Equal(t, c.code, code, stderr)
			require.Contains(t, stderr, c.stderr)
		})
	}
}

// What the machine cannot hold is refused before anything is taken.
func TestLimits(t *testing.T) {
	for _, c := range []struct{ name, args, want string }{
		{"ranks", "all_reduce -t 5000", "5000 ranks, more than 4095"},
		{"buffers", "all_reduce -e 1024G -f 1048576", "each rank needs 2097152 MiB, and a host has "},
		{"buffers that no int counts", "all_gather -e 8589934591G -f 2", "each rank needs"},
		{"group", "all_reduce -m 100000000", "100000000 operations at once"},
		{"graph", "all_reduce -device host -G 1000000000", "operations at once (-m, and in graphs -n and -G times that)"},
		{"calls", "all_reduce -n 1000000000000", "1000000000000 timed calls (-n), more than 10000000: ask for less"},
		{"sizes", "all_reduce -b 0 -e 16G -i 1", "17179869184 sizes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, stderr, code := testkit.Program(t, nil, append([]string{"bench"}, strings.Fields(c.args)...)...)
			require.NotZero(t, code)
			require.Contains(t, stderr, c.want)
			require.Contains(t, stderr, "limit reached")
		})
	}
	_, stderr, code := testkit.Program(t, nil, "verify", "-e", "1024G", "-device", "host")
	require.NotZero(t, code)
	require.Contains(t, stderr, "limit reached")
}

func TestRanks(t *testing.T) {
	testkit.LongOrRace(t)
	for i, c := range []struct {
		name  string
		env   []string
		args  []string
		ranks int
	}{
		{"default", nil, nil, 2},
		{"variable", []string{"NTHREADS=3"}, nil, 3},
		{"flag", []string{"NTHREADS=3"}, []string{"-t", "4"}, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.Turn(t, i, 3)
			stdout, stderr, code := testkit.Program(t, c.env, append([]string{"bench", "barrier", "-n", "2"}, c.args...)...)
			require.Equal(t, 0, code, stderr)
			require.Equal(t, c.ranks, strings.Count(stdout, "#  Rank "))
		})
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"-h"}, {"bench", "-h"}, {"verify", "-h"}, {"tune", "-h"}, {"bench", "all_reduce", "--help"}} {
		stdout, stderr, code := testkit.Program(t, nil, args...)
		require.Equal(t, 0, code)
		require.Empty(t, stderr)
		require.Contains(t, stdout, "Usage: ubcoll ")
	}
	stdout, _, _ := testkit.Program(t, nil, "verify", "-h")
	require.Contains(t, stdout, "Not mbw_mr, barrier, channel, window, ", "what it refuses is not offered")
	require.NotContains(t, stdout, "sendrecv, barrier")
}

// Help shows every flag in exactly one group, and the first group has ten.
func TestFlagGroups(t *testing.T) {
	bench := benchFlags(nil, nil)
	var apart []string
	for _, f := range elsewhere {
		apart = append(apart, f.short, f.long)
	}
	for _, fs := range []*flag.FlagSet{bench, (&sweepOptions{}).flags()} {
		groups := flagGroups[fs.Name()]
		require.Len(t, groups[0].flags, 10, fs.Name())
		var grouped, all []string
		for _, g := range groups {
			require.NotEmpty(t, g.heading)
			for _, names := range g.flags {
				grouped = append(grouped, strings.Fields(names)...)
			}
		}
		fs.VisitAll(func(f *flag.Flag) {
			if fs != bench || !slices.Contains(apart, f.Name) {
				all = append(all, f.Name)
			}
		})
		require.ElementsMatch(t, all, grouped, fs.Name())

		var help strings.Builder
		require.ErrorIs(t, run([]string{fs.Name(), "-h"}, &help), flag.ErrHelp)
		var shown []string
		for _, f := range flagLines(help.String()) {
			for _, n := range f.names {
				shown = append(shown, strings.TrimLeft(n, "-"))
			}
		}
		require.Equal(t, grouped, shown, "the help, and the completions made of it")
	}
}

func TestInfo(t *testing.T) {
	secret := "UBCOLL_SECRET=hush-hush-hush-hush"
	stdout, stderr, code := testkit.Program(t, []string{secret, "UBCOLL_LOG=info"}, "info", "-env")
	require.Equal(t, 0, code, stderr)
	for _, want := range []string{`(?m)^version  `, `(?m)^go +go1`, `(?m)^mpi +\S`, `(?m)^instructions +\w+$`, `(?m)^memory +between 8 hosts: [0-9.]+ MiB`, `(?m)^ +between 512 hosts: `,
		`(?m)^UBCOLL_SECRET +\(set\) `, `(?m)^UBCOLL_LOG +info +error\|warn\|info\|debug  `,
		`(?m)^UBCOLL_TIMEOUT +10m \(default\) `} {
		require.Regexp(t, regexp.MustCompile(want), stdout)
	}
	require.NotContains(t, stdout, "hush")
	stdout, _, _ = testkit.Program(t, nil, "info")
	require.NotContains(t, stdout, "UBCOLL_LOG")
}

func TestParse(t *testing.T) {
	o, err := parse(strings.Fields("reduce -b 8 --maxbytes 1G -i 3 -f 2 -n 7 -w 0 -m 2 -W 7 -N 0 -c 3 -o max -d half -r -1 -R 0 "+
		"-a 1 -I 1 -K 4 -S 1 -t 3 -T 90 --output a.csv --paths 1 --min-busbw 2.5 --algorithm ring --seed 9 -g 1 -z 0 "+
		"-device host -append --also 1K,12 --devices share --explain --nvls off"),
		io.Discard)
	require.NoError(t, err)
	require.True(t, o.add)
	require.Equal(t, measure.Config{Op: "reduce", MinBytes: 8, MaxBytes: 1 << 30, StepBytes: 3, StepFactor: 2,
		Also: []int{1024, 12}, Iterations: 7,
		Skip: 4, Aggregate: 2, Window: 7, Checks: 3, Types: []dtype.Type{dtype.Float16}, Reductions: []ubcoll.Op{ubcoll.Max}, Root: -1,
		Average: measure.Mean, MinBusBW: 2.5, Seed: 9, PerCall: true, Timestamps: true, Explain: true, Paths: true, Cache: true,
		Device: measure.Host, MinTime: 50 * time.Millisecond}, o.configs[0])
	require.Equal(t, ubcoll.Options{Timeout: 90 * time.Second, Algorithm: "ring", Register: ubcoll.RegisterExplicit,
		Devices: ubcoll.DevicesShare}, o.job)
	require.Equal(t, 3, o.threads)
	require.Equal(t, "off", o.nvls)
	require.Equal(t, "a.csv", o.output)

	o, err = parse(strings.Fields("all_reduce -d half,int8,half"), io.Discard)
	require.NoError(t, err)
	require.Equal(t, []dtype.Type{dtype.Float16, dtype.Int8}, o.configs[0].Types)

	o, err = parse(strings.Fields("all_reduce -o all -d all -T 2m --loop 1"), io.Discard)
	require.NoError(t, err)
	require.Equal(t, measure.MulSum, o.configs[0].Reductions[5])
	require.Equal(t, dtype.All(), o.configs[0].Types)
	require.Equal(t, 2*time.Minute, o.job.Timeout)
	require.True(t, o.configs[0].Loop)

	for _, c := range []struct {
		args string
		want []string
	}{
		{"all_reduce,broadcast -b 8 -e 8", []string{"all_reduce", "broadcast"}},
		{"all_reduce broadcast,channel all_reduce", []string{"all_reduce", "broadcast", "channel"}},
		{"all", measure.Names()},
		{"window,all -R 0", append([]string{"window"}, slices.DeleteFunc(measure.Names(), func(n string) bool { return n == "window" })...)},
	} {
		o, err := parse(strings.Fields(c.args), io.Discard)
		require.NoError(t, err, c.args)
		var got []string
		for _, cfg := range o.configs {
			got = append(got, cfg.Op)
		}
		require.Equal(t, c.want, got, c.args)
	}
	o, err = parse(strings.Fields("channel all_reduce -b 8 -e 16"), io.Discard)
	require.NoError(t, err)
	for i, factor := range []int{2, 1} {
		require.Equal(t, []int{8, 16, factor}, []int{o.configs[i].MinBytes, o.configs[i].MaxBytes, o.configs[i].StepFactor},
			"flags are for all, defaults for each")
	}
	_, err = parse(strings.Fields("all_reduce,all_gather -n -1 -b 1x"), io.Discard)
	for _, want := range []string{"-1 iterations", "-b, --minbytes: "} {
		require.Equal(t, 1, strings.Count(err.Error(), want), "what is wrong for all is said once: %v", err)
	}

	_, err = parse([]string{"all_reduce", "-h"}, io.Discard)
	require.ErrorIs(t, err, flag.ErrHelp)
	_, err = parse(strings.Fields("all_reduce -b 1x -d complex -o xor -n 1.5 -I 2 -t 0 -T soon --min-busbw -1 --seed -1 --also 1K,,2K"),
		io.Discard)
	for _, want := range []string{"-b, --minbytes: ", "-d, --datatype: ", "-o, --op: ", "-n, --iters: ",
		"-I, --per_iter_timing: ", "-t, --nthreads: ", "-T, --timeout: ", "--min-busbw: ", "--seed: ", "--also: "} {
		require.ErrorContains(t, err, want, "all faults are said at once")
	}
}

// A run that fails leaves its numbers all the same.
func TestFailedRunWritesFile(t *testing.T) {
	testkit.LongOrRace(t)
	file := filepath.Join(t.TempDir(), "x.json")
	_, _, code := testkit.Program(t, nil, "bench", "all_reduce", "-b", "64", "-e", "64", "-n", "2", "--min-busbw", "1e9",
		"-J", file)
	require.Equal(t, 7, code)
	var all struct {
		Results []any
		Average struct{ Okay *bool } `json:"average_bus_bandwidth"`
	}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &all))
	require.Len(t, all.Results, 1)
	require.False(t, *all.Average.Okay)
}
