package net

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdnet "net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// A thousand nodes connect to one at once.
func TestConnectMany(t *testing.T) {
	count := 1000
	if testing.Short() || race.Enabled {
		count = 100
	}
	var nodes []*Node
	for r := range count {
		n, _ := node(t, r)
		nodes = append(nodes, n)
	}
	one, _ := nodeWith(t, transport.Config{Rank: count, Size: count, RowOf: func(r int) []byte { return nodes[r].Row() }})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	start := time.Now()
	var all sync.WaitGroup
	var failed atomic.Int64
	for r, n := range nodes {
		for _, connect := range []func() error{
			func() error { _, err := n.Connect(ctx, count, one.row); return err },
			func() error { _, err := one.Connect(ctx, r, n.row); return err },
		} {
			all.Go(func() {
				if err := connect(); err != nil {
					failed.Add(1)
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	t.Logf("%d nodes in %v, %d failed", count, time.Since(start), failed.Load())
	closeAll(t, append(nodes, one)...)
}

// relay passes connections on to a node: after handles each, with its two ends. It returns the row by which it is
// reached.
func relay(t *testing.T, to *Node, handle func(c, d stdnet.Conn)) Row {
	l, err := stdnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d, err := stdnet.Dial("tcp", to.addr())
			if err != nil {
				c.Close()
				return
			}
			all.Go(func() { handle(c, d); c.Close(); d.Close() })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	row := to.row
	row.Port = netip.MustParseAddrPort(l.Addr().String()).Port()
	return row
}

// both copies in both directions until both have ended.
func both(c, d stdnet.Conn) {
	var two sync.WaitGroup
	for _, x := range [][2]stdnet.Conn{{c, d}, {d, c}} {
		two.Go(func() {
			_, _ = io.Copy(x[0], x[1])
			_ = x[0].(*stdnet.TCPConn).CloseWrite()
		})
	}
	two.Wait()
}

// A peer whose process answers only after several times the time limit, as one that was stopped, is connected to: its
// kernel has answered.
func TestConnectSlowPeer(t *testing.T) {
	a, _ := nodeWith(t, transport.Config{Rank: 0, Timeout: time.Second})
	b, _ := nodeWith(t, transport.Config{Rank: 1, Timeout: time.Second})
	row := relay(t, b, func(c, d stdnet.Conn) { time.Sleep(2500 * time.Millisecond); both(c, d) })
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	var two sync.WaitGroup
	two.Go(func() {
		if _, err := a.Connect(ctx, 1, row); err != nil {
			t.Error(err)
		}
	})
	two.Go(func() {
		if _, err := b.Connect(ctx, 0, a.row); err != nil {
			t.Error(err)
		}
	})
	two.Wait()
	closeAll(t, a, b)
}

// A rank that waits for a peer to dial learns that the peer has ended, without anybody's help.
func TestAwaitedPeerEnds(t *testing.T) {
	a, _ := node(t, 0)
	b, _ := node(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	failed := make(chan error)
	go func() { _, err := b.Connect(ctx, 0, a.row); failed <- err }()
	closeAll(t, a)
	err := <-failed
	require.NoError(t, ctx.Err())
	require.ErrorIs(t, err, fault.ErrPeerLost)
	require.ErrorContains(t, err, "rank 1 dials rank 0: ")
	require.ErrorContains(t, err, a.addr()+": nobody listens there any more")
	closeAll(t, b)
}

// Whoever ends Connect's context with the reason gives it its error.
func TestConnectCause(t *testing.T) {
	why := &fault.Error{Op: "open", Rank: 0, Peer: 2, Err: fault.ErrPeerLost}
	a, _ := node(t, 0)
	b, _ := node(t, 1)
	silent, err := stdnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	row := b.row
	row.Port = netip.MustParseAddrPort(silent.Addr().String()).Port()
	for name, connect := range map[string]func(ctx context.Context) error{
		"dials":      func(ctx context.Context) error { _, err := a.Connect(ctx, 1, row); return err },
		"is dialled": func(ctx context.Context) error { _, err := b.Connect(ctx, 0, a.row); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
			e, ok := errors.AsType[*fault.Error](connect(ctx))
			require.True(t, ok)
			require.Same(t, why, e)
		})
	}
	closeAll(t, a, b)
}

// If the address that answers first carries nothing large, another is taken.
func TestConnectOtherAddress(t *testing.T) {
	a, _ := node(t, 0)
	b, _ := node(t, 1)
	row := b.row
	// A relay on another address of loopback, with the node's port, ends connections that have proved themselves.
	l, err := stdnet.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), row.Port).String())
	require.NoError(t, err)
	var relays sync.WaitGroup
	var cut atomic.Int64
	relays.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d, err := stdnet.Dial("tcp", b.addr())
			if err != nil {
				t.Error(err)
			}
			relays.Go(func() { _, _ = io.Copy(c, d); c.Close() })
			relays.Go(func() {
				_, _ = io.CopyN(d, c, helloSize+32+1) // the proof, and the byte behind it
				cut.Add(1)
				c.Close()
				d.Close()
			})
		}
	})
	row.Addrs = append([]netip.Addr{netip.MustParseAddr("127.0.0.3")}, row.Addrs...)
	var two sync.WaitGroup
	two.Go(func() {
		if _, err := a.Connect(within(t), 1, row); err != nil {
			t.Error(err)
		}
	})
	two.Go(func() {
		if _, err := b.Connect(within(t), 0, a.row); err != nil {
			t.Error(err)
		}
	})
	two.Wait()
	require.Positive(t, cut.Load())
	l.Close()
	relays.Wait()
	closeAll(t, a, b)
}

