package collectives

import (
	"context"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// Imports allocates more and more, so that new arenas appear between calls, and reduces from each at once.
func Imports(ctx context.Context, c *ubcoll.Comm) error {
	for k := 0; k < 9; k++ {
		n := 1 << (12 + k)
		if err := one[float32](ctx, c, ubcoll.Sum, n, k%2 == 0, conform.Alloced, conform.Registered, uint64(k)); err != nil {
			return err
		}
	}
	return nil
}
