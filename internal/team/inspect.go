package team

import (
	"errors"
	"io"
	"strings"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// Side returns what a rank of the team has published: its last operations, most at most, and what it waits for. For any
// goroutine, as long as the areas are mapped.
func (t *Team) Side(rank, most int) flight.Side {
	p := &t.Peers[rank]
	return sideOf(p.Area, p.ring(), most, flight.Now(), time.Now())
}

// Shown is the state of a rank of the team for whoever asks.
func (t *Team) Shown(rank int) (pid int, closed, dead bool) {
	p := &t.Peers[rank]
	return p.Proc.PID, p.Closed(), p.Mem != nil && p.Mem.Dead()
}

// sideOf is Side of an area, which may be a copy. At time by flight.Now, the host's clock said wall.
func sideOf(a *Area, ring *flight.Ring, most int, at uint64, wall time.Time) (s flight.Side) {
	if w := waitWord(a.waits.Load()); w != 0 {
		s.Waits = &flight.Wait{Op: w.kind().String(), Seq: w.seq(), Peer: w.peer()}
		if w.kind() == kindOther {
			s.Waits.Op = "a channel or window"
		}
	}
	records := ring.Records()
	for _, r := range records[max(0, len(records)-most):] {
		o := flight.Op{Pos: r.Pos, Seq: r.Seq, Call: Describe(r.Call), Bytes: r.Bytes, Way: r.Way, State: r.State.String(),
			Agreed: float64(r.Agreed) / 1e3, Took: float64(r.Took) / 1e3}
		if r.Began != 0 {
			o.Began = wall.Add(time.Duration(r.Began - at))
		}
		if r.State == flight.Failed {
			o.Error = "failed"
			if is := reason.OfCode(int(r.Code)); is != nil {
				o.Error = is.Error()
			}
		}
		s.Operations = append(s.Operations, o)
	}
	if l, ok := ring.Latest(); ok {
		s.Late = l.Slow()
	}
	return s
}

// arrivals says which rank arrived last most often, or "".
func (t *Team) arrivals() string {
	if ring := t.Flight.Ring(); ring != nil {
		if l, ok := ring.Latest(); ok {
			return l.Slow().String()
		}
	}
	return ""
}

// Found is a rank's area in memory of another process.
type Found struct {
	Comm       uint64
	Rank, Size int
	Broken     bool
	Why        string // it broke
	PID        int    // of the process that made the area, as that process knows it
	Dumps      bool   // the process writes dumps at a signal: see Area.dumps
	flight.Side
}

// Find returns the areas of open communicators in a memory file of another process, in which data begin and end where next
// says: the first at or behind an offset, or an error of io.EOF. The process goes on writing meanwhile.
func Find(file io.ReaderAt, next func(at int64) (begin, end int64, err error), most int) (all []Found, err error) {
	words := make([]uint64, peerAndRing/8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), peerAndRing)
	for at := int64(0); ; {
		begin, end, err := next(at)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		for at = begin &^ 4095; at < end; at += 4096 {
			if _, err := file.ReadAt(b[:8], at); err != nil || words[0] != areaMagic {
				continue
			}
			if _, err := file.ReadAt(b[:areaBytes], at); err != nil {
				continue // the file has been cut, or this is none
			}
			if _, err := file.ReadAt(b[areaBytes:], at+int64(peerBytes)); err != nil {
				continue
			}
			a, ring := (*Area)(unsafe.Pointer(&b[0])), (*flight.Ring)(unsafe.Pointer(&b[areaBytes]))
			if a.magic != areaMagic || a.State.Load() != StateOpen || a.rank >= a.size || a.size > MaxRanks {
				continue
			}
			f := Found{Comm: a.comm, Rank: int(a.rank), Size: int(a.size), PID: int(a.pid), Dumps: a.dumps.Load() != 0,
				Side: sideOf(a, ring, most, flight.Now(), time.Now())}
			if f.Broken = a.Lost.Load() != 0; f.Broken {
				f.Why = strings.ToValidUTF8(a.lostText.Get(), "?")
			}
			all = append(all, f)
		}
	}
}

// peerAndRing is how many bytes Find reads of an area.
const peerAndRing = areaBytes + int(unsafe.Sizeof(flight.Ring{}))

// Dumps says in this rank's area whether its process writes dumps at a signal, so that others may send it.
func (t *Team) Dumps(on bool) {
	v := uint64(0)
	if on {
		v = 1
	}
	t.Me.dumps.Store(v)
}
