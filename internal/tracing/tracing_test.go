package tracing

import (
	"bytes"
	"context"
	"runtime/pprof"
	"runtime/trace"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/race"
)

// labels are those of the goroutines that run this test's functions.
func labels(t *testing.T) string {
	var b bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
	for _, g := range strings.Split(b.String(), "\n\n") {
		if strings.Contains(g, "tracing.labels+") {
			for line := range strings.Lines(g) {
				if l, ok := strings.CutPrefix(line, "# labels: "); ok {
					return strings.TrimSpace(l)
				}
			}
		}
	}
	return ""
}

func TestOff(t *testing.T) {
	for _, value := range []string{"", "0", "maybe"} {
		t.Setenv("UBCOLL_TRACE", value)
		require.Nil(t, New(0, "open of 2", nil))
		require.Equal(t, t.Context(), Label(t.Context(), 1))
		Lend(t.Context(), 1)()
		require.Empty(t, labels(t))
	}
}

func TestLabels(t *testing.T) {
	t.Setenv("UBCOLL_TRACE", "1")
	own := pprof.WithLabels(t.Context(), pprof.Labels("phase", "forward"))
	for _, c := range []struct {
		name           string
		ctx            context.Context
		during, behind string
	}{
		{"none", t.Context(), `{"comm":"split of 2", "rank":"3"}`, ""},
		{"no context", nil, `{"comm":"split of 2", "rank":"3"}`, ""},
		{"the rank's", Label(t.Context(), 3), `{"comm":"split of 2", "rank":"3"}`, `{"rank":"3"}`},
		{"the program's", own, `{"comm":"split of 2", "phase":"forward", "rank":"3"}`, `{"phase":"forward"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := New(3, "split of 2", nil).Begin(c.ctx, "all_reduce")
			require.Equal(t, c.during, labels(t))
			s.End()
			require.Equal(t, c.behind, labels(t))
		})
	}
	back := Lend(own, 3)
	require.Equal(t, `{"phase":"forward", "rank":"3"}`, labels(t))
	back()
	require.Equal(t, `{"phase":"forward"}`, labels(t))
	pprof.SetGoroutineLabels(t.Context())
}

func TestRegions(t *testing.T) {
	t.Setenv("UBCOLL_TRACE", "1")
	var b bytes.Buffer
	require.NoError(t, trace.Start(&b))
	New(3, "split of 2", nil).Begin(t.Context(), "some_operation").End()
	trace.Stop()
	require.Contains(t, b.String(), "some_operation")
	require.Contains(t, b.String(), "rank 3, split of 2")
}

// Marks that nobody looks at cost no memory.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	t.Setenv("UBCOLL_TRACE", "1")
	tracer := New(3, "split of 2", nil)
	for _, ctx := range []context.Context{t.Context(), Label(t.Context(), 3)} {
		require.Zero(t, testing.AllocsPerRun(100, func() { tracer.Begin(ctx, "all_reduce").End() }))
	}
}

// Whoever counts operations hears of each before it begins, of no part of one, and without marks nothing is marked.
func TestCounts(t *testing.T) {
	for _, marks := range []string{"0", "1"} {
		t.Setenv("UBCOLL_TRACE", marks)
		n := 0
		c := New(3, "open of 2", func() { n++ })
		require.True(t, c.Counts())
		s := c.Begin(t.Context(), "all_reduce")
		require.Equal(t, 1, n)
		require.Equal(t, marks == "1", labels(t) != "")
		s.End()
		c.Mark(t.Context(), "all_reduce").End()
		require.Equal(t, 1, n)
		c.Count()
		require.Equal(t, 2, n)
	}
	for _, c := range []*Tracer{nil, New(3, "open of 2", nil)} {
		require.False(t, c.Counts())
		c.Count()
		c.Begin(t.Context(), "all_reduce").End()
	}
}
