package net

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/transport"
)

// Rails are pairs of addresses in a subnet, one for each interface and subnet.
func TestRailsTo(t *testing.T) {
	for _, k := range []struct {
		name   string
		on     []local
		theirs string
		want   string
	}{
		{"no interfaces named", nil, "10.0.0.2 10.1.0.2", ""},
		{"two networks", host("eth0", "10.0.0.1/24", "eth1", "10.1.0.1/24"), "10.0.0.2 10.1.0.2", "eth0>10.0.0.2 eth1>10.1.0.2"},
		{"in our order", host("eth1", "10.1.0.1/24", "eth0", "10.0.0.1/24"), "10.0.0.2 10.1.0.2", "eth1>10.1.0.2 eth0>10.0.0.2"},
		{"one interface, both families", host("eth0", "10.0.0.1/24", "eth0", "fd77::1/64"), "10.0.0.2 fd77::2", ""},
		{"two of both", host("eth0", "10.0.0.1/24", "eth1", "10.1.0.1/24", "eth0", "fd77::1/64", "eth1", "fd78::1/64"),
			"10.0.0.2 10.1.0.2 fd77::2 fd78::2", "eth0>10.0.0.2 eth1>10.1.0.2"},
		{"the second network has IPv6 alone", host("eth0", "10.0.0.1/24", "eth1", "fd78::1/64"), "10.0.0.2 fd77::2 fd78::2", "eth0>10.0.0.2 eth1>fd78::2"},
		{"the peer has one", host("eth0", "10.0.0.1/24", "eth1", "10.1.0.1/24"), "10.0.0.2", ""},
		{"the peer's second is elsewhere", host("eth0", "10.0.0.1/24", "eth1", "10.1.0.1/24"), "10.0.0.2 10.2.0.2", ""},
		{"two interfaces in one subnet", host("eth0", "10.0.0.1/16", "eth1", "10.0.1.1/16"), "10.0.0.2 10.0.1.2", ""},
		{"none in common", host("eth0", "10.0.0.1/32", "eth1", "10.1.0.1/32"), "10.0.0.2 10.1.0.2", ""},
		{"three", host("a", "10.0.0.1/24", "b", "10.1.0.1/24", "c", "10.2.0.1/24"), "10.2.0.2 10.1.0.2 10.0.0.2", "a>10.0.0.2 b>10.1.0.2 c>10.2.0.2"},
	} {
		t.Run(k.name, func(t *testing.T) {
			var theirs []netip.Addr
			for _, s := range strings.Fields(k.theirs) {
				theirs = append(theirs, netip.MustParseAddr(s))
			}
			var got []string
			for _, r := range railsTo(k.on, theirs) {
				got = append(got, r.from.name+">"+r.to.String())
			}
			require.Equal(t, k.want, strings.Join(got, " "))
		})
	}
}

// Over two rails there are as many connections as rails, or as the table says, on both in turn. Both ends see the same.
func TestRails(t *testing.T) {
	for _, k := range []struct {
		connections int
		want        []int
	}{{0, []int{0, 1}}, {2, []int{0, 1}}, {5, []int{0, 1, 0, 1, 0}}} {
		twoRails(t)
		a, _ := nodeWith(t, transport.Config{Rank: 0, Connections: k.connections})
		b, _ := nodeWith(t, transport.Config{Rank: 1})
		ab, ba := connect(t, a, b)
		for _, w := range []*Wire{ab, ba} {
			var got []int
			for i := range w.data {
				got = append(got, w.data[i].rail)
			}
			require.Equal(t, k.want, got)
			require.Equal(t, "tcp rail0, rail1", w.name)
			for p := range 10 {
				require.Zero(t, w.data[w.home(p)].rail)
			}
		}
		closeAll(t, a, b)
	}
}
