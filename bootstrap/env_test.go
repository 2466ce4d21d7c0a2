package bootstrap_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// freePort is a port that nobody listens on, at a random loopback address that no other test is likely to use.
func freePort(t *testing.T) string {
	t.Helper()
	host := fmt.Sprintf("127.%d.%d.%d", mrand.IntN(256), mrand.IntN(256), 1+mrand.IntN(254))
	l, err := net.Listen("tcp", host+":0")
	if err != nil { // not all systems have more than one address
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func TestEnvVariables(t *testing.T) {
	good := map[string]string{
		"UBCOLL_RANK": "0", "UBCOLL_SIZE": "1", "UBCOLL_RENDEZVOUS": "unix:@x", "UBCOLL_SECRET": secret,
	}
	for _, c := range []struct {
		name   string
		change map[string]string
		want   []string // parts of the error; none: it works
	}{
		{"one rank", nil, nil},
		{"one rank, tcp", map[string]string{"UBCOLL_RENDEZVOUS": "127.0.0.1:1"}, nil},
		{"no rank", map[string]string{"UBCOLL_RANK": ""}, []string{"UBCOLL_RANK is not set"}},
		{"nothing", map[string]string{"UBCOLL_RANK": "", "UBCOLL_SIZE": "", "UBCOLL_RENDEZVOUS": "", "UBCOLL_SECRET": ""},
			[]string{"UBCOLL_RANK is", "UBCOLL_SIZE is", "UBCOLL_RENDEZVOUS is", "UBCOLL_SECRET is not set"}},
		{"malformed", map[string]string{"UBCOLL_RANK": "x", "UBCOLL_SIZE": "0"},
			[]string{`UBCOLL_RANK="x"`, `UBCOLL_SIZE="0"`}},
		{"rank over size", map[string]string{"UBCOLL_RANK": "4", "UBCOLL_SIZE": "4"},
			[]string{"UBCOLL_RANK=4 does not fit UBCOLL_SIZE=4"}},
		{"rendezvous without port", map[string]string{"UBCOLL_RENDEZVOUS": "host"}, []string{`UBCOLL_RENDEZVOUS="host"`}},
		{"rendezvous with port 0", map[string]string{"UBCOLL_RENDEZVOUS": "host:0"}, []string{"UBCOLL_RENDEZVOUS"}},
		{"rendezvous without host", map[string]string{"UBCOLL_RENDEZVOUS": ":99"}, []string{"UBCOLL_RENDEZVOUS"}},
		{"relative path", map[string]string{"UBCOLL_RENDEZVOUS": "unix:x"}, []string{"unix:@name or unix:/path"}},
		{"short secret", map[string]string{"UBCOLL_SECRET": "swordfish"}, []string{"UBCOLL_SECRET has 9 bytes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for k, v := range good {
				t.Setenv(k, v)
			}
			for k, v := range c.change {
				t.Setenv(k, v)
			}
			b, err := bootstrap.Env()
			if c.want == nil {
				require.NoError(t, err)
				require.NoError(t, b.Close())
				return
			}
			require.ErrorIs(t, err, fault.ErrArgument)
			for _, w := range c.want {
				require.ErrorContains(t, err, w)
			}
			require.NotContains(t, err.Error(), "swordfish")
		})
	}
}

func TestEnvVars(t *testing.T) {
	for _, kv := range bootstrap.EnvVars(0, 1, "unix:@x", secret) {
		k, v, _ := strings.Cut(kv, "=")
		t.Setenv(k, v)
	}
	b, err := bootstrap.Env()
	require.NoError(t, err)
	require.Equal(t, 1, b.Size())
	require.NoError(t, b.Close())
}

type joiner struct {
	rank, size int
	secret     string
}

// TestEnvJoinFails: whatever prevents a job from starting is an error on every rank that came.
func TestEnvJoinFails(t *testing.T) {
	for _, c := range []struct {
		name    string
		ranks   []joiner
		want    error
		texts   []string // parts of each rank's error; "" is not checked
		timeout time.Duration
	}{
		{"duplicate rank", []joiner{{0, 3, secret}, {1, 3, secret}, {1, 3, secret}}, fault.ErrMismatch,
			[]string{"two processes say they are rank 1", "two processes", "two processes"}, testkit.Limit},
		{"another size", []joiner{{0, 2, secret}, {1, 3, secret}}, fault.ErrMismatch,
			[]string{"rank 1 has UBCOLL_SIZE=3, rank 0 has 2", "rank 1 has UBCOLL_SIZE=3, rank 0 has 2"}, testkit.Limit},
		{"missing rank", []joiner{{0, 4, secret}, {2, 4, secret}}, fault.ErrTimeout,
			[]string{"ranks 1, 3 of 4 did not come", "ranks 1, 3 of 4 did not come"}, 500 * time.Millisecond},
		{"nobody listens", []joiner{{1, 2, secret}}, fault.ErrTimeout, []string{"rank 0 does not listen"}, -4 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for timeout := c.timeout; ; timeout *= 2 {
				where := abstract(t)
				errs := make([]error, len(c.ranks))
				var wg sync.WaitGroup
				for i, j := range c.ranks {
					wg.Go(func() { _, errs[i] = bootstrap.Join(j.rank, j.size, where, j.secret, timeout) })
				}
				wg.Wait()
				require.Error(t, errs[0])
				if strings.Contains(errs[0].Error(), "ranks 1, 2, 3 of 4 did not come") && timeout < testkit.Limit {
					t.Logf("rank 2 was not there within %v", timeout)
					continue
				}
				for i, err := range errs {
					require.ErrorIs(t, err, c.want)
					require.ErrorContains(t, err, c.texts[i])
				}
				return
			}
		})
	}
}

