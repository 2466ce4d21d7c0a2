// Package examples has the test of the example programs, each of which has a folder of its own.
package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	_ "github.com/ubcoll/ubcoll/internal/launch"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	_ "github.com/ubcoll/ubcoll/p2p"
)

// example is a program, and where it runs. On 4 ranks it prints what stands in ranks4.golden in its folder.
type example struct {
	name  string
	hosts bool // on several hosts too: it uses nothing that works on one only
	mpi   bool // only under mpirun
	own   bool // it is a module of its own
}

var examples = []example{
	{name: "01-hello", hosts: true},
	{name: "02-registered"},
	{name: "03-halo", hosts: true},
	{name: "04-samplesort", hosts: true},
	{name: "05-window", hosts: true},
	{name: "06-channel", hosts: true},
	{name: "07-graph", hosts: true},
	{name: "08-gpu", hosts: true},
	{name: "09-mlp", hosts: true, own: true},
	{name: "10-gompi", mpi: true},
	{name: "11-hosts", hosts: true},
	{name: "12-metrics", hosts: true},
}

// launchVar names the script that starts a program under mpirun. scripts/conform-examples sets it.
const launchVar = "CONFORM_LAUNCH"

// programs is the folder of the programs.
var programs string

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "ubcoll-examples"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := testkit.Main(m)
	os.RemoveAll(programs)
	os.Exit(code)
}

// some is all examples, or, in daily runs, as to link programs takes longest, the first. Under an MPI it is those that are about
// MPI and every second of the others, which the other MPI does not have; in full runs each MPI has all.
func some() []example {
	if os.Getenv(launchVar) == "" || testkit.Full() {
		return testkit.Sample(len(examples), examples)
	}
	var some []example
	for i, e := range examples {
		if e.mpi || (i%2 == 1) == (os.Getenv("MPI_NAME") == "mpich") {
			some = append(some, e)
		}
	}
	return some
}

// built has the programs of this module, and the tool.
var built = sync.OnceValue(func() error {
	packages, examples := []string{"../cmd/ubcoll"}, examples
	switch {
	case testkit.Daily():
		packages, examples = nil, some() // the tool is for long tests
	case race.Enabled: // so are most examples
		examples = append(some(), example{name: "12-metrics"})
	case os.Getenv(launchVar) != "":
		examples = some()
	}
	for _, e := range examples {
		if !e.own && (!e.mpi || os.Getenv(launchVar) != "") {
			packages = append(packages, "./"+e.name)
		}
	}
	return build(".", packages...)
})

// build builds packages of the module in dir, with MPI if they are to run under it, and the race detector if this has it.
func build(dir string, packages ...string) error {
	args := []string{"build", "-o", programs + "/"}
	if os.Getenv(launchVar) != "" {
		args = append(args, "-tags", "mpi")
	}
	if race.Enabled {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, packages...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %v: %w: %s", packages, err, out)
	}
	return nil
}

// program is the example's program.
func (e example) program(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(programs, e.name)
	// go test does not see what the go command reads: so it learns of the program's text, and runs the test again when that
	// has changed. The library is imported above for the same reason.
	_, err := os.ReadFile(filepath.Join(e.name, "main.go"))
	require.NoError(t, err)
	if !e.own {
		require.NoError(t, built())
		return bin
	}
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	download := exec.Command("go", "mod", "download", "gonum.org/v1/gonum")
	download.Dir = e.name
	if out, err := download.CombinedOutput(); err != nil { // scripts/test has tried it, and fails then
		t.Skipf("gonum cannot be had here: %v: %s", err, out)
	}
	require.NoError(t, build(e.name, "."))
	return bin
}

// golden is what the example prints, by the name of a file in its folder. HOST stands for this host's name.
func (e example) golden(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(e.name, file))
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)
	return strings.ReplaceAll(string(text), "HOST", host)
}

// run runs a command that must succeed, with variables more and without the library's settings of this process. GPUs are
// off, since where there are some 08-gpu prints something else.
func run(t *testing.T, environ []string, command ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "UBCOLL_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, "UBCOLL_CUDA=off", testkit.NoSleep), environ...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	require.NoError(t, cmd.Run(), "%v: %s%s", command, &out, &errOut)
	return out.String(), errOut.String()
}

