package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/membership"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// end is when a rank ends: after so many Shrinks, and then so many calls, at a step of another Shrink.
type end struct {
	shrinks, calls int
	step           membership.Step // Idle: before it says anything
}

// lives is what a rank does until its end, if it has one: it exchanges ranks with the others, and shrinks the communicator
// whenever that breaks, until it is left with those that have no end.
type lives struct {
	rank int
	end  *end
	left []int

	seen map[uint64][]int // by communicator: its ranks
	took []time.Duration
}

func (l *lives) run(c *engine.Comm) (err error) {
	for shrinks := 0; ; shrinks++ {
		for calls := 0; ; calls++ {
			if e := l.end; e != nil && (e.shrinks <= shrinks && e.calls <= calls || calls > 5) { // perhaps nobody ends before
				return c.ShrinkThatEnds(e.step)
			}
			all, err := c.Exchange(background, team.KindSplit, []byte{byte(l.rank)}, nil)
			if err != nil {
				break
			}
			var members []int
			for _, b := range all {
				members = append(members, int(b[0]))
			}
			l.seen[c.Team().ID()] = members
			if slices.Equal(members, l.left) {
				return c.Close()
			}
		}
		if c.Err() == nil {
			return errors.New("an operation has failed, and has not broken the communicator")
		}
		if e := l.end; e != nil && e.shrinks <= shrinks {
			return c.ShrinkThatEnds(e.step)
		}
		start := time.Now()
		child, err := c.Shrink(background)
		if err != nil {
			return err
		}
		l.took = append(l.took, time.Since(start))
		if err := c.Close(); err != nil {
			return err
		}
		c = child
	}
}

// TestShrink ends random ranks at random times, also in Shrink at each of its steps: those that are left end with the same
// communicators, the last of them theirs alone, and nothing else is left.
func TestShrink(t *testing.T) {
	t.Setenv(env.Net.Name, "lo")
	r := testkit.Random(t)
	var took []time.Duration
	for round := range testkit.Often(1000) {
		n := 2 + r.IntN(7)
		layout := "one host"
		bs := bootstrap.Local(n)
		last := membership.Mapped
		if round%4 == 1 { // these take long
			on := make([]int, n)
			for i := range on {
				on[i] = r.IntN(3)
			}
			if layout = fmt.Sprint("hosts ", on); slices.Max(on) > slices.Min(on) {
				last = membership.Connected
			}
			bs = enginetest.Hosts(bs, func(rank int) string { return fmt.Sprint("host ", on[rank]) })
		}
		comms, errs := openEach(bs, usual, usualIPC)
		require.NoError(t, errors.Join(errs...))
		all := make([]*lives, n)
		order := r.Perm(n)
		victims := order[:1+r.IntN(n-1)]
		var left []int
		for i := range n {
			all[i] = &lives{rank: i, seen: map[uint64][]int{}}
			if slices.Contains(victims, i) {
				all[i].end = &end{r.IntN(2), r.IntN(3), membership.Step(r.IntN(int(last) + 1))}
			} else {
				left = append(left, i)
			}
		}
		slices.Sort(left)
		for _, l := range all {
			l.left = left
		}
		var wg sync.WaitGroup
		for i, l := range all {
			wg.Go(func() { errs[i] = l.run(comms[i]) })
		}
		wg.Wait()
		for i, l := range all {
			what := fmt.Sprintf("round %d: rank %d of %d, %s, left %v, its end %v", round, i, n, layout, left, l.end)
			require.NoError(t, errs[i], what)
			for id, members := range l.seen {
				require.True(t, slices.IsSorted(members), what)
				if other, ok := all[left[0]].seen[id]; ok && l.end == nil {
					require.Equal(t, other, members, what)
				}
			}
			took = append(took, l.took...)
		}
	}
	slices.Sort(took)
	t.Logf("%d Shrinks, median %v, the longest %v", len(took), took[len(took)/2], took[len(took)-1])
}

