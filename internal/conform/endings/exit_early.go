package endings

import (
	"context"
	"errors"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// ExitEarly makes the last rank return before a collective that the others call.
func ExitEarly(ctx context.Context, c *ubcoll.Comm) error {
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if c.Size() == 1 || c.Rank() == c.Size()-1 {
		return nil
	}
	err := coll.Barrier(ctx, c)
	var e *ubcoll.Error
	if !errors.Is(err, ubcoll.ErrPeerLost) || !errors.As(err, &e) || e.Peer != c.Size()-1 {
		return conform.Fail(c, "a rank that left gave %v, not ErrPeerLost about rank %d", err, c.Size()-1)
	}
	return nil
}
