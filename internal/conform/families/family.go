// Package families has the suite for communicators that are split or duplicated from each other.
package families

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// Family splits and duplicates communicators, and uses them together with and after their parents.
func Family(ctx context.Context, c *ubcoll.Comm) error {
	return conform.Each(ctx, c, splitHalves, splitReversed, splitNone, nested, childOutlives, sharedMemory, concurrently,
		messages, familyMisuse, manyChildren)
}

func splitHalves(ctx context.Context, c *ubcoll.Comm) error {
	d, err := c.Split(ctx, c.Rank()%2, 0)
	if err != nil {
		return err
	}
	size := (c.Size() + 1 - c.Rank()%2) / 2
	oneHost := c.LocalSize() == c.Size()
	if d.Size() != size || d.Rank() != c.Rank()/2 || oneHost && (d.LocalSize() != size || d.LocalRank() != d.Rank()) ||
		d.Hostname(d.Rank()) != c.Hostname(c.Rank()) {
		return conform.Fail(c, "half: rank %d of %d", d.Rank(), d.Size())
	}
	want := int64(0)
	for r := c.Rank() % 2; r < c.Size(); r += 2 {
		want += int64(r)
	}
	return errors.Join(conform.SumOf(ctx, d, int64(c.Rank()), want), d.Close())
}

// splitReversed orders by key. Then rank 0 of the new communicator broadcasts its old rank.
func splitReversed(ctx context.Context, c *ubcoll.Comm) error {
	d, err := c.Split(ctx, 7, -c.Rank())
	if err != nil {
		return err
	}
	if d.Rank() != c.Size()-1-c.Rank() {
		return conform.Fail(c, "reversed: rank %d", d.Rank())
	}
	x := []int64{int64(c.Rank())}
	if err := coll.Broadcast(ctx, d, ubcoll.Of(x), 0); err != nil {
		return err
	}
	if x[0] != int64(c.Size()-1) {
		return conform.Fail(c, "rank 0 was %d", x[0])
	}
	return d.Close()
}

// splitNone leaves rank 0 out.
func splitNone(ctx context.Context, c *ubcoll.Comm) error {
	color := 3
	if c.Rank() == 0 {
		color = ubcoll.NoColor
	}
	d, err := c.Split(ctx, color, 0)
	switch {
	case err != nil:
		return err
	case c.Rank() == 0 && d != nil:
		return conform.Fail(c, "a negative color got a communicator")
	case d == nil:
		return nil
	}
	n := int64(c.Size())
	return errors.Join(conform.SumOf(ctx, d, int64(c.Rank()), n*(n-1)/2), d.Close())
}

func nested(ctx context.Context, c *ubcoll.Comm) error {
	n := int64(c.Size())
	d, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	e, err := d.Split(ctx, 0, 0)
	if err != nil {
		return err
	}
	f, err := e.Dup(ctx)
	if err != nil {
		return err
	}
	for _, x := range []*ubcoll.Comm{f, c, e, d} {
		if err := conform.SumOf(ctx, x, int64(x.Rank()), n*(n-1)/2); err != nil {
			return err
		}
	}
	return errors.Join(e.Close(), f.Close(), d.Close())
}

// childOutlives closes the parent of a communicator that goes on, with memory that was made with the parent.
func childOutlives(ctx context.Context, c *ubcoll.Comm) error {
	d, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	b, err := ubcoll.Alloc[float32](d, ubcoll.Host, 100_000)
	if err != nil {
		return err
	}
	r, err := d.RegisterBuffer(b.Vec())
	if err != nil {
		return err
	}
	e, err := d.Dup(ctx)
	if err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		return err
	}
	if err := conform.Refused(c, "a registration of a closed communicator", r.Close(), ubcoll.ErrClosed); err != nil {
		return err
	}
	if err := coll.AllReduce(ctx, d, b.Vec(), b.Vec(), ubcoll.Sum); !errors.Is(err, ubcoll.ErrClosed) {
		return conform.Fail(c, "a closed communicator gave %v", err)
	}
	if err := coll.AllReduce(ctx, e, b.Vec(), b.Vec(), ubcoll.Max); err != nil {
		return err
	}
	return errors.Join(b.Free(), e.Close())
}

