package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// patient is a node that leaves dialling to the lower rank of a pair. Otherwise both dial if the machine is slow, and
// 256 hosts of one process run out of descriptors.
type patient struct {
	transport.Node
	rank int
	mu   sync.Mutex
	made map[[2]uint64]chan struct{} // by communicator and peer: closed when the peer has made the pair
}

func patientNode(c transport.Config) (transport.Node, error) {
	n, err := inside.Providers.Network(c)
	return &patient{Node: n, rank: c.Rank, made: map[[2]uint64]chan struct{}{}}, err
}

func (p *patient) pair(comm uint64, peer int) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := [2]uint64{comm, uint64(peer)}
	if p.made[k] == nil {
		p.made[k] = make(chan struct{})
	}
	return p.made[k]
}

func (p *patient) Join(c transport.Comm) error {
	made := c.Made
	c.Made = func(e transport.Endpoint) transport.Server {
		defer close(p.pair(c.ID, e.Peer()))
		return made(e)
	}
	return p.Node.Join(c)
}

func (p *patient) Endpoint(comm uint64, peer int, expected bool) transport.Endpoint {
	if peer < p.rank {
		<-p.pair(comm, peer)
	}
	return p.Node.Endpoint(comm, peer, expected)
}

// counting counts what a rank's bootstrap does: exchanges with other ranks, and the bytes that it tells them.
type counting struct {
	bootstrap.Bootstrap
	bootstrap.Exchanger
	exchanges, bytes int
}

func (c *counting) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	c.exchanges, c.bytes = c.exchanges+1, c.bytes+len(mine)
	return c.Bootstrap.AllGather(ctx, mine)
}

func (c *counting) Exchange(ctx context.Context, peer int, mine []byte) ([]byte, error) {
	c.exchanges, c.bytes = c.exchanges+1, c.bytes+len(mine)
	return c.Exchanger.Exchange(ctx, peer, mine)
}

// TestHostsMemory: the formula that is printed says what is allocated, within a tenth.
func TestHostsMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector has the ranks' shared memory on Go's heap")
	}
	sizes := []int{64}
	if testkit.Full() {
		sizes = []int{2, 64, 256}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bs, counts := bootstrap.Local(n), make([]*counting, n)
			for r, b := range bs {
				counts[r] = &counting{Bootstrap: b, Exchanger: b.(bootstrap.Exchanger)}
				bs[r] = counts[r]
			}
			bs = enginetest.Hosts(bs, func(r int) string { return fmt.Sprintf("host-%d", r) })
			comms, alone, dups := make([]*ubcoll.Comm, n), make([]*ubcoll.Comm, n), make([]*ubcoll.Comm, n)
			each := func(do func(r int) error) {
				t.Helper()
				errs := make([]error, n)
				var all sync.WaitGroup
				for r := range n {
					all.Go(func() { errs[r] = do(r) })
				}
				all.Wait()
				require.NoError(t, errors.Join(errs...))
			}
			ctx, providers := context.Background(), inside.Providers
			providers.Network = patientNode
			empty := testkit.HeapInUse()
			each(func(r int) error {
				in, err := inside.OpenOn(ctx, bs[r], engine.Options{}, nil, providers)
				comms[r] = (*ubcoll.Comm)(in)
				return errors.Join(err, bs[r].Close())
			})
			var told, exchanges, sent, wires int // of the rank with most of each
			for r, c := range counts {
				told, exchanges = max(told, c.bytes), max(exchanges, c.exchanges)
				all := comms[r].Stats().Hosts
				n := 0
				for _, h := range all {
					n += int(h.SentBytes)
				}
				sent, wires = max(sent, n), max(wires, len(all))
			}
			t.Logf("Open: a rank makes up to %d exchanges of the bootstrap, of %d bytes, and %d wires, on which %d bytes leave", exchanges, told,
				wires, sent)
			rounds := bits.Len(uint(n - 1))
			require.LessOrEqual(t, exchanges, 3*rounds+1)
			require.LessOrEqual(t, told, n*(transport.MaxRow+200)+2000)
			require.LessOrEqual(t, wires, 2*rounds)
			v := make([]float32, 100<<10)
			each(func(r int) error {
				dst := make([]float32, len(v))
				return coll.AllReduce(ctx, comms[r], ubcoll.Of(dst), ubcoll.Of(v), ubcoll.Max) // what lands is combined
			})
			opened := testkit.HeapInUse()
			each(func(r int) (err error) {
				alone[r], err = comms[r].Split(ctx, r, 0) // what a communicator takes without other hosts
				return err
			})
			split := testkit.HeapInUse()
			each(func(r int) (err error) {
				dups[r], err = comms[r].Dup(ctx)
				return err
			})
			dupped := testkit.HeapInUse()
			rank, comm := hosts.PerRank(n, n), hosts.PerComm(n, n)
			for _, x := range append(rank, comm...) {
				t.Logf("%8d bytes for %s", x.Bytes, x.What)
			}
			all, further := hosts.Sum(rank)+hosts.Sum(comm), hosts.Sum(comm)
			gotAll, gotFurther := (opened-empty)/n, ((dupped-split)-(split-opened))/n
			t.Logf("%s: %d and %d bytes by the formula, %d and %d are allocated", hosts.MemoryText(n, n), all, further, gotAll, gotFurther)
			require.InEpsilon(t, all, gotAll, 0.1)
			require.InEpsilon(t, further, gotFurther, 0.1)
			each(func(r int) error { return errors.Join(dups[r].Close(), alone[r].Close(), comms[r].Close()) })
		})
	}
}
