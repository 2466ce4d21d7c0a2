package gpu

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Small all-reduces that follow each other in a group become one kernel, because a launch costs more than the work. Their
// data travel one behind the other, as if they were one operation's packets. Which ones go together is a pure function
// of what the ranks agree on. Only its own rank knows whether one of them reads what another one writes; that rank's
// kernel then does them one by one.

// GroupedMost is the longest all-reduce, in bytes, that goes together with others.
const GroupedMost = 64 << 10

// groupable returns how many of the first works go groupable, at least one.
func (d *Device) groupable(works []team.Work) int {
	if n := d.c.Size(); n == 1 || n > kernels.Narrow {
		return 1
	}
	n, packets := 0, 0
	for n < min(len(works), kernels.MaxGroup) {
		w := &works[n]
		if w.Other != nil || w.Kind != team.KindAllReduce || w.Kernel.Name != kernels.OneShot || w.Type != works[0].Type ||
			uint(w.Count*w.Type.Size()) > GroupedMost {
			break
		}
		if packets += packetsOf(w); 8*packets > d.Layout.Data() {
			break
		}
		n++
	}
	return max(n, 1)
}

// packetsOf returns the number of packets that w's data take.
func packetsOf(w *team.Work) int { return (w.Count*w.Type.Size() + 7) / 8 }

// PerformSome implements Accelerator.
func (d *Device) PerformSome(ctx context.Context, works []team.Work, group bool) (n int, err error) {
	if group {
		if n = d.groupable(works); n > 1 {
			return n, d.performGroup(ctx, works[:n])
		}
	}
	w := &d.c.Team().Work
	*w = works[0]
	err = d.Perform(ctx, w)
	w.Release()
	*w = team.Work{} // the user's memory is not kept alive
	return 1, err
}

// grouped returns the name of the algorithm of w, which goes together with others.
func grouped(w *team.Work) string { return w.Kernel.Algorithm + ", grouped" }

func (d *Device) performGroup(ctx context.Context, works []team.Work) error {
	kind := works[0].Kind
	if err := launchable(d.c, d.own.s); err != nil {
		return err
	}
	if err := d.awaitStreams(ctx, kind); err != nil {
		return err
	}
	refusal, err := d.queueGroup(ctx, d.own, works, nil)
	if err != nil {
		return err
	}
	return d.outcome(ctx, kind, refusal)
}

// queueGroup is queue for works that go together. If first is not nil, all of them are refused, and first says why. If
// one of them is bad, none is done.
func (d *Device) queueGroup(ctx context.Context, s *Stream, works []team.Work, first error) (refusal, err error) {
	works = append([]team.Work(nil), works...) // the caller's works hold no buffers
	defer func() {
		for i := range works {
			works[i].Release()
		}
	}()
	bad, at := first, 0 // what is wrong, and with which of works
	for i := range works {
		if bad == nil {
			bad, at = works[i].Err, i
		}
	}
	if bad == nil && ctx.Err() != nil {
		bad, at = reason.Ended(ctx), 0
	}
	captured := s.Captured()
	for i := range works {
		if bad == nil && captured {
			bad, at = d.retain(&works[i]), i
		}
		if bad == nil {
			bad, at = works[i].Hold(), i
		}
	}
	algorithm := grouped(&works[0])
	if bad == nil {
		err = d.prepareGroup(works)
	} else {
		algorithm = engine.Refused.Name
		err = d.refuse(bad, len(works), s == d.own)
	}
	if err == nil {
		err = d.enqueue(s, captured)
	}
	if err != nil {
		return nil, d.failed(works[0].Kind, err)
	}
	if bad != nil {
		refusal = d.error(works[at].Kind, d.ops+uint64(at)+1, "", -1, bad)
	}
	d.count(1)
	for i := range works {
		d.ops++
		d.c.NoteAs(&works[i], algorithm, d.ops)
		d.c.Queued(&works[i], algorithm, d.ops)
	}
	return refusal, nil
}

// prepareGroup sets d.next to the kernel that does works, which go together.
func (d *Device) prepareGroup(works []team.Work) error {
	k, err := d.kernel(kernels.Group, works[0].Type)
	if err != nil {
		return err
	}
	g := &d.next.group
	*g = kernels.GroupParams{Params: d.Params, Parts: uint32(len(works))}
	g.Signature, g.Count, g.Size = team.GroupSignature(works), uint64(len(works)), uint32(works[0].Type.Size())
	blocks, most := 0, 0
	for i := range works {
		w := &works[i]
		if err := d.acquire(w, false); err != nil {
			return err
		}
		g.Part[i] = kernels.Part{Src: uint64(uintptr(w.Src.Ptr)), Dst: uint64(uintptr(w.Dst.Ptr)), Signature: w.Signature(),
			Factor: w.Factor, Begin: uint32(g.Packets)}
		g.Packets += uint64(packetsOf(w))
		blocks += w.Kernel.Blocks
		most = max(most, w.Kernel.Blocks)
	}
	switch touching(works) {
	case same: // each thread has the same elements in all of them
		g.Ordered, blocks = 1, most
	case shifted: // between two of them the block waits for all its threads
		g.Ordered, blocks = 1, 1
	}
	blocks = min(blocks, d.c.Team().Tuning().GPU.PacketBlocksMax)
	d.next.f, d.next.args = k.f, kernels.Bytes(g)
	d.shape(k, blocks, d.early(&works[0]))
	return nil
}

// touch says how the works of a group use memory that others of them write.
type touch int

const (
	apart   touch = iota
	same          // all that overlap begin at the same address
	shifted       // some overlap and begin at different ones
)

func touching(works []team.Work) (t touch) {
	for i := range works {
		for j := range works {
			if i == j {
				continue
			}
			for _, v := range []*team.Vec{&works[j].Dst, &works[j].Src} {
				switch {
				case !overlap(&works[i].Dst, v):
				case works[i].Dst.Ptr != v.Ptr:
					return shifted
				default:
					t = same
				}
			}
		}
	}
	return t
}

func overlap(a, b *team.Vec) bool {
	p, q := uintptr(a.Ptr), uintptr(b.Ptr)
	return p < q+uintptr(b.Bytes()) && q < p+uintptr(a.Bytes())
}
