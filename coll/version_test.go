package coll

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/team"
)

// TestVersion: ranks of two builds must choose alike between hosts; otherwise Open must say that they differ.
func TestVersion(t *testing.T) {
	require.Equal(t, []int{13, 4 << 20, 48, 8 << 10, 512 << 10, 512 << 10, 64 << 10},
		[]int{roster.Version, acrossPiece, team.PayloadSize, team.PartialBytes, doublingMost, largestItem, itemOverhead},
		"who changes one of these raises roster.Version, and the numbers here")
}
