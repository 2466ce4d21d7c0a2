package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/conform/bootstraps"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// systemChildren are the children of tests that not every system has.
var systemChildren = map[string]func() error{}

func TestMain(m *testing.M) {
	children := map[string]func() error{"stranger": stranger, "few descriptors": fewDescriptors, "stand-in": standIn}
	maps.Copy(children, systemChildren)
	for name, rank := range bootstraps.Cases { // each is one rank of an Env job
		children[name] = func() error {
			b, err := bootstrap.Env()
			if err != nil {
				return err
			}
			return rank(b, bootstraps.Promises{Tells: true, Group: 1}, 1)
		}
	}
	testkit.Children(children)
	os.Exit(testkit.Main(m))
}

const secret = "0123456789abcdef-test"

func abstract(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("unix:@ubcoll-test-%d-%d", os.Getpid(), rand.Uint64())
}

// together runs f for every rank at once.
func together(bs []bootstrap.Bootstrap, f func(b bootstrap.Bootstrap) error) error {
	return errors.Join(testkit.Each(bs, f)...)
}

// joinAll is an Env job whose ranks are goroutines.
func joinAll(t *testing.T, n int, where string) []bootstrap.Bootstrap {
	t.Helper()
	bs := make([]bootstrap.Bootstrap, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range bs {
		wg.Go(func() { bs[i], errs[i] = bootstrap.Join(i, n, where, secret, testkit.Limit) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	return bs
}

func perProcess(under []bootstrap.Bootstrap, n int) []bootstrap.Bootstrap {
	var bs []bootstrap.Bootstrap
	for _, b := range under {
		bs = append(bs, bootstrap.PerProcess(b, n)...)
	}
	return bs
}

// TestConformance runs the suite on every kind that can run as goroutines.
func TestConformance(t *testing.T) {
	seed := testkit.Seed(t)
	kinds := []struct {
		name  string
		group int
		start func(t *testing.T, n int) []bootstrap.Bootstrap
	}{
		{"local", 1, func(t *testing.T, n int) []bootstrap.Bootstrap { return bootstrap.Local(n) }},
		{"per process over local", 2, func(t *testing.T, n int) []bootstrap.Bootstrap {
			return perProcess(bootstrap.Local(n), 2)
		}},
		{"per process over env", 3, func(t *testing.T, n int) []bootstrap.Bootstrap {
			return perProcess(joinAll(t, n, abstract(t)), 3)
		}},
		{"env on an abstract socket", 1, func(t *testing.T, n int) []bootstrap.Bootstrap {
			return joinAll(t, n, abstract(t))
		}},
		{"env on a path", 1, func(t *testing.T, n int) []bootstrap.Bootstrap {
			return joinAll(t, n, "unix:"+t.TempDir()+"/s")
		}},
		{"env on tcp", 1, func(t *testing.T, n int) []bootstrap.Bootstrap { return joinAll(t, n, freePort(t)) }},
	}
	for _, k := range testkit.Sample(2, kinds) {
		sizes := []int{1, 2, 3, 4, 8}
		if race.Enabled || testing.Short() { // 8 ranks are slow then, and show nothing more
			sizes = []int{1, 4}
		}
		if testkit.Daily() {
			sizes = sizes[1:]
		}
		for _, n := range sizes {
			for _, name := range []string{"healthy", "missing", "abort", "circle", "pair-missing", "pair-abort", "pair-closed"} {
				pairs := name == "circle" || strings.HasPrefix(name, "pair")
				if name != "healthy" && n != 1 && n != 4 || pairs && (n == 1 || k.group > 1) {
					continue // these mostly wait, or need an Exchanger
				}
				t.Run(fmt.Sprintf("%s/%d/%s", k.name, n, name), func(t *testing.T) {
					t.Parallel()
					bs := k.start(t, n)
					require.Equal(t, k.group == 1, bootstraps.Exchanges(bs[0]))
					err := together(bs, func(b bootstrap.Bootstrap) error {
						return bootstraps.Cases[name](b, bootstraps.Promises{Tells: true, Group: k.group}, seed)
					})
					if name == "pair-closed" { // the case has closed the last one
						bs = bs[:n-1]
					}
					if name != "healthy" {
						require.NoError(t, together(bs, bootstrap.Bootstrap.Close))
					}
					require.NoError(t, err)
				})
			}
		}
	}
}

// TestEnvProcesses runs the suite on Env with real processes.
func TestEnvProcesses(t *testing.T) {
	testkit.SkipRace(t)
	for _, name := range testkit.Sample(3, []string{"healthy", "missing", "abort", "killed", "killed-root", "circle", "pair-missing",
		"pair-abort", "pair-killed", "pair-closed"}) {
		for _, n := range testkit.Sample(2, []int{2, 4}) {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				t.Parallel()
				if name == "circle" && n < 3 {
					return
				}
				victim := map[string]int{"killed": n - 1, "killed-root": 0, "pair-killed": n - 1}
				dead, kills := victim[name]
				for rank, p := range startRanks(t, n, abstract(t), name) {
					err := p.Wait()
					if kills && rank == dead {
						require.ErrorContains(t, err, "killed")
						continue
					}
					assert.NoError(t, err, "rank %d: %s", rank, p.Stderr)
				}
			})
		}
	}
}

func startRanks(t *testing.T, n int, where, name string) []*exec.Cmd {
	t.Helper()
	var ps []*exec.Cmd
	for rank := range n {
		p := testkit.Child(name, bootstrap.EnvVars(rank, n, where, secret)...)
		p.Stderr = new(strings.Builder)
		require.NoError(t, p.Start())
		ps = append(ps, p)
	}
	return ps
}

func TestPerProcessNamesGlobalRanks(t *testing.T) {
	under := joinAll(t, 3, abstract(t))
	bs := perProcess(under, 2)
	for i, b := range bs {
		require.Equal(t, i, b.Rank())
		require.Equal(t, 6, b.Size())
	}
	err := together(bs, func(b bootstrap.Bootstrap) error {
		if b.Rank() == 3 { // the second rank of process 1
			time.Sleep(100 * time.Millisecond)
			b.Abort(4)
			return nil
		}
		_, err := b.AllGather(context.Background(), nil)
		e, ok := errors.AsType[*fault.Error](err)
		want := 3 // rank 2 shares the process
		if b.Rank() != 2 {
			want = 2 // the others know only the process, and name its first rank
		}
		if !ok || !errors.Is(err, fault.ErrAborted) || e.Rank != b.Rank() || e.Peer != want {
			return fmt.Errorf("rank %d: %v", b.Rank(), err)
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, together(bs, bootstrap.Bootstrap.Close))
}

func TestPerProcessWithDifferentNumbers(t *testing.T) {
	under := bootstrap.Local(2)
	bs := append(bootstrap.PerProcess(under[0], 2), bootstrap.PerProcess(under[1], 3)...)
	err := together(bs, func(b bootstrap.Bootstrap) error {
		if _, err := b.AllGather(context.Background(), nil); !errors.Is(err, fault.ErrMismatch) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, together(bs, bootstrap.Bootstrap.Close))
}

// A rank that has closed cannot take part any more, and ranks that wait for it learn that.
func TestCloseWhileOthersGather(t *testing.T) {
	for _, c := range []struct {
		name  string
		start func() []bootstrap.Bootstrap
		who   int
	}{
		{"local", func() []bootstrap.Bootstrap { return bootstrap.Local(3) }, 1},
		{"env", func() []bootstrap.Bootstrap { return joinAll(t, 3, abstract(t)) }, 1},
		{"env rank 0", func() []bootstrap.Bootstrap { return joinAll(t, 3, abstract(t)) }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bs := c.start()
			err := together(bs, func(b bootstrap.Bootstrap) error {
				if b.Rank() == c.who {
					return b.Close()
				}
				_, err := b.AllGather(context.Background(), nil)
				e, ok := errors.AsType[*fault.Error](err)
				if !ok || !errors.Is(err, fault.ErrPeerLost) || e.Peer != c.who {
					return fmt.Errorf("rank %d: %v", b.Rank(), err)
				}
				return b.Close()
			})
			require.NoError(t, err)
		})
	}
}

// When a deadline passes, all ranks that came name the missing rank, whichever rank's deadline it was.
func TestTimeoutNamesTheMissing(t *testing.T) {
	for _, k := range []struct {
		name    string
		start   func() []bootstrap.Bootstrap
		missing int
		group   int
	}{
		{"local", func() []bootstrap.Bootstrap { return bootstrap.Local(4) }, 2, 1},
		{"env", func() []bootstrap.Bootstrap { return joinAll(t, 4, abstract(t)) }, 2, 1},
		{"env rank 0", func() []bootstrap.Bootstrap { return joinAll(t, 4, abstract(t)) }, 0, 1},
		{"per process", func() []bootstrap.Bootstrap { return perProcess(joinAll(t, 3, abstract(t)), 2) }, 3, 2},
	} {
		for _, first := range []int{-1, 1} { // -1: all have a deadline; else only this rank
			if first >= 0 && k.group > 1 {
				continue // a rank that waits within its process hears nothing from others
			}
			t.Run(fmt.Sprintf("%s/%d", k.name, first), func(t *testing.T) {
				t.Parallel()
				for timeout := 250 * time.Millisecond; ; timeout *= 2 {
					if namesMissing(t, k.start(), k.missing, k.group, first, timeout) {
						return
					}
				}
			})
		}
	}
}

// namesMissing returns false if some rank was too slow to come within the timeout.
func namesMissing(t *testing.T, bs []bootstrap.Bootstrap, missing, group, first int, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	errs := make([]error, len(bs))
	var wg sync.WaitGroup
	for i, b := range bs {
		if i == missing {
			continue
		}
		wg.Go(func() {
			ctx := ctx
			if first >= 0 && i != first {
				ctx = context.Background()
			}
			_, errs[i] = b.AllGather(ctx, nil)
		})
	}
	wg.Wait()
	_, errs[missing] = bs[missing].AllGather(context.Background(), nil)
	require.NoError(t, together(bs, bootstrap.Bootstrap.Close))
	for i, err := range errs {
		e, ok := errors.AsType[*fault.Error](err)
		require.True(t, ok, "rank %d: %v", i, err)
		require.True(t, reason.TimedOut(err), "rank %d: %v", i, err)
		if first >= 0 && i != first || i == missing {
			require.ErrorIs(t, err, fault.ErrTimeout, "rank %d", i)
		}
		if i/group == missing/group && group > 1 {
			continue // these wait within their process, or only know that their process is named
		}
		if i != missing && e.Peer != missing && e.Peer != missing/group*group {
			t.Logf("rank %d after %v: %v", i, timeout, err)
			require.Less(t, timeout, testkit.Limit)
			return false
		}
	}
	return true
}

// If a rank's context had ended before it came, the others hear about that rank, in the first AllGather or a later one.
func TestContextEndedBefore(t *testing.T) {
	expired, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, k := range []struct {
		name  string
		start func() []bootstrap.Bootstrap
	}{
		{"local", func() []bootstrap.Bootstrap { return bootstrap.Local(3) }},
		{"env", func() []bootstrap.Bootstrap { return joinAll(t, 3, abstract(t)) }},
	} {
		for _, rounds := range []int{0, 1} {
			for _, ctx := range []context.Context{expired, canceled} {
				t.Run(fmt.Sprintf("%s/%d/%v", k.name, rounds, ctx.Err()), func(t *testing.T) {
					bs := k.start()
					for range rounds {
						require.NoError(t, together(bs, func(b bootstrap.Bootstrap) error {
							_, err := b.AllGather(t.Context(), nil)
							return err
						}))
					}
					want := fault.ErrPeerLost
					if ctx == expired {
						want = fault.ErrTimeout
					}
					errs := make([]error, len(bs))
					var wg sync.WaitGroup
					for _, i := range []int{0, 1} {
						wg.Go(func() { _, errs[i] = bs[i].AllGather(context.Background(), nil) })
					}
					_, errs[2] = bs[2].AllGather(ctx, nil)
					wg.Wait()
					require.ErrorIs(t, errs[2], ctx.Err())
					for _, err := range errs[:2] {
						require.ErrorIs(t, err, want)
						e, _ := errors.AsType[*fault.Error](err)
						require.Equal(t, 2, e.Peer, "%v", err)
					}
					require.NoError(t, together(bs, bootstrap.Bootstrap.Close))
				})
			}
		}
	}
}

// If a rank's context is cancelled while its process waits for others, the other ranks of the process hear that this
// rank gave up.
func TestCanceledAmongProcesses(t *testing.T) {
	bs := perProcess(joinAll(t, 2, abstract(t)), 2)
	ctx, cancel := context.WithCancel(context.Background())
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i, ctx := range []context.Context{context.Background(), ctx} {
		wg.Go(func() { _, errs[i] = bs[i].AllGather(ctx, nil) })
		time.Sleep(100 * time.Millisecond) // so that rank 1 comes last
	}
	cancel()
	wg.Wait()
	require.ErrorIs(t, errs[1], context.Canceled)
	require.ErrorIs(t, errs[0], fault.ErrPeerLost)
	require.NotErrorIs(t, errs[0], context.Canceled)
	e, _ := errors.AsType[*fault.Error](errs[0])
	require.Equal(t, 1, e.Peer)
	require.NoError(t, together(bs, bootstrap.Bootstrap.Close))
}

func TestCloseDuringAllGather(t *testing.T) {
	b := bootstrap.Local(2)[0]
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := b.AllGather(ctx, nil)
			done <- err
		}()
	}
	require.ErrorIs(t, <-done, fault.ErrBusy) // so the other call is under way
	require.ErrorIs(t, b.Close(), fault.ErrBusy)
	cancel()
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "waiting for rank 1")
	require.NoError(t, b.Close())
}
