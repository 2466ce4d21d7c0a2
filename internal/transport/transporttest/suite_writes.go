package transporttest

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// Writes of all sizes land where the server says, and nothing around them is written. The server is asked for all of them,
// and for nothing else. Queued and Sent count writes and calls with the puts.
func testWrites(t *testing.T, s *suite) {
	j := s.job(t, 2)
	sv := j.serve(comm, 1, nil)
	a, b := j.endpoints(comm, 0, 1)
	x := sv.of(1, 0)
	for i, n := range []int{1, 7, 8, 64, 65, 4095, 4096, 4097, 100_003, 1<<20 + 13, 5<<20 + 3} {
		offset := 5 * i
		size := offset + n + 9
		k := transport.Target{Key: math.MaxUint64 - uint64(i), Slot: math.MaxUint32 - uint32(i)}
		base := uint64(i) << 33
		if i%2 == 1 {
			k, base = transport.Target{Key: 1, Slot: uint32(i)}, transport.MaxOffset-uint64(offset+n) // up to the last byte
		}
		to := filled(size, uint64(i), 1)
		x.allow(k, base, to)
		from := filled(n+3, uint64(i), 2)[3:]
		k.Offset = base + uint64(offset)
		a.Write(k, at(from), n, i%3 == 0)
		a.Call([]byte{1})
		require.EqualValues(t, 2*i+2, a.Queued())
		j.called(x, i+1)
		before := filled(size, uint64(i), 1)
		require.True(t, bytes.Equal(before[:offset], to[:offset]), "%d bytes: something before them was written", n)
		require.True(t, bytes.Equal(from, to[offset:][:n]), "%d bytes differ", n)
		require.True(t, bytes.Equal(before[offset+n:], to[offset+n:]), "%d bytes: something behind them was written", n)
		end := k.Offset
		spans := x.spans(k)
		slices.SortFunc(spans, func(a, b span) int { return int(a.offset) - int(b.offset) })
		for _, s := range spans {
			require.True(t, k.Offset <= s.offset && s.offset <= end && s.offset+uint64(s.n) <= k.Offset+uint64(n), "%v", s)
			end = max(end, s.offset+uint64(s.n))
		}
		require.Equal(t, k.Offset+uint64(n), end)
		j.sent(a)
		require.EqualValues(t, 2*i+2, a.Sent())
	}
	require.Zero(t, b.Queued())

	before, k := a.Queued(), transport.Target{Key: 5}
	from, to := filled(8<<20, 1), make([]byte, 8<<20)
	x.allow(k, 0, to)
	a.Write(k, at(from), len(from), false)
	a.Put(0, 1, nil, 0)
	a.Call(filled(transport.MaxCall, 2))
	a.Put(0, 2, nil, 0)
	j.word(b, 0, 2)
	j.called(x, 12)
	require.True(t, bytes.Equal(from, to))
	j.sent(a)
	require.Equal(t, before+4, a.Sent())
	j.healthy()
}

// step is one of a random program: a write to a target, or a call if n is 0.
type step struct {
	target    transport.Target
	n         int
	more      bool
	callBytes int
}

// program is one that both ends know.
func program(seed uint64, steps, targets, room int) (all []step) {
	r := rand.New(rand.NewPCG(seed, 0))
	for len(all) < steps {
		x := step{callBytes: 8 + r.IntN(100)}
		if r.IntN(8) == 0 {
			x.callBytes = 8 + r.IntN(transport.MaxCall-7)
		}
		if r.IntN(3) > 0 && len(all) < steps-1 { // a call comes last
			x.n = 1 + r.IntN(2<<r.IntN(21))
			x.target = transport.Target{Key: 1 + uint64(r.IntN(targets)), Slot: 3, Offset: uint64(r.IntN(room - x.n + 1))}
			x.more = r.IntN(2) == 0
		}
		all = append(all, x)
	}
	return all
}

