package coll

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Collectives between hosts on device memory. A kernel copies the data to page-locked host memory, where they travel as
// those of the host do, and copies the result back. Long ones go by parts: while one part travels, the next one is copied
// to the host, and the one before back. All ranks divide alike, since the parts follow from what they agree on; operations
// with counts are not divided.

var stagedPath = team.Path{Name: "staged", Drive: runStaged, Divide: divide}

// stagedPart is how many bytes of a rank's larger buffer are in a part.
var stagedPart = 4 << 20

// whyStaged is why a buffer between hosts is not direct.
const whyStaged = "copied through page-locked host memory"

// divide divides an operation on device memory.
func divide(t *team.Team, w *team.Work) team.Division {
	d := team.Division{Blocks: [2]int{1, 1}, Bytes: [2]int{w.Src.Bytes(), w.Dst.Bytes()}, Parts: 1}
	if w.Kind == team.KindBarrier || isVector(w.Kind) {
		d.Bytes[team.Destination] = received(w)
		d.Most = max(d.Bytes[0], d.Bytes[1])
		return d
	}
	f, size := formOf(w.Kind), w.Type.Size()
	if f.perDestination {
		d.Blocks[team.Source] = t.Whole()
	}
	if f.perSource {
		d.Blocks[team.Destination] = t.Whole()
	}
	for which, v := range [2]*team.Vec{&w.Src, &w.Dst} {
		if d.Bytes[which] = w.Count * size; v.Len == 0 {
			d.Bytes[which] = 0
		}
	}
	const line = 64
	d.Most = max(stagedPart/max(d.Blocks[0], d.Blocks[1])/line, 1) * line
	d.Parts = max((w.Count*size+d.Most-1)/d.Most, 1)
	return d
}

// received returns how many bytes of the destination change, at most: a graph's launch may have smaller counts than its capture,
// and leaves the rest as it is.
func received(w *team.Work) int {
	bytes := w.Dst.Bytes()
	if w.RecvCounts == nil {
		return bytes
	}
	total := 0
	for _, n := range w.RecvCounts {
		if n < 0 || n > team.MaxCount { // then the operation is refused
			return bytes
		}
		total += n
	}
	return min(total*w.Type.Size(), bytes)
}

// staged is a rank's side of a collective on device memory between hosts.
type staged struct {
	t       *team.Team
	w       *team.Work
	d       team.Division
	carrier team.Carrier
	// refusal is why this rank takes no part, or nil, and part the operation that runs.
	refusal error
	part    team.Work
}

func runStaged(ctx context.Context, t *team.Team, w *team.Work) error {
	k := &staged{t: t, w: w, d: w.Path.Divide(t, w)}
	if ctx.Err() != nil {
		k.refusal = reason.Ended(ctx)
	} else {
		k.carrier, k.refusal = t.Carry(ctx, w)
	}
	if k.refusal == nil {
		k.refusal = k.carrier.Load(ctx, 0)
	}
	err := k.run(ctx)
	if k.carrier != nil {
		if late := k.carrier.Wait(); err == nil {
			err = late
		}
	}
	return err
}

// run runs the parts.
func (k *staged) run(ctx context.Context) error {
	if k.d.Phases != nil {
		return k.runPhased(ctx)
	}
	for i := range k.d.Parts {
		if i > 0 {
			if err := k.carrier.Load(ctx, i); err != nil {
				return err
			}
		}
		k.set(i)
		if err := k.t.RunPart(ctx, &k.part, i == 0); err != nil {
			return err
		}
		k.carrier.Store(i)
	}
	k.tell()
	return nil
}

// begin makes part one without data.
func (k *staged) begin() {
	w := k.w
	k.part = team.Work{Kind: w.Kind, Type: w.Type, Red: w.Red, Root: w.Root, Count: w.Count, Factor: w.Factor, Divisor: w.Divisor,
		SendCounts: w.SendCounts, RecvCounts: w.RecvCounts, Of: w, Err: k.refusal}
}

// set makes part the i-th one.
func (k *staged) set(i int) {
	w := k.w
	k.begin()
	if k.d.Parts > 1 {
		size := w.Type.Size()
		k.part.Count = min(k.d.Most, w.Count*size-i*k.d.Most) / size
	}
	if k.refusal != nil {
		return
	}
	k.part.Src, k.part.Dst = k.host(team.Source, i, &w.Src), k.host(team.Destination, i, &w.Dst)
	if w.Kind == team.KindBarrier {
		k.part.Path = &acrossBarrierPath
		return
	}
	choosePath(k.t, &k.part)
}

// host is the page-locked memory of a part of v, as an operation of the host has it.
func (k *staged) host(which, part int, v *team.Vec) team.Vec {
	at := k.carrier.Memory(which, part)
	at.Type = k.w.Type
	if v.Len > 0 && at.Ptr != nil {
		_, n := k.d.Part(which, part)
		at.Len = k.d.Blocks[which] * n / k.w.Type.Size()
	}
	return at
}

// tell leaves in the operation how its last part went.
func (k *staged) tell() {
	w, p := k.w, &k.part
	w.Inner, w.Lanes, w.Algorithm, w.NotCollNet = p.Inner, p.Lanes, p.Algorithm, p.NotCollNet
	if p.Path != nil {
		w.Path = p.Path
	}
	if w.Phased == 0 { // else their own host has found them
		w.SrcBuf.Why, w.DstBuf.Why = whyStaged, whyStaged
	}
}
