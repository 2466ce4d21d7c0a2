package coll

import (
	"context"
	"fmt"
	"math"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Collectives of a communicator that spans hosts. Small data travels with the proposals by which the hosts agree: each
// team's leader combines the team's sources, and then the contributions of all hosts, in the order of the hosts, into
// the result. Larger data travels piece by piece: an operation within the team gives the leader the piece, the leaders
// exchange pieces between the hosts, and another operation within the team hands out what has come.

var (
	acrossSmallPath     = team.Path{Name: "exchange", Offer: offerToLeader, Contribute: contribute, Conclude: conclude, Run: takeOutcome}
	acrossDoublingPath  = team.Path{Name: schedule.Doubling.String(), Acquire: acquireNothing, Contribute: expectAcross, Run: runAcrossReduce}
	acrossReducePath    = team.Path{Name: schedule.Ring.String(), Acquire: acquireNothing, Contribute: expectAcross, Run: runAcrossReduce}
	acrossBroadcastPath = team.Path{Name: schedule.Chain.String(), Acquire: acquireNothing, Contribute: expectAcross, Run: runAcrossBroadcast}
)

const (
	// acrossPiece is how many bytes go through a team of several ranks at a time.
	acrossPiece = 4 << 20
	// doublingMost is the most bytes that go by recursive doubling: beyond it a ring is faster, though it has more steps.
	doublingMost = 512 << 10
)

// chooseAcross is choosePath between hosts: a pure function of the signature, the hosts, and how many ranks they have.
func chooseAcross(t *team.Team, w *team.Work) {
	h, bytes := t.Hosts, w.Count*w.Type.Size()
	switch {
	case bytes <= h.Contribution():
		w.Path = &acrossSmallPath
		if bytes > team.PayloadSize && t.Size() > 1 {
			w.Eager.Bytes = bytes
		}
		w.SrcBuf.Why, w.DstBuf.Why = "small enough to travel with what the hosts say", "its own rank alone writes it"
	default:
		switch wayAcross(w) {
		case schedule.Chain:
			w.Path = &acrossBroadcastPath
		case schedule.Doubling:
			w.Path = &acrossDoublingPath
		default:
			w.Path = &acrossReducePath
		}
	}
}

// wayAcross is how data travel between hosts that do not travel with the proposals.
func wayAcross(w *team.Work) schedule.Way {
	switch {
	case w.Kind == team.KindBroadcast:
		return schedule.Chain
	case w.Count*w.Type.Size() <= doublingMost:
		return schedule.Doubling
	}
	return schedule.Ring
}

func offerToLeader(t *team.Team, w *team.Work) {
	if t.Size() > 1 {
		offerEager(t, w)
	}
}

// contribute writes the combined sources of the team to b.
func contribute(t *team.Team, w *team.Work, b []byte) int {
	bytes := w.Count * w.Type.Size()
	if bytes == 0 {
		return 0
	}
	to := unsafe.Pointer(&b[0])
	switch {
	case w.Kind == team.KindBroadcast:
		root := t.Index(w.Root)
		if root < 0 {
			return 0
		}
		from := w.Src.Ptr
		if t.Size() > 1 {
			from = slot(t, w, root)
		}
		cpu.Copy(to, from, bytes, false)
	case t.Size() == 1:
		load(w, to, w.Src.Ptr, w.Count)
	default:
		srcs := t.Scratch()
		for r := range srcs {
			srcs[r] = slot(t, w, r)
		}
		div := 1
		if w.HalfAverage() {
			div = cpu.Fraction(t.Size())
		}
		cpu.ReduceN(w.Type, w.Red.Op(), to, srcs, w.Count, div, false)
	}
	return bytes
}

// conclude writes the result to where the team fetches it, or, if the leader is alone, to its destination.
func conclude(t *team.Team, w *team.Work, all func(host int) []byte) error {
	bytes := w.Count * w.Type.Size()
	to := t.Outcome(bytes)
	if t.Size() == 1 {
		to = w.Dst.Ptr
	}
	if bytes == 0 || to == nil {
		return nil
	}
	from := t.Hosts.Of(w.Root)
	for h := range t.Hosts.Size() {
		want := bytes
		if w.Kind == team.KindBroadcast && h != from {
			want = 0
		}
		if n := len(all(h)); n != want {
			return fmt.Errorf("host %d has sent %d bytes, not %d: %w", h, n, want, fault.ErrMismatch)
		}
	}
	if w.Kind == team.KindBroadcast {
		cpu.Copy(to, unsafe.Pointer(&all(from)[0]), bytes, false)
		return nil
	}
	combine(t.Hosts, w, to, all)
	return nil
}

// combine combines the hosts' contributions in the order of the hosts, so that all get the same bits.
func combine(h team.Hosts, w *team.Work, to unsafe.Pointer, all func(host int) []byte) {
	srcs := h.Scratch()
	for i := range srcs {
		srcs[i] = unsafe.Pointer(&all(i)[0])
	}
	div := 1
	if w.Red == team.Avg {
		if div = h.Ranks(); w.HalfAverage() && h.Most() > 1 {
			combineFractions(h, w, to, srcs)
			return
		}
	}
	cpu.ReduceN(w.Type, w.Red.Op(), to, srcs, w.Count, div, false)
}

// combineFractions is combine where hosts of several ranks have sent fractions of sums.
func combineFractions(h team.Hosts, w *team.Work, to unsafe.Pointer, srcs []unsafe.Pointer) {
	ranks := h.On(0)
	for i := 1; i < len(srcs); i++ {
		more := h.On(i)
		div := cpu.Fraction(ranks + more)
		if i == len(srcs)-1 {
			div = h.Ranks()
		}
		cpu.AddFractions(w.Type, to, srcs[0], srcs[i], w.Count, ranks, more, div)
		srcs[0] = to
		ranks += more
	}
}

func takeOutcome(_ context.Context, t *team.Team, w *team.Work) error {
	if bytes := w.Count * w.Type.Size(); bytes > 0 && w.Dst.Ptr != nil && t.Size() > 1 {
		cpu.Copy(w.Dst.Ptr, t.Outcome(bytes), bytes, false)
	}
	return nil
}

// acquireNothing acquires no registrations: the parts of the operation do.
func acquireNothing(*team.Team, *team.Work) error { return nil }

// pieceAcross is how many elements go through the teams at a time.
func pieceAcross(t *team.Team, w *team.Work) int {
	if t.Hosts.Most() == 1 {
		return max(w.Count, 1)
	}
	return acrossPiece / w.Type.Size()
}

// exchangeAcross is what the leaders do with elements off to off+n, of which own has this host's data.
func exchangeAcross(t *team.Team, w *team.Work, own unsafe.Pointer, off, n int) team.Exchange {
	h, size := t.Hosts, w.Type.Size()
	p := schedule.Plan{Way: wayAcross(w), Hosts: h.Size(), Me: h.Host(), Root: h.Of(w.Root), Count: n, Line: 64 / size}
	p.Item = max(itemAcross(p.Way, p.Hosts, n*size)/size, 1)
	at := func(p unsafe.Pointer) unsafe.Pointer {
		if p == nil {
			return nil
		}
		return unsafe.Add(p, off*size)
	}
	to := w.Dst.Ptr
	if w.Kind == team.KindBroadcast {
		to = own
	}
	return team.Exchange{Plan: p, Work: w, Source: at(own), Destination: at(to)}
}

const (
	largestItem = 512 << 10 // about as much as one call on a socket moves
	// itemOverhead is how many bytes could be sent in the time that an item takes beyond that of its bytes.
	itemOverhead = 64 << 10
)

// itemAcross is how many bytes an item has, at most.
func itemAcross(way schedule.Way, hosts, bytes int) int {
	switch way {
	case schedule.Ring:
		bytes = (bytes + hosts - 1) / hosts
	case schedule.Chain:
		// The last host has everything when hosts-2 items have passed, and then all items. That is soonest with so many.
		items := int(math.Sqrt(float64(hosts-2) * float64(bytes) / itemOverhead))
		bytes /= max(items, 1)
	}
	return min((bytes+63)&^63, largestItem)
}

// expectAcross expects the first piece.
func expectAcross(t *team.Team, w *team.Work, _ []byte) int {
	own := w.Src.Ptr
	if w.Kind == team.KindBroadcast {
		own = leadersData(w)
	}
	t.Hosts.Expect(exchangeAcross(t, w, own, 0, min(w.Count, pieceAcross(t, w))))
	return 0
}

func runAcrossReduce(ctx context.Context, t *team.Team, w *team.Work) error {
	h, alone := t.Hosts, t.Size() == 1
	w.SrcBuf.WasDirect, w.DstBuf.WasDirect = alone, alone
	for off, per := 0, pieceAcross(t, w); off < w.Count; off += per {
		n := min(per, w.Count-off)
		own := w.Src.Ptr
		if !alone {
			part := team.Work{Kind: team.KindReduce, Type: w.Type, Red: w.Red, Factor: w.Factor, Count: n, Src: within(w.Src, off, n),
				Dst: team.Vec{Type: w.Type}, Graph: w.Graph}
			switch {
			case w.HalfAverage():
				part.Divisor = cpu.Fraction(t.Size())
			case w.Red == team.Avg:
				part.Red = team.Sum
			}
			if t.Rank() == 0 {
				part.Dst, own = within(w.Dst, off, n), w.Dst.Ptr
			}
			if err := runPart(ctx, t, &part, &w.SrcBuf, &part.SrcBuf, &w.Inner[0]); err != nil {
				return err
			}
		}
		if t.Rank() == 0 {
			if err := h.Move(ctx, exchangeAcross(t, w, own, off, n)); err != nil {
				return err
			}
		}
		if !alone {
			part := team.Work{Kind: team.KindBroadcast, Type: w.Type, Count: n, Graph: w.Graph}
			if err := shareOut(ctx, t, &part, within(w.Dst, off, n), &w.DstBuf, &w.Inner[1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// shareOut broadcasts v within the team, from the rank that part names.
func shareOut(ctx context.Context, t *team.Team, part *team.Work, v team.Vec, told *team.Buf, algorithm *string) error {
	part.Src, part.Dst = v, team.Vec{Type: v.Type}
	buf := &part.SrcBuf
	if t.Rank() != part.Root {
		part.Src, part.Dst = part.Dst, part.Src
		buf = &part.DstBuf
	}
	return runPart(ctx, t, part, told, buf, algorithm)
}

// runPart runs a part of an operation. It records in told whether part's buffer buf was direct, and which algorithm ran.
func runPart(ctx context.Context, t *team.Team, part *team.Work, told, buf *team.Buf, algorithm *string) error {
	chooseInTeam(t, part)
	err := t.Hosts.Sub(ctx, part)
	told.WasDirect, told.Why = buf.Direct(), buf.Why
	if *algorithm = part.Algorithm; *algorithm == "" {
		*algorithm = part.Path.Name
	}
	return err
}

// within returns n elements of v, from element off on.
func within(v team.Vec, off, n int) team.Vec {
	v.Ptr, v.Len = unsafe.Add(v.Ptr, off*v.Type.Size()), n
	return v
}

// leadersData is the leader's copy of the data of a broadcast.
func leadersData(w *team.Work) unsafe.Pointer {
	if w.Dst.Ptr != nil {
		return w.Dst.Ptr
	}
	return w.Src.Ptr
}

func runAcrossBroadcast(ctx context.Context, t *team.Team, w *team.Work) error {
	h, alone, root := t.Hosts, t.Size() == 1, max(t.Index(w.Root), 0)
	w.SrcBuf.WasDirect, w.DstBuf.WasDirect = alone, alone
	here := h.Of(w.Root) == h.Host()
	for off, per := 0, pieceAcross(t, w); off < w.Count; off += per {
		n := min(per, w.Count-off)
		share := func() error {
			if alone {
				return nil
			}
			v, told := w.Dst, &w.DstBuf
			if v.Ptr == nil {
				v, told = w.Src, &w.SrcBuf
			}
			part := team.Work{Kind: team.KindBroadcast, Type: w.Type, Root: root, Count: n, Graph: w.Graph}
			return shareOut(ctx, t, &part, within(v, off, n), told, &w.Inner[1])
		}
		if here {
			if err := share(); err != nil {
				return err
			}
		}
		if t.Rank() == 0 {
			if err := h.Move(ctx, exchangeAcross(t, w, leadersData(w), off, n)); err != nil {
				return err
			}
		}
		if !here {
			if err := share(); err != nil {
				return err
			}
		}
	}
	return nil
}
