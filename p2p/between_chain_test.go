package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestBetweenChain: who gives up names the rank at the end of the chain of waits over hosts, and what that rank waits for.
// Ranks 0 and 1 are on host a, 2 and 3 on host b, 4 on host c.
func TestBetweenChain(t *testing.T) {
	testkit.LongOrRace(t)
	recv := func(from int) func(ctx context.Context, c *ubcoll.Comm) error {
		return func(ctx context.Context, c *ubcoll.Comm) error {
			_, err := p2p.Recv(ctx, c, from, ubcoll.Of(make([]byte, 1<<20)))
			return err
		}
	}
	none := func(context.Context, *ubcoll.Comm) error { return nil }
	connect := func(to int) func(ctx context.Context, c *ubcoll.Comm) error {
		return func(ctx context.Context, c *ubcoll.Comm) error {
			r, err := conform.NewRegion(c, 4096)
			if err != nil {
				return err
			}
			_, err = p2p.Connect(ctx, c, to, r.Reg)
			return errors.Join(err, r.Free())
		}
	}
	for _, k := range []struct {
		name  string
		calls [5]func(ctx context.Context, c *ubcoll.Comm) error
		about int // whom rank 0 names
		text  string
	}{
		{"over three hosts", [5]func(context.Context, *ubcoll.Comm) error{recv(2), none, recv(4), none, none}, 4,
			"; on others rank 2 in recv #1 from rank 4, rank 4 in no wait"},
		{"to a mate of the awaited one", [5]func(context.Context, *ubcoll.Comm) error{recv(2), none, recv(3), none, none}, 3,
			"; on others rank 2 in recv #1 from rank 3, rank 3 in no wait"},
		{"over a channel", [5]func(context.Context, *ubcoll.Comm) error{recv(2), none, connect(4), none, none}, 4,
			"; on others rank 2 in a channel or window for rank 4, rank 4 in no wait"},
		{"a circle", [5]func(context.Context, *ubcoll.Comm) error{recv(2), none, recv(4), none, recv(0)}, 2,
			"a circle of receives (0 -> 2 -> 4 -> 0)"},
	} {
		t.Run(k.name, func(t *testing.T) {
			defer testkit.NoLeaks(t)()
			given := make(chan struct{}) // rank 0 has given up
			err := conform.Block(2, 2, 1).Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
				v := (*inside.Comm)(c).View()
				over := make(chan error, 1)
				go func() { over <- k.calls[c.Rank()](ctx, c) }()
				if c.Rank() != 0 {
					<-given
					if err := <-over; err != nil && !errors.Is(err, ubcoll.ErrTimeout) && !errors.Is(err, ubcoll.ErrPeerLost) {
						return err
					}
					return nil
				}
				defer close(given)
				// A question is asked each second, and each rank of the chain learns one more from it.
				if !testkit.Until(func() bool { return len(v.Team().Chain()) >= 3 }) {
					return fmt.Errorf("the chain is %x", v.Team().Chain())
				}
				v.SetTimeout(time.Millisecond)
				err := <-over
				e, ok := errors.AsType[*ubcoll.Error](err)
				if !ok || !errors.Is(err, ubcoll.ErrTimeout) || e.Peer != k.about {
					return fmt.Errorf("not about rank %d: %w", k.about, err)
				}
				require.Contains(t, err.Error(), k.text)
				return nil
			})
			require.NoError(t, err)
		})
	}
}
