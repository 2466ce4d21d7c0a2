package hosts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/team"
)

// TestVersion: ranks of two builds must contribute alike, and number items alike, or Open must tell them that they do not.
func TestVersion(t *testing.T) {
	require.Equal(t, []int{31, 64 << 10, 32 << 10, 64, 228 << 10, 512, 64 << 10, 1 << 10, 8, 24, 24, 8},
		[]int{roster.Version, smallBytes, fewerBytes, mostSmall, foldBytes, foldLess, foldLeast, recordBytes(5), window, leastRecord, itemBits, team.MostLanes},
		"who changes one of these raises roster.Version, and the numbers here")
}
