package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/internal/verify"
	"github.com/ubcoll/ubcoll/register"
)

// parts is one operation with vectors of counts; everything but the memory's place is the same on all ranks.
type parts struct {
	data    verify.Data
	kind    string
	counts  [][]int // [from][to]
	root    int
	inPlace bool
}

var partKinds = []string{"all_gather_v", "gather_v", "scatter_v", "all_to_all_v"}

// newParts draws lengths; none, some or all are too long for packets.
func newParts(r *rand.Rand, n, most int) parts {
	k := parts{kind: partKinds[r.IntN(len(partKinds))], root: r.IntN(n), inPlace: r.IntN(2) == 0, counts: make([][]int, n)}
	k.data = verify.Data{Type: dtype.Type(1 + r.IntN(int(dtype.Bool))), Ranks: n, Seed: r.Uint64()}
	most = []int{0, 9, 600, most / n}[r.IntN(4)] / k.data.Type.Size()
	draw := func() int {
		if r.IntN(4) == 0 {
			return 0
		}
		return r.IntN(most + 1)
	}
	for from := range n {
		k.counts[from] = make([]int, n)
		same := draw()
		for to := range n {
			switch {
			case k.kind == "all_gather_v", k.kind == "gather_v" && to == k.root:
				k.counts[from][to] = same
			case k.kind == "all_to_all_v", k.kind == "scatter_v" && from == k.root:
				k.counts[from][to] = draw()
			}
		}
	}
	return k
}

func (p parts) String() string {
	return fmt.Sprintf("%s of %v %v, root %d, in place %v", p.kind, p.counts, p.data.Type, p.root, p.inPlace)
}

// sends and expects are a rank's counts. Gather, scatter and all-gather send the whole source to each receiver.
func (p parts) sends(r int) []int { return p.counts[r] }

func (p parts) expects(r int) []int {
	out := make([]int, len(p.counts))
	for from := range out {
		out[from] = p.counts[from][r]
	}
	return out
}

