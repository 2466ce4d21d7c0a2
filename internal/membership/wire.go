package membership

import (
	"encoding/binary"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// Bytes is the length of a State of a communicator of n ranks, as Append writes it.
func Bytes(n int) int { return 9 + 8*Words(n) }

// Append appends the state to b.
func (s State) Append(b []byte) []byte {
	b = append(binary.LittleEndian.AppendUint32(b, s.Attempt), byte(s.Step))
	b = binary.LittleEndian.AppendUint32(b, s.Done)
	for _, w := range s.Gone {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// Parse reads what Append wrote for a communicator of n ranks, and returns the bytes behind it.
func Parse(b []byte, n int) (s State, rest []byte, err error) {
	if len(b) < Bytes(n) {
		return s, nil, fmt.Errorf("a state of %d bytes, less than %d: %w", len(b), Bytes(n), fault.ErrMismatch)
	}
	s = State{Attempt: binary.LittleEndian.Uint32(b), Step: Step(b[4]), Done: binary.LittleEndian.Uint32(b[5:]), Gone: NewSet(n)}
	for i := range s.Gone {
		s.Gone[i] = binary.LittleEndian.Uint64(b[9+8*i:])
	}
	if over := n % 64; over != 0 && s.Gone[len(s.Gone)-1]>>over != 0 {
		return s, nil, fmt.Errorf("a state with ranks above %d: %w", n-1, fault.ErrMismatch)
	}
	return s, b[Bytes(n):], nil
}
