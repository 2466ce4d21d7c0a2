package transporttest

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// trips sends words to and fro, so that what else was under way has time to do harm.
func (j *job) trips(a, b transport.Endpoint, place int) {
	j.t.Helper()
	begin := a.Word(place).Load()
	for seq := begin + 1; seq <= begin+10; seq++ {
		a.Put(place, seq, nil, 0)
		j.word(b, place, seq)
		b.Put(place, seq, nil, 0)
		j.word(a, place, seq)
	}
}

// After Close, memory of puts and grants is the caller's again, even in the middle of puts in both directions. What
// lands at a side that is still open is whole.
func testCloseMidway(t *testing.T, s *suite) {
	j := s.job(t, 2)
	oa, ob := j.pair(comm, 1)
	landed := 0
	for round := range rounds(24) {
		id := uint64(1000 + round)
		n := 4 << 20 // more than a connection takes at once
		if round%4 > 0 {
			n = 1 + j.random.IntN(200<<10)
		}
		to := [2][]byte{make([]byte, n), make([]byte, n)}
		j.join(id, 2, func(rank int, e transport.Endpoint) { e.Post(0, 1, at(to[rank]), n) })
		a, b := j.endpoints(id, 0, 1)
		ends := [2]transport.Endpoint{a, b}
		from := [2][]byte{filled(n, id, 0), filled(n, id, 1)}
		closes := [2]int{j.random.IntN(20), j.random.IntN(20)} // after so many polls
		if k := round / 4 % 3; k < 2 {
			closes[k] = -1 // never
		}
		var both sync.WaitGroup
		for me, e := range ends {
			both.Go(func() {
				e.Put(0, 1, at(from[me]), n)
				e.Put(1, 1, nil, 0)
				for range closes[me] {
					e.Poll()
				}
				if closes[me] < 0 {
					return
				}
				e.Close()
				fill(to[me], id, 2) // used for something else
				clear(from[me])
				e.Close()
				e.Put(1, 2, at(from[me]), n)
			})
		}
		both.Wait()
		j.trips(oa, ob, 0)
		for me, e := range ends {
			j.sent(e)
			if closes[me] >= 0 {
				require.EqualValues(t, 3, e.Sent())
				require.True(t, isFilled(to[me], id, 2), "memory was written after Close")
				continue
			}
			if e.Word(0).Load() == 1 {
				landed++
				require.True(t, isFilled(to[me], id, uint64(1-me)), "not what was put")
			}
			require.Nil(t, e.Err())
		}
		for _, n := range j.Nodes {
			n.Leave(id)
		}
	}
	t.Logf("%d puts landed", landed)
	j.healthy()
}

// Communicators are independent: when one is closed, puts of the other go on, even those under way.
func testCloseOne(t *testing.T, s *suite) {
	const n = 8 << 20
	j := s.job(t, 2)
	a, b := j.pair(comm, 2)
	j.join(8, 2, nil)
	oa, ob := j.endpoints(8, 0, 1)
	from, to, other := filled(n, 1), make([]byte, n), make([]byte, n)
	b.Post(0, 1, at(to), n)
	ob.Post(0, 1, at(other), n)
	oa.Put(0, 1, at(from), n)
	a.Put(0, 1, at(from), n)
	oa.Close()
	ob.Close()
	j.word(b, 0, 1)
	require.True(t, bytes.Equal(from, to))
	ob.Put(1, 1, nil, 0)
	oa.Revoke(1, 1)
	j.must("the revocation is done", func() bool { return oa.Revoking() == 0 })
	j.trips(a, b, 1)
	require.Zero(t, oa.Word(1).Load())
	j.healthy()
}

