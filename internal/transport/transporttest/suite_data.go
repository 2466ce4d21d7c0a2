package transporttest

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// Puts of every size land whole, followed by their word. Grants may be of other memory each time.
func testPuts(t *testing.T, s *suite) {
	j := s.job(t, 2)
	a, b := j.pair(comm, 4)
	require.Equal(t, 1, a.Peer())
	require.Equal(t, 0, b.Peer())
	name, connections := j.Nodes[0].Transport()
	require.NotEmpty(t, name)
	require.Positive(t, connections)
	require.True(t, strings.HasPrefix(a.Name(), name), a.Name())
	for i, n := range []int{0, 1, 8, 4095, 4096, 4097, 1 << 20, 20 << 20} {
		seq := uint64(i + 1)
		from, to := filled(n, seq), make([]byte, n+8)
		if n > 0 {
			b.Grant(2, seq, at(to), n)
			j.must("it is granted", func() bool { return a.Granted(2).Load() == seq })
			require.Equal(t, n, a.Room(2))
		}
		a.Put(2, seq, at(from), n)
		require.Equal(t, seq, a.Queued())
		j.must("it lands", func() bool {
			landed := b.Word(2).Load() == seq
			require.True(t, !landed || bytes.Equal(from, to[:n]), "%d bytes: the word came before them", n)
			return landed
		})
		require.Equal(t, n, b.Landed(2))
		require.Equal(t, make([]byte, 8), to[n:])
		j.sent(a)
		require.Equal(t, seq, a.Sent())
	}
	require.Zero(t, b.Queued())
	j.healthy()
}

// Posted slots are used again and again, in turn, without a message: the peer learns from a word that one is free.
func testPosts(t *testing.T, s *suite) {
	const slots, room = 2, 3000
	const credit = slots // the place after the slots is the words'
	last := uint64(rounds(300))
	var memory [2][slots][]byte
	j := s.job(t, 2)
	busy := j.busy(2)
	j.join(comm, slots+1, func(rank int, e transport.Endpoint) {
		for i := range slots {
			memory[rank][i] = make([]byte, room)
			e.Post(i, uint64(i)+slots, at(memory[rank][i]), room) // sequence q goes to slot q mod slots
		}
	})
	var all sync.WaitGroup
	for me := range 2 {
		r := rand.New(rand.NewPCG(j.random.Uint64(), 0))
		all.Go(func() {
			e := j.Nodes[me].Endpoint(comm, 1-me, true)
			puts, taken := uint64(slots), uint64(slots)
			var bufs [][]byte // in use until they are sent
			j.until("all slots have been used", func() bool {
				if taken < last && e.Word(int(taken%slots)).Load() == taken && r.IntN(3) > 0 {
					b := memory[me][taken%slots]
					if n := e.Landed(int(taken % slots)); !isFilled(b[:n], uint64(1-me), taken) {
						t.Errorf("rank %d: %d bytes of sequence %d differ", me, n, taken)
					}
					e.Post(int(taken%slots), taken+slots, at(b), room)
					e.Put(credit, taken+slots, nil, 0)
					taken++
				}
				if puts < last && (puts < 2*slots || e.Word(credit).Load() >= puts) {
					b := filled(1+r.IntN(room), uint64(me), puts)
					bufs = append(bufs, b)
					e.Put(int(puts%slots), puts, at(b), len(b))
					puts++
				}
				return puts == last && taken == last && allSent(e)
			}, me)
			busy.done(me)
		})
	}
	all.Wait()
	j.healthy()
}

// Words only rise, and the last one comes, whatever the order of places.
func testWords(t *testing.T, s *suite) {
	const places = 3
	j := s.job(t, 2)
	a, b := j.pair(comm, places)
	last := uint64(rounds(2000))
	busy := j.busy(2)
	var both sync.WaitGroup
	both.Go(func() {
		defer busy.done(0)
		for seq := uint64(1); seq <= last; seq++ {
			for p := range places {
				a.Put(p, seq, nil, 0)
			}
			if seq%64 == 0 && !j.until("few puts are under way", func() bool { return a.Queued()-a.Sent() < 64 }, 0) {
				return
			}
		}
		j.until("all puts are sent", func() bool { return allSent(a) }, 0)
	})
	both.Go(func() {
		defer busy.done(1)
		var seen [places]uint64
		j.until("the last words come", func() bool {
			all := true
			for p := range places {
				w := b.Word(p).Load()
				if w < seen[p] {
					t.Errorf("the word of place %d was %d, and is %d", p, seen[p], w)
				}
				seen[p] = w
				all = all && w == last
			}
			return all
		}, 1)
	})
	both.Wait()
	require.EqualValues(t, places*last, a.Queued())
	j.healthy()
}

