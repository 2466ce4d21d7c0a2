package team

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// The control segment of a communicator is one area for each rank, an allocation of that rank which all peers map. Only
// its own rank writes it, so every shared cache line has one writer.

const (
	areaMagic   = 0x75622d6172656108 // "ub-area", layout 8
	areaBytes   = 4096               // the area itself; the rank's eager slots and staging memory follow
	TextBytes   = 480                // the most bytes of a text in an area
	PayloadSize = 48                 // bytes of data that travel in a descriptor's first line
)

// BufWord says where one buffer of a call is. Generation 0 means that peers cannot reach it: it is staged.
type BufWord struct {
	Arena, Slot uint32
	Generation  uint64
	Offset      uint64
}

// WordOf converts a location.
func WordOf(l mem.Location) BufWord {
	return BufWord{Arena: l.Arena, Slot: l.Slot, Generation: l.Generation, Offset: l.Offset}
}

// Location is the location that w has.
func (w *BufWord) Location() mem.Location {
	return mem.Location{Arena: w.Arena, Slot: w.Slot, Generation: w.Generation, Offset: w.Offset}
}

// Descriptor is what a rank publishes for each operation. If signatures agree, peers read only its first line: after
// the signature it has the payload of small operations, and the buffers of others.
type Descriptor struct {
	Seq     atomic.Uint64 // written last
	Sig     uint64
	payload [PayloadSize]byte

	Refusal uint64 // why the rank refused: (the rank it is about)+1<<32, if any, and a code of reason.Code
	_       [56]byte
}

// buffers are the places of a call's buffers. They lie where other calls have their payload.
type buffers struct{ Src, dst BufWord }

// Buffers returns the places of the call's buffers, stored in place of the payload.
func (d *Descriptor) Buffers() *buffers { return (*buffers)(unsafe.Pointer(&d.payload)) }

// RefusalText is text in an area that explains something to the peers, such as a refusal.
type RefusalText struct {
	N    uint64
	text [TextBytes]byte
}

// Area is one rank's part of the control segment. The gaps keep words that different peers wait for on different pairs
// of cache lines (the adjacent-line prefetcher fetches pairs).
type Area struct {
	magic uint64
	comm  uint64
	rank  uint32 // the rank in the communicator; size is the communicator's
	size  uint32
	dumps atomic.Uint64 // 1: the process writes dumps at a signal, which ends one that does not
	pid   uint64        // of the process that made the area, in its own namespace
	_     [88]byte

	Desc [2]Descriptor // by sequence number mod 2

	// progress is seq<<32 + the number of steps of that operation that this rank has done.
	progress atomic.Uint64
	_        [120]byte

	State atomic.Uint64
	// Lost says why the communicator broke, as its rank saw it: code<<32 | (the rank it is about)+1; 0 while usable.
	Lost atomic.Uint64
	_    [112]byte

	// queued is how many collectives the rank has queued on its device: see divergence.go. Each launch writes it, and
	// reads the two words above in the peers' areas.
	queued atomic.Uint64
	// idle is 1 once the rank has left the communicator, or it has broken, and its kernels there have ended for good.
	idle atomic.Uint64
	_    [112]byte

	// waits says what the rank waits for, if that takes long: see report.go.
	waits atomic.Uint64
	// beyond says what the rank waits for that this one waits for, if that is on another host, and so on.
	beyond [mostBeyond]atomic.Uint64

	Group [2]Descriptor // what a leader publishes for its group, by sequence number mod 2: see groups.go. Refusal is 1 + the member that came last, if it waited long for it
	// Verdict is what the team's first rank publishes for all hosts, by sequence number mod 2. Sig is 0 if VerdictText has the
	// verdict, and else what package hosts has there.
	Verdict [2]Descriptor

	Refusals    [2]RefusalText
	lostText    RefusalText
	VerdictText RefusalText
}

// Place publishes the location of something that its rank made later than the area.
type Place struct {
	Ready atomic.Uint64 // set last
	_     uint64
	At    BufWord
	_     [24]byte
}

// Area states.
const (
	StateOpen   = 1
	StateClosed = 2
)

func init() {
	if unsafe.Sizeof(Area{}) > areaBytes || unsafe.Sizeof(Descriptor{}) != 128 ||
		unsafe.Sizeof(buffers{}) != PayloadSize || unsafe.Offsetof(Area{}.Desc) != 128 ||
		unsafe.Offsetof(Area{}.Group)%128 != 0 {
		panic("team: control area layout")
	}
}

func (a *Area) check(comm uint64, rank, size int) error {
	if a.magic != areaMagic || a.comm != comm || a.rank != uint32(rank) || a.size != uint32(size) {
		return fmt.Errorf("control area of rank %d of %d is not what it should be: %w", rank, size, fault.ErrStale)
	}
	return nil
}

// Set stores s, cut to the room that there is.
func (t *RefusalText) Set(s string) { t.N = uint64(copy(t.text[:], s)) }

// Get returns the text.
func (t *RefusalText) Get() string { return string(t.text[:min(t.N, TextBytes)]) }
