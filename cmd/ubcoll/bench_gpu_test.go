//go:build linux

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// launcher stands in for mpirun: it notes each start, runs this program for ubcoll, over emulated GPUs, and has times of its
// own for the peers, in which each mode is the fastest one at some size.
const launcher = `#!/bin/bash
[ "$1" != --version ] || { echo "mpirun (Open MPI) 4.1.6"; exit; }
n=$4 program=$(basename "$5")
shift 5
echo "$program $n $*" >>"$LOG"
[ "$program" != "${BROKEN:-}" ] || { echo "it broke" >&2; exit 1; }
case $program in
ubcoll) UBCOLL_TEST_MAIN=1 UBCOLL_THREADS=$n exec "$UBCOLL_TEST_BINARY" "$@" ;;
python3) shift; echo "# PyTorch 2.11" ;;
*) echo "# NCCL 2.28.9, NCCL_NVLS_ENABLE=$NCCL_NVLS_ENABLE" ;;
esac
for work in "${@:4}"; do
	IFS=: read -r way op sizes <<<"$work"
	for size in ${sizes//,/ }; do
		us=1000000
		case $way-$size in
		symmetric-64) us=500000 ;; registered-256) us=400000 ;; unregistered-in-place-256) us=300000 ;;
		one_shot-256) us=200000 ;; two_shot-*) us=600000 ;;
		esac
		[ "$program" != python3 ] || [ "$op" != "${UNKNOWN:-}" ] || { echo "# symmetric memory: $op: no"; continue; }
		echo "$op $way $size $us.000"
	done
done
`

// peersOf makes commands beside which scripts/bench-gpu finds everything that it needs, and returns how it is run.
func peersOf(t *testing.T) (run func(environ []string, args ...string) (stdout, stderr string, code int), log string) {
	bash, err := exec.LookPath("bash")
	if err != nil || race.Enabled {
		t.Skip("wants bash, and time")
	}
	dir := t.TempDir()
	binary, err := os.Executable()
	require.NoError(t, err)
	log = filepath.Join(dir, "log")
	said, err := exec.Command("go", "build", "-o", filepath.Join(dir, "benchstats"), "../../tools/benchstats").CombinedOutput()
	require.NoError(t, err, "%s", said)
	for name, text := range map[string]string{
		"bin/mpirun":             launcher,
		"bin/go":                 "#!/bin/sh\n[ \"$4\" != ./tools/benchstats ] || cp " + filepath.Join(dir, "benchstats") + " \"$3\"\n",
		"bin/mpicc":              "#!/bin/sh\n[ \"$1\" != --showme:version ] || echo Open MPI\n",
		"bin/python3":            "#!/bin/sh\ncase $2 in *find_spec*) echo \"$TORCH\" ;; *socket*) echo 1 ;; *executable*) echo python3 ;; esac\n",
		"include/nccl.h":         "",
		"lib/libnccl.so.2":       "",
		"lib64/libcudart.so":     "",
		"include/cuda_runtime.h": "",
	} {
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testkit.WriteProgram(t, name, text)
	}
	own := append(emulated.Environ(emulated.Library(t)), "UBCOLL_EMULATED_GPUS=2", "UBCOLL_EMULATE_DEVICES=2", "UBCOLL_CUDA=auto",
		"PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "MPICC="+filepath.Join(dir, "bin/mpicc"), "NCCL_HOME="+dir,
		"CUDA_HOME="+dir, "LOG="+log, "UBCOLL_TEST_BINARY="+binary, "TORCH=yes", "UBCOLL_COMMIT=abc", "NCCL_NVLS_ENABLE=")
	return func(environ []string, args ...string) (string, string, int) {
		require.NoError(t, os.WriteFile(log, nil, 0o644))
		cmd := exec.CommandContext(t.Context(), bash, append([]string{"../../scripts/bench-gpu"}, args...)...)
		cmd.Env = append(append(os.Environ(), own...), environ...)
		var out, errOut bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errOut
		err := cmd.Run()
		if exit := (&exec.ExitError{}); !errors.As(err, &exit) {
			require.NoError(t, err)
		}
		return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
	}, log
}

