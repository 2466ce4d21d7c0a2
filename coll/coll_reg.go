package coll

import (
	"fmt"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// acquire finds the registrations of a call's buffers, or makes them if the policy allows, and holds them until the
// call ends. A buffer without one is staged; that is no error.
func acquire(c *engine.Comm, w *engine.Work) error {
	if err := acquireOne(c, w, &w.Src, &w.SrcBuf); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if w.Dst.Ptr == w.Src.Ptr && w.Dst.Len == w.Src.Len && w.Red != engine.PreMulSum {
		// In place. One search, so that both are direct or neither: had a registration gone in between, the peers would
		// take this rank to be out of place.
		w.DstBuf = w.SrcBuf
		w.DstBuf.Shared = true
		return nil
	}
	if err := acquireOne(c, w, &w.Dst, &w.DstBuf); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	return nil
}

func acquireOne(c *engine.Comm, w *engine.Work, v *engine.Vec, b *engine.Buf) error {
	if b == &w.SrcBuf && w.Red == engine.PreMulSum && v.Len > 0 {
		b.Why = "it is multiplied first"
		return nil
	}
	return c.Acquire(v, b, w.Graph)
}
