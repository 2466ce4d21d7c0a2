//go:build cgo

package net

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/ofi"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
	"github.com/ubcoll/ubcoll/register"
)

// TestOFISuite: libfabric does what every transport does, over each provider that is here, with memory that is registered and
// with memory that is not.
func TestOFISuite(t *testing.T) {
	for _, provider := range []string{"tcp;ofi_rxm"} {
		for name, every := range map[string]uint64{"messages": 1, "registered": 1 << 60, "both": 3} {
			t.Run(provider+"/"+name, func(t *testing.T) {
				transporttest.SuiteTurns(t, 0, 1, network(func(t testing.TB, c *transport.Config) {
					*c = withOFI(t, *c, provider)
					find, asked := c.Find, new(atomic.Uint64)
					c.Find = func(addr uintptr, n int) *register.Claim {
						if asked.Add(1)%every == 0 {
							return nil
						}
						return find(addr, n)
					}
				}))
			})
		}
	}
}

// withOFI adds a provider's domain on the loopback interface, which is open until the end of the test. Memory of Go's heap
// counts as registered.
func withOFI(t testing.TB, c transport.Config, provider string) transport.Config {
	t.Helper()
	if p := fabric.Have(); p.Err != nil {
		testkit.Missing(t, "libfabric", p.Err)
	}
	infos, _, err := fabric.List(t.Context(), provider, "")
	require.NoError(t, err)
	for _, i := range infos {
		if !i.Address.Is4() || !i.Address.IsLoopback() {
			continue
		}
		d, err := fabric.Open(i)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close(), "a registration is left") })
		c.OFI = ofi.New([]ofi.Rail{{Domain: d}}, nil)
		h := &heap{backend: c.OFI, caches: map[register.Memory]*register.Cache{}}
		t.Cleanup(func() { require.NoError(t, h.close()) })
		c.Find = h.find
		return c
	}
	testkit.Missing(t, "libfabric", "libfabric has no provider "+provider+" of the loopback interface here")
	return c
}
