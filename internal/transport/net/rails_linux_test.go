package net

import (
	"bytes"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// Rails are pairs of addresses in a subnet, one for each interface and subnet.
func TestRailsTo(t *testing.T) {
	for _, k := range []struct {
		name   string
		on     []local
		theirs string
		want   string
	}{
		{"no interfaces named", nil, "10.0.0.2 10.1.0.2", ""},
		{"two networks", host("eth0", "10.0.0.1/24", "eth1", "10.1.0.1/24"), "10.0.0.2 10.1.0.2", "eth0>10.0.0.2 eth1>10.1.0.2"},
		{"in our order", host("eth1", "10.1.0.1/24", "eth0", "10.0.0.1/24"), "10.0.0.2 10.1.0.2", "eth1>10.1.0.2 eth0>10.0.0.2"},
		{"one interface, both families", host("eth0", "10.0.0.1/24", "eth0", "fd77::1/64"), "10.0.0.2 fd77::2", ""},
		{"two of both", host("eth0", "10.0.0.1/24", "eth1", "10.1.0.1/24", "eth0", "fd77::1/64", "eth1", "fd78::1/64"),
			"10.0.0.2 10.1.0.2 fd77::2 fd78::2", "eth0>10.0.0.2 eth1>10.1.0.2"},
		{"the second network has IPv6 alone", host("eth0", "10.0.0.1/24", "eth1", "fd78::1/64"), "10.0.0.2 fd77::2 fd78::2", "eth0>10.0.0.2 eth1>fd78::2"},
		{"the peer has one", host("eth0", "10.0.0.1/24", "eth1", "10.1.0.1/24"), "10.0.0.2", ""},
		{"the peer's second is elsewhere", host("eth0", "10.0.0.1/24", "eth1", "10.1.0.1/24"), "10.0.0.2 10.2.0.2", ""},
		{"two interfaces in one subnet", host("eth0", "10.0.0.1/16", "eth1", "10.0.1.1/16"), "10.0.0.2 10.0.1.2", ""},
		{"none in common", host("eth0", "10.0.0.1/32", "eth1", "10.1.0.1/32"), "10.0.0.2 10.1.0.2", ""},
		{"three", host("a", "10.0.0.1/24", "b", "10.1.0.1/24", "c", "10.2.0.1/24"), "10.2.0.2 10.1.0.2 10.0.0.2", "a>10.0.0.2 b>10.1.0.2 c>10.2.0.2"},
	} {
		t.Run(k.name, func(t *testing.T) {
			var theirs []netip.Addr
			for _, s := range strings.Fields(k.theirs) {
				theirs = append(theirs, netip.MustParseAddr(s))
			}
			var got []string
			for _, r := range railsTo(k.on, theirs) {
				got = append(got, r.from.name+">"+r.to.String())
			}
			require.Equal(t, k.want, strings.Join(got, " "))
		})
	}
}

// Over two rails there are as many connections as rails, or as the table says, on both in turn. Both ends see the same.
func TestRails(t *testing.T) {
	for _, k := range []struct {
		connections int
		want        []int
	}{{0, []int{0, 1}}, {2, []int{0, 1}}, {5, []int{0, 1, 0, 1, 0}}} {
		twoRails(t)
		a, _ := nodeWith(t, transport.Config{Rank: 0, Connections: k.connections})
		b, _ := nodeWith(t, transport.Config{Rank: 1})
		ab, ba := connect(t, a, b)
		for _, w := range []*Wire{ab, ba} {
			var got []int
			for i := range w.data {
				got = append(got, w.data[i].rail)
			}
			require.Equal(t, k.want, got)
			require.Equal(t, "tcp rail0, rail1", w.name)
			for p := range 10 {
				require.Zero(t, w.data[w.home(p)].rail)
			}
		}
		closeAll(t, a, b)
	}
}

// What is true of one connection is true over two rails.
func TestOverRails(t *testing.T) {
	for name, f := range map[string]func(t *testing.T){"put": TestPut, "traffic": TestTraffic, "nobody polls": TestNobodyPolls,
		"revoke": TestRevoke, "closed midway": TestClosedMidway, "link close": TestLinkClose, "links go": TestLinksGo,
		"link closed early": TestLinkClosedEarly, "parts": TestParts, "old": TestOld,
		"death after put": TestDeathAfterPut, "left by reset": TestLeftByReset, "close drains": TestCloseDrains, "nothing stays": TestNothingStays} {
		t.Run(name, func(t *testing.T) {
			twoRails(t)
			f(t)
		})
	}
}

// busyRail is a pair over two rails, of which the first has more to send than the kernel takes, to place 0. The peer reads
// nothing before read is called. All places are granted 32 MiB.
func busyRail(t *testing.T, places int) (p *pair, from []byte, read func()) {
	t.Helper()
	twoRails(t)
	p = newPair(t, places)
	from = make([]byte, 32<<20)
	for i := range places {
		to := make([]byte, len(from))
		p.lb.Grant(i, 1, at(to), len(to))
	}
	testkit.Eventually(t, func() bool { p.lb.Poll(); return p.la.Granted(places-1).Load() == 1 })
	read = hold(t, p.b)
	p.la.Put(0, 1, at(from), len(from))
	require.Positive(t, p.ab.data[0].Queued())
	require.Zero(t, p.ab.data[1].Queued())
	return p, from, read
}

// Sent counts puts in their order, though a later one leaves before an earlier one that has another rail.
func TestSentInOrder(t *testing.T) {
	p, from, read := busyRail(t, 3)
	defer read()
	before := p.ab.data[1].traffic().SentPuts
	p.la.Put(1, 1, at(from), 2*frame.Short)
	require.Equal(t, before+1, p.ab.data[1].traffic().SentPuts, "the other rail is free")
	require.Zero(t, p.ab.data[1].Queued())
	p.la.Put(2, 1, nil, 0)
	require.Zero(t, p.la.Sent())
	require.EqualValues(t, 3, p.la.Queued())
	read()
	testkit.Eventually(t, func() bool { p.la.Poll(); return p.la.Sent() == 3 })
	p.close(t)
}

// Link.Close and a revocation count what they drop, also on the other rail, in order.
func TestSentOfDropped(t *testing.T) {
	for _, how := range []string{"close", "revoke", "revoked before"} {
		t.Run(how, func(t *testing.T) {
			p, from, read := busyRail(t, 3)
			defer read()
			p.la.Put(1, 1, at(from), len(from))
			require.Positive(t, p.ab.data[1].Queued())
			switch how {
			case "close":
				p.la.Close()
				require.EqualValues(t, 2, p.la.Sent())
			case "revoke":
				p.lb.Revoke(1, 1)
				p.lb.Poll()
				testkit.Eventually(t, func() bool { p.la.Poll(); return p.la.order.Load().sent[1].Load() == 1 }, "it is not withdrawn")
				require.Zero(t, p.la.Sent(), "the first is still under way")
			case "revoked before":
				p.lb.Revoke(2, 1)
				p.lb.Poll()
				testkit.Eventually(t, func() bool {
					p.la.Poll()
					p.la.putting.Lock()
					defer p.la.putting.Unlock()
					return p.la.places[2].theirs.revoked == 1
				})
				p.la.Put(2, 1, at(from), len(from))
				require.Zero(t, p.la.Sent())
			}
			read()
			testkit.Eventually(t, func() bool { p.la.Poll(); p.lb.Poll(); return p.la.Sent() == p.la.Queued() })
			require.Zero(t, p.lb.Revoking())
			p.close(t)
		})
	}
}

// Only a long put that answers a grant may take another connection than the last to its place, and none that follows one
// that answered no grant.
func TestChoose(t *testing.T) {
	const long = 2 * frame.Short
	type step struct {
		granted, seq uint64
		n, want      int
	}
	for name, steps := range map[string][]step{
		"long, granted":             {{1, 1, long, 1}},
		"short, granted":            {{1, 1, frame.Short, 0}},
		"long, posted":              {{0, 1, long, 0}},
		"empty after granted":       {{1, 1, long, 1}, {1, 2, 0, 1}},
		"granted after empty":       {{0, 1, 0, 0}, {2, 2, long, 0}},
		"granted after that":        {{0, 1, 0, 0}, {2, 2, long, 0}, {3, 3, long, 1}},
		"posted after granted":      {{1, 1, long, 1}, {1, 2, long, 1}, {3, 3, long, 1}, {4, 4, 8, 0}},
		"short after long, granted": {{1, 1, long, 1}, {2, 2, 8, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, read := busyRail(t, 3)
			defer read()
			p.la.putting.Lock()
			for i, s := range steps {
				x := &p.la.places[2]
				x.theirs.granted.Store(s.granted)
				require.Equal(t, s.want, p.la.choose(p.ab, frame.Header{Kind: frame.Put, Place: 2, Comm: commID, Seq: s.seq, Length: uint64(s.n)}), "put %d", i)
			}
			p.la.putting.Unlock()
			read()
			p.close(t)
		})
	}
}

// Puts that answer grants land whole over either rail, or do not land after their revocation: then nothing is written once
// that is done.
func TestRevokeOverRails(t *testing.T) {
	twoRails(t)
	const places = 6
	p := newPair(t, places)
	r := testkit.Random(t)
	from := bytes.Repeat([]byte("x"), 1<<20)
	var to [places][]byte
	tail := make([]byte, 1)
	for i := range to {
		to[i] = make([]byte, len(from))
	}
	rounds, seq, some := max(testkit.Often(200), 20), uint64(r.IntN(2)), [2]int{} // how many have landed, and not
	for round := range rounds {
		seq++
		n := 1 + r.IntN(len(from))
		p.ab.pacing.Lock() // so that this rail gets most, however idle both are
		p.ab.data[round%2].pace.share, p.ab.data[1-round%2].pace.share = horizon, 1
		p.ab.pacing.Unlock()
		for i := range to {
			clear(to[i])
			p.lb.Grant(i, seq, at(to[i]), n)
		}
		var before [places]int
		var both sync.WaitGroup
		both.Go(func() {
			for i := range places {
				testkit.Eventually(t, func() bool { p.la.Poll(); return p.la.Granted(i).Load() == seq })
				p.la.Put(i, seq, at(from), n)
			}
			testkit.Eventually(t, func() bool { p.la.Poll(); return p.la.Sent() == p.la.Queued() })
		})
		polls, lands := r.IntN(60), round%6 < 2 // on either rail
		both.Go(func() {
			for range polls {
				p.lb.Poll()
			}
			for i := range places {
				if lands {
					p.lb.until(t, i, seq)
				} else {
					p.lb.Revoke(i, seq)
				}
			}
			testkit.Eventually(t, func() bool { p.lb.Poll(); return p.lb.Revoking() == 0 })
			for i := range to {
				before[i] = bytes.Count(to[i], []byte("x"))
			}
		})
		both.Wait()
		for i := range to {
			if p.lb.Word(i).Load() == seq {
				some[0]++
				require.Equal(t, n, before[i])
			} else {
				some[1]++
				require.False(t, lands)
			}
		}
		seq += uint64(1 + r.IntN(2)) // on every place something comes behind what was put
		for i := range places {
			p.lb.Grant(i, seq, at(tail), 1)
			testkit.Eventually(t, func() bool { p.la.Poll(); p.lb.Poll(); return p.la.Granted(i).Load() == seq })
			p.la.Put(i, seq, at(from), 1)
			p.lb.until(t, i, seq)
			require.Equal(t, before[i], bytes.Count(to[i], []byte("x")), "written after it was revoked")
		}
	}
	require.Positive(t, some[0])
	require.Positive(t, some[1])
	for i := range p.ab.data {
		require.Greater(t, p.ab.data[i].traffic().SentBytes, uint64(len(from)), "rail %d", i)
	}
	p.close(t)
	require.Empty(t, p.toldA.downs())
	require.Empty(t, p.toldB.downs())
}

// Shares follow what connections carry while all are busy, and what one that finishes early shows of it.
func TestShares(t *testing.T) {
	twoRails(t)
	p := newPair(t, 1)
	w := p.ab
	for name, k := range map[string]struct {
		before, acked [2]float64
		was, is       [2]int
		counts        bool
	}{
		"all busy":                      {[2]float64{8 << 20, 8 << 20}, [2]float64{3 << 20, 1 << 20}, [2]int{1 << 20, 1 << 20}, [2]int{1 << 20, 1 << 20}, true},
		"one began":                     {[2]float64{8 << 20, 8 << 20}, [2]float64{3 << 20, 1 << 20}, [2]int{1 << 20, 0}, [2]int{1 << 20, 1 << 20}, false},
		"one has finished, no faster":   {[2]float64{8 << 20, 8 << 20}, [2]float64{3 << 20, 1 << 20}, [2]int{1 << 20, 1 << 20}, [2]int{1 << 20, 0}, false},
		"one has finished, faster":      {[2]float64{9 << 20, 1 << 20}, [2]float64{3 << 20, 1 << 20}, [2]int{1 << 20, 1 << 20}, [2]int{1 << 20, 0}, true},
		"both have finished":            {[2]float64{9 << 20, 1 << 20}, [2]float64{3 << 20, 1 << 20}, [2]int{1 << 20, 1 << 20}, [2]int{0, 0}, false},
		"nothing was acknowledged":      {[2]float64{8 << 20, 8 << 20}, [2]float64{}, [2]int{1 << 20, 1 << 20}, [2]int{1 << 20, 1 << 20}, true},
		"and one has had little to say": {[2]float64{8 << 20, 8 << 20}, [2]float64{3 << 20, little}, [2]int{1 << 20, little}, [2]int{1 << 20, little}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var now [transport.MostConnections]pace
			want := k.before
			for i := range w.data {
				w.data[i].pace = pace{acked: 5, waiting: k.was[i], share: k.before[i]}
				now[i] = pace{acked: 5 + uint64(k.acked[i]), waiting: k.is[i]}
				if k.counts {
					want[i] += k.acked[i]
				}
			}
			sum := w.learn(&now)
			require.Equal(t, want, [2]float64{w.data[0].pace.share, w.data[1].pace.share})
			require.Equal(t, want[0]+want[1], sum)
			require.Equal(t, now[1].acked, w.data[1].pace.acked)
		})
	}
	p.close(t)
}

