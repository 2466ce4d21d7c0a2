package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// mpiJob returns the command that starts the job program, built with MPI, as n ranks. scripts/conform-jobs sets what it
// needs.
func mpiJob(t *testing.T, n int, args ...string) *exec.Cmd {
	t.Helper()
	launch, bin := os.Getenv("CONFORM_LAUNCH"), os.Getenv(programVar)
	if launch == "" || bin == "" {
		testkit.Missing(t, "mpi", "runs under scripts/conform-jobs, which sets CONFORM_LAUNCH and "+programVar)
	}
	return exec.Command(launch, append([]string{"-n", strconv.Itoa(n), "--", bin}, args...)...)
}

// runMPI runs suites on this many processes, which have this many ranks together.
func runMPI(t *testing.T, processes, ranks int, extra []string, suites ...string) {
	t.Helper()
	cmd := mpiJob(t, processes, suites...)
	cmd.Env = append(os.Environ(), extra...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, s := range suites {
		require.Contains(t, string(out), fmt.Sprintf("ok %s: %d ranks", s, ranks))
	}
}

// TestMPI runs all suites on 3 ranks. What other numbers change is how the ranks meet, and how the launcher ends them: for that
// few suites are enough outside of full runs.
func TestMPI(t *testing.T) {
	sizes := []int{1, 2, 3, 4, 8, 20}
	if os.Getenv("MPI_NAME") == "mpich" { // the library is the same, and Open MPI's run has all sizes
		sizes = []int{2, 3, 8}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			suites := []string{"matrix", "random", "moves", "bad", "order", "imports", "p2p", "programs", "mixed", "exit-early"}
			switch n {
			case 3:
			case 20: // 20 ranks agree by group, and share few processors
				suites = []string{"bad", "order", "exit-early"}
			default:
				if !testkit.Full() {
					suites = []string{"order", "exit-early"}
				} else if n == 8 {
					suites = []string{"random", "moves", "bad", "order", "p2p", "programs", "mixed", "exit-early"}
				}
			}
			runMPI(t, n, n, nil, suites...)
		})
	}
}

// TestMPIKill is TestKill under an mpirun that is told to let the survivors live. TestKill has more rounds.
func TestMPIKill(t *testing.T) {
	if os.Getenv("MPI_NAME") == "mpich" {
		t.Skip("MPICH's mpirun cannot be told to leave the survivors alive")
	}
	pick := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	kills, err := conform.Number("CONFORM_KILLS", testkit.Often(20))
	require.NoError(t, err)
	for k := 0; k < kills; k++ {
		n := 2 + pick.IntN(3)
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(dir+"/none", 0o700)) // mpirun puts files into TMPDIR, ranks must not
		cmd := mpiJob(t, n, "kill")
		cmd.Env = append(os.Environ(), conform.DirVar+"="+dir, "OMPI_MCA_orte_abort_on_non_zero_status=0")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Start())
		awaitReady(t, dir, n, func(int) string { return out.String() })
		time.Sleep(time.Duration(pick.IntN(100_000)) * time.Microsecond)
		victim := pick.IntN(n)
		var pid int
		b, err := os.ReadFile(endings.ReadyFile(dir, victim))
		require.NoError(t, err)
		_, err = fmt.Sscan(string(b), &pid)
		require.NoError(t, err, "rank %d's file: %q", victim, b)
		require.Greater(t, pid, 1, "kill(2) takes 0 and -1 for many processes")
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		killed := time.Now()
		late := time.AfterFunc(2*testkit.Limit, func() { cmd.Process.Kill() })
		require.Error(t, cmd.Wait(), "a job that lost a rank must not exit 0")
		late.Stop()
		checkReports(t, dir, n, victim, killed, func(int) string { return out.String() })
		require.Empty(t, leftovers(t, dir+"/none"))
	}
}

// TestMPIFault is TestMPIKill by UBCOLL_FAULT: mpirun passes it on.
func TestMPIFault(t *testing.T) {
	if os.Getenv("MPI_NAME") == "mpich" {
		t.Skip("MPICH's mpirun cannot be told to leave the survivors alive")
	}
	const n, victim = 3, 1
	dir := t.TempDir()
	cmd := mpiJob(t, n, "kill")
	cmd.Env = append(os.Environ(), conform.DirVar+"="+dir, "OMPI_MCA_orte_abort_on_non_zero_status=0",
		fmt.Sprintf("UBCOLL_FAULT=kill:rank=%d,after=30", victim))
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "a job that lost a rank must not exit 0")
	checkReports(t, dir, n, victim, time.Now(), func(int) string { return string(out) })
}
