package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func reduce(count int) team.Work {
	return team.Work{Kind: team.KindAllReduce, Type: dtype.Float32, Red: team.Sum, Count: count,
		Path: &team.Path{Name: "test"}}
}

// If one rank's call differs, all ranks return the same error, which names that rank, and nothing breaks.
func TestDisagreement(t *testing.T) {
	const most = "all_reduce(count 5, float32, sum)"
	other := func(change func(*team.Work)) team.Work { w := reduce(5); change(&w); return w }
	for _, c := range []struct {
		name string
		odd  team.Work
		text string
	}{
		{"count", reduce(6), "all_reduce(count 6, float32, sum)"},
		{"the largest count", reduce(team.MaxCount), fmt.Sprintf("all_reduce(count %d, float32, sum)", team.MaxCount)},
		{"type", other(func(w *team.Work) { w.Type = dtype.Int32 }), "all_reduce(count 5, int32, sum)"},
		{"reduction", other(func(w *team.Work) { w.Red = team.Max }), "all_reduce(count 5, float32, max)"},
		{"root", other(func(w *team.Work) { w.Root = 3 }), "all_reduce(count 5, float32, sum, root 3)"},
		{"operation", team.Work{Kind: team.KindBarrier, Type: dtype.Float32, Path: new(team.Path)}, "barrier"},
	} {
		for _, n := range testkit.Sample(4, []int{3, 2, 4, 18}) {
			t.Run(fmt.Sprintf("%s/ranks=%d", c.name, n), func(t *testing.T) {
				comms := enginetest.Open(t, n, engine.Options{})
				for odd := range n {
					ran := atomic.Int32{}
					errs := testkit.Each(comms, func(cm *engine.Comm) error {
						w := reduce(5)
						if cm.Rank() == odd {
							w = c.odd
						}
						w.Path.Run = func(context.Context, *team.Team, *team.Work) error { ran.Add(1); return nil }
						return enginetest.Run(background, cm, w)
					})
					about, text := odd, fmt.Sprintf("rank %d called %s, %d of %d ranks %s", odd, c.text, n-1, n, most)
					if n == 2 {
						text = fmt.Sprintf("rank %d called %s, rank %d %s", odd, c.text, 1-odd, most)
					}
					if n == 2 && odd == 0 { // one against one: rank 0 counts as the majority
						about, text = 1, fmt.Sprintf("rank 1 called %s, rank 0 %s", most, c.text)
					}
					for r, err := range errs {
						require.ErrorIs(t, err, fault.ErrMismatch)
						require.ErrorContains(t, err, text)
						var e *fault.Error
						require.ErrorAs(t, err, &e)
						require.Equal(t, []int{r, about}, []int{e.Rank, e.Peer})
						require.Equal(t, comms[r].LastOp().Seq, e.Seq)
						require.Equal(t, "agree", e.Step)
					}
					require.Zero(t, ran.Load(), "nothing is moved without agreement")
					requireUsable(t, comms)
				}
			})
		}
	}
	t.Run("all different", func(t *testing.T) {
		comms := enginetest.Open(t, 3, engine.Options{})
		for _, err := range testkit.Each(comms, func(c *engine.Comm) error { return enginetest.Run(background, c, reduce(c.Rank())) }) {
			require.ErrorContains(t, err, "rank 1 called all_reduce(count 1, float32, sum), rank 0 all_reduce(count 0,")
		}
	})
	t.Run("two against two", func(t *testing.T) {
		comms := enginetest.Open(t, 4, engine.Options{})
		for _, err := range testkit.Each(comms, func(c *engine.Comm) error { return enginetest.Run(background, c, reduce(c.Rank()/2)) }) {
			require.ErrorContains(t, err, "rank 2 called all_reduce(count 1, float32, sum), 2 of 4 ranks all_reduce(count 0,")
		}
	})
	t.Run("rank 0 against the others", func(t *testing.T) {
		comms := enginetest.Open(t, 4, engine.Options{})
		for _, err := range testkit.Each(comms, func(c *engine.Comm) error { return enginetest.Run(background, c, reduce(min(c.Rank(), 1))) }) {
			require.ErrorContains(t, err, "rank 0 called all_reduce(count 0, float32, sum), 3 of 4 ranks all_reduce(count 1,")
		}
	})
}

