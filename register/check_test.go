//go:build invariants

package register

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestInvariants(t *testing.T) {
	for _, k := range []struct {
		name  string
		spoil func(c *Cache, local, graph, auto *Claim)
		says  string
	}{
		{"a local reference too few", func(c *Cache, local, graph, auto *Claim) { local.local = 0 },
			"is in the local index, with 0 local references"},
		{"a graph's reference too few", func(c *Cache, local, graph, auto *Claim) { graph.graph = 0 },
			"is in the graphs' index without"},
		{"a negative count", func(c *Cache, local, graph, auto *Claim) { local.graph = -1 }, "has 1 local references and -1 of graphs"},
		{"a count in the place of the other", func(c *Cache, local, graph, auto *Claim) {
			local.local, local.graph, graph.local, graph.graph = 0, 1, 1, 0
		}, "is in the local index, with 0 local references"},
		{"the index's count", func(c *Cache, local, graph, auto *Claim) { c.graph.n++ }, "the graphs' index has 1 claims, and counts 2"},
		{"automatic, with a reference", func(c *Cache, local, graph, auto *Claim) { auto.local++ }, "is automatic number 1"},
		{"a closed claim", func(c *Cache, local, graph, auto *Claim) { local.state.Or(closing) }, "has been closed, and lookups find it"},
		{"an extent that is gone", func(c *Cache, local, graph, auto *Claim) { auto.ext.gone.Store(true) }, "is gone, and lookups find it"},
		{"an extent's count", func(c *Cache, local, graph, auto *Claim) { local.ext.claims = 0 }, "has 1 claims, and counts 0"},
		{"the number of claims", func(c *Cache, local, graph, auto *Claim) { c.regions++ }, "are counted as 4"},
		{"the pinned bytes", func(c *Cache, local, graph, auto *Claim) { c.pinned-- }, "of 12287"},
	} {
		t.Run(k.name, func(t *testing.T) {
			c := newCache(t, Config{})
			local := mustRegister(t, c, mem(1, 1, 0x10000, 4096), 0x10000, 100)
			graph, err := c.RetainGraph(mem(2, 2, 0x20000, 4096), 0x20000, 100)
			require.NoError(t, err)
			auto, err := c.RegisterAuto(mem(3, 3, 0x30000, 4096), 0x30000, 100)
			require.NoError(t, err)
			auto.Release()
			c.mu.Lock()
			defer c.mu.Unlock()
			c.check()
			k.spoil(c, local.cl, graph.cl, auto)
			testkit.Violation(t, k.says, c.check)
		})
	}
}

func TestReferencesAreNotNegative(t *testing.T) {
	c := newCache(t, Config{})
	r := mustRegister(t, c, mem(1, 1, 0x10000, 4096), 0x10000, 100)
	testkit.Violation(t, "-1 of graphs", func() { _ = (&Ref{cl: r.cl, graph: true}).Close() })
}

func TestClosedIsEmpty(t *testing.T) {
	c := newCache(t, Config{})
	require.NoError(t, c.Close())
	c.checkClosed()
	c.local.insert(&Claim{start: 0x10000, end: 0x20000})
	testkit.Violation(t, "closed, the cache has 1 claims", c.checkClosed)
}

// Who uses a handle after the registration's end, without a use of its own, gets an error and not the handle.
func TestDeregisteredHasNoHandle(t *testing.T) {
	c := newCache(t, Config{Backends: []Backend{&fake{kind: IPC}}})
	r := mustRegister(t, c, mem(1, 1, 0x10000, 4096), 0x10000, 100)
	cl := r.Claim()
	h, err := cl.Handle(IPC)
	require.NoError(t, err)
	require.NotNil(t, h)
	require.NoError(t, r.Close())
	h, err = cl.Handle(IPC)
	require.ErrorIs(t, err, fault.ErrStale)
	require.Nil(t, h)
}
