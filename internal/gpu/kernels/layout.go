package kernels

import "unsafe"

// Layout describes the device areas of a communicator; it is the same on all its ranks. An area has, in this order:
// counters and signals, rows of packets, a small staging memory, boxes and small FIFOs of messages, channel ends, and
// rows of lines.
type Layout struct {
	Ranks    int
	Row      int // bytes of the packets from one rank to another, for each parity
	Little   int // bytes of each of the four staging buffers
	Slots    int // of a small FIFO
	Slot     int // bytes of a slot
	Channels int // channel ends that fit
	LineRow  int // bytes of the lines from one rank to another, for each parity and step; 0: no lines
}

// First is the layout of a communicator that Open makes. Its rows have room for all sizes at which packets and lines
// are fastest. With more than Narrow ranks there is less for each, and no lines. With 2 ranks an area is 10 MiB less a
// table of extents, so that a rank's whole memory, with separate staging memory and a FIFO, is 24 MiB.
func First(ranks int) Layout {
	peers := max(ranks-1, 1)
	row := max(256<<10, 4*((256<<10)/max(ranks, 1))+4095) &^ 4095 // each of two steps uses half of it
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

// Small is the layout of a communicator made from another one, of which there may be many: 1 MiB with 2 ranks, and
// about 0.4 MiB for each further one. It has room for two windows at least.
func Small(ranks int) Layout {
	peers := max(ranks-1, 1)
	return Layout{Ranks: ranks, Row: max(rowOf(128<<10, peers), 64<<10), Little: peers * (16 << 10), Slots: 3, Slot: 16 << 10,
		Channels: max(32, 2*ranks)} // a window takes one for each rank
}

// rowOf returns bytes for each of that many peers, in whole pages.
func rowOf(bytes, peers int) int { return bytes / peers &^ 4095 }

// Data returns how many bytes one rank can send another as packets: in an operation of one step all, of two steps half.
func (l Layout) Data() int { return l.Row / 2 }

func (l Layout) staging() int { return l.packets() + 2*(l.Ranks-1)*l.Row }

// packets returns where rows of packets begin.
func (l Layout) packets() int {
	if l.Ranks > Narrow {
		return widePackets
	}
	return areaPackets
}

// Peers returns a table for areas with more than Narrow ranks, whose addresses do not fit into Params: its offset in a
// rank's own area, and its content, which is the areas, then the tables, as in Params.
func (l Layout) Peers(areas, tables []uint64) (offset int, bytes []byte) {
	all := make([]uint64, 2*MaxRanks)
	copy(all, areas)
	copy(all[MaxRanks:], tables)
	return widePeers, unsafe.Slice((*byte)(unsafe.Pointer(&all[0])), 8*len(all))
}

// Boxes returns where the packets of messages are, for MailParams.
func (l Layout) Boxes() int { return l.staging() + 4*l.Little }

// FIFO returns where the small FIFO for pieces from the rank at that distance is; distances begin at 1.
func (l Layout) FIFO(distance int) int {
	return l.Boxes() + l.Ranks*boxBytes + (distance-1)*l.Slots*l.Slot
}

// Channel returns where a channel end of ChannelBytes is. It must be zeroed for each new channel.
func (l Layout) Channel(slot int) int { return l.FIFO(l.Ranks) + slot*ChannelBytes }

// lines returns where rows of lines are.
func (l Layout) lines() int { return (l.Channel(l.Channels) + 4095) &^ 4095 }

// LineBlocks returns how many blocks of that many threads fit into a row of lines for two turns.
func (l Layout) LineBlocks(threads int) int { return l.LineRow / (2 * threads * lineBytes) }

// Bytes returns the size of an area, which must be zeroed.
func (l Layout) Bytes() int {
	steps := 2
	if l.Ranks <= 2 {
		steps = 1 // two ranks do an operation by lines in one step
	}
	return l.lines() + 2*steps*(l.Ranks-1)*l.LineRow
}

// Fill sets the parameters that are the same for all kernels of a communicator.
func (l Layout) Fill(p *Params) {
	p.Ranks, p.Row, p.Little, p.Large = uint32(l.Ranks), uint32(l.Row), uint32(l.Little), large
	p.Lines, p.LineRow = uint32(l.lines()), uint32(l.LineRow)
}
