package enginetest

import "github.com/ubcoll/ubcoll/bootstrap"

// Hosts returns bs with each rank on the host that name returns for it.
func Hosts(bs []bootstrap.Bootstrap, name func(rank int) string) []bootstrap.Bootstrap {
	on := make([]bootstrap.Bootstrap, len(bs))
	for i, b := range bs {
		on[i] = Host(b, name(b.Rank()))
	}
	return on
}

// Host returns b with its rank on host name.
func Host(b bootstrap.Bootstrap, name string) bootstrap.Bootstrap {
	if x, ok := b.(bootstrap.Exchanger); ok {
		return struct {
			bootstrap.Bootstrap
			bootstrap.Exchanger
			host
		}{b, x, host(name)}
	}
	return struct {
		bootstrap.Bootstrap
		host
	}{b, host(name)}
}

type host string

// Host implements bootstrap.Hoster.
func (h host) Host() string { return string(h) }
