package ofi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/nearest"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// MostRails is how many domains a backend that [Open] makes has at most: as many as there may be RDMA devices.
const MostRails = mr.MostNICs

// limit is how long Open waits for providers to list their domains.
const limit = 10 * time.Second

// Config says which domains a backend uses.
type Config struct {
	Provider string // see fabric.Description.Matches; "": any
	Domain   string // "": any
	// Prefer has names of providers, best first, as Provider's. Others come behind them.
	Prefer []string
	// Local reports whether an address of this host is in use. Domains of IP networks whose address is not are left out. nil:
	// all addresses are.
	Local    func(netip.Addr) bool
	Messages bool // [Rail.Messages]
	// Keep, if not nil, is called for memory that a provider has failed to deregister: see [New].
	Keep func(register.Memory)
	Log  *slog.Logger // or nil; told of each provider that is passed over because it fails
}

// Open opens domains of one provider, the first in the order of Prefer, and then of libfabric, that has one to use: up to
// MostRails, in the order of their names. A provider of which a domain fails to open is passed over.
// The backend owns all that: its Close closes them. It may block for as long as providers take to look for their devices, 10
// seconds at most: then the error is fault.ErrTimeout. fault.ErrNotSupported says why there is nothing to use: no library, no
// such provider or domain, or what is wrong with each. Other errors are those of the provider that failed.
func Open(ctx context.Context, c Config) (*Backend, error) {
	ctx, cancel := clock.WithTimeout(ctx, limit, fmt.Errorf("within %v: %w", limit, fault.ErrTimeout))
	defer cancel()
	infos, refused, err := fabric.List(ctx, c.Provider, c.Domain)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, all := range c.providers(infos) {
		some := c.choose(all)
		if len(some) == 0 {
			continue
		}
		b, err := c.open(some)
		if err == nil {
			for _, err := range failed {
				if c.Log != nil {
					c.Log.Warn("ubcoll: a provider of libfabric is passed over", "used", some[0].Provider, "error", err)
				}
			}
			return b, nil
		}
		failed = append(failed, err)
	}
	if failed != nil {
		return nil, errors.Join(failed...)
	}
	return nil, c.none(ctx, infos, refused)
}

// providers returns the ways of each provider, the best one first.
func (c *Config) providers(infos []*fabric.Info) (all [][]*fabric.Info) {
	index := map[string]int{}
	for _, i := range infos {
		at, ok := index[i.Provider]
		if !ok {
			at = len(all)
			index[i.Provider] = at
			all = append(all, nil)
		}
		all[at] = append(all[at], i)
	}
	place := func(ways []*fabric.Info) int {
		if i := slices.IndexFunc(c.Prefer, ways[0].Matches); i >= 0 {
			return i
		}
		return len(c.Prefer)
	}
	slices.SortStableFunc(all, func(x, y []*fabric.Info) int { return cmp.Compare(place(x), place(y)) })
	return all
}

// choose returns the ways to use of one provider's: one for each domain, since providers may list one for each address.
func (c *Config) choose(ways []*fabric.Info) (chosen []*fabric.Info) {
	for _, i := range ways {
		if c.useless(i) != "" {
			continue
		}
		at := slices.IndexFunc(chosen, func(x *fabric.Info) bool { return x.Domain == i.Domain })
		switch {
		case at < 0:
			chosen = append(chosen, i)
		case i.Address.IsValid() && !chosen[at].Address.IsValid(): // the interface in use says which network it is
			chosen[at] = i
		}
	}
	slices.SortStableFunc(chosen, func(x, y *fabric.Info) int { return cmp.Compare(x.Domain, y.Domain) })
	return chosen[:min(len(chosen), MostRails)]
}

// useless says why a way is of no use, or "".
func (c *Config) useless(i *fabric.Info) string {
	switch {
	case i.Down:
		return "its link is down"
	case i.MRMode.Has(fabric.MREndpoint): // an endpoint with registrations does not close, and a broken path must be closed
		return "its registrations belong to endpoints, which this version does not serve yet"
	case c.Provider == "" && strings.HasSuffix(i.Provider, ";ofi_rxd"):
		return "it may lose and mix up bytes (" + i.Core() + " before libfabric 2.4): only if it is named"
	case i.Address.IsValid() && c.Local != nil && !c.Local(i.Address):
		return "it is on no interface in use (" + env.Net.Name + ")"
	}
	return ""
}

func (c *Config) open(ways []*fabric.Info) (*Backend, error) {
	b := New(nil, c.Keep)
	b.own = true
	for _, i := range ways {
		d, err := fabric.Open(i)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open %v: %w", &i.Description, err), b.Close())
		}
		b.rails = append(b.rails, Rail{Domain: d, Messages: c.Messages})
	}
	return b, nil
}

// none says why nothing of what has been listed can be used.
func (c *Config) none(ctx context.Context, infos []*fabric.Info, refused []fabric.Refused) error {
	var why []string
	for _, i := range infos {
		why = append(why, fmt.Sprintf("%v: %s", &i.Description, c.useless(i)))
	}
	for _, r := range refused {
		why = append(why, fmt.Sprintf("%v: %v", &r.Description, r.Why))
	}
	if why != nil {
		return fmt.Errorf("libfabric has no domain to use (%s): %w", strings.Join(why, "; "), hw.ErrNotSupported)
	}
	infos, refused, err := fabric.List(ctx, "", "")
	if err != nil {
		return err
	}
	var all []fabric.Description
	for _, i := range infos {
		all = append(all, i.Description)
	}
	for _, r := range refused {
		all = append(all, r.Description)
	}
	var providers, domains []string
	for _, d := range all {
		providers = append(providers, d.Core())
		if d.Matches(c.Provider) {
			domains = append(domains, d.Domain)
		}
	}
	distinct := func(names []string) []string {
		slices.Sort(names)
		return slices.Compact(names)
	}
	switch {
	case len(all) == 0:
		return fmt.Errorf("libfabric has no provider that finds a device here: %w", hw.ErrNotSupported)
	case len(domains) == 0:
		return fmt.Errorf("libfabric: %s: %w", nearest.Unknown("provider", c.Provider, distinct(providers)), hw.ErrNotSupported)
	}
	of := ""
	if c.Provider != "" {
		of = " of " + c.Provider
	}
	return fmt.Errorf("libfabric: %s: %w", nearest.Unknown("domain"+of, c.Domain, distinct(domains)), hw.ErrNotSupported)
}
