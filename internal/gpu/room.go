package gpu

// Collectives, messages and channels are independent of each other: what waits for a peer must not keep out what that
// peer waits for. So the kernels of collectives leave some multiprocessors to the others, whose blocks have so few
// registers that two find room on one.
const (
	roomPart    = 6  // one in so many multiprocessors is left,
	roomMost    = 20 // no more than make messages fast,
	roomLeast   = 2  // and no fewer than this for each rank, for its lanes;
	roomRanks   = 8  // beyond so many, ranks add one each: room for a block of both their lanes, and no more
	RoomBlocks  = 2  // of messages, channels and small collectives, on a multiprocessor
	roomChannel = 5  // one in so many of those that are left, but for those of further ranks, is for channels
)

// CopyEngineMin is from how many bytes on copy engines move faster than kernels.
const CopyEngineMin = 32 << 20

// room is how the multiprocessors of a device are shared.
type room struct {
	Collectives int // blocks of a collective
	Messages    int // blocks of all lanes together; 0: there is no room for them
	Channels    int // blocks of a channel's kernel that waits, while collectives run
}

// Follows has a kernel that takes so much room be the last one of the stream, and reports whether it may be launched
// early: while it waits for the one before it, the two take no more room than collectives have, on so many
// multiprocessors. One that is before both has ended by then. Room counts in parts of a multiprocessor, RoomBlocks of
// it.
func (s *Stream) Follows(room int32, multiprocessors int) bool {
	return int(s.taken.Swap(room)+room) <= RoomBlocks*multiprocessors
}

// RoomOf is how the multiprocessors of a device are shared by what ranks do on it. Up to roomRanks, lanes have a block each
// even where there is no room for it; more ranks send no messages then.
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

// LeastForMessages is how many multiprocessors devices need for messages between so many ranks.
func LeastForMessages(ranks int) (multiprocessors int) {
	for RoomOf(multiprocessors, ranks).Messages == 0 {
		multiprocessors++
	}
	return multiprocessors
}
