package p2p_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

// BenchmarkCall is a small message of a rank to itself, which nobody waits for: what Send and Recv cost.
func BenchmarkCall(b *testing.B) {
	b.ReportAllocs()
	require.NoError(b, ubcoll.Local(b.Context(), 1, ubcoll.Options{Devices: ubcoll.DevicesOff}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := []float32{1, 2}
		for range b.N {
			if err := p2p.Send(ctx, c, 0, ubcoll.Of(x)); err != nil {
				return err
			}
			if _, err := p2p.Recv(ctx, c, 0, ubcoll.Of(x)); err != nil {
				return err
			}
		}
		return nil
	}))
}
