package main

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// A job that is stopped for longer than its limit goes on afterwards: that time does not count.
func TestJobStopped(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	const limit = 6 * time.Second
	e := startEnding(t, 3, []string{fmt.Sprint("UBCOLL_TIMEOUT=", limit)}, "held")
	e.awaitReady(t, 3)
	for _, c := range e.cmds {
		testkit.Stop(t, c)
	}
	time.Sleep(limit)
	for rank := 2; rank >= 0; rank-- { // those that wait go on first, and look at the time
		require.NoError(t, e.cmds[rank].Process.Signal(syscall.SIGCONT))
		time.Sleep(100 * time.Millisecond)
	}
	require.NoError(t, os.WriteFile(endings.EnoughFile(e.dir), nil, 0o600))
	require.Equal(t, []int{0, 0, 0}, e.codes(), "%s%s%s", e.said(0), e.said(1), e.said(2))
}
