package kernels

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
)

func TestSet(t *testing.T) {
	s := New(nil) // no device is used before a module is loaded
	_, err := s.Kernel("threeshot", dtype.Float32, 2)
	require.ErrorIs(t, err, fault.ErrArgument)
	require.ErrorContains(t, err, `no kernel "threeshot"`)
	_, err = s.Kernel(TwoShot, dtype.Invalid, 2)
	require.ErrorIs(t, err, fault.ErrArgument)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.Kernel(Barrier, dtype.Invalid, 2)
	require.ErrorIs(t, err, fault.ErrClosed)
}
