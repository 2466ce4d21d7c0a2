// Package support checks docs/support.md: it makes the call of each cell of its tables.
package support

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/conform"
	variables "github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestMain(m *testing.M) { gputest.Main(ranks, func() int { return testkit.Main(m) }) }

const (
	ranks = 2
	page  = "../../../docs/support.md"
)

// The contents of a cell: the operation works; it works, but runs before its call returns, so it is not part of the
// stream, group or graph; or the error.
const (
	yes  = "yes"
	once = "at once"
	none = "-" // must not be called, and is not tried
)

var sentinels = map[string]error{"ErrArgument": ubcoll.ErrArgument, "ErrNotSupported": ubcoll.ErrNotSupported}

// TestSupport does what the tables say. It also checks that they list every operation.
func TestSupport(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	tables := parse(t, string(text))
	var headings []string
	for _, m := range memories {
		headings = append(headings, m.heading)
	}
	var found []string
	for heading := range tables {
		found = append(found, heading)
	}
	require.ElementsMatch(t, headings, found)
	for _, m := range memories {
		var names, rows []string
		for _, o := range m.operations {
			names = append(names, o.name)
		}
		for _, r := range tables[m.heading] {
			rows = append(rows, r.name)
		}
		require.Equal(t, names, rows, m.heading)
		t.Run(m.heading, func(t *testing.T) {
			if m.heading == "Device memory" {
				testkit.LongOrRace(t)
			}
			o, between := ubcoll.Options{Timeout: soon}, newTurns()
			run := gputest.Run
			if m.between {
				run = onHosts
			}
			run(t, ranks, o, func(ctx context.Context, c *ubcoll.Comm, gpu ubcoll.Device) error {
				e, err := open(ctx, c, gpu, m.device)
				if err != nil {
					return err
				}
				e.turns = between
				for i, o := range m.operations {
					for k, w := range ways {
						cell := tables[m.heading][i].cells[k]
						if err := e.holds(ctx, o, w, cell); err != nil {
							return fmt.Errorf("%s, %s: %q: %w", o.name, w.name, cell, err)
						}
					}
				}
				return e.close()
			})
		})
	}
}

// onHosts is gputest.Run with each rank on a host of its own.
func onHosts(t *testing.T, n int, o ubcoll.Options, f func(context.Context, *ubcoll.Comm, ubcoll.Device) error) {
	t.Helper()
	t.Setenv(variables.CUDA.Name, "auto")
	var missing error
	err := conform.Block(slices.Repeat([]int{1}, n)...).Run(t.Context(), o, func(ctx context.Context, c *ubcoll.Comm) error {
		dev, err := c.GPU()
		if err == nil {
			return f(ctx, c, dev)
		}
		if c.Rank() == 0 {
			missing = err
		}
		return nil
	})
	require.NoError(t, err)
	if missing != nil {
		require.False(t, variables.Requires("cuda"), missing)
		t.Skip(missing)
	}
}

// row is a line of a table: an operation, with one cell for each way to call it.
type row struct {
	name  string
	cells []string
}

// parse returns the page's tables by heading.
func parse(t *testing.T, text string) map[string][]row {
	t.Helper()
	head := "| Operation |"
	for _, w := range ways {
		head += " " + w.name + " |"
	}
	tables, heading := map[string][]row{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if h, ok := strings.CutPrefix(line, "## "); ok {
			heading = h
		}
		if heading == "" || !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| ---") {
			continue
		}
		if strings.HasPrefix(line, "| Operation |") {
			require.Equal(t, head, line)
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		require.Len(t, cells, 1+len(ways), line)
		for i := range cells {
			cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), "`", "")
		}
		tables[heading] = append(tables[heading], row{cells[0], cells[1:]})
	}
	return tables
}

// on is what a call is made on: a communicator's view, and a stream if it is queued.
type on struct {
	c *ubcoll.Comm
	s *ubcoll.Stream
}

// operation is a call, and a check of its effect. Without a check it is a call that waits for the peer's. makes says
// that it makes an object, so it must not be in a CUDA graph.
type operation struct {
	makes bool
	name  string
	call  func(ctx context.Context, e *env, at on) error
	check func(ctx context.Context, e *env) error
}

// way is a way to make a call. after runs after the call has returned, before it is waited for.
type way struct {
	name string
	make func(ctx context.Context, e *env, call func(at on) error, after func() error) error
}

const (
	blocking  = "blocking"
	graphs    = "graph"
	cudaGraph = "CUDA graph"
)

