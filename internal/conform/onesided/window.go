package onesided

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Windows makes windows of all kinds, and puts, gets and signals through them.
func Windows(ctx context.Context, c *ubcoll.Comm) error {
	return conform.Each(ctx, c, windowData, windowFlags, windowMisuse, windowTwice, windowEnds, windowGroup, windowMany,
		inOrder)
}

func windowData(ctx context.Context, c *ubcoll.Comm) error {
	const n = 50_000
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, n*c.Size())
	if err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowDefault)
	if err != nil {
		return err
	}
	if w.Bytes() != n*c.Size() || w.Flags() != ubcoll.WindowDefault {
		return conform.Fail(c, "the window has %d bytes, %v", w.Bytes(), w.Flags())
	}
	for round := range 5 {
		// Every rank puts to its place at every rank, itself included, from Go memory.
		mine := conform.Pattern(c.Rank(), round, n)
		for p := range c.Size() {
			if err := testkit.InOrder(
				func() error { return w.Put(ctx, p, n*c.Rank(), ubcoll.Of(mine)) },
				func() error { return w.Signal(ctx, p) }); err != nil {
				return err
			}
		}
		if err := w.Flush(ctx); err != nil {
			return err
		}
		for p := range c.Size() {
			if err := w.Wait(ctx, p); err != nil {
				return err
			}
			if !bytes.Equal(b.Slice()[n*p:n*(p+1)], conform.Pattern(p, round, n)) {
				return conform.Fail(c, "round %d: put of rank %d: wrong data", round, p)
			}
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		got := make([]byte, n-7)
		for p := range c.Size() {
			from := (p + round) % c.Size()
			if err := w.Get(ctx, p, ubcoll.Of(got), n*from+7); err != nil {
				return err
			}
			if !bytes.Equal(got, conform.Pattern(from, round, n)[7:]) {
				return conform.Fail(c, "round %d: get from rank %d: wrong data", round, p)
			}
			// A peer's part as an operand of another operation.
			v, err := w.Peer(p)
			if conform.Far(c, p) {
				if err := conform.Refused(c, "peer on another host", err, ubcoll.ErrNotSupported); err != nil {
					return err
				}
				v, err = b.Vec(), nil
			}
			if err != nil {
				return err
			}
			if v.Len() != w.Bytes() {
				return conform.Fail(c, "rank %d's part has %d elements", p, v.Len())
			}
			x := make([]byte, 64)
			if err := coll.AllReduce(ctx, c, ubcoll.Of(x), v.Slice(n*from, n*from+64), ubcoll.Max); err != nil {
				return err
			}
			if !bytes.Equal(x, conform.Pattern(from, round, n)[:64]) {
				return conform.Fail(c, "round %d: rank %d's part: wrong data", round, p)
			}
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
	}
	if err := conform.Refused(c, "free", b.Free(), ubcoll.ErrInUse); err != nil {
		return err
	}
	return errors.Join(w.Close(), b.Free())
}

func windowFlags(ctx context.Context, c *ubcoll.Comm) error {
	b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 4096)
	if err != nil {
		return err
	}
	for _, f := range []ubcoll.WindowFlags{0, ubcoll.WindowCollSymmetric, ubcoll.WindowStrictOrdering,
		ubcoll.WindowCollSymmetric | ubcoll.WindowStrictOrdering} {
		w, err := c.RegisterWindow(ctx, b.Vec().Slice(100, 200), f)
		if err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		if c.Size() == 1 {
			continue
		}
		at := 0
		if c.Rank() == c.Size()-1 {
			at = 8
		}
		w, err = c.RegisterWindow(ctx, b.Vec().Slice(at, at+100), f)
		if f&ubcoll.WindowCollSymmetric == 0 {
			if err == nil {
				err = w.Close()
			}
		} else {
			err = names(c, "unequal offsets", err, ubcoll.ErrMismatch, c.Size()-1)
		}
		if err != nil {
			return err
		}
	}
	return b.Free()
}

// names checks that err wraps want and names rank.
func names(c *ubcoll.Comm, what string, err, want error, rank int) error {
	var e *ubcoll.Error
	if err := conform.Refused(c, what, err, want); err != nil {
		return err
	}
	if errors.As(err, &e); e.Peer != rank && e.Rank != rank {
		return conform.Fail(c, "%s gave %v, which does not name rank %d", what, err, rank)
	}
	if c.Err() != nil {
		return conform.Fail(c, "%s broke the communicator: %w", what, c.Err())
	}
	return nil
}

