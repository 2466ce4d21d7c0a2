// Package coll has the collectives. Every rank of the communicator calls the same ones in the same order with the same
// count, type, operation and root; if they do not, all of them return an error that names the rank that differs.
//
// They block until this rank's part is done and its buffers are the caller's again; on a view made by Comm.On they are
// queued instead. Any memory will do: registered buffers are read and written by the peers directly, Go slices go
// through staging memory, and ranks may differ in this. Counts may be zero. The source is not written to. One
// communicator runs one collective at a time (ErrBusy).
package coll

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// AllReduce combines src of all ranks element by element with op and leaves the result in dst on every rank, bitwise
// the same. dst and src have the same length and type, and are either the same memory (in place) or do not overlap.
// Collective and blocking (queued on a view made by On); allowed in groups and in capture. Source: MPI_Allreduce
// (MPI-4.1, 6.9.6), ncclAllReduce.
func AllReduce(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec, op ubcoll.Op) error {
	w := engine.Work{Kind: engine.KindAllReduce, Type: src.Type(), Red: op.Engine(), Count: src.Len(),
		Src: src.Engine(), Dst: dst.Engine(), Acquire: acquire}
	w.Err = checkReduce(&w)
	plan(c.Engine().Comm, &w)
	return c.Engine().Submit(ctx, w)
}

// Barrier returns when all ranks have called it. Collective and blocking (queued on a view made by On).
func Barrier(ctx context.Context, c *ubcoll.Comm) error {
	return c.Engine().Submit(ctx, engine.Work{Kind: engine.KindBarrier, Algorithm: "descriptors"})
}

func checkReduce(w *engine.Work) error {
	if err := w.Src.Check(); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if err := w.Dst.Check(); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	switch {
	case !w.Red.Valid():
		return fmt.Errorf("no such operation (the zero Op): %w", fault.ErrArgument)
	case w.Dst.Type != w.Src.Type:
		return fmt.Errorf("the destination has type %v, the source %v: %w", w.Dst.Type, w.Src.Type, fault.ErrArgument)
	case w.Dst.Len != w.Src.Len:
		return fmt.Errorf("the destination has %d elements, the source %d: %w", w.Dst.Len, w.Src.Len, fault.ErrArgument)
	case w.Count > engine.MaxCount:
		return fmt.Errorf("%d elements, more than %d: %w", w.Count, engine.MaxCount, fault.ErrLimit)
	}
	return checkOverlap(&w.Dst, &w.Src)
}

func checkOverlap(a, b *engine.Vec) error {
	p, q := uintptr(a.Ptr), uintptr(b.Ptr)
	if p == q || p+uintptr(a.Bytes()) <= q || q+uintptr(b.Bytes()) <= p || a.Len == 0 || b.Len == 0 {
		return nil
	}
	return fmt.Errorf("destination [%#x,+%d) and source [%#x,+%d) overlap but are not the same: %w",
		p, a.Bytes(), q, b.Bytes(), fault.ErrArgument)
}
