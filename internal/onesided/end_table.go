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

// A channel is a semaphore each way, and memory that each end shows the other. The k-th one that a rank makes to a peer
// and the k-th that the peer makes to this rank are the two ends of the same. Each rank has a table of its ends, made
// with the first one, which its peers map and it alone writes.
const (
	maxEnds   = kernels.MaxChannels
	tableEnds = maxEnds + 32 // the rest is for telling peers of channels that could not be made
	endsBytes = 256 * tableEnds

	endMet = 3 // a state: this end has found the other
)

// channelEnd is one end. What the other end polls is apart from what this end writes at every copy, on another pair of
// cache lines.
type channelEnd struct {
	// signals is what this end has sent: in the first word if it is the lower rank, else in the second. At one place in
	// their pages, the two ends' words would be taken for one another by the processor, which then waits with a load of
	// the one until a store to the other is done (measured: 310 ns a round trip, not 450).
	signals [2]struct {
		atomic.Uint64
		_ [56]byte
	}
	state atomic.Uint64 // StateOpen, endMet or StateClosed
	met   atomic.Uint64 // 1 once this end has found the other, for good
	grant atomic.Uint64 // of copying
	_     [40]byte

	key     atomic.Uint64 // of the channel; written last, 0 while the slot is free
	copying atomic.Uint64 // copies of this end, under way in memory of the other's rank
	shown   shown
}

func (s *channelEnd) word(higher bool) *atomic.Uint64 {
	if higher {
		return &s.signals[1].Uint64
	}
	return &s.signals[0].Uint64
}

// shown is an export as peers read it. Without bytes, its rank refused the channel, and slot says why.
type shown struct {
	at         team.BufWord
	bytes      uint64
	slot       uint64
	generation uint64
}

func (s *shown) set(e engine.Export) {
	s.at = team.WordOf(e.At)
	s.bytes, s.slot, s.generation = uint64(e.Bytes), uint64(e.Grant.Slot), e.Grant.Generation
	if e.GPU {
		s.slot |= shownOnGPU
	}
}

// shownOnGPU in shown.slot: the memory is on the rank's device.
const shownOnGPU = 1 << 63

func (s *shown) get() engine.Export {
	return engine.Export{At: s.at.Location(), Bytes: int(s.bytes), GPU: s.slot&shownOnGPU != 0,
		Grant: mem.Location{Slot: uint32(s.slot), Generation: s.generation}}
}

// channelKey is that of the n-th channel to a rank.
func channelKey(to int, n uint32) uint64 { return uint64(to+1)<<32 | uint64(n) + 1 }

// endTable is a rank's ends, which are followed by how many there have been, for each rank.
type endTable [tableEnds]channelEnd

func tableBytes(ranks int) int { return endsBytes + 8*ranks }

// made is how many channels to a rank there have been: those whose slots are gone too.
func (t *endTable) made(to int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Add(unsafe.Pointer(t), endsBytes+8*to))
}

func init() {
	if unsafe.Sizeof(channelEnd{}) != 256 || unsafe.Sizeof(endTable{}) != endsBytes || unsafe.Sizeof(team.Place{}) != 64 {
		panic("onesided: end table layout")
	}
}

// occupant has a slot: a channel, or a window for its end towards one rank.
type occupant interface {
	// left reports whether neither end needs the slot any more. The caller holds Space.mu.
	left() bool
}

var errNoEnd = fmt.Errorf("%d channels are open, or closed on one side only (close both), and windows on devices "+
	"count once for each rank: %w", maxEnds, fault.ErrLimit)

// noGPUEnd is errNoEnd for ends on devices, of which this communicator's area has room for so many.
func noGPUEnd(most int) error {
	return fmt.Errorf("%d channels over memory of devices are open, or closed on one side only (close both), and windows on "+
		"devices count once for each rank; communicators that Split or Dup have made have room for fewer than others: %w",
		most, fault.ErrLimit)
}

// gpuSlots is how many slots, the first ones, ends on a device can have.
func (sp *Space) gpuSlots() int {
	if sp.gpu == nil {
		return 0
	}
	return sp.gpu.d.Layout.Channels
}

// freeSlot is a slot that nobody needs, or -1. Who has no need of one for an end on a device leaves those to others as
// long as there are more. The caller holds mu.
func (sp *Space) freeSlot(onDevice bool) int {
	first, beyond, most := -1, -1, sp.gpuSlots()
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

// left reports whether both ends have closed the channel: the other end's slot has gone on to another one, then, or
// says so.
func (ch *Channel) left() bool {
	if ch.mine.state.Load() != team.StateClosed {
		return false
	}
	gone := false
	if ch.theirs == nil {
		ch.theirs, _, gone, _ = ch.otherEnd()
	}
	p := &ch.c.Team().Peers[ch.peer]
	there := team.Reader{State: &p.Area.State, Mem: p.Mem, At: p.At}
	gone = gone || ch.theirs != nil && (ch.theirs.key.Load() != ch.otherKey() || ch.theirs.state.Load() == team.StateClosed)
	if !gone && !there.Done() {
		return false
	}
	ch.mine.key.Store(0)
	return true
}
