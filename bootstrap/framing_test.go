package bootstrap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
)

func TestParts(t *testing.T) {
	parts := [][]byte{[]byte("a"), {}, []byte("bcd")}
	packed := packParts(parts)
	got, err := unpackParts(packed, 3)
	require.NoError(t, err)
	require.Equal(t, parts, got)

	for n := range packed {
		_, err := unpackParts(packed[:n], 3)
		require.ErrorIs(t, err, fault.ErrMismatch, "cut to %d bytes", n)
	}
	_, err = unpackParts(append(packed, 0), 3)
	require.ErrorIs(t, err, fault.ErrMismatch)
	_, err = unpackParts(packed, 2)
	require.ErrorIs(t, err, fault.ErrMismatch)
}
