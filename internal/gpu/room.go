package gpu

import (
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/plural"
)

// Collectives, messages and channels are independent: a kernel that waits for a peer must not keep out a kernel that
// this peer waits for. So collectives leave some multiprocessors to the others, whose blocks use so few registers that
// two fit on one.
const (
	roomPart    = 6  // collectives leave one of so many multiprocessors,
	roomMost    = 20 // at most as many as make messages fast,
	roomLeast   = 2  // and at least so many for each rank, for its lanes
	roomRanks   = 8  // beyond so many ranks, each adds just one: room for one block of each of its two lanes
	RoomBlocks  = 2  // blocks of messages, channels and small collectives that fit on a multiprocessor
	roomChannel = 5  // one of so many that are left is for channels; ranks beyond roomRanks add none
)

// CopyEngineMin is the size in bytes from which copy engines are faster than kernels.
const CopyEngineMin = 32 << 20

// room is how the work of a communicator shares a device's multiprocessors.
type room struct {
	Threads     int // of a block, at most
	PerSM       int // so many blocks of messages, channels and small collectives fit on a multiprocessor
	Collectives int // blocks of a collective
	Messages    int // blocks of all lanes together; 0: there is no room for messages
	Channels    int // blocks of a channel kernel that waits, while collectives run
}

// Follows makes a kernel of that room the last one of the stream, and reports whether it may be launched early. An
// early kernel waits on the device beside the one before it, so the two together must fit into the multiprocessors that
// collectives have. Any kernel before both has ended by then. Room is in units of 1/RoomBlocks of a multiprocessor.
func (s *Stream) Follows(room int32, multiprocessors int) bool {
	return int(s.taken.Swap(room)+room) <= RoomBlocks*multiprocessors
}

// RoomOf divides a device's multiprocessors among the work of that many ranks. Up to roomRanks ranks, each lane has at
// least one block, even if they do not all fit. With more ranks that do not fit, there is no room for messages.
func RoomOf(multiprocessors, ranks int) room {
	few := min(ranks, roomRanks)
	left := max(min(multiprocessors/roomPart, roomMost), roomLeast*few)
	channels := (max(min(left, multiprocessors-1), 0) + roomChannel - 1) / roomChannel
	left = max(min(left+ranks-few, multiprocessors-1), 0)
	messages := max((left-channels)*RoomBlocks, 1)
	if ranks > few && messages < 2*ranks {
		left, messages = channels, 0
	}
	return room{Threads: kernels.MaxThreads, PerSM: RoomBlocks, Collectives: multiprocessors - left, Messages: messages,
		Channels: max(channels*RoomBlocks, 1)}
}

// Ranks that share a device have smaller blocks, of which more fit. Room is in units of such a block. Each communicator
// has its own, because those of a rank may wait at the same time, for ranks that have not called the same one yet.
const (
	sharedThreads = 128
	sharedPerSM   = RoomBlocks * kernels.MaxThreads / sharedThreads
	laterSpare    = 2 // units that communicators of Split and Dup have beyond what they need
)

// shareOf returns how many units a rank has on a device that it shares. One multiprocessor is left to kernels that wait
// for nobody, users' included.
func shareOf(multiprocessors, sharers int) int { return sharedPerSM * (multiprocessors - 1) / sharers }

// needOf returns the least room with messages between that many ranks: one block for each lane, one of a channel and
// one of a collective.
func needOf(ranks int) int { return 2*ranks + 1 + RoomBlocks }

// firstShare is the room of a communicator that Open makes: half of the rank's, since others may follow.
func firstShare(multiprocessors, sharers, ranks int) room {
	most := shareOf(multiprocessors, sharers)
	return divide(max(most/2, min(needOf(ranks), most)), ranks)
}

// laterShare is the room of a communicator that is made of another one.
func laterShare(ranks int) room { return divide(needOf(ranks)+laterSpare, ranks) }

// divide divides units among the work of a communicator of that many ranks.
func divide(units, ranks int) room {
	r := room{Threads: sharedThreads, PerSM: sharedPerSM, Channels: 1}
	if spare := units - needOf(ranks); spare >= 0 {
		r.Messages, r.Channels = 2*ranks+spare/4, 1+spare/8
	}
	r.Collectives = (units - r.Messages - r.Channels) / RoomBlocks
	return r
}

// units returns how much room r is.
func (r room) units() int { return RoomBlocks*r.Collectives + r.Messages + r.Channels }

// LeastForMessages returns how many multiprocessors devices need for messages between that many ranks.
func LeastForMessages(ranks int) (multiprocessors int) {
	for RoomOf(multiprocessors, ranks).Messages == 0 {
		multiprocessors++
	}
	return multiprocessors
}

// NoRoomForMessages is the error of messages between that many ranks where the room has none for them.
func (d *Device) NoRoomForMessages(ranks int) error {
	if n := d.Domain.Sharers; n > 1 {
		return fmt.Errorf("messages of device memory between %d ranks take room for %d waiting blocks, where %d ranks share a device of "+
			"%s, which has room for %d: %w", ranks, needOf(ranks), n, plural.Count(d.Multiprocessors, "multiprocessor"),
			shareOf(d.Multiprocessors, n), fault.ErrNotSupported)
	}
	return fmt.Errorf("messages of device memory between %d ranks take %d multiprocessors of each device, where one has %d: %w", ranks,
		LeastForMessages(ranks), d.Multiprocessors, fault.ErrNotSupported)
}

// waits are the kernels of a communicator's channels and windows that may wait, on a device that ranks share.
type waits struct {
	mu     sync.Mutex
	blocks map[*Stream]int // the most blocks of what is queued
	kept   int             // of what users' own captures have, until the communicator ends
}

// AdmitWait returns how many blocks a kernel of a channel or window that waits, to be queued on s, may have: want or
// fewer. On a device that ranks share, all those that may wait at the same time have the room of channels together.
func (d *Device) AdmitWait(s *Stream, want int) (int, error) {
	if d.Domain.Sharers <= 1 {
		return want, nil
	}
	w := &d.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	left := d.Room.Channels - w.kept
	for other, n := range w.blocks {
		if done, err := other.Done(); done || err != nil {
			delete(w.blocks, other)
		} else if other != s { // on one stream only one waits at a time
			left -= n
		}
	}
	if left < 1 {
		return 0, fmt.Errorf("channels and windows wait in up to %s at the same time, and there is no room for another one: ranks "+
			"share %v: %w", plural.Count(d.Room.Channels, "block"), s.s.Device(), fault.ErrLimit)
	}
	want = min(want, left)
	if s.Captured() {
		w.kept += want
		return want, nil
	}
	if w.blocks == nil {
		w.blocks = map[*Stream]int{}
	}
	w.blocks[s] = max(w.blocks[s], want)
	return want, nil
}
