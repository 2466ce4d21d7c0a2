// Package flight is a flight recorder: rings of the last operations of communicators, and what can be read from those of all
// ranks of a job. A ring lies in the memory that the ranks of a host share, so that it can be read, by others too, when its
// rank hangs, is stopped, or is dead.
package flight

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/race"
)

// Entries is how many operations a ring holds.
const Entries = 1024

// Ring is one rank's operations in one communicator. The rank alone writes it. All numbers in it are to be checked by
// whoever reads it in the memory of another process.
type Ring struct {
	names   atomic.Uint64 // how many ways have names
	late    [4]atomic.Uint64
	_       [88]byte
	ways    [maxWays]way
	entries [Entries]entry
}

const (
	maxWays  = 16
	nameSize = 24
)

type way [nameSize]byte

// entry is one operation, or a run of the same ones of which no time is known but when the first began. It has a cache line
// of its own.
type entry struct {
	what  atomic.Uint64 // of the first one: 1 + position in the low 32 bits, State of the last 8, way 8, code 8, how many more 8; written last
	call  atomic.Uint64 // the signature
	seq   atomic.Uint64
	bytes atomic.Uint64
	began atomic.Uint64 // by Now; 0: it was not read
	took  atomic.Uint64 // in units of 256 ns from began: until all had agreed, below until the end; 0: not read
	_     [16]byte
}

const (
	stateShift = 32
	wayShift   = 40
	codeShift  = 48
	moreShift  = 56
)

func init() {
	if unsafe.Sizeof(entry{}) != 64 || unsafe.Offsetof(Ring{}.entries)%64 != 0 {
		panic("flight: layout")
	}
}

// State says how far an operation has come.
type State uint8

// The states.
const (
	Entered State = 1 + iota // it waits until all ranks agree
	Agreed                   // data move
	Done
	Failed
	Queued // on a device, where kernels do the rest
)

var stateNames = [...]string{"", "entered", "agreed", "done", "failed", "queued"}

// String is the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// put stores v with no order to other stores: rings are read when their ranks hang, and else may be read in the middle of a
// change.
func put(w *atomic.Uint64, v uint64) {
	if race.Enabled {
		w.Store(v)
		return
	}
	*(*uint64)(unsafe.Pointer(w)) = v
}

var epoch = time.Now()

// base is what Now says at epoch.
var base = shm.Monotonic() - uint64(time.Since(epoch))

// Now is the time since this host started, in nanoseconds: the same clock in all its processes.
func Now() uint64 { return base + uint64(time.Since(epoch)) }

// AtTime is what Now said at t, which must have a monotonic reading.
func AtTime(t time.Time) uint64 { return base + uint64(t.Sub(epoch)) }

// Recorder writes a ring. What a call pays for that must not be seen in the time of the smallest calls: so the clock, which
// costs more than all the rest, is read in every call only while calls are rare, and else in one of hot; and calls that repeat
// the one before share its entry, so that they touch no memory but one line. For whoever has the communicator's turn.
type Recorder struct {
	ring *Ring
	e    *entry         // the last one
	what uint64         // its word
	call uint64         // the signature of what can be repeated; 0: nothing
	last unsafe.Pointer // the name of the way
	rare int            // how many calls went by when the clock was read last,
	skip int            // how many are left to go by, those that repeat others not counted,
	read uint64         // and when it was read
	n    int            // entries
}

const (
	hot     = 256                   // calls between two readings of the clock; one less fits an entry
	rareGap = 10 * time.Microsecond // calls that come less often than this are rare
)

// Init makes r the writer of ring, which is empty.
func (r *Recorder) Init(ring *Ring) { r.ring = ring }

// Ring is what the recorder writes; nil without one.
func (r *Recorder) Ring() *Ring { return r.ring }

// Again notes that the operation before is repeated, and waits until all ranks agree. It reports whether it could: it needs the
// same signature, and the same way, by a name that stays.
func (r *Recorder) Again(call uint64, way string) bool {
	if call != r.call || unsafe.Pointer(unsafe.StringData(way)) != r.last || r.what>>moreShift == hot-1 {
		return false
	}
	const oneMore = 1<<moreShift - uint64(Done-Entered)<<stateShift // the one before is done, or call would be 0
	r.what += oneMore
	put(&r.e.what, r.what)
	return true
}

// Finish is End(0) if an operation is under way.
func (r *Recorder) Finish() { r.set(Done) }

// Begin notes that operation seq begins, which is the next in the order of the communicator. call is its signature, bytes the
// size of its larger buffer, and way how it goes, by a name that stays. repeats says that another operation with the same
// signature and way has the same bytes and the next seq.
func (r *Recorder) Begin(s State, call, seq uint64, bytes int, way string, repeats bool) {
	if p := unsafe.Pointer(unsafe.StringData(way)); p != r.last || r.n == 0 {
		r.last, r.what = p, r.what&^(0xff<<wayShift)|r.ring.name(way)<<wayShift
	}
	more := r.what >> moreShift
	r.enter(s, call, seq, bytes, r.pos()+1)
	if r.call = 0; repeats {
		r.call = call
	}
	if r.skip -= int(more) + 1; r.skip <= 0 {
		r.sample()
	}
}

