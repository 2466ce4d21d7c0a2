package team

import (
	"encoding/binary"
	"unsafe"
)

// MaxRecord is how many bytes a rank can contribute to one exchange of records, which travel in the eager slots.
const MaxRecord = EagerBytes - 8

// PutRecord writes this rank's record to its eager slot; Eager says when that is allowed.
func (t *Team) PutRecord(b []byte) {
	s := unsafe.Slice((*byte)(t.Eager(t.rank)), EagerBytes)
	binary.LittleEndian.PutUint64(s, uint64(len(b)))
	copy(s[8:], b)
}

// Record returns a rank's record, in its eager slot.
func (t *Team) Record(rank int) []byte {
	s := unsafe.Slice((*byte)(t.Eager(rank)), EagerBytes)
	return s[8:][:min(binary.LittleEndian.Uint64(s), MaxRecord)]
}
