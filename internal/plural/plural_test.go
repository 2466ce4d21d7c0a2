package plural

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 wrong elements", 1: "1 wrong element", 2: "2 wrong elements", -1: "-1 wrong elements"} {
		require.Equal(t, want, Count(n, "wrong element"))
	}
}
