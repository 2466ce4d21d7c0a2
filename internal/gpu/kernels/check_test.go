package kernels

import (
	"context"
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
	for of, more := range map[string][]string{program: {"src/emulate.cc"}, wide: {"src/emulate_wide.cc", "-DUBC_WIDE"}} {
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
		for _, what := range []string{fmt.Sprint(testkit.Often(run.operations)), "errors"} {
			if what == "errors" && (ranks == "1" || ranks == "16" || ranks == "72") {
				continue // with one rank nobody can be missing; many ranks would need as many runs
			}
			t.Run(filepath.Base(program)+" "+ranks+" ranks "+what, func(t *testing.T) {
				t.Parallel()
				seed := fmt.Sprint(rand.Uint32())
				limit := 4 * time.Minute // many times what a busy machine needs; then the program prints where it is
				ctx, stop := context.WithTimeout(t.Context(), limit+time.Minute)
				defer stop()
				seconds := fmt.Sprint(int(limit.Seconds()))
				out, err := exec.CommandContext(ctx, program, seed, ranks, what, seconds).CombinedOutput()
				require.NoError(t, err, "check %s %s %s: %s", seed, ranks, what, out)
				t.Logf("seed %s: %s", seed, out)
			})
		}
	}
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
