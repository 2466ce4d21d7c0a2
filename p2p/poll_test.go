package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// A loop of Poll ends when no signal can come any more, after all that have come.
func TestPollEnds(t *testing.T) {
	t.Setenv(env.Net.Name, "lo")
	for _, l := range []conform.Layout{conform.Block(2), conform.Block(1, 1)} {
		for _, k := range []struct {
			name string
			end  func(c *ubcoll.Comm, ch *p2p.Channel) error
			want []error
		}{
			{"abort", func(c *ubcoll.Comm, _ *p2p.Channel) error { c.Abort(errors.New("enough")); return nil },
				[]error{ubcoll.ErrAborted, ubcoll.ErrClosed}},
			{"close of the communicator", func(c *ubcoll.Comm, ch *p2p.Channel) error { return errors.Join(ch.Close(), c.Close()) },
				[]error{ubcoll.ErrClosed, ubcoll.ErrPeerLost}},
			{"close of the channel", func(_ *ubcoll.Comm, ch *p2p.Channel) error { return ch.Close() }, []error{ubcoll.ErrClosed}},
		} {
			t.Run(fmt.Sprint(l, " ", k.name), func(t *testing.T) {
				require.NoError(t, l.RunOver(t.Context(), inside.Providers.Network, func(ctx context.Context, whole *ubcoll.Comm) error {
					c, err := whole.Dup(ctx)
					if err != nil {
						return err
					}
					defer c.Close()
					defer coll.Barrier(ctx, whole) // no rank closes it before
					b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 64)
					if err != nil {
						return err
					}
					r, err := c.RegisterBuffer(b.Vec())
					if err != nil {
						return err
					}
					ch, err := p2p.Connect(ctx, c, 1-c.Rank(), r)
					if err != nil {
						return err
					}
					if c.Rank() == 0 {
						time.Sleep(10 * time.Millisecond)
						return testkit.InOrder(func() error { return ch.Signal(ctx) }, func() error { return ch.Signal(ctx) },
							func() error { return k.end(c, ch) })
					}
					signals := 0
					testkit.Until(func() bool {
						got := false
						for range 100 {
							if got, err = ch.Poll(); got {
								signals++
							}
							if err != nil {
								return true
							}
						}
						return false
					})
					// What breaks a communicator may overtake signals.
					is := func(want error) bool { return errors.Is(err, want) }
					if signals != 2 && k.name != "abort" || !slices.ContainsFunc(k.want, is) {
						return fmt.Errorf("%d signals, then %w", signals, err)
					}
					return nil
				}))
			})
		}
	}
}
