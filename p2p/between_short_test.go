package p2p_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestBetweenShortPuts: when a put has returned its source may be changed, also where a network sends short puts from the
// caller's memory, later.
func TestBetweenShortPuts(t *testing.T) {
	const n, puts = 64, 50
	for _, w := range transporttest.Kinds {
		t.Run(w.String(), func(t *testing.T) {
			require.NoError(t, conform.Block(1, 1).RunOver(t.Context(), transporttest.New(t, w).Node, func(ctx context.Context, c *ubcoll.Comm) error {
				r, err := conform.NewRegion(c, (1+puts)*n)
				if err != nil {
					return err
				}
				ch, err := p2p.Connect(ctx, c, 1-c.Rank(), r.Reg)
				if err != nil {
					return err
				}
				for k := range puts {
					copy(r.Mem, filled(n, byte(k+1)))
					if err := ch.Put(ctx, (1+k)*n, 0, n); err != nil {
						return err
					}
				}
				clear(r.Mem[:n])
				if err := testkit.InOrder(func() error { return ch.Signal(ctx) }, func() error { return ch.Wait(ctx) }); err != nil {
					return err
				}
				for k := range puts {
					if !bytes.Equal(r.Mem[(1+k)*n:][:n], filled(n, byte(k+1))) {
						return conform.Fail(c, "put %d has bytes that its source got later", k)
					}
				}
				return testkit.InOrder(func() error { return ch.Signal(ctx) }, func() error { return ch.Wait(ctx) }, ch.Close, r.Free)
			}))
		})
	}
}
