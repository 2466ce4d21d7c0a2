package coll

import (
	"context"
	"math/bits"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/model"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Long all-reduces on device memory between hosts of as many ranks each, by phases: the ranks of a host reduce-scatter a part on
// their devices, into page-locked host memory, each exchanges its slice with the ranks of its number on the other hosts, and they
// all-gather the results on their devices. So each link between a device and its host carries a slice of the data, and
// the processors reduce what comes from other hosts, and nothing else.
//
// The hosts agree before the first phase, since a phase waits for the ranks of its host, and it must be certain that they come.

var (
	phasedPath = team.Path{Name: "staged", Drive: runStaged, Divide: dividePhased}
	slicePaths = [...]team.Path{schedule.Ring: slicePath(schedule.Ring), schedule.Doubling: slicePath(schedule.Doubling),
		schedule.Halving: slicePath(schedule.Halving)}
)

// phasedFrom is how many bytes go by phases, and phasedSlice the least slice of an operation that has several parts. It has up to
// team.MostPhased parts, since all its kernels are queued before the first part travels, and with more than phasedMost bytes they
// would take too much page-locked memory.
var (
	phasedFrom  = 1 << 20
	phasedMost  = 2 << 30
	phasedSlice = 256 << 10
)

// sliceLine is what lengths of slices are multiples of, in bytes.
const sliceLine = 64

// chooseStaged sets how a collective on device memory travels between hosts. All ranks choose alike.
func chooseStaged(t *team.Team, w *team.Work) {
	w.Path = &stagedPath
	if w.Phased = partsPhased(t, w); w.Phased > 0 {
		w.Path = &phasedPath
	}
}

// partsPhased is how many parts w has by phases; 0: it does not go that way.
func partsPhased(t *team.Team, w *team.Work) int {
	l := t.Hosts.Layout()
	switch {
	case w.Kind != team.KindAllReduce, l.Lanes < 2, l.Lanes != l.Most, l.Ranks != l.Hosts*l.Most:
		return 0
	case l.Turns: // phases would wait for turns on several devices
		return 0
	case l.CollNet.Does(w) && model.ByCollNet(l, t.Costs(), t.Algorithm(), opOf(w, w.Count)):
		return 0
	case w.HalfAverage() && bits.OnesCount(uint(l.Most)) != 1: // between hosts, fractions of sums have a power of two
		return 0
	}
	bytes := w.Count * w.Type.Size()
	if bytes < max(phasedFrom, l.Most*sliceLine) || bytes > phasedMost {
		return 0
	}
	most := mostPhased(l.Most, bytes)
	return (bytes + most - 1) / most
}

// mostPhased is how many of so many bytes are in a part, with n ranks on a host.
func mostPhased(n, bytes int) int {
	lines := n * sliceLine
	return (max(stagedPart, n*phasedSlice, bytes/team.MostPhased) + lines - 1) / lines * lines
}

// dividePhased is divide for an all-reduce by phases.
func dividePhased(t *team.Team, w *team.Work) team.Division {
	n, bytes := t.Size(), w.Count*w.Type.Size()
	most := mostPhased(n, bytes)
	d := team.Division{Blocks: [2]int{1, 1}, Bytes: [2]int{bytes, bytes}, Most: most, Parts: (bytes + most - 1) / most}
	host := min(most, bytes)/n + n*sliceLine
	d.Host = [2]int{host, host}
	d.Phases = func(part, packets int) team.Phases { return phases(t, w, &d, part, packets) }
	return d
}

// sliceOf is how many bytes of a part each of n ranks has, and how many are left, which all of them have.
func sliceOf(d *team.Division, n, part int) (slice, rest int) {
	_, bytes := d.Part(team.Source, part)
	slice = bytes / n &^ (sliceLine - 1)
	return slice, bytes - n*slice
}

// phases are the phases of a part; packets is how many bytes of packet data a rank's row holds.
func phases(t *team.Team, w *team.Work, d *team.Division, part, packets int) (p team.Phases) {
	n, size := t.Size(), w.Type.Size()
	at, _ := d.Part(team.Source, part)
	slice, rest := sliceOf(d, n, part)
	red := w.Red
	if red == team.Avg && !w.HalfAverage() {
		red = team.Sum // the exchange divides
	}
	work := func(kind team.OpKind, red team.Reduction, src, dst team.Vec, bytes int) team.Work {
		k := team.Work{Kind: kind, Type: w.Type, Red: red, Count: bytes / size, Factor: w.Factor, Src: src, Dst: dst}
		k.Kernel = chooseKernel(&t.Tuning().GPU, "", &k, n, packets)
		return k
	}
	none := func(bytes int) team.Vec { return team.Vec{Type: w.Type, Len: bytes / size} }
	mine, left := at+t.Rank()*slice, at+n*slice
	if slice > 0 {
		p.Before = append(p.Before, team.Phase{Work: work(team.KindReduceScatter, red, sub(&w.Src, at, n*slice), none(slice), slice)})
		p.Back = append(p.Back, team.Copied{To: mine, Bytes: slice})
		p.After = append(p.After, work(team.KindAllGather, 0, sub(&w.Dst, mine, slice), sub(&w.Dst, at, n*slice), slice))
	}
	if rest > 0 {
		p.Before = append(p.Before, team.Phase{Work: work(team.KindAllReduce, red, sub(&w.Src, left, rest), none(rest), rest), At: slice})
		p.Back = append(p.Back, team.Copied{To: left, From: slice, Bytes: rest})
	}
	return p
}

// sub is a part of v, in bytes.
func sub(v *team.Vec, at, bytes int) team.Vec {
	s := *v
	s.Ptr, s.Len = unsafe.Add(v.Ptr, at), bytes/v.Type.Size()
	return s
}

// runPhased runs the parts.
func (k *staged) runPhased(ctx context.Context) error {
	k.begin()
	k.part.Count, k.part.Path = k.w.Count, &acrossBarrierPath
	if err := k.t.RunPart(ctx, &k.part, true); err != nil {
		return err
	}
	for i := range k.d.Parts {
		k.carrier.Store(i)
		if err := k.carrier.Load(ctx, i+1); err != nil { // peers of the host are in a phase, which ends with the communicator
			if e := k.t.Broken(); e != nil {
				return e
			}
			return k.t.Fail(k.t.Errorf("device", -1, err))
		}
		k.slice(i)
		if err := k.t.RunPart(ctx, &k.part, false); err != nil {
			return err
		}
	}
	k.carrier.Store(k.d.Parts)
	k.part.Inner = k.w.Inner
	k.tell()
	return nil
}

// slice makes part the exchange of this rank's slice of the i-th one.
func (k *staged) slice(i int) {
	k.begin()
	slice, rest := sliceOf(&k.d, k.t.Size(), i)
	p := &k.part
	p.Count = (slice + rest) / k.w.Type.Size()
	p.Src, p.Dst = k.carrier.Memory(team.Source, i), k.carrier.Memory(team.Destination, i)
	for _, v := range [2]*team.Vec{&p.Src, &p.Dst} {
		v.Type, v.Len = k.w.Type, p.Count
	}
	p.Path, p.Lanes = &slicePaths[sliceWay(k.t, p)], k.t.Size()
	c := &k.t.Hosts.Layout().CollNet
	p.NotCollNet = c.Step > 0 && !c.Does(p)
}

// sliceWay is how slices travel between hosts: as those of a whole part on all lanes.
func sliceWay(t *team.Team, w *team.Work) schedule.Way {
	return model.Way(t.Hosts.Layout(), t.Costs(), t.Algorithm(), opOf(w, w.Count*t.Size()))
}

func slicePath(way schedule.Way) team.Path {
	return team.Path{Name: way.String(), Acquire: acquireSlice, Run: runSlice,
		Exchange: func(t *team.Team, w *team.Work) (team.Exchange, error) {
			h, size := t.Hosts, w.Type.Size()
			p := schedule.Plan{Way: way, Hosts: h.Size(), Me: h.Host(), Count: w.Count, Line: sliceLine / size}
			p.Item = max(t.Costs().Item(way, p.Hosts, w.Count*size)/size, 1)
			return team.Exchange{Plan: p, Work: w, Source: w.Src.Ptr, Destination: w.Dst.Ptr, Early: true}, nil
		}}
}

// acquireSlice is acquire: peers of the host do not access the memory, but RDMA devices may.
func acquireSlice(t *team.Team, w *team.Work) error {
	if t.Hosts.Link().RDMA {
		return acquire(t, w)
	}
	return nil
}

func runSlice(ctx context.Context, t *team.Team, _ *team.Work) error { return t.Hosts.Move(ctx, nil) }
