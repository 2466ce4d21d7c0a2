//go:build invariants

package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// The uses of registrations end: not more often than they began, and before the domain does.
func TestUsesOfRegistrationsEnd(t *testing.T) {
	c := enginetest.Open(t, 1, engine.Options{})[0]
	a, err := c.Alloc(hw.Host, 4096)
	require.NoError(t, err)
	cache := c.Domain().Cache
	claim, err := cache.RegisterAuto(engine.Memory(a), a.Base(), a.Bytes)
	require.NoError(t, err)
	claim.Release()
	testkit.Violation(t, "was released more often than acquired", claim.Release)
	testkit.Violation(t, "uses of 1 registrations of 1 pieces of memory have not ended", c.Domain().CheckClosed)
	require.NoError(t, c.Free(a))
	c.Domain().CheckClosed()
}