// stream is one communicator's use of an endpoint in both directions: each grant is a credit.
type stream struct {
	j        *job
	e        transport.Endpoint
	me       int
	r        *rand.Rand
	last     uint64
	sent     []uint64 // last sequence put, by place
	taken    []uint64 // last sequence received
	granted  []uint64
	memory   [][]byte
	bufs     [][]byte
	sizes    []int
	comm     uint64
	finished bool
}

// step does what can be done now, and reports whether all is done.
func (x *stream) step() bool {
	e, done := x.e, allSent(x.e)
	for p := range x.sent {
		if x.granted[p] == x.taken[p] && x.granted[p] < x.last {
			x.granted[p]++
			x.memory[p] = make([]byte, x.sizes[x.r.IntN(len(x.sizes))])
			e.Grant(p, x.granted[p], at(x.memory[p]), len(x.memory[p]))
		}
		if x.granted[p] > x.taken[p] && e.Word(p).Load() >= x.granted[p] && x.r.IntN(3) > 0 { // else a slow reader
			x.taken[p]++
			n := e.Landed(p)
			if w := e.Word(p).Load(); w != x.taken[p] || n > len(x.memory[p]) {
				x.j.t.Errorf("word %d and %d bytes, after a grant of sequence %d of %d bytes", w, n, x.taken[p], len(x.memory[p]))
				return true
			}
			if !isFilled(x.memory[p][:n], x.comm, uint64(x.me), uint64(p), x.taken[p]) {
				x.j.t.Errorf("%d bytes of communicator %d, place %d, sequence %d differ", n, x.comm, p, x.taken[p])
			}
			if !bytes.Equal(x.memory[p][n:], make([]byte, len(x.memory[p])-n)) {
				x.j.t.Errorf("more than %d bytes were written", n)
			}
		}
		if g := e.Granted(p).Load(); g > x.sent[p] {
			x.sent[p] = g
			n := 1 + x.r.IntN(e.Room(p))
			b := filled(n, x.comm, uint64(e.Peer()), uint64(p), g)
			x.bufs = append(x.bufs, b)
			e.Put(p, g, at(b), n)
		}
		done = done && x.sent[p] == x.last && x.taken[p] == x.last
	}
	return done
}

func allSent(e transport.Endpoint) bool { return e.Sent() == e.Queued() }

// Several communicators of three ranks, places and sizes, in all directions, with slow readers and different ways to
// wait: all bytes land where they belong.
func testTraffic(t *testing.T, s *suite) {
	const ranks, places = 3, 3
	comms, last := uint64(3), uint64(rounds(24))
	j := s.job(t, ranks)
	for c := range comms {
		j.join(c, places, nil)
	}
	busy := j.busy(ranks * int(comms))
	var all sync.WaitGroup
	for me := range ranks {
		for c := range comms {
			seed := j.random.Uint64()
			all.Go(func() {
				defer busy.done(me)
				r := rand.New(rand.NewPCG(seed, 0))
				var streams []*stream
				for peer := range ranks {
					if peer != me {
						streams = append(streams, &stream{j: j, e: j.Nodes[me].Endpoint(c, peer, r.IntN(2) == 0), me: me, r: r,
							last: last, sent: make([]uint64, places), taken: make([]uint64, places), granted: make([]uint64, places),
							memory: make([][]byte, places), sizes: []int{1, 8, 100, 4064, 4096, 5000, 64 << 10, 300 << 10}, comm: c})
					}
				}
				for begin := time.Now(); ; {
					done := true
					for _, x := range streams {
						x.finished = x.finished || x.step()
						done = done && x.finished
						if d := x.e.Err(); d != nil {
							t.Errorf("rank %d: %v", me, d)
							return
						}
					}
					if done || t.Failed() {
						return
					}
					if time.Since(begin) > testkit.Limit {
						t.Errorf("rank %d, communicator %d: nothing moves", me, c)
						return
					}
					switch r.IntN(3) {
					case 0:
						streams[r.IntN(len(streams))].e.Poll()
					case 1:
						j.Nodes[me].Progress()
					case 2:
						j.Nodes[me].Wait(time.Millisecond)
					}
				}
			})
		}
	}
	all.Wait()
	j.healthy()
}