var ways = []way{
	{blocking, func(_ context.Context, e *env, call func(at on) error, after func() error) error {
		return testkit.InOrder(func() error { return call(on{c: e.c}) }, after)
	}},
	{"host stream", func(ctx context.Context, e *env, call func(at on) error, after func() error) error {
		return onStream(ctx, e, ubcoll.Host, call, after)
	}},
	{"device stream", func(ctx context.Context, e *env, call func(at on) error, after func() error) error {
		return onStream(ctx, e, e.gpu, call, after)
	}},
	{"Group", func(ctx context.Context, e *env, call func(at on) error, after func() error) error {
		return ubcoll.Group(ctx, e.c, func(g *ubcoll.Comm) error {
			if err := call(on{c: g}); err != nil {
				return err
			}
			return after()
		})
	}},
	{graphs, func(ctx context.Context, e *env, call func(at on) error, after func() error) error {
		g, err := graph.Capture(ctx, e.c, func(view *ubcoll.Comm) error {
			if err := coll.Barrier(ctx, view); err != nil { // a graph without operations would be ErrArgument
				return err
			}
			if err := call(on{c: view}); err != nil {
				return err
			}
			return after()
		})
		if err != nil {
			return err
		}
		return errors.Join(g.Launch(ctx), g.Close())
	}},
	{cudaGraph, func(ctx context.Context, e *env, call func(at on) error, after func() error) error {
		cu, s, end, err := gputest.Foreign(e.gpu)
		if err != nil {
			return err
		}
		if err := cu.BeginCapture(); err != nil {
			return errors.Join(err, end())
		}
		err = call(on{e.c.On(s), s})
		if err == nil {
			err = after()
		}
		g, err2 := cu.EndCapture()
		if err = errors.Join(err, err2); err == nil {
			err = testkit.InOrder(func() error { return g.Launch(cu) }, func() error { return s.Sync(ctx) })
		}
		if err2 == nil {
			err = errors.Join(err, g.Close())
		}
		return errors.Join(err, end())
	}},
}

// onStream holds the stream up until after is done, if after looks for the call's effect.
func onStream(ctx context.Context, e *env, dev ubcoll.Device, call func(at on) error, after func() error) error {
	s, err := ubcoll.NewStream(dev)
	if err != nil {
		return err
	}
	gate, me := e.gates[dev], e.c.Rank()
	if e.held {
		err = gate.On(s).Wait(ctx, me)
	}
	if err == nil {
		err = call(on{e.c.On(s), s})
	}
	if err == nil {
		err = after()
	}
	if e.held {
		err = errors.Join(err, gate.Signal(ctx, me))
	}
	return errors.Join(err, s.Sync(ctx), s.Close())
}

// holds returns an error unless the operation, called that way, does what the cell says.
func (e *env) holds(ctx context.Context, o operation, w way, cell string) error {
	if (cell == none) != (o.makes && w.name == cudaGraph) {
		return errors.New("it is what makes something in a CUDA graph that has that, and nothing else")
	}
	if cell == none {
		return nil
	}
	if cell == once && w.name == blocking {
		return errors.New("that is how all blocking calls run")
	}
	if err := e.fill(ctx); err != nil {
		return err
	}
	if err := coll.Barrier(ctx, e.c); err != nil {
		return err
	}
	e.held = o.check != nil
	queued := cell == yes && w.name != blocking // or recorded
	err := w.make(ctx, e, func(at on) error {
		call := func() error { return o.call(ctx, e, at) }
		switch {
		case queued:
			return e.second(ctx, call)
		case cell == once && o.check == nil:
			return e.waits(ctx, call)
		}
		return call()
	}, func() error {
		switch {
		case queued: // then nothing else has changed, here or at the peer: both calls have returned
			mine := values(e.c.Rank(), 0, all)
			if err := e.meet(ctx); err != nil {
				return err
			}
			return errors.Join(expect(ctx, e.dst, 0, make([]int32, all)), expect(ctx, e.shared, 0, mine), e.meet(ctx))
		case cell == once && o.check != nil:
			return o.check(ctx, e)
		}
		return nil
	})
	switch want, isError := sentinels[cell]; {
	case isError && err == nil:
		return errors.New("it works")
	case isError && !errors.Is(err, want):
		return err
	case isError:
	case cell != yes && cell != once:
		return fmt.Errorf("which is not among %q, %q, %v; it is %v", yes, once, slices.Sorted(maps.Keys(sentinels)), err)
	case err != nil:
		return err
	case cell == yes && o.check != nil:
		if err := o.check(ctx, e); err != nil {
			return err
		}
	}
	return errors.Join(e.c.Err(), coll.Barrier(ctx, e.c))
}

// soon is how long a call waits for what never comes. early is how long a call gets to return although it should wait.
// Only a wrong page can make a test fail by them, on a machine of any speed.
const (
	soon  = 20 * time.Second
	early = 30 * time.Millisecond
)

// turns lets the two ranks, which are goroutines, synchronize without the library.
type turns struct{ met, returned chan struct{} }

func newTurns() *turns { return &turns{make(chan struct{}), make(chan struct{}, 1)} }

// await returns an error if the other rank does not do its part of ch.
func await(ctx context.Context, send, receive chan struct{}) error {
	select {
	case send <- struct{}{}:
		return nil
	case <-receive:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(soon):
		return errors.New("the other rank has failed, or its call waits for this one")
	}
}

// meet returns when both ranks have called it.
func (e *env) meet(ctx context.Context) error {
	if e.c.Rank() == 0 {
		return await(ctx, e.turns.met, nil)
	}
	return await(ctx, nil, e.turns.met)
}

// second lets rank 1 make its call after rank 0's has returned. That fails unless rank 0's is queued or recorded.
func (e *env) second(ctx context.Context, call func() error) error {
	if e.c.Rank() == 0 {
		err := call()
		e.turns.returned <- struct{}{}
		return err
	}
	if err := await(ctx, nil, e.turns.returned); err != nil {
		return err
	}
	return call()
}

// waits returns an error if rank 0's call returns before rank 1 makes its own.
func (e *env) waits(ctx context.Context, call func() error) error {
	if e.c.Rank() == 0 {
		return e.second(ctx, call)
	}
	select {
	case <-e.turns.returned:
		return errors.New("a call returned that waits for its peer's")
	case <-time.After(early):
	}
	return testkit.InOrder(call, func() error { return await(ctx, nil, e.turns.returned) })
}
