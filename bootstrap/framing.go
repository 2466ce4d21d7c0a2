package bootstrap

import (
	"encoding/binary"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// packParts puts parts into one message: their number, then each with its length in front.
func packParts(parts [][]byte) []byte {
	n := 4
	for _, p := range parts {
		n += 4 + len(p)
	}
	b := binary.BigEndian.AppendUint32(make([]byte, 0, n), uint32(len(parts)))
	for _, p := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

// unpackParts reads what packParts wrote, which must be exactly n parts. The parts share b's memory.
func unpackParts(b []byte, n int) ([][]byte, error) {
	if len(b) < 4 {
		return nil, fmt.Errorf("message of %d bytes is too short: %w", len(b), fault.ErrMismatch)
	}
	if has := binary.BigEndian.Uint32(b); uint64(has) != uint64(n) {
		return nil, fmt.Errorf("message with %d parts, want %d: %w", has, n, fault.ErrMismatch)
	}
	b = b[4:]
	parts := make([][]byte, n)
	for i := range parts {
		if len(b) < 4 {
			return nil, fmt.Errorf("message ends before part %d of %d: %w", i, n, fault.ErrMismatch)
		}
		size := binary.BigEndian.Uint32(b)
		b = b[4:]
		if uint64(size) > uint64(len(b)) {
			return nil, fmt.Errorf("part %d says %d bytes, %d are left: %w", i, size, len(b), fault.ErrMismatch)
		}
		parts[i], b = b[:size:size], b[size:]
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%d bytes after the last part: %w", len(b), fault.ErrMismatch)
	}
	return parts, nil
}
