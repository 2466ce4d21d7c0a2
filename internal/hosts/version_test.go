package hosts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/roster"
)

// TestVersion: ranks of two builds must contribute alike, and number items alike, or Open must tell them that they do not.
func TestVersion(t *testing.T) {
	require.Equal(t, []int{13, 128 << 10, 1 << 10, 8, 24, 8}, []int{roster.Version, smallBytes, recordBytes(5), window, itemBits, mostLanes},
		"who changes one of these raises roster.Version, and the numbers here")
}
