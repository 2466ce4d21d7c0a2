package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestBetweenInfo: LastOp says of messages between hosts which wire has carried them, whether they travelled with their
// announcement, and of those of a group each for itself.
func TestBetweenInfo(t *testing.T) {
	const wire = "tcp lo: copied by the kernel"
	t.Setenv("UBCOLL_NET", "lo")
	twoHosts(t, func(ctx context.Context, c *ubcoll.Comm) error {
		peer := 1 - c.Rank()
		for _, n := range []int{16, 1 << 20} {
			how := "eager"
			if n > 16 {
				how = "rendezvous"
			}
			v, w := ubcoll.Of(make([]byte, n)), ubcoll.Of(make([]byte, n))
			for from := range 3 { // the first may be sent before there is a wire
				if err := pass(ctx, c, from%2, v); err != nil {
					return err
				}
			}
			if o := c.LastOp(); c.Rank() == 0 || n > 16 { // of small ones that come alone nobody takes note
				if err := says(o, how+" over 2 hosts, "+wire); err != nil {
					return err
				}
			}
			if err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
				_, err := p2p.Recv(ctx, g, peer, w)
				return errors.Join(p2p.Send(ctx, g, peer, v), err)
			}); err != nil {
				return err
			}
			for _, m := range c.LastOp().Members {
				if err := says(m, how+" over 2 hosts, "+wire); err != nil {
					return fmt.Errorf("%s in a group: %w", m.Op, err)
				}
			}
		}
		return nil
	})
}

// pass sends from one of two ranks to the other.
func pass(ctx context.Context, c *ubcoll.Comm, from int, v ubcoll.Vec) (err error) {
	if c.Rank() == from {
		return p2p.Send(ctx, c, 1-from, v)
	}
	_, err = p2p.Recv(ctx, c, from, v)
	return err
}

func says(o ubcoll.OpInfo, want string) error {
	if len(o.Levels) != 1 || o.Levels[0].String() != want {
		return fmt.Errorf("LastOp says %v, not %q", o.Levels, want)
	}
	return nil
}
