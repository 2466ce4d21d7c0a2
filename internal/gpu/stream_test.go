package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
)

func TestNoStreamWithoutDevice(t *testing.T) {
	_, err := OpenStream(hw.CUDA(0))
	require.ErrorIs(t, err, hw.ErrNotSupported)
}