// Puts go where they end first by the shares, and now and then to a rail that had none for long.
func TestSoonest(t *testing.T) {
	twoRails(t)
	p := newPair(t, 1)
	w := p.ab
	const n = 512 << 10
	testkit.Eventually(t, func() bool { return w.measure() == 0 && w.data[0].pace.waiting == 0 })
	set := func(a, b float64) { w.data[0].pace.share, w.data[1].pace.share = a, b }
	require.Equal(t, 0, w.soonest(n))
	for _, k := range []struct {
		a, b float64
		want int
	}{{0, known / 2, 0}, {3 << 20, 4 << 20, 1}, {4 << 20, 3 << 20, 0}, {30 << 20, 1, 0}} {
		set(k.a, k.b)
		require.Equal(t, k.want, w.soonest(n), "%v", k)
	}
	for _, share := range []float64{10 << 20, 1} { // of 30 MiB
		times := 0
		w.data[1].pace.last = w.chosen
		for {
			set(20<<20, share)
			if w.soonest(n) == 1 {
				break
			}
			times++
		}
		want := retry / max(share/(20<<20+share), least)
		require.InDelta(t, want, times, want/50)
		require.InDelta(t, known, w.data[0].pace.share+w.data[1].pace.share, 1)
	}
	p.close(t)
}

