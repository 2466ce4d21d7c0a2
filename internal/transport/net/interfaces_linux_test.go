package net

import (
	"github.com/ubcoll/ubcoll/internal/transport"
	stdnet "net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
)

func host(ups ...string) (all []local) {
	for i := 0; i < len(ups); i += 2 {
		all = append(all, local{ups[i], netip.MustParsePrefix(ups[i+1]), ups[i] != "down0"})
	}
	return all
}

// TestOnInterface: what a node would listen on is in use, loopback addresses only if they are named or there is nothing else.
func TestOnInterface(t *testing.T) {
	was := locals
	t.Cleanup(func() { locals = was })
	locals = func() ([]local, error) {
		return host("lo", "127.0.0.1/8", "eth0", "10.0.0.5/24", "eth1", "10.1.0.5/16", "down0", "10.2.0.5/24"), nil
	}
	for words, want := range map[string][]bool{"": {false, true, true, false}, "eth1": {false, false, true, false}, "lo": {true, false, false, false}} {
		t.Setenv("UBCOLL_NET", words)
		on, err := OnInterface()
		require.NoError(t, err)
		var got []bool
		for _, a := range []string{"127.0.0.1", "::ffff:10.0.0.5", "10.1.0.5", "10.2.0.5"} {
			got = append(got, on(netip.MustParseAddr(a)))
		}
		require.Equal(t, want, got, words)
		require.False(t, on(netip.MustParseAddr("10.0.0.6")), "another host's")
	}
	t.Setenv("UBCOLL_NET", "eht0")
	_, err := OnInterface()
	require.ErrorIs(t, err, fault.ErrArgument)
	require.ErrorContains(t, err, "did you mean eth0?")
}

func TestChosen(t *testing.T) {
	all := host("lo", "127.0.0.1/8", "lo", "::1/128", "eth0", "2001:db8::5/64", "eth0", "10.0.0.5/24", "eth1", "10.1.0.5/16",
		"down0", "10.2.0.5/24", "eth2", "10.3.0.5/24", "eth3", "10.4.0.5/24", "eth4", "10.5.0.5/24")
	for _, c := range []struct {
		words []string
		want  string
	}{
		{nil, "10.0.0.5 10.1.0.5 10.3.0.5 10.4.0.5"},
		{[]string{"eth0"}, "10.0.0.5 2001:db8::5"},
		{[]string{"eth1", "eth0"}, "10.1.0.5 10.0.0.5 2001:db8::5"},
		{[]string{"10.1.0.0/16", "eth1", "10.0.0.5"}, "10.1.0.5 10.0.0.5"},
		{[]string{"lo"}, "127.0.0.1 ::1"},
		{[]string{"127.0.0.0/8"}, "127.0.0.1"},
		{[]string{"2001:db8::/32"}, "2001:db8::5"},
	} {
		found, rest, err := chosen(all, c.words)
		require.NoError(t, err)
		if c.words != nil {
			require.Empty(t, rest, c.words)
		} else {
			require.Equal(t, "10.5.0.5 of eth4, 2001:db8::5 of eth0", list(rest))
		}
		var got string
		for _, l := range found {
			got += " " + l.prefix.Addr().String()
		}
		require.Equal(t, " "+c.want, got, c.words)
	}
	found, _, err := chosen(host("lo", "127.0.0.1/8", "down0", "10.0.0.1/8"), nil)
	require.NoError(t, err)
	require.Equal(t, "lo", found[0].name, "there is nothing else")

	for words, want := range map[string]string{
		"eht0":           "UBCOLL_NET: no interface eht0 (did you mean eth0?), and it is no subnet; those with addresses are lo, eth0, eth1, down0, eth2, eth3, eth4",
		"192.168.0.0/16": "no address of this host is in 192.168.0.0/16: it has 127.0.0.1, ::1",
		"down0":          "down0 is down",
	} {
		_, _, err := chosen(all, []string{"eth0", words})
		require.ErrorIs(t, err, fault.ErrArgument)
		require.ErrorContains(t, err, want)
	}
	_, _, err = chosen(host("down0", "10.0.0.1/8"), nil)
	require.ErrorIs(t, err, fault.ErrNotSupported)
	_, _, err = chosen(all, []string{"10.0.0.0/8", "eth0"})
	require.ErrorIs(t, err, fault.ErrArgument)
	require.ErrorContains(t, err, "UBCOLL_NET=10.0.0.0/8,eth0: these are 6 addresses, and a rank listens on 4 at most: name "+
		"fewer of 10.0.0.5 of eth0, 10.1.0.5 of eth1, 10.3.0.5 of eth2, 10.4.0.5 of eth3, 10.5.0.5 of eth4, 2001:db8::5 of eth0")
}