// row is the cells of the table's line that begins with these.
func row(t *testing.T, page string, first ...string) []string {
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) > len(first) && strings.Join(cells[:len(first)], "|") == strings.Join(first, "|") {
			return cells
		}
	}
	require.Fail(t, "no such row", "%q in\n%s", first, page)
	return nil
}

// The peers run in every mode once, and then in the best one of each size alone. The figures are tested where they are made,
// in tools/benchstats.
func TestBenchGPU(t *testing.T) {
	testkit.Long(t)
	run, log := peersOf(t)
	file := filepath.Join(t.TempDir(), "page.md")
	stdout, stderr, code := run(nil, "-op", "all_reduce,broadcast", "-rounds", "2", "-b", "64", "-e", "256", "-also", "128,4K",
		"-n", "2", "-G", "5", "-o", file)
	require.Zero(t, code, stderr)
	started, err := os.ReadFile(log)
	require.NoError(t, err)
	all := "64,128,256"
	nccl := "nccl 2 256 2 5 registered:all_reduce:256 symmetric:all_reduce:64 "
	lines := strings.Split(strings.TrimSpace(string(started)), "\n")
	require.Len(t, lines, 10)
	for _, want := range []string{"unregistered:all_reduce:" + all, "unregistered-in-place:broadcast:" + all, "symmetric:broadcast:" + all} {
		require.Contains(t, lines[0], want)
	}
	require.Contains(t, lines[0], "nccl 2 256 2 2 ", "a quarter of the launches")
	require.Equal(t, "python3 2 tools/peers/symm_mem.py 256 2 2 one_shot:all_reduce:"+all+" two_shot:all_reduce:"+all+
		" two_shot_out:all_reduce:"+all, lines[1])
	require.Contains(t, lines[2], nccl)
	require.Contains(t, lines[2], "symmetric:broadcast:64")
	require.Contains(t, lines[2], "unregistered-in-place:broadcast:256")
	require.Equal(t, "python3 2 tools/peers/symm_mem.py 256 2 5 one_shot:all_reduce:256 two_shot:all_reduce:64,128", lines[3])
	for i, want := range []string{"all_reduce -device cuda -b 64 -e 256 -f 4 -also 128 -n 2", "broadcast "} {
		require.Contains(t, lines[4+i], "ubcoll 2 bench "+want)
		require.Contains(t, lines[6+i], "ubcoll 2 bench "+want, "the second round begins with us")
	}
	require.Equal(t, []string{lines[3], lines[2]}, lines[8:], "and has the same plans")

	reduced, rest, _ := strings.Cut(stdout, "## broadcast")
	for _, want := range [][]string{
		{"64", "500000", "symmetric", "600000", "two_shot", "500000"},
		{"256", "400000", "registered", "200000", "one_shot", "200000"},
	} {
		require.Len(t, row(t, reduced, want...), 11)
	}
	require.Equal(t, "600000", row(t, reduced, "128")[3])
	require.NotEqual(t, "-", row(t, reduced, "128")[6], "ours")
	require.Equal(t, []string{"256", "300000", "unregistered-in-place", "-", "-", "300000"}, row(t, rest, "256")[:6])
	require.Equal(t, "3", row(t, rest, "2", "all_reduce")[2])
	require.Equal(t, "3", row(t, rest, "2", "broadcast")[2])
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	tables, _, _ := strings.Cut(string(page), "## How\n")
	require.True(t, strings.HasSuffix(stdout, tables), "printed, too")
	require.Contains(t, string(page), "all_reduce nccl 2 256 400000.000 registered\n")
	require.Contains(t, string(page), "Commit abc")
	require.Contains(t, string(page), "# PyTorch 2.11\n")
	require.Contains(t, string(page), "# NCCL 2.28.9, NCCL_NVLS_ENABLE=0\n", "unless the user says otherwise")
	require.Contains(t, string(page), "NVLS and multicast are off for everyone.")
}

