package net

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
	"github.com/ubcoll/ubcoll/register"
)

// TestDouble runs the tests over verbs over the double.
func TestDouble(t *testing.T) {
	for name, knobs := range map[string]verbstest.Knobs{
		"InfiniBand": {"SILENT": "1"},
		"Ethernet":   {"LINK": "Ethernet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := verbstest.Again(t, knobs, "-test.run=^TestVerbs")
			require.NotContains(t, out, "--- SKIP")
			require.Contains(t, out, "--- PASS: TestVerbsSuite")
		})
	}
}

// TestVerbsSuite: verbs does what every transport does.
func TestVerbsSuite(t *testing.T) {
	if p := ib.Have(); p.Err != nil {
		testkit.Missing(t, "verbs", p.Err)
	}
	transporttest.Suite(t, func(t testing.TB, configs []transport.Config) transporttest.Network {
		t.Setenv("UBCOLL_NET", interfaces)
		var nodes []*Node
		n := transporttest.Network{
			Background: true,
			Kill:       func(rank int) { nodes[rank].die(t) },
			Cut: func(a, b int) {
				nodes[a].deafen(t, b)
				nodes[b].deafen(t, a)
			},
			Pairs: func(rank int) int { return nodes[rank].pairs() },
		}
		for _, c := range configs {
			if strings.HasSuffix(t.Name(), "/cut") { // others have time
				c.Timeout = time.Second
			}
			var err error
			c.NICs, err = mr.Open(mr.Config{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, c.NICs.Close()) })
			c.Find = func(uintptr, int) *register.Claim { return nil }
			node, err := New(c)
			require.NoError(t, err)
			n.Nodes, nodes = append(n.Nodes, node), append(nodes, node)
		}
		return n
	})
}
