package net

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/verbs"
	"github.com/ubcoll/ubcoll/register"
)

// On the control connection both sides offer connections over devices: queue pairs, some on each of their NICs, or one on the
// endpoint of each domain of libfabric, with its index; rail i talks to rail i.
// On each as many as the lesser of the two sides has are connected, and both ping over each. Those for which all of that has
// worked at both sides carry the data; then there are no data connections of TCP. Each side writes before it reads:
//
//	offer   see there
//	state   one byte: the connections that are made, by bits
//	state   one byte: those that have pinged

const pingLimit = 2 * time.Second

// device is a data connection over devices that reach registered memory themselves.
type device interface {
	frame.Conn
	Index() int     // of the device in its backend
	Device() string // its name
	// Meet connects it to the peer's end, which has that address. It may wait for the system.
	Meet(addr []byte, name string) error
	// Ping waits for the peer's ping. It is called once, first.
	Ping(ctx context.Context) error
	// Landing returns what the peer needs to write to n bytes, and the claim on them, to be released after that; nil: it
	// cannot.
	Landing(p unsafe.Pointer, n int) (frame.Landing, *register.Claim)
	// Broken reports whether the next Receive is an error, which nothing else tells.
	Broken() bool
}

// devices is what wires of this node go over, where both sides can: "ofi", "verbs", or "" for TCP.
func (n *Node) devices() string {
	switch {
	case n.config.OFI != nil:
		return "ofi"
	case n.config.NICs != nil:
		return "verbs"
	}
	return ""
}

// most is how many connections over devices a wire of this node has at most.
func (n *Node) most() int {
	if n.config.OFI != nil {
		return len(n.config.OFI.Rails())
	}
	_, each := n.config.NICs.Wires()
	return min(each*len(n.config.NICs.NICs()), transport.MostConnections)
}

// rdma is what a node has of RDMA.
type rdma struct {
	mu       sync.Mutex
	nics     []*verbs.NIC // those of use, once a pair was made
	err      error        // why the others are of none
	told     sync.Once
	lacks    sync.Once
	watching sync.WaitGroup // counts the goroutines that watch them
}

// nics returns the NICs that pairs are made on, and why others are of no use.
func (n *Node) nics() ([]*verbs.NIC, error) {
	r := &n.rdma
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nics == nil && r.err == nil {
		path, _ := n.config.NICs.Wires()
		for i, on := range n.config.NICs.NICs() {
			path.Port = on.Ports[0]
			nic, err := verbs.Open(on.PD, i, path)
			if err != nil {
				r.err = errors.Join(r.err, err)
				continue
			}
			r.nics = append(r.nics, nic)
			r.watching.Go(func() { n.watch(nic) })
		}
	}
	return r.nics, r.err
}

// watch ends all wires over a NIC once that is of no use.
func (n *Node) watch(nic *verbs.NIC) {
	err := nic.Watch(n.ctx)
	if err == nil {
		return
	}
	for _, w := range n.all() {
		if w.apart && slices.ContainsFunc(w.every(), func(d *data) bool { return d.Conn.(device).Index() == nic.Index() }) {
			w.cut(lostRail(fmt.Sprintf("of rank %d: %v", n.config.Rank, err)))
		}
	}
}

// close closes the NICs, after all connections. The node's ctx has ended.
func (r *rdma) close() error {
	r.watching.Wait()
	var errs []error
	for _, nic := range r.nics {
		errs = append(errs, nic.Close())
	}
	return errors.Join(errs...)
}

// queuePairs makes this side's queue pairs, and their offer. What cannot be made is not offered: err says why.
func (n *Node) queuePairs(o offer) (pairs []device, err error) {
	nics, err := n.nics()
	_, count := n.config.NICs.Wires()
	failed := map[*verbs.NIC]bool{}
	for i := range count * len(nics) {
		nic := nics[i%len(nics)]
		if len(pairs) == transport.MostConnections || failed[nic] {
			continue
		}
		c, a, failure := verbs.New(nic, n.config.Find, ib.RemoteWrite)
		if failure != nil {
			failed[nic], err = true, errors.Join(err, failure)
			continue
		}
		o.add(nic.Index(), a.Append(nil))
		pairs = append(pairs, c)
	}
	return pairs, err
}

// what is what this node's wires go over, for errors.
func (n *Node) what() string {
	if n.config.OFI != nil {
		return "libfabric"
	}
	return "RDMA"
}

// errRequired is part of the error of a wire that may not be TCP's alone.
var errRequired = fmt.Errorf("TCP must not carry the data: %w", fault.ErrNotSupported)

// fallsBack says aloud, once, that wires are TCP's. It is an error if none may be.
func (n *Node) fallsBack(peer int, err error) error {
	if who := n.config.Required; who != "" {
		return fmt.Errorf("no %s to rank %d, and %s: %w: %w", n.what(), peer, who, err, errRequired)
	}
	n.rdma.told.Do(func() {
		n.config.Log.Warn("network: no "+n.what()+", TCP carries the data (of later wires only LastOp tells)", "peer", peer, "err", err)
	})
	return nil
}

