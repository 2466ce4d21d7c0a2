//go:build linux

package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestMPIShrink is TestShrink under the MPI that scripts/conform-jobs sets: those that are left end with exit code 0, without
// MPI_Finalize, which would wait for the others.
func TestMPIShrink(t *testing.T) {
	mpiJob(t, 1) // skips without one
	rounds, err := conform.Number("CONFORM_KILLS", testkit.Often(20))
	require.NoError(t, err)
	pick := rand.New(rand.NewPCG(testkit.Seed(t), 5))
	for k := range rounds {
		n := 2 + pick.IntN(4)
		victims := pick.Perm(n)[:1+pick.IntN(n-1)]
		t.Run(fmt.Sprintf("%d/ranks=%d", k, n), func(t *testing.T) { shrinkUnderMPI(t, n, victims, pick) })
	}
}

func shrinkUnderMPI(t *testing.T, n int, victims []int, pick *rand.Rand) {
	dir := t.TempDir()
	left := n - len(victims)
	require.NoError(t, os.WriteFile(endings.LeftFile(dir), fmt.Append(nil, left), 0o600))
	launch, bin := os.Getenv("CONFORM_LAUNCH"), os.Getenv(programVar)
	cmd := mpiJob(t, n)
	// Each process's exit code: that of the job is the launcher's affair. MPICH's sends SIGUSR1 to the others when one has died.
	cmd.Args = []string{launch, "-n", fmt.Sprint(n), "-survive", "--", "sh", "-c",
		`trap : USR1; "$0" shrink; echo $? >"$1/exit-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"`, bin, dir}
	cmd.Env = append(os.Environ(), conform.DirVar+"="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	said := func(int) string { return out.String() }
	awaitReady(t, dir, n, said)
	for _, v := range victims {
		time.Sleep(time.Duration(pick.IntN(40_000)) * time.Microsecond)
		var pid int
		b, err := os.ReadFile(endings.ReadyFile(dir, v))
		require.NoError(t, err)
		_, err = fmt.Sscan(string(b), &pid)
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	select {
	case <-ended:
	case <-time.After(testkit.Limit):
		_ = cmd.Process.Kill()
		<-ended
		t.Fatalf("the job does not end: %s", out.String())
	}
	shrunk, codes := "", 0
	for r := range n {
		if slices.Contains(victims, r) {
			continue
		}
		b, err := os.ReadFile(endings.ShrunkFile(dir, r))
		require.NoError(t, err, "rank %d of %d, victims %v: %s", r, n, victims, &out)
		if shrunk == "" {
			shrunk = string(b)
		}
		require.Equal(t, shrunk, string(b), "rank %d of %d, victims %v", r, n, victims)
		_, members, _ := strings.Cut(shrunk, " | ")
		require.Len(t, strings.Fields(members), left, shrunk)
		b, err = os.ReadFile(filepath.Join(dir, fmt.Sprint("exit-", r)))
		if err == nil {
			require.Equal(t, "0", string(bytes.TrimSpace(b)), "rank %d of %d: %s", r, n, &out)
			codes++
		} else if os.Getenv("MPI_NAME") != "mpich" {
			require.NoError(t, err)
		}
	}
	// MPICH's launcher fails an assertion, and ends the others, when a second process ends after a death (4.0).
	require.Positive(t, codes, "of %d processes none has ended: %s", left, &out)
}