func TestInOrder(t *testing.T) {
	a := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	mine := host("eth0", "10.0.0.5/24", "eth1", "2001:db8::5/64")
	require.Equal(t, []netip.Addr{a("10.0.0.9"), a("2001:db8::9"), a("10.9.0.9"), a("2001:db9::9")},
		inOrder([]netip.Addr{a("10.9.0.9"), a("10.0.0.9"), a("2001:db9::9"), a("2001:db8::9")}, mine))
}

func TestPorts(t *testing.T) {
	here := host("lo", "127.0.0.1/8")
	var first uint16
	t.Run("range", func(t *testing.T) {
		var err error
		l, port, err := listen(here, env.PortRange{}, 0, nil)
		require.NoError(t, err)
		defer l[0].Close()
		first = port
		_, _, err = listen(here, env.PortRange{First: port, Last: port}, 7, nil)
		require.ErrorIs(t, err, fault.ErrLimit)
		require.ErrorContains(t, err, "UBCOLL_PORTS=")
		require.ErrorContains(t, err, "interface lo")
	})
	l, port, err := listen(here, env.PortRange{First: first, Last: first}, 7, nil)
	require.NoError(t, err)
	require.Equal(t, first, port)
	l[0].Close()
	_, _, err = listen(host("eth9", "203.0.113.1/24"), env.PortRange{}, 0, nil)
	require.ErrorContains(t, err, "interface eth9")
}

// Addresses that cannot be used yet are left out, but not the last one.
func TestListenLeaves(t *testing.T) {
	no := host("eth9", "203.0.113.1/24")
	var left []string
	leave := func(l local, err error) {
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		left = append(left, l.name)
	}
	for _, on := range [][]local{append(host("lo", "127.0.0.1/8"), no...), append(no[:1:1], host("lo", "127.0.0.1/8")...)} {
		left = nil
		l, port, err := listen(on, env.PortRange{}, 0, leave)
		require.NoError(t, err)
		require.Equal(t, []string{"eth9"}, left)
		require.Len(t, l, 1)
		require.EqualValues(t, l[0].Addr().(*stdnet.TCPAddr).Port, port)
		l[0].Close()
		_, _, err = listen(on, env.PortRange{}, 0, nil)
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	}
	_, _, err := listen(append(no[:1:1], no...), env.PortRange{}, 0, leave)
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
}

func TestNewErrors(t *testing.T) {
	_, err := New(transport.Config{Secret: []byte("short")})
	require.ErrorIs(t, err, fault.ErrArgument)
	t.Setenv("UBCOLL_NET", "nothing0")
	_, err = New(transport.Config{Secret: secretOf(t)})
	require.ErrorIs(t, err, fault.ErrArgument)
	require.ErrorContains(t, err, "UBCOLL_NET: no interface nothing0")
	t.Setenv("UBCOLL_NET", "lo")
	t.Setenv("UBCOLL_PORTS", "5-4")
	_, err = New(transport.Config{Secret: secretOf(t)})
	require.ErrorContains(t, err, "UBCOLL_PORTS")
}

func secretOf(testing.TB) []byte { return make([]byte, 16) }

func TestRow(t *testing.T) {
	r := Row{Port: 4000, PID: int32(os.Getpid()), Start: 1 << 40, Key: [32]byte{1, 2, 3}}
	for _, s := range []string{"10.0.0.5", "2001:db8::5", "127.0.0.1", "::1"} {
		r.Addrs = append(r.Addrs, netip.MustParseAddr(s))
		b := r.Append([]byte("before"))
		require.LessOrEqual(t, len(b)-6, transport.MaxRow)
		got, err := ParseRow(b[6:])
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
}

// FuzzRow: a row that parses is the same after Append and ParseRow.
func FuzzRow(f *testing.F) {
	r := Row{Port: 4000, PID: 7, Start: 9, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("::1")}}
	f.Add(r.Append(nil))
	f.Add(make([]byte, transport.MaxRow))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRow(b)
		if err != nil {
			require.ErrorIs(t, err, fault.ErrMismatch)
			return
		}
		again, err := ParseRow(r.Append(nil))
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}
