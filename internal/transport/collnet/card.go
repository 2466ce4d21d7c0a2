package collnet

import (
	"encoding/binary"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/collnet"
)

// Card is what a member of a group tells the others before they join.
type Card struct {
	Why     string // it cannot join, and why; then there is nothing else
	Name    string // the plugin's
	Handle  [collnet.HandleBytes]byte
	Reduces [16]uint8 // by element type, a bit of 1 << cpu.Op for each
	Bytes   int       // of a call, at most
	Speed   int       // Mbit/s
	Window  [3]uint64 // where its host finds the group's own memory
}

// CardBytes is the length of a card.
const CardBytes = 224

// cardText is how long Why may be, and cardName how long Name is.
const (
	cardText = CardBytes - 2
	cardName = 40
)

// The first byte of a card; the second is the length of the text that follows.
const (
	cardNone = iota
	cardGood
)

// Append appends the card to b.
func (c *Card) Append(b []byte) []byte {
	from := len(b)
	if c.Why != "" {
		why := c.Why[:min(len(c.Why), cardText)]
		b = append(append(b, cardNone, byte(len(why))), why...)
	} else {
		name := c.Name[:min(len(c.Name), cardName)]
		b = append(append(b, cardGood, byte(len(name))), name...)
		b = append(b, make([]byte, cardName-len(name))...)
		b = append(append(b, c.Handle[:]...), c.Reduces[:]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(c.Bytes))
		b = binary.LittleEndian.AppendUint32(b, uint32(c.Speed))
		for _, w := range c.Window {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
	}
	return append(b, make([]byte, from+CardBytes-len(b))...)
}

// ParseCard is Append's inverse.
func ParseCard(b []byte) (c Card, err error) {
	if len(b) != CardBytes || b[0] > cardGood || b[0] == cardNone && (b[1] == 0 || b[1] > cardText) || b[0] == cardGood && b[1] > cardName {
		return c, fmt.Errorf("a card of a CollNet group of %d bytes that is none: %w", len(b), fault.ErrMismatch)
	}
	if b[0] == cardNone {
		c.Why = string(b[2:][:b[1]])
		return c, nil
	}
	c.Name, b = string(b[2:][:b[1]]), b[2+cardName:]
	b = b[copy(c.Handle[:], b):]
	b = b[copy(c.Reduces[:], b):]
	c.Bytes, b = int(binary.LittleEndian.Uint64(b)&(1<<40-1)), b[8:]
	c.Speed, b = int(binary.LittleEndian.Uint32(b)), b[4:]
	for i := range c.Window {
		c.Window[i], b = binary.LittleEndian.Uint64(b), b[8:]
	}
	return c, nil
}
