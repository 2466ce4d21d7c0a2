package ofi_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/ofi"
	"github.com/ubcoll/ubcoll/register"
)

// have skips the test if there is no libfabric with a provider tcp here.
func have(t testing.TB) {
	t.Helper()
	if p := fabric.Have(); p.Err != nil {
		testkit.Missing(t, "libfabric", p.Err)
	}
	if infos, _, err := fabric.List(t.Context(), "tcp", "lo"); err != nil || len(infos) == 0 {
		testkit.Missing(t, "libfabric", "libfabric has no provider tcp on lo here")
	}
}

// names lists providers and domains of b's rails.
func names(b *ofi.Backend) (all []string) {
	for _, r := range b.Rails() {
		all = append(all, r.Domain.Describe().Core()+" "+r.Domain.Describe().Domain)
	}
	return all
}

// way is a way as libfabric lists it. address may be "".
func way(provider, domain, address string, down bool) *fabric.Info {
	a, _ := netip.ParseAddr(address)
	return &fabric.Info{Description: fabric.Description{Provider: provider, Domain: domain, Address: a, Down: down}}
}

// TestChoose: of one provider, each domain once, and those that are in use.
func TestChoose(t *testing.T) {
	tcp := []*fabric.Info{way("tcp;ofi_rxm", "eth1", "10.1.0.1", false), way("tcp;ofi_rxm", "eth0", "fe80::1", false),
		way("tcp;ofi_rxm", "eth0", "10.0.0.1", false), way("tcp;ofi_rxm", "eth0", "fd00::1", false), way("tcp;ofi_rxm", "lo", "127.0.0.1", false)}
	local := func(in ...string) func(netip.Addr) bool {
		return func(a netip.Addr) bool { return slices.Contains(in, a.String()) }
	}
	for _, c := range []struct {
		name   string
		infos  []*fabric.Info
		local  func(netip.Addr) bool
		prefer []string
		want   [][]string
	}{
		{"nothing", nil, nil, nil, nil},
		{"each domain once, by name", tcp, nil, nil, [][]string{{"tcp;ofi_rxm eth0 (fe80::1)", "tcp;ofi_rxm eth1 (10.1.0.1)", "tcp;ofi_rxm lo (127.0.0.1)"}}},
		{"those in use", tcp, local("10.0.0.1", "fd00::1", "10.1.0.1"), nil, [][]string{{"tcp;ofi_rxm eth0 (10.0.0.1)", "tcp;ofi_rxm eth1 (10.1.0.1)"}}},
		{"loopback, if it is in use", tcp, local("127.0.0.1"), nil, [][]string{{"tcp;ofi_rxm lo (127.0.0.1)"}}},
		{"none in use", tcp, local(), nil, [][]string{nil}},
		{"no IP network", []*fabric.Info{way("efa", "b", "", false), way("efa", "a", "", false), way("efa", "down", "", true)}, local(), nil,
			[][]string{{"efa a", "efa b"}}},
		{"no address, or one in use", []*fabric.Info{way("verbs;ofi_rxm", "a", "", false), way("verbs;ofi_rxm", "a", "10.0.0.1", false),
			way("verbs;ofi_rxm", "a", "10.0.0.2", false)}, local("10.0.0.1"), nil, [][]string{{"verbs;ofi_rxm a (10.0.0.1)"}}},
		{"four at most", []*fabric.Info{way("efa", "5", "", false), way("efa", "4", "", false), way("efa", "3", "", false), way("efa", "2", "", false),
			way("efa", "1", "", false)}, nil, nil, [][]string{{"efa 1", "efa 2", "efa 3", "efa 4"}}},
		{"providers as listed", []*fabric.Info{way("net", "a", "", false), way("sockets", "a", "", false), way("net", "b", "", false)}, nil, nil,
			[][]string{{"net a", "net b"}, {"sockets a"}}},
		{"providers as preferred", []*fabric.Info{way("net", "a", "", false), way("sockets", "a", "", false), way("efa", "a", "", false)}, nil,
			[]string{"efa", "sockets"}, [][]string{{"efa a"}, {"sockets a"}, {"net a"}}},
		{"one that mixes up bytes", []*fabric.Info{way("udp;ofi_rxd", "a", "", false), way("net", "a", "", false)}, nil, nil,
			[][]string{nil, {"net a"}}},
	} {
		config := ofi.Config{Local: c.local, Prefer: c.prefer}
		require.Equal(t, c.want, config.Choose(c.infos), c.name)
	}
	named := ofi.Config{Provider: "udp"}
	require.Equal(t, [][]string{{"udp;ofi_rxd a"}}, named.Choose([]*fabric.Info{way("udp;ofi_rxd", "a", "", false)}))
}

// TestOpen: the backend's own domain registers memory, and closes with it.
func TestOpen(t *testing.T) {
	have(t)
	defer testkit.NoLeaks(t)()
	config := ofi.Config{Provider: "tcp", Local: netip.Addr.IsLoopback}
	b, err := ofi.Open(t.Context(), config)
	require.NoError(t, err)
	require.Equal(t, []string{"tcp lo"}, names(b))
	other, err := ofi.Open(t.Context(), config)
	require.NoError(t, err, "each rank of a process has its own")
	m, bytes := memory(t, 4096, unix.PROT_READ|unix.PROT_WRITE)
	h, err := b.Register(m)
	require.NoError(t, err)
	require.ErrorIs(t, b.Close(), fault.ErrInUse)
	mrs, err := h.(*ofi.Region).For(fabric.RemoteWrite)
	require.NoError(t, err, "nothing is closed")
	rail := b.Rails()[0]
	rail.Endpoint, err = rail.Domain.Endpoint(16)
	require.NoError(t, err)
	require.NoError(t, write(t, rail, mrs[0], 17, 5))
	require.EqualValues(t, 5, bytes[17])
	require.NoError(t, b.Deregister(m, h))
	require.NoError(t, rail.Endpoint.Close())
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Close(), fault.ErrClosed)
	require.ErrorIs(t, rail.Domain.Close(), fault.ErrClosed)
	require.NoError(t, other.Close())
	require.NoError(t, (*ofi.Backend)(nil).Close())
}

// TestOpenNothing: the error says why there is nothing to use.
func TestOpenNothing(t *testing.T) {
	have(t)
	nowhere := func(netip.Addr) bool { return false }
	for _, c := range []struct {
		config ofi.Config
		says   []string
	}{
		{ofi.Config{Provider: "tpc"}, []string{`unknown provider "tpc" (one of `, "did you mean tcp?"}},
		{ofi.Config{Provider: "tcp", Domain: "eht0"}, []string{`unknown domain of tcp "eht0" (one of `, "lo"}},
		{ofi.Config{Domain: "eht0"}, []string{`unknown domain "eht0" (one of `, "lo"}},
		{ofi.Config{Provider: "tcp", Local: nowhere}, []string{"tcp;ofi_rxm lo (127.0.0.1): it is on no interface in use (UBCOLL_NET)"}},
		{ofi.Config{Provider: "shm"}, []string{"shm: reaches processes of this host only"}},
	} {
		_, err := ofi.Open(t.Context(), c.config)
		require.ErrorIs(t, err, hw.ErrNotSupported)
		for _, s := range c.says {
			require.ErrorContains(t, err, s)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := ofi.Open(ctx, ofi.Config{Keep: func(register.Memory) {}})
	require.ErrorIs(t, err, context.Canceled)
}
