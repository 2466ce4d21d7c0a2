package onesided

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// A channel is a semaphore in each direction, and memory that each end exports to the other. The k-th channel that a
// rank makes to a peer, and the k-th that the peer makes to this rank, are the two ends of one channel. Each rank has a
// table of its ends, made with the first one. Its peers map the table; only the rank itself writes it.
const (
	maxEnds   = kernels.MaxChannels
	tableEnds = maxEnds + 32 // the rest tells peers of channels that could not be made
	endsBytes = 256 * tableEnds

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

	key     atomic.Uint64 // the channel's key; written last, 0: the slot is free
	copying atomic.Uint64 // this end's copies under way in the other rank's memory
	export  exportWords
}

func (e *channelEnd) word(higher bool) *atomic.Uint64 {
	if higher {
		return &e.signals[1].Uint64
	}
	return &e.signals[0].Uint64
}

// exportWords are an export as peers read it. With bytes 0 its rank refused the channel, and slot is the reason's code.
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

// In exportWords.slot there are, beside the grant's slot, the access and the transports, from these bits on, and whether
// the memory is on the rank's device.
const (
	exportAccess     = 32
	exportTransports = 40
	exportOnDevice   = 1 << 63
)

func (w *exportWords) get() engine.Export {
	return engine.Export{At: w.at.Location(), Bytes: int(w.bytes), GPU: w.slot&exportOnDevice != 0,
		Grant:  mem.Location{Slot: uint32(w.slot), Generation: w.generation},
		Access: engine.Access(w.slot >> exportAccess), Transports: engine.Transports(w.slot >> exportTransports)}
}

// channelKey returns the key of the n-th channel to a rank.
func channelKey(to int, n uint32) uint64 { return uint64(to+1)<<32 | uint64(n) + 1 }

// endTable is a rank's ends. Behind it follow, for each rank, the numbers of channels made.
type endTable [tableEnds]channelEnd

func tableBytes(ranks int) int { return endsBytes + 8*ranks }

// made returns the number of channels made to a rank so far, including those whose slots are free again.
func (t *endTable) made(to int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Add(unsafe.Pointer(t), endsBytes+8*to))
}

func init() {
	if unsafe.Sizeof(channelEnd{}) != 256 || unsafe.Sizeof(endTable{}) != endsBytes || unsafe.Sizeof(team.Place{}) != 64 {
		panic("onesided: end table layout")
	}
}

// occupant occupies a slot: a channel, or a window's end towards one rank.
type occupant interface {
	// left reports whether neither end needs the slot any more. The caller holds Space.mu.
	left() bool
}

var errNoEnd = fmt.Errorf("%d channels are open, or closed on one side only (close both), and windows on devices "+
	"count once for each rank: %w", maxEnds, fault.ErrLimit)

// noDeviceEnd is errNoEnd for ends on devices; this communicator's area has room for `most` of them.
func noDeviceEnd(most int) error {
	return fmt.Errorf("%d channels over memory of devices are open, or closed on one side only (close both), and windows on "+
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

// left reports whether both ends have closed the channel: the other end's slot says so, or belongs to another channel
// by now.
func (ch *Channel) left() bool {
	if ch.mine.state.Load() != team.StateClosed {
		return false
	}
	gone := false
	if ch.theirs == nil {
		ch.theirs, _, gone, _ = ch.otherEnd()
	}
	p := &ch.c.Team().Peers[ch.peer]
	reader := team.Reader{State: &p.Area.State, Mem: p.Mem, At: p.At}
	gone = gone || ch.theirs != nil && (ch.theirs.key.Load() != ch.otherKey() || ch.theirs.state.Load() == team.StateClosed)
	if !gone && !reader.Done() {
		return false
	}
	ch.mine.key.Store(0)
	return true
}
