package coll

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// TestVersion: ranks of two builds must choose alike between hosts; otherwise Open must say that they differ.
func TestVersion(t *testing.T) {
	const why = "who changes one of these raises roster.Version, and the numbers here"
	require.Equal(t, []int{31, 48, 8 << 10, 512 << 10, 4 << 20}, []int{roster.Version, team.PayloadSize, team.PartialBytes, schedule.LargestItem, stagedPart}, why)
	require.Equal(t, tuning.Hosts{Model: schedule.Model{Agree: 9_500, Message: 16_000, Send: 165, Swap: 250, Combine: 75, Relay: 255, Around: 293}, Connections: 1}, tuning.DefaultHosts(), why)
	require.Equal(t, schedule.Model{Agree: 4_000, Message: 5_000, Send: 85, Swap: 100, Combine: 75, Relay: 130, Around: 150}, tuning.Default().RDMA, why)
}