// A small put lands before a large one of another communicator that was put before it and is under way. Now and then the
// large one is over by then.
func testSmallBesideLarge(t *testing.T, s *suite) {
	const n = 32 << 20
	j := s.job(t, 2)
	a, b := j.pair(comm, 1)
	j.join(8, 1, nil)
	oa, ob := j.endpoints(8, 0, 1)
	from, to, small, there := filled(n, 1), make([]byte, n), filled(8, 2), make([]byte, 8)
	overtaken := false
	for seq := uint64(1); !overtaken; seq++ {
		require.LessOrEqual(t, seq, uint64(20), "it never does")
		clear(there)
		b.Post(0, seq, at(to), n)
		ob.Post(0, seq, at(there), len(there))
		a.Put(0, seq, at(from), n)
		oa.Put(0, seq, at(small), len(small))
		j.must("both land", func() bool {
			landed := ob.Word(0).Load() == seq
			overtaken = overtaken || landed && b.Word(0).Load() < seq
			return landed && b.Word(0).Load() == seq
		})
		require.Equal(t, small, there)
	}
	require.True(t, bytes.Equal(from, to))
	j.sent(a)
	j.sent(oa)
	j.healthy()
}

// Data lands for a rank that does something else.
func testNobodyPolls(t *testing.T, s *suite) {
	j := s.job(t, 2)
	if !j.Background {
		t.Skip("this network moves nothing without its users")
	}
	a, b := j.pair(comm, 2)
	from, to := filled(8<<20, 1), make([]byte, 8<<20)
	b.Grant(0, 1, at(to), len(to))
	b.Poll() // so that the grant leaves
	testkit.Eventually(t, func() bool { return a.Granted(0).Load() == 1 })
	a.Put(0, 1, at(from), len(from))
	testkit.Eventually(t, func() bool { return b.Word(0).Load() == 1 && a.Sent() == 1 })
	require.Equal(t, from, to)
	b.Revoke(1, 5)
	testkit.Eventually(t, func() bool { return b.Revoking() == 0 })
	a.Tell(transport.Message{Comm: comm})
	testkit.Eventually(t, func() bool { return len(j.ranks[1].messages()) == 1 })
	j.healthy()
}

// Who only waits moves all that there is, in both roles.
func testWait(t *testing.T, s *suite) {
	j := s.job(t, 2)
	a, b := j.pair(comm, 1)
	busy := j.busy(2)
	var both sync.WaitGroup
	for me, e := range []transport.Endpoint{a, b} {
		both.Go(func() {
			defer busy.done(me)
			for seq, begin := uint64(1), time.Now(); seq <= 50; seq++ {
				if me == 0 {
					e.Put(0, seq, nil, 0)
				}
				for e.Word(0).Load() < seq && time.Since(begin) < testkit.Limit && !t.Failed() {
					j.Nodes[me].Wait(time.Second)
				}
				if w := e.Word(0).Load(); w != seq {
					t.Errorf("the word is %d, not %d", w, seq)
					return
				}
				if me == 1 {
					e.Put(0, seq, nil, 0)
				}
			}
			j.until("all puts are sent", func() bool { return allSent(e) }, me)
		})
	}
	both.Wait()
	for range 3 {
		j.Nodes[0].Wait(time.Millisecond) // returns
	}
	j.healthy()
}

// Messages come in order, of the greatest length too, whatever communicator they are about.
func testTell(t *testing.T, s *suite) {
	const count = 50
	j := s.job(t, 2)
	a, b := j.pair(comm, 1)
	message := func(from, i int) transport.Message {
		return transport.Message{Comm: uint64(i) << 55, Kind: uint8(from + 1), Code: uint8(255 - i), About: int32(i - 1),
			Text: strings.Repeat(string(rune('a'+i%26)), i*transport.MaxText/(count-1))}
	}
	for i := range count {
		a.Tell(message(0, i))
		b.Tell(message(1, i))
	}
	j.must("all messages come", func() bool { return len(j.ranks[0].messages()) == count && len(j.ranks[1].messages()) == count })
	for me := range 2 {
		for i, h := range j.ranks[me].messages() {
			require.Equal(t, heard{1 - me, message(1-me, i)}, h)
		}
	}
	a.Tell(transport.Message{Text: strings.Repeat("y", transport.MaxText+1)})
	j.must("one more comes", func() bool { return len(j.ranks[1].messages()) == count+1 })
	require.Equal(t, strings.Repeat("y", transport.MaxText), j.ranks[1].messages()[count].m.Text)
	j.healthy()
}

