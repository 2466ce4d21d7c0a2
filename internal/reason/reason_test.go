package reason

import (
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
