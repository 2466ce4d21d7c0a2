package ofi

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
)

// TestKeys makes all keys of one and of two bytes: each comes once, and in an order that differs between domains.
func TestKeys(t *testing.T) {
	for _, bytes := range []int{1, 2} {
		order := make([][]Key, 2)
		for i := range order {
			k, err := newKeys(bytes)
			require.NoError(t, err)
			seen := map[Key]bool{}
			for range 1 << (8 * bytes) {
				key, err := k.make()
				require.NoError(t, err)
				require.False(t, seen[key], "%v twice", key)
				require.Less(t, uint64(key), uint64(1)<<(8*bytes))
				seen[key] = true
				order[i] = append(order[i], key)
			}
			_, err = k.make()
			require.ErrorIs(t, err, fault.ErrLimit)
		}
		require.NotEqual(t, order[0], order[1])
	}
	k, err := newKeys(8)
	require.NoError(t, err)
	seen, long := map[Key]bool{}, false
	for range 10_000 {
		key, err := k.make()
		require.NoError(t, errors.Join(err))
		require.False(t, seen[key])
		seen[key] = true
		long = long || key>>56 != 0
	}
	require.True(t, long, "keys of 8 bytes have 8 bytes")
}
