package onesided

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

func TestWindowFlagsString(t *testing.T) {
	for f, want := range map[WindowFlags]string{WindowDefault: "default", WindowCollSymmetric: "coll_symmetric",
		WindowCollSymmetric | WindowStrictOrdering: "coll_symmetric|strict_ordering",
		WindowReadOnly: "read_only", WindowAtomic | WindowStrictOrdering: "strict_ordering|atomic", 8: "0x8"} {
		require.Equal(t, want, fmt.Sprint(f))
	}
}

// A rank's record of a window has a slot for each rank, and must fit an exchange with any number of ranks.
func TestWindowRecord(t *testing.T) {
	for _, ranks := range []int{1, 2, 8, engine.MaxRanks} {
		t.Run(fmt.Sprint(ranks, " ranks"), func(t *testing.T) {
			var slots []int
			for r := range ranks {
				slots = append(slots, 500-r)
			}
			on := windowRecord{Bytes: 1 << 40, At: mem.Location{Offset: 77}, Device: true}
			b, err := on.bytes(slots)
			require.NoError(t, err)
			require.LessOrEqual(t, len(b), team.MaxRecord)
			for r := range ranks {
				x, slot, err := readWindowRecord(b, ranks, r)
				require.NoError(t, err)
				require.Equal(t, on, x)
				require.EqualValues(t, 500-r, slot)
			}
			_, _, err = readWindowRecord(b[:len(b)-1], ranks, 0)
			require.ErrorContains(t, err, fmt.Sprintf("%d bytes of slots, not %d", 4*ranks-1, 4*ranks))
			_, _, err = readWindowRecord(b[:20], ranks, 0)
			require.Error(t, err)
			host := windowRecord{Bytes: 5}
			b, err = host.bytes(nil)
			require.NoError(t, err)
			x, slot, err := readWindowRecord(b, ranks, 0)
			require.NoError(t, err)
			require.Equal(t, host, x)
			require.Zero(t, slot)
		})
	}
}