// What is not there, or fails, leaves the rest.
func TestBenchGPUWithout(t *testing.T) {
	testkit.Long(t)
	run, log := peersOf(t)
	quick := []string{"-op", "all_reduce", "-rounds", "1", "-e", "64", "-b", "64", "-also", "none", "-n", "1", "-G", "0"}
	for _, c := range []struct {
		name    string
		environ []string
		args    []string
		code    int
		want    []string // of the size's row
		says    string
	}{
		{"torch", []string{"TORCH="}, quick, 0, []string{"64", "500000", "symmetric", "-", "-", "500000"}, "no torch"},
		{"a way", []string{"UNKNOWN=all_reduce"}, quick, 0, []string{"64", "500000", "symmetric", "-", "-", "500000"}, ""},
		{"symmetric memory", []string{"BROKEN=python3"}, quick, 1, []string{"64", "500000", "symmetric", "-", "-", "500000"},
			"symmetric memory failed"},
		{"NCCL", []string{"BROKEN=nccl"}, quick, 1, []string{"64", "-", "-", "600000", "two_shot", "600000"}, "NCCL failed"},
		{"us", []string{"BROKEN=ubcoll"}, quick, 1, []string{"64", "500000", "symmetric", "600000", "two_shot", "500000", "-"},
			"it broke"},
		{"operation", nil, []string{"-op", "all_reduce,barrier"}, 6, nil, "unknown operation barrier"},
		{"channel beside others", nil, []string{"-op", "all_reduce,channel"}, 6, nil, "unknown operation channel"},
		{"value", nil, []string{"-op"}, 6, nil, "-also LIST"},
		{"GPUs", nil, []string{"-np", "3"}, 5, nil, "2 GPUs, and 3 wanted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := run(c.environ, c.args...)
			require.Equal(t, c.code, code, stderr)
			require.Contains(t, stderr, c.says)
			if c.want != nil {
				require.Equal(t, c.want, row(t, stdout, "64")[:len(c.want)], log)
			}
		})
	}
}

// NCCL runs with what the user says of NVLS, and what is printed and written says so.
func TestBenchGPUNVLS(t *testing.T) {
	testkit.Long(t)
	run, _ := peersOf(t)
	file := filepath.Join(t.TempDir(), "page.md")
	stdout, stderr, code := run([]string{"NCCL_NVLS_ENABLE=1", "TORCH="}, "-op", "all_reduce", "-rounds", "1", "-b", "64", "-e", "64",
		"-n", "1", "-G", "0", "-o", file)
	require.Zero(t, code, stderr)
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, text := range []string{stdout, string(page)} {
		require.Contains(t, text, "NCCL_NVLS_ENABLE=1 scripts/bench-gpu -op all_reduce", "the command that repeats it")
		require.Contains(t, text, "# NCCL 2.28.9, NCCL_NVLS_ENABLE=1\n")
		require.Contains(t, text, "NCCL may use NVLS")
		require.NotContains(t, text, "off for everyone")
	}
}

// Every operation is one of ubcoll's, with the sizes that it has by default.
func TestBenchGPUAll(t *testing.T) {
	testkit.Long(t)
	run, log := peersOf(t)
	stdout, stderr, code := run(nil, "-op", "all", "-rounds", "1", "-e", "4K", "-n", "1", "-modes", "registered")
	require.Zero(t, code, stderr)
	started, err := os.ReadFile(log)
	require.NoError(t, err)
	_, summary, _ := strings.Cut(stdout, "## Summary")
	for _, op := range strings.Fields("all_reduce all_gather reduce_scatter alltoall broadcast reduce scatter gather sendrecv") {
		sizes, n := "1024,4096", "2"
		if op == "all_reduce" {
			sizes, n = "16,64,256,1024,4096", "5"
		}
		require.Contains(t, string(started), " registered:"+op+":"+sizes)
		require.Equal(t, n, row(t, summary, "2", op)[2])
	}
	require.Contains(t, string(started), "pulled:reduce_scatter:1024,4096")
}
