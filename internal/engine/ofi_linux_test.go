//go:build cgo

package engine_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/register"
)

// withOFI sets the environment of a test of libfabric's choice on lo.
func withOFI(t *testing.T, when string) {
	t.Helper()
	if p := ofi.Have(); p.Err != nil {
		testkit.Missing(t, "libfabric", p.Err)
	}
	for name, value := range map[string]string{"OFI": when, "OFI_PROVIDER": "tcp", "IB": "auto", "REQUIRE": "", "NET": "lo"} {
		t.Setenv("UBCOLL_"+name, value)
	}
}

// onHosts opens a communicator of two ranks on so many hosts.
func onHosts(hosts int, o engine.Options) ([]*engine.Comm, error) {
	comms, errs := enginetest.OpenOver(enginetest.Hosts(bootstrap.Local(2), func(r int) string { return fmt.Sprint(r % hosts) }), o)
	return comms, errors.Join(errs...)
}

// TestOFI: with UBCOLL_OFI=on libfabric is NET in jobs of several hosts, and ends with the communicator.
func TestOFI(t *testing.T) {
	withOFI(t, "on")
	defer testkit.NoLeaks(t)()
	comms, err := onHosts(2, engine.Options{})
	require.NoError(t, err)
	c := comms[0]
	a, err := c.Alloc(hw.Host, 3*4096)
	require.NoError(t, err)
	before := c.Stats().Cache.NET
	_, err = c.RegisterBuffer(bytesOf(a))
	require.NoError(t, err)
	require.Regexp(t, `\n    NET complete: tcp;ofi_rxm lo: .*REMOTE_WRITE`, c.Explain(bytesOf(a)))
	require.Equal(t, register.BackendStats{Complete: before.Complete + 1, Registered: before.Registered + 1}, c.Stats().Cache.NET)
	closeAll(t, comms)
}

// TestOFIOff: elsewhere it is not used, and where somebody asks for it, Explain says why.
func TestOFIOff(t *testing.T) {
	explain := func(hosts int) string {
		comms, err := onHosts(hosts, engine.Options{})
		require.NoError(t, err)
		a, err := comms[0].Alloc(hw.Host, 4096)
		require.NoError(t, err)
		r, err := comms[0].RegisterBuffer(bytesOf(a))
		require.NoError(t, err)
		text := comms[0].Explain(bytesOf(a))
		require.NoError(t, r.Close())
		closeAll(t, comms)
		return text
	}
	withOFI(t, "on")
	require.Contains(t, explain(1), "\n    NET absent: libfabric is for data between hosts, and all ranks are on one host: not supported; UBCOLL_IB=auto, and")
	t.Setenv("UBCOLL_IB", "off")
	t.Setenv("UBCOLL_OFI", "off")
	require.Contains(t, explain(2), "\n    NET absent: UBCOLL_IB=off: not supported\n")
	t.Setenv("UBCOLL_OFI", "auto")
	t.Setenv("UBCOLL_OFI_PROVIDER", "nothing")
	require.Contains(t, explain(2), "\n    NET absent: UBCOLL_OFI_PROVIDER=nothing: libfabric: unknown provider")
}

// TestOFIRequired: if Options.Net asks for a provider that is not there, Open fails on all ranks and says why.
func TestOFIRequired(t *testing.T) {
	withOFI(t, "auto")
	_, err := onHosts(2, engine.Options{Net: "ofi:nothing"})
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.ErrorContains(t, err, `Options.Net is ofi:nothing: libfabric: unknown provider "nothing"`)
	t.Setenv("UBCOLL_NET", "nowhere")
	_, err = onHosts(2, engine.Options{Net: "ofi"})
	require.ErrorIs(t, err, fault.ErrArgument)
	require.ErrorContains(t, err, "UBCOLL_NET: no interface nowhere")
}
