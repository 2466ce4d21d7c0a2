package ubcoll_test

import (
	"context"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestNoDevice uses a device that cannot exist, and is not the host.
func TestNoDevice(t *testing.T) {
	none := ubcoll.CUDA(-1)
	require.NotEqual(t, ubcoll.Host, none)
	o := ubcoll.Options{Timeout: testkit.Limit}
	err := ubcoll.Local(t.Context(), 1, o, func(_ context.Context, c *ubcoll.Comm) error {
		var x [4096]byte
		_, alloc := ubcoll.Alloc[int8](c, none, 1)
		_, adopt := ubcoll.Adopt(c, none, unsafe.Pointer(&x), len(x))
		_, stream := ubcoll.NewStream(none)
		_, from := ubcoll.StreamFrom(none, 0)
		_, primary := cuda.Primary(none)
		for _, err := range []error{alloc, adopt, stream, from, primary} {
			require.ErrorIs(t, err, ubcoll.ErrArgument)
			require.ErrorContains(t, err, "cuda:-1 is no device")
		}
		return nil
	})
	require.NoError(t, err)
}
