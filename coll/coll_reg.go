package coll

import (
	"fmt"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// acquire finds the registrations of a call's buffers, or makes them if the policy allows, and holds them until the
// call ends. A buffer without one is staged; that is no error.
func acquire(c *engine.Comm, w *engine.Work) error {
	return acquireBuffers(w, func(v *engine.Vec, b *engine.Buf) error { return c.Acquire(v, b, w.Graph) })
}

// acquireBuffers has find do that for the source and for the destination. In place, which is the same memory for both,
// it is one search, so that both are direct or neither: had a registration gone in between, the peers would take this
// rank to be out of place. A source that is multiplied first is nobody's to read, and so never in place.
func acquireBuffers(w *engine.Work, find func(*engine.Vec, *engine.Buf) error) error {
	multiplied := w.Red == engine.PreMulSum
	if multiplied && w.Src.Len > 0 {
		w.SrcBuf.Why = "it is multiplied first"
	} else if err := find(&w.Src, &w.SrcBuf); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if w.Dst.Ptr == w.Src.Ptr && w.Dst.Len == w.Src.Len && !multiplied {
		w.DstBuf = w.SrcBuf
		w.DstBuf.Shared = true
		return nil
	}
	if err := find(&w.Dst, &w.DstBuf); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	return nil
}
