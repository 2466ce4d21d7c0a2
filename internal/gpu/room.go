package gpu

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

// room is how the work on a device shares its multiprocessors.
type room struct {
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
	return room{Collectives: multiprocessors - left, Messages: messages, Channels: max(channels*RoomBlocks, 1)}
}

// LeastForMessages returns how many multiprocessors devices need for messages between that many ranks.
func LeastForMessages(ranks int) (multiprocessors int) {
	for RoomOf(multiprocessors, ranks).Messages == 0 {
		multiprocessors++
	}
	return multiprocessors
}
