package clock

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestStopped stops a process for longer than its limits.
func TestStopped(t *testing.T) {
	testkit.Long(t)
	p := testkit.Start(t, testkit.Child("waits"))
	var word string
	p.Read(t, &word)
	require.Equal(t, "waiting", word)
	testkit.Stop(t, p.Cmd)
	time.Sleep(inChild + Gap)
	require.NoError(t, p.Cmd.Process.Signal(syscall.SIGCONT))
	_, err := fmt.Fprintln(p.In)
	require.NoError(t, err)
	p.Read(t, &word)
	require.Equal(t, "false false false", word)
}