// Tick is called while there is a wire, even if another goroutine makes progress all the time.
func testTick(t *testing.T, s *suite) {
	j := s.job(t, 2)
	j.pair(comm, 1)
	testkit.Eventually(t, func() bool { return j.ranks[0].ticked() > 1 && j.ranks[1].ticked() > 1 })
	before := j.ranks[0].ticked()
	j.must("it is called beside others' progress", func() bool { return j.ranks[0].ticked() > before+1 })
}

// Once a revocation is done, nothing is written any more, whenever the put came. What landed before is whole, and later
// sequences work.
func testRevokePut(t *testing.T, s *suite) {
	const room = 4 << 20
	j := s.job(t, 2)
	a, b := j.pair(comm, 2)
	to := make([]byte, room)
	landed := 0
	for i := range rounds(60) {
		seq := uint64(2*i + 1)
		n := room // more than a connection takes at once
		if i%4 > 0 {
			n = 1 + j.random.IntN(64<<10)
		}
		from := filled(n, seq)
		clear(to)
		b.Grant(0, seq, at(to), n)
		if i%3 > 0 {
			j.must("it is granted", func() bool { return a.Granted(0).Load() == seq })
		}
		polls := [2]int{j.random.IntN(40), j.random.IntN(30)}
		var both sync.WaitGroup
		both.Go(func() {
			for range polls[0] {
				a.Poll()
			}
			a.Put(0, seq, at(from), n) // perhaps before the grant is told, or after it is revoked
		})
		both.Go(func() {
			for range polls[1] {
				b.Poll()
			}
			b.Revoke(0, seq)
			for range 40 {
				b.Poll()
			}
		})
		both.Wait()
		j.must("the revocation is done", func() bool { return b.Revoking() == 0 })
		j.sent(a)
		word := b.Word(0).Load()
		if word == seq {
			landed++
			require.True(t, bytes.Equal(from, to[:n]), "half of it has landed")
		}
		fill(to[:n], seq, 1) // the memory is used for something else
		clear(from)
		a.Put(1, seq, nil, 0) // comes after it
		j.word(b, 1, seq)
		require.Equal(t, word, b.Word(0).Load(), "it landed later")
		require.True(t, isFilled(to[:n], seq, 1), "written after it was revoked")

		small := filled(9, seq+1)
		b.Grant(0, seq+1, at(to), len(small))
		j.must("it is granted", func() bool { return a.Granted(0).Load() == seq+1 })
		a.Put(0, seq+1, at(small), len(small))
		j.word(b, 0, seq+1)
		require.Equal(t, small, to[:len(small)])
	}
	t.Logf("%d puts landed", landed)
	j.sent(a)
	j.healthy()
}

// A revocation is done whether the peer puts or not. Many may be under way.
func testRevokeWithoutPuts(t *testing.T, s *suite) {
	const places = 8
	j := s.job(t, 2)
	a, b := j.pair(comm, places)
	to := make([]byte, places)
	for round := range uint64(10) {
		seq := 20 * (round + 1)
		for p := range places {
			switch round % 3 {
			case 0:
				b.Post(p, seq, at(to[p:]), 1)
			case 1:
				b.Grant(p, seq, at(to[p:]), 1)
			}
			for q := range uint64(10) { // of those before it, too, and of some that were never granted
				b.Revoke(p, seq-5+q)
			}
		}
		require.LessOrEqual(t, b.Revoking(), 10*places)
		j.must("all revocations are done", func() bool { return b.Revoking() == 0 })
	}
	seq := uint64(1000)
	b.Grant(3, seq, at(to), 1)
	j.must("it is granted", func() bool { return a.Granted(3).Load() == seq })
	a.Put(3, seq, at([]byte{5}), 1)
	j.word(b, 3, seq)
	require.EqualValues(t, 5, to[0])
	j.healthy()
}

