package invariants_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/invariants"
)

func TestViolated(t *testing.T) {
	require.PanicsWithValue(t, "invariant violated: 2 of 1 taken", func() { invariants.Violated("%d of %d taken", 2, 1) })
}
