package team

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The length of a record is a peer's word: whatever it says, the record ends within the peer's eager slot.
func TestRecordOfAPeer(t *testing.T) {
	x := newHosts(new(strings.Builder))
	x.Seq = 7 // the second of the two slots, behind which other memory begins
	slots := make([]byte, 2*EagerBytes)
	x.Peers[before].eager = unsafe.Pointer(&slots[0])
	slot := slots[EagerBytes:]
	copy(slot[8:], "record")
	for said, want := range map[uint64]int{0: 0, 6: 6, MaxRecord: MaxRecord, MaxRecord + 1: MaxRecord, math.MaxUint64: MaxRecord} {
		binary.LittleEndian.PutUint64(slot, said)
		require.Equal(t, slot[8:8+want], x.Record(before), "it says %d", said)
	}
}
