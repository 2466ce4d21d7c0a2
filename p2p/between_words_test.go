//go:build cgo

package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// overWords runs f over the double, on two ranks of a host and one of another.
func overWords(t *testing.T, f conform.Suite) {
	t.Helper()
	t.Setenv("UBCOLL_IB", "on")
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
		defer testkit.NoLeaks(t)()
		require.NoError(t, conform.Block(2, 1).Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, f))
	})
}

// TestBetweenWords: the owners' devices do all atomics on the words of a window, those of the owner and of its host's other
// ranks, too. Over the double, whose atomics are none to a processor's.
func TestBetweenWords(t *testing.T) {
	overWords(t, func(ctx context.Context, c *ubcoll.Comm) error {
		const rounds = 500
		before := verbstest.Count(t, "work")
		if err := errors.Join(coll.Barrier(ctx, c), sums(ctx, c, rounds), coll.Barrier(ctx, c)); err != nil {
			return err
		}
		if work := verbstest.Count(t, "work") - before; work < 3*2*rounds {
			return conform.Fail(c, "%d work requests for %d atomics", work, 3*2*rounds)
		}
		return nil
	})
}

// TestBetweenWordsFallBack: whatever fails while queue pairs for atomics are made, all sums are exact, and nothing is left.
func TestBetweenWordsFallBack(t *testing.T) {
	overWords(t, func(ctx context.Context, c *ubcoll.Comm) error {
		for _, k := range []struct {
			call  string
			times int
		}{{"create_qp", 16}, {"create_cq", 16}, {"modify_qp", 40}, {"reg_mr", 8}} {
			step := 1
			if !testkit.Full() {
				step = 3
			}
			for n := 1; n <= k.times; n += step {
				fails := fmt.Sprintf("%s:%d:ENOMEM", k.call, n)
				if err := with(ctx, t, c, "FAIL", fails, func() error { return sums(ctx, c, 30) }); err != nil {
					return fmt.Errorf("%s: %w", fails, err)
				}
			}
		}
		return nil
	})
}

// with runs f while a knob is set.
func with(ctx context.Context, t *testing.T, c *ubcoll.Comm, knob, value string, f func() error) error {
	for _, do := range []func() error{func() error {
		if c.Rank() == 0 {
			verbstest.Set(t, knob, value)
		}
		return nil
	}, f, func() error {
		if c.Rank() == 0 {
			verbstest.Set(t, knob, "")
		}
		return nil
	}} {
		if err := errors.Join(coll.Barrier(ctx, c), do()); err != nil {
			return err
		}
	}
	return coll.Barrier(ctx, c)
}