// Writes and calls arrive in order, in both directions: a call sees all writes before it, and none after it. Memory of
// writes that were sent is used for something else.
func testWritesInOrder(t *testing.T, s *suite) {
	const targets, room = 3, 2 << 20
	j := s.job(t, 2)
	seeds := [2]uint64{j.random.Uint64(), j.random.Uint64()}
	steps := rounds(160)
	var done [2]atomic.Bool
	j.serve(comm, 0, func(rank int, x *server) {
		var model, to [targets][]byte
		for i := range targets {
			model[i], to[i] = make([]byte, room), make([]byte, room)
			x.allow(transport.Target{Key: uint64(i) + 1, Slot: 3}, 0, to[i])
		}
		seed, next := seeds[1-rank], 0
		all := program(seed, steps, targets, room)
		x.call = func(b []byte) {
			for ; next < steps && all[next].n > 0; next++ {
				s := all[next]
				fill(model[s.target.Key-1][s.target.Offset:][:s.n], seed, uint64(next))
			}
			if next == steps || len(b) != all[next].callBytes || numberOf(b) != next || !isFilled(b[8:], seed, uint64(next)) {
				t.Errorf("rank %d: a call of %d bytes is not that of step %d", rank, len(b), next)
				return
			}
			for i := range targets {
				if !bytes.Equal(model[i], to[i]) {
					t.Errorf("rank %d: memory %d differs at step %d", rank, i, next)
				}
			}
			next++
			done[rank].Store(next == steps)
		}
	})
	busy := j.busy(2)
	var both sync.WaitGroup
	for me := range 2 {
		r := rand.New(rand.NewPCG(j.random.Uint64(), 0))
		both.Go(func() {
			defer busy.done(me)
			e, seed := j.Nodes[me].Endpoint(comm, 1-me, true), seeds[me]
			bufs := make([][]byte, steps)
			next, free := 0, 0
			all := program(seed, steps, targets, room)
			j.until("all steps are done", func() bool {
				if next < steps && next-free < 16 && r.IntN(4) > 0 {
					if s := all[next]; s.n > 0 {
						bufs[next] = filled(s.n, seed, uint64(next))
						e.Write(s.target, at(bufs[next]), s.n, s.more)
					} else {
						b := number(next, filled(s.callBytes-8, seed, uint64(next))...)
						e.Call(b)
						clear(b)
					}
					next++
				}
				for ; free < int(e.Sent()); free++ {
					clear(bufs[free])
					bufs[free] = nil
				}
				return free == steps && done[me].Load()
			}, me)
		})
	}
	both.Wait()
	j.healthy()
}

// What the server does not want is read and dropped, also in the middle of a write. What follows arrives.
func testRefusedWrites(t *testing.T, s *suite) {
	j := s.job(t, 2)
	sv := j.serve(comm, 0, nil)
	a, _ := j.endpoints(comm, 0, 1)
	x := sv.of(1, 0)
	good, bad := transport.Target{Key: 1}, transport.Target{Key: 1, Slot: 1}
	for i, n := range []int{1, 100, 5000, 70_001, 3 << 20} {
		from, to := filled(n, uint64(i)), make([]byte, n)
		x.allow(good, 0, to)
		a.Write(bad, at(from), n, false)
		a.Write(transport.Target{Key: 2, Offset: transport.MaxOffset - uint64(n)}, at(from), n, true)
		a.Write(good, at(from), n, false)
		a.Write(bad, at(from), n, false)
		a.Call([]byte{1})
		j.called(x, i+1)
		require.True(t, bytes.Equal(from, to), "%d bytes differ", n)
		j.sent(a)
	}

	const n = 16 << 20
	from, to := filled(n, 9), bytes.Repeat([]byte{77}, n)
	x.mu.Lock()
	x.wants = func(offset uint64) bool { return offset/1000%2 == 0 }
	x.mu.Unlock()
	x.allow(good, 0, to)
	a.Write(good, at(from), n, false)
	a.Call([]byte{1})
	j.called(x, 6)
	for _, s := range x.spans(good) { // what is in both is either
		there, want := to[s.offset:][:s.n], bytes.Repeat([]byte{77}, s.n)
		if s.allowed {
			want = from[s.offset:][:s.n]
		}
		if !slices.ContainsFunc(x.spans(good), func(o span) bool {
			return o.allowed != s.allowed && o.offset < s.offset+uint64(s.n) && s.offset < o.offset+uint64(o.n)
		}) {
			require.True(t, bytes.Equal(want, there), "%v", s)
		}
	}
	j.sent(a)
	j.healthy()
}