// A stranger without the secret is told so, and cannot stop the job.
func TestEnvWrongSecret(t *testing.T) {
	where := abstract(t)
	bs := make([]bootstrap.Bootstrap, 2)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { bs[0], errs[0] = bootstrap.Join(0, 2, where, secret, testkit.Limit) })
	_, err := bootstrap.Join(1, 2, where, secret+"x", testkit.Limit)
	require.ErrorIs(t, err, fault.ErrMismatch)
	require.ErrorContains(t, err, "rank 0 has another UBCOLL_SECRET")
	wg.Go(func() { bs[1], errs[1] = bootstrap.Join(1, 2, where, secret, testkit.Limit) })
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, together(bs, bootstrap.Bootstrap.Close))
}

// Connections that send nonsense, or nothing, are dropped.
func TestEnvStrangers(t *testing.T) {
	where := freePort(t)
	bs := make([]bootstrap.Bootstrap, 2)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { bs[0], errs[0] = bootstrap.Join(0, 2, where, secret, testkit.Limit) })
	dial := func() net.Conn {
		var conn net.Conn
		testkit.Eventually(t, func() bool {
			var err error
			conn, err = net.Dial("tcp", where)
			return err == nil
		})
		return conn
	}
	silent := dial()
	defer silent.Close()
	loud := dial()
	defer loud.Close()
	_, err := io.CopyN(loud, rand.Reader, 4096)
	require.NoError(t, err)
	wg.Go(func() { bs[1], errs[1] = bootstrap.Join(1, 2, where, secret, testkit.Limit) })
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, together(bs, bootstrap.Bootstrap.Close))
	require.NoError(t, silent.SetReadDeadline(time.Now().Add(testkit.Limit)))
	_, err = io.Copy(io.Discard, silent) // its connection has ended
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// The socket of a path rendezvous is removed once all ranks are there.
func TestEnvPathIsRemoved(t *testing.T) {
	path := t.TempDir() + "/rendezvous"
	bs := joinAll(t, 2, "unix:"+path)
	require.NoFileExists(t, path)
	require.NoError(t, together(bs, bootstrap.Bootstrap.Close))
}

// A part over the limit is this rank's error, and the others do not wait for it.
func TestEnvLimit(t *testing.T) {
	for _, big := range []int{0, 1} {
		bs := joinAll(t, 3, abstract(t))
		err := together(bs, func(b bootstrap.Bootstrap) error {
			var mine []byte
			want := fault.ErrPeerLost
			if b.Rank() == big {
				mine, want = make([]byte, 64<<20+1), fault.ErrLimit
			}
			if _, err := b.AllGather(context.Background(), mine); !errors.Is(err, want) {
				return fmt.Errorf("rank %d: %v", b.Rank(), err)
			}
			return b.Close()
		})
		require.NoError(t, err)
	}
}

// Ranks that are not in a call hear of an Abort in their next call, even long after.
func TestEnvAbortIsHeardLater(t *testing.T) {
	bs := joinAll(t, 4, abstract(t))
	bs[2].Abort(5)
	for _, r := range []int{0, 1, 3, 2} {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
		_, err := bs[r].AllGather(ctx, nil)
		cancel()
		require.ErrorIs(t, err, fault.ErrAborted, "rank %d", r)
		require.ErrorContains(t, err, "called Abort(5)")
	}
	require.NoError(t, together(bs, bootstrap.Bootstrap.Close))
}
