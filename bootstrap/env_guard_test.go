package bootstrap_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// join2 joins both ranks of a job of two, rank 1 after meanwhile has run, and closes them.
func join2(t *testing.T, where string, timeout time.Duration, meanwhile func()) {
	t.Helper()
	bs, errs := make([]bootstrap.Bootstrap, 2), make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { bs[0], errs[0] = bootstrap.Join(0, 2, where, secret, timeout) })
	meanwhile()
	wg.Go(func() { bs[1], errs[1] = bootstrap.Join(1, 2, where, secret, timeout) })
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, together(bs, bootstrap.Bootstrap.Close))
}

// dialled is a connection to rank 0, once it listens.
func dialled(t *testing.T, where string) net.Conn {
	var conn net.Conn
	testkit.Eventually(t, func() bool {
		var err error
		conn, err = net.Dial("unix", strings.TrimPrefix(where, "unix:"))
		return err == nil
	})
	return conn
}

// Silent connections keep nobody out, however many there are, even though each may last as long as the ranks have time.
func TestEnvIdleConnections(t *testing.T) {
	defer bootstrap.HandshakesFor(testkit.Limit)()
	where := abstract(t)
	join2(t, where, testkit.Limit, func() {
		for range 500 {
			conn := dialled(t, where)
			t.Cleanup(func() { conn.Close() })
		}
	})
}

// strangerVar names the address that a stranger connects to.
const strangerVar = "BOOTSTRAP_TEST_STRANGER"

// stranger is a process that connects again and again, and must be told nothing.
func stranger() error {
	for range 100 {
		conn, err := net.Dial("unix", os.Getenv(strangerVar))
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testkit.Limit))
		b, err := io.ReadAll(conn)
		if len(b) != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("read: %d %v", len(b), err)
		}
	}
	return nil
}

// Another user's connections are closed before rank 0 says anything.
func TestEnvAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	where := abstract(t)
	join2(t, where, testkit.Limit, func() {
		dialled(t, where).Close()
		cmd := testkit.Child("stranger", strangerVar+"="+strings.TrimPrefix(where, "unix:"))
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
}

// Rank 0 replaces a socket that a killed process has left, and nothing else at that path.
func TestEnvStalePath(t *testing.T) {
	path := t.TempDir() + "/s"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	_, err = bootstrap.Join(0, 2, "unix:"+path, secret, time.Minute)
	require.ErrorIs(t, err, syscall.EADDRINUSE, "somebody listens")
	require.FileExists(t, path)
	require.NoError(t, l.Close())
	join2(t, "unix:"+path, testkit.Limit, func() {})
	left, err := os.ReadDir(path[:len(path)-2])
	require.NoError(t, err)
	require.Empty(t, left)

	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	_, err = bootstrap.Join(0, 2, "unix:"+path, secret, time.Minute)
	require.ErrorIs(t, err, syscall.EADDRINUSE, "a file")
	require.FileExists(t, path)
}

// A rank that comes after rank 0 has given up hears why.
func TestEnvComesTooLate(t *testing.T) {
	defer bootstrap.LingerFor(testkit.Limit)()
	where := abstract(t)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i, r := range []int{0, 1, 1} {
		wg.Go(func() { _, errs[i] = bootstrap.Join(r, 3, where, secret, testkit.Limit) })
	}
	testkit.Eventually(t, func() bool { // both processes that claim rank 1 have come, and rank 0 has refused the job
		conn, err := net.Dial("unix", strings.TrimPrefix(where, "unix:"))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	time.Sleep(100 * time.Millisecond)
	_, errs[3] = bootstrap.Join(2, 3, where, secret, testkit.Limit)
	wg.Wait()
	for i, err := range errs {
		require.ErrorIs(t, err, fault.ErrMismatch, "%d", i)
		require.ErrorContains(t, err, "two processes say they are rank 1")
	}
}

// If rank 0 has listened, and does not any more, it has given up.
func TestEnvRankZeroGone(t *testing.T) {
	for _, where := range []string{abstract(t), "unix:" + t.TempDir() + "/s"} {
		l, err := net.Listen("unix", strings.TrimPrefix(where, "unix:"))
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := bootstrap.Join(1, 2, where, secret, 2*testkit.Limit)
			done <- err
		}()
		conn, err := l.Accept()
		require.NoError(t, err)
		l.Close()
		conn.Close()
		select {
		case err = <-done:
		case <-time.After(testkit.Limit):
			t.Fatal("it goes on")
		}
		require.ErrorIs(t, err, fault.ErrPeerLost)
		require.ErrorContains(t, err, "listened and does not any more")
		var e *fault.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 0, e.Peer)
	}
}