// A server answers calls with writes and calls: a get. Both ranks get from each other at the same time.
func testGets(t *testing.T, s *suite) {
	const room = 1 << 20
	gets := rounds(80)
	type want struct {
		offset int
		to     []byte
	}
	j := s.job(t, 2)
	var memory [2][]byte
	var mu sync.Mutex
	wants := [2]map[int]want{{}, {}}
	var got [2]atomic.Int64
	for me := range 2 {
		memory[me] = filled(room, uint64(me))
	}
	sv := j.serve(comm, 0, func(rank int, x *server) {
		x.call = func(b []byte) {
			id := numberOf(b)
			if len(b) == 8 { // the answer
				mu.Lock()
				w := wants[rank][id]
				delete(wants[rank], id)
				mu.Unlock()
				if w.to == nil || !bytes.Equal(w.to, memory[1-rank][w.offset:][:len(w.to)]) {
					t.Errorf("rank %d: get %d of %d bytes has other bytes", rank, id, len(w.to))
				}
				x.allow(transport.Target{Key: 1, Slot: uint32(id)}, 0, nil)
				got[rank].Add(1)
				return
			}
			offset, n := numberOf(b[8:]), numberOf(b[16:])
			half := n / 2
			if half > 0 {
				x.e.Write(transport.Target{Key: 1, Slot: uint32(id)}, at(memory[rank][offset:]), half, true)
			}
			x.e.Write(transport.Target{Key: 1, Slot: uint32(id), Offset: uint64(half)}, at(memory[rank][offset+half:]), n-half, true)
			x.e.Call(b[:8])
		}
	})
	a, b := j.endpoints(comm, 0, 1)
	busy := j.busy(2)
	var both sync.WaitGroup
	for me, e := range []transport.Endpoint{a, b} {
		r := rand.New(rand.NewPCG(j.random.Uint64(), 0))
		both.Go(func() {
			defer busy.done(me)
			next := 0
			j.until("all gets are done", func() bool {
				if next < gets && next < int(got[me].Load())+8 {
					n := 1 + r.IntN(2<<r.IntN(20))
					w := want{r.IntN(room - n + 1), make([]byte, n)}
					mu.Lock()
					wants[me][next] = w
					mu.Unlock()
					sv.of(me, 1-me).allow(transport.Target{Key: 1, Slot: uint32(next)}, 0, w.to)
					e.Call(number(next, append(number(w.offset), number(n)...)...))
					next++
				}
				return int(got[me].Load()) == gets && allSent(e)
			}, me)
		})
	}
	both.Wait()
	j.healthy()
}

// A server may write and call to other peers: what comes from one goes on to the next, around a ring.
func testForward(t *testing.T, s *suite) {
	const ranks = 3
	hops := rounds(40)
	j := s.job(t, ranks)
	var loads [][]byte
	for i := range hops + 1 {
		loads = append(loads, filled(1+j.random.IntN(100_000), uint64(i)))
	}
	var next [ranks]atomic.Pointer[transport.Endpoint]
	var last atomic.Int64
	k := transport.Target{Key: 1}
	send := func(e transport.Endpoint, hop int) {
		e.Write(k, at(loads[hop]), len(loads[hop]), true)
		e.Call(number(hop))
	}
	j.serve(comm, 0, func(rank int, x *server) {
		to := make([]byte, 100_000)
		x.allow(k, 0, to)
		x.call = func(b []byte) {
			hop := numberOf(b)
			if !bytes.HasPrefix(to, loads[hop]) {
				t.Errorf("rank %d: hop %d has other bytes", rank, hop)
			}
			if last.Store(int64(hop)); hop < hops {
				send(*next[rank].Load(), hop+1)
			}
		}
	})
	var all []transport.Endpoint
	for r := range ranks {
		e, f := j.endpoints(comm, r, (r+1)%ranks)
		next[r].Store(&e)
		all = append(all, e, f)
	}
	send(all[0], 0)
	j.must("the last hop is done", func() bool { return last.Load() == int64(hops) })
	for _, e := range all {
		j.sent(e)
	}
	j.healthy()
}