// A rail that is lost ends the wire at both ends, with the same error, whether something is under way on it or not.
// Meanwhile the control connection works.
func TestRailLost(t *testing.T) {
	testkit.LongOrRace(t)
	twoRails(t)
	var all sync.WaitGroup
	for i, busy := range []bool{true, false} {
		c := transport.Config{Rank: 2 * i, Timeout: time.Second}
		a, toldA := nodeWith(t, c)
		c.Rank++
		b, toldB := nodeWith(t, c)
		ab, ba := connect(t, a, b)
		la, lb := links(t, ab, ba, commID, 2)
		for _, d := range []*data{&ab.data[1], &ba.data[1]} {
			deafen(t, d.end.fd)
		}
		if busy {
			buf := make([]byte, 64<<10)
			lb.Grant(0, 1, at(buf), len(buf))
			testkit.Eventually(t, func() bool { lb.Poll(); return la.Granted(0).Load() == 1 })
			la.putting.Lock()
			ab.data[1].Put(frame.Header{Kind: frame.Put, Comm: commID, Seq: 1, Length: uint64(len(buf))}, at(buf), &la.order.Load().sent[1])
			la.putting.Unlock()
		}
		all.Go(func() {
			testkit.Eventually(t, func() bool { return la.Err() != nil && lb.Err() != nil })
			for _, d := range []*transport.Down{la.Err(), lb.Err()} {
				if d == nil {
					continue
				}
				if d.Kind != transport.Cut || d.Err.Error() != "no answer over rail1, between 127.0.1.1 and 127.0.1.1, for 1s (UBCOLL_NET_TIMEOUT)" {
					t.Errorf("busy %v: %v: %v", busy, d.Kind, d.Err)
				}
			}
			testkit.Eventually(t, func() bool { return len(toldA.downs()) == 1 && len(toldB.downs()) == 1 })
		})
	}
	all.Wait()
}

