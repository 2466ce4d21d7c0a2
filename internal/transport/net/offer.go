package net

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/verbs"
)

// On the control connection both sides offer queue pairs, as many as the lesser of them are connected, and both ping over
// each. Only if all of that has worked at both sides do they carry the data; then there are no data connections of TCP.
// Each side writes before it reads:
//
//	offer   how many addresses (1), and the addresses, with room for MostConnections
//	state   one byte: connected, or not
//	state   one byte: pinged, or not

const (
	offerSize = 1 + transport.MostConnections*ib.AddressSize
	pingLimit = 2 * time.Second
)

// rdma is what a node has of RDMA.
type rdma struct {
	mu       sync.Mutex
	nic      *verbs.NIC // once a pair was made
	err      error      // why there is none
	told     sync.Once
	watching sync.WaitGroup // counts the goroutine that watches it
}

// open returns the NIC that pairs are made on.
func (n *Node) nic() (*verbs.NIC, error) {
	r := &n.rdma
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nic == nil && r.err == nil {
		on := n.config.NICs.NICs()[0]
		path, _ := n.config.NICs.Wires()
		path.Port = on.Ports[0]
		if r.nic, r.err = verbs.Open(on.PD, 0, path); r.err == nil {
			r.watching.Go(n.watch)
		}
	}
	return r.nic, r.err
}

// watch ends all wires over RDMA once the NIC is of no use.
func (n *Node) watch() {
	err := n.rdma.nic.Watch(n.ctx)
	if err == nil {
		return
	}
	for _, w := range n.all() {
		if w.rdma != nil {
			w.cut(lostRail(fmt.Sprintf("of rank %d: %v", n.config.Rank, err)))
		}
	}
}

// close closes the NIC, after all connections. The node's ctx has ended.
func (r *rdma) close() error {
	r.watching.Wait()
	if r.nic == nil {
		return nil
	}
	return r.nic.Close()
}

// queuePairs makes this side's queue pairs, and their offer. What cannot be made is not offered: err says why.
func (n *Node) queuePairs() (pairs []*verbs.Conn, offer []byte, err error) {
	offer = make([]byte, 1, offerSize)
	if n.config.NICs == nil {
		return nil, offer, errors.New("this rank has no RDMA device")
	}
	nic, err := n.nic()
	_, count := n.config.NICs.Wires()
	for err == nil && len(pairs) < count {
		var c *verbs.Conn
		var a ib.Address
		if c, a, err = verbs.New(nic, n.config.Find, ib.RemoteWrite); err == nil {
			pairs, offer = append(pairs, c), a.Append(offer)
		}
	}
	if len(pairs) > 0 { // fewer than asked for will do
		err = nil
	}
	offer[0] = byte(len(pairs))
	return pairs, offer, err
}

// errRequired is part of the error of a wire that may not be TCP's alone.
var errRequired = fmt.Errorf("TCP must not carry the data: %w", fault.ErrNotSupported)

// fallsBack says aloud, once, that wires are TCP's. It is an error if none may be.
func (n *Node) fallsBack(peer int, err error) error {
	if env.Requires("verbs") {
		return fmt.Errorf("no RDMA to rank %d, and %s lists verbs: %w: %w", peer, env.Require.Name, err, errRequired)
	}
	n.rdma.told.Do(func() {
		n.config.Log.Warn("network: no RDMA, TCP carries the data (of later wires only LastOp tells)", "peer", peer, "err", err)
	})
	return nil
}

// offering returns what both sides do on the control connection before it is sealed. It sets agreed to the queue pairs
// that carry the data, or leaves it.
func (n *Node) offering(ctx context.Context, peer int, control bool, agreed *[]*verbs.Conn) func(p *dialProbe) error {
	return func(p *dialProbe) error {
		if !control {
			return nil
		}
		pairs, offer, none := n.queuePairs()
		pairs, err := n.agree(ctx, peer, p, pairs, offer, none)
		*agreed = pairs
		return err
	}
}

// agree returns the pairs that both sides have connected; it closes all others. none is why this side offers none. Errors
// are the control connection's, or that there must be pairs.
func (n *Node) agree(ctx context.Context, peer int, p *dialProbe, pairs []*verbs.Conn, offer []byte, none error) (agreed []*verbs.Conn, err error) {
	defer func() { closePairs(pairs[len(agreed):]) }()
	theirs := make([]byte, offerSize)
	if err := errors.Join(p.write(append(offer, theirs[len(offer):]...))(), p.read(theirs)()); err != nil {
		return nil, err
	}
	count := int(theirs[0])
	switch {
	case count > transport.MostConnections:
		return nil, fmt.Errorf("an offer of %d queue pairs: %w", count, errStranger)
	case n.config.NICs == nil && !env.Requires("verbs"): // nobody has asked for RDMA here
		return nil, nil
	case none != nil:
		return nil, n.fallsBack(peer, none)
	case count == 0:
		return nil, n.fallsBack(peer, errors.New("it offers none"))
	}
	pairs, rest := pairs[:min(len(pairs), count)], pairs[min(len(pairs), count):]
	closePairs(rest)
	connect := func(i int) error {
		a, err := ib.ParseAddress(theirs[1+i*ib.AddressSize:][:ib.AddressSize])
		if err != nil {
			return err
		}
		return pairs[i].Connect(a, fmt.Sprint("rank ", peer))
	}
	ping := func(i int) error {
		ctx, cancel := context.WithTimeoutCause(ctx, pingLimit, fault.ErrTimeout)
		defer cancel()
		return pairs[i].Ping(ctx)
	}
	for _, try := range []func(i int) error{connect, ping} {
		var failed error
		for i := 0; i < len(pairs) && failed == nil; i++ {
			failed = try(i)
		}
		state, reply := []byte{goOn}, []byte{0}
		if failed != nil {
			state[0] = goBack
		}
		if err := errors.Join(p.write(state)(), p.read(reply)()); err != nil {
			return nil, err
		}
		if failed == nil && reply[0] != goOn {
			failed = errors.New("its side has failed")
		}
		if failed != nil {
			return nil, n.fallsBack(peer, failed)
		}
	}
	return pairs, nil
}

func closePairs(pairs []*verbs.Conn) {
	for _, c := range pairs {
		c.Close()
	}
}
