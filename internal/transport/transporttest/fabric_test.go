package transporttest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/transport"
)

// network returns what makes networks of a kind, for Suite.
func network(o Options) func(t testing.TB, configs []transport.Config) Network {
	return func(t testing.TB, configs []transport.Config) Network {
		f := New(t, o)
		n := Network{Background: !o.TwoSided, Kill: f.Kill, Cut: f.Cut, Pairs: f.Pairs}
		for _, c := range configs {
			node, err := f.Node(c)
			require.NoError(t, err)
			n.Nodes = append(n.Nodes, node)
		}
		return n
	}
}

// Every kind of fabric is a transport.
func TestSuite(t *testing.T) {
	for name, o := range map[string]Options{
		"plain": {}, "delays": {Delays: true}, "two-sided": {TwoSided: true}, "two-sided, delays": {Delays: true, TwoSided: true},
	} {
		t.Run(name, func(t *testing.T) { Suite(t, network(o)) })
	}
}
