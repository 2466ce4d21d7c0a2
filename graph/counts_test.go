package graph_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// captured is a captured operation with vectors of counts: this rank's counts, which launches read, and its buffers. At
// the capture, each elements went from and to every rank.
type captured struct {
	c          *ubcoll.Comm
	kind       string
	send, recv []int
	src, dst   *ubcoll.Buffer[float32] // with room around the part that a launch may touch
	graph      *graph.Graph
	sync       func() error
}

const (
	countsRanks, countsRoot = 3, 1
	each                    = 100
	room                    = 1000 // elements of a buffer
	before                  = 300  // where the captured part begins
	poisoned                = -1
)

func (c *captured) capture(ctx context.Context, view *ubcoll.Comm) (err error) {
	part := func(b *ubcoll.Buffer[float32], n int) ubcoll.Vec { return b.Vec().Slice(before, before+n) }
	c.send, c.recv = []int{each, each, each}, []int{each, each, each}
	all := countsRanks * each
	c.graph, err = graph.Capture(ctx, view, func(v *ubcoll.Comm) error {
		switch c.kind {
		case "all_gather_v":
			return coll.AllGatherV(ctx, v, part(c.dst, all), c.recv, part(c.src, each))
		case "gather_v":
			return coll.GatherV(ctx, v, part(c.dst, all), c.recv, part(c.src, each), countsRoot)
		case "scatter_v":
			return coll.ScatterV(ctx, v, part(c.dst, each), part(c.src, all), c.send, countsRoot)
		}
		return coll.AllToAllV(ctx, v, part(c.dst, all), c.recv, part(c.src, all), c.send)
	})
	return err
}

// launch poisons the destination, launches, and checks the memory around it. Element i of rank r is 1000*r + i.
func (c *captured) launch(ctx context.Context) error {
	src, dst := make([]float32, room), make([]float32, room)
	for i := range src {
		src[i], dst[i] = float32(1000*c.c.Rank()+i-before), poisoned
	}
	if err := errors.Join(c.src.CopyFrom(ctx, src), c.dst.CopyFrom(ctx, dst)); err != nil {
		return err
	}
	return errors.Join(c.graph.Launch(ctx), c.sync())
}

// moved checks that the destination has n elements of each rank's source, from offset from on, and nothing else.
func (c *captured) moved(ctx context.Context, from, n func(rank int) int) error {
	got := make([]float32, room)
	if err := c.dst.CopyTo(ctx, got); err != nil {
		return err
	}
	want := make([]float32, room)
	for i := range want {
		want[i] = poisoned
	}
	at := before
	for r := range countsRanks {
		for i := range n(r) {
			want[at] = float32(1000*r + from(r) + i)
			at++
		}
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("rank %d: %s: element %d is %v, not %v", c.c.Rank(), c.kind, i-before, got[i], want[i])
		}
	}
	return nil
}

func onHostAndDevice(t *testing.T, n int, f func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, queued bool) error) {
	for _, queued := range testkit.Sample(2, []bool{true, false}) {
		t.Run(fmt.Sprintf("host/queued=%v", queued), func(t *testing.T) {
			run(t, n, func(ctx context.Context, c *ubcoll.Comm) error { return f(ctx, c, ubcoll.Host, queued) })
		})
		t.Run(fmt.Sprintf("device/queued=%v", queued), func(t *testing.T) {
			gputest.Run(t, n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				return f(ctx, c, dev, queued)
			})
		})
	}
}

func newCaptured(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, kind string, queued bool) (*captured, func() error, error) {
	src, err1 := ubcoll.Alloc[float32](c, dev, room)
	dst, err2 := ubcoll.Alloc[float32](c, dev, room)
	view, sync, end, err3 := gputest.View(ctx, c, dev, queued)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, nil, err
	}
	k := &captured{c: c, kind: kind, src: src, dst: dst, sync: sync}
	err := k.capture(ctx, view)
	return k, func() error { return errors.Join(k.graph.Close(), end(), src.Free(), dst.Free()) }, err
}

