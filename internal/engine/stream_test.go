package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestNewStream(t *testing.T) {
	s := engine.NewStream()
	require.NoError(t, s.Sync(background), "nothing was queued")
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Close(), fault.ErrClosed)
}

// gated is an operation that calls note when it runs, and waits for the gate.
func gated(note func(), gate <-chan struct{}) team.Work {
	w := reduce(1)
	w.Path.Name = "gated"
	w.Path.Run = func(context.Context, *team.Team, *team.Work) error {
		note()
		<-gate
		return nil
	}
	return w
}

// Queued operations, on one stream or several, and blocking calls run one at a time, in the order of the calls.
func TestStreamOrder(t *testing.T) {
	c := enginetest.Open(t, 1, engine.Options{})[0]
	s, u := engine.NewStream(), engine.NewStream()
	on := []*engine.View{{Comm: c, Stream: s}, {Comm: c, Stream: u}}
	gate := make(chan struct{})
	var order []int // without a lock, so that the race detector sees operations that overlap
	for i := range 20 {
		w := gated(func() { order = append(order, i) }, gate)
		require.NoError(t, enginetest.Submit(background, on[i*7%3%2], w))
	}
	require.ErrorIs(t, s.Close(), fault.ErrBusy)
	require.ErrorIs(t, c.Close(), fault.ErrBusy)
	ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, u.Sync(ctx), context.DeadlineExceeded)
	close(gate)
	w := gated(func() { order = append(order, 20) }, gate)
	require.NoError(t, enginetest.Run(background, c, w), "a call waits for what is queued")
	require.NoError(t, s.Sync(background))
	require.NoError(t, u.Sync(background))
	for i := range 21 {
		require.Equal(t, i, order[i], "%v", order)
	}
	require.NoError(t, s.Close())
	require.ErrorIs(t, enginetest.Submit(background, on[0], w), fault.ErrClosed)
	require.NoError(t, u.Close())
	require.NoError(t, c.Close())
}

// Ranks may queue far ahead of each other, and call in between.
func TestStreamsOfSeveralRanks(t *testing.T) {
	comms := enginetest.Open(t, 3, engine.Options{})
	errs := testkit.Each(comms, func(c *engine.Comm) error {
		s := engine.NewStream()
		v := engine.View{Comm: c, Stream: s}
		for i := range 100 {
			w := pass(uint64(i * 100))
			if err := enginetest.Submit(background, &v, w); err != nil {
				return err
			}
			if i%30 == 10*c.Rank() {
				time.Sleep(time.Millisecond)
			}
			if i%20 == 0 {
				if err := enginetest.Run(background, c, pass(uint64(i*100+50))); err != nil {
					return err
				}
			}
		}
		return errors.Join(s.Sync(background), s.Close())
	})
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, uint64(105), comms[0].LastOp().Seq)
}

func TestStreamErrors(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{})
	errs := testkit.Each(comms, func(c *engine.Comm) error {
		s := engine.NewStream()
		v := engine.View{Comm: c, Stream: s}
		for i := range 4 {
			w := reduce(5)
			if i%2 == 1 && c.Rank() == 1 {
				w.Err = fmt.Errorf("bad call %d: %w", i, fault.ErrArgument)
			}
			if err := enginetest.Submit(background, &v, w); err != nil {
				return fmt.Errorf("queuing does not fail for what an operation meets: %w", err)
			}
		}
		err := s.Sync(background)
		if again := s.Sync(background); again != nil {
			return fmt.Errorf("told twice: %v", again)
		}
		w := reduce(5 + c.Rank())
		if err := enginetest.Submit(background, &v, w); err != nil {
			return err
		}
		for errors.Is(s.Close(), fault.ErrBusy) {
			time.Sleep(time.Millisecond)
		}
		return err
	})
	for _, err := range errs {
		require.ErrorIs(t, err, fault.ErrArgument)
		require.ErrorContains(t, err, "bad call 1")
		require.ErrorContains(t, err, "bad call 3")
	}
	requireUsable(t, comms)
}

