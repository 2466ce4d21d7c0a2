package engine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/engine"
)

// TestAccessNumbers compares the public numbers, these and verbs'.
func TestAccessNumbers(t *testing.T) {
	for _, k := range []struct {
		access ubcoll.Access
		engine engine.Access
		verbs  verbs.Access
		name   string
	}{
		{ubcoll.AccessLocalWrite, engine.LocalWrite, verbs.LocalWrite, "local write"},
		{ubcoll.AccessRemoteWrite, engine.RemoteWrite, verbs.RemoteWrite, "remote write"},
		{ubcoll.AccessRemoteRead, engine.RemoteRead, verbs.RemoteRead, "remote read"},
		{ubcoll.AccessRemoteAtomic, engine.RemoteAtomic, verbs.RemoteAtomic, "remote atomic"},
		{ubcoll.AccessLocalOnly, engine.LocalOnly, 0, "local only"},
	} {
		require.EqualValues(t, k.engine, k.access)
		if k.verbs != 0 {
			require.EqualValues(t, k.verbs, k.access)
		}
		require.Equal(t, k.name, k.access.String())
	}
	for k, want := range map[ubcoll.Transports]engine.Transports{ubcoll.TransportHostMemory: engine.HostMemory,
		ubcoll.TransportCUDAIPC: engine.CUDAIPC, ubcoll.TransportTCP: engine.TCP, ubcoll.TransportRDMA: engine.RDMA} {
		require.EqualValues(t, want, k)
	}
	require.Equal(t, "none, local write, remote read, local write, 0x20",
		fmt.Sprintf("%v, %v, %v", ubcoll.Access(0), ubcoll.AccessLocalWrite|ubcoll.AccessRemoteRead, ubcoll.Access(0x21)))
	require.Equal(t, "host memory, TCP", fmt.Sprint(ubcoll.TransportHostMemory|ubcoll.TransportTCP))
}
