package mail_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestVerdictBeforeRoom: there is room for a message only after the verdict that its own will overwrite has been read.
func TestVerdictBeforeRoom(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := ubcoll.Of(make([]byte, 4000))
		if c.Rank() == 1 {
			_, err := p2p.Recv(ctx, c, 0, x.Slice(0, 8))
			if !errors.Is(err, ubcoll.ErrMismatch) {
				return fmt.Errorf("a message that does not fit: %v", err)
			}
			for range mail.SendSlots - 1 {
				if _, err := p2p.Recv(ctx, c, 0, x); err != nil {
					return err
				}
			}
			return coll.Barrier(ctx, c)
		}
		var g p2p.Exchange
		g.Send(1, x)
		for range mail.SendSlots - 1 {
			g.Send(1, x.Slice(0, 8))
		}
		r, err := g.Start(ctx, c)
		if err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil { // a barrier may move them
			return err
		}
		m := (*inside.Comm)(c).View().Mail
		b := m.Box(1)
		b.Send.Lock()
		free, err := m.Room(b)
		open := b.Send.Open.Head
		b.Send.Unlock()
		if err != nil || !free || open != nil {
			return fmt.Errorf("room %v, open %v, %w", free, open, err)
		}
		if err := r.Wait(ctx); !errors.Is(err, ubcoll.ErrMismatch) {
			return fmt.Errorf("the sender gets %v", err)
		}
		return nil
	}))
}