// A wire that was cut is made anew by whoever connects next, whether both ends have noticed or only that one. Links on
// the old one stay down.
func TestConnectAnew(t *testing.T) {
	for _, k := range []struct {
		name    string
		noticed bool // by the other one, too
		higher  bool // the higher rank connects
	}{
		{"both have noticed", true, false},
		{"one has noticed", false, false},
		{"both have noticed, and the higher rank connects", true, true},
		{"the higher rank has noticed, and connects", false, true},
	} {
		t.Run(k.name, func(t *testing.T) {
			p := newPair(t, 1)
			here, there, old, other := p.a, p.b, p.ab, p.ba
			toldThere := p.toldB
			first, second := p.la, p.lb
			if k.higher {
				here, there, old, other = p.b, p.a, p.ba, p.ab
				toldThere = p.toldA
				first, second = p.lb, p.la
			}
			first.Put(0, 1, nil, 0)
			second.until(t, 0, 1)
			old.ended.Store(true) // as if packets got lost: the other end notices nothing
			for _, e := range old.sockets() {
				here.poll.remove(e)
			}
			old.down.Store(&transport.Down{Kind: transport.Cut, Peer: there.config.Rank, Err: fault.ErrPeerLost})
			if k.noticed {
				other.finish(transport.Cut, fault.ErrPeerLost)
			}
			again, err := here.connect(within(t), there.config.Rank, false)
			require.NoError(t, err)
			require.NotSame(t, old, again)
			testkit.Eventually(t, func() bool { return other.Err() != nil })
			require.Equal(t, transport.Cut, other.Err().Kind)
			back, err := there.connect(within(t), here.config.Rank, true)
			require.NoError(t, err)
			require.Equal(t, again.attempt, back.attempt)
			require.ErrorIs(t, p.la.Err(), fault.ErrPeerLost)
			require.ErrorIs(t, p.lb.Err(), fault.ErrPeerLost)
			la, lb := links(t, again, back, commID+1, 1)
			la.Put(0, 1, nil, 0)
			lb.until(t, 0, 1)
			require.Len(t, toldThere.downs(), 1)
			sent, received := here.Traffic(), there.Traffic() // the old wire's put and the new one's
			require.Len(t, sent, 1)
			require.Len(t, received, 1)
			require.EqualValues(t, []uint64{2, 2}, []uint64{sent[0].SentPuts, received[0].ReceivedPuts})
			require.EqualValues(t, []uint64{4 * frame.HeaderSize, 4 * frame.HeaderSize}, []uint64{sent[0].SentBytes, received[0].ReceivedBytes},
				"two heads for each link: that it is open, and the put's")
			old.close()
			p.close(t)
		})
	}
}

