package hw

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDevice(t *testing.T) {
	require.True(t, Host.IsHost())
	require.Equal(t, -1, Host.Index())
	require.Equal(t, "host", Device{}.String())
	require.Equal(t, "cuda:3", CUDA(3).String())
	require.Equal(t, 3, CUDA(3).Index())
	require.True(t, Host.Valid() && CUDA(0).Valid() && CUDA(3).Valid())
	for _, i := range []int{-1, -2, math.MinInt} {
		none := CUDA(i)
		require.NotEqual(t, Host, none)
		require.False(t, none.IsHost() || none.Valid())
		require.Equal(t, i, none.Index())
		require.Equal(t, fmt.Sprint("cuda:", i), none.String())
	}
	require.False(t, CUDA(math.MaxInt).Valid(), "there is no such number")
}

func ExampleProbe() {
	fmt.Println(Probe{Name: "memfd"})
	fmt.Println(Probe{Name: "verbs", Err: fmt.Errorf("no /dev/infiniband: %w", ErrNotSupported)})
	fmt.Println(Probe{Name: "verbs", Err: errors.New("permission denied")})
	// Output:
	// memfd: available
	// verbs: no /dev/infiniband: not supported
	// verbs: could not tell: permission denied
}
