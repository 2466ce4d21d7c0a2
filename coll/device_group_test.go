package coll_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// groupPart is a call of a group; the places of its buffers may differ between ranks.
type groupPart struct {
	typ      dtype.Type
	op       ubcoll.Op
	n        int
	src, dst int // offsets in bytes
}

func (p *groupPart) call(ctx context.Context, c *ubcoll.Comm, m ubcoll.Vec) error {
	at := func(offset int) ubcoll.Vec { return m.Slice(offset, offset+p.n*p.typ.Size()).As(p.typ) }
	return coll.AllReduce(ctx, c, at(p.dst), at(p.src), p.op)
}

const slotBytes = 80 << 10 // more than the longest call has

// drawGroup draws a group within size bytes. all draws what the ranks must agree on, and mine the places of this rank's
// buffers, which may overlap those of other calls.
func drawGroup(all, mine *rand.Rand, rank, size int) []groupPart {
	parts := make([]groupPart, 1+all.IntN(20))
	typ := dtype.Int8 + dtype.Type(all.IntN(int(dtype.Bool)))
	const apart, slots = 0, 1 // no two calls touch the same memory, or those that do begin at the same address; else anything
	places, shift := mine.IntN(3), mine.IntN(2)*4
	most := 300
	if all.IntN(4) == 0 {
		most = 6000
	}
	for i := range parts {
		if all.IntN(10) == 0 {
			typ = dtype.Int8 + dtype.Type(all.IntN(int(dtype.Bool)))
		}
		ops := []ubcoll.Op{ubcoll.Max, ubcoll.Min, ubcoll.Sum, ubcoll.Prod, ubcoll.Avg, ubcoll.PreMulSum(float64(rank + 1))}
		p := &parts[i]
		p.typ, p.op, p.n = typ, ops[all.IntN(len(ops))], all.IntN(most)
		if typ == dtype.Bool {
			p.op = ops[all.IntN(2)]
		}
		if all.IntN(30) == 0 {
			p.n = 66 << 10 / typ.Size() // too long to be combined with others
		}
		room := p.n * typ.Size()
		draw := func() int {
			switch {
			case places == slots:
				return mine.IntN(size/slotBytes) * slotBytes
			case places == apart && room < size/60:
				return (i*size/20 + mine.IntN(size/20-room-16)) / 8 * 8
			}
			return mine.IntN((size-room)/8-1) * 8
		}
		off := mine.IntN(2) * typ.Size() % 8 // for some types no multiple of 8
		if places == slots {
			off = shift &^ (typ.Size() - 1)
		}
		p.src = draw() + off
		p.dst = p.src
		if mine.IntN(3) == 0 {
			continue // in place
		}
		for p.dst = draw() + off; p.dst < p.src+room && p.src < p.dst+room; {
			p.dst = draw() + off
		}
	}
	return parts
}