// A rank that closes its network while a wire is being made has not died. If the peer has its end of the wire already, it
// learns of the close, whichever of the two dials.
func TestCloseWhileConnecting(t *testing.T) {
	r := testkit.Random(t)
	for _, dials := range []bool{false, true} {
		t.Run(fmt.Sprintf("dials %v", dials), func(t *testing.T) {
			met := 0
			rounds := testkit.Often(400)
			var takes time.Duration // to connect here, beside whatever else runs
			for round := -1; round < rounds; round++ {
				closes, hc := node(t, 0)
				stays, hs := node(t, 1)
				hc.rows.Store(1, stays.row)
				hs.rows.Store(0, closes.row)
				for _, n := range []*Node{closes, stays} {
					require.NoError(t, n.Join(transport.Comm{ID: commID, Places: 1}))
				}
				from, to := stays, 0
				if dials {
					from, to = closes, 1
				}
				begin := time.Now()
				link := from.Endpoint(commID, to, false)
				if round < 0 {
					require.NoError(t, link.Ready(within(t)))
					takes = time.Since(begin)
				} else {
					time.Sleep(time.Duration(r.Int64N(int64(takes) * 5 / 4)))
				}
				require.NoError(t, closes.Close(testkit.Limit), "round %d", round)
				stays.mu.Lock()
				w := stays.wires[0]
				stays.mu.Unlock()
				if w != nil {
					met++
					testkit.Eventually(t, func() bool { return w.Err() != nil })
					require.Equal(t, transport.Left, w.Err().Kind, "round %d: %v", round, w.Err())
				}
				require.NoError(t, stays.Close(testkit.Limit))
			}
			t.Logf("%d of %d wires were there", met, rounds)
			require.Positive(t, met)
		})
	}
}

// Ranks that dial each other at the same time get one wire, the same at both ends, which carries data.
func TestCrossing(t *testing.T) {
	r := testkit.Random(t)
	rounds := testkit.Often(300)
	for round := range rounds {
		const ranks = 4
		var nodes []*Node
		var told []*told
		for rank := range ranks {
			n, h := node(t, rank)
			nodes, told = append(nodes, n), append(told, h)
			for at, other := range nodes[:rank] {
				h.rows.Store(at, other.row)
				told[at].rows.Store(rank, n.row)
			}
		}
		var wires [ranks][ranks]*Wire
		var all sync.WaitGroup
		for i, n := range nodes {
			for j := range nodes {
				if i == j {
					continue
				}
				d, expected := time.Duration(r.IntN(3000))*time.Microsecond, r.IntN(4) == 0
				all.Go(func() {
					time.Sleep(d) // so that they meet at different points of the handshake
					w, err := n.connect(within(t), j, expected)
					if err != nil {
						t.Errorf("round %d: %v", round, err)
					}
					wires[i][j] = w
				})
			}
		}
		all.Wait()
		for i := range nodes {
			for j := range i {
				require.NotNil(t, wires[i][j])
				require.NotNil(t, wires[j][i])
				require.Equal(t, wires[i][j].attempt, wires[j][i].attempt, "ranks %d and %d", i, j)
				la, lb := links(t, wires[i][j], wires[j][i], uint64(1+i*ranks+j), 1)
				la.Put(0, 1, nil, 0)
				lb.until(t, 0, 1)
				lb.Put(0, 1, nil, 0)
				la.until(t, 0, 1)
			}
		}
		closeAll(t, nodes...)
		for _, h := range told {
			require.Empty(t, h.downs())
		}
	}
}