// TestBadCountsOfLaunch changes the counts of a graph to values that the call would have refused: the launch is refused
// on all ranks, nothing is written anywhere, and the next launch works.
func TestBadCountsOfLaunch(t *testing.T) {
	for _, k := range testkit.Sample(8, []struct {
		name   string
		kind   string
		change func(k *captured) // what rank 1 changes
		text   string
	}{
		{"too many sent and expected", "all_to_all_v", func(k *captured) { k.send[1], k.recv[1] = 300, 300 }, "sendCounts are 500 elements"},
		{"too many sent", "all_to_all_v", func(k *captured) { k.send[0] = 101 }, "sendCounts are 301 elements"},
		{"far too many", "all_to_all_v", func(k *captured) { k.send[1], k.recv[1] = 200000, 200000 }, "sendCounts are 200200"},
		{"more than an int of 32 bits", "all_to_all_v", func(k *captured) { k.recv[2] = 1 << 40 }, "recvCounts[2]"},
		{"a sum that wraps", "all_to_all_v", func(k *captured) { k.recv[0], k.recv[1] = 1<<63-1, 1<<63-1 }, "recvCounts[0]"},
		{"negative", "all_to_all_v", func(k *captured) { k.send[1], k.recv[1] = -5, -5 }, "is -5"},
		{"negative, and the sum is right", "all_to_all_v", func(k *captured) { k.send[1], k.send[2] = -5, 205 }, "is -5"},
		{"all-gather of too many", "all_gather_v", func(k *captured) { k.recv[2] = 300 }, "counts"},
		{"all-gather of a negative number", "all_gather_v", func(k *captured) { k.recv[0] = -1 }, "counts[0]"},
		{"gather of too many", "gather_v", func(k *captured) { k.recv[0] = 200000 }, "counts"},
		{"gather of a negative number", "gather_v", func(k *captured) { k.recv[0] = -1 }, "counts[0]"},
		{"scatter of too many", "scatter_v", func(k *captured) { k.send[2] = 200000 }, "counts"},
		{"scatter of a negative number", "scatter_v", func(k *captured) { k.send[2] = -1 << 63 }, "counts[2]"},
	}) {
		t.Run(k.name, func(t *testing.T) {
			onHostAndDevice(t, countsRanks, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, queued bool) error {
				g, end, err := newCaptured(ctx, c, dev, k.kind, queued)
				if err != nil {
					return err
				}
				part := func(int) int { return each }
				nothing := func(int) int { return 0 }
				at := func(int) int { return 0 }
				if k.kind == "all_to_all_v" {
					at = func(int) int { return c.Rank() * each }
				}
				good := func() error {
					if err := g.launch(ctx); err != nil {
						return err
					}
					switch {
					case k.kind == "gather_v" && c.Rank() != countsRoot:
						return g.moved(ctx, at, nothing)
					case k.kind == "scatter_v":
						return g.moved(ctx, func(int) int { return c.Rank() * each }, func(r int) int {
							if r == countsRoot {
								return each
							}
							return 0
						})
					}
					return g.moved(ctx, at, part)
				}
				if err := good(); err != nil {
					return err
				}
				for range 2 {
					if c.Rank() == 1 {
						k.change(g)
					}
					err = g.launch(ctx)
					var e *ubcoll.Error
					if !errors.As(err, &e) || !errors.Is(err, ubcoll.ErrArgument) {
						return fmt.Errorf("rank %d: %v, not ErrArgument", c.Rank(), err)
					}
					if text := err.Error(); c.Rank() == 1 && !strings.Contains(text, k.text) ||
						c.Rank() != 1 && !strings.Contains(text, "rank 1 refused") {
						return fmt.Errorf("rank %d: %w", c.Rank(), err)
					}
					if err := errors.Join(g.moved(ctx, at, nothing), c.Err()); err != nil {
						return err
					}
				}
				for r := range countsRanks {
					g.send[r], g.recv[r] = each, each
				}
				return errors.Join(testkit.InOrder(good, good), end())
			})
		})
	}
}

// TestCountsOfLaunch changes the counts of an all-to-all between launches. Each launch uses the current counts and
// leaves other elements alone. If two ranks differ about a pair, all return an error.
func TestCountsOfLaunch(t *testing.T) {
	onHostAndDevice(t, countsRanks, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, queued bool) error {
		g, end, err := newCaptured(ctx, c, dev, "all_to_all_v", queued)
		if err != nil {
			return err
		}
		me := c.Rank()
		for launch := range 12 {
			pair := func(s, d int) int { // the sum of 3 is at most 300
				return (s*7 + d*31 + launch*53) % 101 * ((launch + 1) % 4) / 3
			}
			for r := range countsRanks {
				g.send[r], g.recv[r] = pair(me, r), pair(r, me)
			}
			if launch == 7 && me == 2 {
				g.recv[0]++
			}
			err := g.launch(ctx)
			if launch == 7 {
				if !errors.Is(err, ubcoll.ErrMismatch) || !strings.Contains(err.Error(), "rank 2 expects") {
					return fmt.Errorf("rank %d: %v, not ErrMismatch", me, err)
				}
				continue
			}
			if err != nil {
				return fmt.Errorf("launch %d: %w", launch, err)
			}
			err = g.moved(ctx, func(r int) (at int) {
				for d := range me {
					at += pair(r, d)
				}
				return at
			}, func(r int) int { return pair(r, me) })
			if err != nil {
				return fmt.Errorf("launch %d: %w", launch, err)
			}
		}
		return errors.Join(c.Err(), end())
	})
}

