package hosts_test

import (
	"encoding/binary"
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Records come from other hosts, and a leader leaves them as they came: what their heads say is checked.
func TestRecords(t *testing.T) {
	x := enginetest.Open(t, 3, engine.Options{})[1].Team()
	left := unsafe.Slice((*byte)(x.Staging(0)), team.StagingBytes)
	whole := func(parts ...[]byte) (b []byte) {
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	a, b, c := hosts.AppendRecord(nil, 0, []byte("zero")), hosts.AppendRecord(nil, 1, nil), hosts.AppendRecord(nil, 2, []byte("two"))
	for _, k := range []struct {
		name    string
		records []byte
		end     int // what is left says that it ends so many bytes behind the records
		missing int // the first rank that has none; -1: all have one
	}{
		{"in order", whole(a, b, c), 0, -1},
		{"in another order", whole(c, a, b), 0, -1},
		{"one is missing", whole(a, c), 0, 1},
		{"one comes twice", whole(a, a, b, c), 0, 1},
		{"of no rank that there is", whole(a, hosts.AppendRecord(nil, 3, nil), b, c), 0, 1},
		{"longer than what is left", whole(a, b, hosts.AppendRecord(nil, 2, []byte("two"))[:8+2]), 0, 2},
		{"no whole head", whole(a, b, c[:7]), 0, 2},
		{"nothing", nil, 0, 0},
		{"it ends before it begins", whole(a, b, c), math.MinInt32, 0},
		{"it ends beyond the memory", whole(a, b, c), team.StagingBytes, -1},
	} {
		t.Run(k.name, func(t *testing.T) {
			clear(left)
			n := 8 + copy(left[8:], k.records)
			binary.LittleEndian.PutUint64(left, uint64(max(0, n+k.end)))
			all, rank, err := hosts.Records(x)
			require.Equal(t, k.missing, rank)
			if k.missing >= 0 {
				require.ErrorIs(t, err, fault.ErrMismatch)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{"zero", "", "two"}, []string{string(all[0]), string(all[1]), string(all[2])})
		})
	}
}
