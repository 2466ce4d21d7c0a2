package gpu

import (
	"context"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Collectives between hosts whose ranks of a host do a part of the work on their devices. The kernel that carries the data is
// divided into steps, with the kernels of these phases between them. The host knows nothing of phases: it waits until a
// part is in its memory, and says when the result is.
//
// The first step waits until the hosts agree. If they do not, the later steps and the phases find the gate shut, and do nothing.
// All ranks of a host find the same, so that kernels of the same number still meet.

// carryPhases queues the kernels of w. An error that has not broken the communicator says that none is queued.
func (d *Device) carryPhases(s *Stream, k *carrier, w *team.Work, div *team.Division, kept bool) error {
	c := &d.carry
	q := phaseQueue{d: d, s: s, w: w, kept: kept, base: c.params}
	k.parts, k.memory, k.phased = div.Parts+1, c.memory, true
	blocks := carryBlocks
	if div.Host[0]+div.Host[1] <= carryFew {
		blocks = 1
	}
	f, err := d.kernel(kernels.CarryStep, dtype.Invalid)
	if err != nil {
		return err
	}
	q.f, q.blocks = f, blocks
	q.step(kernels.CarryStepParams{Rings: 1, Awaits: 1, Opens: 1})
	if q.err != nil {
		return q.err
	}
	k.blocks = d.next.shape.Grid
	var last team.Phases
	for i := range div.Parts + 1 {
		var p team.Phases
		if i < div.Parts {
			p = div.Phases(i, d.Layout.Data())
			for _, b := range p.Before {
				q.phase(&b.Work, uint64(c.memory[team.Source][i%2].at)+uint64(b.At))
			}
		}
		if i == 0 {
			w.Inner = [2]string{p.Before[0].Work.Kernel.Algorithm, p.After[0].Kernel.Algorithm}
		}
		var step kernels.CarryStepParams
		if i < div.Parts {
			step.Rings = uint32(i) + 2
		}
		if i > 0 {
			step.Awaits = uint32(i) + 1
			out := c.memory[team.Destination][(i-1)%2]
			for j, b := range last.Back {
				step.To[j], step.From[j] = uint64(uintptr(w.Dst.Ptr))+uint64(b.To), uint64(out.at)+uint64(b.From)
				step.Bytes[j] = uint64(b.Bytes)
			}
		}
		q.step(step)
		for _, a := range last.After {
			q.phase(&a, 0)
		}
		last = p
	}
	return d.failed(w.Kind, q.err) // the first step waits already
}

// phaseQueue queues the kernels of an operation.
type phaseQueue struct {
	d      *Device
	s      *Stream
	w      *team.Work
	kept   bool
	base   kernels.CarryParams // what all steps have
	f      loaded
	blocks int
	err    error // of the first that could not be queued
}

// step queues a step.
func (q *phaseQueue) step(p kernels.CarryStepParams) {
	if q.err != nil {
		return
	}
	d := q.d
	p.Status, p.Page, p.ID, p.Gate = q.base.Status, q.base.Page, q.base.ID, d.Params.Area[0]+kernels.AreaGate
	d.next.step = p
	d.next.f, d.next.args = q.f.f, kernels.Bytes(&d.next.step)
	d.shape(q.f, q.blocks, false)
	q.err = d.enqueue(q.s, q.kept)
}

// phase queues a kernel among the ranks of the host. Buffers of the operation are where peers have found them. The destination is
// host memory at that address, if it is not 0.
func (q *phaseQueue) phase(w *team.Work, host uint64) {
	if q.err != nil {
		return
	}
	q.found(&w.Src, &w.SrcBuf)
	q.found(&w.Dst, &w.DstBuf)
	q.d.makeStaging(w, !q.kept)
	if q.err = q.d.set(w, false); q.err == nil {
		q.d.next.params.Gated = 1
		if host != 0 {
			q.d.next.params.Dst = host
		}
		q.err = q.d.enqueue(q.s, q.kept)
	}
}

// found sets where peers find v, which is in one of the operation's buffers, or in host memory, where no peer looks for it.
func (q *phaseQueue) found(v *team.Vec, b *team.Buf) {
	b.NotImported = true // there is nothing to be staged in its place
	for _, of := range [2]struct {
		v *team.Vec
		b *team.Buf
	}{{&q.w.Src, &q.w.SrcBuf}, {&q.w.Dst, &q.w.DstBuf}} {
		off := int(uintptr(v.Ptr)) - int(uintptr(of.v.Ptr))
		if off < 0 || off+v.Bytes() > of.v.Bytes() {
			continue
		}
		if *b = *of.b; b.Claim != nil {
			b.At = b.At.Add(uintptr(off))
		}
		return
	}
}

// phasesEnded waits for the kernels of an operation that is waited for.
func (d *Device) phasesEnded(k *carrier) error {
	if err := d.wait(context.Background(), k.stream, k.kind); err != nil {
		return err
	}
	d.mu.Lock()
	e, fatal := d.statusError(d.status.Error.Load())
	d.mu.Unlock()
	if fatal {
		return d.c.Fail(e)
	}
	return nil
}

// forget lets go of w's buffers before it runs.
func forget(w *team.Work) {
	direct := [2]bool{w.SrcBuf.Direct(), w.DstBuf.Direct()}
	w.Drop()
	w.SrcBuf, w.DstBuf = team.Buf{Why: w.SrcBuf.Why, WasDirect: direct[0]}, team.Buf{Why: w.DstBuf.Why, WasDirect: direct[1]}
}
