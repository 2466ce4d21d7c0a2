package onesided

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Channels and semaphores have signals in each direction, and two ranks make them together: the k-th that a rank makes
// with a peer, and the k-th that the peer makes with this rank, are the two ends of one. Each rank has a table of its
// ends, made with the first one. Its peers map the table; only the rank itself writes it. A channel over a semaphore
// has a slot of its own for the words about its copies; there is no other end to that.
const (
	maxEnds   = kernels.MaxChannels
	tableEnds = maxEnds + 32 // the rest tells peers of ends that could not be made

	endMet = 3 // state: this end has found the other one
)

// channelEnd is one end. The words that the other end polls, and those that this end writes at every copy, are on
// different pairs of cache lines.
type channelEnd struct {
	// signals counts the signals that this end has sent: the lower rank uses the first word, the higher one the second.
	// At the same offset in a page, a load of one end's word would wait for a store to the other end's word, because
	// the processor compares only these offsets (measured: 310 ns per round trip instead of 450).
	signals [2]struct {
		atomic.Uint64
		_ [56]byte
	}
	state atomic.Uint64 // StateOpen, endMet or StateClosed
	met   atomic.Uint64 // 1 once this end has found the other one; never reset
	grant atomic.Uint64 // the grant that this end's copies use
	_     [40]byte

	key     atomic.Uint64 // whose slot it is; written last, 0: the slot is free
	copying atomic.Uint64 // this end's copies under way in the other rank's memory
	export  exportWords
}

func (e *channelEnd) word(higher bool) *atomic.Uint64 {
	if higher {
		return &e.signals[1].Uint64
	}
	return &e.signals[0].Uint64
}

// exportWords are an export as peers read it, or a semaphore. With bytes 0 its rank refused it, and slot is the
// reason's code.
type exportWords struct {
	at         team.BufWord
	bytes      uint64
	slot       uint64
	generation uint64
}

func (w *exportWords) set(e engine.Export) {
	w.at = team.WordOf(e.At)
	w.bytes, w.generation = uint64(e.Bytes), e.Grant.Generation
	w.slot = uint64(e.Grant.Slot) | uint64(e.Access)<<exportAccess | uint64(e.Transports)<<exportTransports
	if e.GPU {
		w.slot |= exportOnDevice
	}
}

// In exportWords.slot there are, beside the grant's slot, the access and the transports, from these bits on, and two flags.
const (
	exportAccess     = 32
	exportTransports = 40
	exportSemaphore  = 1 << 62 // it is a semaphore
	exportOnDevice   = 1 << 63 // the memory, or the semaphore, is on the rank's device
)

// semaphoreWords are what a peer reads of a semaphore.
func semaphoreWords(onDevice bool) exportWords {
	w := exportWords{bytes: 1, slot: exportSemaphore}
	if onDevice {
		w.slot |= exportOnDevice
	}
	return w
}

// wordsOf are what a peer reads of a channel.
func wordsOf(e engine.Export) (w exportWords) {
	w.set(e)
	return w
}

// onDevice reports whether the memory or the semaphore is on the rank's device.
func (w *exportWords) onDevice() bool { return w.slot&exportOnDevice != 0 }

func (w *exportWords) semaphore() bool { return w.slot&exportSemaphore != 0 }

// refusal returns why the end could not be made, or nil.
func (w *exportWords) refusal() error {
	if w.bytes != 0 {
		return nil
	}
	if why := reason.OfCode(int(min(w.slot, 1<<16))); why != nil { // no code is that large
		return why
	}
	return fault.ErrArgument
}

// fits returns an error unless the end of a rank, which has these words, fits this rank's. Whether the memories of
// channels fit depends on more.
func (w *exportWords) fits(mine *exportWords, rank int) error {
	if w.semaphore() != mine.semaphore() || w.semaphore() && w.onDevice() != mine.onDevice() {
		return fmt.Errorf("rank %d makes %s, and this rank %s: %w", rank, w.what(), mine.what(), fault.ErrArgument)
	}
	return nil
}

// what returns the words' meaning for users.
func (w *exportWords) what() string {
	switch {
	case !w.semaphore():
		return "a channel"
	case w.onDevice():
		return "a semaphore on a device"
	}
	return "a semaphore on the host"
}

func (w *exportWords) get() engine.Export {
	return engine.Export{At: w.at.Location(), Bytes: int(w.bytes), GPU: w.onDevice(),
		Grant:  mem.Location{Slot: uint32(w.slot), Generation: w.generation},
		Access: engine.Access(w.slot >> exportAccess), Transports: engine.Transports(w.slot >> exportTransports)}
}

