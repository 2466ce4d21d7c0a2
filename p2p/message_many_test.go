package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestMessagesApart makes a call wait: it must not delay calls of other lanes, nor collectives.
func TestMessagesApart(t *testing.T) {
	for _, large := range []bool{false, true} {
		n := 100
		if large {
			n = 200 << 10
		}
		gputest.Both(t, 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
			b, err := ubcoll.Alloc[byte](c, dev, 2*n)
			if err != nil {
				return err
			}
			a, z := b.Vec().Slice(0, n), b.Vec().Slice(n, 2*n)
			switch c.Rank() {
			case 0:
				got := make(chan error, 1)
				go func() {
					_, err := p2p.Recv(ctx, c, 1, a)
					got <- err
				}()
				// Rank 1 sends that only after it has received this message, and rank 0 must first hear from rank 2.
				if _, err := p2p.Recv(ctx, c, 2, z); err != nil {
					return err
				}
				err = testkit.InOrder(
					func() error { return p2p.Send(ctx, c, 2, z) },
					func() error { return coll.AllReduce(ctx, c, z, z, ubcoll.Max) },
					func() error { return p2p.Send(ctx, c, 1, z) })
				if err != nil {
					return err
				}
				err = <-got
			case 1:
				if err := coll.AllReduce(ctx, c, z, z, ubcoll.Max); err != nil {
					return err
				}
				if _, err := p2p.Recv(ctx, c, 0, z); err != nil {
					return err
				}
				err = p2p.Send(ctx, c, 0, a)
			case 2:
				err = testkit.InOrder(
					func() error { return p2p.Send(ctx, c, 0, a) },
					func() error { return testkit.ErrOf(p2p.Recv(ctx, c, 0, z)) },
					func() error { return coll.AllReduce(ctx, c, z, z, ubcoll.Max) })
			}
			if err != nil {
				return err
			}
			return coll.Barrier(ctx, c)
		})
	}
}

// TestMessagesOrder sends on two streams and on none in turn, and receives likewise: the messages keep the order of the
// calls.
func TestMessagesOrder(t *testing.T) {
	seed := testkit.Seed(t)
	const calls, most = 40, 100 << 10
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := ubcoll.Alloc[byte](c, dev, calls*most)
		if err != nil {
			return err
		}
		all := rand.New(rand.NewPCG(seed, 1))
		var want []byte
		var ns []int
		for i := range calls {
			n := all.IntN(200)
			if all.IntN(3) == 0 {
				n = all.IntN(most)
			}
			ns = append(ns, n)
			want = append(want, append(pattern(n, uint64(i)), make([]byte, most-n)...)...)
		}
		host := make([]byte, len(want))
		if c.Rank() == 0 {
			host = want
		}
		if err := b.CopyFrom(ctx, host); err != nil {
			return err
		}
		var streams [3]*ubcoll.Stream // a nil stream: the call blocks
		for i := range 2 {
			if streams[i], err = ubcoll.NewStream(dev); err != nil {
				return err
			}
		}
		r := rand.New(rand.NewPCG(seed, uint64(2+c.Rank())))
		for i, n := range ns {
			view, v := c.On(streams[r.IntN(3)]), b.Vec().Slice(i*most, i*most+n)
			if c.Rank() == 0 {
				err = p2p.Send(ctx, view, 1, v)
			} else {
				_, err = p2p.Recv(ctx, view, 0, v)
			}
			if err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
		got := make([]byte, len(want))
		if err := testkit.InOrder(
			func() error { return streams[0].Sync(ctx) },
			func() error { return streams[1].Sync(ctx) },
			func() error { return b.CopyTo(ctx, got) }); err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("rank %d: wrong data", c.Rank())
		}
		return errors.Join(streams[0].Close(), streams[1].Close(), coll.Barrier(ctx, c), b.Free())
	})
}

// TestMessagesMany has more messages in a group than one kernel can have.
func TestMessagesMany(t *testing.T) {
	const n = 700
	for _, k := range testkit.Sample(4, []struct{ ranks, each int }{{2, 150}, {1, 150}, {3, 150}, {2, 30}, {3, 20}, {8, 10}}) {
		for _, queued := range testkit.Sample(2, []bool{true, false}) {
			ranks, each := k.ranks, k.each // a kernel has part of a lane's messages, or some lanes'
			t.Run(fmt.Sprintf("%d ranks, %d each/queued=%v", ranks, each, queued), func(t *testing.T) {
				gputest.Both(t, ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					src, err1 := ubcoll.Alloc[byte](c, dev, ranks*each*n)
					dst, err2 := ubcoll.Alloc[byte](c, dev, ranks*each*n)
					view, sync, end, err3 := gputest.View(ctx, c, dev, queued)
					if err := errors.Join(err1, err2, err3); err != nil {
						return err
					}
					mine := pattern(ranks*each*n, uint64(c.Rank()))
					if err := src.CopyFrom(ctx, mine); err != nil {
						return err
					}
					var g p2p.Exchange
					for peer := range ranks {
						for i := range each { // all sends or all receives first
							at := (peer*each + i) * n
							g.Send(peer, src.Vec().Slice(at, at+n-i))
						}
					}
					for peer := range ranks {
						for i := range each {
							at := (peer*each + i) * n
							g.Recv(peer, dst.Vec().Slice(at, at+n-i))
						}
					}
					for range 2 {
						if err := testkit.InOrder(func() error { return g.Do(ctx, view) }, sync); err != nil {
							return err
						}
					}
					if len(g.Received()) != ranks*each || g.Received()[each-1] != n-each+1 {
						return fmt.Errorf("received %v", g.Received())
					}
					got := make([]byte, len(mine))
					if err := dst.CopyTo(ctx, got); err != nil {
						return err
					}
					for peer := range ranks {
						theirs := pattern(len(mine), uint64(peer))
						for i := range each {
							at, from := (peer*each+i)*n, (c.Rank()*each+i)*n
							if !bytes.Equal(got[at:at+n-i], theirs[from:from+n-i]) {
								return fmt.Errorf("message %d of rank %d is wrong", i, peer)
							}
						}
					}
					return errors.Join(end(), coll.Barrier(ctx, c))
				})
			})
		}
	}
}