// Several goroutines write and call at the same time, while others put, withdraw and refuse, in both directions. Each
// one's writes and calls arrive in order.
func testWritesAtOnce(t *testing.T, s *suite) {
	const writers, room = 3, 40_000
	count := rounds(60)
	j := s.job(t, 2)
	var got [2][writers]atomic.Int64
	unused := transport.Target{Key: 100}
	j.serve(comm, 1, func(rank int, x *server) {
		var to [writers][]byte
		for w := range writers {
			to[w] = make([]byte, room)
			x.allow(transport.Target{Key: 1, Slot: uint32(w)}, 0, to[w])
		}
		x.call = func(b []byte) {
			w, i, n := numberOf(b), numberOf(b[8:]), numberOf(b[16:])
			if last := int(got[rank][w].Load()); i != last+1 || !isFilled(to[w][:n], uint64(1-rank), uint64(w), uint64(i)) {
				t.Errorf("rank %d: write %d of goroutine %d came after %d, or has other bytes", rank, i, w, last)
			}
			got[rank][w].Store(int64(i))
		}
	})
	a, b := j.endpoints(comm, 0, 1)
	busy := j.busy(2 * (writers + 1))
	var all sync.WaitGroup
	for me, e := range []transport.Endpoint{a, b} {
		for w := range writers {
			seed := j.random.Uint64()
			all.Go(func() {
				defer busy.done(me)
				r := rand.New(rand.NewPCG(seed, 0))
				buf := make([]byte, room)
				for i := 1; i <= count; i++ {
					n := 1 + r.IntN(2<<r.IntN(14))
					fill(buf[:n], uint64(me), uint64(w), uint64(i))
					e.Write(transport.Target{Key: 1, Slot: uint32(w)}, at(buf), n, r.IntN(2) == 0)
					e.Call(number(w, append(number(i), number(n)...)...))
					queued := e.Queued()
					if !j.until("it is sent", func() bool { return e.Sent() >= queued && int(got[1-me][w].Load()) == i }, me) {
						return
					}
				}
			})
		}
		all.Go(func() {
			defer busy.done(me)
			buf := make([]byte, room)
			for i := range count {
				e.Put(0, uint64(i)+1, nil, 0)
				e.Write(unused, at(buf), len(buf), i%2 == 0)
				e.Refuse(unused)
				e.Withdraw(unused)
				buf[i] = 1
				j.move(me)
			}
		})
	}
	all.Wait()
	for _, e := range []transport.Endpoint{a, b} {
		j.word(e, 0, uint64(count))
		j.sent(e)
	}
	j.healthy()
}

// What is short lands before a long write of another communicator, and a short write before a long put.
func testShortBesideLongWrites(t *testing.T, s *suite) {
	const n = 32 << 20
	j := s.job(t, 2)
	k := transport.Target{Key: 1}
	from, to, short, there := filled(n, 1), make([]byte, n), filled(8, 2), make([]byte, 8)
	long, others := j.serve(comm, 1, nil), j.serve(8, 1, nil)
	a, b := j.endpoints(comm, 0, 1)
	oa, ob := j.endpoints(8, 0, 1)
	x, ox := long.of(1, 0), others.of(1, 0)
	x.allow(k, 0, to)
	ox.allow(k, 0, there)
	overtaken := [2]bool{}
	for i := 1; !overtaken[0] || !overtaken[1]; i++ {
		require.LessOrEqual(t, i, 20, "overtaken: %v", overtaken)
		clear(there)
		a.Write(k, at(from), n, false)
		a.Call([]byte{1})
		oa.Put(0, uint64(i), nil, 0)
		oa.Write(k, at(short), len(short), false)
		oa.Call([]byte{1})
		j.must("all land", func() bool {
			landed := ox.served() == 2*i-1 && ob.Word(0).Load() == uint64(i)
			overtaken[0] = overtaken[0] || landed && x.served() < i
			return landed && x.served() == i
		})
		require.Equal(t, short, there)
		require.True(t, bytes.Equal(from, to))

		b.Post(0, uint64(i), at(to), n)
		clear(there)
		a.Put(0, uint64(i), at(from), n)
		oa.Write(k, at(short), len(short), false)
		oa.Call([]byte{1})
		j.must("both land", func() bool {
			landed := ox.served() == 2*i
			overtaken[1] = overtaken[1] || landed && b.Word(0).Load() < uint64(i)
			return landed && b.Word(0).Load() == uint64(i)
		})
		require.Equal(t, short, there)
	}
	j.sent(a)
	j.sent(oa)
	j.healthy()
}

