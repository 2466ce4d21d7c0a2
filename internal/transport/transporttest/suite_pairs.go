package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// ended is a context that has ended.
func ended(t testing.TB, cause error) context.Context {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	return ctx
}

// made counts the calls of Comm.Made, and keeps the endpoints.
type made struct {
	mu  sync.Mutex
	eps map[[2]int][]transport.Endpoint
}

func (m *made) made(rank int, e transport.Endpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.eps == nil {
		m.eps = map[[2]int][]transport.Endpoint{}
	}
	m.eps[[2]int{rank, e.Peer()}] = append(m.eps[[2]int{rank, e.Peer()}], e)
}

func (m *made) of(rank, peer int) []transport.Endpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]transport.Endpoint(nil), m.eps[[2]int{rank, peer}]...)
}

// Before Begin, endpoints wait, and nobody asks for rows.
func testBegin(t *testing.T, s *suite) {
	j := s.idle(t, 2)
	var m made
	j.join(comm, 1, m.made)
	a := j.Nodes[0].Endpoint(comm, 1, false)
	require.Empty(t, a.Name())
	a.Put(0, 1, nil, 0)
	for range 100 {
		j.move()
	}
	j.Nodes[1].Begin()
	for range 100 {
		j.move()
	}
	require.Nil(t, a.Err())
	require.Empty(t, a.Name())
	require.Zero(t, a.Sent())
	require.Empty(t, m.of(1, 0))
	j.ranks[0].mu.Lock()
	require.Zero(t, j.ranks[0].rows)
	j.ranks[0].mu.Unlock()
	j.Nodes[0].Begin()
	require.NoError(t, j.ready(j.within(), a, 1))
	require.NotEmpty(t, a.Name())
	j.must("the peer has its side", func() bool { return len(m.of(1, 0)) == 1 })
	j.word(m.of(1, 0)[0], 0, 1)
	j.ranks[0].mu.Lock()
	defer j.ranks[0].mu.Unlock()
	require.Positive(t, j.ranks[0].rows)
}

// One side alone makes a pair. The peer's Made comes before the first put, which lands where Made has posted, and its
// Endpoint returns the same one.
func testPairByOne(t *testing.T, s *suite) {
	for _, way := range [][2]int{{0, 1}, {1, 0}} {
		for _, expected := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d to %d, expected %v", way[0], way[1], expected), func(t *testing.T) {
				j := s.job(t, 2)
				active, passive := way[0], way[1]
				var m made
				to := make([]byte, 100)
				j.join(comm, 2, func(rank int, e transport.Endpoint) {
					if rank == passive {
						e.Post(1, 1, at(to), len(to))
					}
					m.made(rank, e)
				})
				from := filled(100, 1)
				a := j.Nodes[active].Endpoint(comm, passive, expected)
				require.Same(t, a, m.of(active, passive)[0])
				a.Put(1, 1, at(from), len(from))
				require.NoError(t, j.ready(j.within(), a, passive))
				j.must("the peer has its side", func() bool { return len(m.of(passive, active)) == 1 })
				b := m.of(passive, active)[0]
				require.Equal(t, active, b.Peer())
				require.Same(t, b, j.Nodes[passive].Endpoint(comm, active, true))
				require.NoError(t, j.ready(j.within(), b, active))
				j.word(b, 1, 1)
				require.Equal(t, from, to)
				b.Put(0, 1, nil, 0)
				j.word(a, 0, 1)
				require.Len(t, m.of(active, passive), 1)
				require.Len(t, m.of(passive, active), 1)
				j.healthy()
			})
		}
	}
}

