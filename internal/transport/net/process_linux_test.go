package net

import (
	"bytes"
	"github.com/ubcoll/ubcoll/internal/transport"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// A killed process is reported as dead.
func TestKilled(t *testing.T) {
	p := startProcess(t)
	p.l.until(t, 2, 1)
	require.NoError(t, p.Cmd.Process.Signal(syscall.SIGKILL))
	testkit.Eventually(t, func() bool { return p.l.Err() != nil })
	require.Equal(t, transport.Died, p.l.Err().Kind)
	testkit.Eventually(t, func() bool { return len(p.told.downs()) == 1 })
	closeAll(t, p.n)
}

// A process that is stopped for longer than any timeout of the kernel is alive, even with data in flight to it and
// unread messages. Later everything arrives.
func TestStopped(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 8 s")
	}
	p := startProcess(t)
	p.l.until(t, 2, 1)
	testkit.Stop(t, p.Cmd)
	from, to := bytes.Repeat([]byte("x"), streamPut), make([]byte, 64<<10)
	p.l.Grant(0, 1, at(to), len(to))
	for i := range streamPlaces {
		p.l.Put(3+i, 1, at(from), len(from))
	}
	p.l.Put(0, 1, at(from), len(to))
	for range 100 {
		p.l.Tell(transport.Message{Text: string(from[:transport.MaxText])})
	}
	time.Sleep(p.n.config.Timeout + 5*time.Second)
	require.Nil(t, p.l.Err())
	require.NoError(t, p.Cmd.Process.Signal(syscall.SIGCONT))
	p.l.until(t, 1, streamPlaces)
	p.l.until(t, 0, 1)
	require.Equal(t, from[:len(to)], to)
	require.Empty(t, p.told.downs())
	closeAll(t, p.n)
}
