package hosts

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Records are a few bytes from each rank. A host's records are its contribution, and the leader leaves those of all
// hosts in its staging memory.

const recordHead = 8 // rank and length

const (
	recordsBytes = 32 << 10 // of all ranks' records
	leastRecord  = 24       // what Split needs: two words, and the head
)

// recordBytes is the most bytes that a rank's record has, with its head, in a communicator of that many ranks. All
// together fit in staging memory.
func recordBytes(ranks int) int { return min(1<<10, max(recordsBytes/ranks, leastRecord)) }

// MostRecord is the longest record, in bytes, that a rank of t's communicator may have.
func MostRecord(t *team.Team) int { return recordBytes(t.Hosts.Ranks()) - recordHead }

// AppendRecord appends a rank's record to a contribution.
func AppendRecord(b []byte, rank int, record []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(rank))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(record)))
	return append(b, record...)
}

// LeaveRecords runs on the leader. It leaves the records of all hosts for the team.
func LeaveRecords(t *team.Team, _ *team.Work, all func(host int) []byte) error {
	b := unsafe.Slice((*byte)(t.Staging(t.Rank())), team.StagingBytes)
	n := 8
	for h := range t.Hosts.Size() {
		n += copy(b[n:], all(h))
	}
	binary.LittleEndian.PutUint64(b, uint64(n))
	return nil
}

// Records returns copies of the records that the leader has left, by rank of the communicator.
func Records(t *team.Team) ([][]byte, int, error) {
	all := make([][]byte, t.Whole())
	b := unsafe.Slice((*byte)(t.Staging(0)), team.StagingBytes)
	b = append([]byte{}, b[8:max(8, min(binary.LittleEndian.Uint64(b), team.StagingBytes))]...)
	for len(b) >= recordHead {
		r, n := int(binary.LittleEndian.Uint32(b)), int(binary.LittleEndian.Uint32(b[4:]))
		if b = b[recordHead:]; r >= len(all) || all[r] != nil || n > len(b) {
			break
		}
		all[r], b = b[:n:n], b[n:]
	}
	for r := range all {
		if all[r] == nil {
			return nil, r, fmt.Errorf("no record of rank %d: %w", r, fault.ErrMismatch)
		}
	}
	return all, -1, nil
}
