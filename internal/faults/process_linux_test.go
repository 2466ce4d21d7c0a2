package faults_test

import (
	"errors"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/faults"
	"github.com/ubcoll/ubcoll/internal/procfs"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func() error{
		"job":  childJob,
		"kill": func() error { faults.KillProcess(); return nil },
		"stop": func() error { return faults.StopProcess(0) },
		"stop for a while": func() error {
			var ticks atomic.Int64
			go func() { // another thread, which stops, too
				for {
					ticks.Add(1)
				}
			}()
			began := time.Now()
			err := faults.StopProcess(300 * time.Millisecond)
			if took := time.Since(began); took < 300*time.Millisecond {
				return errors.Join(err, errors.New("it went on after "+took.String()))
			}
			return err
		},
	})
	os.Exit(m.Run())
}

func TestKill(t *testing.T) {
	var exit *exec.ExitError
	require.ErrorAs(t, testkit.Child("kill").Run(), &exit)
	require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
}

func TestStop(t *testing.T) {
	c := testkit.Child("stop")
	require.NoError(t, c.Start())
	t.Cleanup(func() { c.Process.Kill() })
	testkit.Eventually(t, func() bool { return procfs.Stopped(c.Process.Pid) })
	require.NoError(t, c.Process.Signal(syscall.SIGCONT))
	require.NoError(t, c.Wait())
}

// The kernel continues the process.
func TestStopForAWhile(t *testing.T) { testkit.RunChild(t, "stop for a while") }
