// Package tcp moves puts over a TCP connection. A frame is a header of 32 bytes and the payload. The receiver reads the
// payload straight into the place that it reserved.
package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// HeaderSize is the size of a frame's header, MaxLength the largest payload, in bytes.
const (
	HeaderSize = 32
	MaxLength  = 1 << 40
)

const (
	magic = 0x4255 // "UB"

	kindPut  = 1
	kindOver = 2
)

// ErrFrame says that a frame broke the protocol, which ends its connection.
var ErrFrame = errors.New("a frame breaks the rules")

// Header describes a frame's payload: all that the peer says about a put. Its bytes, little endian: magic (2), kind
// (1), 0 (1), place (4), communicator (8), sequence (8), length (8).
type Header struct {
	Place  uint32
	Comm   uint64
	Seq    uint64 // over 0
	Length uint64 // of the payload; 0 only raises the place's word
	Over   bool   // not a put: the peer sends nothing more of the communicator on this connection; all other fields but Comm are 0
}

// Encode writes h to the first HeaderSize bytes of b.
func (h Header) Encode(b []byte) {
	_ = b[HeaderSize-1]
	binary.LittleEndian.PutUint16(b, magic)
	b[2], b[3] = kindPut, 0
	if h.Over {
		b[2] = kindOver
	}
	binary.LittleEndian.PutUint32(b[4:], h.Place)
	binary.LittleEndian.PutUint64(b[8:], h.Comm)
	binary.LittleEndian.PutUint64(b[16:], h.Seq)
	binary.LittleEndian.PutUint64(b[24:], h.Length)
}

// Decode reads a header from the first HeaderSize bytes of b. Errors wrap ErrFrame.
func Decode(b []byte) (Header, error) {
	_ = b[HeaderSize-1]
	h := Header{binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]),
		binary.LittleEndian.Uint64(b[24:]), b[2] == kindOver}
	ok := b[2] == kindPut && h.Seq > 0 && h.Length <= MaxLength || h.Over && h.Place == 0 && h.Seq == 0 && h.Length == 0
	if binary.LittleEndian.Uint16(b) != magic || b[3] != 0 || !ok {
		return h, fmt.Errorf("%w: it begins with % x", ErrFrame, b[:HeaderSize])
	}
	return h, nil
}
