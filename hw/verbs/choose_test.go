package verbs

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

func gid(s string) GID { return netip.MustParseAddr(s).As16() }

func TestChooseGID(t *testing.T) {
	const v1, v2 = GIDRoCEv1, GIDRoCEv2
	link4 := GIDEntry{0, gid("169.254.3.4"), v2, 2}
	link6 := GIDEntry{1, gid("fe80::1"), v2, 2}
	for _, c := range []struct {
		name  string
		link  LinkLayer
		table []GIDEntry
		want  int
		index int
		is    error
		says  string
	}{
		{"an IPv4 address before an IPv6 one", LinkEthernet, []GIDEntry{{0, gid("2001:db8::1"), v2, 2}, {1, gid("10.0.0.1"), v2, 2}}, -1, 1, nil, ""},
		{"v2 before v1", LinkEthernet, []GIDEntry{{0, gid("10.0.0.1"), v1, 2}, {1, gid("2001:db8::1"), v2, 2}}, -1, 1, nil, ""},
		{"v2 of the link only before v1", LinkEthernet, []GIDEntry{{0, gid("10.0.0.1"), v1, 2}, {1, gid("fe80::1"), v2, 2}}, -1, 1, nil, ""},
		{"a global address before one of the link", LinkEthernet, []GIDEntry{link6, {2, gid("2001:db8::1"), v2, 2}}, -1, 2, nil, ""},
		{"a global IPv6 address before an IPv4 one of the link", LinkEthernet, []GIDEntry{link4, {2, gid("2001:db8::1"), v2, 2}}, -1, 2, nil, ""},
		{"an IPv4 one of the link before an IPv6 one of it", LinkEthernet, []GIDEntry{link6, {3, gid("169.254.3.4"), v2, 2}}, -1, 3, nil, ""},
		{"of equals the lowest row", LinkEthernet, []GIDEntry{{5, gid("10.0.0.2"), v2, 2}, {3, gid("10.0.0.1"), v2, 2}}, -1, 3, nil, ""},
		{"empty rows are none", LinkEthernet, []GIDEntry{{0, GID{}, v2, 2}, {4, gid("fe80::1"), v1, 2}}, -1, 4, nil, ""},
		{"what is asked for", LinkEthernet, []GIDEntry{link6, {2, gid("10.0.0.1"), v2, 2}}, 1, 1, nil, ""},
		{"what is asked for is not there", LinkEthernet, []GIDEntry{link6}, 3, 0, fault.ErrArgument, "nothing at index 3, of 1 (fe80::1, RoCE v2)"},
		{"what is asked for is empty", LinkEthernet, []GIDEntry{{2, GID{}, v2, 0}}, 2, 0, fault.ErrArgument, "index 2"},
		{"a row that cannot be named", LinkEthernet, []GIDEntry{{256, gid("10.0.0.1"), v2, 2}, {255, gid("fe80::1"), v1, 2}}, -1, 255, nil, ""},
		{"no GID", LinkEthernet, nil, -1, 0, hw.ErrNotSupported, "needs an address"},
		{"InfiniBand's first", LinkInfiniBand, []GIDEntry{{0, gid("fe80::2"), 0, 0}, {1, gid("2001:db8::1"), 0, 0}}, -1, 0, nil, ""},
		{"InfiniBand's that is asked for", LinkInfiniBand, []GIDEntry{{0, gid("fe80::2"), 0, 0}, {1, gid("2001:db8::1"), 0, 0}}, 1, 1, nil, ""},
		{"InfiniBand without", LinkInfiniBand, nil, -1, 0, fault.ErrArgument, "no rows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := ChooseGID(c.link, c.table, c.want)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.index, e.Index)
		})
	}
}