func TestStreamCloseTellsWhatSyncDidNot(t *testing.T) {
	c := enginetest.Open(t, 1, engine.Options{})[0]
	s := engine.NewStream()
	w := reduce(5)
	w.Err = fault.ErrArgument
	require.NoError(t, enginetest.Submit(background, &engine.View{Comm: c, Stream: s}, w))
	var err error
	testkit.Eventually(t, func() bool { err = s.Close(); return !errors.Is(err, fault.ErrBusy) })
	require.ErrorIs(t, err, fault.ErrArgument)
}

// Close, once it is not refused, returns errors of streams that no Sync has returned.
func TestCloseTellsWhatSyncDidNot(t *testing.T) {
	c := enginetest.Open(t, 1, engine.Options{})[0]
	s := engine.NewStream()
	w := reduce(5)
	w.Err = fault.ErrArgument
	rounds := 2000
	if testkit.Daily() {
		rounds = 200
	}
	for i := range rounds {
		d, err := c.Dup(background)
		require.NoError(t, err)
		require.NoError(t, enginetest.Submit(background, &engine.View{Comm: d, Stream: s}, w))
		for err = d.Close(); errors.Is(err, fault.ErrBusy); err = d.Close() {
		}
		require.ErrorIs(t, err, fault.ErrArgument, "round %d", i)
		require.ErrorIs(t, s.Sync(background), fault.ErrArgument)
	}
}

// A second blocking call, from another goroutine, is refused and disturbs nothing.
func TestBusy(t *testing.T) {
	c := enginetest.Open(t, 1, engine.Options{})[0]
	gate, running := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- enginetest.Run(background, c, gated(func() { close(running) }, gate)) }()
	<-running
	seq := c.LastOp().Seq
	for range 10 {
		err := enginetest.Barrier(c)
		require.ErrorIs(t, err, fault.ErrBusy)
		require.ErrorContains(t, err, "Dup for calls side by side")
	}
	require.ErrorIs(t, c.Close(), fault.ErrBusy)
	close(gate)
	require.NoError(t, <-done)
	require.NoError(t, enginetest.Barrier(c))
	require.LessOrEqual(t, c.LastOp().Seq, seq+2, "refused calls take no number")
}

func TestRecorder(t *testing.T) {
	c := enginetest.Open(t, 1, engine.Options{})[0]
	r := &enginetest.Recorder{Room: 3}
	v := engine.View{Comm: c, Recorder: r}
	w := reduce(7)
	require.NoError(t, enginetest.Submit(background, &v, w))
	require.NoError(t, v.SubmitAll(background, "group", []team.Work{reduce(8), reduce(9)}, nil))
	require.ErrorIs(t, enginetest.Submit(background, &v, w), enginetest.ErrFull)
	require.ErrorIs(t, v.SubmitAll(background, "group", []team.Work{w}, nil), enginetest.ErrFull)
	var counts []int
	for _, w := range r.Works() {
		counts = append(counts, w.Count)
	}
	require.Equal(t, []int{7, 8, 9}, counts)
	require.Zero(t, c.LastOp().Seq, "nothing ran")
	require.NoError(t, (&engine.View{Comm: c}).SubmitAll(background, "group", r.Works(), nil))
	require.Equal(t, uint64(3), c.LastOp().Seq)
}

// Two goroutines record on one communicator: one at a time succeeds, and the other gets an error.
func TestRecordAtTheSameTime(t *testing.T) {
	c := enginetest.Open(t, 1, engine.Options{})[0]
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 100_000 {
				k := new(engine.Recording)
				switch err := (&engine.View{Comm: c}).Record(k, new(engine.Recorded), "Group", &enginetest.Recorder{}); {
				case err == nil:
					k.End()
				case !errors.Is(err, fault.ErrArgument):
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Several operations run as one: the first that fails is the last, on all ranks.
func TestSubmitAll(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{})
	errs := testkit.Each(comms, func(c *engine.Comm) error {
		ws := []team.Work{pass(100), reduce(5 + c.Rank()), pass(200), reduce(7 + c.Rank()), pass(300)}
		return (&engine.View{Comm: c}).SubmitAll(background, "group", ws, nil)
	})
	for _, err := range errs {
		require.ErrorIs(t, err, fault.ErrMismatch)
		require.ErrorContains(t, err, "rank 1 called all_reduce(count 6")
		require.NotContains(t, err.Error(), "count 8")
	}
	require.Equal(t, uint64(2), comms[0].LastOp().Seq)
	requireUsable(t, comms)
}
