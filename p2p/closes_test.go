package p2p_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// paused is a context that stays in its n-th Err, which a wait calls before it looks at its peer, until over is closed.
type paused struct {
	context.Context
	calls       atomic.Int32
	n           int32
	begun, over chan struct{}
}

func (p *paused) Err() error {
	if p.calls.Add(1) == p.n {
		close(p.begun)
		<-p.over
	}
	return p.Context.Err()
}

// A rank takes a message and closes its communicator between a look at the message and one at the rank. That does not
// concern the other message that the sender waits for.
func TestTakesAndCloses(t *testing.T) {
	ctxs := make([]*paused, 12) // the message that a wait looks at varies
	for i := range ctxs {
		ctxs[i] = &paused{Context: t.Context(), n: int32(10 + i), begun: make(chan struct{}), over: make(chan struct{})}
	}
	require.NoError(t, ubcoll.Local(t.Context(), 3, ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
		b, err := ubcoll.Alloc[int64](c, ubcoll.Host, 3000) // which the receiver copies without the sender
		if err != nil {
			return err
		}
		x, y := b.Vec(), ubcoll.Of(make([]int64, 3000))
		for k, p := range ctxs {
			d, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			switch d.Rank() {
			case 0:
				<-p.over
				err = p2p.Send(ctx, d, 1, x)
			case 1:
				_, err = p2p.SendRecv(p, d, 0, y, 2, x)
			case 2:
				<-p.begun
				_, err = p2p.Recv(ctx, d, 1, y)
			}
			if err != nil {
				return fmt.Errorf("round %d: %w", k, err)
			}
			if err := d.Close(); err != nil {
				return err
			}
			if d.Rank() == 2 {
				close(p.over)
			}
		}
		return nil
	}))
}
