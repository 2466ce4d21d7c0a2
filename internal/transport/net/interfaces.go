package net

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	stdnet "net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/nearest"
)

// local is an address of this host, on one of its interfaces.
type local struct {
	name   string
	prefix netip.Prefix
	up     bool
}

func (l local) loopback() bool { return l.prefix.Addr().IsLoopback() }

// locals returns this host's addresses, except link-local ones, which mean nothing without their interface.
var locals = func() ([]local, error) {
	all, err := stdnet.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("network: interfaces: %w", limit(err))
	}
	var found []local
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface is gone
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast() {
				continue
			}
			found = append(found, local{i.Name, p, i.Flags&stdnet.FlagUp != 0})
		}
	}
	return found, nil
}

// interfaceOf returns the name of this host's interface with that address, or the address itself if it is gone.
func interfaceOf(a netip.Addr) string {
	all, _ := locals()
	for _, l := range all {
		if l.prefix.Addr() == a {
			return l.name
		}
	}
	return a.String()
}

// chosen returns the addresses to listen on, IPv4 first: all addresses that the variable's words name; without words,
// the first MaxAddrs of interfaces that are up, with loopback only if there is nothing else. rest are those beyond
// MaxAddrs.
func chosen(all []local, words []string) (found, rest []local, _ error) {
	for _, w := range words {
		some, err := named(all, w)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", env.Net.Name, err)
		}
		for _, l := range some {
			if !slices.Contains(found, l) {
				found = append(found, l)
			}
		}
	}
	if len(words) == 0 {
		for _, l := range all {
			if l.up && !l.loopback() {
				found = append(found, l)
			}
		}
		if len(found) == 0 {
			for _, l := range all {
				if l.up {
					found = append(found, l)
				}
			}
		}
	}
	if len(found) == 0 {
		return nil, nil, fmt.Errorf("network: this host has no interface that is up and has an address: %w", fault.ErrNotSupported)
	}
	slices.SortStableFunc(found, func(a, b local) int { return cmp.Compare(a.prefix.Addr().BitLen(), b.prefix.Addr().BitLen()) })
	n := min(len(found), MaxAddrs)
	if n < len(found) && len(words) > 0 {
		return nil, nil, fmt.Errorf("%s=%s: these are %d addresses, and a rank listens on %d at most: name fewer of %s: %w",
			env.Net.Name, strings.Join(words, ","), len(found), n, list(found), fault.ErrArgument)
	}
	return found[:n], found[n:], nil
}

// OnInterface returns a function that reports whether an address is this host's, on an interface that a node would listen on:
// see UBCOLL_NET. The function is safe for concurrent use, and does not notice later changes. Errors are those of Listen about
// interfaces.
func OnInterface() (func(netip.Addr) bool, error) {
	words, err := env.Net.Get()
	if err != nil {
		return nil, err
	}
	all, err := locals()
	if err != nil {
		return nil, err
	}
	on, _, err := chosen(all, words)
	if err != nil {
		return nil, err
	}
	return func(a netip.Addr) bool {
		return slices.ContainsFunc(on, func(l local) bool { return l.prefix.Addr() == a.Unmap() })
	}, nil
}

// list lists addresses: "10.0.0.5 of eth0, 10.1.0.5 of eth1".
func list(addrs []local) string {
	var all []string
	for _, l := range addrs {
		all = append(all, fmt.Sprintf("%v of %s", l.prefix.Addr(), l.name))
	}
	return strings.Join(all, ", ")
}

// named returns the addresses that a word stands for: an interface, a subnet, or an address.
func named(all []local, word string) ([]local, error) {
	subnet, err := netip.ParsePrefix(word)
	if err != nil {
		if a, err := netip.ParseAddr(word); err == nil {
			subnet = netip.PrefixFrom(a, a.BitLen())
		}
	}
	var found []local
	var names, addrs []string
	var down bool
	for _, l := range all {
		if l.name == word || subnet.IsValid() && subnet.Contains(l.prefix.Addr()) {
			if l.up {
				found = append(found, l)
			} else {
				down = true
			}
		}
		if !slices.Contains(names, l.name) {
			names = append(names, l.name)
		}
		addrs = append(addrs, l.prefix.Addr().String())
	}
	switch {
	case len(found) > 0:
		return found, nil
	case down:
		return nil, fmt.Errorf("%s is down: %w", word, fault.ErrArgument)
	case subnet.IsValid():
		return nil, fmt.Errorf("no address of this host is in %s: it has %s: %w", word, strings.Join(addrs, ", "), fault.ErrArgument)
	}
	if i, err := stdnet.InterfaceByName(word); err == nil {
		return nil, fmt.Errorf("interface %s has no address to use: %w", i.Name, fault.ErrArgument)
	}
	hint := ""
	if near := nearest.Word(word, names); near != "" {
		hint = fmt.Sprintf(" (did you mean %s?)", near)
	}
	return nil, fmt.Errorf("no interface %s%s, and it is no subnet; those with addresses are %s: %w", word, hint,
		strings.Join(names, ", "), fault.ErrArgument)
}

// inOrder puts addresses first that are in one of this host's subnets.
func inOrder(addrs []netip.Addr, mine []local) []netip.Addr {
	far := func(a netip.Addr) int {
		if slices.ContainsFunc(mine, func(l local) bool { return l.prefix.Contains(a) }) {
			return 0
		}
		return 1
	}
	addrs = slices.Clone(addrs)
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return far(a) - far(b) })
	return addrs
}

// listen listens on one port of all addresses, a port of the range; each rank starts the search elsewhere. If leave is
// not nil, listen reports an address to it and skips the address if it cannot be used yet (like an IPv6 address that
// the system still checks for duplicates), except that one address must remain.
func listen(on []local, ports env.PortRange, rank int, leave func(l local, err error)) ([]stdnet.Listener, uint16, error) {
	tries := int(ports.Last) - int(ports.First) + 1
	any := ports == env.PortRange{}
	if any {
		tries = 16 // a port that the system chooses for one address may be in use on another
	}
	var last error
	for i := range tries {
		port := uint16(0)
		if !any {
			port = ports.First + uint16((rank+i)%tries)
		}
		ls, port, err := listenAt(on, port, leave)
		if err == nil {
			return ls, port, nil
		}
		last = err
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if errors.Is(last, syscall.EADDRINUSE) && !any {
		return nil, 0, fmt.Errorf("%s=%v: every port of it is in use: %w: %w", env.Ports.Name, ports, last, fault.ErrLimit)
	}
	return nil, 0, fmt.Errorf("network: %w", limit(last))
}

func listenAt(on []local, port uint16, leave func(l local, err error)) (ls []stdnet.Listener, _ uint16, err error) {
	var plain stdnet.ListenConfig
	plain.SetMultipathTCP(false) // no rank dials it, and its sockets take no filter: see Node.Cut
	for i, l := range on {
		network := "tcp4"
		if l.prefix.Addr().Is6() {
			network = "tcp6"
		}
		x, err := plain.Listen(context.Background(), network, netip.AddrPortFrom(l.prefix.Addr(), port).String())
		switch {
		case errors.Is(err, syscall.EADDRNOTAVAIL) && leave != nil && (len(ls) > 0 || i < len(on)-1):
			leave(l, err)
			continue
		case err != nil:
			for _, x := range ls {
				x.Close()
			}
			return nil, 0, fmt.Errorf("interface %s: %w", l.name, err)
		}
		ls = append(ls, x)
		port = uint16(x.Addr().(*stdnet.TCPAddr).Port)
	}
	return ls, port, nil
}
