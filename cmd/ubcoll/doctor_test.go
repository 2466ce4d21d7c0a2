package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

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