// Leave closes all endpoints of a communicator. Peers' puts to them count as sent, and their revocations are done.
func testLeave(t *testing.T, s *suite) {
	j := s.job(t, 3)
	j.join(comm, 2, nil)
	j.join(8, 1, nil)
	oa, ob := j.endpoints(8, 0, 1)
	memory := make([]byte, 64)
	var mine, peers []transport.Endpoint
	for _, peer := range []int{1, 2} {
		a, b := j.endpoints(comm, 0, peer)
		a.Post(0, 1, at(memory[32*(peer-1):]), 32)
		a.Put(1, 1, nil, 0)
		mine, peers = append(mine, a), append(peers, b)
	}
	j.Nodes[0].Leave(comm)
	fill(memory, 1)
	from := filled(32, 2)
	for i, b := range peers {
		mine[i].Put(1, 2, nil, 0)
		j.sent(mine[i])
		b.Put(0, 1, at(from), len(from))
		b.Post(0, 1, at(make([]byte, 8)), 8)
		b.Revoke(0, 1)
		j.sent(b)
		j.must("the revocation is done", func() bool { return b.Revoking() == 0 })
		require.Nil(t, b.Err())
	}
	j.trips(oa, ob, 0)
	require.True(t, isFilled(memory, 1), "memory was written after Leave")
	require.ErrorIs(t, j.Nodes[0].Join(member(comm, 2, 0, nil)), fault.ErrInUse)
	j.healthy()
}

// A peer that closes its node has left: that is no failure. What it has put and told before arrives.
func testLeft(t *testing.T, s *suite) {
	j := s.job(t, 3)
	a, b := j.pair(comm, 1)
	c, d := j.endpoints(comm, 0, 2)
	a.Put(0, 3, nil, 0)
	a.Tell(transport.Message{Kind: 4})
	j.closeOne(0, 1, 2)
	for i, e := range []transport.Endpoint{b, d} {
		j.must("the peer has left", func() bool { return e.Err() != nil }, 1, 2)
		require.Equal(t, transport.Left, e.Err().Kind)
		require.ErrorIs(t, e.Err(), fault.ErrClosed)
		require.NotErrorIs(t, e.Err(), fault.ErrPeerLost)
		require.ErrorContains(t, e.Err(), "rank 0")
		e.Put(0, 1, nil, 0)
		e.Poll()
		e.Tell(transport.Message{})
		e.Close()
		require.Len(t, j.ranks[1+i].messages(), 1-i)
	}
	require.EqualValues(t, 3, b.Word(0).Load())
	require.Equal(t, transport.Left, a.Err().Kind)
	require.Equal(t, transport.Left, c.Err().Kind)
	again := j.Nodes[1].Endpoint(comm, 0, true)
	require.Error(t, again.Err())
	j.join(8, 1, nil)
	late := j.Nodes[1].Endpoint(8, 0, false)
	require.Error(t, late.Ready(j.within()))
	x, y := j.endpoints(8, 1, 2)
	j.must("those who are left go on", func() bool { return x.Err() == nil && y.Err() == nil }, 1, 2)
	j.trips2(x, y, 1, 2)
	j.healthy()
}

// trips2 is trips between the nodes of ranks x and y, when others are closed.
func (j *job) trips2(a, b transport.Endpoint, x, y int) {
	j.t.Helper()
	for seq := uint64(1); seq <= 10; seq++ {
		a.Put(0, seq, nil, 0)
		j.must("the word has come", func() bool { return b.Word(0).Load() == seq }, x, y)
		b.Put(0, seq, nil, 0)
		j.must("the word has come", func() bool { return a.Word(0).Load() == seq }, x, y)
	}
}

// closeOne closes a rank's node while others make progress.
func (j *job) closeOne(rank int, others ...int) {
	j.t.Helper()
	done := make(chan error, 1)
	j.closed[rank] = true
	go func() { done <- j.Nodes[rank].Close(testkit.Limit) }()
	var err error
	j.must("the node is closed", func() bool {
		select {
		case err = <-done:
			return true
		default:
			return false
		}
	}, others...)
	require.NoError(j.t, err)
}

