// Package support holds docs/support.md to what it says: each cell of its tables is a call that is made.
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

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestMain(m *testing.M) { gputest.Main(ranks, func() int { return testkit.Main(m) }) }

const (
	ranks = 2
	page  = "../../../docs/support.md"
)

// What a cell says: that the operation works, that it works but is not part of the stream, group or graph, since it runs
// before its call returns, or the error.
const (
	yes  = "yes"
	once = "at once"
	none = "-" // not to be called then, which is not tried
)

var sentinels = map[string]error{"ErrArgument": ubcoll.ErrArgument, "ErrNotSupported": ubcoll.ErrNotSupported}

// TestSupport does what the tables have, and nothing else is there to be done.
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
			gputest.Run(t, ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, gpu ubcoll.Device) error {
				e, err := open(ctx, c, gpu, m.device)
				if err != nil {
					return err
				}
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

// row is a line of a table: an operation, and one cell for each way to call it.
type row struct {
	name  string
	cells []string
}

// parse is the page's tables by their headings.
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

// on is what a call is made on: a communicator's view, and a stream, if it is queued.
type on struct {
	c *ubcoll.Comm
	s *ubcoll.Stream
}

// operation is a call, and what is to be seen after it. What makes something is not for a CUDA graph.
type operation struct {
	makes bool
	name  string
	call  func(ctx context.Context, e *env, at on) error
	check func(ctx context.Context, e *env) error
}

// way is how a call is made. after is called once the call has returned, before it is waited for.
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
		return errors.Join(call(on{c: e.c}), after())
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
			if err := coll.Barrier(ctx, view); err != nil { // a graph without operations is ErrArgument
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
			err = errors.Join(g.Launch(cu), s.Sync(ctx))
		}
		if err2 == nil {
			err = errors.Join(err, g.Close())
		}
		return errors.Join(err, end())
	}},
}

// onStream holds the stream up until the call has returned, if it is to be queued.
func onStream(ctx context.Context, e *env, dev ubcoll.Device, call func(at on) error, after func() error) error {
	s, err := ubcoll.NewStream(dev)
	if err != nil {
		return err
	}
	gate, me := e.gates[dev], e.c.Rank()
	if e.queues {
		err = gate.On(s).Wait(ctx, me)
	}
	if err == nil {
		err = call(on{e.c.On(s), s})
	}
	if err == nil {
		err = after()
	}
	if e.queues {
		err = errors.Join(err, gate.Signal(ctx, me))
	}
	return errors.Join(err, s.Sync(ctx), s.Close())
}

// holds is an error unless the operation, called that way, does what the cell says.
func (e *env) holds(ctx context.Context, o operation, w way, cell string) error {
	if (cell == none) != (o.makes && w.name == cudaGraph) {
		return errors.New("it is what makes something in a CUDA graph that has that, and nothing else")
	}
	if cell == none {
		return nil
	}
	if err := e.fill(ctx); err != nil {
		return err
	}
	if err := coll.Barrier(ctx, e.c); err != nil {
		return err
	}
	e.queues = cell == yes
	err := w.make(ctx, e, func(at on) error { return o.call(ctx, e, at) }, func() error {
		if cell == yes && w.name != blocking { // it is queued or recorded, and no more
			return expect(ctx, e.dst, 0, make([]int32, all))
		}
		if cell != once {
			return nil
		}
		return o.check(ctx, e)
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
	case cell == yes:
		if err := o.check(ctx, e); err != nil {
			return err
		}
	}
	return errors.Join(e.c.Err(), coll.Barrier(ctx, e.c))
}
