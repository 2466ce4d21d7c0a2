package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/sweep"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

const smallSweep = `
[sweep]
operation    = ["all_reduce", "broadcast", "alltoall", "barrier"]
bytes        = "64..4K x8"
algorithm    = ["auto", "ring"]
registration = ["explicit", "off", "slices"]
device       = "host"
ranks        = [2, 3]
in_place     = [false, true]

[run]
repeats    = 2
iterations = 3
`

func sweepFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "small.toml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	return file
}

// pointsOf are the points and repeats of a run, each of which must be there once.
func pointsOf(t *testing.T, dir string) []string {
	t.Helper()
	_, records, err := sweep.Read(dir)
	require.NoError(t, err)
	var all []string
	for _, r := range records {
		require.True(t, r.Wrong == nil || *r.Wrong == 0)
		all = append(all, fmt.Sprintf("%v #%d", r.Point, r.Repeat))
	}
	slices.Sort(all)
	require.Len(t, slices.Compact(slices.Clone(all)), len(all), "each once")
	return all
}

// A run that is killed again and again has in the end the points of one that was not.
func TestRunResumes(t *testing.T) {
	testkit.Long(t)
	file, dir := sweepFile(t, smallSweep), t.TempDir()
	run := []string{"run", file, "-ranks", "1,2", "-registration", "explicit,slices"} // no more ranks than processors
	whole, killed := filepath.Join(dir, "whole"), filepath.Join(dir, "killed")
	stdout, stderr, code := testkit.Program(t, nil, append(run, "-o", whole)...)
	require.Equal(t, 0, code, stderr)
	want := pointsOf(t, whole)
	require.Contains(t, stdout, fmt.Sprintf("%d measurements in %s", len(want), whole))

	random := testkit.Random(t)
	kills := 0
	for kills < testkit.Often(60) {
		cmd := exec.Command(os.Args[0], append(run, "-o", killed)...)
		cmd.Env = append(os.Environ(), testkit.ProgramVar+"=1", testkit.NoSleep)
		require.NoError(t, cmd.Start())
		before := fileBytes(filepath.Join(killed, sweep.PointsFile))
		goal := before + int64(random.IntN(40_000)) // by what was written, so that slow machines get as far
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for over := false; !over && fileBytes(filepath.Join(killed, sweep.PointsFile)) < goal; {
			select {
			case <-ended:
				over = true
				ended <- nil
			case <-time.After(time.Millisecond):
			}
		}
		cmd.Process.Kill()
		<-ended
		kills++
		if f := filepath.Join(killed, sweep.PointsFile); kills == 3 && fileBytes(f) > 0 { // and the disk has half a line
			require.NoError(t, os.Truncate(f, fileBytes(f)-1))
		}
	}
	_, stderr, code = testkit.Program(t, nil, append(run, "-o", killed)...)
	require.Equal(t, 0, code, stderr)
	require.Equal(t, want, pointsOf(t, killed))
	a, err := os.ReadFile(filepath.Join(whole, sweep.CSVFile))
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(killed, sweep.CSVFile))
	require.NoError(t, err)
	require.Equal(t, strings.Count(string(a), "\n"), strings.Count(string(b), "\n"))

	stdout, stderr, code = testkit.Program(t, nil, "compare", whole, killed)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, fmt.Sprintf("geometric mean of %d ratios: ", len(want)/2))
}

func fileBytes(name string) int64 {
	i, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return i.Size()
}

// Processes of a job measure as goroutines do, and a signal leaves what there is.
func TestRunJob(t *testing.T) {
	testkit.LongOrRace(t)
	file, dir := sweepFile(t, smallSweep), filepath.Join(t.TempDir(), "r")
	name := rand.Text()
	var codes [3]int
	var errs [3]string
	var wait sync.WaitGroup
	for r := range 3 {
		wait.Go(func() {
			_, errs[r], codes[r] = testkit.Program(t, bootstrap.EnvVars(r, 3, "unix:@"+name, name), "run", file, "-o", dir,
				"-repeats", "1", "-bytes", "64", "-operation", "all_reduce,barrier")
		})
	}
	wait.Wait()
	require.Equal(t, [3]int{}, codes, "%v", errs)
	require.Len(t, pointsOf(t, dir), 2*2*3*2+2*3)
	stdout, stderr, code := testkit.Program(t, []string{"UBCOLL_ALGO=ring"}, "run", file, "-o", dir+"2", "-quick", "-operation",
		"all_reduce", "-registration", "explicit")
	require.Equal(t, 0, code, stderr)
	require.NotContains(t, stdout, "auto", "the environment's algorithm replaces the file's")
}