// offering returns what both sides do on the control connection before it is sealed. It sets agreed to the connections
// over devices that carry the data, or leaves it.
func (n *Node) offering(ctx context.Context, peer int, control bool, agreed *[]device) func(p *dialProbe) error {
	return func(p *dialProbe) error {
		if !control {
			return nil
		}
		mine := newOffer(n.devices())
		var pairs []device
		var none error
		switch n.devices() {
		case "ofi":
			pairs, none = n.datagrams(mine)
		case "verbs":
			pairs, none = n.queuePairs(mine)
		default:
			none = errors.New("this rank has no RDMA device")
		}
		pairs, err := n.agree(ctx, peer, p, pairs, mine, none)
		*agreed = pairs
		return err
	}
}

// lacks says aloud, once, that wires have fewer queue pairs than this rank could use.
func (n *Node) lacks(peer, pairs, wanted int, err error) {
	n.rdma.lacks.Do(func() {
		n.config.Log.Warn("network: fewer connections over devices than this rank offers (of later wires LastOp names the devices)", "peer", peer,
			"connections", pairs, "wanted", wanted, "err", err)
	})
}

// meet puts connections of this side with addresses of the peer's offer: on each device the first with the first, in the order
// of both offers. The others are closed.
func meet(mine []device, theirs offer) (pairs []device, addrs [][]byte, err error) {
	of, err := theirs.addresses()
	for _, c := range mine {
		left := of[c.Index()]
		if len(left) == 0 || err != nil {
			c.Close()
			continue
		}
		pairs, addrs = append(pairs, c), append(addrs, left[0])
		of[c.Index()] = left[1:]
	}
	return pairs, addrs, err
}

// agree returns the connections that both sides have made; it closes all others. none is why this side does not offer all.
// Errors are the control connection's, or that there must be some.
func (n *Node) agree(ctx context.Context, peer int, p *dialProbe, pairs []device, mine offer, none error) (agreed []device, err error) {
	theirs := make(offer, offerSize)
	if err := errors.Join(p.write(mine)(), p.read(theirs)()); err != nil {
		closePairs(pairs)
		return nil, err
	}
	if pairs != nil && !mine.same(theirs) && theirs.count() > 0 {
		closePairs(pairs)
		return nil, n.fallsBack(peer, fmt.Errorf("it offers %s, and this rank %s", theirs.kind(), mine.kind()))
	}
	pairs, addrs, err := meet(pairs, theirs)
	switch {
	case err != nil:
		return nil, err
	case n.devices() == "" && n.config.Required == "": // nobody has asked for RDMA here
		return nil, nil
	case pairs == nil && none != nil:
		return nil, n.fallsBack(peer, none)
	case theirs.count() == 0:
		return nil, n.fallsBack(peer, errors.New("it offers none"))
	case pairs == nil:
		return nil, n.fallsBack(peer, errors.New("it offers none on the same device"))
	}
	connect := func(i int) error { return pairs[i].Meet(addrs[i], fmt.Sprint("rank ", peer)) }
	ping := func(i int) error {
		ctx, cancel := context.WithTimeoutCause(ctx, pingLimit, fault.ErrTimeout)
		defer cancel()
		return pairs[i].Ping(ctx)
	}
	good, why := byte(1<<len(pairs)-1), none
	for _, try := range []func(i int) error{connect, ping} {
		mine, err := tryAll(good, try)
		reply := []byte{0}
		if err := errors.Join(p.write([]byte{mine})(), p.read(reply)()); err != nil {
			closePairs(pairs)
			return nil, err
		}
		if err == nil && mine&^reply[0] != 0 {
			err = errors.New("its side has failed")
		}
		good, why = mine&reply[0], errors.Join(why, err)
	}
	for i, c := range pairs {
		if good&(1<<i) == 0 {
			c.Close()
			continue
		}
		agreed = append(agreed, c)
	}
	if agreed == nil {
		return nil, n.fallsBack(peer, why)
	}
	if wanted := n.most(); len(agreed) < wanted {
		if why == nil {
			why = fmt.Errorf("it offers %d", theirs.count())
		}
		n.lacks(peer, len(agreed), wanted, why)
	}
	return agreed, nil
}

// tryAll calls try for each bit of a set, side by side, and returns those for which it has worked, and an error of the others.
func tryAll(set byte, try func(i int) error) (good byte, err error) {
	var errs [8]error
	var done sync.WaitGroup
	for i := range errs {
		if set&(1<<i) != 0 {
			done.Go(func() { errs[i] = try(i) })
		}
	}
	done.Wait()
	for i, failed := range errs {
		switch {
		case failed != nil:
			err = failed
		case set&(1<<i) != 0:
			good |= 1 << i
		}
	}
	return good, err
}

func closePairs(pairs []device) {
	for _, c := range pairs {
		c.Close()
	}
}
