package net

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/transport/net/tcp"
)

// rail is a way to a peer: an address of this host that UBCOLL_NET names, and one of the peer's in the same subnet.
type rail struct {
	from local
	to   netip.Addr
}

// railsTo returns the rails to a peer, in the order of on; nil if there are not several. An interface or a subnet has one,
// whatever the number of its addresses: both carry no more for it.
func railsTo(on []local, theirs []netip.Addr) (all []rail) {
	for _, l := range on {
		taken := func(r rail) bool { return r.from.name == l.name || r.from.prefix.Masked() == l.prefix.Masked() }
		if i := slices.IndexFunc(theirs, l.prefix.Contains); i >= 0 && !slices.ContainsFunc(all, taken) {
			all = append(all, rail{l, theirs[i]})
		}
	}
	if len(all) < 2 {
		return nil
	}
	return all
}

// blame names the rail in the error of a connection over it, and says what helps if the rail is no way to the peer.
func (r *rail) blame(err error) error {
	err = fmt.Errorf("interface %s (%v): %w", r.from.name, r.from.prefix.Addr(), err)
	if noRoute(err) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, errSmallOnly) {
		err = fmt.Errorf("%w; both hosts have an address of %v, and %s names it on both: name fewer interfaces there if these carry nothing",
			err, r.from.prefix.Masked(), env.Net.Name)
	}
	return err
}

// path is the addresses of a connection.
type path struct{ here, there netip.Addr }

// lay finds out over which rails the wire's connections go. Both ends see the same ones.
func (w *Wire) lay(fds []int) {
	var rails []path
	var names []string
	for i := range w.data {
		at, _ := pathOf(fds[1+i]) // an error means that the connection has ended, and so will its wire
		d := &w.data[i]
		if d.rail = slices.Index(rails, at); d.rail < 0 {
			d.rail = len(rails)
			rails = append(rails, at)
			if name := interfaceOf(at.here); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if d.rail == 0 {
			w.homes = append(w.homes, i)
		}
	}
	w.rails, w.name = rails, "tcp "+strings.Join(names, ", ")
}

// home is the connection that a place belongs to: one of the first rail's, which UBCOLL_NET names first.
func (w *Wire) home(place int) int { return w.homes[place%len(w.homes)] }

// choose returns the connection that a put takes. All to a place takes the same one, so that it stays in order, but for
// a long put that answers a grant: until the peer grants again, nothing else of the place is under way. A put that
// answers none may still be under way then, so another one follows it. The caller holds putting.
func (l *Link) choose(w *Wire, h tcp.Header) int {
	x := &l.places[h.Place].theirs
	answers := h.Seq == x.granted.Load()
	if free := answers && !x.behind; free || x.by == 0 {
		by := w.home(int(h.Place))
		if free && len(w.rails) > 1 && h.Length > tcp.Short {
			by = w.soonest(int(h.Length))
		}
		x.by = uint8(by + 1)
	}
	x.behind = !answers
	return int(x.by) - 1
}

// soonest returns the connection on which a put of n bytes ends first.
func (w *Wire) soonest(n int) int {
	return (int(w.next.Add(1)) % len(w.data))
}