// A trial measures each point once, with few and small calls, whatever the file says; flags count more.
func TestQuick(t *testing.T) {
	file := sweepFile(t, strings.Replace(smallSweep, "4K x8", "1M x8", 1)+"warmup = 5\nmin_time = \"1s\"\n")
	o, err := parseRun([]string{file, "-quick", "-iterations", "7"}, io.Discard)
	require.NoError(t, err)
	r := o.job.Spec.Run
	require.Equal(t, []int{1, 7, 0, 0}, []int{r.Repeats, r.Iterations, r.Warmup, int(r.MinTime)})
	p, err := o.job.Spec.Plan(3)
	require.NoError(t, err)
	most := 0
	for _, x := range p.Points {
		most = max(most, x.Bytes)
	}
	require.Equal(t, 32<<10, most, "the largest of the list that is not larger than 64K")
}

// With a threshold, compare fails where a point is slower with its whole interval, and where only the mean is.
func TestCompareThreshold(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, times ...float64) string {
		var b bytes.Buffer
		require.NoError(t, json.NewEncoder(&b).Encode(sweep.Start{Kind: "run", Schema: sweep.Schema}))
		for i, us := range times {
			x := sweep.Record{Kind: "point", Repeat: i, Point: sweep.Point{Operation: "barrier", Ranks: 2}, Result: &measure.Result{}}
			x.Time = us
			require.NoError(t, json.NewEncoder(&b).Encode(x))
		}
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, b.Bytes(), 0o644))
		return name
	}
	a, slow, unsure := write("a", 10, 11, 12, 13, 14), write("slow", 20, 22, 24, 26, 28), write("unsure", 9, 10, 24, 25, 26)
	for _, k := range []struct {
		name string
		args []string
		want string // the error's text; "": there is none
	}{
		{"slower", []string{a, slow, "-threshold", "50"}, slow + " is slower than " + a + " by more than 50 %: 1 point, the mean: true"},
		{"the mean alone", []string{a, unsure, "-threshold", "50"}, "by more than 50 %: 0 points, the mean: true"},
		{"within the threshold", []string{a, slow, "-threshold", "150"}, ""},
		{"faster", []string{slow, a, "-threshold", "0"}, ""},
		{"slower, and no threshold", []string{a, slow}, ""},
	} {
		t.Run(k.name, func(t *testing.T) {
			err := compare(k.args, io.Discard)
			if k.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, k.want)
			require.Equal(t, exitFailed, exitCode(err))
		})
	}
}

// Each configuration of a sweep runs as it is, small, where the hardware is there.
func TestConfigsRun(t *testing.T) {
	files, err := filepath.Glob("../../configs/*.toml")
	require.NoError(t, err)
	ran := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		if isJob(text) {
			continue
		}
		ran++
		t.Run(filepath.Base(f), func(t *testing.T) {
			if testing.Short() {
				_, stderr, code := testkit.Program(t, nil, "check", f)
				require.Equal(t, 0, code, stderr)
				return
			}
			dir := filepath.Join(t.TempDir(), "r")
			args := []string{"run", f, "-quick", "-o", dir, "-ranks", "2", "-device", "host", "-graph", "0", "-type", "float32",
				"-bytes", "1K,64K"}
			stdout, stderr, code := testkit.Program(t, []string{"UBCOLL_CUDA=off"}, args...)
			require.Equal(t, 0, code, "%s%s", stdout, stderr)
			require.NotEmpty(t, pointsOf(t, dir))
			require.Contains(t, stdout, " measurements in ")
		})
	}
	require.GreaterOrEqual(t, ran, 8)
}

func TestDryRun(t *testing.T) {
	file := sweepFile(t, "[sweep]\nbytes = [8, '1M']\nranks = [2, 4]\nalgorithm = ['auto', 'ring']\n[run]\nrepeats = 3\n")
	for _, flag := range []string{"-n", "-dry-run"} {
		stdout, stderr, code := testkit.Program(t, []string{"NTHREADS=3"}, "run", flag, file)
		require.Equal(t, 0, code, stderr)
		require.Equal(t, `all_reduce 8 float32 sum auto explicit host ranks=2
all_reduce 8 float32 sum ring explicit host ranks=2
all_reduce 1M float32 sum auto explicit host ranks=2
all_reduce 1M float32 sum ring explicit host ranks=2
  skipped 4: 4 ranks in a job of 3 (all_reduce 8 float32 sum auto explicit host ranks=4)
4 points, 3 repeats: 12 measurements
about 3s, if each rank has an idle processor: estimated from sizes and calls of 50ms at least (min_time) for each measurement, not tried here
`, stdout)
	}
	stdout, _, _ := testkit.Program(t, nil, "run", file, "-n")
	require.Contains(t, stdout, "8 points, 3 repeats", "alone, as many ranks as the file wants")
}

// The example of the documentation is one that runs.
func TestExampleOfDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/experiments.md")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(page), "```toml\n")
	text, _, found := strings.Cut(text, "```")
	require.True(t, found)
	stdout, stderr, code := testkit.Program(t, nil, "check", sweepFile(t, text))
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "points, 5 repeats")
}
