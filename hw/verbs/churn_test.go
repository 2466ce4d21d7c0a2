//go:build linux && cgo && (amd64 || arm64)

package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestChurn registers and deregisters 1000 times while other regions of the same device carry traffic: no byte is
// wrong, and afterwards the kernel counts as many regions, queue pairs and descriptors as before.
func TestChurn(t *testing.T) {
	d := device(t)
	before, files := resources(t, d.Name()), openFiles(t)
	t.Run("traffic", func(t *testing.T) {
		a, b := newEnd(t, d, config{}), newEnd(t, d, config{})
		connect(t, a, b)
		src, dst := memory(t, 64<<10), memory(t, 64<<10)
		mine, theirs := a.register(t, src, verbs.LocalWrite), b.register(t, dst, verbs.LocalWrite|verbs.Remote)
		stop := make(chan struct{})
		var churn sync.WaitGroup
		const goroutines, rounds = 2, 1000
		for g := range goroutines {
			m := memory(t, 256<<10)
			churn.Go(func() {
				for i := range rounds / goroutines {
					n := 4096 * (1 + (i*7+g)%64)
					r, err := a.pd.Register(address(m)+uintptr(i%100), n-100, verbs.LocalWrite|verbs.Remote)
					if err != nil {
						t.Error(err)
						return
					}
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		go func() { churn.Wait(); close(stop) }()
		sent := 0
		for running := true; running; sent++ {
			select {
			case <-stop:
				running = false
			default:
			}
			n := 1 + (sent*977)%len(src)
			pattern(src[:n], byte(sent))
			require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, n)))
			require.True(t, bytes.Equal(src[:n], dst[:n]), "write %d of %d bytes", sent, n)
		}
		t.Logf("%d registrations beside %d writes", rounds, sent)
	})
	require.Equal(t, files, openFiles(t))
	require.Equal(t, before, resources(t, d.Name()))
}

// TestCloseBeside closes everything while goroutines use it: they end with ErrClosed and no other error.
func TestCloseBeside(t *testing.T) {
	name := device(t).Name()
	m := memory(t, 4096)
	for range 3 {
		d, err := verbs.Open(name)
		require.NoError(t, err)
		pd, err := d.AllocPD()
		require.NoError(t, err)
		channel, err := d.CreateChannel()
		require.NoError(t, err)
		cq, err := d.CreateCQ(64, channel)
		require.NoError(t, err)
		qp, err := pd.CreateQP(verbs.QPConfig{Send: cq, Receive: cq, Work: 16, Receives: 16})
		require.NoError(t, err)
		self, err := qp.Init(verbs.DefaultPath(), verbs.LocalWrite|verbs.Remote)
		require.NoError(t, err)
		require.NoError(t, qp.Connect(self, "itself"))
		mr, err := pd.Register(address(m), len(m), verbs.LocalWrite|verbs.Remote)
		require.NoError(t, err)
		soon := func(wait func(context.Context) error) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			return wait(ctx)
		}
		next := func(ctx context.Context) error { _, err := d.NextEvent(ctx); return err }

		var users sync.WaitGroup
		for _, use := range []func() error{
			func() error { _, err := qp.Post(work(verbs.Write, mr, mr, 8)); return err },
			func() error { _, err := qp.PostReceive(verbs.Receive{}); return err },
			func() error { _, err := qp.State(); return err },
			func() error {
				var c [4]verbs.Completion
				n, err := cq.Poll(c[:], 10)
				for i := range n {
					_ = cq.Failure(&c[i])
				}
				return err
			},
			func() error { return cq.Notify(false) },
			func() error { return channel.Wait(context.Background()) },
			func() error { return soon(channel.Wait) },
			func() error { return next(context.Background()) },
			func() error { return soon(next) },
			func() error {
				if channel.FD() < 0 {
					return fault.ErrClosed
				}
				return nil
			},
			func() error { _, err := d.Port(1); return err },
			func() error {
				r, err := pd.Register(address(m), 100, 0)
				if err == nil {
					err = r.Close()
				}
				return err
			},
		} {
			for range 2 {
				users.Go(func() {
					for {
						err := use()
						if errors.Is(err, fault.ErrClosed) {
							return
						}
						// A full queue and a wait that was cut short are expected.
						if err != nil && !errors.Is(err, fault.ErrLimit) && !errors.Is(err, context.DeadlineExceeded) {
							t.Error(err)
							return
						}
						time.Sleep(100 * time.Microsecond) // so that objects are closed and made again now and then
					}
				})
			}
		}
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, qp.Fail())
		for _, c := range []func() error{qp.Close, cq.Close, channel.Close, mr.Close, pd.Close, d.Close} {
			require.Eventually(t, func() bool { err := c(); return err == nil || !errors.Is(err, fault.ErrInUse) }, testkit.Limit, time.Millisecond)
			require.ErrorIs(t, c(), fault.ErrClosed)
		}
		users.Wait()
	}
}

// resources returns what the kernel counts for a device; "" over the double, whose counts TestDouble checks.
func resources(t *testing.T, device string) string {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show", device).CombinedOutput()
	if err != nil {
		if overDouble() {
			return ""
		}
		t.Fatalf("rdma resource show %s: %v: %s", device, err, out)
	}
	// The counts include the kernel's own queue pairs and regions, which stay.
	return regexp.MustCompile(`\s+`).ReplaceAllString(string(out), " ")
}