// A rank whose own arguments are bad tells the others so, and why.
func TestRefusal(t *testing.T) {
	var reasons []error
	for _, s := range engine.Refusals {
		reasons = append(reasons, fmt.Errorf("what is wrong: %w", s))
	}
	for _, n := range testkit.Sample(4, []int{3, 2, 4, 18}) {
		comms := enginetest.Open(t, n, engine.Options{})
		for i, why := range append(reasons, errors.New("none of the sentinels")) {
			t.Run(fmt.Sprintf("ranks=%d/%v", n, why), func(t *testing.T) {
				odd := i % n
				for _, inAcquire := range []bool{false, true} {
					errs := testkit.Each(comms, func(c *engine.Comm) error {
						w := reduce(5)
						if c.Rank() == odd && inAcquire {
							w.Path.Acquire = func(*team.Team, *team.Work) error { return why }
						} else if c.Rank() == odd {
							w.Err = why
						}
						w.Path.Run = func(context.Context, *team.Team, *team.Work) error { return errors.New("it ran") }
						return enginetest.Run(background, c, w)
					})
					for r, err := range errs {
						var e *fault.Error
						require.ErrorAs(t, err, &e)
						require.ErrorContains(t, err, why.Error())
						if r == odd {
							require.ErrorIs(t, err, why)
							require.Equal(t, -1, e.Peer)
							continue
						}
						require.Equal(t, odd, e.Peer)
						require.ErrorContains(t, err, fmt.Sprintf("rank %d refused: %v", odd, why))
						for k, s := range engine.Refusals {
							require.Equal(t, k == i, errors.Is(err, s), "%v", s)
						}
					}
					requireUsable(t, comms)
				}
			})
		}
	}
	t.Run("two refuse", func(t *testing.T) {
		comms := enginetest.Open(t, 3, engine.Options{})
		errs := testkit.Each(comms, func(c *engine.Comm) error {
			w := reduce(5)
			if c.Rank() > 0 {
				w.Err = fmt.Errorf("bad on rank %d: %w", c.Rank(), fault.ErrArgument)
			}
			return enginetest.Run(background, c, w)
		})
		require.ErrorContains(t, errs[0], "rank 1 refused: bad on rank 1")
		require.ErrorContains(t, errs[1], "bad on rank 1")
		require.ErrorContains(t, errs[2], "bad on rank 2")
	})
	t.Run("at length", func(t *testing.T) {
		comms := enginetest.Open(t, 2, engine.Options{})
		errs := testkit.Each(comms, func(c *engine.Comm) error {
			w := reduce(5)
			if c.Rank() == 1 {
				w.Err = errors.New(strings.Repeat("long ", 1000))
			}
			return enginetest.Run(background, c, w)
		})
		require.ErrorContains(t, errs[0], strings.Repeat("long ", 90))
		require.Less(t, len(errs[0].Error()), 1000)
		requireUsable(t, comms)
	})
	t.Run("a context that has ended", func(t *testing.T) {
		comms := enginetest.Open(t, 2, engine.Options{})
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(background)
		cancel(cause)
		errs := testkit.Each(comms, func(c *engine.Comm) error {
			if c.Rank() == 1 {
				return enginetest.Run(ctx, c, reduce(5))
			}
			return enginetest.Run(background, c, reduce(5))
		})
		require.ErrorIs(t, errs[1], context.Canceled)
		require.ErrorIs(t, errs[1], cause)
		require.ErrorIs(t, errs[0], context.Canceled)
		require.ErrorContains(t, errs[0], "rank 1 refused: context canceled: enough")
		requireUsable(t, comms)
	})
	t.Run("forged", func(t *testing.T) { // by a peer that writes arbitrary values
		comms := enginetest.Open(t, 2, engine.Options{})
		comms[1].ForgeRefusal(math.MaxUint64, math.MaxUint64)
		err := enginetest.Barrier(comms[0])
		require.ErrorContains(t, err, "rank 1 refused")
	})
}