func total(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// lens returns the lengths of a rank's source and destination, in elements.
func (p parts) lens(r int) (src, dst int) {
	src, dst = total(p.sends(r)), total(p.expects(r))
	if p.kind == "all_gather_v" {
		src = p.counts[r][r]
	}
	return src, dst
}

// call makes the call; counts[from][to] is the count that the sender and the receiver give.
func (p parts) call(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
	me := c.Rank()
	switch p.kind {
	case "all_gather_v":
		return coll.AllGatherV(ctx, c, dst, p.expects(me), src)
	case "gather_v":
		if me != p.root {
			return coll.GatherV(ctx, c, ubcoll.Vec{}, nil, src, p.root)
		}
		return coll.GatherV(ctx, c, dst, p.expects(me), src, p.root)
	case "scatter_v":
		if me != p.root {
			return coll.ScatterV(ctx, c, dst, ubcoll.Vec{}, nil, p.root)
		}
		return coll.ScatterV(ctx, c, dst, src, p.sends(me), p.root)
	}
	return coll.AllToAllV(ctx, c, dst, p.expects(me), src, p.sends(me))
}

func (p parts) run(ctx context.Context, c *ubcoll.Comm, a, b *memory, shift int, sync func() error) error {
	size, me := p.data.Type.Size(), c.Rank()
	srcN, dstN := p.lens(me)
	input := func(addr unsafe.Pointer) { p.data.Fill(addr, srcN, me) }
	src, err := a.use(ctx, shift*size, srcN*size, p.data.Type, input)
	if err != nil {
		return err
	}
	dst, out, at := ubcoll.Vec{}, b, 0
	switch {
	case p.inPlace && p.kind == "scatter_v" && me == p.root:
		out, at = a, total(p.sends(me)[:me])
		dst = src.Slice(at, at+dstN)
	case p.inPlace && p.kind != "all_to_all_v" && p.kind != "scatter_v" && dstN > 0:
		at := total(p.expects(me)[:me])
		out = a
		dst, err = a.use(ctx, shift*size, dstN*size, p.data.Type, func(addr unsafe.Pointer) { input(unsafe.Add(addr, at*size)) })
		src = dst.Slice(at, at+srcN)
	default:
		dst, err = b.use(ctx, (shift+1)*size, dstN*size, p.data.Type, nil)
	}
	if err != nil {
		return err
	}
	if err := testkit.InOrder(func() error { return p.call(ctx, c, dst, src) }, sync); err != nil {
		return fmt.Errorf("%v: %w", p, err)
	}
	addr, err := out.fetch(ctx)
	if err != nil {
		return fmt.Errorf("%v: %w", p, err)
	}
	for from, n := range p.expects(me) {
		first := total(p.sends(from)[:me])
		if p.kind == "all_gather_v" {
			first = 0
		}
		if n > 0 {
			if wrong, where := p.data.CheckInput(unsafe.Add(addr, at*size), first, n, from); wrong > 0 {
				return fmt.Errorf("%v: %d of rank %d's wrong, %v (%s)", p, wrong, from, where, c.LastOp().String())
			}
		}
		at += n
	}
	return nil
}

// TestDeviceCounts runs operations with random vectors of counts, direct and staged, blocking and on a stream.
func TestDeviceCounts(t *testing.T) {
	const most = 400 << 10
	r := random{
		ranks:  []int{1, 2, 3, 4, 8},
		trials: 16,
		most:   most,
		name:   mode.String,
		modes: []mode{
			{"", register.Auto, false, false},
			{"", register.Auto, false, true},
			{"", register.Explicit, true, false},
			{"", register.Off, false, true},
		},
		trial: func(ctx context.Context, p place) error {
			return newParts(p.same, p.c.Size(), most).run(ctx, p.c, p.a, p.b, p.own.IntN(8), p.sync)
		},
	}
	if race.Enabled || testing.Short() {
		r.trials = 3 // making and checking data element by element is slow
	}
	if testkit.Daily() {
		r.ranks = []int{3}
	}
	r.run(t)
}

// TestDeviceCountsBad passes counts that do not match: all ranks name the same pair, and the next call works.
func TestDeviceCountsBad(t *testing.T) {
	const n, root = 3, 1
	same := [][]int{{4, 5, 6}, {7, 8, 9}, {10, 11, 12}}
	long := [][]int{{4, 5, 6}, {7, 70000, 9}, {10, 11, 12}}
	all := [][]int{{5, 5, 5}, {8, 8, 8}, {0, 0, 0}}
	for _, k := range testkit.Sample(2, []struct {
		name string
		kind string
		base [][]int
		from int // the receiver expects a longer part from this rank
		to   int
		more int // longer by this much
		want string
	}{
		{"a longer part", "all_to_all_v", same, 1, 2, 1, "rank 2 expects 10 elements from rank 1, which sends 9"},
		{"a part to itself", "all_to_all_v", same, 2, 2, 1, "rank 2 expects 13 elements from rank 2, which sends 12"},
		{"beside a long part", "all_to_all_v", long, 0, 1, 1, "rank 1 expects 6 elements from rank 0, which sends 5"},
		{"of all-gather", "all_gather_v", all, 2, 0, 1, "rank 0 expects 1 elements from rank 2, which sends 0"},
		{"in another grid", "all_gather_v", all, 1, 2, 200000, "rank 2 expects 200008 elements from rank 1, which sends 8"},
		{"of gather", "gather_v", [][]int{{0, 5, 0}, {0, 6, 0}, {0, 7, 0}}, 2, root, 1,
			"rank 1 expects 8 elements from rank 2, which sends 7"},
		{"of scatter", "scatter_v", [][]int{{0, 0, 0}, {5, 6, 7}, {0, 0, 0}}, root, 0, 1,
			"rank 0 expects 6 elements from rank 1, which sends 5"},
	}) {
		for _, queued := range testkit.Sample(2, []bool{true, false}) {
			t.Run(fmt.Sprintf("%s/queued=%v", k.name, queued), func(t *testing.T) {
				gputest.Run(t, n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					a, err1 := newMemory(c, dev, 1<<20)
					b, err2 := newMemory(c, dev, 1<<20)
					if err := errors.Join(err1, err2); err != nil {
						return err
					}
					view, sync, end, err := gputest.View(ctx, c, dev, queued)
					if err != nil {
						return err
					}
					defer end()
					good := parts{kind: k.kind, counts: k.base, root: root,
						data: verify.Data{Type: dtype.Int32, Ranks: n, Seed: 1}}
					bad := good
					bad.counts = make([][]int, n)
					for r := range bad.counts {
						bad.counts[r] = append([]int(nil), k.base[r]...)
					}
					if c.Rank() == k.to {
						bad.counts[k.from][k.to] += k.more
						if k.kind == "all_to_all_v" && k.from == k.to { // keep what it sends
							err := coll.AllToAllV(ctx, view, b.buf.Vec().As(dtype.Int32).Slice(0, total(bad.expects(k.to))),
								bad.expects(k.to), a.buf.Vec().As(dtype.Int32).Slice(0, total(good.sends(k.to))), good.sends(k.to))
							bad.kind = ""
							err1 = errors.Join(err, sync())
						}
					}
					if bad.kind != "" {
						src, dst := bad.lens(c.Rank())
						ints := func(m *memory, n int) ubcoll.Vec { return m.buf.Vec().As(dtype.Int32).Slice(0, n) }
						err1 = errors.Join(bad.call(ctx, view, ints(b, dst), ints(a, src)), sync())
					}
					var e *ubcoll.Error
					if err := testkit.WantsOf(c.Rank(), "counts that do not fit", err1, ubcoll.ErrMismatch); err != nil {
						return err
					}
					if !errors.As(err1, &e) || e.Peer != k.to || e.Device != dev || !strings.Contains(err1.Error(), k.want) {
						return fmt.Errorf("rank %d: %w", c.Rank(), err1)
					}
					return errors.Join(c.Err(), good.run(ctx, view, a, b, 0, sync))
				})
			})
		}
	}
}