// shrunk calls Shrink on some ranks, and returns what each got.
func shrunk(ranks []*engine.Comm, ctx func(c *engine.Comm) context.Context) (children []*engine.Comm, errs []error) {
	children = make([]*engine.Comm, len(ranks))
	errs = make([]error, len(ranks))
	var wg sync.WaitGroup
	for i, c := range ranks {
		wg.Go(func() { children[i], errs[i] = c.Shrink(ctx(c)) })
	}
	wg.Wait()
	return children, errs
}

func noLimit(*engine.Comm) context.Context { return background }

// onBoth runs a test with ranks of one host, and of two, every second rank of each.
func onBoth(t *testing.T, n int, o engine.Options, f func(t *testing.T, comms []*engine.Comm)) {
	t.Setenv(env.Net.Name, "lo")
	for hosts := 1; hosts <= 2; hosts++ {
		t.Run(fmt.Sprintf("hosts=%d", hosts), func(t *testing.T) {
			comms, errs := enginetest.OpenOver(enginetest.Hosts(bootstrap.Local(n), func(r int) string { return fmt.Sprint(r % hosts) }), o)
			require.NoError(t, errors.Join(errs...))
			f(t, comms)
			for _, c := range comms {
				if err := c.Close(); !errors.Is(err, fault.ErrClosed) {
					require.NoError(t, err)
				}
			}
		})
	}
}

// Shrink of a communicator that all ranks still have breaks it, and makes another one. It can be called again.
func TestShrinkWhole(t *testing.T) {
	onBoth(t, 3, engine.Options{}, func(t *testing.T, comms []*engine.Comm) {
		for range 2 {
			children, errs := shrunk(comms, noLimit)
			require.NoError(t, errors.Join(errs...))
			requireUsable(t, children)
			for r, c := range children {
				require.Equal(t, []int{r, 3}, []int{c.Rank(), c.Size()})
				require.ErrorIs(t, comms[r].Err(), fault.ErrAborted)
				require.NoError(t, c.Close())
			}
		}
		require.Equal(t, "shrink", comms[0].Err().(*fault.Error).Op)
	})
}

// Shrink of communicators that Split has made, at the same time: each is of its own ranks, in their order there.
func TestShrinkSplit(t *testing.T) {
	onBoth(t, 8, engine.Options{}, func(t *testing.T, comms []*engine.Comm) {
		halves := make([]*engine.Comm, len(comms))
		errs := testkit.Each(comms, func(c *engine.Comm) (err error) {
			halves[c.Rank()], err = c.Split(background, c.Rank()/4, -c.Rank(), engine.Options{})
			return err
		})
		require.NoError(t, errors.Join(errs...))
		// With two hosts nobody of rank 0's second host is left, and could say that the others there have closed it.
		require.NoError(t, errors.Join(halves[1].Close(), halves[3].Close(), halves[4].Close()))
		left := []*engine.Comm{halves[0], halves[2], halves[5], halves[6], halves[7]}
		children, errs := shrunk(left, noLimit)
		require.NoError(t, errors.Join(errs...))
		errs = testkit.Each(children, func(c *engine.Comm) error {
			all, err := c.Exchange(background, team.KindSplit, []byte{byte(c.InJob(c.Rank()))}, nil)
			if err == nil && !slices.IsSortedFunc(all, func(a, b []byte) int { return int(b[0]) - int(a[0]) }) {
				err = fmt.Errorf("members %v", all)
			}
			return err
		})
		require.NoError(t, errors.Join(errs...))
		for i, c := range children {
			require.Equal(t, map[bool]int{true: 2, false: 3}[i < 2], c.Size())
			require.NoError(t, errors.Join(left[i].Close(), c.Close()))
		}
		requireUsable(t, comms) // which is not broken
	})
}

