package net

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
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

// path is the addresses of a connection, and the name of this host's interface.
type path struct {
	here, there netip.Addr
	name        string
}

// String names both ends, alike on both.
func (p path) String() string {
	a, b := p.here, p.there
	if b.Less(a) {
		a, b = b, a
	}
	return fmt.Sprintf("%s, between %v and %v,", p.name, a, b)
}

// lay finds out over which rails the wire's connections go, or which NICs. Both ends see the same ones.
func (w *Wire) lay(fds []int, pairs []device) {
	var names []string
	on := func(fd int) int { // an error means that the connection has ended, and so will its wire
		at, _ := pathOf(fd)
		i := slices.IndexFunc(w.rails, func(p path) bool { return p.here == at.here && p.there == at.there })
		if i < 0 {
			i, at.name = len(w.rails), interfaceOf(at.here)
			w.rails = append(w.rails, at)
		}
		return i
	}
	if w.rdma != nil { // the only rail is the control connection's
		on(fds[0])
		for i, c := range pairs {
			if c.Index() == pairs[0].Index() {
				w.homes = append(w.homes, i)
			}
			if name := c.Device(); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		w.name, w.several = w.node.devices()+" "+strings.Join(names, ", "), len(names) > 1
		return
	}
	for i := range w.data {
		d := &w.data[i]
		if d.rail = on(fds[1+i]); d.rail == 0 {
			w.homes = append(w.homes, i)
		}
		if name := w.rails[d.rail].name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if w.name = "tcp " + strings.Join(names, ", "); w.node.devices() != "" {
		w.name += " instead of " + w.node.devices()
	}
	if w.several = len(w.rails) > 1; !w.several {
		return
	}
	w.control.rail = on(fds[0])
	for i := range w.data {
		if d := &w.data[i]; d.rail != w.control.rail {
			d.apart = probe(fds[1+i]) == nil
		}
	}
}

// severed ends the wire if a rail has not answered for the time limit. The control connection sees to its own.
func (w *Wire) severed(now time.Time) {
	if len(w.rails) == 1 || w.ended.Load() {
		return
	}
	for i := range w.data {
		d := &w.data[i]
		if !d.apart {
			continue
		}
		waits, heard := d.Unanswered()
		switch {
		case !waits:
			d.since = time.Time{}
		case d.since.Before(now.Add(-heard)): // something has come since
			d.since = now
		case now.Sub(d.since) > w.node.config.Timeout && !w.control.silent(): // else the host may be gone, and not this rail alone
			w.cut(lostRail(w.noAnswer(d.rail)))
			return
		}
	}
}

// noAnswer says that a rail has not answered.
func (w *Wire) noAnswer(rail int) string {
	return fmt.Sprintf("no answer over %v for %v (%s)", w.rails[rail], w.node.config.Timeout, env.NetTimeout.Name)
}

// lostRail is the error about a rail that does not answer, or a queue pair that has failed, in the words of the end that has
// found it.
type lostRail string

// Error implements error.
func (e lostRail) Error() string { return string(e) }

// home is the connection that a place belongs to: one of the first NIC's, or of the first rail's, which UBCOLL_NET names first.
func (w *Wire) home(place int) int { return w.homes[place%len(w.homes)] }

// choose returns the connection that a put takes. All to a place takes the same one, so that it stays in order, but for
// a long put that answers a grant: until the peer grants again, nothing else of the place is under way. A put that
// answers none may still be under way then, so another one follows it. The caller holds putting.
func (l *Link) choose(w *Wire, h frame.Header) int {
	x := &l.places[h.Place].theirs
	answers := h.Seq == x.granted.Load()
	if free := answers && !x.behind; free || x.by == 0 {
		by := w.home(int(h.Place))
		if free && w.several && h.Length > frame.Short {
			by = w.soonest(int(h.Length))
		}
		x.by = uint8(by + 1)
	}
	x.behind = !answers
	return int(x.by) - 1
}

// pace is how fast a data connection is beside the others: what the peer has acknowledged while all were busy. So it does
// not matter that connections need a while to get going, nor that the peer reads nothing for a while, or slowly.
type pace struct {
	acked   uint64  // bytes, at the last look
	waiting int     // bytes that were not, with those put since
	share   float64 // bytes that count; the older, the less
	last    float64 // Wire.chosen when it last got a put
}

const (
	little  = 64 << 10 // a connection that waits for no more is not busy: grants, and what the peer's kernel acknowledges late
	known   = 4 << 20  // bytes of all from which on shares are known; before, connections count as equally fast
	horizon = 32 << 20 // bytes after which what was before counts half
	retry   = 100      // a connection that had nothing for so many times as long as a put takes there gets one: it may have become faster. That costs a hundredth of the time
	least   = 1. / 64  // of all: a smaller share does not make it wait longer
)

// measure looks at all connections.
func (w *Wire) measure() (sum float64) {
	var now [transport.MostConnections]pace
	for i := range w.data {
		now[i].waiting, now[i].acked = w.data[i].Load()
	}
	return w.learn(&now)
}

// learn counts what connections have carried since the last look, if all were busy, and returns the sum of the shares.
func (w *Wire) learn(now *[transport.MostConnections]pace) (sum float64) {
	total, before, busy := 0.0, 0.0, false
	for i := range w.data {
		total += float64(now[i].acked - w.data[i].pace.acked)
		before += w.data[i].pace.share
		busy = busy || now[i].waiting > little
	}
	for i := range w.data {
		x := &w.data[i].pace
		faster := float64(now[i].acked-x.acked)*before > x.share*total // one that has finished could have carried more
		busy = busy && x.waiting > little && (now[i].waiting > little || faster)
	}
	for i := range w.data {
		x := &w.data[i].pace
		if busy {
			x.share += float64(now[i].acked - x.acked)
		}
		if before > horizon {
			x.share /= 2
		}
		x.acked, x.waiting = now[i].acked, now[i].waiting
		sum += x.share
	}
	return sum
}

// soonest returns the connection on which a put of n bytes ends first.
func (w *Wire) soonest(n int) int {
	w.pacing.Lock()
	defer w.pacing.Unlock()
	sum := w.measure()
	best, soon := 0, math.Inf(1)
	for i := range w.data {
		x := &w.data[i].pace
		share := 1.0
		if sum > known {
			share = max(x.share/sum, least)
		}
		takes := float64(x.waiting+n) / share
		if sum > known && x.waiting <= little && w.chosen-x.last > retry*float64(n)/share {
			takes = 0
		}
		if takes < soon {
			best, soon = i, takes
		}
	}
	x := &w.data[best].pace
	if soon == 0 { // what was known counts little beside what is measured now
		for i := range w.data {
			w.data[i].pace.share *= known / sum
		}
	}
	w.chosen += float64(n)
	x.last, x.waiting = w.chosen, x.waiting+n
	return best
}