// All pairs of several nodes are made by both sides at random moments. Each is made once, and early puts arrive.
func testPairsByBoth(t *testing.T, s *suite) {
	const ranks = 5
	j := s.job(t, ranks)
	for round := range uint64(rounds(24)) {
		var m made
		var memory [ranks][ranks][8]byte
		j.join(round, 2, func(rank int, e transport.Endpoint) {
			e.Post(1, 1, at(memory[rank][e.Peer()][:]), 8)
			m.made(rank, e)
		})
		busy := j.busy(ranks)
		var all sync.WaitGroup
		for me := range ranks {
			r := rand.New(rand.NewPCG(j.random.Uint64(), 0))
			all.Go(func() {
				defer busy.done(me)
				var eps []transport.Endpoint
				var bufs [][]byte
				for _, peer := range r.Perm(ranks) {
					if peer == me {
						continue
					}
					for range r.IntN(4) {
						j.Nodes[me].Progress()
					}
					e := j.Nodes[me].Endpoint(round, peer, r.IntN(2) == 0)
					eps = append(eps, e)
					bufs = append(bufs, filled(8, round, uint64(me), uint64(peer)))
					e.Put(1, 1, at(bufs[len(bufs)-1]), 8)
				}
				j.until("all pairs are made, and all puts have come", func() bool {
					for _, e := range eps {
						if e.Err() != nil || !allSent(e) || e.Word(1).Load() != 1 {
							return e.Err() != nil
						}
					}
					return true
				}, me)
				for _, e := range eps {
					if err := e.Ready(j.t.Context()); err != nil {
						t.Errorf("rank %d: %v", me, err)
					}
					if !isFilled(memory[me][e.Peer()][:], round, uint64(e.Peer()), uint64(me)) {
						t.Errorf("rank %d got other bytes from rank %d", me, e.Peer())
					}
				}
			})
		}
		all.Wait()
		for x := range ranks {
			for y := range ranks {
				if x != y {
					require.Len(t, m.of(x, y), 1)
				}
			}
		}
		for i, n := range j.Nodes {
			if (round+uint64(i))%2 == 0 {
				n.Leave(round)
			}
		}
		if t.Failed() {
			return
		}
	}
	j.healthy()
}

// A pair waits for a communicator that the peer has not joined yet. Others go on.
func testPairBeforeJoin(t *testing.T, s *suite) {
	j := s.job(t, 2)
	a, b := j.pair(comm, 1)
	var m made
	require.NoError(t, j.Nodes[0].Join(member(8, 2, 0, m.made)))
	early := j.Nodes[0].Endpoint(8, 1, false)
	early.Put(0, 1, nil, 0)
	ready := make(chan error, 1)
	go func() { ready <- early.Ready(j.within()) }()
	for seq := uint64(1); seq <= 20; seq++ {
		a.Put(0, seq, nil, 0)
		j.word(b, 0, seq)
	}
	require.Nil(t, early.Err())
	require.Zero(t, early.Sent())
	require.Empty(t, ready)
	require.NoError(t, j.Nodes[1].Join(member(8, 2, 1, m.made)))
	j.must("the pair is made", func() bool { return len(ready) == 1 })
	require.NoError(t, <-ready)
	j.must("the peer has its side", func() bool { return len(m.of(1, 0)) == 1 })
	j.word(m.of(1, 0)[0], 0, 1)
	require.Len(t, m.of(1, 0), 1)
	j.healthy()
}

// Whoever gets an endpoint from Comm.Made may use it before that has returned, at both ends.
func testWithinMade(t *testing.T, s *suite) {
	j := s.job(t, 2)
	ready := make(chan error, 4)
	within := func(_ int, e transport.Endpoint) {
		used := make(chan struct{})
		go func() {
			e.Put(0, 1, nil, 0)
			e.Poll()
			go func() { ready <- e.Ready(j.within()) }()
			close(used)
		}()
		<-used
	}
	for active := range 2 {
		id := comm + 1 + uint64(active)
		for r, n := range j.Nodes {
			require.NoError(t, n.Join(member(id, 1, r, within)))
		}
		for _, r := range []int{active, 1 - active} {
			j.word(j.Nodes[r].Endpoint(id, 1-r, false), 0, 1)
		}
		j.must("both are ready", func() bool { return len(ready) == 2 })
		for range 2 {
			require.NoError(t, <-ready)
		}
	}
	closed := make(chan struct{})
	require.NoError(t, j.Nodes[0].Join(member(comm+3, 1, 0, func(_ int, e transport.Endpoint) {
		go func() { e.Close(); close(closed) }()
	})))
	e := j.Nodes[0].Endpoint(comm+3, 1, false)
	<-closed
	require.Error(t, e.Ready(j.within()))
	j.healthy()
}