// If the lower rank reaches nobody, or nobody answers it, the higher one connects the two.
func TestConnectOtherWay(t *testing.T) {
	silent, err := stdnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	refusing, err := stdnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	refusing.Close()
	for name, l := range map[string]stdnet.Listener{"silent": silent, "refusing": refusing} {
		t.Run(name, func(t *testing.T) {
			a, _ := node(t, 0)
			b, _ := node(t, 1)
			row := b.row
			row.Port = netip.MustParseAddrPort(l.Addr().String()).Port()
			var ab *Wire
			var err error
			var two sync.WaitGroup
			two.Go(func() { ab, err = a.Connect(within(t), 1, row) })
			ba, errB := b.Connect(within(t), 0, a.row)
			two.Wait()
			require.NoError(t, err)
			require.NoError(t, errB)
			require.Equal(t, ab.attempt, ba.attempt)
			closeAll(t, a, b)
		})
	}
}

// A process of the job that says that it is another rank gets no wire, whatever it proves; the rank itself does.
func TestConnectOtherKey(t *testing.T) {
	a, _ := node(t, 0)
	b, toldB := node(t, 1)
	toldB.rows.Store(0, a.row)
	impostor, _ := node(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := impostor.Connect(ctx, 1, b.row)
	require.ErrorIs(t, err, fault.ErrTimeout)
	b.mu.Lock()
	require.Empty(t, b.wires)
	b.mu.Unlock()
	connect(t, a, b)
	closeAll(t, a, b, impostor)
}

// Until a rank knows the rows of all, its peers wait.
func TestConnectBeforeBegin(t *testing.T) {
	t.Setenv("UBCOLL_NET", "lo")
	a, _ := node(t, 0)
	b, err := New(transport.Config{Rank: 1, Secret: secret, RowOf: func(int) []byte { return a.Row() }})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = a.Connect(ctx, 1, b.row)
	require.ErrorIs(t, err, fault.ErrTimeout)
	require.ErrorContains(t, err, "no answer yet")
	_, err = b.connect(ctx, 0, false)
	require.ErrorIs(t, err, fault.ErrTimeout)
	b.Begin()
	w, err := a.Connect(within(t), 1, b.row)
	require.NoError(t, err)
	back, err := b.connect(within(t), 0, false)
	require.NoError(t, err)
	require.Equal(t, w.attempt, back.attempt)
	closeAll(t, a, b)
}

// The lower rank takes one attempt at a time: while it dials, the peer's connections go back. If the peer stops, that
// ends with its time limit.
func TestDecide(t *testing.T) {
	a, toldA := node(t, 0)
	b, toldB := node(t, 1)
	toldA.rows.Store(1, b.row)
	theirs, mine := [16]byte{1}, [16]byte{2}
	require.True(t, a.decide(1, theirs, 50*time.Millisecond))
	require.True(t, a.decide(1, theirs, 50*time.Millisecond))
	require.False(t, a.decide(1, mine, time.Hour))
	require.True(t, b.decide(0, mine, time.Hour), "the higher rank takes what the lower one has taken")
	testkit.Eventually(t, func() bool { return a.decide(1, mine, time.Hour) })
	require.False(t, a.decide(1, theirs, time.Second))
	a.decided(1, theirs) // is not decided for any more
	require.False(t, a.decide(1, theirs, time.Second))
	toldB.rows.Store(0, a.row)
	var err error
	for limit := 100 * time.Millisecond; !errors.Is(err, errCrossed) && limit < testkit.Limit; limit *= 2 { // time for a handshake
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err = b.connect(ctx, 0, false) // while the lower rank dials
		cancel()
	}
	require.ErrorIs(t, err, errCrossed)
	require.ErrorIs(t, err, fault.ErrTimeout)
	a.decided(1, mine)
	_, err = b.connect(within(t), 0, false)
	require.NoError(t, err)
	closeAll(t, a, b)
}
