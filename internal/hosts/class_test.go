package hosts

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRDMA: what data costs is RDMA's if all ranks have said that they have devices.
func TestRDMA(t *testing.T) {
	rows := []string{"\x01a", "\x01b", "\x00c", "\x01", ""}
	for _, k := range []struct {
		name  string
		hosts [][]int
		want  bool
	}{
		{"all", [][]int{{0, 1}, {3}}, true},
		{"not the second host", [][]int{{0, 1}, {2}}, false},
		{"not a rank that leads none", [][]int{{0, 2}, {1}}, false},
		{"an unknown one", [][]int{{0}, {4}}, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			n := &Network{JobConfig: JobConfig{RowOf: func(rank int) []byte { return []byte(rows[rank]) }}}
			c := Config{Hosts: k.hosts, Network: n, World: func(rank int) int { return rank }}
			require.Equal(t, k.want, c.rdma())
			require.Equal(t, []byte("b"), n.rowOf(1))
			require.Empty(t, n.rowOf(4))
		})
	}
}