// A pair of a communicator that the peer has left is refused, with an error that says so, and other communicators of
// the wire go on. One whose peer had made its side is not refused.
func testPairAfterLeave(t *testing.T, s *suite) {
	j := s.job(t, 2)
	a, b := j.pair(comm, 1)
	j.join(8, 1, nil)
	j.Nodes[1].Leave(8)
	refused := j.Nodes[0].Endpoint(8, 1, true)
	refused.Put(0, 1, nil, 0)
	err := j.ready(j.within(), refused, 1)
	require.ErrorIs(t, err, fault.ErrPeerLost)
	require.ErrorContains(t, err, "rank 1")
	require.ErrorContains(t, err, "has closed")
	j.must("the endpoint has the error", func() bool { return refused.Err() != nil })
	require.Equal(t, transport.Refused, refused.Err().Kind)
	require.Equal(t, 1, refused.Err().Peer)
	require.ErrorIs(t, j.Nodes[1].Join(member(8, 1, 1, nil)), fault.ErrInUse)
	require.ErrorIs(t, j.Nodes[0].Join(member(8, 1, 0, nil)), fault.ErrInUse)

	a.Put(0, 1, nil, 0)
	j.word(b, 0, 1)
	require.NoError(t, j.Nodes[1].Join(member(9, 1, 1, nil)))
	j.Nodes[1].Endpoint(9, 0, false)
	for range 100 {
		j.move()
	}
	j.Nodes[1].Leave(9)
	require.NoError(t, j.Nodes[0].Join(member(9, 1, 0, nil)))
	left := j.Nodes[0].Endpoint(9, 1, false)
	if err := j.ready(j.within(), left, 1); err != nil { // the peer's side is forgotten by now
		require.ErrorContains(t, err, "has closed")
	} else {
		left.Put(0, 1, nil, 0)
		j.sent(left)
	}
	b.Put(0, 1, nil, 0)
	j.word(a, 0, 1)

	for id, waits := range map[uint64]bool{10: false, 11: true} { // the peer never joins
		require.NoError(t, j.Nodes[0].Join(member(id, 1, 0, nil)))
		if !waits {
			j.Nodes[1].Leave(id)
		}
		e := j.Nodes[0].Endpoint(id, 1, true)
		if waits {
			for range 100 {
				j.move()
			}
			require.Nil(t, e.Err())
			j.Nodes[1].Leave(id)
		}
		j.must("it is refused", func() bool { return e.Err() != nil })
		require.Equal(t, transport.Refused, e.Err().Kind)
	}
	j.healthy()
}

// Sides of different numbers of places end the wire, and the error has both numbers.
func testPairPlaces(t *testing.T, s *suite) {
	j := s.job(t, 2)
	require.NoError(t, j.Nodes[0].Join(member(comm, 3, 0, nil)))
	require.NoError(t, j.Nodes[1].Join(member(comm, 4, 1, nil)))
	a, b := j.Nodes[0].Endpoint(comm, 1, true), j.Nodes[1].Endpoint(comm, 0, true)
	j.must("both know", func() bool { return a.Err() != nil && b.Err() != nil })
	for _, e := range []transport.Endpoint{a, b} {
		require.Equal(t, transport.Broken, e.Err().Kind)
		require.ErrorContains(t, e.Err(), "places")
		require.ErrorContains(t, e.Err(), "3")
		require.ErrorContains(t, e.Err(), "4")
		require.Error(t, e.Ready(j.within()))
	}
	// At least the rank whose side the other has found wrong; that one may have had no endpoint on the wire yet.
	j.must("one is told", func() bool { return len(j.ranks[0].lost())+len(j.ranks[1].lost()) > 0 })
}

