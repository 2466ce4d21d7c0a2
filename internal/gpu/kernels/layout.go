package kernels

// Layout is how the device areas of a communicator are laid out, which is the same on all its ranks. An area has, one
// behind the other: what kernels count and signal by, rows of packets, a little staging memory, boxes and small FIFOs of
// messages, and ends of channels.
type Layout struct {
	Ranks    int
	Row      int // bytes of the packets of one rank for another, of each parity
	Little   int // of each of the four staging buffers
	Slots    int // of a small FIFO
	Slot     int // bytes of one
	Channels int // ends of channels that find room
}

// First is the layout of a communicator that Open makes: its rows have room for all that is fastest by packets. With 2
// ranks areas have 6 MiB less a table of extents, so that all of a rank's memory, with staging memory and a FIFO, is 24 MiB.
func First(ranks int) Layout {
	peers := max(ranks-1, 1)
	return Layout{Ranks: ranks, Row: rowOf(2<<20, peers), Little: peers * (32 << 10), Slots: 8, Slot: 16 << 10,
		Channels: MaxChannels}
}

// Small is the layout of a communicator that was made of another one, of which there may be many: 1 MiB with 2 ranks,
// and some 0.4 MiB for each further one.
func Small(ranks int) Layout {
	peers := max(ranks-1, 1)
	return Layout{Ranks: ranks, Row: max(rowOf(128<<10, peers), 64<<10), Little: peers * (16 << 10), Slots: 3, Slot: 16 << 10,
		Channels: 32}
}

// rowOf is bytes for each of so many peers, in whole pages.
func rowOf(bytes, peers int) int { return bytes / peers &^ 4095 }

// Data is how many bytes of data one rank can send another as packets, in an operation of one step; of two, half of it.
func (l Layout) Data() int { return l.Row / 2 }

func (l Layout) staging() int { return areaPackets + 2*(l.Ranks-1)*l.Row }

// Boxes is where the packets of messages are, for MailParams.
func (l Layout) Boxes() int { return l.staging() + 4*l.Little }

// FIFO is where the small FIFO is of pieces from the rank that far behind this one: at distance 1 and more.
func (l Layout) FIFO(distance int) int {
	return l.Boxes() + l.Ranks*boxBytes + (distance-1)*l.Slots*l.Slot
}

// Channel is where an end of a channel is, of ChannelBytes; zeroed for each new channel.
func (l Layout) Channel(slot int) int { return l.FIFO(l.Ranks) + slot*ChannelBytes }

// Bytes is the size of an area, zeroed.
func (l Layout) Bytes() int { return l.Channel(l.Channels) }

// Fill sets what is the same for all kernels of a communicator.
func (l Layout) Fill(p *Params) {
	p.Ranks, p.Row, p.Little, p.Large = uint32(l.Ranks), uint32(l.Row), uint32(l.Little), large
}
