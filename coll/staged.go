package coll

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Collectives between hosts on device memory. Each rank copies its data to page-locked host memory, where they travel as
// those of the host do, and copies the result back. Long ones go by parts of the same elements of each block: while one
// part travels, the copies of the next one to the host, and of the one before back, are under way. All ranks divide alike,
// since the parts follow from what they agree on; operations with counts are not divided.

var stagedPath = team.Path{Name: "staged", Drive: runStaged}

// stagedPart is how many bytes of a rank's larger buffer are in a part.
var stagedPart = 4 << 20

// whyStaged is why a buffer between hosts is not direct.
const whyStaged = "copied through page-locked host memory"

// staged is a rank's side of a collective on device memory between hosts.
type staged struct {
	ctx    context.Context
	t      *team.Team
	w      *team.Work
	by     team.Pinned
	blocks [2]int // in the source and in the destination
	count  int    // elements of a block
	most   int    // of them in a part
	parts  int
	// refusal is why this rank takes no part, or nil, and part the operation that runs.
	refusal error
	part    team.Work
	// memory has the parts of even and of odd numbers, of the source and of the destination. An all-reduce has both in one.
	memory [2][2]*mem.Allocation
}

// The buffers of a staged operation.
const (
	source      = 0
	destination = 1
)

func runStaged(ctx context.Context, t *team.Team, w *team.Work) error {
	k := &staged{ctx: ctx, t: t, w: w}
	k.divide()
	defer k.free()
	err := w.Hold()
	if err == nil && ctx.Err() != nil {
		err = reason.Ended(ctx)
	}
	if err == nil {
		err = k.take()
	}
	if err == nil {
		err = k.copy(source, 0)
	}
	if err == nil {
		err = k.by.Wait()
	}
	k.refusal = err
	return k.run()
}

// divide decides on the parts, and prepares them.
func (k *staged) divide() {
	w, f := k.w, formOf(k.w.Kind)
	k.blocks, k.count = [2]int{1, 1}, w.Count
	if isVector(w.Kind) {
		k.count = max(w.Src.Len, w.Dst.Len)
		k.most, k.parts = k.count, 1
	} else {
		if f.perDestination {
			k.blocks[source] = k.size()
		}
		if f.perSource {
			k.blocks[destination] = k.size()
		}
		line := 64 / w.Type.Size()
		k.most = max(stagedPart/w.Type.Size()/max(k.blocks[source], k.blocks[destination])/line, 1) * line
		k.parts = max((k.count+k.most-1)/k.most, 1)
	}
}

// size is the number of ranks on all hosts.
func (k *staged) size() int { return k.t.Whole() }

// vec is the device memory of the source or of the destination.
func (k *staged) vec(which int) *team.Vec {
	if which == source {
		return &k.w.Src
	}
	return &k.w.Dst
}

// shared reports whether the source and the destination have the same page-locked memory.
func (k *staged) shared() bool { return k.w.Kind == team.KindAllReduce }

// take takes page-locked memory.
func (k *staged) take() (err error) {
	if k.by, err = k.t.Pinned(); err != nil {
		return err
	}
	for which := range k.blocks {
		if which == destination && k.shared() || k.vec(which).Len == 0 {
			continue
		}
		n := k.vec(which).Bytes()
		if !isVector(k.w.Kind) {
			n = min(n, k.blocks[which]*k.most*k.w.Type.Size())
		}
		for i := range min(k.parts, 2) {
			if k.memory[which][i], err = k.by.Take(n); err != nil {
				return fmt.Errorf("page-locked memory for what goes between hosts: %w", err)
			}
		}
	}
	return nil
}

// free gives the memory back.
func (k *staged) free() {
	for which := range k.memory {
		for _, a := range k.memory[which] {
			if a != nil {
				k.by.Give(a)
			}
		}
	}
}

// at is the page-locked memory of a part; nil if this rank has no such data.
func (k *staged) at(which, part int) *mem.Allocation {
	if which == destination && k.shared() {
		which = source
	}
	return k.memory[which][part%2]
}

// copy queues the copies of a part's source to the host, or of its destination to the device.
func (k *staged) copy(which, part int) error {
	v, a, size := k.vec(which), k.at(which, part), k.w.Type.Size()
	if v.Len == 0 {
		return nil
	}
	if isVector(k.w.Kind) {
		return k.move(which, v.Ptr, a.Ptr, v.Bytes())
	}
	off := part * k.most
	n := min(k.most, k.count-off)
	for b := range k.blocks[which] {
		if err := k.move(which, unsafe.Add(v.Ptr, (b*k.count+off)*size), unsafe.Add(a.Ptr, b*n*size), n*size); err != nil {
			return err
		}
	}
	return nil
}

func (k *staged) move(which int, device, host unsafe.Pointer, n int) error {
	if which == source {
		return k.by.Copy(host, device, n)
	}
	return k.by.Copy(device, host, n)
}

// run runs the parts.
func (k *staged) run() (err error) {
	for i := 0; i < k.parts && err == nil; i++ {
		k.set(i)
		if i+1 < k.parts && k.refusal == nil {
			err = k.copy(source, i+1)
		}
		if err == nil {
			err = k.t.RunPart(k.ctx, &k.part, i == 0)
		}
		if k.refusal != nil {
			return err
		}
		err = k.ended(err)
		if err == nil {
			err = k.copy(destination, i)
		}
	}
	k.tell()
	return k.ended(err)
}

// ended waits for the copies that have been queued. err is the operation's so far.
func (k *staged) ended(err error) error {
	if late := k.by.Wait(); err == nil {
		err = late
	}
	return err
}

// set makes part the i-th one.
func (k *staged) set(i int) {
	w := k.w
	count := min(k.most, k.count-i*k.most)
	k.part = team.Work{Kind: w.Kind, Type: w.Type, Red: w.Red, Root: w.Root, Count: count, Factor: w.Factor, Divisor: w.Divisor,
		SendCounts: w.SendCounts, RecvCounts: w.RecvCounts, Of: w, Err: k.refusal}
	if isVector(w.Kind) {
		k.part.Count = w.Count
	}
	k.part.Src, k.part.Dst = k.host(source, i, count), k.host(destination, i, count)
	if k.refusal == nil {
		choosePath(k.t, &k.part)
	}
}

// host is the page-locked memory of a part, as an operation of the host has it.
func (k *staged) host(which, part, count int) team.Vec {
	v, a := k.vec(which), k.at(which, part)
	if v.Len == 0 || a == nil {
		return team.Vec{Type: k.w.Type}
	}
	n := k.blocks[which] * count
	if isVector(k.w.Kind) {
		n = v.Len
	}
	return team.Vec{Ptr: a.Ptr, Len: n, Type: k.w.Type, Alloc: a}
}

// tell leaves in the operation how its last part went.
func (k *staged) tell() {
	w, p := k.w, &k.part
	w.Inner, w.Lanes, w.Algorithm = p.Inner, p.Lanes, p.Algorithm
	if p.Path != nil {
		w.Path = p.Path
	}
	w.SrcBuf.Why, w.DstBuf.Why = whyStaged, whyStaged
}
