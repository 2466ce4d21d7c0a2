package p2p_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/p2p"
)

// lateNode is a node of which, once it is armed, a communicator is left only after a peer has made a pair with it.
type lateNode struct {
	transport.Node
	mu      sync.Mutex
	armed   bool
	waiting chan struct{}            // closed when Leave waits for a pair
	made    map[uint64]chan struct{} // by communicator that joined when it was armed; closed when a pair is made
}

func (n *lateNode) Join(c transport.Comm) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.armed && c.Places > 0 { // channels and windows have none
		made, first := make(chan struct{}), new(sync.Once)
		clear(n.made) // messages of device memory join before those of host memory
		n.made[c.ID] = made
		inner := c.Made
		c.Made = func(e transport.Endpoint) transport.Server {
			s := inner(e)
			first.Do(func() { close(made) })
			return s
		}
	}
	return n.Node.Join(c)
}

func (n *lateNode) Leave(id uint64) {
	n.mu.Lock()
	made := n.made[id]
	n.mu.Unlock()
	if made != nil {
		testkit.Until(func() bool {
			select {
			case <-made:
				return true
			default:
			}
			select {
			case <-n.waiting:
			default:
				close(n.waiting)
			}
			return false
		})
	}
	n.Node.Leave(id)
}

// TestBetweenClosesLate: a pair that the peer makes after this rank has told its pairs that it closes, and before it leaves,
// is told so, too.
func TestBetweenClosesLate(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *ubcoll.Comm, x ubcoll.Vec) error{
		"send": func(ctx context.Context, c *ubcoll.Comm, x ubcoll.Vec) error { return p2p.Send(ctx, c, 0, x) },
		"recv": func(ctx context.Context, c *ubcoll.Comm, x ubcoll.Vec) error {
			return testkit.ErrOf(p2p.Recv(ctx, c, 0, x))
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer testkit.NoLeaks(t)()
			late := &lateNode{waiting: make(chan struct{}), made: map[uint64]chan struct{}{}}
			network := func(c transport.Config) (transport.Node, error) {
				n, err := inside.Providers.Network(c)
				if err != nil || c.Rank != 0 {
					return n, err
				}
				late.Node = n
				return late, nil
			}
			require.NoError(t, conform.Block(1, 1).RunOver(t.Context(), network, func(ctx context.Context, parent *ubcoll.Comm) error {
				if parent.Rank() == 0 {
					late.mu.Lock()
					late.armed = true
					late.mu.Unlock()
				}
				c, err := parent.Dup(ctx)
				if err != nil {
					return err
				}
				if c.Rank() == 0 {
					return testkit.InOrder(c.Close, func() error { return coll.Barrier(ctx, parent) })
				}
				waits := func() bool {
					select {
					case <-late.waiting:
						return true
					default:
						return false
					}
				}
				if !testkit.Until(waits) {
					return errors.New("rank 0 has left no communicator without a pair")
				}
				err = call(ctx, c, ubcoll.Of(make([]byte, 100_000)))
				if !errors.Is(err, ubcoll.ErrPeerLost) || !strings.Contains(err.Error(), "rank 0 closed its communicator") {
					return conform.Fail(c, "%v", err)
				}
				return testkit.InOrder(c.Close, func() error { return coll.Barrier(ctx, parent) })
			}))
		})
	}
}
