package transporttest

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// After Close, memory of writes is the caller's again, on both sides, even in the middle of them. What a side that is still
// open is called for is whole.
func testCloseMidwayOfWrites(t *testing.T, s *suite) {
	j := s.job(t, 2)
	oa, ob := j.pair(comm, 1)
	k := transport.Target{Key: 1}
	var called atomic.Int64
	for round := range rounds(24) {
		id := uint64(1000 + round)
		n := 4 << 20 // more than a connection takes at once
		if round%4 > 0 {
			n = 1 + j.random.IntN(200<<10)
		}
		to := [2][]byte{make([]byte, n), make([]byte, n)}
		sv := j.serve(id, 0, func(rank int, x *server) {
			x.allow(k, 0, to[rank])
			x.call = func([]byte) {
				x.look(func() {
					if called.Add(1); !isFilled(to[rank], id, uint64(1-rank)) {
						t.Errorf("rank %d: not what was written", rank)
					}
				})
			}
		})
		a, b := j.endpoints(id, 0, 1)
		from := [2][]byte{filled(n, id, 0), filled(n, id, 1)}
		closes := [2]int{j.random.IntN(20), j.random.IntN(20)} // after so many polls
		if k := round / 4 % 3; k < 2 {
			closes[k] = -1 // never
		}
		ends := [2]transport.Endpoint{a, b}
		var both sync.WaitGroup
		for me, e := range ends {
			both.Go(func() {
				e.Write(k, at(from[me]), n, true)
				e.Call([]byte{1})
				for range closes[me] {
					e.Poll()
				}
				if closes[me] < 0 {
					return
				}
				e.Close()
				sv.of(me, 1-me).end()
				fill(to[me], id, 2) // used for something else
				clear(from[me])
				e.Write(k, at(from[me]), n, false)
				e.Call([]byte{1})
				e.Withdraw(transport.Target{Key: 2}) // what is withdrawn may be missing
				e.Refuse(k)
			})
		}
		both.Wait()
		j.trips(oa, ob, 0)
		for me, e := range ends {
			j.sent(e)
			if closes[me] >= 0 {
				require.EqualValues(t, 4, e.Sent())
				require.True(t, isFilled(to[me], id, 2), "memory was written after Close")
			}
			require.Nil(t, e.Err())
		}
		for _, n := range j.Nodes {
			n.Leave(id)
		}
	}
	t.Logf("%d calls came", called.Load())
	j.healthy()
}

// Writes and calls to a peer that has left the communicator count as sent, and are served no more.
func testLeaveWithWrites(t *testing.T, s *suite) {
	j := s.job(t, 2)
	oa, ob := j.pair(8, 1)
	k := transport.Target{Key: 1}
	to := make([]byte, 100_000)
	sv := j.serve(comm, 0, func(_ int, x *server) { x.allow(k, 0, to) })
	a, b := j.endpoints(comm, 0, 1)
	from := filled(len(to), 1)
	for range 5 {
		a.Write(k, at(from), len(from), false)
		a.Call([]byte{1})
	}
	j.Nodes[1].Leave(comm)
	fill(to, 2)
	for range 5 {
		a.Write(k, at(from), len(from), false)
		a.Call([]byte{1})
	}
	b.Write(k, at(from), len(from), false)
	b.Call([]byte{1})
	j.sent(a)
	j.sent(b)
	j.trips(oa, ob, 0)
	require.True(t, isFilled(to, 2), "memory was written after Leave")
	require.LessOrEqual(t, sv.of(1, 0).served(), 5)
	require.Zero(t, sv.of(0, 1).served())
	require.Nil(t, a.Err())
	j.healthy()
}

// Close of a node sends the writes and calls that are under way.
func testCloseDrainsWrites(t *testing.T, s *suite) {
	const n = 8 << 20
	j := s.job(t, 2)
	k := transport.Target{Key: 1}
	to := make([]byte, n)
	sv := j.serve(comm, 0, func(_ int, x *server) { x.allow(k, 0, to) })
	a, b := j.endpoints(comm, 0, 1)
	from := filled(n, 1)
	a.Write(k, at(from), n, false)
	for range 100 {
		a.Call([]byte{1})
	}
	a.Write(transport.Target{Key: 1, Offset: n - 1}, at([]byte{5}), 1, true)
	j.closeOne(0, 1)
	j.must("the peer has left", func() bool { return b.Err() != nil }, 1)
	require.Equal(t, transport.Left, b.Err().Kind)
	require.Equal(t, 100, sv.of(1, 0).served())
	from[n-1] = 5
	require.True(t, bytes.Equal(from, to))
	j.healthy()
}

// writesUntil has rank 0 write to rank 1, and rank 1 to rank 0, while the wire ends, and checks that calls see what came
// before them, in order, that nothing is written or called after Err, and that memory is the caller's again.
func (j *job) writesUntil(end func(), kind transport.DownKind) {
	const n, writes = 1 << 20, 4
	t, k := j.t, transport.Target{Key: 1}
	to, back := make([]byte, n), make([]byte, n)
	sv := j.serve(comm, 0, func(rank int, x *server) {
		if rank == 0 {
			x.allow(k, 0, back)
			return
		}
		x.allow(k, 0, to)
		last := 0
		x.call = func(b []byte) {
			x.look(func() {
				if i := numberOf(b); i != last+1 || !isFilled(to, uint64(i)) {
					t.Errorf("call %d after %d, or with other bytes", i, last)
				}
				last++
			})
		}
	})
	a, b := j.endpoints(comm, 0, 1)
	var from [][]byte
	for i := 1; i <= writes; i++ {
		from = append(from, filled(n, uint64(i)))
		a.Write(k, at(from[i-1]), n, true)
		a.Call(number(i))
	}
	mine := filled(n, 9)
	b.Write(k, at(mine), n, false)
	for range j.random.IntN(20) {
		j.move()
	}
	end()
	x := sv.of(1, 0)
	j.must("the peer is lost", func() bool { return b.Err() != nil && (j.closed[0] || a.Err() != nil) })
	require.Equal(t, kind, b.Err().Kind)
	clear(mine)
	for _, b := range from {
		clear(b)
	}
	x.end()
	fill(to, 20)
	fill(back, 21)
	j.must("it is told", func() bool { return len(j.ranks[1].lost()) == 1 })
	calls := x.served()
	require.LessOrEqual(t, calls, writes)
	b.Write(k, at(mine), n, false)
	b.Call([]byte{1})
	b.Withdraw(k)
	b.Refuse(k)
	for range 100 {
		j.move()
	}
	require.True(t, isFilled(to, 20) && isFilled(back, 21), "memory was written after Err")
	require.Equal(t, calls, x.served())
	j.close(testkit.Limit)
}

// If a peer dies in the middle of writes, what came before lands, in order, before Err says so.
func testDeathMidwayOfWrites(t *testing.T, s *suite) {
	for range rounds(8) {
		j := s.job(t, 2)
		j.writesUntil(func() { j.kill(0) }, transport.Died)
	}
}

// So it is if the wire is cut.
func testCutMidwayOfWrites(t *testing.T, s *suite) {
	j := s.job(t, 2)
	if j.Cut == nil {
		t.Skip("nobody can cut this network")
	}
	j.writesUntil(func() { j.Cut(0, 1) }, transport.Cut)
}