func windowMisuse(ctx context.Context, c *ubcoll.Comm) error {
	bad := c.Size() - 1
	mine := c.Rank() == bad
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 8192)
	if err != nil {
		return err
	}
	pick := func(odd, rest ubcoll.Vec) ubcoll.Vec {
		if mine {
			return odd
		}
		return rest
	}
	flags := ubcoll.WindowDefault
	if mine {
		flags = ubcoll.WindowStrictOrdering
	}
	v := b.Vec()
	cases := []struct {
		name  string
		vec   ubcoll.Vec
		flags ubcoll.WindowFlags
		want  error
	}{
		{"Go memory", pick(ubcoll.Of(make([]byte, 8192)), v), 0, ubcoll.ErrArgument},
		{"an empty view", pick(v.Slice(0, 0), v), 0, ubcoll.ErrArgument},
		{"a bad view", pick(v.Slice(5, 1), v), 0, ubcoll.ErrArgument},
		{"unknown flags", v, 8, ubcoll.ErrArgument},
	}
	if c.Size() > 1 {
		cases = append(cases, []struct {
			name  string
			vec   ubcoll.Vec
			flags ubcoll.WindowFlags
			want  error
		}{
			{"unequal sizes", pick(v.Slice(0, 100), v), 0, ubcoll.ErrMismatch},
			{"unequal flags", v, flags, ubcoll.ErrMismatch},
		}...)
	}
	for _, k := range cases {
		w, err := c.RegisterWindow(ctx, k.vec, k.flags)
		if w != nil {
			return conform.Fail(c, "%s: a window", k.name)
		}
		about := bad
		if k.name == "unknown flags" {
			about = c.Rank() // each rank names itself
		}
		if err := names(c, k.name, err, k.want, about); err != nil {
			return err
		}
	}
	w, err := c.RegisterWindow(ctx, v, 0)
	if err != nil {
		return err
	}
	const huge = 1<<63 - 1
	x := ubcoll.Of(make([]byte, 10))
	for _, p := range []int{c.Rank(), bad} {
		for _, off := range []int{-1, 8183, 8192, 8193, huge} {
			if err := errors.Join(conform.Refused(c, "put outside", w.Put(ctx, p, off, x), ubcoll.ErrArgument),
				conform.Refused(c, "get outside", w.Get(ctx, p, x, off), ubcoll.ErrArgument)); err != nil {
				return err
			}
		}
	}
	for _, p := range []int{-1, c.Size(), huge} {
		if err := errors.Join(conform.Refused(c, "put", w.Put(ctx, p, 0, x), ubcoll.ErrArgument),
			conform.Refused(c, "get", w.Get(ctx, p, x, 0), ubcoll.ErrArgument),
			conform.Refused(c, "signal", w.Signal(ctx, p), ubcoll.ErrArgument),
			conform.Refused(c, "wait", w.Wait(ctx, p), ubcoll.ErrArgument),
			conform.Refused(c, "peer", testkit.ErrOf(w.Peer(p)), ubcoll.ErrArgument)); err != nil {
			return err
		}
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := conform.Refused(c, "wait", w.Wait(short, bad), context.DeadlineExceeded); err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	return errors.Join(w.Close(), b.Free())
}

// windowTwice makes two windows and a registration on the same memory.
func windowTwice(ctx context.Context, c *ubcoll.Comm) error {
	b, err := ubcoll.Alloc[int64](c, ubcoll.Host, 1000)
	if err != nil {
		return err
	}
	before := c.Stats().Cache
	w1, err1 := c.RegisterWindow(ctx, b.Vec(), 0)
	w2, err2 := c.RegisterWindow(ctx, b.Vec(), 0)
	r, err3 := c.RegisterBuffer(b.Vec())
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if after := c.Stats().Cache; after.Regions != before.Regions+1 {
		return conform.Fail(c, "%d regions for one piece of memory", after.Regions-before.Regions)
	}
	next, last := conform.Ring(c)
	if err := testkit.InOrder(
		w1.Close,
		func() error { return w2.Put(ctx, next, 8, ubcoll.Of([]int64{int64(c.Rank())})) },
		func() error { return w2.Signal(ctx, next) },
		func() error { return w2.Wait(ctx, last) }); err != nil {
		return err
	}
	if b.Slice()[1] != int64(last) {
		return conform.Fail(c, "got %d from rank %d", b.Slice()[1], last)
	}
	for _, close := range []func() error{w2.Close, r.Close} {
		if err := conform.Refused(c, "free", b.Free(), ubcoll.ErrInUse); err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		if err := close(); err != nil {
			return err
		}
	}
	return b.Free()
}

