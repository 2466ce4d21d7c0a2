package kernels

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestCheck runs the kernels' source on coroutines, against a reference: testdata/check.cc.
func TestCheck(t *testing.T) {
	if testing.Short() || race.Enabled {
		t.Skip("a C++ program by itself, the same in the plain run")
	}
	t.Parallel()
	cxx := testkit.Compiler(t, os.Getenv("CXX"), "c++", "g++", "clang++")
	program := filepath.Join(t.TempDir(), "check") // lasts until the parallel runs are over
	wide := program + "-wide"
	for of, more := range map[string][]string{program: {"src/emulate.cc", "src/emulate_stand_in.cc"}, wide: {"src/emulate_wide.cc", "-DUBC_WIDE"}} {
		out, err := exec.Command(cxx, append([]string{"-std=c++17", "-O1", "-ffp-contract=off", "-DUBC_EMULATE", "-o", of,
			"testdata/check.cc"}, more...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for _, run := range []struct {
		program    string
		ranks      int
		operations int // in full runs
	}{{program, 1, 500}, {program, 2, 500}, {program, 3, 500}, {program, 4, 500}, {program, 8, 500},
		{wide, 3, 300}, {wide, 9, 300}, {wide, 16, 200}, {wide, 72, 20}} {
		ranks, program := fmt.Sprint(run.ranks), run.program
		for what, times := range map[string]int{"data": testkit.Often(run.operations), "errors": testkit.Often(200), "multicast": testkit.Often(run.operations)} {
			if what == "multicast" && run.program == wide {
				continue // there is none for many ranks
			}
			if what == "errors" && (ranks == "1" || ranks == "16" || ranks == "72") {
				continue // with one rank nobody can be missing; many ranks would need as many runs
			}
			t.Run(filepath.Base(program)+" "+ranks+" ranks "+what, func(t *testing.T) {
				t.Parallel()
				seed := fmt.Sprint(rand.Uint32())
				args := []string{seed, ranks, what, fmt.Sprint(times), fmt.Sprint(left(t))}
				out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
				require.NoError(t, err, "check %v: %s", args, out)
				t.Logf("seed %s: %s", seed, out)
			})
		}
	}
}

// left returns the seconds after which a program prints where it is and fails, which is before this test binary's own
// limit. 0: that has none.
func left(t *testing.T) int {
	end, ok := t.Deadline()
	if !ok {
		return 0
	}
	return max(1, int(time.Until(end).Seconds()*9/10))
}

// TestLanes reduces vectors of integers of every type, many lanes of a word at a time, against the same reference.
func TestLanes(t *testing.T) {
	if testing.Short() || race.Enabled {
		t.Skip("a C++ program by itself, the same in the plain run")
	}
	t.Parallel()
	cxx := testkit.Compiler(t, os.Getenv("CXX"), "c++", "g++", "clang++")
	program, seed := filepath.Join(t.TempDir(), "lanes"), fmt.Sprint(rand.Uint64())
	out, err := exec.Command(cxx, "-std=c++17", "-O1", "-DUBC_EMULATE", "-o", program, "testdata/lanes.cc").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.CommandContext(t.Context(), program, seed).CombinedOutput()
	require.NoError(t, err, "lanes %s: %s", seed, out)
}