// sharedMemory registers once, and finds the registration with every communicator.
func sharedMemory(ctx context.Context, c *ubcoll.Comm) error {
	d, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 1<<18)
	if err != nil {
		return err
	}
	r, err := c.RegisterBuffer(b.Vec())
	if err != nil {
		return err
	}
	for range 2 {
		for _, x := range []*ubcoll.Comm{c, d} {
			if err := coll.AllReduce(ctx, x, b.Vec(), b.Vec(), ubcoll.Max); err != nil {
				return err
			}
			if o := x.LastOp(); c.Size() > 1 && c.LocalSize() == c.Size() && (!o.Src.Direct || !o.Dst.Direct) {
				return conform.Fail(c, "a buffer registered with the other communicator: %s", o.String())
			}
		}
	}
	return errors.Join(r.Close(), b.Free())
}

// concurrently runs collectives on three communicators at once.
func concurrently(ctx context.Context, c *ubcoll.Comm) error {
	comms := []*ubcoll.Comm{c}
	for range 2 {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		comms = append(comms, d)
	}
	n := int64(c.Size())
	errs := make([]error, len(comms))
	var wg sync.WaitGroup
	for i, x := range comms {
		wg.Go(func() {
			for k := range int64(100) {
				if errs[i] = conform.SumOf(ctx, x, k+int64(x.Rank()), n*k+n*(n-1)/2); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, comms[1].Close(), comms[2].Close())...)
}

// messages sends around the ring of a communicator and of its reversed child, whose messages are separate.
func messages(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() == 1 || c.LocalSize() < c.Size() { // there are no messages between hosts
		return nil
	}
	d, err := c.Split(ctx, 0, -c.Rank())
	if err != nil {
		return err
	}
	for _, n := range []int{1, 1000, 300_000} {
		var errs [2]error
		var wg sync.WaitGroup
		for i, x := range []*ubcoll.Comm{c, d} {
			wg.Go(func() {
				next, last := conform.Ring(x)
				got := make([]byte, n)
				_, errs[i] = p2p.SendRecv(ctx, x, last, ubcoll.Of(got), next, ubcoll.Of(conform.Pattern(10*i+x.Rank(), n, n)))
				if errs[i] == nil && !bytes.Equal(got, conform.Pattern(10*i+last, n, n)) {
					errs[i] = conform.Fail(x, "message of %d bytes from rank %d of communicator %d: wrong data", n, last, i)
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
	}
	return errors.Join(coll.Barrier(ctx, d), d.Close())
}

func familyMisuse(ctx context.Context, c *ubcoll.Comm) error {
	// A rank whose context has ended takes no part. All learn of it, and the communicator goes on.
	mine, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.Rank() == c.Size()-1 {
		cancel()
	}
	if d, err := c.Split(mine, 0, 0); d != nil || !errors.Is(err, context.Canceled) {
		return conform.Fail(c, "split with an ended context: %v", err)
	}
	if c.Size() > 1 {
		// A rank that makes another call.
		var err error
		if c.Rank() == 0 {
			_, err = c.Dup(ctx)
		} else {
			_, err = c.Split(ctx, 0, 0)
		}
		if !errors.Is(err, ubcoll.ErrMismatch) {
			return conform.Fail(c, "dup against split: %v", err)
		}
	}
	err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
		_, err := g.Dup(ctx)
		return err
	})
	if !errors.Is(err, ubcoll.ErrArgument) {
		return conform.Fail(c, "dup in a group: %v", err)
	}
	return nil
}

// manyChildren makes and closes more communicators than could be open at a time, and leaks nothing.
func manyChildren(ctx context.Context, c *ubcoll.Comm) error {
	var before ubcoll.Stats
	for k := range 60 {
		d, err := c.Split(ctx, k%2, k)
		if err != nil {
			return fmt.Errorf("communicator %d: %w", k, err)
		}
		if err := errors.Join(coll.Barrier(ctx, d), d.Close(), coll.Barrier(ctx, c)); err != nil {
			return err
		}
		if k == 9 {
			before = c.Stats()
		}
	}
	if after := c.Stats(); after.Memory.Allocations > before.Memory.Allocations+4 {
		return conform.Fail(c, "%d allocations after 10 communicators, %d after 60", before.Memory.Allocations,
			after.Memory.Allocations)
	}
	return nil
}