// Buffers, and registrations of the old communicator, serve the new one.
func TestShrinkMemory(t *testing.T) {
	comms := enginetest.Open(t, 3, engine.Options{})
	v, reg := enginetest.Registered(t, comms[0], 4096)
	require.NoError(t, comms[2].Close())
	children, errs := shrunk(comms[:2], noLimit)
	require.NoError(t, errors.Join(errs...))
	_, err := children[0].RegisterBuffer(v)
	require.NoError(t, err)
	require.EqualValues(t, 1, children[0].Stats().Cache.Regions)
	require.NoError(t, reg.Close())
	require.NoError(t, comms[0].Close())
	require.EqualValues(t, 1, children[0].Stats().Cache.Regions)
	requireUsable(t, children)
	for _, c := range children {
		require.NoError(t, c.Close())
	}
}

// A rank that does not come is waited for until the time limit, or until one rank's context ends. All others get the same
// reason, and can try again with it.
func TestShrinkMissing(t *testing.T) {
	cancelled := func(c *engine.Comm) context.Context {
		if c.Rank() != 0 {
			return background
		}
		ctx, cancel := context.WithCancel(background)
		time.AfterFunc(50*time.Millisecond, cancel)
		return ctx
	}
	for _, k := range []struct {
		name    string
		timeout time.Duration
		ctx     func(c *engine.Comm) context.Context
		want    error
	}{
		{"timeout", 200 * time.Millisecond, noLimit, fault.ErrTimeout},
		{"context", testkit.Limit, cancelled, context.Canceled},
	} {
		t.Run(k.name, func(t *testing.T) {
			onBoth(t, 4, engine.Options{Timeout: k.timeout}, func(t *testing.T, comms []*engine.Comm) {
				require.NoError(t, comms[3].Close())
				_, errs := shrunk([]*engine.Comm{comms[0], comms[2]}, k.ctx)
				for i, err := range errs {
					e, ok := errors.AsType[*fault.Error](err)
					require.True(t, ok, "%v", err)
					require.ErrorIs(t, err, k.want)
					require.Equal(t, []any{"shrink", 2 * i, 1}, []any{e.Op, e.Rank, e.Peer}, "%v", err)
				}
				for _, c := range comms[:3] {
					c.SetTimeout(testkit.Limit)
				}
				_, err := comms[1].Shrink(background) // late
				require.ErrorIs(t, err, k.want)
				requireShrinks(t, comms[:3])
			})
		})
	}
}

// A rank that comes to its first Shrink when the others have begun their second joins that.
func TestShrinkLate(t *testing.T) {
	onBoth(t, 3, engine.Options{Timeout: 200 * time.Millisecond}, func(t *testing.T, comms []*engine.Comm) {
		_, errs := shrunk([]*engine.Comm{comms[0], comms[2]}, noLimit)
		require.ErrorIs(t, errs[0], fault.ErrTimeout)
		require.ErrorIs(t, errs[1], fault.ErrTimeout)
		children := make([]*engine.Comm, 3)
		for _, c := range comms {
			c.SetTimeout(testkit.Limit)
		}
		errs = testkit.Each(comms, func(c *engine.Comm) (err error) {
			if c.Rank() == 1 {
				for _, o := range []*engine.Comm{comms[0], comms[2]} {
					testkit.Eventually(t, func() bool {
						s, ok := o.Team().Told(o.Team().Rank())
						return ok && s.Attempt == 2
					})
				}
			}
			children[c.Rank()], err = c.Shrink(background)
			return err
		})
		require.NoError(t, errors.Join(errs...))
		requireUsable(t, children)
		for _, c := range children {
			require.NoError(t, c.Close())
		}
	})
}

