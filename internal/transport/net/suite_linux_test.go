package net

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
)

// TestSuite: TCP does what every transport does, over one connection for data and over several, and over two rails.
func TestSuite(t *testing.T) {
	for i, connections := range []int{0, 3, 2} {
		name, rails := fmt.Sprintf("%d connections", max(connections, 1)), connections == 2
		if rails {
			name = "2 rails"
		}
		t.Run(name, func(t *testing.T) {
			if rails {
				twoRails(t)
			}
			// One connection has all cases; the others' take turns.
			transporttest.SuiteTurns(t, i, min(1+i, 2), network(func(_ testing.TB, c *transport.Config) { c.Connections = connections }))
		})
	}
}

// network makes nodes of loopback for a suite, with configs that more has completed.
func network(more func(t testing.TB, c *transport.Config)) func(t testing.TB, configs []transport.Config) transporttest.Network {
	return func(t testing.TB, configs []transport.Config) transporttest.Network {
		t.Setenv("UBCOLL_NET", interfaces)
		var nodes []*Node
		n := transporttest.Network{
			Background: true,
			Kill:       func(rank int) { nodes[rank].die(t) },
			Cut: func(a, b int) {
				nodes[a].deafen(t, b)
				nodes[b].deafen(t, a)
			},
			Pairs: func(rank int) int { return nodes[rank].pairs() },
		}
		for _, c := range configs {
			if strings.Contains(t.Name(), "/cut") { // others have time
				c.Timeout = time.Second
			}
			more(t, &c)
			node, err := New(c)
			require.NoError(t, err)
			n.Nodes, nodes = append(n.Nodes, node), append(nodes, node)
		}
		return n
	}
}

// die ends a node as the end of its process would.
func (n *Node) die(t testing.TB) {
	for _, l := range n.listeners {
		l.Close()
	}
	for _, w := range n.all() {
		w.ended.Store(true)
		w.close()
	}
	t.Cleanup(func() { _ = n.Close(0) })
}

// deafen loses all that comes from a peer.
func (n *Node) deafen(t testing.TB, peer int) {
	n.mu.Lock()
	w := n.wires[peer]
	n.mu.Unlock()
	for _, e := range w.sockets() {
		if e == &w.control.end || w.rdma == nil { // queue pairs go on until that ends
			deafen(t, e.fd)
		}
	}
}

// pairs is what a node keeps of communicators.
func (n *Node) pairs() (all int) {
	n.mu.Lock()
	for _, c := range n.comms {
		c.mu.Lock()
		all += len(c.links)
		c.mu.Unlock()
	}
	n.mu.Unlock()
	for _, w := range n.all() {
		w.mu.Lock()
		all += len(*w.links.Load()) + len(w.overs)
		w.mu.Unlock()
		n.mu.Lock()
		all += len(w.asked)
		n.mu.Unlock()
	}
	return all
}
