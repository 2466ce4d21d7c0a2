package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/doctor"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestDoctor(t *testing.T) {
	stdout, stderr, code := testkit.Program(t, nil, "doctor", "-json")
	require.Contains(t, []int{0, exitSupport}, code, stderr)
	require.Empty(t, stderr)
	var groups []group[[]doctor.Finding]
	require.NoError(t, json.Unmarshal([]byte(stdout), &groups))
	require.Len(t, groups, 1)
	require.Equal(t, doctor.Failed(groups[0].Answer), code == exitSupport)
	stdout, _, _ = testkit.Program(t, nil, "doctor")
	for _, f := range groups[0].Answer {
		require.Contains(t, stdout, "  "+f.Check+" ")
	}
	require.True(t, strings.HasSuffix(stdout, "\n"+doctor.Verdict(groups[0].Answer)+"\n"), stdout)
	stdout, stderr, code = testkit.Program(t, []string{"OMPI_COMM_WORLD_SIZE=4"}, "doctor")
	if built().MPI == "" {
		require.Equal(t, exitSupport, code, stderr)
		require.Contains(t, stdout, "FAIL  mpi            mpirun of Open MPI started this, and this program was built without MPI")
		require.Contains(t, stdout, "FAIL  job ")
	}
}

// In a job one rank prints, for all.
func TestTogether(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	for _, command := range []string{"doctor", "info"} {
		stdout, stderr, code := testkit.Program(t, nil, "launch", "-np", "3", "--", self, command)
		require.Contains(t, []int{0, exitSupport}, code, stderr)
		require.Equal(t, 1, strings.Count(stdout, "ranks 0-2:\n"), stdout)
	}
	stdout, stderr, code := testkit.Program(t, nil, "launch", "-np", "2", "--", "sh", "-c",
		`[ $UBCOLL_RANK = 0 ] || export UBCOLL_LOG=error; exec "$0" "$@"`, self, "info", "-env")
	require.Equal(t, 0, code, stderr)
	_, other, ok := strings.Cut(stdout, "rank 1, where it differs:\n")
	require.True(t, ok, stdout)
	require.Contains(t, other, "UBCOLL_LOG")
	require.NotContains(t, other, "UBCOLL_TIMEOUT")
}

// Under srun without MPI the ranks are those of Slurm's variables. No Slurm runs here: the test sets them.
func TestUnderSrun(t *testing.T) {
	step := []string{fmt.Sprintf("SLURM_JOB_ID=%d", os.Getpid()), "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NUM_NODES=1",
		"SLURM_STEP_NODELIST=nn01"}
	all := func(args ...string) string {
		var out [2]string
		var wg sync.WaitGroup
		for rank := range out {
			wg.Go(func() {
				stdout, stderr, code := testkit.Program(t, append(step, fmt.Sprintf("SLURM_PROCID=%d", rank)), args...)
				assert.Contains(t, []int{0, exitSupport}, code, stderr)
				out[rank] = stdout
			})
		}
		wg.Wait()
		require.Empty(t, out[1], "rank 0 prints for all")
		return out[0]
	}
	out := all("info")
	require.Contains(t, out, "ranks 0-1:\n")
	require.Regexp(t, `(?m)^launcher +srun, 2 ranks$`, out)
	require.Regexp(t, `(?m)^ranks +processes, by srun's variables, without MPI$`, out)
	out = all("doctor")
	require.Contains(t, out, "PASS  ranks          processes, by srun's variables, without MPI; when a rank dies, srun ends the others if")
	require.NotContains(t, out, "FAIL  mpi")
	require.NotContains(t, out, "FAIL  job")
	require.Contains(t, all("run", "-n", "../../configs/smoke.toml"), "ranks=2\n")
	require.Contains(t, all("bench", "all_reduce", "-b", "8", "-e", "8", "-n", "1", "-w", "0"), "Rank  1")
}

func TestGroups(t *testing.T) {
	groups, err := grouped[string]([][]byte{[]byte(`"x\ny\n"`), []byte(`"x\nz\n"`), []byte(`"x\ny\n"`), []byte(`"x\ny\n"`)})
	require.NoError(t, err)
	require.Equal(t, []group[string]{{"0,2-3", "x\ny\n"}, {"1", "x\nz\n"}}, groups)
	var b strings.Builder
	require.NoError(t, printGroups(&b, groups, func(s string) string { return s }))
	require.Equal(t, "ranks 0,2-3:\nx\ny\nrank 1, where it differs:\nz\n", b.String())
	for want, ranks := range map[string][]int{"": nil, "4": {4}, "0-1": {0, 1}, "0,2,4-6": {0, 2, 4, 5, 6}} {
		require.Equal(t, want, ranges(ranks))
	}
}

func TestInfoJSON(t *testing.T) {
	stdout, stderr, code := testkit.Program(t, nil, "info", "-json", "-env")
	require.Equal(t, 0, code, stderr)
	var groups []group[[]pair]
	require.NoError(t, json.Unmarshal([]byte(stdout), &groups))
	require.Len(t, groups, 1)
	require.Equal(t, "version", groups[0].Answer[0].Name)
}
