package engine

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// The control segment of a communicator is one area per rank, an allocation of that rank which all peers map. Only its
// rank writes it, so that every shared cache line has one writer.

const (
	areaMagic   = 0x75622d6172656103 // "ub-area", layout 3
	areaBytes   = 4096               // the area proper; the rank's eager slots and staging memory follow
	textBytes   = 480
	PayloadSize = 48 // bytes of data that travel in a descriptor's first line
)

// bufWord says where one buffer of a call is: generation 0 means that peers cannot reach it (it is staged).
type bufWord struct {
	arena, slot uint32
	generation  uint64
	offset      uint64
}

func (w *bufWord) location() mem.Location {
	return mem.Location{Arena: w.arena, Slot: w.slot, Generation: w.generation, Offset: w.offset}
}

// descriptor is what a rank publishes per operation. Its first line is all that peers read when signatures agree: what
// follows the signature there is the payload of small operations and the buffers of others.
type descriptor struct {
	seq     atomic.Uint64 // written last
	sig     uint64
	payload [PayloadSize]byte

	refusal uint64 // why the rank refused: (rank it is about)+1<<32, if any, and a code of refusals
	_       [56]byte
}

// buffers are where the buffers of a call are, in the place of its payload.
type buffers struct{ src, dst bufWord }

func (d *descriptor) buffers() *buffers { return (*buffers)(unsafe.Pointer(&d.payload)) }

// refusalText explains a refusal to the peers, one for each descriptor slot.
type refusalText struct {
	n    uint64
	text [textBytes]byte
}

// area is one rank's part of the control segment. The gaps keep what different peers wait for on different pairs of
// cache lines (the adjacent-line prefetcher fetches pairs).
type area struct {
	magic uint64
	comm  uint64
	rank  uint32
	size  uint32
	_     [104]byte

	desc [2]descriptor // sequence mod 2

	// progress is seq<<32 + the number of steps of that operation that this rank has done.
	progress atomic.Uint64
	_        [120]byte

	state atomic.Uint64
	// lost is why the communicator broke, as its rank saw it: code<<32 | (rank it is about)+1; 0 while usable.
	lost atomic.Uint64
	// queued is how many collectives the rank has queued on its device: see kinds.go.
	queued atomic.Uint64
	_      [104]byte

	channels place // of the channel table
	// waits is what the rank waits in, if that takes long: see report.go.
	waits atomic.Uint64
	_     [56]byte

	group [2]descriptor // what a leader says for its group, sequence mod 2: see groups.go

	refusals [2]refusalText
	lostText refusalText
}

// place publishes where something is that its rank made later than the area.
type place struct {
	ready atomic.Uint64 // set last
	_     uint64
	at    bufWord
	_     [24]byte
}

// Area states.
const (
	stateOpen   = 1
	stateClosed = 2
)

func init() {
	if unsafe.Sizeof(area{}) > areaBytes || unsafe.Sizeof(descriptor{}) != 128 ||
		unsafe.Sizeof(buffers{}) != PayloadSize || unsafe.Offsetof(area{}.desc) != 128 ||
		unsafe.Offsetof(area{}.group)%128 != 0 {
		panic("engine: control area layout")
	}
}

func (a *area) check(comm uint64, rank, size int) error {
	if a.magic != areaMagic || a.comm != comm || a.rank != uint32(rank) || a.size != uint32(size) {
		return fmt.Errorf("control area of rank %d of %d is not what it should be: %w", rank, size, fault.ErrStale)
	}
	return nil
}

func (t *refusalText) set(s string) { t.n = uint64(copy(t.text[:], s)) }

func (t *refusalText) get() string { return string(t.text[:min(t.n, textBytes)]) }
