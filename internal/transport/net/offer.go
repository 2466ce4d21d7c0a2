package net

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	ib "github.com/ubcoll/ubcoll/hw/verbs"
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
	mu   sync.Mutex
	nic  *verbs.NIC // once a pair was made
	err  error      // why there is none
	told sync.Once
}

// open returns the NIC that pairs are made on.
func (n *Node) nic() (*verbs.NIC, error) {
	r := &n.rdma
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nic == nil && r.err == nil {
		on := n.config.NICs.NICs()[0]
		path := ib.DefaultPath()
		path.Port = on.Ports[0]
		r.nic, r.err = verbs.Open(on.PD, 0, path)
	}
	return r.nic, r.err
}

// queuePairs makes this side's queue pairs, and their offer. What cannot be made is not offered.
func (n *Node) queuePairs() (pairs []*verbs.Conn, offer []byte) {
	offer = make([]byte, 1, offerSize)
	if n.config.NICs == nil {
		return nil, offer
	}
	nic, err := n.nic()
	for err == nil && len(pairs) < 1 {
		var c *verbs.Conn
		var a ib.Address
		if c, a, err = verbs.New(nic, n.config.Find); err == nil {
			pairs, offer = append(pairs, c), a.Append(offer)
		}
	}
	if err != nil {
		n.fallsBack(err)
	}
	offer[0] = byte(len(pairs))
	return pairs, offer
}

// fallsBack says aloud, once, that wires are TCP's.
func (n *Node) fallsBack(err error) {
	n.rdma.told.Do(func() { n.config.Log.Warn("network: no RDMA, TCP carries the data", "err", err) })
}

// offering returns what both sides do on the control connection before it is sealed. It sets agreed to the queue pairs
// that carry the data, or leaves it.
func (n *Node) offering(ctx context.Context, peer int, control bool, agreed *[]*verbs.Conn) func(p *dialProbe) error {
	return func(p *dialProbe) error {
		if !control {
			return nil
		}
		pairs, offer := n.queuePairs()
		pairs, err := n.agree(ctx, peer, p, pairs, offer)
		*agreed = pairs
		return err
	}
}

// agree returns the pairs that both sides have connected; it closes all others. Errors are the control connection's.
func (n *Node) agree(ctx context.Context, peer int, p *dialProbe, pairs []*verbs.Conn, offer []byte) (agreed []*verbs.Conn, err error) {
	defer func() {
		for i := len(agreed); i < len(pairs); i++ {
			pairs[i].Close()
		}
	}()
	theirs := make([]byte, offerSize)
	if err := errors.Join(p.write(append(offer, theirs[len(offer):]...))(), p.read(theirs)()); err != nil {
		return nil, err
	}
	if int(theirs[0]) > transport.MostConnections {
		return nil, fmt.Errorf("an offer of %d queue pairs: %w", theirs[0], errStranger)
	}
	k := min(len(pairs), int(theirs[0]))
	if k == 0 {
		return nil, nil
	}
	for _, try := range []func(i int) error{
		func(i int) error {
			a, err := ib.ParseAddress(theirs[1+i*ib.AddressSize:][:ib.AddressSize])
			if err != nil {
				return err
			}
			return pairs[i].Connect(a, fmt.Sprint("rank ", peer))
		},
		func(i int) error {
			ctx, cancel := context.WithTimeoutCause(ctx, pingLimit, fault.ErrTimeout)
			defer cancel()
			return pairs[i].Ping(ctx)
		},
	} {
		var failed error
		for i := 0; i < k && failed == nil; i++ {
			failed = try(i)
		}
		state := []byte{goOn}
		if failed != nil {
			state[0] = goBack
			n.fallsBack(fmt.Errorf("to rank %d: %w", peer, failed))
		}
		if err := errors.Join(p.write(state)(), p.read(theirs[:1])()); err != nil {
			return nil, err
		}
		if failed != nil || theirs[0] != goOn {
			n.fallsBack(fmt.Errorf("to rank %d: its side has failed", peer))
			return nil, nil
		}
	}
	return pairs[:k], nil
}

func closePairs(pairs []*verbs.Conn) {
	for _, c := range pairs {
		c.Close()
	}
}