// Goroutine ranks. On other numbers of ranks than 4 the programs check their results, and print something.
func TestGoroutines(t *testing.T) {
	for _, e := range some() {
		t.Run(e.name, func(t *testing.T) {
			if e.mpi {
				t.Skip("it is a program for mpirun: see TestMPI")
			}
			bin := e.program(t)
			for _, n := range testkit.Sample(4, []int{4, 1, 2, 3}) {
				stdout, stderr := run(t, []string{"NTHREADS=" + strconv.Itoa(n)}, bin)
				require.Empty(t, stderr)
				require.NotEmpty(t, stdout)
				if n == 4 {
					require.Equal(t, e.golden(t, "ranks4.golden"), stdout)
				}
			}
		})
	}
}

// A process for each rank, without MPI.
func TestProcesses(t *testing.T) {
	testkit.Long(t)
	for i, e := range examples {
		t.Run(e.name, func(t *testing.T) {
			if e.mpi {
				t.Skip("it is a program for mpirun: see TestMPI")
			}
			testkit.Turn(t, i, 3)
			bin := e.program(t)
			require.NoError(t, built()) // the tool
			// The tool says that ranks take turns, where they do.
			stdout, _ := run(t, nil, filepath.Join(programs, "ubcoll"), "launch", "-np", "4", "--", bin)
			require.Equal(t, e.golden(t, "ranks4.golden"), stdout)
		})
	}
}

// A rank of 09-mlp dies on the way: the others go on, and their losses are those of one rank all the same.
func TestDeath(t *testing.T) {
	testkit.Long(t)
	e := example{name: "09-mlp", own: true}
	bin := e.program(t)
	require.NoError(t, built()) // the tool
	want := strings.Replace(e.golden(t, "ranks4.golden"), "\n", "\n3 ranks were left at the end\n", 1)
	for _, rank := range []int{0, 2} {
		stdout, stderr := run(t, []string{fmt.Sprintf("UBCOLL_FAULT=kill:rank=%d,after=100", rank)}, filepath.Join(programs, "ubcoll"),
			"launch", "-np", "4", "-survive", "--", bin)
		require.Equal(t, want, stdout, stderr)
		require.Contains(t, stderr, "the others go on", "nobody has died")
	}
}

// Two hosts, which this one plays: processes that take it for different ones reach each other by TCP only.
func TestHosts(t *testing.T) {
	testkit.Long(t)
	for i, e := range examples {
		if !e.hosts {
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			testkit.Turn(t, i+1, 3) // others than as processes of one host
			bin := e.program(t)
			stdout, _ := onHosts(t, nil, "a:2,b:2", bin)
			file := "ranks4.golden"
			if e.name == "11-hosts" {
				file = "hosts2.golden"
			}
			require.Equal(t, e.golden(t, file), stdout)
		})
	}
}

// onHosts runs a program on hosts that this one plays.
func onHosts(t *testing.T, environ []string, hosts, bin string) (stdout, stderr string) {
	require.NoError(t, built()) // the tool
	rsh := filepath.Join(t.TempDir(), "rsh")
	testkit.WriteProgram(t, rsh, "#!/bin/sh\nexport UBCOLL_HOSTID=\"$1\"\nshift\nexec sh -c \"$*\"\n")
	return run(t, append(environ, "UBCOLL_RSH="+rsh), filepath.Join(programs, "ubcoll"), "launch", "-hosts", hosts, "--", bin)
}

// Emulated GPUs: each rank has one, or both share one; also on two hosts. 09-mlp must do as without.
func TestGPU(t *testing.T) {
	testkit.Long(t)
	for _, k := range []struct {
		name, mode, devices string
	}{{"two", "auto", "2"}, {"shared", "share", "1"}} {
		t.Run(k.name, func(t *testing.T) {
			environ := append(emulated.Environ(emulated.Library(t)), "UBCOLL_CUDA="+k.mode, "UBCOLL_EMULATE_DEVICES="+k.devices)
			e := example{name: "08-gpu"}
			stdout, stderr := run(t, append(environ, "NTHREADS=2"), e.program(t))
			require.Empty(t, stderr)
			require.Equal(t, e.golden(t, "gpu2.golden"), stdout)
			e = example{name: "09-mlp", own: true}
			stdout, stderr = run(t, append(environ, "NTHREADS=4"), e.program(t))
			require.Empty(t, stderr)
			require.Equal(t, e.golden(t, "ranks4.golden"), stdout)
			stdout, _ = onHosts(t, environ, "a:2,b:2", e.program(t))
			require.Equal(t, e.golden(t, "ranks4.golden"), stdout)
			e = example{name: "08-gpu"}
			stdout, _ = onHosts(t, environ, "a:1,b:1", e.program(t))
			require.Equal(t, e.golden(t, "gpu2.golden"), stdout)
		})
	}
}

