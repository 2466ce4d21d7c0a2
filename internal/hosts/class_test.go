package hosts

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBits: what all ranks have said of themselves, and what some have. Data cost what RDMA's do if all have devices for it.
func TestBits(t *testing.T) {
	rows := []string{"\x01a", "\x01b", "\x00c", "\x01", "", "\x03d"}
	for _, k := range []struct {
		name      string
		hosts     [][]int
		all, some byte
	}{
		{"all", [][]int{{0, 1}, {3}}, rowRDMA, rowRDMA},
		{"not the second host", [][]int{{0, 1}, {2}}, 0, rowRDMA},
		{"not a rank that leads none", [][]int{{0, 2}, {1}}, 0, rowRDMA},
		{"an unknown one", [][]int{{0}, {4}}, 0, rowRDMA},
		{"one takes turns", [][]int{{0, 5}, {1}}, rowRDMA, rowRDMA | rowTurns},
	} {
		t.Run(k.name, func(t *testing.T) {
			n := &Network{JobConfig: JobConfig{RowOf: func(rank int) []byte { return []byte(rows[rank]) }}}
			c := Config{Hosts: k.hosts, Network: n, World: func(rank int) int { return rank }}
			all, some := c.bits()
			require.Equal(t, []byte{k.all, k.some}, []byte{all, some})
			require.Equal(t, []byte("b"), n.rowOf(1))
			require.Empty(t, n.rowOf(4))
		})
	}
}
