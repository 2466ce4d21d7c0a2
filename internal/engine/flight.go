package engine

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// What a call tells the flight recorder. It is written after the descriptor is published, while those of the peers are on
// their way. A part of another operation tells nothing.

// begin notes that w, number seq, which has been published with a signature, waits until all ranks agree. at is when it
// began, by flight.Now, or 0.
func (c *Comm) begin(w *team.Work, sig, seq uint64, way string, at uint64) {
	f := &c.team.Flight
	if w.Of != nil || at == 0 && c.stage == nil && f.Again(sig, way) {
		return
	}
	f.Begin(flight.Entered, sig, seq, max(w.Src.Bytes(), w.Dst.Bytes()), way, w.SendCounts == nil && w.RecvCounts == nil)
	if at == 0 && c.stage != nil { // what takes so long is worth a look at the clock
		at = flight.Now()
	}
	if at != 0 {
		f.Began(at)
	}
}

// agreed notes that all ranks have come, unless err says what is wrong. at is when, or 0.
func (c *Comm) agreed(w *team.Work, at uint64, err error) {
	if c.stage != nil {
		c.team.Late = team.Late{}
		if late := c.stage.Last(); late.For > 0 {
			c.noteLate(late.Rank, late.For)
		}
	}
	if w.Of == nil && err == nil {
		c.team.Flight.Agreed(at)
	}
}

// Arrived implements team.Comm.
func (c *Comm) Arrived(rank int, waited time.Duration) {
	c.noteLate(rank, waited)
	if c.team.Running().Of == nil {
		c.team.Flight.Agreed(flight.Now())
	}
}

// over notes that w has ended.
func (c *Comm) over(w *team.Work, err error) {
	f := &c.team.Flight
	switch {
	case w.Of != nil:
	case err != nil:
		f.Fail(reason.Code(err))
	default:
		if w.Algorithm != "" {
			f.Rename(w.Algorithm)
		}
		if c.stage != nil {
			f.End(flight.Now())
			return
		}
		f.End(0)
	}
}

// Queued notes an operation that kernels do, for package gpu.
func (c *Comm) Queued(w *team.Work, algorithm string, seq uint64) {
	c.team.Flight.Begin(flight.Queued, w.Signature(), seq, max(w.Src.Bytes(), w.Dst.Bytes()), algorithm, false)
}

// Waited notes that the last operation that kernels do has ended with err.
func (c *Comm) Waited(err error) {
	if err != nil {
		c.team.Flight.Fail(reason.Code(err))
		return
	}
	c.team.Flight.End(flight.Now())
}

// recordReplay notes the operations of a graph's launch.
func (c *Comm) recordReplay(r *Replay, before uint64) {
	for i := range r.members {
		if o := &r.members[i]; kindOf(o) == 0 {
			c.team.Flight.Begin(flight.Queued, o.Call, before+o.Seq, o.Bytes, o.Algorithm, false)
		}
	}
}

// lateness is how often one rank arrived last, as this rank has seen it, and how long this rank had waited then. It counts
// times by their size, four counts for each doubling, from leastLate on. There may be one for each rank, so it is small.
type lateness struct {
	calls   uint64
	longest time.Duration
	counts  [4 * 28]uint16 // up to 18 minutes
}

const leastLate = 12 // bits of the nanoseconds of the first doubling

// bucket is the count of a time.
func bucket(d time.Duration) int {
	n := max(uint64(d), 1<<leastLate)
	top := bits.Len64(n) - 1
	return min(4*(top-leastLate)+int(n>>(top-2)&3), len(lateness{}.counts)-1)
}

// middle is the middle of the times that count in a bucket.
func middle(i int) time.Duration {
	return time.Duration(uint64(9+2*(i%4)) << (leastLate - 3) << (i / 4))
}

func (l *lateness) add(d time.Duration) {
	b := bucket(d)
	if l.counts[b] == math.MaxUint16 { // the shares count, and halving keeps them
		for i := range l.counts {
			l.counts[i] /= 2
		}
	}
	l.calls++
	l.counts[b]++
	l.longest = max(l.longest, d)
}

// median is the median, 13 % off at most.
func (l *lateness) median() time.Duration {
	all, n := uint64(0), uint64(0)
	for _, k := range l.counts {
		all += uint64(k)
	}
	for i, k := range l.counts {
		if n += uint64(k); 2*n >= all {
			return min(middle(i), l.longest)
		}
	}
	return l.longest
}

// noteLate notes that a rank came last, for which this one has waited.
func (c *Comm) noteLate(rank int, waited time.Duration) {
	c.infoM.Lock()
	if c.late == nil {
		c.late = map[int]*lateness{}
	}
	k := c.late[rank]
	if k == nil {
		k = &lateness{}
		c.late[rank] = k
	}
	k.add(waited)
	if m := c.late[c.latest]; m == nil || k.calls >= m.calls {
		c.latest = rank
	}
	// Those who read shared memory do not need each change.
	tell := rank == c.latest && (k.calls < tellEvery || k.calls%tellEvery == 0)
	of := c.ops
	c.infoM.Unlock()
	if tell {
		c.team.Flight.SetLate(flight.Late{Rank: uint64(rank), Calls: k.calls, Of: of, Median: uint64(k.median())})
	}
}

const tellEvery = 16

// LastArrival is how often a rank was the last to arrive at a collective, and how long this rank had waited for it.
type LastArrival struct {
	Rank            int // of the communicator
	Calls           uint64
	Median, Longest time.Duration
}

// lastArrivals returns the ranks that arrived last, most often first. The caller holds infoM.
func (c *Comm) lastArrivals() (all []LastArrival) {
	for rank, k := range c.late {
		all = append(all, LastArrival{rank, k.calls, k.median(), k.longest})
	}
	slices.SortFunc(all, func(a, b LastArrival) int { return cmp.Or(cmp.Compare(b.Calls, a.Calls), a.Rank-b.Rank) })
	return all
}
