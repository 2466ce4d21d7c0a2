package onesided

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

const peerOp = "peer"

// Peer returns a rank's part. Another rank's part of a read-only window is a mapping of its own, made by the first call.
func (w *Window) Peer(rank int) (team.Vec, error) {
	k, err := w.begin(context.Background(), peerOp, rank)
	if err != nil {
		return team.Vec{}, err
	}
	defer end(w)
	if rank == w.c.Rank() {
		return w.vec, nil
	}
	if k.far != nil {
		m, err := k.remote()
		if err == nil {
			err = m.Live()
		}
		if err == nil {
			err = fmt.Errorf("the part of rank %d is on another host (Get copies from there): %w", rank, fault.ErrNotSupported)
		}
		return team.Vec{}, peerError(w.c, peerOp, rank, err)
	}
	v := team.Vec{Ptr: k.ptr, Len: k.Bytes / w.vec.Type.Size(), Type: w.vec.Type}
	if err = k.Live(); err == nil && w.flags&WindowReadOnly != 0 {
		v.Alloc, err = w.readOnly(k)
	}
	switch {
	case err != nil:
		return team.Vec{}, peerError(w.c, peerOp, rank, err)
	case w.device != nil:
		return w.device.Part(w.sp.local(rank)), nil
	case v.Alloc != nil:
		v.Ptr = v.Alloc.Ptr
	}
	return v, nil
}

// view is this process's read-only mapping of a rank's part.
type view struct {
	*mem.Allocation
	unmap func() error
}

// readOnly returns the view of k, which it makes the first time.
func (w *Window) readOnly(k *windowRank) (*mem.Allocation, error) {
	if w.device != nil {
		return nil, fmt.Errorf("a read-only view of a device's memory: %w", fault.ErrNotSupported)
	}
	w.viewing.Lock()
	defer w.viewing.Unlock()
	if k.view.Allocation != nil {
		return k.view.Allocation, nil
	}
	var p unsafe.Pointer
	p, unmap, err := k.Memory.ReadOnly(k.base, k.Bytes)
	if err == nil {
		err = k.Live() // else it may have mapped something that came after the peer's part
		k.view = view{w.c.Domain().Heap.View(p, k.Bytes), unmap}
	}
	return k.view.Allocation, err
}

// endViews ends this rank's views of other parts. A view that an operation uses is unmapped after the operation.
func (w *Window) endViews() {
	for r := range w.ranks {
		if v := w.ranks[r].view; v.Allocation != nil {
			v.EndView(func() { w.failed(v.unmap()) })
		}
	}
}
