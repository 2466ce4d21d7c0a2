//go:build linux

package scripts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// What stands in for the other scripts and for go: each writes down that it ran, and fails if FAILING says so.
const (
	standIn = `#!/bin/sh
echo "${0##*/}${MPICC:+ $MPICC}" >>"$RAN"
case $FAILING in *"<${0##*/}${MPICC:+ $MPICC}>"*) echo "$0: no luck"; exit 1 ;; esac
`
	goStandIn = `#!/bin/sh
case $1 in
list) echo "$PWD/hw $CGO_ENABLED"; echo "$PWD/dtype"; exit ;;
env) echo "/$2"; exit ;;
esac
[ "$UBCOLL_TEST_FULL" = "$FULL" ] || exit 3
[ "$UBCOLL_TEST_TURN" = "$TURN" ] || exit 4
echo "go $*" >>"$RAN"
case $FAILING in
*"<go $*>"*) printf '%s\n' "$GO_SAYS"; exit 1 ;;
esac
printf 'ok  \texample.org/x\t0.1s\n'
`
	setupStandIn = `#!/bin/sh
echo "setup $1" >>"$RAN"
case $FAILING in *"<setup $1>"*) exit 1 ;; esac
echo "mpicc.$1"
`
	without = "\nexit 77\n"
	// works until it has used a processor for more than half a second, which rounds to one.
	works = `
until times >"$RAN.$$" && read -r user system <"$RAN.$$" && case $user in 0m0.[0-5]*) false ;; esac; do
	i=0
	while [ $i -lt 10000 ]; do i=$((i + 1)); done
done
`
)

// taken is a line of a stage: the clock's seconds and those of processors.
var taken = regexp.MustCompile(`(?m)^(?:       of it)? +\d+ s +(\d+) s of processors  (.*)$`)

