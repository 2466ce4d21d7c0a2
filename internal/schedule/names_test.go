package schedule

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNames: every way is one of some operation, and has a name; no two of an operation are called the same.
func TestNames(t *testing.T) {
	of := map[Way]bool{}
	for operation, ways := range waysOf {
		for _, hosts := range []int{2, 3, 8} {
			short, long := map[string]bool{}, map[string]bool{}
			for _, w := range ways {
				of[w] = true
				require.NotEmpty(t, w.Name(hosts), "%s: %v", operation, w)
				short[w.String()], long[w.Name(hosts)] = true, true
			}
			require.Len(t, short, len(ways), operation)
			require.Len(t, long, len(ways), operation)
		}
	}
	for w := Ring; w <= ScatterTree; w++ {
		require.True(t, of[w], "%v", w)
	}
	require.Nil(t, Ways("barrier"))
	require.Equal(t, "recursive doubling", GatherDoubling.Name(4))
	require.Equal(t, "Bruck's all-gather", GatherDoubling.Name(6))
}
