package engine

// Collectives, messages and channels are independent of each other: what waits for a peer must not keep out what that
// peer waits for. So the kernels of collectives leave some multiprocessors to the others, whose blocks have so few
// registers that two find room on one.
const (
	roomPart    = 6  // one in so many multiprocessors is left,
	roomMost    = 20 // no more than make messages fast,
	roomLeast   = 2  // and no fewer than this for each rank, for its lanes
	roomBlocks  = 2  // of messages and channels, on a multiprocessor
	roomChannel = 5  // one in so many of those that are left is for channels
)

// room is how the multiprocessors of a device are shared.
type room struct {
	collectives int // blocks of a collective
	messages    int // blocks of all lanes together
	channels    int // blocks of a channel's kernel that waits, while collectives run
}

func roomOf(multiprocessors, ranks int) room {
	left := max(min(multiprocessors/roomPart, roomMost), roomLeast*ranks)
	left = max(min(left, multiprocessors-1), 0)
	channels := (left + roomChannel - 1) / roomChannel
	return room{collectives: multiprocessors - left, messages: max((left-channels)*roomBlocks, 1),
		channels: max(channels*roomBlocks, 1)}
}
