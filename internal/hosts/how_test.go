package hosts

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHow(t *testing.T) {
	const tcp, ofi, rdma = "copied by the kernel", "by libfabric if registered, else copied into messages", "by RDMA if registered, else copied into messages"
	for names, want := range map[string]string{
		"tcp":                              tcp,
		"tcp eth0, eth1":                   tcp,
		"tcp eth0 instead of verbs":        tcp,
		"another":                          tcp,
		"verbs mlx5_0:1, mlx5_1:1":         rdma,
		"tcp eth0, verbs mlx5_0:1":         tcp + ", or " + rdma,
		"ofi tcp;ofi_rxm eth0":             ofi,
		"ofi tcp;ofi_rxm a, tcp;ofi_rxm b": ofi,
		"ofi efa rdmap0, tcp eth0":         tcp + ", or " + ofi,
	} {
		why, all := how(names)
		require.Equal(t, want, why, names)
		require.Equal(t, want == rdma, all, names)
	}
}
