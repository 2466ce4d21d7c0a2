package coll

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// TestVersion: ranks of two builds must choose alike between hosts; otherwise Open must say that they differ.
func TestVersion(t *testing.T) {
	const why = "who changes one of these raises roster.Version, and the numbers here"
	require.Equal(t, []int{13, 48, 8 << 10, 512 << 10}, []int{roster.Version, team.PayloadSize, team.PartialBytes, schedule.LargestItem}, why)
	require.Equal(t, schedule.Model{Message: 64 << 10, Combine: 0.3, Relay: 1.5, Around: 1.15}, schedule.Default, why)
}
