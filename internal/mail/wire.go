package mail

import (
	"fmt"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// The forms of a message, as given in its slot.
const (
	formInline = 1 + iota // in the slot
	formEager             // in the sender's eager slot with the same index
	formLarge             // at the location in the slot, or through the sender's window
	formParts             // between hosts: part by part, through bounce buffers
)

// A head describes a slot's message: form 8 bits, type 8, count 48.
func head(form int, t dtype.Type, count int) uint64 {
	return uint64(form)<<56 | uint64(t)<<48 | uint64(count)
}

// header is a head that has been checked.
type header struct {
	form  int
	typ   dtype.Type
	count int
	bytes int
}

func (m *Mail) readHead(b *Box, v uint64) (header, error) {
	h := header{form: int(v >> 56), typ: dtype.Type(v >> 48), count: int(v & (1<<48 - 1))}
	limit := 0
	switch h.form {
	case formInline:
		limit = inlineBytes
	case formEager:
		limit = m.eager
	case formLarge:
		limit = maxBytes
	}
	if !h.typ.Valid() || h.count > team.MaxCount || h.count*h.typ.Size() > limit {
		return h, m.damaged(b.Peer, "message", v)
	}
	h.bytes = h.count * h.typ.Size()
	return h, nil
}

// Counts of pieces have the low 40 bits of the message's number above them, so that a count left by another message
// reads as 0.
const countBits = 24

func word(seq uint64, n int) uint64 { return seq<<countBits | uint64(n) }

func of(w, seq uint64) bool { return w>>countBits == seq<<countBits>>countBits }

func count(w, seq uint64) int {
	if !of(w, seq) {
		return 0
	}
	return int(w & (1<<countBits - 1))
}

// Large messages travel in pieces; sizes in bytes.
const (
	windowPiece    = 32 << 10 // largest piece through the window
	windowPieces   = 8
	windowParts    = 4
	minWindowPiece = 2 << 10
	minPiece       = 8 << 10 // smallest and largest piece of messages that both sides copy
	maxPiece       = 64 << 10
	sharedBytes    = 16 << 10 // from this size on the sender copies, too
	maxBytes       = 1 << (countBits + 13)
)

// pieces returns the size and number of the pieces of a message of n bytes.
func pieces(n int, direct bool) (size, number int) {
	if direct {
		size = min(max((n/2+63)&^63, minPiece), maxPiece) // two halves, while the message is small
	} else {
		size = min(max(n/8&^1023, minWindowPiece), windowPiece)
	}
	return size, (n + size - 1) / size
}

// windowAt returns the offset of piece k in the window. Short messages use its parts in turn, since memory that the
// receiver has just read is the slowest to write again.
func (m *Message) windowAt(k int) int {
	const part = windowPieces * windowPiece / windowParts
	if m.Bytes <= part {
		return int(m.seq%windowParts)*part + k*m.piece
	}
	return k % windowPieces * windowPiece
}

// The receiver's verdicts on a message.
const (
	verdictOK = iota
	verdictType
	verdictSize
	verdictShort
)

// verdictOn returns the receiver's verdict on a message for v, and its own error. exact: the message must fill v.
func verdictOn(h header, v *team.Vec, exact bool) (verdict uint8, err error) {
	switch {
	case h.typ != v.Type:
		return verdictType, fmt.Errorf("it sent %d elements of %v, and %v was expected: %w", h.count, h.typ, v.Type,
			fault.ErrMismatch)
	case h.count > v.Len:
		return verdictSize, fmt.Errorf("it sent %d elements, and there is room for %d: %w", h.count, v.Len, fault.ErrMismatch)
	case exact && h.count < v.Len:
		return verdictShort, fmt.Errorf("it sent %d elements, and in a group or on a stream %d are received, exactly: %w",
			h.count, v.Len, fault.ErrMismatch)
	}
	return verdictOK, nil
}

// verdictError returns the sender's error for a verdict.
func verdictError(verdict uint8, v *team.Vec) error {
	switch verdict {
	case verdictOK:
		return nil
	case verdictType:
		return fmt.Errorf("it did not expect elements of %v: %w", v.Type, fault.ErrMismatch)
	case verdictShort:
		return fmt.Errorf("it receives more than %d elements, exactly: %w", v.Len, fault.ErrMismatch)
	}
	return fmt.Errorf("it has no room for %d elements: %w", v.Len, fault.ErrMismatch)
}
