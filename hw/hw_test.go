package hw

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDevice(t *testing.T) {
	require.True(t, Host.IsHost())
	require.Equal(t, -1, Host.Index())
	require.Equal(t, "host", Device{}.String())
	require.Equal(t, "cuda:3", CUDA(3).String())
	require.Equal(t, 3, CUDA(3).Index())
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
