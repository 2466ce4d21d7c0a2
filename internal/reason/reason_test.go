package reason

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
)

func TestAs(t *testing.T) {
	for text, want := range map[string]string{
		"no libcuda.so.1":                "no libcuda.so.1: not supported",
		"no libcuda.so.1: not supported": "no libcuda.so.1: not supported",
		"not supported here":             "not supported here: not supported",
	} {
		err := As(text, fault.ErrNotSupported)
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, fault.ErrNotSupported)
	}
}

// Each sentinel has a number of its own, and comes back from it. Other numbers, which a peer may send, are none.
func TestCodes(t *testing.T) {
	sentinels := []error{fault.ErrArgument, fault.ErrStale, fault.ErrLimit, fault.ErrNotSupported, fault.ErrInUse, fault.ErrClosed,
		context.Canceled, context.DeadlineExceeded, fault.ErrPeerLost, fault.ErrTimeout, fault.ErrMismatch, fault.ErrAborted, fault.ErrBusy}
	seen := map[int]bool{}
	for _, s := range sentinels {
		code := Code(fmt.Errorf("why: %w", s))
		require.Equal(t, s, OfCode(code))
		require.False(t, seen[code], s)
		seen[code] = true
	}
	require.Len(t, codes, len(sentinels))
	require.Zero(t, Code(errors.New("no sentinel")))
	for _, code := range []int{math.MinInt, -1, 0, len(sentinels) + 1, math.MaxInt} {
		require.NoError(t, OfCode(code), "%d", code)
	}
}
