package p2p_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

func TestSizes(t *testing.T) {
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		for _, n := range []int{0, 1, 48, 112, 113, 4096, 4097, 16384, 20000, 131072, 131073, 200000, 1 << 20, 8 << 20, 8<<20 + 1} {
			for kinds := 0; kinds < 4; kinds++ {
				x := make([]byte, n)
				v := ubcoll.Of(x)
				if kinds>>c.Rank()&1 == 1 {
					b, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
					if err != nil {
						return err
					}
					x, v = b.Slice(), b.Vec()
				}
				for i := range x {
					x[i] = byte(i*7+i>>8) * byte(1-c.Rank())
				}
				if c.Rank() == 0 {
					if err := p2p.Send(ctx, c, 1, v); err != nil {
						return err
					}
					if k, err := p2p.Recv(ctx, c, 1, v); err != nil || k != n {
						return fmt.Errorf("%d, %w", k, err)
					}
				} else {
					k, err := p2p.Recv(ctx, c, 0, v)
					if err != nil || k != n {
						return fmt.Errorf("%d, %w", k, err)
					}
					if err := p2p.Send(ctx, c, 0, v); err != nil {
						return err
					}
				}
				for i := range x {
					if x[i] != byte(i*7+i>>8) {
						return fmt.Errorf("size %d, kinds %d, element %d is %d", n, kinds, i, x[i])
					}
				}
			}
		}
		return nil
	})
	require.NoError(t, err)
}