// Close of a node sends what is under way: large puts, in the order of their places, and messages.
func testCloseDrains(t *testing.T, s *suite) {
	const n = 8 << 20
	j := s.job(t, 2)
	a, b := j.pair(comm, 3)
	from, to := filled(n, 1), make([]byte, 2*n)
	b.Post(0, 1, at(to), n)
	b.Post(1, 1, at(to[n:]), n)
	a.Put(0, 1, at(from), n)
	a.Put(1, 1, at(from), n)
	for seq := uint64(1); seq <= 100; seq++ {
		a.Put(2, seq, nil, 0)
	}
	for i := range 20 {
		a.Tell(transport.Message{About: int32(i)})
	}
	j.closeOne(0, 1)
	clear(from)
	j.must("the peer has left", func() bool { return b.Err() != nil }, 1)
	require.Equal(t, transport.Left, b.Err().Kind)
	require.EqualValues(t, 1, b.Word(0).Load())
	require.EqualValues(t, 1, b.Word(1).Load())
	require.EqualValues(t, 100, b.Word(2).Load())
	require.True(t, isFilled(to[:n], 1) && isFilled(to[n:], 1))
	require.Len(t, j.ranks[1].messages(), 20)
	require.NoError(t, j.Nodes[0].Close(0), "once more")
	j.healthy()
}

// Nothing stays of communicators that were closed: no goroutine, no descriptor, no pair.
func testNothingStays(t *testing.T, s *suite) {
	j := s.job(t, 2)
	oa, ob := j.pair(comm, 1)
	j.trips(oa, ob, 0)
	pairs := func(rank int) int {
		if j.Pairs == nil {
			return 0
		}
		return j.Pairs(rank)
	}
	before := [2]int{pairs(0), pairs(1)}
	goroutines, descriptors := runtime.NumGoroutine(), testkit.Descriptors(t)
	buf, to := make([]byte, 100<<10), make([]byte, 100<<10)
	for round := range rounds(40) {
		id := uint64(100 + round)
		j.join(id, 2, func(rank int, e transport.Endpoint) {
			if rank == 1 {
				e.Post(1, 1, at(to), len(to))
			}
		})
		a := j.Nodes[0].Endpoint(id, 1, true)
		a.Put(1, 1, at(buf), j.random.IntN(len(buf)))
		if round%4 > 0 {
			b := j.Nodes[1].Endpoint(id, 0, true)
			b.Revoke(0, 1)
			b.Grant(0, 2, at(buf), 1)
			if round%4 == 1 {
				j.word(b, 1, 1)
			}
			b.Close()
		}
		if round%2 == 0 {
			a.Close()
		}
		first := j.random.IntN(2)
		j.Nodes[first].Leave(id)
		for range j.random.IntN(10) {
			j.move()
		}
		j.Nodes[1-first].Leave(id)
	}
	j.must("no pair stays", func() bool { return pairs(0) <= before[0] && pairs(1) <= before[1] })
	j.must("no goroutine stays", func() bool { return runtime.NumGoroutine() <= goroutines })
	j.must("no descriptor stays", func() bool { return testkit.Descriptors(t) <= descriptors })
	j.trips(oa, ob, 0)
	j.healthy()
}

// The death of a peer is reported once, after all its endpoints have the error, and others go on.
func testDeath(t *testing.T, s *suite) {
	j := s.job(t, 3)
	a, b := j.pair(comm, 1)
	j.join(8, 1, nil)
	_, d := j.endpoints(8, 0, 1)
	x, y := j.endpoints(comm, 1, 2)
	a.Put(0, 1, nil, 0)
	j.word(b, 0, 1)
	j.ranks[1].mu.Lock()
	j.ranks[1].down = func() {
		if b.Err() == nil || d.Err() == nil {
			t.Error("told before Err")
		}
	}
	j.ranks[1].mu.Unlock()
	j.kill(0)
	j.must("it is told", func() bool { return len(j.ranks[1].lost()) == 1 }, 1, 2)
	for _, e := range []transport.Endpoint{b, d} {
		require.Equal(t, transport.Died, e.Err().Kind)
		require.ErrorIs(t, e.Err(), fault.ErrPeerLost)
		require.ErrorContains(t, e.Err(), "rank 0")
		require.Same(t, e.Err(), j.ranks[1].lost()[0])
		e.Put(0, 2, nil, 0)
		e.Poll()
		e.Tell(transport.Message{})
		e.Close()
	}
	j.join(9, 1, nil)
	late := j.Nodes[1].Endpoint(9, 0, false)
	require.ErrorIs(t, late.Ready(j.within()), fault.ErrPeerLost)
	never := j.Nodes[2].Endpoint(9, 0, false) // these two had no wire
	require.ErrorIs(t, never.Ready(j.within()), fault.ErrPeerLost)
	j.must("the endpoint has the error", func() bool { return never.Err() != nil }, 1, 2)
	j.trips2(x, y, 1, 2)
	require.Len(t, j.ranks[1].lost(), 1)
	require.Empty(t, j.ranks[2].lost())
}