// A rank that gives up when the others can have gone on is missing in their communicator, and cannot try again.
func TestShrinkLeft(t *testing.T) {
	onBoth(t, 3, engine.Options{}, func(t *testing.T, comms []*engine.Comm) {
		last := membership.Mapped
		if comms[0].SpansHosts() {
			last = membership.Connected
		}
		errs := testkit.Each(comms, func(c *engine.Comm) error {
			if c.Rank() == 1 {
				return c.ShrinkThatFails(last, fmt.Errorf("no time: %w", fault.ErrTimeout))
			}
			child, err := c.Shrink(background)
			if err != nil {
				return err
			}
			if err := enginetest.Barrier(child); err == nil || child.Size() != 3 {
				return fmt.Errorf("%d ranks, %w", child.Size(), err)
			}
			next, err := child.Shrink(background)
			if err != nil {
				return err
			}
			if next.Size() != 2 {
				return fmt.Errorf("%d ranks are left", next.Size())
			}
			return errors.Join(enginetest.Barrier(next), next.Close(), child.Close())
		})
		require.ErrorIs(t, errs[1], fault.ErrTimeout)
		require.NoError(t, errors.Join(errs[0], errs[2]))
		_, err := comms[1].Shrink(background)
		require.ErrorIs(t, err, fault.ErrAborted)
		require.ErrorContains(t, err, "an earlier call gave up")
	})
}

// A rank that waits for long says once for whom.
func TestShrinkSaysWho(t *testing.T) {
	log := &safeBuffer{}
	comms := enginetest.Open(t, 2, engine.Options{Timeout: 200 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(log, nil))})
	comms[0].Team().ReportAfter.Store(int64(50 * time.Millisecond))
	_, err := comms[0].Shrink(background)
	require.ErrorIs(t, err, fault.ErrTimeout)
	require.Equal(t, 1, strings.Count(string(log.bytes()), "still waiting"))
	require.Regexp(t, `level=WARN msg="ubcoll: still waiting" op=shrink rank=0 host=\S+ missing=1 for=0s timeout=200ms`, string(log.bytes()))
}

// requireShrinks checks that Shrink makes a communicator of these ranks.
func requireShrinks(t *testing.T, ranks []*engine.Comm) {
	t.Helper()
	children, errs := shrunk(ranks, noLimit)
	require.NoError(t, errors.Join(errs...))
	requireUsable(t, children)
	for _, c := range children {
		require.Equal(t, len(ranks), c.Size())
		require.NoError(t, c.Close())
	}
}

// A rank whose part fails tells all others why, at whatever step, and nothing of the new communicator is left.
func TestShrinkFails(t *testing.T) {
	onBoth(t, 3, engine.Options{}, func(t *testing.T, comms []*engine.Comm) {
		last := membership.Mapped
		if comms[0].SpansHosts() {
			last = membership.Connected
		}
		before := comms[0].Domain().Heap.Stats().LiveBytes
		for step := membership.Proposed; step < last; step++ {
			for range 5 {
				errs := testkit.Each(comms, func(c *engine.Comm) error {
					if c.Rank() == 1 {
						return c.ShrinkThatFails(step, fmt.Errorf("no room: %w", fault.ErrLimit))
					}
					_, err := c.Shrink(background)
					return err
				})
				for r, err := range errs {
					e, ok := errors.AsType[*fault.Error](err)
					require.True(t, ok, "%v", err)
					require.ErrorIs(t, err, fault.ErrLimit)
					if r != 1 {
						require.Equal(t, []any{"shrink", r, 1}, []any{e.Op, e.Rank, e.Peer}, "step %d", step)
						require.ErrorContains(t, err, "rank 1 gave up: no room: limit reached")
					}
				}
			}
			requireShrinks(t, comms)
			// What the last ones had goes when another one ends.
			require.LessOrEqual(t, comms[0].Domain().Heap.Stats().LiveBytes, 3*before, "step %d", step)
		}
	})
}

// What cannot be shrunk.
func TestShrinkRefused(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{})
	comms[0].EnterQueue() // a call of another goroutine
	go func() {
		time.Sleep(20 * time.Millisecond)
		comms[0].Leave()
	}()
	children, errs := shrunk(comms, noLimit) // waits for what is queued
	require.NoError(t, errors.Join(errs...))
	for _, c := range append(comms, children...) {
		require.NoError(t, c.Close())
		_, err := c.Shrink(background)
		require.ErrorIs(t, err, fault.ErrClosed)
	}
}