// windowEnds uses windows that are closed here, at the peer, or with their communicator.
func windowEnds(ctx context.Context, c *ubcoll.Comm) error {
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 4096)
	if err != nil {
		return err
	}
	x := ubcoll.Of(make([]byte, 10))
	gone := func(w *ubcoll.Window) error {
		return errors.Join(conform.Refused(c, "put", w.Put(ctx, 0, 0, x), ubcoll.ErrClosed),
			conform.Refused(c, "get", w.Get(ctx, 0, x, 0), ubcoll.ErrClosed),
			conform.Refused(c, "signal", w.Signal(ctx, 0), ubcoll.ErrClosed),
			conform.Refused(c, "wait", w.Wait(ctx, 0), ubcoll.ErrClosed),
			conform.Refused(c, "flush", w.Flush(ctx), ubcoll.ErrClosed),
			conform.Refused(c, "peer", testkit.ErrOf(w.Peer(0)), ubcoll.ErrClosed),
			conform.Refused(c, "close", w.Close(), ubcoll.ErrClosed))
	}
	w, err := c.RegisterWindow(ctx, b.Vec(), 0)
	if err != nil {
		return err
	}
	if c.Rank() == 0 {
		for p := range c.Size() {
			if err := w.Signal(ctx, p); err != nil {
				return err
			}
		}
		if err := testkit.InOrder(func() error { return w.Wait(ctx, 0) }, w.Close, func() error { return gone(w) }); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if c.Rank() != 0 {
		if err := testkit.InOrder(
			func() error { return conform.Refused(c, "put", w.Put(ctx, 0, 0, x), ubcoll.ErrStale) },
			func() error { return conform.Refused(c, "get", w.Get(ctx, 0, x, 0), ubcoll.ErrStale) },
			func() error { return conform.Refused(c, "peer", testkit.ErrOf(w.Peer(0)), ubcoll.ErrStale) },
			func() error { return w.Wait(ctx, 0) },
			func() error { return conform.Refused(c, "wait", w.Wait(ctx, 0), ubcoll.ErrClosed) },
			w.Close,
			func() error { return gone(w) }); err != nil {
			return err
		}
	}
	// Closed with the communicator: a window that was left open, and one after an abort.
	for _, abort := range []bool{false, true} {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		w, err := d.RegisterWindow(ctx, b.Vec(), 0)
		if err != nil {
			return err
		}
		if err := conform.Refused(c, "free", b.Free(), ubcoll.ErrInUse); err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		if abort {
			d.Abort(errors.New("on purpose"))
			if err := w.Put(ctx, 0, 0, x); !errors.Is(err, ubcoll.ErrClosed) && !errors.Is(err, ubcoll.ErrAborted) {
				return conform.Fail(c, "put after an abort: %v", err)
			}
		}
		if err := testkit.InOrder(d.Close, func() error { return gone(w) }); err != nil {
			return err
		}
	}
	return b.Free()
}

// windowGroup makes windows in a group, between collectives.
func windowGroup(ctx context.Context, c *ubcoll.Comm) error {
	b, err := ubcoll.Alloc[int64](c, ubcoll.Host, 64)
	if err != nil {
		return err
	}
	x := []int64{1}
	var w1, w2 *ubcoll.Window
	err = ubcoll.Group(ctx, c, func(g *ubcoll.Comm) (err error) {
		if err = coll.AllReduce(ctx, g, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum); err != nil {
			return err
		}
		if w1, err = g.RegisterWindow(ctx, b.Vec(), 0); err != nil {
			return err
		}
		if err := conform.Refused(c, "a window before its group has ended", w1.Signal(ctx, 0), ubcoll.ErrClosed); err != nil {
			return err
		}
		w2, err = g.RegisterWindow(ctx, b.Vec(), ubcoll.WindowCollSymmetric)
		return err
	})
	if err != nil {
		return err
	}
	if x[0] != int64(c.Size()) {
		return conform.Fail(c, "the group's sum is %d", x[0])
	}
	for _, w := range []*ubcoll.Window{w1, w2} {
		next, last := conform.Ring(c)
		if err := errors.Join(testkit.InOrder(
			func() error { return w.Signal(ctx, next) },
			func() error { return w.Wait(ctx, last) }), w.Close()); err != nil {
			return err
		}
	}
	// A window that fails, on all ranks.
	v := b.Vec()
	if c.Rank() == c.Size()-1 {
		v = ubcoll.Of(make([]int64, 64))
	}
	err = ubcoll.Group(ctx, c, func(g *ubcoll.Comm) (err error) {
		w1, err = g.RegisterWindow(ctx, v, 0)
		return err
	})
	if err := names(c, "Go memory in a group", err, ubcoll.ErrArgument, c.Size()-1); err != nil {
		return err
	}
	if err := testkit.InOrder(
		w1.Close,
		func() error { return conform.Refused(c, "close", w1.Close(), ubcoll.ErrClosed) }); err != nil {
		return err
	}
	return b.Free()
}

// windowMany makes and closes windows, and leaks nothing.
func windowMany(ctx context.Context, c *ubcoll.Comm) error {
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 4096)
	if err != nil {
		return err
	}
	var before ubcoll.Stats
	for k := range 300 {
		w, err := c.RegisterWindow(ctx, b.Vec(), 0)
		if err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		if k == 9 {
			before = c.Stats()
		}
	}
	if after := c.Stats(); after.Memory.Allocations > before.Memory.Allocations+4 {
		return conform.Fail(c, "%d allocations after 10 windows, %d after 300", before.Memory.Allocations,
			after.Memory.Allocations)
	}
	return b.Free()
}