// TestDeviceCountsRefused passes invalid arguments on one rank.
func TestDeviceCountsRefused(t *testing.T) {
	for _, k := range []struct {
		name string
		call func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error // of rank 1
		want error                                                         // on the others
	}{
		{"too few counts", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			return coll.AllGatherV(ctx, c, v.Slice(0, 30), []int{10, 20}, v.Slice(50, 60))
		}, ubcoll.ErrArgument},
		{"a negative count", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			return coll.AllGatherV(ctx, c, v.Slice(0, 30), []int{10, 30, -10}, v.Slice(50, 60))
		}, ubcoll.ErrArgument},
		{"too short a destination", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			return coll.AllGatherV(ctx, c, v.Slice(0, 29), []int{10, 10, 10}, v.Slice(50, 60))
		}, ubcoll.ErrArgument},
		{"another operation", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			return coll.AllGather(ctx, c, v.Slice(0, 30), v.Slice(50, 60))
		}, ubcoll.ErrMismatch},
	} {
		t.Run(k.name, func(t *testing.T) {
			gputest.Run(t, 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				a, err := gputest.Floats(ctx, c, dev, 100, float32(c.Rank()))
				if err != nil {
					return err
				}
				right := func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
					return coll.AllGatherV(ctx, c, v.Slice(0, 30), []int{10, 10, 10}, v.Slice(50, 60))
				}
				if c.Rank() == 1 {
					err = k.call(ctx, c, a.Vec())
				} else {
					err = right(ctx, c, a.Vec())
				}
				err = errors.Join(testkit.WantsOf(c.Rank(), "error", err, k.want), c.Err(), right(ctx, c, a.Vec()))
				if err != nil {
					return err
				}
				got := make([]float32, 100)
				if err := a.CopyTo(ctx, got); err != nil {
					return err
				}
				for i, x := range got[:30] {
					if x != float32(i/10) {
						return fmt.Errorf("element %d is %v", i, x)
					}
				}
				return nil
			})
		})
	}
}

// TestDeviceBroadcastLong makes broadcasts so long that several ranks pass them on, direct and staged.
func TestDeviceBroadcastLong(t *testing.T) {
	testkit.LongOrRace(t)
	for _, k := range []struct {
		n         int
		policy    register.Policy
		count     int
		algorithm string
	}{{4, register.Auto, 2<<20 + 123, "passed on"}, {4, register.Off, 2<<20 + 123, "passed on"},
		{2, register.Auto, 8<<20 + 123, "push"}, {2, register.Off, 8<<20 + 123, "push"}, {2, register.Off, 1<<20 + 123, "push lines"},
		{3, register.Auto, 1<<20 + 123, "push lines"}} {
		t.Run(fmt.Sprintf("ranks=%d/%v/%d", k.n, k.policy, k.count), func(t *testing.T) {
			if (race.Enabled || testing.Short()) && (k.policy == register.Off || k.count > 2<<20+123) {
				t.Skip("data are made and checked element by element")
			}
			n, count := k.n, k.count
			gputest.Run(t, n, ubcoll.Options{Register: k.policy}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				m, err := newMemory(c, dev, count)
				if err != nil {
					return err
				}
				for root := range n {
					d := verify.Data{Type: dtype.Uint8, Ranks: n, Seed: uint64(root)}
					v, err := m.use(ctx, c.Rank(), count, d.Type, func(p unsafe.Pointer) {
						if c.Rank() == root {
							d.Fill(p, count, root)
						}
					})
					if err != nil {
						return err
					}
					if err := coll.Broadcast(ctx, c, v, root); err != nil {
						return err
					}
					if o := c.LastOp(); o.Algorithm != k.algorithm {
						return fmt.Errorf("%v", o.String())
					}
					p, err := m.fetch(ctx)
					if err != nil {
						return err
					}
					if wrong, at := d.CheckInput(p, 0, count, root); wrong > 0 {
						return fmt.Errorf("rank %d, root %d: %d wrong, %v", c.Rank(), root, wrong, at)
					}
				}
				return nil
			})
		})
	}
}
