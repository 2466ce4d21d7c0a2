//go:build invariants

package ipc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// A peer's device memory is given up as often as it is held.
func TestHoldsOfPeersAreCounted(t *testing.T) {
	a, b := newGPU(t, 0, false), newGPU(t, 1, false)
	ab, _ := meet(t, a.rank, b.rank)
	x, err := b.heap.AllocDevice(1 << 20)
	require.NoError(t, err)
	number, err := b.Export(x)
	require.NoError(t, err)
	_, err = ab.Hold(background, number, 0, 1)
	require.NoError(t, err)
	require.NoError(t, ab.Unhold(number))
	testkit.Violation(t, "is given up more often than held", func() { _ = ab.Unhold(number) })
}