// channelKey returns the key of the n-th end towards a rank.
func channelKey(to int, n uint32) uint64 { return uint64(to+1)<<32 | uint64(n) + 1 }

// copiesKey returns the key of a slot for copies only, from and to a rank's memory.
func copiesKey(to int) uint64 { return uint64(to+1) << 32 }

// keyTo returns the rank that a key is for.
func keyTo(key uint64) int { return int(key>>32) - 1 }

// endTable is a rank's ends. Behind it follow, for each rank of its team, the numbers of ends made.
type endTable struct {
	ends  [tableEnds]channelEnd
	most  atomic.Uint64 // slots from this one on have never been used
	state atomic.Uint64 // StateClosed once the rank has closed the communicator, and copies no more
	_     [112]byte
}

func tableBytes(ranks int) int { return int(unsafe.Sizeof(endTable{})) + 8*ranks }

// made returns the number of ends made with a rank of the team so far, including those whose slots are free again.
func (t *endTable) made(to int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Add(unsafe.Pointer(t), int(unsafe.Sizeof(*t))+8*to))
}

func init() {
	if unsafe.Sizeof(channelEnd{}) != 256 || unsafe.Sizeof(endTable{})%128 != 0 || unsafe.Sizeof(team.Place{}) != 64 {
		panic("onesided: end table layout")
	}
}

// makeTable makes this rank's table, unless it exists. The caller holds mu.
func (sp *Space) makeTable() error {
	c := sp.c
	if sp.table != nil {
		return nil
	}
	a, err := c.Domain().Heap.Alloc(tableBytes(c.Team().Size()))
	if err != nil {
		return fmt.Errorf("channel table: %w", err)
	}
	c.RetireAtClose(a)
	sp.table = (*endTable)(a.Ptr)
	sp.places[c.Team().Rank()].At = team.WordOf(a.At)
	sp.places[c.Team().Rank()].Ready.Store(1)
	return nil
}

// tableOf returns a peer's table, or nil if the peer has none yet.
func (sp *Space) tableOf(peer int) (*endTable, error) {
	if sp.places[sp.local(peer)].Ready.Load() == 0 {
		return nil, nil
	}
	ptr, err := sp.peer(peer).Mem.Resolve(sp.places[sp.local(peer)].At.Location(), tableBytes(sp.c.Team().Size()))
	if err != nil {
		return nil, fmt.Errorf("channel table of rank %d: %w", peer, err)
	}
	return (*endTable)(ptr), nil
}

// occupant occupies a slot: signals, a channel over a semaphore, or a window's end towards one rank.
type occupant interface {
	// left reports whether nobody needs the slot any more, and frees it then. The caller holds Space.mu.
	left() bool
}

var errNoEnd = fmt.Errorf("%d channels and semaphores are open, or closed on one side only (close both), and windows on "+
	"devices count once for each rank: %w", maxEnds, fault.ErrLimit)

// noDeviceEnd is errNoEnd for ends on devices; this communicator's area has room for `most` of them.
func noDeviceEnd(most int) error {
	return fmt.Errorf("%d channels and semaphores on devices are open, or closed on one side only (close both), and windows on "+
		"devices count once for each rank; communicators that Split or Dup have made have room for fewer than others: %w",
		most, fault.ErrLimit)
}

// freeSlot returns a free slot, or -1. Slots for ends on a device go to other ends only if no other slot is free. The
// caller holds mu.
func (sp *Space) freeSlot(onDevice bool) int {
	first, beyond, most := -1, -1, sp.deviceSlots()
	for i, u := range sp.used {
		if u != nil && u.left() {
			sp.used[i] = nil
		}
		if sp.used[i] != nil {
			continue
		}
		if first < 0 {
			first = i
		}
		if beyond < 0 && i >= most && i < maxEnds {
			beyond = i
		}
	}
	if beyond >= 0 && !onDevice {
		return beyond
	}
	return first
}

// take gives u a free slot. If there is an error and a slot, the slot can only tell a peer of the error. The caller
// holds mu, and has made the table.
func (sp *Space) take(u occupant, onDevice bool) (slot int, err error) {
	slot = sp.freeSlot(onDevice)
	most := sp.deviceSlots()
	switch {
	case slot < 0:
		return slot, errNoEnd
	case slot >= maxEnds:
		err = errNoEnd
	case onDevice && slot >= most:
		err = noDeviceEnd(most)
	case onDevice:
		err = sp.device.Clear(slot)
	}
	sp.used[slot] = u
	if t := sp.table; t.most.Load() <= uint64(slot) {
		t.most.Store(uint64(slot) + 1)
	}
	e := &sp.table.ends[slot]
	e.copying.Store(0)
	e.grant.Store(0)
	e.state.Store(team.StateOpen)
	return slot, err
}
