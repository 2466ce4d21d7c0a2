package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/internal/tuning"
	"github.com/ubcoll/ubcoll/p2p"
)

// limited makes communicators have limits of messages from a tuning table.
func limited(t *testing.T, limits map[string]int) {
	f := tuning.File{Messages: limits}
	name := filepath.Join(t.TempDir(), "table.json")
	require.NoError(t, os.WriteFile(name, f.Bytes(), 0o600))
	t.Setenv(env.Tuning.Name, name)
}

// The tuning table says how long messages of host memory may be that do not wait for their receive.
func TestEagerLimit(t *testing.T) {
	for _, limit := range []int{0, 1, 100, 113, 512, 2 << 10} { // up to 112 bytes they travel in their slots
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			limited(t, map[string]int{"eager_few": limit})
			err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
				d, err := c.Dup(ctx)
				if err != nil {
					return err
				}
				return errors.Join(eagerUpTo(ctx, c, limit), eagerUpTo(ctx, d, limit), d.Close())
			})
			require.NoError(t, err)
		})
	}
}

// refused returns nil if err refuses a message of n bytes to this rank itself, which is longer than limit.
func refused(err error, n, limit int) error {
	want := fmt.Sprintf("%d bytes to this rank itself, more than %d", n, limit)
	if !errors.Is(err, ubcoll.ErrArgument) || !strings.Contains(err.Error(), want) {
		return fmt.Errorf("%v, and %q wanted", err, want)
	}
	return nil
}

// eagerUpTo exchanges messages of about limit bytes with the other rank.
func eagerUpTo(ctx context.Context, c *ubcoll.Comm, limit int) error {
	peer := 1 - c.Rank()
	for _, registered := range []bool{false, true} {
		for _, n := range []int{limit, limit + 1} {
			src, dst, want := make([]byte, n), make([]byte, n), "window"
			if registered {
				b, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
				if err != nil {
					return err
				}
				src, want = b.Slice(), "pull"
			}
			v := ubcoll.Of(src)
			copy(src, pattern(n, uint64(c.Rank())))
			if n <= limit {
				want = "eager"
				if err := p2p.Send(ctx, c, peer, v); err != nil { // of both ranks, before the receives
					return err
				}
				if _, err := p2p.Recv(ctx, c, peer, ubcoll.Of(dst)); err != nil {
					return err
				}
			}
			for range 20 {
				if _, err := p2p.SendRecv(ctx, c, peer, ubcoll.Of(dst), peer, v); err != nil {
					return err
				}
				if got := c.LastOp().Algorithm; got != want {
					return fmt.Errorf("%d bytes: %s, and %s wanted", n, got, want)
				}
				if !bytes.Equal(dst, pattern(n, uint64(peer))) {
					return fmt.Errorf("%d bytes are wrong", n)
				}
				clear(dst)
			}
			err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
				return errors.Join(p2p.Send(ctx, g, peer, v), recv(ctx, g, peer, ubcoll.Of(dst)))
			})
			if err != nil {
				return err
			}
			if m := c.LastOp().Members; len(m) != 2 || m[0].Algorithm != want {
				return fmt.Errorf("%d bytes in a group: %+v, and %s wanted", n, m, want)
			}
			if !bytes.Equal(dst, pattern(n, uint64(peer))) {
				return fmt.Errorf("%d bytes in a group are wrong", n)
			}
			if n <= limit {
				continue
			}
			err = p2p.Send(ctx, c, c.Rank(), v)
			if err = refused(err, n, limit); err != nil {
				return err
			}
		}
	}
	return nil
}

// The tuning table says how long messages of device memory may be that go as packets.
func TestEagerLimitDevice(t *testing.T) {
	for _, limit := range testkit.Sample(2, []int{0, 100, 4 << 10, 64 << 10}) {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			limited(t, map[string]int{"eager_device": limit})
			gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				peer := 1 - c.Rank()
				for i, n := range []int{0, limit, 1, 5, limit + 1, limit + 13} {
					want, odd := "push", i%4
					if n <= limit {
						want = "packets"
					}
					src, err1 := newCell(ctx, c, dev, n, odd, pattern(n, uint64(c.Rank()), uint64(i)))
					dst, err2 := newCell(ctx, c, dev, n, i%3, nil)
					if err := errors.Join(err1, err2); err != nil {
						return err
					}
					for range 3 { // the sender may import the memory meanwhile
						if _, err := p2p.SendRecv(ctx, c, peer, dst.vec, peer, src.vec); err != nil {
							return err
						}
						if got := c.LastOp().Algorithm; got != want {
							return fmt.Errorf("%d bytes: %s, and %s wanted", n, got, want)
						}
						if err := dst.is(ctx, i%3, pattern(n, uint64(peer), uint64(i))); err != nil {
							return err
						}
						if err := coll.Barrier(ctx, c); err != nil {
							return err
						}
					}
					if n > limit {
						if err := refused(p2p.Send(ctx, c, c.Rank(), src.vec), n, limit); err != nil {
							return err
						}
					}
					if err := errors.Join(src.all.Free(), dst.all.Free()); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// A limit for which boxes have no room is an error of Open.
func TestEagerLimitTooLarge(t *testing.T) {
	limited(t, map[string]int{"eager_few": 2<<10 + 1})
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(context.Context, *ubcoll.Comm) error { return nil })
	require.ErrorIs(t, err, ubcoll.ErrArgument)
	require.ErrorContains(t, err, env.Tuning.Name)
	require.ErrorContains(t, err, `eager_few of "messages" is 2049, and a message's box has room for 2048`)
}
