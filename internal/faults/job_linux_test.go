package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// outcome is what a rank of a job of processes tells of it.
type outcome struct {
	Done int // calls that worked
	Took time.Duration
	Peer int // whom the error names; -1
	Lost bool
	Text string // "": no error
}

const calls = 200

// childJob is a rank of a job, which all-reduces until that fails.
func childJob() error {
	b, err := bootstrap.Env()
	if err != nil {
		return err
	}
	c, err := ubcoll.Open(context.Background(), b, ubcoll.Options{Timeout: testkit.Limit})
	if err != nil {
		return errors.Join(err, b.Close())
	}
	o, began, x := outcome{Peer: -1}, time.Now(), []int64{1}
	for err == nil && o.Done < calls {
		if err = coll.AllReduce(context.Background(), c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Max); err == nil {
			o.Done++
		}
	}
	o.Took = time.Since(began)
	if err != nil {
		o.Text, o.Lost = err.Error(), errors.Is(err, ubcoll.ErrPeerLost)
		if e, ok := errors.AsType[*ubcoll.Error](err); ok {
			o.Peer = e.Peer
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		return err
	}
	if _, err := os.Stdin.Read(make([]byte, 1)); err == nil { // the end of the test
		return errors.New("somebody writes to this process")
	}
	return errors.Join(c.Close(), b.Close())
}

// job starts a job of processes with a fault, and variables of each rank.
func job(t *testing.T, ranks int, text string, extra func(rank int) []string) (all []*testkit.Process) {
	t.Helper()
	at := fmt.Sprintf("unix:@ubcoll-faults-%d-%d", os.Getpid(), time.Now().UnixNano())
	for r := range ranks {
		vars := append(bootstrap.EnvVars(r, ranks, at, "the secret of the tests"), "UBCOLL_FAULT="+text, "UBCOLL_CUDA=off")
		all = append(all, testkit.Start(t, testkit.Child("job", append(vars, extra(r)...)...)))
	}
	return all
}

func none(int) []string { return nil }

func TestJobKill(t *testing.T) {
	const victim, after = 1, 100
	all := job(t, 3, fmt.Sprintf("kill:rank=%d,after=%d", victim, after), none)
	for r, p := range all {
		if r == victim {
			continue
		}
		var o outcome
		p.Read(t, &o)
		require.True(t, o.Lost, o.Text)
		require.Equal(t, victim, o.Peer, o.Text)
		require.Equal(t, after, o.Done)
	}
	var exit *exec.ExitError
	require.ErrorAs(t, all[victim].Cmd.Wait(), &exit)
	require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
}

// A rank that is stopped for a while holds the others up, and nothing else.
func TestJobStop(t *testing.T) {
	const pause = 300 * time.Millisecond
	for r, p := range job(t, 2, fmt.Sprintf("stop:rank=0,after=10,for=%v", pause), none) {
		var o outcome
		p.Read(t, &o)
		require.Equal(t, calls, o.Done, o.Text)
		if r == 0 { // rank 1 may begin later
			require.GreaterOrEqual(t, o.Took, pause)
		}
	}
}

// A rank that is cut off from other hosts is lost to them within the time limit, and they to it. Nobody says that a process has
// ended.
func TestJobCut(t *testing.T) {
	testkit.LongOrRace(t)
	const victim, after = 1, 20
	if err := filter(); err != nil {
		t.Skip("this machine lets users attach no filter to a socket:", err)
	}
	all := job(t, 3, fmt.Sprintf("cut:rank=%d,after=%d", victim, after), func(rank int) []string {
		return []string{fmt.Sprintf("UBCOLL_HOSTID=%d", rank), "UBCOLL_NET=lo", "UBCOLL_NET_TIMEOUT=1s", "UBCOLL_IB=off", "UBCOLL_OFI=off"}
	})
	for r, p := range all {
		var o outcome
		p.Read(t, &o)
		require.True(t, o.Lost, o.Text)
		require.Contains(t, o.Text, "do not reach each other")
		require.GreaterOrEqual(t, o.Took, time.Second/2) // the last acknowledgement may have come earlier
		if r != victim {
			require.Equal(t, victim, o.Peer, o.Text)
			require.LessOrEqual(t, o.Done, after)
		} else {
			require.Equal(t, after, o.Done)
		}
	}
}

// filter reports why this process may not attach a filter to a socket.
func filter() error {
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(s)
	none := unix.SockFilter{Code: unix.BPF_RET}
	return unix.SetsockoptSockFprog(s, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none})
}

func TestJobOfFewerRanks(t *testing.T) {
	t.Setenv("UBCOLL_FAULT", "kill:rank=0,after=1h;slow:rank=2,by=1ms")
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(context.Context, *ubcoll.Comm) error { return nil })
	require.ErrorIs(t, err, ubcoll.ErrArgument)
	require.ErrorContains(t, err, `UBCOLL_FAULT="kill:rank=0,after=1h;slow:rank=2,by=1ms": entry "slow:rank=2,after=0,by=1ms": rank 2 of a job of 2 ranks, from 0`)
}

// Goroutine ranks: a rank that is slow makes the others wait for it, as LastOp says.
func TestJobSlow(t *testing.T) {
	defer testkit.NoLeaks(t)()
	const by, n, slowed = 60 * time.Millisecond, 10, 5
	t.Setenv("UBCOLL_FAULT", fmt.Sprintf("slow:rank=1,by=%v,after=%d;stop:rank=0,after=1h", by, n-slowed))
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
		x, began, waited := make([]int64, 1<<14), time.Now(), time.Duration(0)
		for range n {
			if err := coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum); err != nil {
				return err
			}
			waited = max(waited, c.LastOp().Waited)
		}
		switch took := time.Since(began); {
		case c.Rank() == 0 && waited < by/2:
			return fmt.Errorf("rank 0 waited for %v at most", waited)
		case c.Rank() == 1 && took < slowed*by:
			return fmt.Errorf("rank 1 took %v", took)
		}
		return nil
	})
	require.NoError(t, err)
}

// A rank on one host alone has nothing to cut, and its job goes on.
func TestJobCutOnOneHost(t *testing.T) {
	t.Setenv("UBCOLL_FAULT", "cut:rank=0,after=2")
	log, told := logger()
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{Logger: log}, func(ctx context.Context, c *ubcoll.Comm) error {
		for range 5 {
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(told(), "nothing is cut, since all ranks are on one host"))
	require.Equal(t, 1, strings.Count(told(), "UBCOLL_FAULT is set"))
}