// Writes and calls are served for a rank that does something else, and what its server writes leaves.
func testNobodyPollsForWrites(t *testing.T, s *suite) {
	j := s.job(t, 2)
	if !j.Background {
		t.Skip("this network moves nothing without its users")
	}
	from, to := filled(8<<20, 1), [2][]byte{make([]byte, 8<<20), make([]byte, 8<<20)}
	k := transport.Target{Key: 1}
	sv := j.serve(comm, 0, func(rank int, x *server) {
		x.allow(k, 0, to[rank])
		if rank == 1 {
			x.call = func(b []byte) { x.e.Write(k, at(to[1]), len(to[1]), false); x.e.Call(b) }
		}
	})
	a, b := j.endpoints(comm, 0, 1)
	a.Write(k, at(from), len(from), true)
	a.Call([]byte{1})
	testkit.Eventually(t, func() bool { return sv.of(0, 1).served() == 1 && a.Sent() == 2 && b.Sent() == 2 })
	require.True(t, bytes.Equal(from, to[0]))
	j.healthy()
}

// Once writes are withdrawn, their memory is not read any more, wherever they were: what lands of them is what they were
// made of. All others land.
func testWithdraw(t *testing.T, s *suite) {
	j := s.job(t, 2)
	sv := j.serve(comm, 0, nil)
	a, _ := j.endpoints(comm, 0, 1)
	x := sv.of(1, 0)
	got := 0
	for i := range rounds(40) {
		n := 4 << 20 // more than a connection takes at once
		if i%4 > 0 {
			n = 1 + j.random.IntN(200<<10)
		}
		k, other := transport.Target{Key: 1, Slot: uint32(i)}, transport.Target{Key: 2, Slot: uint32(i)}
		old, to, rest, there := bytes.Repeat([]byte{1}, n), make([]byte, 3*n), filled(1000, uint64(i)), make([]byte, 2000)
		x.allow(k, 0, to)
		x.allow(other, 0, there)
		alone := i%3 == 0
		if !alone {
			a.Write(other, at(rest), len(rest), true)
		}
		for p := range 3 {
			a.Write(transport.Target{Key: k.Key, Slot: k.Slot, Offset: uint64(p * n)}, at(old), n, p < 2)
		}
		if !alone {
			a.Write(transport.Target{Key: 2, Slot: other.Slot, Offset: 1000}, at(rest), len(rest), false)
		}
		for range j.random.IntN(30) {
			a.Poll()
		}
		a.Withdraw(transport.Target{Key: k.Key, Slot: k.Slot, Offset: 77})
		copy(old, bytes.Repeat([]byte{2}, n))
		if alone {
			require.Equal(t, a.Queued(), a.Sent(), "they count as sent")
		}
		a.Withdraw(k) // there is none
		a.Call([]byte{1})
		j.called(x, i+1)
		old1 := bytes.Count(to, []byte{1})
		got += old1
		require.Equal(t, len(to), old1+bytes.Count(to, []byte{0}), "later bytes have landed")
		if !alone {
			require.True(t, bytes.Equal(rest, there[:1000]) && bytes.Equal(rest, there[1000:]), "others have not landed")
		}
		j.sent(a)
	}
	t.Logf("%d bytes landed", got)

	k := transport.Target{Key: 7}
	to := make([]byte, 8<<20)
	others := j.serve(8, 0, func(rank int, x *server) { // a server that gives, and takes back
		x.allow(k, 0, to)
		if rank == 0 {
			return
		}
		x.call = func(b []byte) {
			from := bytes.Repeat([]byte{1}, len(to))
			x.e.Write(k, at(from), len(from), false)
			x.e.Withdraw(k)
			copy(from, bytes.Repeat([]byte{2}, len(from)))
			x.e.Call(b)
		}
	})
	oa, ob := j.endpoints(8, 0, 1)
	oa.Call([]byte{1})
	j.called(others.of(0, 1), 1)
	require.Zero(t, bytes.Count(to, []byte{2}))
	j.sent(oa)
	j.sent(ob)
	j.healthy()
}

