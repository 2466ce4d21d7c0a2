package collectives

import (
	"context"
	"errors"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// Order mixes blocking calls, streams and groups, and checks that all run in call order.
func Order(ctx context.Context, c *ubcoll.Comm) error {
	s1, err := ubcoll.NewStream(ubcoll.Host)
	if err != nil {
		return err
	}
	s2, err := ubcoll.NewStream(ubcoll.Host)
	if err != nil {
		return err
	}
	n := int64(c.Size())
	x := []int64{1}
	v := ubcoll.Of(x)
	// Each step multiplies x by n, so a wrong order or a lost step shows.
	want := int64(1)
	for k := 0; k < 5; k++ {
		if err := coll.AllReduce(ctx, c.On(s1), v, v, ubcoll.Sum); err != nil {
			return err
		}
		if err := coll.AllReduce(ctx, c.On(s2), v, v, ubcoll.Sum); err != nil {
			return err
		}
		if err := coll.AllReduce(ctx, c, v, v, ubcoll.Sum); err != nil { // after both streams
			return err
		}
		want *= n * n * n
		if x[0] != want {
			return conform.Fail(c, "round %d: %d, not %d", k, x[0], want)
		}
		err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
			for i := 0; i < 3; i++ {
				if err := coll.AllReduce(ctx, g, v, v, ubcoll.Max); err != nil {
					return err
				}
			}
			return coll.Barrier(ctx, g)
		})
		if err != nil || x[0] != want {
			return conform.Fail(c, "group: %v, %d, not %d", err, x[0], want)
		}
	}
	// A group on a stream, and a group that fails on its second call.
	y := []int64{int64(c.Rank())}
	err = ubcoll.Group(ctx, c.On(s1), func(g *ubcoll.Comm) error {
		return errors.Join(coll.AllReduce(ctx, g, ubcoll.Of(y), ubcoll.Of(y), ubcoll.Sum),
			coll.AllReduce(ctx, g, ubcoll.Of(y), ubcoll.Of(y), ubcoll.Op{}))
	})
	if err != nil {
		return err
	}
	if err := s1.Close(); err == nil || !errors.Is(err, ubcoll.ErrBusy) && !errors.Is(err, ubcoll.ErrArgument) {
		return conform.Fail(c, "close of a stream with work or an unreported error: %v", err)
	} else if errors.Is(err, ubcoll.ErrBusy) {
		if err := s1.Sync(ctx); !errors.Is(err, ubcoll.ErrArgument) {
			return conform.Fail(c, "the stream's error is %v, not ErrArgument", err)
		}
	}
	if y[0] != n*(n-1)/2 {
		return conform.Fail(c, "first call of the group: %d", y[0])
	}
	return errors.Join(s2.Sync(ctx), s2.Close())
}