// Puts and grants of both sides before there is a pair are kept, in order.
func testEarly(t *testing.T, s *suite) {
	j := s.job(t, 2)
	to := make([]byte, 200<<10)
	j.join(comm, 4, func(rank int, e transport.Endpoint) {
		if rank == 1 {
			e.Post(3, 1, at(to), len(to))
		}
	})
	from, granted := filled(len(to), 1), make([]byte, 50)
	a := j.Nodes[0].Endpoint(comm, 1, false)
	a.Put(3, 1, at(from), len(from))
	for seq := uint64(1); seq <= 100; seq++ {
		a.Put(0, seq, nil, 0)
		a.Put(1, 3*seq, nil, 0)
	}
	a.Grant(2, 9, at(granted), len(granted))
	require.EqualValues(t, 201, a.Queued())
	b := j.Nodes[1].Endpoint(comm, 0, false)
	b.Put(0, 5, nil, 0)
	b.Grant(0, 1000, at(to), 11)
	j.word(b, 3, 1)
	require.True(t, bytes.Equal(from, to))
	j.word(b, 0, 100)
	j.word(b, 1, 300)
	j.word(a, 0, 5)
	j.must("both are granted", func() bool { return b.Granted(2).Load() == 9 && a.Granted(0).Load() == 1000 })
	require.Equal(t, len(granted), b.Room(2))
	require.Equal(t, 11, a.Room(0))
	want := filled(len(granted), 2)
	b.Put(2, 9, at(want), len(want))
	j.word(a, 2, 9)
	require.Equal(t, want, granted)
	j.sent(a)
	j.sent(b)
	j.healthy()
}

// If the context of Ready ends first, its error says why it ended. Nobody uses such an endpoint: some networks give it up.
func testReady(t *testing.T, s *suite) {
	j := s.job(t, 2)
	why := &fault.Error{Op: "open", Rank: 0, Peer: 2, Err: fault.ErrPeerLost}
	cause := errors.New("the cause")
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	later, end := context.WithCancelCause(t.Context())
	defer end(nil)
	for i, c := range []struct {
		name string
		ctx  context.Context
		want []error
	}{
		{"ended", ended(t, nil), []error{fault.ErrTimeout, context.Canceled}},
		{"deadline", short, []error{fault.ErrTimeout, context.DeadlineExceeded}},
		{"cause", ended(t, cause), []error{fault.ErrTimeout, cause}},
		{"fault", ended(t, why), []error{why}},
		{"fault later", later, []error{why}},
	} {
		id := uint64(100 + i)
		require.NoError(t, j.Nodes[0].Join(member(id, 1, 0, nil)))
		e := j.Nodes[0].Endpoint(id, 1, true)
		waits := make(chan error)
		go func() { waits <- e.Ready(c.ctx) }()
		if c.name == "fault later" {
			end(why)
		}
		err := <-waits
		for _, w := range c.want {
			require.ErrorIs(t, err, w, c.name)
		}
		if f, ok := errors.AsType[*fault.Error](err); ok {
			require.Same(t, why, f, c.name)
		} else {
			require.ErrorContains(t, err, "rank 1", c.name)
		}
	}
	j.close(testkit.Limit)
	made := s.job(t, 2) // among those of before, a wire that one side has given up may still be ending at the other
	a, _ := made.pair(comm, 1)
	require.NoError(t, a.Ready(ended(t, why)), "it is made")
	made.healthy()
}

// Whoever asks for an endpoint gets the same one, at the same time, too.
func testOneEndpoint(t *testing.T, s *suite) {
	j := s.job(t, 2)
	var m made
	for c := range uint64(rounds(20)) {
		j.join(c, 1, m.made)
		var eps [2][4]transport.Endpoint
		var all sync.WaitGroup
		for me := range 2 {
			for k := range 4 {
				all.Go(func() { eps[me][k] = j.Nodes[me].Endpoint(c, 1-me, k%2 == 0) })
			}
		}
		all.Wait()
		for me := range 2 {
			require.NoError(t, j.ready(j.within(), eps[me][0], 1-me))
			for _, e := range eps[me] {
				require.Same(t, eps[me][0], e)
			}
			require.Same(t, eps[me][0], j.Nodes[me].Endpoint(c, 1-me, false))
			require.Len(t, m.of(me, 1-me), int(c)+1)
			require.Same(t, eps[me][0], m.of(me, 1-me)[c])
		}
	}
}
