package net

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/rdm"
)

// rails is what a node has of libfabric.
type rails struct {
	mu  sync.Mutex
	all []*rdm.Rail
}

// datagrams makes this side's connections over libfabric, one on each rail, and adds them to the offer. What cannot be made is
// not offered: err says why.
func (n *Node) datagrams(o offer) (conns []device, err error) {
	r := &n.ofi
	r.mu.Lock()
	if r.all == nil {
		for i, on := range n.config.OFI.Rails() {
			r.all = append(r.all, rdm.Open(on, i, n.poll.queue))
		}
	}
	all := r.all
	r.mu.Unlock()
	o.over(all[0].Provider())
	for _, rail := range all {
		c, a, failure := rdm.New(rail, n.config.Find)
		if failure != nil {
			err = errors.Join(err, failure)
			continue
		}
		o.add(rail.Index(), a)
		conns = append(conns, c)
	}
	return conns, err
}

// stuck ends the wire if nothing of what was sent over a domain of libfabric completes for the time limit, although the peer's
// process runs, which it says on the control connection: that way is lost, and many providers do not tell.
func (w *Wire) stuck(now time.Time) {
	limit := w.node.config.Timeout
	for i := range w.data {
		d := &w.data[i]
		c, ok := d.Conn.(*rdm.Conn)
		if !ok || w.ended.Load() {
			return
		}
		waits, acts := c.Waits()
		switch {
		case !waits || acts != d.acts:
			d.acts, d.since, d.asked, d.left = acts, now, time.Time{}, clock.Deadline{}
		case now.Sub(d.since) < limit/2:
		case d.asked.IsZero():
			d.asked = now
			w.control.tell(controlAsk, nil, false)
		case w.answered.Load() < d.asked.UnixNano():
		case d.left == clock.Deadline{}: // what the peer has not done while it was stopped, it may do now
			d.left = clock.In(limit / 2)
		case d.left.Passed():
			w.cut(lostRail(fmt.Sprintf("no answer over %s for %v (%s)", c.Device(), limit, env.NetTimeout.Name)))
			return
		}
	}
}

// close closes the rails, after all connections.
func (r *rails) close() error {
	var errs []error
	for _, rail := range r.all {
		errs = append(errs, rail.Close())
	}
	return errors.Join(errs...)
}

// offer is what a side offers: the kind (1), a hash of the provider's name (4), the number of connections (1), and of each the
// device's index (1) and the address, with room for MostConnections.
type offer []byte

const (
	offerHead   = 1 + 4 + 1
	addressSize = max(ib.AddressSize, rdm.AddressSize)
	offerEach   = 1 + addressSize
	offerSize   = offerHead + transport.MostConnections*offerEach
)

// The kinds of offers.
const (
	offerNone = iota
	offerVerbs
	offerOFI
)

// newOffer returns an empty offer of what devices says.
func newOffer(devices string) offer {
	o := make(offer, offerSize)
	switch devices {
	case "verbs":
		o[0] = offerVerbs
	case "ofi":
		o[0] = offerOFI
	}
	return o
}

// over says whose addresses they are: one provider's mean nothing to another.
func (o offer) over(provider string) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(provider))
	binary.LittleEndian.PutUint32(o[1:], h.Sum32())
}

// add adds a connection.
func (o offer) add(index int, addr []byte) {
	b := o[offerHead+int(o[5])*offerEach:]
	b[0] = byte(index)
	copy(b[1:], addr)
	o[5]++
}

func (o offer) count() int { return int(o[5]) }

// same reports whether two offers are of the same kind and provider.
func (o offer) same(b offer) bool { return string(o[:5]) == string(b[:5]) }

func (o offer) kind() string {
	switch o[0] {
	case offerVerbs:
		return "RDMA"
	case offerOFI:
		return fmt.Sprintf("libfabric (provider %08x)", binary.LittleEndian.Uint32(o[1:]))
	}
	return fmt.Sprintf("what this version does not know (%d)", o[0])
}

// addresses returns the addresses of each device.
func (o offer) addresses() (of map[int][][]byte, err error) {
	if o.count() > transport.MostConnections {
		return nil, fmt.Errorf("an offer of %d connections: %w", o.count(), errStranger)
	}
	of = map[int][][]byte{}
	for b := o[offerHead:][:o.count()*offerEach]; len(b) > 0; b = b[offerEach:] {
		of[int(b[0])] = append(of[int(b[0])], b[1:offerEach:offerEach])
	}
	return of, nil
}
