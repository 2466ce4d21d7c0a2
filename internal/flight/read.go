package flight

import (
	"bytes"
	"slices"
	"strings"
)

// Record is one operation of a ring, as it was read.
type Record struct {
	Pos          uint32 // from 1 on, in the order in which the rank has begun them; it wraps around
	State        State
	Code         uint8 // if it failed: of reason.Code
	Call         uint64
	Seq          uint64
	Bytes        uint64
	Way          string
	Began        uint64 // by Now; 0: not known
	Agreed, Took uint64 // nanoseconds from Began; 0: not known
}

// Records returns the operations of a ring that still has them, in order. The ring may be another process's, which goes on
// writing it: what was overwritten meanwhile is left out. For any goroutine.
func (r *Ring) Records() []Record {
	var all []Record
	for i := range r.entries {
		e := &r.entries[i]
		what := e.what.Load()
		k := Record{Pos: uint32(what), State: State(what >> stateShift), Code: uint8(what >> codeShift), Call: e.call.Load(),
			Seq: e.seq.Load(), Bytes: e.bytes.Load(), Began: e.began.Load(), Way: r.wayOf(uint8(what >> wayShift))}
		took := e.took.Load()
		k.Agreed, k.Took = took>>32*unit, took&(1<<32-1)*unit
		if what == 0 || k.State < Entered || k.State > Queued || uint32(e.what.Load()) != k.Pos {
			continue
		}
		last := k
		for more := what >> moreShift; more > 0; more-- { // these are over, since another one has come
			k.State, k.Code = Done, 0
			all = append(all, k)
			k.Pos, k.Seq, k.Began, k.Agreed, k.Took = k.Pos+1, k.Seq+1, 0, 0, 0
		}
		k.State, k.Code = last.State, last.Code
		all = append(all, k)
	}
	slices.SortStableFunc(all, func(a, b Record) int { return int(int32(a.Pos - b.Pos)) })
	return all[max(0, len(all)-Entries):]
}

// wayOf is the name of a way.
func (r *Ring) wayOf(n uint8) string {
	if n == 0 || n > maxWays {
		return ""
	}
	w := r.ways[n-1] // a name is written once, before an entry has its number
	name, _, _ := bytes.Cut(w[:], []byte{0})
	return strings.ToValidUTF8(string(name), "?")
}

// Latest is what SetLate has published; ok is false if nothing.
func (r *Ring) Latest() (l Late, ok bool) {
	for i, to := range [4]*uint64{&l.Rank, &l.Calls, &l.Of, &l.Median} {
		*to = r.late[i].Load()
	}
	return l, l.Calls > 0
}