func TestGbits(t *testing.T) {
	for _, c := range []struct {
		name         string
		link         LinkLayer
		width, speed uint8
		gbits        float64
	}{
		{"SDR", LinkInfiniBand, 2, 1, 8},
		{"DDR", LinkInfiniBand, 2, 2, 16},
		{"QDR", LinkInfiniBand, 2, 4, 32},
		{"FDR10", LinkInfiniBand, 2, 8, 40},
		{"FDR", LinkInfiniBand, 2, 16, 54.5454},
		{"EDR", LinkInfiniBand, 2, 32, 100},
		{"HDR", LinkInfiniBand, 2, 64, 200},
		{"NDR", LinkInfiniBand, 2, 128, 400},
		{"HDR100", LinkInfiniBand, 16, 64, 100},
		{"12X", LinkInfiniBand, 8, 4, 96},
		{"8X", LinkInfiniBand, 4, 128, 800},
		{"10GbE", LinkEthernet, 1, 4, 10},
		{"20GbE", LinkEthernet, 2, 2, 20},
		{"25GbE", LinkEthernet, 1, 32, 25},
		{"40GbE", LinkEthernet, 2, 4, 40},
		{"40GbE as FDR10", LinkEthernet, 2, 8, 40},
		{"56GbE", LinkEthernet, 2, 16, 56},
		{"100GbE", LinkEthernet, 2, 32, 100},
		{"400GbE", LinkEthernet, 2, 128, 400},
		{"no such width", LinkInfiniBand, 3, 32, 0},
		{"no such speed", LinkInfiniBand, 2, 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) { require.InDelta(t, c.gbits, gbits(c.link, c.width, c.speed), 1e-3) })
	}
}

func TestSelection(t *testing.T) {
	all := []string{"mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1", "rxe0:1"}
	for _, c := range []struct {
		s    string
		want []string
		says string
	}{
		{"", all, ""},
		{"mlx5", []string{"mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1"}, ""},
		{"mlx5_1", []string{"mlx5_1:1", "mlx5_1:2", "mlx5_10:1"}, ""},
		{"=mlx5_1", []string{"mlx5_1:1", "mlx5_1:2"}, ""},
		{"=mlx5_1:2,rxe0", []string{"mlx5_1:2", "rxe0:1"}, ""},
		{"^mlx5_1:1", []string{"mlx5_0:1", "mlx5_1:2", "rxe0:1"}, ""},
		{"^=mlx5_1:1", []string{"mlx5_0:1", "mlx5_1:2", "mlx5_10:1", "rxe0:1"}, ""},
		{"none", nil, ""},
		{"^", nil, "lists no device"},
		{"=", nil, "lists no device"},
		{"a,,b", nil, `"" in "a,,b" is no name`},
		{"=^a", nil, "is no name"},
		{"a:0", nil, "from 1 to 255"},
		{"a:x", nil, "from 1 to 255"},
		{"a:", nil, "from 1 to 255"},
	} {
		t.Run(c.s, func(t *testing.T) {
			sel, err := ParseSelection(c.s)
			if c.says != "" {
				require.ErrorIs(t, err, fault.ErrArgument)
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			var got []string
			for _, p := range all {
				name, port := p[:len(p)-2], int(p[len(p)-1]-'0')
				if sel.Match(name, port) {
					got = append(got, p)
				}
			}
			require.Equal(t, c.want, got)
			again, err := ParseSelection(sel.String())
			require.NoError(t, err)
			require.Equal(t, sel, again)
		})
	}
}

func FuzzSelection(f *testing.F) {
	for _, s := range []string{"", "^=mlx5_1:2,rxe", "a:b", ",", "^", "=a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sel, err := ParseSelection(s)
		if err != nil {
			require.ErrorIs(t, err, fault.ErrArgument)
			return
		}
		again, err := ParseSelection(sel.String())
		require.NoError(t, err)
		require.Equal(t, sel, again)
	})
}

func FuzzAddress(f *testing.F) {
	good := Address{QP: 17, PSN: 0xabcdef, MTU: 4096, LID: 3, Link: LinkEthernet, ReadsOut: 16, ReadsIn: 128, GID: gid("10.0.0.1")}
	f.Add(good.Append(nil))
	f.Add([]byte{})
	f.Add(make([]byte, AddressSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ParseAddress(b)
		if err != nil {
			require.ErrorIs(t, err, fault.ErrArgument)
			return
		}
		require.Equal(t, b, a.Append(nil))
	})
}