// TestDeviceGroupTogether draws groups, and also makes their calls one by one on the same data: both must leave the
// same memory and report the same.
func TestDeviceGroupTogether(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const size = 400 << 10
	for _, n := range testkit.Sample(2, []int{2, 3}) {
		for _, k := range testkit.Sample(4, []struct {
			name             string
			queued, captured bool
		}{{"blocking", false, false}, {"queued", true, false}, {"graph", false, true}, {"queued graph", true, true}}) {
			t.Run(fmt.Sprintf("ranks=%d/%s", n, k.name), func(t *testing.T) {
				if !testkit.Full() && (n == 3) != k.queued {
					t.Skip("full runs have it")
				}
				gputest.Run(t, n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					a, err1 := ubcoll.Alloc[byte](c, dev, size)
					b, err2 := ubcoll.Alloc[byte](c, dev, size)
					view, sync, end, err := gputest.View(ctx, c, dev, k.queued)
					if err := errors.Join(err1, err2, err); err != nil {
						return err
					}
					defer end()
					data, got, want := make([]byte, size), make([]byte, size), make([]byte, size)
					all := rand.New(rand.NewPCG(seed, uint64(n)))
					mine := rand.New(rand.NewPCG(seed, uint64(100+c.Rank())))
					together := 0
					for range max(6, testkit.Often(150)) { // in each of fewer nothing might go together
						parts := drawGroup(all, mine, c.Rank(), size)
						for i := range data {
							data[i] = byte(mine.IntN(4)) // never a NaN
						}
						if err := errors.Join(a.CopyFrom(ctx, data), b.CopyFrom(ctx, data)); err != nil {
							return err
						}
						before := c.Stats().Operations
						group := func(c *ubcoll.Comm) error {
							return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
								for i := range parts {
									if err := parts[i].call(ctx, g, a.Vec()); err != nil {
										return err
									}
								}
								return nil
							})
						}
						if !k.captured {
							err = group(view)
						} else if g, failed := graph.Capture(ctx, view, group); failed != nil {
							return failed
						} else {
							before = c.Stats().Operations // the capture's own operations are done
							err = errors.Join(g.Launch(ctx), g.Close())
						}
						if err == nil {
							err = sync()
						}
						if err != nil {
							return err
						}
						o := c.LastOp()
						if len(o.Members) != len(parts) || c.Stats().Operations != before+uint64(len(parts)) {
							return fmt.Errorf("%d calls: %v, and %d operations", len(parts), o, c.Stats().Operations-before)
						}
						for i, m := range o.Members {
							if m.Bytes != parts[i].n*parts[i].typ.Size() || m.Seq != o.Members[0].Seq+uint64(i) {
								return fmt.Errorf("call %d of %+v: %v", i, parts, m)
							}
							if m.Algorithm == "one-shot packets, grouped" {
								together++
							}
						}
						for i := range parts {
							if err := parts[i].call(ctx, c, b.Vec()); err != nil {
								return err
							}
						}
						if err := errors.Join(a.CopyTo(ctx, got), b.CopyTo(ctx, want)); err != nil {
							return err
						}
						if !bytes.Equal(got, want) {
							i := slices.IndexFunc(got, func(byte) bool { return true })
							for got[i] == want[i] {
								i++
							}
							return fmt.Errorf("rank %d: byte %d is %d, not %d: %+v", c.Rank(), i, got[i], want[i], parts)
						}
					}
					if together == 0 {
						return errors.New("no calls went together")
					}
					return errors.Join(a.Free(), b.Free())
				})
			})
		}
	}
}

// TestDeviceGroupDiffers makes groups that differ between ranks: all ranks learn it. The next group works, unless calls
// that one kernel runs together differed.
func TestDeviceGroupDiffers(t *testing.T) {
	type call struct {
		n  int
		op ubcoll.Op
	}
	eight := func() []call { return slices.Repeat([]call{{100, ubcoll.Sum}}, 8) }
	for _, k := range testkit.Sample(3, []struct {
		name        string
		rank1       func([]call) []call
		mine, other error  // of rank 1 and of the others
		text        string // of the others' error
		broken      bool
	}{
		{"a count", func(cs []call) []call { cs[3].n = 99; return cs }, ubcoll.ErrMismatch, ubcoll.ErrMismatch,
			"rank 1 called group(8 all_reduce, count 799 in all, float32", false},
		{"two counts", func(cs []call) []call { cs[3].n, cs[4].n = 99, 101; return cs }, ubcoll.ErrMismatch, ubcoll.ErrMismatch,
			"rank 1 called group(8 all_reduce, count 800 in all, float32", false},
		{"a reduction", func(cs []call) []call { cs[7].op = ubcoll.Max; return cs }, ubcoll.ErrMismatch, ubcoll.ErrMismatch,
			"rank 1 called group(8 all_reduce", false},
		{"no reduction", func(cs []call) []call { cs[2].op = ubcoll.Op{}; return cs }, ubcoll.ErrArgument, ubcoll.ErrArgument,
			"rank 1 refused", false},
		{"fewer", func(cs []call) []call { return cs[:7] }, ubcoll.ErrMismatch, ubcoll.ErrMismatch,
			"the groups differ: rank 1 called group(7 all_reduce", true},
		{"one that is long", func(cs []call) []call { cs[0].n = 100000; return cs }, ubcoll.ErrMismatch, ubcoll.ErrMismatch,
			"the groups differ: rank 1 called all_reduce(count 100000", true},
	}) {
		for _, queued := range testkit.Sample(2, []bool{true, false}) {
			t.Run(fmt.Sprintf("%s/queued=%v", k.name, queued), func(t *testing.T) {
				gputest.Run(t, 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					m, err1 := gputest.Floats(ctx, c, dev, 100000, 1)
					view, sync, end, err2 := gputest.View(ctx, c, dev, queued)
					if err := errors.Join(err1, err2); err != nil {
						return err
					}
					defer end()
					group := func(cs []call) error {
						err := ubcoll.Group(ctx, view, func(g *ubcoll.Comm) error {
							for _, k := range cs {
								v := m.Vec().Slice(0, k.n)
								if err := coll.AllReduce(ctx, g, v, v, k.op); err != nil {
									return err
								}
							}
							return nil
						})
						return errors.Join(err, sync())
					}
					cs, want := eight(), k.other
					if c.Rank() == 1 {
						cs, want = k.rank1(cs), k.mine
					}
					err := group(cs)
					var e *ubcoll.Error
					switch {
					case !errors.Is(err, want) || !errors.As(err, &e):
						return fmt.Errorf("rank %d: %w, not %w", c.Rank(), err, want)
					case c.Rank() == 0 && !k.broken && (!strings.Contains(err.Error(), k.text) || e.Seq != 1):
						return fmt.Errorf("%w: does not say %q of operation 1", err, k.text)
					case k.broken:
						return testkit.WantsOf(c.Rank(), "the communicator", c.Err(), ubcoll.ErrMismatch)
					}
					// The next group works, and an error after both has the right sequence number.
					if err := group(eight()); err != nil {
						return err
					}
					v := m.Vec().Slice(0, 10+c.Rank())
					err = errors.Join(coll.AllReduce(ctx, view, v, v, ubcoll.Sum), sync())
					if !errors.As(err, &e) || e.Seq != 17 {
						return fmt.Errorf("rank %d: %w is not of operation 17", c.Rank(), err)
					}
					return errors.Join(c.Err(), m.Free())
				})
			})
		}
	}
}