// Data that travels with the descriptor is there after agreement, and an error of Check breaks nothing.
func TestOfferAndCheck(t *testing.T) {
	comms := enginetest.Open(t, 3, engine.Options{})
	payload := func(c *team.Team, r int) *uint64 { return (*uint64)(c.Payload(r)) }
	eager := func(c *team.Team, r int) []byte { return unsafe.Slice((*byte)(c.Eager(r)), team.EagerBytes) }
	for i := range 200 {
		errs := testkit.Each(comms, func(c *engine.Comm) error {
			w := reduce(5)
			w.Path.Offer = func(c *team.Team, w *team.Work) {
				*payload(c, c.Rank()) = uint64(i*10 + c.Rank())
				copy(eager(c, c.Rank()), fmt.Sprintf("%d of %d", i, c.Rank()))
			}
			w.Path.Check = func(c *team.Team, w *team.Work) (int, error) {
				for r := range c.Size() {
					if got := *payload(c, r); got != uint64(i*10+r) {
						return r, fmt.Errorf("payload %d", got)
					}
					if want := fmt.Sprintf("%d of %d", i, r); string(eager(c, r)[:len(want)]) != want {
						return r, fmt.Errorf("eager %q", eager(c, r)[:len(want)])
					}
				}
				if i%10 == 9 {
					return 1, fault.ErrMismatch
				}
				return -1, nil
			}
			w.Path.Run = func(context.Context, *team.Team, *team.Work) error { return nil }
			return enginetest.Run(background, c, w)
		})
		for _, err := range errs {
			if i%10 != 9 {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, fault.ErrMismatch)
			var e *fault.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, 1, e.Peer)
		}
	}
	requireUsable(t, comms)
}

// pass makes each rank hand a number to its right neighbour, through its staging memory.
func pass(x uint64) team.Work {
	w := reduce(1)
	w.Path.Name = "pass"
	w.Path.Run = func(ctx context.Context, c *team.Team, w *team.Work) error {
		n := c.Size()
		left, right := (c.Rank()+n-1)%n, (c.Rank()+1)%n
		at := func(r int) *uint64 { return (*uint64)(c.Staging(r)) }
		*at(c.Rank()) = x + uint64(c.Rank())
		c.Progress(1)
		if err := c.WaitProgress(ctx, left, 1, "pass"); err != nil {
			return err
		}
		if got := *at(left); got != x+uint64(left) {
			return fmt.Errorf("%d from rank %d, not %d", got, left, x+uint64(left))
		}
		c.Progress(2)
		return c.WaitProgress(ctx, right, 2, "exit")
	}
	return w
}

