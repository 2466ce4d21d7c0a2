package onesided

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWindowFlagsString(t *testing.T) {
	for f, want := range map[WindowFlags]string{WindowDefault: "default", WindowCollSymmetric: "coll_symmetric",
		WindowCollSymmetric | WindowStrictOrdering: "coll_symmetric|strict_ordering", 8: "0x8"} {
		require.Equal(t, want, fmt.Sprint(f))
	}
}