// TestCountsDifferAtCapture captures an all-gather with counts that do not match, which give one rank's kernel a larger
// grid, and launches it when the counts match.
func TestCountsDifferAtCapture(t *testing.T) {
	onHostAndDevice(t, 2, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, queued bool) error {
		const n, many = 500, 100_000
		counts := []int{n, n}
		if c.Rank() == 0 {
			counts[1] = many
		}
		src, err1 := gputest.Floats(ctx, c, dev, n, float32(1+c.Rank()))
		dst, err2 := gputest.Floats(ctx, c, dev, n+counts[1], poisoned)
		view, sync, end, err3 := gputest.View(ctx, c, dev, queued)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		g, err := graph.Capture(ctx, view, func(c *ubcoll.Comm) error {
			return coll.AllGatherV(ctx, c, dst.Vec(), counts, src.Vec())
		})
		if err != nil {
			return err
		}
		if err := errors.Join(g.Launch(ctx), sync()); !errors.Is(err, ubcoll.ErrMismatch) {
			return fmt.Errorf("rank %d: %v, not ErrMismatch", c.Rank(), err)
		}
		counts[1] = n
		for range 3 {
			if err := testkit.InOrder(func() error { return g.Launch(ctx) }, sync); err != nil {
				return err
			}
		}
		got := make([]float32, dst.Len())
		if err := dst.CopyTo(ctx, got); err != nil {
			return err
		}
		want := slices.Concat(slices.Repeat([]float32{1}, n), slices.Repeat([]float32{2}, n),
			slices.Repeat([]float32{poisoned}, len(got)-2*n))
		for i, x := range got {
			if x != want[i] {
				return fmt.Errorf("rank %d: element %d is %v, not %v", c.Rank(), i, x, want[i])
			}
		}
		return errors.Join(g.Close(), end(), src.Free(), dst.Free())
	})
}

// TestNumberOfBadCounts has a message before an operation with bad counts: the error names the operation by its number
// among the collectives.
func TestNumberOfBadCounts(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err := gputest.Floats(ctx, c, dev, 100, 1)
		if err != nil {
			return err
		}
		part := func(i int) ubcoll.Vec { return a.Vec().Slice(10*i, 10*i+2) }
		send, recv := []int{1, 1}, []int{1, 1}
		g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
			_, err := p2p.SendRecv(ctx, c, 1-c.Rank(), part(1), 1-c.Rank(), part(0))
			return errors.Join(err, coll.AllReduce(ctx, c, part(2), part(2), ubcoll.Max),
				coll.AllToAllV(ctx, c, part(3), recv, part(4), send))
		})
		if err != nil {
			return err
		}
		send[0] = -1
		err = g.Launch(ctx)
		var e *ubcoll.Error
		if !errors.As(err, &e) || !errors.Is(err, ubcoll.ErrArgument) {
			return fmt.Errorf("rank %d: %v, not ErrArgument", c.Rank(), err)
		}
		return errors.Join(check(c, "the number of what was refused", e.Seq, c.LastOp().Seq), g.Close(), a.Free())
	})
}

// TestCountsOfLaunchAlone is TestCountsOfLaunch on one rank.
func TestCountsOfLaunchAlone(t *testing.T) {
	onHostAndDevice(t, 1, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, queued bool) error {
		src, err1 := gputest.Floats(ctx, c, dev, room, 1)
		dst, err2 := gputest.Floats(ctx, c, dev, room, poisoned)
		view, sync, end, err3 := gputest.View(ctx, c, dev, queued)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		send, recv := []int{each}, []int{each}
		g, err := graph.Capture(ctx, view, func(c *ubcoll.Comm) error {
			return coll.AllToAllV(ctx, c, dst.Vec().Slice(0, each), recv, src.Vec().Slice(0, each), send)
		})
		if err != nil {
			return err
		}
		for _, k := range []struct {
			send, recv int
			want       error
		}{{10, 10, nil}, {101, 101, ubcoll.ErrArgument}, {-1, -1, ubcoll.ErrArgument}, {10, 11, ubcoll.ErrMismatch}, {20, 20, nil}} {
			send[0], recv[0] = k.send, k.recv
			if err := errors.Join(g.Launch(ctx), sync()); !errors.Is(err, k.want) {
				return fmt.Errorf("%d sent, %d expected: %v, not %v", k.send, k.recv, err, k.want)
			}
		}
		got := make([]float32, room)
		if err := dst.CopyTo(ctx, got); err != nil {
			return err
		}
		for i, x := range got {
			if (x == 1) != (i < 20) {
				return fmt.Errorf("element %d is %v", i, x)
			}
		}
		return errors.Join(g.Close(), end(), src.Free(), dst.Free())
	})
}