// pos is the position of the last operation.
func (r *Recorder) pos() uint32 { return uint32(r.what) + uint32(r.what>>moreShift) }

// enter makes a new entry, with the way of the one before.
func (r *Recorder) enter(s State, call, seq uint64, bytes int, pos uint32) {
	e := &r.ring.entries[r.n%Entries]
	r.n++
	r.e, r.what = e, uint64(pos)|uint64(s)<<stateShift|r.what&(0xff<<wayShift)
	put(&e.what, 0) // nobody takes what follows for the operation that was here
	put(&e.call, call)
	put(&e.seq, seq)
	put(&e.bytes, uint64(bytes))
	put(&e.began, 0)
	put(&e.took, 0)
	put(&e.what, r.what)
}

// alone gives the operation under way an entry of its own.
func (r *Recorder) alone() {
	more := r.what >> moreShift
	if more == 0 {
		return
	}
	e := r.e
	put(&e.what, r.what&^(0xff<<stateShift)-1<<moreShift|uint64(Done)<<stateShift)
	r.enter(r.state(), e.call.Load(), e.seq.Load()+more, int(e.bytes.Load()), r.pos())
}

// sample reads the clock.
func (r *Recorder) sample() {
	now := Now()
	r.skip = 1
	if now-r.read < uint64(r.rare)*uint64(rareGap) {
		r.skip = hot
	} else {
		r.call = 0 // the next one reads the clock, too
	}
	r.rare, r.read = r.skip, now
	put(&r.e.began, now)
}

func (r *Recorder) state() State { return State(r.what >> stateShift) }

// set replaces the state of the last operation.
func (r *Recorder) set(s State) {
	r.what = r.what&^(0xff<<stateShift) | uint64(s)<<stateShift
	put(&r.e.what, r.what)
}

// open reports whether an operation is under way.
func (r *Recorder) open() bool { s := r.state(); return s != 0 && s != Done && s != Failed }

// Began notes when, by Now, the operation under way began.
func (r *Recorder) Began(at uint64) {
	if r.open() {
		r.alone()
		put(&r.e.began, at)
	}
}

// Known reports whether the ring has the time at which the operation under way began, or there is none.
func (r *Recorder) Known() bool { return !r.open() || r.what>>moreShift == 0 && r.e.began.Load() != 0 }

// Agreed notes that all ranks agree on the operation under way. at is when, by Now; 0: it was not read.
func (r *Recorder) Agreed(at uint64) {
	if !r.open() {
		return
	}
	if r.alone(); at != 0 {
		put(&r.e.took, units(at, r.e.began.Load())<<32)
	}
	r.call = 0
	r.set(Agreed)
}

// Rename says how the operation under way goes, if Begin did not know it yet.
func (r *Recorder) Rename(way string) {
	if p := unsafe.Pointer(unsafe.StringData(way)); r.open() && p != r.last {
		r.alone()
		r.last, r.what, r.call = p, r.what&^(0xff<<wayShift)|r.ring.name(way)<<wayShift, 0
		put(&r.e.what, r.what)
	}
}

// End notes that the operation under way is over. at is when, by Now; 0: it was not read.
func (r *Recorder) End(at uint64) {
	if !r.open() {
		return
	}
	if at != 0 {
		r.alone()
		put(&r.e.took, r.e.took.Load()&^(1<<32-1)|units(at, r.e.began.Load()))
	}
	r.set(Done)
}

// Fail notes that the operation under way has failed now, with a code of reason.Code.
func (r *Recorder) Fail(code int) {
	if r.open() {
		r.End(Now())
		r.what |= uint64(code&0xff) << codeShift
		r.set(Failed)
		r.call = 0
	}
}

// Drop takes back the operation under way, which is none.
func (r *Recorder) Drop() {
	if r.open() {
		r.alone()
		put(&r.e.what, 0)
		r.what = uint64(uint32(r.what)-1) | uint64(Done)<<stateShift | r.what&(0xff<<wayShift)
		r.n--
		r.e, r.call = nil, 0
	}
}

// unit is the unit of entry.took.
const unit = 256

// units is the time from began to at in an entry; 0 if it is not known.
func units(at, began uint64) uint64 {
	if began == 0 || at < began {
		return 0
	}
	return min((at-began)/unit+1, 1<<32-1)
}

// name returns the number of a way, which gets one if it has none yet; 0 if there is no room.
func (r *Ring) name(s string) uint64 {
	n := r.names.Load()
	var w way
	copy(w[:], s)
	for i := range min(n, maxWays) {
		if r.ways[i] == w {
			return i + 1
		}
	}
	if n >= maxWays {
		return 0
	}
	r.ways[n] = w
	r.names.Store(n + 1)
	return n + 1
}

// Late says which rank was the last to arrive most often: in Calls of Of calls, Median nanoseconds after this one.
type Late struct{ Rank, Calls, Of, Median uint64 }

// SetLate publishes l for whoever reads the ring.
func (r *Recorder) SetLate(l Late) {
	for i, v := range [4]uint64{l.Rank, l.Calls, l.Of, l.Median} {
		r.ring.late[i].Store(v)
	}
}