// A stage that fails keeps no later one from running. All that failed is listed at the end, each with a command.
func TestTest(t *testing.T) {
	script, err := os.ReadFile("test")
	require.NoError(t, err)
	differ, err := os.ReadFile("differ")
	require.NoError(t, err)
	const (
		tests = "go test -vet=off -p <n+1> -parallel <2n> -timeout 1h"
		race  = tests + " -race -short -tags invariants ./internal/conform/job ./hw"

		shared = "env UBCOLL_TEST_DEVICES=1 "
	)
	// How many packages and tests run at a time depends on the machine.
	cores := []string{"<n+1>", fmt.Sprint(runtime.NumCPU() + 1), "<2n>", fmt.Sprint(2 * runtime.NumCPU())}
	// Both MPIs' stages run at the same time, so only the order of the others is certain.
	stages := []string{"setup openmpi", "setup mpich", "setup iproute2", "hosts", "rdma-vm", "setup libfabric", "setup strace", "setup chromium",
		"setup zsh", "setup fish", "setup c++", "lint", "first-hour", "go build -tags invariants ./...",
		tests + " -short -tags invariants ./hw . ./coll ./p2p", tests + " ./hw/cpu", tests + " ./internal/conform/job ./...",
		tests + " -tags nvls ./hw/cuda ./internal/gpu/emulated ./internal/transport/nvls", tests + " -tags nvls -run Multicast . ./cmd/ubcoll", tests + " -short -tags nvls -run Multicast|NVLS ./coll ./internal/gpu/kernels",
		"go test -C cmd/ubcoll-plot ./...", race, "test-rdma"}
	const fails = "--- FAIL: TestA (0.00s)\n    a_test.go:1: TEST_SEED=12\n    --- FAIL: TestA/sub (0.00s)\n--- FAIL: TestB (1.00s)\n" +
		"    --- FAIL: TestB/sub (0.00s)\n        b_test.go:1: TEST_SEED=13\nFAIL\n" +
		"FAIL\texample.org/x/a\t0.1s\nok  \texample.org/x/b\t0.1s\nFAIL\texample.org/x/c [build failed]\n" +
		"--- FAIL: TestC (0.00s)\nFAIL\nFAIL\texample.org/x/d\t0.1s\n"
	for _, k := range []struct {
		name    string
		failing string
		says    string
		require string
		full    string
		change  map[string]string // other stand-ins
		without []string          // what does not run
		want    []string          // lines at the end
	}{
		{name: "nothing fails", change: map[string]string{"lint": works, "conform-a": works}},
		{name: "the first stage", failing: "<lint>", want: []string{"lint", "    scripts/lint"}},
		{name: "every stage", failing: "<lint><first-hour><test-rdma><conform-b mpicc.mpich><" + race + ">", says: "panic: no test",
			want: []string{"lint", "    scripts/lint", "what README prints, from clone to plot",
				"    env GOMODCACHE=/GOMODCACHE GOCACHE=/GOCACHE scripts/first-hour",
				"unit tests, with the race detector", "    " + shared + race, "with an RDMA device", "    scripts/test-rdma",
				"scripts/conform-b, mpicc.mpich", "    env MPICC=mpicc.mpich scripts/conform-b"}},
		{name: "tests", failing: "<" + race + ">", says: fails, want: []string{
			"unit tests, with the race detector: example.org/x/a TestA",
			"    TEST_SEED=12 " + shared + tests + " -race -short -tags invariants -count=1 -run '^TestA$' example.org/x/a",
			"unit tests, with the race detector: example.org/x/a TestB",
			"    TEST_SEED=13 " + shared + tests + " -race -short -tags invariants -count=1 -run '^TestB$' example.org/x/a",
			"unit tests, with the race detector: example.org/x/c", "    " + shared + tests + " -race -short -tags invariants -count=1 example.org/x/c",
			"unit tests, with the race detector: example.org/x/d TestC",
			"    " + shared + tests + " -race -short -tags invariants -count=1 -run '^TestC$' example.org/x/d"}},
		{name: "an MPI's stages end early", change: map[string]string{"conform-a": "\n[ \"$MPICC\" != mpicc.mpich ] || kill -KILL $PPID\n"},
			without: []string{"conform-b mpicc.mpich"},
			want:    []string{"everything with mpicc.mpich did not get to its end", "    scripts/test"}},
		{name: "a full run", full: "1", failing: "<lint>", want: []string{"lint", "    scripts/lint"}},
		{name: "tests without cgo", failing: "<" + tests + " ./hw/cpu>", says: "--- FAIL: TestA (0.00s)\nFAIL\texample.org/x/a\t0.1s",
			want: []string{"reductions in Go, in all sizes: example.org/x/a TestA",
				"    env CGO_ENABLED=0 " + tests + " -count=1 -run '^TestA$' example.org/x/a"}},
		{name: "an MPI that is not required", failing: "<setup mpich>", without: []string{"conform-a mpicc.mpich", "conform-b mpicc.mpich"}},
		{name: "an MPI that is required", failing: "<setup mpich>", require: "hosts,mpi",
			without: []string{"conform-a mpicc.mpich", "conform-b mpicc.mpich"},
			want:    []string{"missing, see above, and UBCOLL_REQUIRE lists mpi: mpich", "    scripts/setup mpich"}},
		{name: "no hosts and no device", change: map[string]string{"hosts": without, "rdma-vm": without}, without: []string{"test-rdma"}},
		{name: "hosts and a device are required", require: "mpi,hosts,verbs", change: map[string]string{"hosts": without, "rdma-vm": without},
			without: []string{"test-rdma"}, want: []string{
				"missing, see above, and UBCOLL_REQUIRE lists hosts: several hosts of namespaces", "    scripts/hosts 2 -mpi none -- true",
				"missing, see above, and UBCOLL_REQUIRE lists verbs: an RDMA device", "    scripts/rdma-vm -- true"}},
		{name: "hosts cannot be made for another reason", failing: "<hosts>", want: []string{"scripts/hosts", "    scripts/hosts 2 -mpi none -- true"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			told := cores
			if k.full == "1" {
				told = append([]string{"-timeout 1h", "-timeout 6h", " -race -short -tags invariants ./internal/conform/job ./hw",
					" -race -tags invariants ./internal/conform/job ./...", " -short", ""}, cores...)
			}
			fill := strings.NewReplacer(told...).Replace
			dir := t.TempDir()
			write := func(name, text string) {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
				testkit.WriteProgram(t, filepath.Join(dir, name), text)
			}
			write("scripts/test", string(script))
			write("scripts/differ", string(differ))
			write("scripts/concurrent", "#!/bin/sh\necho ./hw\n")
			write("scripts/setup", setupStandIn)
			write("bin/go", goStandIn)
			write("bin/git", "#!/bin/sh\necho 00013b1\n") // 5041
			turn := "1"
			if k.full == "1" {
				turn = ""
			}
			write("examples/09-mlp/go.mod", "")
			write("cmd/ubcoll-plot/go.mod", "")
			for _, s := range []string{"lint", "hosts", "rdma-vm", "first-hour", "test-rdma", "conform-a", "conform-b"} {
				write("scripts/"+s, standIn+k.change[s])
			}
			cmd := exec.Command("scripts/test")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+dir+"/bin:"+os.Getenv("PATH"), "RAN="+dir+"/ran", "FAILING="+fill(k.failing), "GO_SAYS="+k.says,
				"UBCOLL_REQUIRE="+k.require, "FULL="+k.full, "TURN="+turn, "UBCOLL_TEST_FULL=", "UBCOLL_TEST_TURN=", "MPICC=", "CGO_ENABLED=1")
			out, err := cmd.CombinedOutput()
			ran, readErr := os.ReadFile(filepath.Join(dir, "ran"))
			require.NoError(t, readErr)
			var want []string
			for _, s := range append(stages, "conform-a mpicc.openmpi", "conform-b mpicc.openmpi", "conform-a mpicc.mpich", "conform-b mpicc.mpich") {
				if !slices.Contains(k.without, s) && (s != "setup iproute2" || os.Getuid() == 0) {
					want = append(want, fill(s))
				}
			}
			var got []string
			for line := range strings.Lines(string(ran)) {
				if line = strings.TrimSpace(line); !strings.HasPrefix(line, "go mod") {
					got = append(got, line)
				}
			}
			require.ElementsMatch(t, want, got, "%s", out)

			_, end, failed := strings.Cut(string(out), "test: these have failed; the commands repeat them:\n")
			require.Equal(t, len(k.want) > 0, failed, "%s", out)
			if !failed {
				require.NoError(t, err, "%s", out)
				require.Contains(t, string(out), "\ntest: all passed in ")
				if k.name == "nothing fails" {
					requireTaken(t, string(out))
				}
				return
			}
			var exit *exec.ExitError
			require.True(t, errors.As(err, &exit) && exit.ExitCode() == 1, "%v", err)
			var lines []string
			for line := range strings.Lines(end) {
				lines = append(lines, strings.TrimSuffix(strings.TrimPrefix(line, "  "), "\n"))
			}
			for i := range k.want {
				k.want[i] = fill(k.want[i])
			}
			require.Equal(t, k.want, lines)
		})
	}
}

// requireTaken requires the seconds of each stage, and of processors those that the stand-ins have used.
func requireTaken(t *testing.T, out string) {
	t.Helper()
	_, end, _ := strings.Cut(out, "=== stages")
	var titles, worked []string
	for _, line := range taken.FindAllStringSubmatch(end, -1) {
		titles = append(titles, line[2])
		if line[1] != "0" {
			worked = append(worked, line[2])
		}
	}
	require.Len(t, titles, 18, "%s", out)
	require.Subset(t, worked, []string{"lint", "scripts/conform-a, mpicc.openmpi", "scripts/conform-a, mpicc.mpich", "both MPIs"}, "%s", out)
	require.NotContains(t, worked, "scripts/conform-b, mpicc.mpich", "%s", out)
}