// TestMessagesParted has rank 0 exchange more messages at once with all ranks than one kernel can have. One other rank
// starts its part only after a third one is done, so all kernels of rank 0 must run at the same time.
func TestMessagesParted(t *testing.T) {
	const ranks, each, n = 4, 20, 300
	for _, queued := range testkit.Sample(2, []bool{false, true}) {
		for _, order := range [][2]int{{3, 1}, {1, 3}} {
			t.Run(fmt.Sprintf("rank %d first/queued=%v", order[0], queued), func(t *testing.T) {
				gputest.Both(t, ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					b, err1 := ubcoll.Alloc[byte](c, dev, (2*ranks*each+1)*n)
					view, sync, end, err2 := gputest.View(ctx, c, dev, queued)
					if err := errors.Join(err1, err2); err != nil {
						return err
					}
					mine := pattern(ranks*each*n, uint64(c.Rank()))
					if err := b.CopyFrom(ctx, append(mine, make([]byte, b.Len()-len(mine))...)); err != nil {
						return err
					}
					token := b.Vec().Slice(2*len(mine), b.Len())
					var g p2p.Exchange
					for peer := range ranks {
						if peer == c.Rank() || c.Rank() != 0 && peer != 0 {
							continue
						}
						for i := range each {
							at := (peer*each + i) * n
							g.Send(peer, b.Vec().Slice(at, at+n))
							g.Recv(peer, b.Vec().Slice(len(mine)+at, len(mine)+at+n))
						}
					}
					if c.Rank() == order[1] {
						if _, err := p2p.Recv(ctx, view, order[0], token); err != nil {
							return err
						}
					}
					if err := g.Do(ctx, view); err != nil {
						return err
					}
					if c.Rank() == order[0] {
						if err := p2p.Send(ctx, view, order[1], token); err != nil {
							return err
						}
					}
					got := make([]byte, b.Len())
					if err := testkit.InOrder(sync, func() error { return b.CopyTo(ctx, got) }); err != nil {
						return err
					}
					for peer := range ranks {
						if peer == c.Rank() || c.Rank() != 0 && peer != 0 {
							continue
						}
						at, from := len(mine)+peer*each*n, c.Rank()*each*n
						if !bytes.Equal(got[at:at+each*n], pattern(len(mine), uint64(peer))[from:from+each*n]) {
							return fmt.Errorf("what rank %d has sent is wrong", peer)
						}
					}
					return errors.Join(end(), coll.Barrier(ctx, c), b.Free())
				})
			})
		}
	}
}

// TestMessagesCaptured captures groups on a foreign stream, and replays them beside other messages.
func TestMessagesCaptured(t *testing.T) {
	testkit.LongOrRace(t)
	const small, large, many = 1000, 150 << 10, 80
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		peer := 1 - c.Rank()
		b, err := ubcoll.Alloc[byte](c, dev, 2*(small+large)+2*many)
		if err != nil {
			return err
		}
		cu, s, end, err := gputest.Foreign(dev)
		if err != nil {
			return err
		}
		v := b.Vec()
		in := v.Slice(small+large+many, 2*(small+large+many))
		var g p2p.Exchange
		for i := range many {
			g.Send(peer, v.Slice(small+large+i, small+large+i+1))
			g.Recv(peer, in.Slice(small+large+i, small+large+i+1))
		}
		if err := cu.BeginCapture(); err != nil {
			return err
		}
		sendRecv := func(from, to int) error {
			return testkit.ErrOf(p2p.SendRecv(ctx, c.On(s), peer, in.Slice(from, to), peer, v.Slice(from, to)))
		}
		err = testkit.InOrder(
			func() error { return sendRecv(0, small) },
			func() error { return sendRecv(small, small+large) },
			func() error { return g.Do(ctx, c.On(s)) })
		graph, err2 := cu.EndCapture()
		if err = errors.Join(err, err2); err != nil {
			return err
		}
		if err := testkit.Wants(b.Free(), ubcoll.ErrInUse); err != nil {
			return err
		}
		for round := range 6 {
			mine := pattern(small+large+many, uint64(c.Rank()), uint64(round))
			theirs := pattern(small+large+many, uint64(peer), uint64(round))
			err := testkit.InOrder(
				func() error { return b.CopyFrom(ctx, append(mine, make([]byte, len(mine))...)) },
				func() error { return graph.Launch(cu) },
				func() error { return s.Sync(ctx) })
			if err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
			got := make([]byte, b.Len())
			if err := b.CopyTo(ctx, got); err != nil {
				return err
			}
			if !bytes.Equal(got[len(mine):], theirs) {
				return fmt.Errorf("round %d: wrong data", round)
			}
			if err := works(ctx, c, b); err != nil {
				return err
			}
		}
		return errors.Join(graph.Close(), end(), coll.Barrier(ctx, c))
	})
}
