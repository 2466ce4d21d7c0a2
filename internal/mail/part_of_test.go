package mail

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// TestPartOf: the parts of a message follow each other, fit buffers, and none of several is short.
func TestPartOf(t *testing.T) {
	sizes := []int{1, frame.Short, BouncePart}
	for _, whole := range []int{BouncePart, 2 * BouncePart, 7 * BouncePart} {
		for _, more := range []int{1, 77, frame.Short, 64<<10 - 1, 64 << 10, 64<<10 + 1, BouncePart - 1} {
			sizes = append(sizes, whole+more)
		}
	}
	for _, bytes := range sizes {
		at, parts := 0, (bytes+BouncePart-1)/BouncePart
		for i := range parts {
			off, n := PartOf(bytes, i)
			require.Equal(t, at, off, "%d bytes, part %d", bytes, i)
			require.LessOrEqual(t, n, BouncePart)
			if parts > 1 {
				require.Greater(t, n, frame.Short, "%d bytes, part %d", bytes, i)
			}
			at += n
		}
		require.Equal(t, bytes, at)
	}
}