// If a peer dies in the middle of puts, each one lands whole or without a word, before Err says so. Then memory is the
// caller's again.
func testDeathMidway(t *testing.T, s *suite) {
	const n, places = 1 << 20, 4
	for range rounds(8) {
		j := s.job(t, 2)
		a, b := j.pair(comm, places)
		from, to := filled(n, 1), make([]byte, places*n)
		back, mine := make([]byte, n), filled(n, 3)
		a.Post(0, 1, at(back), n)
		for p := range places {
			b.Post(p, 1, at(to[p*n:]), n)
			a.Put(p, 1, at(from), n)
		}
		b.Put(0, 1, at(mine), n)
		for range j.random.IntN(20) {
			j.move()
		}
		j.kill(0)
		clear(from)
		j.must("the peer is lost", func() bool { return b.Err() != nil }, 1)
		clear(mine)
		require.Equal(t, transport.Died, b.Err().Kind)
		for p := range places {
			if b.Word(p).Load() == 1 {
				require.True(t, isFilled(to[p*n:][:n], 1), "place %d has other bytes", p)
			}
		}
		fill(to, 2)
		for range 100 {
			j.move(1)
		}
		require.True(t, isFilled(to, 2), "memory was written after Err")
		j.must("it is told", func() bool { return len(j.ranks[1].lost()) == 1 }, 1)
		j.close(testkit.Limit)
	}
}

// If two ranks no longer hear each other, both say that the wire was cut, and others go on.
func testCut(t *testing.T, s *suite) {
	j := s.job(t, 3)
	if j.Cut == nil {
		t.Skip("nobody can cut this network")
	}
	cutOne(t, j, func() { j.Cut(0, 1) })
}

// A node that is cut off by its own Cut finds so itself, as do its peers.
func testCutOff(t *testing.T, s *suite) {
	j := s.job(t, 3)
	cutOne(t, j, func() {
		err := j.Nodes[1].Cut()
		if errors.Is(err, syscall.EPERM) {
			t.Skip("this machine lets users attach no filter to a socket")
		}
		require.NoError(t, err)
	})
}

// cutOne has cut end all between ranks 0 and 1, of three.
func cutOne(t *testing.T, j *job, cut func()) {
	const n = 1 << 20
	a, b := j.pair(comm, 2)
	ac, ca := j.endpoints(comm, 0, 2)
	from, to := filled(n, 1), make([]byte, n)
	b.Post(0, 1, at(to), n)
	a.Put(0, 1, at(from), n)
	b.Revoke(1, 1)
	cut()
	a.Put(1, 5, nil, 0)
	j.must("both notice", func() bool { return a.Err() != nil && b.Err() != nil })
	require.Zero(t, b.Revoking())
	for _, e := range []transport.Endpoint{a, b} {
		require.Equal(t, transport.Cut, e.Err().Kind)
		require.ErrorIs(t, e.Err(), fault.ErrPeerLost)
	}
	if b.Word(0).Load() == 1 {
		require.True(t, isFilled(to, 1))
	}
	fill(to, 2)
	clear(from)
	j.must("both are told", func() bool { return len(j.ranks[0].lost()) == 1 && len(j.ranks[1].lost()) == 1 })
	require.Same(t, a.Err(), j.ranks[0].lost()[0])
	j.trips2(ac, ca, 0, 2)
	require.True(t, isFilled(to, 2), "memory was written after Err")
	require.Empty(t, j.ranks[2].lost())
}