func TestProgress(t *testing.T) {
	comms := enginetest.Open(t, 3, engine.Options{})
	errs := testkit.Each(comms, func(c *engine.Comm) error {
		for i := range 300 {
			if err := enginetest.Run(background, c, pass(uint64(i*100))); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, errors.Join(errs...))
}

// After 1<<32 operations (hours of small ones) progress words wrap around.
func TestProgressWrapsAround(t *testing.T) {
	comms := enginetest.Open(t, 3, engine.Options{})
	for _, skip := range []uint64{1<<31 - 4, 1<<31 - 4, 1<<31 - 4, 1 << 31} {
		for _, c := range comms {
			for range 2 { // a rank's word never jumps by half the range
				c.Skip(skip / 2)
				c.Team().Progress(0)
			}
		}
		errs := testkit.Each(comms, func(c *engine.Comm) error {
			for i := range 8 {
				if err := enginetest.Run(background, c, pass(uint64(i*100)+skip)); err != nil {
					return fmt.Errorf("operation %d: %w", c.LastOp().Seq, err)
				}
			}
			return nil
		})
		require.NoError(t, errors.Join(errs...))
	}
}

// If a rank's operations made no progress for long, because they were small, the next operation must not seem to have
// made any.
func TestProgressIsNotTooOld(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{})
	errs := testkit.Each(comms, func(c *engine.Comm) error {
		for range 1<<11 + 1 {
			c.Skip(1<<20 - 2)
			if err := errors.Join(enginetest.Barrier(c), enginetest.Barrier(c)); err != nil { // two, because slots alternate
				return err
			}
		}
		w := pass(5)
		run1 := w.Path.Run
		w.Path.Run = func(ctx context.Context, c *team.Team, w *team.Work) error {
			time.Sleep(time.Duration(c.Rank()) * 50 * time.Millisecond)
			return run1(ctx, c, w)
		}
		return enginetest.Run(background, c, w)
	})
	require.NoError(t, errors.Join(errs...))
}

func stepOf(err error) string {
	e, _ := errors.AsType[*fault.Error](err)
	return e.Step
}

// A failing algorithm breaks the communicator, on all ranks.
func TestRunFails(t *testing.T) {
	comms := enginetest.Open(t, 3, engine.Options{})
	broken := errors.New("broken")
	errs := testkit.Each(comms, func(c *engine.Comm) error {
		w := pass(7)
		if c.Rank() == 1 {
			w.Path.Run = func(context.Context, *team.Team, *team.Work) error { return broken }
		}
		return enginetest.Run(background, c, w)
	})
	require.ErrorIs(t, errs[1], broken)
	require.Equal(t, "pass", stepOf(errs[1]))
	for _, r := range []int{0, 2} {
		require.ErrorIs(t, errs[r], fault.ErrAborted)
		require.ErrorContains(t, errs[r], "rank 1 failed: broken")
	}
	for r, c := range comms {
		require.Equal(t, errs[r], c.Err())
		require.Equal(t, errs[r], enginetest.Barrier(c), "what follows says the same")
	}
}

// A peer's descriptor may contain anything: impossible values are errors, and cause no access.
func TestForgedBuffer(t *testing.T) {
	for name, l := range map[string]mem.Location{
		"no such arena":   {Arena: 1000, Slot: 1000, Generation: 1},
		"no such offset":  {Generation: 1 << 40, Offset: 1 << 40},
		"an offset below": {Generation: 1 << 40, Offset: math.MaxUint64 - 8},
	} {
		t.Run(name, func(t *testing.T) {
			comms := enginetest.Open(t, 2, engine.Options{})
			errs := testkit.Each(comms, func(c *engine.Comm) error {
				w := reduce(1)
				w.Path.Run = func(ctx context.Context, c *team.Team, w *team.Work) error {
					if c.Rank() == 1 {
						engine.ForgeSource(c, l)
						c.Progress(1)
						return c.WaitProgress(ctx, 0, 1, "exit")
					}
					if err := c.WaitProgress(ctx, 1, 1, "forged"); err != nil {
						return err
					}
					if !c.Direct(1) {
						return errors.New("it was not forged")
					}
					if p, err := c.Source(1, 0, 4096); err == nil {
						return fmt.Errorf("a source at %p", p)
					}
					_, _, _, err := c.Buffers(4096, 0)
					return err
				}
				return enginetest.Run(background, c, w)
			})
			require.ErrorIs(t, errs[0], fault.ErrStale)
			require.Equal(t, "import", stepOf(errs[0]))
			require.ErrorIs(t, errs[1], fault.ErrAborted)
		})
	}
}

func TestLastOpAndStats(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{})
	x := make([]float32, 100)
	v := team.Vec{Ptr: unsafe.Pointer(&x[0]), Len: 100, Type: dtype.Float32}
	for _, bad := range []error{nil, fault.ErrArgument} {
		for _, err := range testkit.Each(comms, func(c *engine.Comm) error {
			w := reduce(100)
			w.Src, w.Dst, w.Algorithm, w.Err = v, v, "copy", bad
			w.SrcBuf.Why, w.DstBuf.Why = "Go memory", "Go memory"
			return errors.Join(enginetest.Run(background, c, w), enginetest.Barrier(c))
		}) {
			require.ErrorIs(t, err, bad)
		}
	}
	c := comms[0]
	require.Equal(t, uint64(4), c.LastOp().Seq)
	require.Equal(t, "barrier", c.LastOp().Op())
	s := c.Stats()
	require.Equal(t, []uint64{4, 800, 2}, []uint64{s.Operations, s.Bytes, s.Staged}, "failed ones included")
	require.Equal(t, 1, s.Memory.Allocations)
	for _, err := range testkit.Each(comms, func(c *engine.Comm) error {
		w := reduce(100)
		w.Src, w.Dst, w.Algorithm = v, v, "copy"
		w.SrcBuf.Why, w.DstBuf.Why = "Go memory", "Go memory"
		return enginetest.Run(background, c, w)
	}) {
		require.NoError(t, err)
	}
	require.Equal(t, "all_reduce #5: copy, 400 bytes; source: staged: Go memory; destination: staged: Go memory",
		c.LastOp().Text("all_reduce"))
}

func TestManyOperations(t *testing.T) {
	comms := enginetest.Open(t, 4, engine.Options{Timeout: time.Minute})
	errs := testkit.Each(comms, func(c *engine.Comm) error {
		for range 500 {
			if err := enginetest.Barrier(c); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, uint64(500), comms[3].LastOp().Seq)
}