// TestDeviceGroupFails makes one rank leave a group that the others make: the others learn it.
func TestDeviceGroupFails(t *testing.T) {
	for _, queued := range []bool{false, true} {
		t.Run(fmt.Sprintf("queued=%v", queued), func(t *testing.T) {
			gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				m, err1 := gputest.Floats(ctx, c, dev, 100, 1)
				view, sync, end, err2 := gputest.View(ctx, c, dev, queued)
				if err := errors.Join(err1, err2); err != nil {
					return err
				}
				defer end()
				group := func(fail error) error {
					err := ubcoll.Group(ctx, view, func(g *ubcoll.Comm) error {
						for range 5 {
							if err := coll.AllReduce(ctx, g, m.Vec(), m.Vec(), ubcoll.Sum); err != nil {
								return err
							}
						}
						return fail
					})
					return errors.Join(err, sync())
				}
				var fail error
				if c.Rank() == 1 {
					fail = ubcoll.ErrLimit
				}
				return errors.Join(testkit.WantsOf(c.Rank(), "the group", group(fail), ubcoll.ErrLimit), c.Err(), testkit.InOrder(
					func() error { return group(nil) },
					func() error { return gputest.All(ctx, c, m, 32) },
					m.Free))
			})
		})
	}
}

// TestDeviceGroupCaptured captures a group in a foreign CUDA graph.
func TestDeviceGroupCaptured(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		m, err1 := gputest.Floats(ctx, c, dev, 100, 1)
		cu, s, end, err2 := gputest.Foreign(dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if err := cu.BeginCapture(); err != nil {
			return err
		}
		err := ubcoll.Group(ctx, c.On(s), func(g *ubcoll.Comm) error {
			for range 3 {
				if err := coll.AllReduce(ctx, g, m.Vec(), m.Vec(), ubcoll.Sum); err != nil {
					return err
				}
			}
			return nil
		})
		graph, err2 := cu.EndCapture()
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		return errors.Join(testkit.InOrder(
			func() error { return graph.Launch(cu) },
			func() error { return graph.Launch(cu) },
			func() error { return s.Sync(ctx) },
			func() error { return gputest.All(ctx, c, m, 64) }), graph.Close(), end())
	})
}