// Once a key is refused, no more of what the peer writes to it lands, while the peer goes on and others receive. Other
// keys' memory is written.
func testRefuse(t *testing.T, s *suite) {
	const room = 300_000
	j := s.job(t, 2)
	sv := j.serve(comm, 0, nil)
	a, b := j.endpoints(comm, 0, 1)
	x := sv.of(1, 0)
	k, other := transport.Target{Key: 1, Slot: 1}, transport.Target{Key: 1, Slot: 2}
	to, there := make([]byte, room), make([]byte, room)
	x.allow(other, 0, there)
	var stop atomic.Bool
	busy := j.busy(3)
	var all sync.WaitGroup
	seed := j.random.Uint64()
	all.Go(func() {
		defer busy.done(0)
		from, r := bytes.Repeat([]byte{1}, room), rand.New(rand.NewPCG(seed, 0))
		j.until("the test stops", func() bool {
			if a.Queued()-a.Sent() < 6 && !stop.Load() {
				n := 1 + r.IntN(room)
				a.Write(k, at(from), n, r.IntN(2) == 0)
				if r.IntN(4) == 0 {
					a.Write(other, at(from), n, false)
				}
			}
			return stop.Load() && allSent(a)
		}, 0)
	})
	all.Go(func() {
		defer busy.done(1)
		j.until("the test stops", stop.Load, 1)
	})
	asked := func(n int) {
		j.until("the peer writes", func() bool { return len(x.spans(k)) >= n }, 1)
	}
	for i := range rounds(150) {
		x.allow(k, 0, to)
		asked(1 + j.random.IntN(4))
		x.allow(k, 0, nil)
		b.Refuse(transport.Target{Key: k.Key, Slot: k.Slot, Offset: 5})
		fill(to, uint64(i)) // used for something else
		asked(1 + j.random.IntN(3))
		if !isFilled(to, uint64(i)) {
			t.Errorf("round %d: memory was written after Refuse", i)
		}
		x.allow(other, 0, there)
		if t.Failed() {
			break
		}
	}
	stop.Store(true)
	busy.done(1)
	all.Wait()
	b.Refuse(transport.Target{Key: 55}) // that nobody writes to
	clear(there)
	a.Write(other, at(bytes.Repeat([]byte{3}, room)), room, false)
	a.Call([]byte{1})
	j.called(x, 1)
	require.Equal(t, room, bytes.Count(there, []byte{3}))
	j.sent(a)
	j.healthy()
}

// Writes and calls before there is a pair are kept, and arrive in order once there is one. Those that were withdrawn do
// not.
func testEarlyWrites(t *testing.T, s *suite) {
	const n = 300_000
	j := s.idle(t, 2)
	k, gone := transport.Target{Key: 1}, transport.Target{Key: 1, Slot: 1}
	to, never := make([]byte, n), make([]byte, n)
	var calls []int // of rank 1
	sv := j.serve(comm, 0, func(rank int, x *server) {
		if rank == 0 {
			return
		}
		x.allow(k, 0, to)
		x.allow(gone, 0, never)
		x.call = func(b []byte) {
			i := numberOf(b)
			x.look(func() { calls = append(calls, i) })
			if !isFilled(to, uint64(i)) {
				t.Errorf("call %d sees other bytes", i)
			}
		}
	})
	a := j.Nodes[0].Endpoint(comm, 1, false)
	back := filled(n, 9)
	for i := range 3 {
		from := filled(n, uint64(i))
		a.Write(k, at(from), n, i == 0)
		a.Write(gone, at(back), n, i == 1)
		a.Call(number(i))
	}
	for range 20 {
		j.move()
	}
	require.Zero(t, a.Sent())
	a.Withdraw(gone)
	clear(back)
	a.Refuse(k) // of what the peer writes
	j.begin()
	require.NoError(t, j.ready(j.within(), a, 1))
	j.must("the peer has its side", func() bool { return sv.of(1, 0) != nil })
	x := sv.of(1, 0)
	j.called(x, 3)
	x.look(func() { require.Equal(t, []int{0, 1, 2}, calls) })
	require.Equal(t, make([]byte, n), never)
	require.Empty(t, x.spans(gone))
	j.sent(a)
	require.EqualValues(t, 9, a.Sent())
	j.healthy()
}
