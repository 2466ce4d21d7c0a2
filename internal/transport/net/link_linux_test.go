package net

import (
	"bytes"
	"errors"
	"github.com/ubcoll/ubcoll/internal/transport"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// Puts of every size land whole, followed by their word.
func TestPut(t *testing.T) {
	p := newPair(t, 4)
	for seq, n := range []int{0, 1, 8, 4095, 4096, 4097, 1 << 20, 20 << 20} {
		seq := uint64(seq + 1)
		from, to := make([]byte, n+1), make([]byte, n+1)
		for i := range n {
			from[i] = byte(i*31 + int(seq))
		}
		p.lb.Grant(2, seq, at(to), n)
		var both sync.WaitGroup
		both.Go(func() {
			p.la.Put(2, seq, at(from), n)
			for p.la.Sent() < p.la.Queued() {
				p.la.Poll()
			}
		})
		both.Go(func() { p.lb.until(t, 2, seq) })
		both.Wait()
		require.Equal(t, n, p.lb.Landed(2))
		require.Equal(t, from, to)
	}
	p.close(t)
	require.Empty(t, p.toldA.downs())
	require.Empty(t, p.toldB.downs())
}

// Several links, places and sizes, in both directions, with slow readers and different ways to wait: all bytes land
// where they belong.
func TestTraffic(t *testing.T) {
	r := testkit.Random(t)
	const places = 3
	rounds := uint64(40)
	if testkit.Daily() {
		rounds = 10
	}
	p := newPair(t, places)
	var all sync.WaitGroup
	for k := range 3 {
		la, lb := p.la, p.lb
		if k > 0 {
			la, lb = links(t, p.ab, p.ba, uint64(100+k), places)
		}
		// Each side grants a place, announces it by the word of the peer's place 0, and then gets the data there.
		for _, side := range []struct {
			from, to *Link
			seed     uint64
		}{{la, lb, r.Uint64()}, {lb, la, r.Uint64()}} {
			size := func(seq uint64) int {
				return []int{1, 8, 100, 4064, 4096, 5000, 64 << 10, 300 << 10}[rand.New(rand.NewPCG(side.seed, seq)).IntN(8)]
			}
			pattern := func(seq uint64) []byte {
				return bytes.Repeat([]byte{byte(seq), byte(seq >> 8), byte(side.seed)}, size(seq)/3+1)[:size(seq)]
			}
			var granted atomic.Uint64 // out of band, since the data goes the other way
			all.Go(func() {
				for seq := uint64(1); seq <= rounds; seq++ {
					for begin := time.Now(); granted.Load() < seq && time.Since(begin) < testkit.Limit; {
						side.from.node.Wait(time.Millisecond)
					}
					b := pattern(seq)
					side.from.Put(1+int(seq%(places-1)), seq, at(b), len(b))
				}
				testkit.Eventually(t, func() bool { side.from.node.Progress(); return side.from.Sent() == side.from.Queued() })
			})
			all.Go(func() {
				for seq := uint64(1); seq <= rounds; seq++ {
					to := make([]byte, size(seq))
					place := 1 + int(seq%(places-1))
					side.to.Grant(place, seq, at(to), len(to))
					granted.Store(seq)
					if seq%7 == 0 {
						time.Sleep(time.Millisecond)
					}
					side.to.until(t, place, seq)
					if !bytes.Equal(pattern(seq), to) || side.to.Landed(place) != len(to) {
						t.Errorf("sequence %d: the bytes differ", seq)
					}
				}
			})
		}
	}
	all.Wait()
	p.close(t)
	require.Empty(t, p.toldA.downs())
	require.Empty(t, p.toldB.downs())
}

// The node's goroutine alone lands data for a rank that does something else.
func TestNobodyPolls(t *testing.T) {
	p := newPair(t, 1)
	from, to := bytes.Repeat([]byte("x"), 8<<20), make([]byte, 8<<20)
	p.lb.Grant(0, 1, at(to), len(to))
	p.la.Put(0, 1, at(from), len(from))
	testkit.Eventually(t, func() bool { return p.lb.Word(0).Load() == 1 && p.la.Sent() == 1 })
	require.Equal(t, from, to)
	p.close(t)
}

// What was granted and is revoked stays as it is once the peer has acknowledged that, even if data was under way; later
// data comes. The peer's puts count as sent. Of one that does not land, whole frames may be there.
func TestRevoke(t *testing.T) {
	p := newPair(t, 2)
	r := testkit.Random(t)
	from, to := bytes.Repeat([]byte("x"), 4<<20), make([]byte, 4<<20)
	for seq := uint64(1); seq <= 60; seq += 2 {
		n := len(from)
		if seq%4 == 1 {
			n = 1 + r.IntN(8<<10)
		}
		clear(to)
		p.lb.Grant(0, seq, at(to), n)
		var both sync.WaitGroup
		both.Go(func() { p.la.Put(0, seq, at(from), n) })
		both.Go(func() {
			for range r.IntN(30) {
				p.lb.Poll()
			}
			p.lb.Revoke(0, seq)
		})
		both.Wait()
		testkit.Eventually(t, func() bool { p.lb.Poll(); return p.lb.Revoking() == 0 })
		landed := p.lb.Word(0).Load() == seq
		before := bytes.Count(to, []byte("x"))
		if landed {
			require.Equal(t, n, before)
		} else {
			require.Zero(t, before%frame.MaxPayload)
			require.Less(t, before, n)
		}
		p.la.Put(0, seq, at(from), n)
		p.la.Put(1, seq, nil, 0) // comes after it
		testkit.Eventually(t, func() bool { p.la.Poll(); p.lb.Poll(); return p.la.Sent() == p.la.Queued() })
		p.lb.until(t, 1, seq)
		require.Equal(t, landed, p.lb.Word(0).Load() == seq, "it landed later")
		require.Equal(t, before, bytes.Count(to, []byte("x")), "written after it was revoked")

		p.lb.Grant(0, seq+1, at(to), 1)
		p.la.Put(0, seq+1, at(from), 1)
		p.lb.until(t, 0, seq+1)
		require.Equal(t, byte('x'), to[0])
	}
	p.close(t)
	require.Empty(t, p.toldB.downs())
}

// If the link is closed in the middle of a frame, the rest of the frame is read and written nowhere.
func TestClosedMidway(t *testing.T) {
	p := newPair(t, 1)
	oa, ob := links(t, p.ab, p.ba, 8, 1)
	from, to := bytes.Repeat([]byte("x"), 32<<20), make([]byte, 32<<20)
	resume := hold(t, p.b) // only the test receives
	p.lb.Grant(0, 1, at(to), len(to))
	p.la.Put(0, 1, at(from), len(from))
	oa.Put(0, 1, nil, 0)
	testkit.Eventually(t, func() bool { p.lb.Poll(); return to[0] != 0 })
	p.lb.Close()
	landed := bytes.Count(to, []byte("x"))
	require.Less(t, landed, len(to))
	ob.until(t, 0, 1)
	resume()
	require.Equal(t, landed, bytes.Count(to, []byte("x")))
	require.Zero(t, p.lb.Word(0).Load())
	p.close(t)
}

// Puts to a closed link are read and dropped, even one under way; those to other links go on. Memory of the closed
// link's own puts is not read any more.
func TestLinkClose(t *testing.T) {
	p := newPair(t, 1)
	oa, ob := links(t, p.ab, p.ba, 8, 1)
	from, to, small := bytes.Repeat([]byte("x"), 32<<20), make([]byte, 32<<20), []byte("small")
	p.lb.Grant(0, 1, at(to), len(to))
	p.la.Put(0, 1, at(from), len(from))
	require.Positive(t, p.ab.data[0].Queued(), "more than the kernel takes")
	p.lb.Close()
	_, err := p.ba.Link(commID, 1)
	require.ErrorIs(t, err, fault.ErrInUse)
	p.la.Close()
	p.la.Close()
	p.la.Put(0, 2, at(from), len(from))
	clear(from)
	ob.Grant(0, 1, at(to), len(to))
	oa.Put(0, 1, at(small), len(small))
	ob.until(t, 0, 1)
	require.Equal(t, small, to[:len(small)])
	_, err = p.ab.Link(8, 1)
	require.ErrorIs(t, err, fault.ErrInUse)
	p.close(t)
	require.Empty(t, p.toldA.downs())
	require.Empty(t, p.toldB.downs())
}

// Links that both sides have closed leave nothing behind, in any order, whatever was under way.
func TestLinksGo(t *testing.T) {
	p := newPair(t, 1)
	r := testkit.Random(t)
	buf := make([]byte, 300<<10)
	var tos [10][300 << 10]byte // several connections may write at once
	known := func(w *Wire) int { return len(*w.links.Load()) }
	for round := range 20 {
		var both sync.WaitGroup
		for k := range 10 {
			la, lb := links(t, p.ab, p.ba, uint64(1000+round*10+k), 2)
			lb.Grant(1, 1, at(tos[k][:]), len(tos[k]))
			first, n := time.Duration(r.IntN(200))*time.Microsecond, r.IntN(len(buf))
			both.Go(func() { la.Put(1, 1, at(buf), n); la.Close() })
			both.Go(func() {
				time.Sleep(first)
				if k%2 == 0 { // the peer has closed first
					testkit.Eventually(t, func() bool { lb.Poll(); return lb.over.Load() != 0 })
				}
				lb.Put(0, 1, nil, 0)
				lb.Close()
			})
		}
		both.Wait()
		testkit.Eventually(t, func() bool { p.a.Progress(); p.b.Progress(); return known(p.ab) == 1 && known(p.ba) == 1 })
	}
	require.Nil(t, p.la.Err())
	p.la.Put(0, 1, nil, 0)
	p.lb.until(t, 0, 1)
	p.close(t)
	require.Empty(t, p.toldA.downs())
	require.Empty(t, p.toldB.downs())
}

// asked is how many links of the peer wait for their communicators to join.
func asked(w *Wire) int {
	w.node.mu.Lock()
	defer w.node.mu.Unlock()
	return len(w.asked)
}

// A link that one side makes and closes before the communicator has joined on the other side does not end the wire, and
// leaves nothing behind. The other side is refused.
func TestLinkClosedEarly(t *testing.T) {
	p := newPair(t, 1)
	la, err := p.ab.Link(9, 1)
	require.NoError(t, err)
	la.Close()
	p.la.Put(0, 1, nil, 0)
	p.lb.until(t, 0, 1)
	testkit.Eventually(t, func() bool { return len(*p.ab.links.Load()) == 1 && asked(p.ba) == 0 })
	lb, err := p.ba.Link(9, 1)
	require.NoError(t, err)
	require.ErrorContains(t, lb.Ready(within(t)), "rank 0 of the job has closed the communicator")
	require.Equal(t, transport.Refused, lb.Err().Kind)
	lb.Close()
	testkit.Eventually(t, func() bool {
		return len(*p.ab.links.Load()) == 1 && len(*p.ba.links.Load()) == 1 && asked(p.ba) == 0
	})
	p.close(t)
	require.Empty(t, p.toldB.downs())
}

// A peer's side that waited for the communicator to join, and was given up meanwhile, is not joined anew.
func TestJoinMeetsEnd(t *testing.T) {
	p := newPair(t, 1)
	la, err := p.ab.Link(9, 1)
	require.NoError(t, err)
	testkit.Eventually(t, func() bool { return asked(p.ba) == 1 })
	la.Close()
	testkit.Eventually(t, func() bool { return asked(p.ba) == 0 && len(*p.ab.links.Load()) == 1 })
	c := &comm{Comm: transport.Comm{ID: 9, Places: 1}, links: map[int]*Link{}}
	require.NoError(t, p.ba.admit(c, 1, true)) // as a Join does that has seen it wait
	require.Empty(t, c.links)
	require.Len(t, *p.ba.links.Load(), 1)

	_, err = p.ab.Link(10, 1)
	require.NoError(t, err)
	testkit.Eventually(t, func() bool { return asked(p.ba) == 1 })
	require.NoError(t, p.ba.admit(&comm{Comm: transport.Comm{ID: 10, Places: 1}, left: true}, 1, true)) // it has left since
	require.Zero(t, asked(p.ba))
	testkit.Eventually(t, func() bool { return len(*p.ab.links.Load()) == 1 }, "the peer is refused")
	p.la.Put(0, 1, nil, 0)
	p.lb.until(t, 0, 1)
	p.lb.Put(0, 1, nil, 0)
	p.la.until(t, 0, 1)
	p.close(t)
	require.Empty(t, p.toldA.downs())
}

// A side that is made while the end of the peer's has come on one connection, and not on the other, is refused, and
// nothing of it stays.
func TestMadeAmidEnd(t *testing.T) {
	twoRails(t)
	p := newPair(t, 1)
	la, err := p.ab.Link(9, 1)
	require.NoError(t, err)
	testkit.Eventually(t, func() bool { return asked(p.ba) == 1 })
	resume := hold(t, p.b)
	p.a.Leave(9)
	require.Equal(t, transport.Left, la.Err().Kind)
	receive := func(until func() bool) { // on the first connection alone
		testkit.Eventually(t, func() bool {
			_, err := p.ba.data[0].Receive()
			require.NoError(t, err)
			return until()
		})
	}
	receive(func() bool { return asked(p.ba) == 0 })
	lb, err := p.ba.Link(9, 1)
	require.NoError(t, err)
	testkit.Eventually(t, func() bool { return lb.wire.Load() != nil })
	p.lb.Put(0, 1, nil, 0)
	p.la.until(t, 0, 1) // so the Open frame before it has come
	p.la.Put(0, 1, nil, 0)
	receive(func() bool { return p.lb.Word(0).Load() == 1 }) // so what answers it has, too
	resume()
	require.ErrorContains(t, lb.Ready(within(t)), "rank 0 of the job has closed the communicator")
	require.Equal(t, transport.Refused, lb.Err().Kind)
	p.b.Leave(9)
	testkit.Eventually(t, func() bool { return p.a.pairs() == 2 && p.b.pairs() == 2 }, "what is kept of the other communicator")
	p.close(t)
	require.Empty(t, p.toldA.downs())
	require.Empty(t, p.toldB.downs())
}

// If the wire of a peer that has made its side ends before the communicator joins, the endpoint says so.
func TestLinkOfEndedWire(t *testing.T) {
	p := newPair(t, 1)
	_, err := p.ab.Link(9, 1)
	require.NoError(t, err)
	testkit.Eventually(t, func() bool { return asked(p.ba) == 1 })
	p.ba.finish(transport.Died, fault.ErrPeerLost)
	require.NoError(t, p.b.Join(transport.Comm{ID: 9, Places: 1}))
	e := p.b.Endpoint(9, 0, true)
	require.ErrorIs(t, e.Ready(within(t)), fault.ErrPeerLost)
	require.Equal(t, transport.Died, e.Err().Kind)
	p.close(t)
}

// A put that is cut off under way ends between frames: its word never comes.
func TestSevered(t *testing.T) {
	p := newPair(t, 2)
	from, to := bytes.Repeat([]byte("x"), 32<<20), make([]byte, 32<<20)
	oa, ob := links(t, p.ab, p.ba, 8, 1)
	p.lb.Grant(0, 1, at(to), len(to))
	p.lb.Grant(1, 1, at(to), len(to))
	p.la.Put(0, 1, at(from), len(from)) // begins
	p.la.Put(1, 1, at(from), len(from)) // does not
	require.EqualValues(t, 2, p.ab.data[0].Queued())
	p.la.Close()
	clear(from)
	oa.Put(0, 1, nil, 0) // comes after
	ob.until(t, 0, 1)
	landed := bytes.Count(to, []byte("x"))
	require.Zero(t, landed%frame.MaxPayload)
	require.Less(t, landed, len(to))
	require.Zero(t, p.lb.Word(0).Load())
	require.Zero(t, p.lb.Word(1).Load())
	p.close(t)
	require.Empty(t, p.toldB.downs())
}

// The kernel takes little that it cannot send: what is short would wait for it.
func TestUnsent(t *testing.T) {
	p := newPair(t, 1)
	from, to := make([]byte, 32<<20), make([]byte, 32<<20)
	resume := hold(t, p.b) // reads nothing
	p.lb.Grant(0, 1, at(to), len(to))
	p.la.Put(0, 1, at(from), len(from))
	most, errs := 0, []error(nil)
	for range 100 {
		p.la.Poll()
		n, err := unix.IoctlGetInt(p.ab.data[0].end.fd, unix.SIOCOUTQNSD)
		most, errs = max(most, n), append(errs, err)
	}
	resume()
	require.NoError(t, errors.Join(errs...))
	require.LessOrEqual(t, most, 2*unsent) // it takes whole packets
	p.lb.until(t, 0, 1)
	p.close(t)
}

// Nothing on the data path allocates.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	p := newPair(t, 2)
	small, large := make([]byte, 64), make([]byte, 64<<10)
	seq := uint64(0)
	trip := func() {
		seq++
		p.lb.Post(0, seq, at(small), len(small))
		p.lb.Grant(1, seq, at(large), len(large))
		p.la.Put(0, seq, at(small), len(small))
		p.la.Put(1, seq, at(large), len(large))
		for p.lb.Word(0).Load() < seq || p.lb.Word(1).Load() < seq {
			p.lb.Poll()
			p.la.Poll()
			p.b.Progress()
		}
	}
	trip()
	require.Zero(t, testing.AllocsPerRun(1000, trip))
	wait := func() { p.b.Wait(time.Microsecond) }
	wait()
	require.Zero(t, testing.AllocsPerRun(100, wait))
	p.close(t)
}
