package team

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/mem"
)

// BufferLayout says how the ranks hold the buffers of the running operation.
type BufferLayout struct {
	AllSrc, AllDst bool // every rank's source, or destination, is direct
	InPlace        bool // some direct source is its rank's destination as well
}

// Buffers returns the addresses, in this process, of the first srcBytes and dstBytes bytes of each rank's source and
// destination of the running operation. An address is nil for another rank's buffer that is staged, and all
// destinations are nil if dstBytes is 0. Ask only for buffers that every rank keeps until this rank has done its last
// step. The slices belong to the communicator and are valid until the next operation.
func (t *Team) Buffers(srcBytes, dstBytes int) (srcs, dsts []unsafe.Pointer, how BufferLayout, err error) {
	how = BufferLayout{AllSrc: true, AllDst: true}
	for r := range t.Peers {
		d := t.Peers[r].Area.Desc[t.Seq&1].Buffers()
		how.AllSrc = how.AllSrc && d.Src.Generation != 0
		how.AllDst = how.AllDst && d.dst.Generation != 0
		how.InPlace = how.InPlace || d.Src.Generation != 0 && d.Src == d.dst
		if t.srcs[r], err = t.resolve(r, &d.Src, 0, srcBytes); err != nil {
			return nil, nil, how, err
		}
		if t.dsts[r] = nil; dstBytes == 0 {
			continue
		}
		if t.dsts[r], err = t.resolve(r, &d.dst, 0, dstBytes); err != nil {
			return nil, nil, how, err
		}
	}
	w := t.Running()
	t.srcs[t.rank], t.dsts[t.rank] = w.Src.Ptr, w.Dst.Ptr
	return t.srcs, t.dsts, how, nil
}

// Source returns the address in this process of n bytes of a rank's source, from byte off on, or nil if it is another
// rank's and staged.
func (t *Team) Source(rank, off, n int) (unsafe.Pointer, error) {
	if rank == t.rank {
		return unsafe.Add(t.Running().Src.Ptr, off), nil
	}
	return t.resolve(rank, &t.Peers[rank].Area.Desc[t.Seq&1].Buffers().Src, off, n)
}

// Destination is Source for a rank's destination.
func (t *Team) Destination(rank, off, n int) (unsafe.Pointer, error) {
	if rank == t.rank {
		return unsafe.Add(t.Running().Dst.Ptr, off), nil
	}
	return t.resolve(rank, &t.Peers[rank].Area.Desc[t.Seq&1].Buffers().dst, off, n)
}

// Direct reports whether a rank's source of the running operation is direct.
func (t *Team) Direct(rank int) bool {
	return t.Peers[rank].Area.Desc[t.Seq&1].Buffers().Src.Generation != 0
}

// DirectDst reports whether a rank's destination of the running operation is direct.
func (t *Team) DirectDst(rank int) bool {
	return t.Peers[rank].Area.Desc[t.Seq&1].Buffers().dst.Generation != 0
}

func (t *Team) resolve(rank int, w *BufWord, off, n int) (unsafe.Pointer, error) {
	if w.Generation == 0 || rank == t.rank {
		return nil, nil
	}
	return t.Resolve("", rank, w.Location().Add(uintptr(off)), n)
}

// Resolve returns where n bytes of a rank's memory are in this process, for op, or for the running operation if op is
// "". A rank that dies, or that fails or closes its communicator, takes its memory with it: then the error is that of a
// wait for the rank, and names the rank that was the first to die or fail.
func (t *Team) Resolve(op string, rank int, l mem.Location, n int) (unsafe.Pointer, error) {
	p, err := t.Peers[rank].Mem.Resolve(l, n)
	if err == nil {
		return p, nil
	}
	s := WaitState{Op: op, Ctx: context.Background(), Peer: rank, Step: "import"}
	if e := t.lost(&s); e != nil {
		return nil, e
	}
	if t.Peers[rank].Closed() {
		return nil, t.ClosedError(&s, rank)
	}
	return nil, t.errorAt(&s, t.Name(rank), err)
}

// Scratch has one pointer for each rank, for the running operation to use.
func (t *Team) Scratch() []unsafe.Pointer { return t.scratch }