// The rail of the control connection is named, too.
func TestControlRailLost(t *testing.T) {
	twoRails(t)
	p := newPair(t, 1)
	p.ab.heard(syscall.ETIMEDOUT)
	require.Equal(t, transport.Cut, p.la.Err().Kind)
	// Whichever address of the peer has answered first: on a busy machine the second one may.
	require.Regexp(t, `no answer over rail0, between 127\.0\.0\.1 and 127\.0\.[01]\.1, for 5s \(UBCOLL_NET_TIMEOUT\)`, p.la.Err().Error())
	testkit.Eventually(t, func() bool { return p.lb.Err() != nil })
	p.close(t)
}

// A rail over which nobody answers is an error that names it.
func TestRailRefused(t *testing.T) {
	twoRails(t)
	a, _ := node(t, 0)
	b, toldB := node(t, 1)
	toldB.rows.Store(0, a.row)
	b.listeners[1].Close()
	_, err := a.Connect(within(t), 1, b.row)
	require.ErrorIs(t, err, fault.ErrPeerLost)
	require.ErrorContains(t, err, "interface rail1 (127.0.1.1): 127.0.1.1:")
	r := &rail{local{"eth1", netip.MustParsePrefix("10.1.0.1/24"), true}, netip.MustParseAddr("10.1.0.2")}
	require.EqualError(t, r.blame(syscall.ETIMEDOUT), "interface eth1 (10.1.0.1): connection timed out; both hosts have an address "+
		"of 10.1.0.0/24, and UBCOLL_NET names it on both: name fewer interfaces there if these carry nothing")
	closeAll(t, a, b)
}
