// Package frame is what data connections carry, whatever they go over: frames. A frame is a header of 32 bytes and the
// payload.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
)

// In bytes: HeaderSize is the size of a frame's header, MaxPayload the most that follows it, MaxLength the largest grant.
// A longer payload waits for others' frames in between: see Conn.
const (
	HeaderSize = 32
	MaxPayload = 256 << 10
	MaxLength  = 1 << 40
)

// Short is the largest payload that is copied behind its header, so that it leaves with that. A put of up to that many bytes is
// a word.
const Short = 4 << 10

const magic = 0x4255 // "UB"

// Kind is what a frame is for.
type Kind uint8

// The kinds of frames. All but puts, parts, writes and calls are heads alone.
const (
	Put     Kind = iota + 1 // Length bytes of payload for a place, behind those of the parts of this sequence
	Over                    // the peer sends nothing more of the communicator on this connection; Place is 1 if it also sends one on that of one-sided operations
	Open                    // the peer has made its side of a link, with Place places
	Refuse                  // the peer has closed the communicator, of which it has no link
	Grant                   // the peer grants a place to Length bytes
	Revoke                  // the peer takes back what it granted for a place, up to Seq
	Revoked                 // the answer: no put of these follows, and a put whose parts have come never ends
	Part                    // Length bytes of a put, of which more follows
	Write                   // Length bytes for slot Place and key Seq at Offset; a long write is several of these
	Call                    // Length bytes for the communicator's server
	Read                    // what this process reads of the peer by RDMA, Length bytes at Offset of slot Place and key Seq; no frame travels
)

// Loaded reports whether a payload follows frames of this kind.
func (k Kind) Loaded() bool { return k == Put || k >= Part }

// Served reports whether frames of this kind are for the server, which gets them in order.
func (k Kind) Served() bool { return k > Part }

// ErrFrame says that a frame broke the protocol, which ends its connection.
var ErrFrame = errors.New("a frame breaks the rules")

// Header is a frame's head: all that the peer says about it. Its bytes, little endian: magic (2), kind (1), 0 (1), place
// (4), communicator (8), sequence (8), length (8). What the frame's kind has no use for is 0. The last 8 bytes of a write
// are its offset, too.
type Header struct {
	Kind   Kind
	Place  uint32 // or a write's slot
	Comm   uint64
	Seq    uint64 // over 0, where the kind has one; or a write's key
	Length uint64 // of the payload; a put of 0 bytes only raises the place's word
	Offset uint64 // of a write; else 0

	Landing Landing // of a grant, of a put that answers it, and of writes and reads, where the wire can go there itself; it is not in the head
}

// Landing is registered memory that a peer may reach by RDMA. The zero Landing is none.
type Landing struct {
	Address uint64              // of a write or read: that of offset 0
	Keys    [mr.MostNICs]uint64 // by the NICs of whom the memory is; a write or read needs that of the first
	Index   uint32              // below MaxIndex; says to the receiver of a put which of its places this is
	Device  bool                // it is memory of a device, where puts go by RDMA alone
}

// MaxIndex is above the largest Landing.Index.
const MaxIndex = 1 << 20

// lengthBits is how many bits a write's length has in its head, below the offset.
const lengthBits = 19

// A call must be a word: it is copied. A write's length and offset must fit.
const (
	_ = uint(Short - transport.MaxCall)
	_ = uint(1<<lengthBits - 1 - MaxPayload)
	_ = uint64(transport.MaxOffset-1) << lengthBits
)

// Append adds h's bytes to b.
func (h Header) Append(b []byte) []byte {
	b = append(b, make([]byte, HeaderSize)...)
	h.Encode(b[len(b)-HeaderSize:])
	return b
}

// Encode writes h to the first HeaderSize bytes of b.
func (h Header) Encode(b []byte) {
	_ = b[HeaderSize-1]
	binary.LittleEndian.PutUint16(b, magic)
	b[2], b[3] = byte(h.Kind), 0
	binary.LittleEndian.PutUint32(b[4:], h.Place)
	binary.LittleEndian.PutUint64(b[8:], h.Comm)
	binary.LittleEndian.PutUint64(b[16:], h.Seq)
	binary.LittleEndian.PutUint64(b[24:], h.Length|h.Offset<<lengthBits)
}

// Decode reads a header from the first HeaderSize bytes of b. Errors wrap ErrFrame.
func Decode(b []byte) (Header, error) {
	_ = b[HeaderSize-1]
	h := Header{Kind: Kind(b[2]), Place: binary.LittleEndian.Uint32(b[4:]), Comm: binary.LittleEndian.Uint64(b[8:]),
		Seq: binary.LittleEndian.Uint64(b[16:]), Length: binary.LittleEndian.Uint64(b[24:])}
	// The first four bytes of a put, at once, since puts are what matters for speed.
	if binary.LittleEndian.Uint32(b) == magic|uint32(Put)<<16 && h.Seq > 0 && h.Length <= MaxPayload {
		return h, nil
	}
	if h.Kind == Write {
		h.Offset, h.Length = h.Length>>lengthBits, h.Length&(1<<lengthBits-1)
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
	case Write:
		return h.Seq > 0 && 0 < h.Length && h.Length <= MaxPayload && h.Offset < transport.MaxOffset
	case Call:
		return h.Place == 0 && h.Seq == 0 && 0 < h.Length && h.Length <= transport.MaxCall
	case Grant:
		return h.Seq > 0 && h.Length <= MaxLength
	case Revoke, Revoked:
		return h.Seq > 0 && h.Length == 0
	case Open:
		return h.Seq == 0 && h.Length == 0
	case Over:
		return h.Place <= 1 && h.Seq == 0 && h.Length == 0
	case Refuse:
		return h.Place == 0 && h.Seq == 0 && h.Length == 0
	}
	return false
}

// Writes reports whether h is a write to a communicator's key, or a read.
func (h *Header) Writes(comm uint64, slot uint32, key uint64) bool {
	return (h.Kind == Write || h.Kind == Read) && h.Comm == comm && h.Place == slot && h.Seq == key
}

// Payload is how many bytes follow the head.
func (h *Header) Payload() int {
	if h.Kind.Loaded() {
		return int(h.Length)
	}
	return 0
}

// Frames is how many puts this counts as at both ends: the receiver does not learn which of a long write's frames is the
// last one.
func (h *Header) Frames() uint64 {
	switch {
	case h.Kind == Write:
		return (h.Length + MaxPayload - 1) / MaxPayload
	case h.Kind.Loaded():
		return 1
	}
	return 0
}

// Behind reports whether h may not leave before x, which was put before it by the same communicator.
func (h *Header) Behind(x *Header) bool {
	if h.Kind == Put {
		return x.Kind == Put && x.Place == h.Place
	}
	return h.Kind.Served() && x.Kind.Served()
}
