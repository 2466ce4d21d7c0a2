// Package tcp moves puts over a TCP connection. A frame is a header of 32 bytes and the payload. The receiver reads the
// payload straight into the place that it reserved.
package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// In bytes: HeaderSize is the size of a frame's header, MaxPayload the most that follows it, MaxLength the largest grant.
// A longer payload waits for others' frames in between: see Conn.
const (
	HeaderSize = 32
	MaxPayload = 256 << 10
	MaxLength  = 1 << 40
)

const magic = 0x4255 // "UB"

// Kind is what a frame is for.
type Kind uint8

// The kinds of frames. All but puts and parts are heads alone.
const (
	Put     Kind = iota + 1 // Length bytes of payload for a place, behind those of the parts of this sequence
	Over                    // the peer sends nothing more of the communicator on this connection
	Open                    // the peer has made its side of a link, with Place places
	Refuse                  // the peer has closed the communicator, of which it has no link
	Grant                   // the peer grants a place to Length bytes
	Revoke                  // the peer takes back what it granted for a place, up to Seq
	Revoked                 // the answer: no put of these follows, and a put whose parts have come never ends
	Part                    // Length bytes of a put, of which more follows
)

// ErrFrame says that a frame broke the protocol, which ends its connection.
var ErrFrame = errors.New("a frame breaks the rules")

// Header is a frame's head: all that the peer says about it. Its bytes, little endian: magic (2), kind (1), 0 (1), place
// (4), communicator (8), sequence (8), length (8). What the frame's kind has no use for is 0.
type Header struct {
	Kind   Kind
	Place  uint32
	Comm   uint64
	Seq    uint64 // over 0, where the kind has one
	Length uint64 // of the payload; a put of 0 bytes only raises the place's word
}

// Encode writes h to the first HeaderSize bytes of b.
func (h Header) Encode(b []byte) {
	_ = b[HeaderSize-1]
	binary.LittleEndian.PutUint16(b, magic)
	b[2], b[3] = byte(h.Kind), 0
	binary.LittleEndian.PutUint32(b[4:], h.Place)
	binary.LittleEndian.PutUint64(b[8:], h.Comm)
	binary.LittleEndian.PutUint64(b[16:], h.Seq)
	binary.LittleEndian.PutUint64(b[24:], h.Length)
}

// Decode reads a header from the first HeaderSize bytes of b. Errors wrap ErrFrame.
func Decode(b []byte) (Header, error) {
	_ = b[HeaderSize-1]
	h := Header{Kind(b[2]), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:]),
		binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])}
	// The first four bytes of a put, at once, since puts are what matters for speed.
	if binary.LittleEndian.Uint32(b) == magic|uint32(Put)<<16 && h.Seq > 0 && h.Length <= MaxPayload {
		return h, nil
	}
	if binary.LittleEndian.Uint16(b) != magic || b[3] != 0 || !h.valid() {
		return h, fmt.Errorf("%w: it begins with % x", ErrFrame, b[:HeaderSize])
	}
	return h, nil
}

func (h *Header) valid() bool {
	switch h.Kind {
	case Put:
		return h.Seq > 0 && h.Length <= MaxPayload
	case Part:
		return h.Seq > 0 && 0 < h.Length && h.Length <= MaxPayload
	case Grant:
		return h.Seq > 0 && h.Length <= MaxLength
	case Revoke, Revoked:
		return h.Seq > 0 && h.Length == 0
	case Open:
		return h.Seq == 0 && h.Length == 0
	case Over, Refuse:
		return h.Place == 0 && h.Seq == 0 && h.Length == 0
	}
	return false
}

// payload is how many bytes follow the head.
func (h *Header) payload() int {
	if h.Kind == Put || h.Kind == Part {
		return int(h.Length)
	}
	return 0
}