// Puts of sequences that the receiver has revoked count as sent, without an effect, with and without bytes.
func testPutRevoked(t *testing.T, s *suite) {
	j := s.job(t, 2)
	a, b := j.pair(comm, 2)
	to := make([]byte, 8)
	b.Post(0, 10, at(to), len(to))
	b.Revoke(0, 10)
	b.Revoke(1, 4)
	j.must("the revocations are done", func() bool { return b.Revoking() == 0 })
	from := filled(8, 1)
	a.Put(0, 5, at(from), len(from))
	a.Put(0, 10, at(from), len(from))
	a.Put(1, 4, nil, 0)
	a.Put(1, 5, nil, 0)
	j.word(b, 1, 5)
	j.sent(a)
	require.Zero(t, b.Word(0).Load())
	require.Equal(t, make([]byte, 8), to)
	b.Post(0, 11, at(to), len(to))
	a.Put(0, 11, at(from), len(from))
	j.word(b, 0, 11)
	require.Equal(t, from, to)
	j.sent(a)
	require.EqualValues(t, 5, a.Sent())
	j.healthy()
}

// A revocation before there is a pair is done soon after the pair is made, whatever the peer has put.
func testRevokeEarly(t *testing.T, s *suite) {
	j := s.job(t, 2)
	to := make([]byte, 8)
	j.join(comm, 2, func(rank int, e transport.Endpoint) {
		if rank == 1 {
			e.Post(1, 1, at(to), len(to))
		}
	})
	a, b := j.Nodes[0].Endpoint(comm, 1, false), j.Nodes[1].Endpoint(comm, 0, false)
	from := filled(8, 1)
	a.Put(1, 1, at(from), len(from))
	b.Grant(0, 3, at(make([]byte, 8)), 8)
	b.Revoke(0, 3)
	b.Revoke(1, 1)
	j.must("the revocations are done", func() bool { return b.Revoking() == 0 })
	if b.Word(1).Load() == 1 {
		require.Equal(t, from, to)
	}
	j.sent(a)
	a.Put(0, 4, nil, 0)
	j.word(b, 0, 4)
	j.healthy()
}

// A dead peer acknowledges nothing: Err ends its revocations.
func testRevokeDead(t *testing.T, s *suite) {
	j := s.job(t, 2)
	_, b := j.pair(comm, 2)
	b.Post(0, 1, at(make([]byte, 8)), 8)
	j.kill(0)
	b.Revoke(0, 1)
	b.Revoke(1, 1)
	j.must("the peer is lost", func() bool { return b.Err() != nil })
	require.Zero(t, b.Revoking())
	b.Revoke(0, 2)
	require.Zero(t, b.Revoking())
}

// Both ends count all that goes over the wire, of all communicators, each from its side. Counts stay when communicators
// leave, and when the node closes.
func testCounts(t *testing.T, s *suite) {
	const comms, puts = 2, 5
	j := s.job(t, 3)
	require.Empty(t, j.Nodes[0].Traffic())
	bytes := 0
	for c := range uint64(comms) {
		a, b := j.pair(comm+c, 1)
		to := make([]byte, 20<<20)
		for seq := uint64(1); seq <= puts; seq++ {
			n := int(seq) * 3000
			if seq == puts {
				n = len(to) // more than a kernel takes at once
			}
			from := make([]byte, n)
			b.Post(0, seq, at(to), len(to))
			a.Put(0, seq, at(from), n)
			j.must("it lands", func() bool { return b.Word(0).Load() == seq })
			bytes += n
		}
		j.sent(a)
	}
	of := func(rank int) transport.Traffic {
		all := j.Nodes[rank].Traffic()
		require.Len(t, all, 1)
		require.Equal(t, 1-rank, all[0].Peer)
		return all[0]
	}
	check := func() {
		a, b := of(0), of(1)
		require.EqualValues(t, []uint64{comms * puts, 0, 0, comms * puts}, []uint64{a.SentPuts, a.ReceivedPuts, b.SentPuts, b.ReceivedPuts})
		require.Equal(t, []uint64{a.SentBytes, a.ReceivedBytes}, []uint64{b.ReceivedBytes, b.SentBytes})
		heads := int(a.SentBytes) - bytes
		require.GreaterOrEqual(t, heads, 0)
		rest := bytes / 4096 // long puts travel in frames
		if name, _ := j.Nodes[0].Transport(); name != "tcp" {
			rest = bytes / 100 // or, from memory that is not registered, in messages of 4 KiB
		}
		require.LessOrEqual(t, heads, 64*comms*(puts+4)+rest)
	}
	check()
	for _, n := range j.Nodes {
		n.Leave(comm)
	}
	require.EqualValues(t, comms*puts, of(0).SentPuts)
	j.close(testkit.Limit)
	check()
	require.Empty(t, j.Nodes[2].Traffic())
}