// What 12-metrics serves is in Prometheus' text format, version 0.0.4, and in JSON.
func TestMetrics(t *testing.T) {
	testkit.LongOrRace(t)
	cmd := exec.CommandContext(t.Context(), example{name: "12-metrics"}.program(t), "-serve", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "UBCOLL_CUDA=off", "NTHREADS=3")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var url string
	_, err = fmt.Fscanf(out, "serving %s\n", &url)
	require.NoError(t, err)
	get := func(url string) (text, kind string) {
		r, err := http.Get(url)
		require.NoError(t, err)
		defer r.Body.Close()
		require.Equal(t, http.StatusOK, r.StatusCode)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return string(body), r.Header.Get("Content-Type")
	}
	var values map[string]map[string]float64
	require.Eventually(t, func() bool {
		text, kind := get(url)
		require.Equal(t, "text/plain; version=0.0.4; charset=utf-8", kind)
		values = exposed(t, text)
		o := values["ubcoll_operations_total"]
		return len(o) == 3 && o["0"] == 11 && o["1"] == 11 && o["2"] == 11
	}, testkit.Limit, testkit.Limit/1000)
	for rank, staged := range values["ubcoll_staged_buffers_total"] {
		require.EqualValues(t, 2, staged, "rank %s", rank)
	}

	text, _ := get(strings.TrimSuffix(url, "metrics") + "debug/vars")
	var vars struct {
		Ubcoll []struct {
			Rank  int
			Stats struct{ Operations uint64 }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &vars))
	require.Len(t, vars.Ubcoll, 3)
	for _, s := range vars.Ubcoll {
		require.EqualValues(t, 11, s.Stats.Operations)
	}

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	cmd.Wait()
	require.Equal(t, 128+int(syscall.SIGTERM), cmd.ProcessState.ExitCode())
}

// exposed is what text has, by metric and rank. It has each metric's help, type and samples once, and together.
func exposed(t *testing.T, text string) map[string]map[string]float64 {
	help := regexp.MustCompile(`^# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) ([^\\]|\\\\|\\n)+$`)
	kind := regexp.MustCompile(`^# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge)$`)
	line := regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)\{rank="([0-9]+)",host="(?:[^"\\]|\\["\\n])*"((?:,last="[0-9]+")?)\} (\S+)$`)
	require.True(t, strings.HasSuffix(text, "\n"), "the last line ends, too")
	values := map[string]map[string]float64{}
	helped, typed := "", ""
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		if m := help.FindStringSubmatch(l); m != nil {
			require.NotContains(t, values, m[1], "twice")
			helped = m[1]
			values[helped] = map[string]float64{}
			continue
		}
		if m := kind.FindStringSubmatch(l); m != nil {
			require.Equal(t, helped, m[1])
			require.Equal(t, strings.HasSuffix(m[1], "_total"), m[2] == "counter", l)
			typed = m[1]
			continue
		}
		m := line.FindStringSubmatch(l)
		require.NotNil(t, m, "%q", l)
		require.Equal(t, typed, m[1])
		require.NotContains(t, values[m[1]], m[2]+m[3], "twice: %s", l)
		v, err := strconv.ParseFloat(m[4], 64)
		require.NoError(t, err)
		values[m[1]][m[2]+m[3]] = v // a metric of two ranks names the second one
	}
	return values
}

// The MPI of scripts/conform-examples.
func TestMPI(t *testing.T) {
	launch := os.Getenv(launchVar)
	if launch == "" {
		testkit.Missing(t, "mpi", "runs under scripts/conform-examples, which sets "+launchVar)
	}
	for _, e := range some() {
		t.Run(e.name, func(t *testing.T) {
			stdout, _ := run(t, nil, launch, "-n", "4", "--", e.program(t)) // launchers say this and that on standard error
			require.Equal(t, e.golden(t, "ranks4.golden"), stdout)
		})
	}
}

// The table has all examples, and the page lists them in order.
func TestPage(t *testing.T) {
	folders, err := filepath.Glob("[0-9]*")
	require.NoError(t, err)
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var names, listed []string
	for _, e := range examples {
		names = append(names, e.name)
	}
	for line := range strings.Lines(string(page)) {
		if rest, ok := strings.CutPrefix(line, "| ["); ok {
			name, _, _ := strings.Cut(rest, "]")
			listed = append(listed, name)
		}
	}
	require.Equal(t, folders, names)
	require.Equal(t, folders, listed)
}
