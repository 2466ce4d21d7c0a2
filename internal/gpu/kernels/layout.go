package kernels

import "unsafe"

// Layout is how the device areas of a communicator are laid out, which is the same on all its ranks. An area has, one
// behind the other: what kernels count and signal by, rows of packets, a little staging memory, boxes and small FIFOs of
// messages, ends of channels, and rows of lines.
type Layout struct {
	Ranks    int
	Row      int // bytes of the packets of one rank for another, of each parity
	Little   int // of each of the four staging buffers
	Slots    int // of a small FIFO
	Slot     int // bytes of one
	Channels int // ends of channels that find room
	LineRow  int // bytes of the lines of one rank for another, of each parity and step; 0: nothing goes by lines
}

// First is the layout of a communicator that Open makes: its rows have room for all that is fastest by packets and by
// lines; with more than Narrow ranks, which are many, there is less for each, and no lines. With 2 ranks areas have 10 MiB less a table of extents, so that all of a rank's memory, with staging memory and a
// FIFO, is 24 MiB.
func First(ranks int) Layout {
	peers := max(ranks-1, 1)
	row := max(256<<10, 4*((256<<10)/max(ranks, 1))+4095) &^ 4095 // what goes in two steps has half of it for each
	l := Layout{Ranks: ranks, Row: row, Little: peers * (32 << 10), Slots: 8, Slot: 16 << 10, Channels: MaxChannels,
		LineRow: 7 << 19}
	switch {
	case ranks > Narrow:
		l.Row, l.Slots, l.LineRow = 64<<10, 4, 0
	case ranks > 2:
		l.LineRow = (12 << 20) / (4 * peers) &^ (128<<10 - 1)
	}
	return l
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

func (l Layout) staging() int { return l.packets() + 2*(l.Ranks-1)*l.Row }

// packets is where rows of packets begin.
func (l Layout) packets() int {
	if l.Ranks > Narrow {
		return widePackets
	}
	return areaPackets
}

// Peers is, where there are more ranks than parameters name, where the addresses of the others stand in a rank's own area,
// and what stands there: the areas, then the tables, as in Params.
func (l Layout) Peers(areas, tables []uint64) (offset int, bytes []byte) {
	all := make([]uint64, 2*MaxRanks)
	copy(all, areas)
	copy(all[MaxRanks:], tables)
	return widePeers, unsafe.Slice((*byte)(unsafe.Pointer(&all[0])), 8*len(all))
}

// Boxes is where the packets of messages are, for MailParams.
func (l Layout) Boxes() int { return l.staging() + 4*l.Little }

// FIFO is where the small FIFO is of pieces from the rank that far behind this one: at distance 1 and more.
func (l Layout) FIFO(distance int) int {
	return l.Boxes() + l.Ranks*boxBytes + (distance-1)*l.Slots*l.Slot
}

// Channel is where an end of a channel is, of ChannelBytes; zeroed for each new channel.
func (l Layout) Channel(slot int) int { return l.FIFO(l.Ranks) + slot*ChannelBytes }

// lines is where rows of lines are.
func (l Layout) lines() int { return (l.Channel(l.Channels) + 4095) &^ 4095 }

// LineBlocks is how many blocks of so many threads find room in a row of lines for two turns.
func (l Layout) LineBlocks(threads int) int { return l.LineRow / (2 * threads * lineBytes) }

// Bytes is the size of an area, zeroed.
func (l Layout) Bytes() int {
	steps := 2
	if l.Ranks <= 2 {
		steps = 1 // what two ranks do by lines they do in one
	}
	return l.lines() + 2*steps*(l.Ranks-1)*l.LineRow
}

// Fill sets what is the same for all kernels of a communicator.
func (l Layout) Fill(p *Params) {
	p.Ranks, p.Row, p.Little, p.Large = uint32(l.Ranks), uint32(l.Row), uint32(l.Little), large
	p.Lines, p.LineRow = uint32(l.lines()), uint32(l.LineRow)
}