// TestBetweenWordsLost: an atomic that a device has refused was not done, ErrStale; of one that has failed, or does not
// end, the outcome is unknown. Others go on, by the owner's process if the caller is on another host.
func TestBetweenWordsLost(t *testing.T) {
	overWords(t, func(ctx context.Context, c *ubcoll.Comm) error {
		for _, k := range []struct {
			caller, peer int
			status       string
			is           error
			unknown      bool
			after        bool // a later atomic succeeds
		}{
			{2, 0, "RETRY_EXC_ERR", ubcoll.ErrPeerLost, true, true},
			{2, 0, "FATAL_ERR", nil, true, true},
			{2, 0, "NEVER", context.DeadlineExceeded, true, false},
			{2, 0, "REM_ACCESS_ERR", ubcoll.ErrStale, false, false},
			{1, 0, "RETRY_EXC_ERR", ubcoll.ErrPeerLost, true, false},
			{1, 0, "NEVER", context.DeadlineExceeded, true, false},
			{0, 0, "FATAL_ERR", nil, true, false},
			{0, 0, "NEVER", context.DeadlineExceeded, true, false},
		} {
			b, err := ubcoll.Alloc[uint64](c, ubcoll.Host, 16)
			if err != nil {
				return err
			}
			w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
			if err != nil {
				return err
			}
			var failed, later error
			add := func() error {
				ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
				_, err := w.FetchAdd(ctx, k.peer, 8, 1)
				return err
			}
			if c.Rank() == k.caller {
				if err := add(); err != nil {
					return err
				}
			}
			if err := with(ctx, t, c, "STATUS", "FETCH_ADD:1:"+k.status, func() error {
				if c.Rank() == k.caller {
					failed = add()
				}
				return nil
			}); err != nil {
				return err
			}
			if c.Rank() == k.caller {
				later = add()
				switch says := fmt.Sprint(failed); {
				case failed == nil, k.is != nil && !errors.Is(failed, k.is), strings.Contains(says, "the outcome is unknown") != k.unknown:
					return conform.Fail(c, "%s: %v", k.status, failed)
				case (later == nil) != k.after:
					return conform.Fail(c, "%s: then: %v", k.status, later)
				}
			}
			if err := errors.Join(coll.Barrier(ctx, c), w.Close(), b.Free(), sums(ctx, c, 30)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestBetweenWordsOwner: a rank of another host whose queue pair has failed asks the owner's process. If its device then fails, the
// caller learns that the outcome is unknown; later atomics are refused, and not done by a processor.
func TestBetweenWordsOwner(t *testing.T) {
	overWords(t, func(ctx context.Context, c *ubcoll.Comm) error {
		b, err := ubcoll.Alloc[uint64](c, ubcoll.Host, 2)
		if err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
		if err != nil {
			return err
		}
		for i, k := range []struct {
			status, says string
		}{{"", ""}, {"RETRY_EXC_ERR", "the outcome is unknown"}, {"", ""}, {"FATAL_ERR", "the outcome is unknown"}, {"", "rank 0 refuses it"}} {
			status := k.status
			if status != "" {
				status = "FETCH_ADD:1:" + status
			}
			if err := with(ctx, t, c, "STATUS", status, func() error {
				if c.Rank() != 2 {
					return nil
				}
				_, err := w.FetchAdd(ctx, 0, 8, 1)
				if says := fmt.Sprint(err); (err == nil) != (k.says == "") || !strings.Contains(says, k.says) {
					return conform.Fail(c, "atomic %d: %s", i, says)
				}
				return nil
			}); err != nil {
				return err
			}
		}
		if c.Rank() == 0 && b.Slice()[1] != 2 {
			return conform.Fail(c, "the word is %d", b.Slice()[1])
		}
		return errors.Join(w.Close(), b.Free())
	})
}

// TestBetweenWordsClosed: who closes a window while all others change its words lets them see ErrStale, and nothing is
// changed afterwards.
func TestBetweenWordsClosed(t *testing.T) {
	overWords(t, func(ctx context.Context, c *ubcoll.Comm) error {
		for round := range 20 {
			owner := round % c.Size()
			b, err := ubcoll.Alloc[uint64](c, ubcoll.Host, 16)
			if err != nil {
				return err
			}
			w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
			if err != nil {
				return err
			}
			if c.Rank() == owner {
				for atomic.LoadUint64(&b.Slice()[3]) < uint64(10*(1+round)) {
					time.Sleep(100 * time.Microsecond)
				}
				if err := w.Close(); err != nil {
					return err
				}
				atomic.StoreUint64(&b.Slice()[3], 0)
			} else {
				for err == nil {
					_, err = w.FetchAdd(ctx, owner, 24, 1)
				}
				if !errors.Is(err, ubcoll.ErrStale) {
					return conform.Fail(c, "%w", err)
				}
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if c.Rank() == owner && b.Slice()[3] != 0 {
				return conform.Fail(c, "%d atomics after Close", b.Slice()[3])
			}
			if c.Rank() != owner {
				err = w.Close()
			}
			if err = errors.Join(err, b.Free()); err != nil && !errors.Is(err, ubcoll.ErrStale) {
				return err
			}
		}
		return nil
	})
}

// sums adds to words of all ranks from all ranks.
func sums(ctx context.Context, c *ubcoll.Comm, rounds int) error {
	b, err := ubcoll.Alloc[uint64](c, ubcoll.Host, 16)
	if err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for g := range errs {
		wg.Go(func() {
			for i := 0; i < rounds && errs[g] == nil; i++ {
				_, errs[g] = w.FetchAdd(ctx, i%c.Size(), 8, 3)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(append(errs, coll.Barrier(ctx, c))...); err != nil {
		return err
	}
	want := uint64(0)
	for i := range rounds {
		if i%c.Size() == c.Rank() {
			want += 2 * 3 * uint64(c.Size())
		}
	}
	if got := b.Slice()[1]; got != want {
		return conform.Fail(c, "the sum is %d, not %d", got, want)
	}
	return errors.Join(w.Close(), b.Free())
}
