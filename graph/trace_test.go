package graph_test

import (
	"bytes"
	"context"
	"runtime/pprof"
	"runtime/trace"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// traced is what a trace of every kind of operation holds.
func traced(t *testing.T) string {
	var b bytes.Buffer
	require.NoError(t, trace.Start(&b))
	defer trace.Stop()
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{Devices: ubcoll.DevicesOff}, func(ctx context.Context, c *ubcoll.Comm) error {
		buf, err := ubcoll.Alloc[float32](c, ubcoll.Host, 4)
		if err != nil {
			return err
		}
		v, other := buf.Vec(), 1-c.Rank()
		g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error { return coll.Broadcast(ctx, c, v, 0) })
		if err != nil {
			return err
		}
		var x p2p.Exchange
		x.Send(other, v.Slice(0, 2))
		x.Recv(other, v.Slice(2, 4))
		s, err := ubcoll.NewStream(ubcoll.Host)
		if err != nil {
			return err
		}
		for _, do := range []func() error{
			func() error { return coll.AllReduce(ctx, c, v, v, ubcoll.Sum) },
			func() error { _, err := p2p.SendRecv(ctx, c, other, v.Slice(0, 2), other, v.Slice(2, 4)); return err },
			func() error { return p2p.Send(ctx, c, other, v) },
			func() error { _, err := p2p.Recv(ctx, c, other, v); return err },
			func() error { return x.Do(ctx, c) },
			func() error {
				return ubcoll.Group(ctx, c, func(c *ubcoll.Comm) error { return coll.Reduce(ctx, c, v, v, ubcoll.Sum, 0) })
			},
			func() error { return g.Launch(ctx) },
			func() error { return coll.Barrier(ctx, c.On(s)) },
			func() error { return s.Sync(ctx) },
			g.Close, s.Close, buf.Free,
		} {
			if err := do(); err != nil {
				return err
			}
		}
		return nil
	}))
	trace.Stop()
	return b.String()
}

func TestTrace(t *testing.T) {
	const who = "rank 1, open of 2"
	require.NotContains(t, traced(t), who, "off by default")
	t.Setenv("UBCOLL_TRACE", "1")
	got := traced(t)
	for _, region := range []string{who, "all_reduce", "send_recv", "send", "recv", "exchange", "group", "reduce", "launch", "broadcast", "barrier"} {
		require.Contains(t, got, string(rune(len(region)))+region, "as a string of the table that a trace has: its length, and it")
	}
}

// A rank that waits in a call has the labels of the communicator, and the goroutines that the library has started those of
// their rank.
func TestTraceLabels(t *testing.T) {
	t.Setenv("UBCOLL_TRACE", "1")
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{Devices: ubcoll.DevicesOff}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := []float32{1}
		if c.Rank() == 1 {
			_, err := p2p.Recv(ctx, c, 0, ubcoll.Of(x))
			return err
		}
		require.Eventually(t, func() bool {
			var b bytes.Buffer
			require.NoError(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
			return strings.Contains(b.String(), `# labels: {"comm":"open of 2", "rank":"1"}`) &&
				strings.Contains(b.String(), `# labels: {"rank":"0"}`)
		}, testkit.Limit, testkit.Limit/10000)
		return p2p.Send(ctx, c, 1, ubcoll.Of(x))
	}))
}
