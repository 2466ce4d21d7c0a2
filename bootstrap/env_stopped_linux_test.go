package bootstrap_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// stoppedPart is more in all than sockets hold, so that whoever sends to a stopped process has to wait.
const stoppedPart = 8 << 20

func init() { systemChildren["to be stopped"] = toBeStopped }

// toBeStopped is a rank that says when it comes, and makes two all-gathers.
func toBeStopped() error {
	b, err := bootstrap.Env()
	if err != nil {
		return err
	}
	defer b.Close()
	for range 2 {
		fmt.Println(strconv.Quote("here"))
		if _, err := b.AllGather(context.Background(), make([]byte, stoppedPart)); err != nil {
			fmt.Println(strconv.Quote(err.Error()))
			return err
		}
	}
	fmt.Println(strconv.Quote("done"))
	return nil
}

// A process that is stopped is not lost, whether it is idle or reads nothing of what is sent to it, for however many
// times the limit.
func TestEnvStopped(t *testing.T) {
	testkit.Long(t)
	t.Setenv("UBCOLL_NET_TIMEOUT", "1s")
	for _, stopped := range []int{1, 0} {
		t.Run(fmt.Sprint("rank ", stopped), func(t *testing.T) {
			where := freePort(t)
			p := testkit.Start(t, testkit.Child("to be stopped", bootstrap.EnvVars(stopped, 3, where, secret)...))
			bs, errs := make([]bootstrap.Bootstrap, 3), make([]error, 3)
			var all sync.WaitGroup
			each := func(f func(rank int) error) {
				for rank := range bs {
					if rank != stopped {
						all.Go(func() { errs[rank] = f(rank) })
					}
				}
			}
			each(func(rank int) (err error) {
				bs[rank], err = bootstrap.Join(rank, 3, where, secret, testkit.Limit)
				return err
			})
			all.Wait()
			requireNone(t, errs)
			var word string
			p.Read(t, &word)
			gather := func(rank int) error {
				_, err := bs[rank].AllGather(t.Context(), make([]byte, stoppedPart))
				return err
			}
			each(gather)
			p.Read(t, &word)
			require.Equal(t, "here", word) // so it waits, or is about to
			all.Wait()
			requireNone(t, errs)
			testkit.Stop(t, p.Cmd)
			each(gather)
			time.Sleep(5 * time.Second)
			require.NoError(t, p.Cmd.Process.Signal(syscall.SIGCONT))
			p.Read(t, &word)
			require.Equal(t, "done", word)
			all.Wait()
			requireNone(t, errs)
			each(func(rank int) error { return bs[rank].Close() })
			all.Wait()
			requireNone(t, errs)
		})
	}
}

func requireNone(t *testing.T, errs []error) {
	t.Helper()
	for rank, err := range errs {
		require.NoError(t, err, "rank %d", rank)
	}
}