func TestAddress(t *testing.T) {
	good := Address{QP: 17, PSN: 0xabcdef, MTU: 4096, LID: 3, Link: LinkEthernet, ReadsOut: 16, ReadsIn: 128, GID: gid("10.0.0.1")}
	a, err := ParseAddress(good.Append(nil))
	require.NoError(t, err)
	require.Equal(t, good, a)
	for _, c := range []struct {
		name   string
		change func(*Address)
		says   string
	}{
		{"25 bits of a queue pair", func(a *Address) { a.QP = 1 << 24 }, "24 bits"},
		{"25 bits of a packet", func(a *Address) { a.PSN = 1 << 24 }, "24 bits"},
		{"MTU", func(a *Address) { a.MTU = 1500 }, "MTU of 1500"},
		{"link", func(a *Address) { a.Link = 3 }, "link layer 3"},
		{"RoCE without a GID", func(a *Address) { a.GID = GID{} }, "without a GID"},
		{"InfiniBand without a LID", func(a *Address) { a.Link, a.LID = LinkInfiniBand, 0 }, "subnet manager"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := good
			c.change(&bad)
			_, err := ParseAddress(bad.Append(nil))
			require.ErrorIs(t, err, fault.ErrArgument)
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err = ParseAddress(good.Append(nil)[1:])
	require.ErrorContains(t, err, "has 32 bytes, not 31")
	b := good.Append(nil)
	b[15] = 1
	_, err = ParseAddress(b)
	require.ErrorIs(t, err, fault.ErrArgument)
}

func TestAccess(t *testing.T) {
	for _, c := range []struct {
		access Access
		text   string
		ok     bool
	}{
		{0, "local read", true},
		{LocalWrite, "LOCAL_WRITE", true},
		{RemoteRead, "REMOTE_READ", true},
		{LocalWrite | Remote, "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC", true},
		{LocalWrite | OnDemand | RelaxedOrdering, "LOCAL_WRITE|ON_DEMAND|RELAXED_ORDERING", true},
		{RemoteWrite, "REMOTE_WRITE", false},
		{RemoteAtomic | RemoteRead, "REMOTE_READ|REMOTE_ATOMIC", false},
		{1 << 4, "0x10", false}, // MW_BIND, which this package does not use
		{1 << 5, "0x20", false}, // ZERO_BASED
	} {
		t.Run(c.text, func(t *testing.T) {
			require.Equal(t, c.text, c.access.String())
			if c.ok {
				require.NoError(t, c.access.Check())
			} else {
				require.ErrorIs(t, c.access.Check(), fault.ErrArgument)
			}
		})
	}
}

func TestPath(t *testing.T) {
	require.NoError(t, DefaultPath().check(1))
	for _, c := range []struct {
		name   string
		change func(*Path)
		says   string
	}{
		{"port 0", func(p *Path) { p.Port = 0 }, "ports 1 to 2"},
		{"port 3", func(p *Path) { p.Port = 3 }, "ports 1 to 2"},
		{"GID", func(p *Path) { p.GIDIndex = 256 }, "GID index 256"},
		{"P_Key", func(p *Path) { p.PKeyIndex = 1 << 16 }, "P_Key index"},
		{"service level", func(p *Path) { p.ServiceLevel = 16 }, "0 to 15"},
		{"timeout", func(p *Path) { p.Timeout = 32 }, "0 (forever) to 31"},
		{"retries", func(p *Path) { p.Retries = 8 }, "0 to 7"},
		{"retries of who is not ready", func(p *Path) { p.NotReady = 8 }, "0 to 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := DefaultPath()
			c.change(&p)
			require.ErrorContains(t, p.check(2), c.says)
			require.ErrorIs(t, p.check(2), fault.ErrArgument)
		})
	}
}
