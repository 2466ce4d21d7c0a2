package net

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// server is a transport.Server that has memory for slot 1, and records what it is asked.
type server struct {
	e      transport.Endpoint
	memory []byte
	called func(b []byte) // nil: keep it in calls

	mu      sync.Mutex
	refuses bool
	asked   []piece
	denied  []transport.Target
	calls   []string
}

type piece struct {
	t transport.Target
	n int
}

func (s *server) Reach(t transport.Target, n int) unsafe.Pointer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, piece{t, n})
	if s.refuses || t.Slot != 1 || t.Offset+uint64(n) > uint64(len(s.memory)) {
		return nil
	}
	return unsafe.Pointer(&s.memory[t.Offset])
}

func (s *server) Denied(t transport.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = append(s.denied, t)
}

func (s *server) Called(b []byte) {
	if s.called != nil {
		s.called(b)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, string(b))
}

// pieces is what Reach was asked, all calls.
func (s *server) pieces() []piece {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]piece(nil), s.asked...)
}

func (s *server) heard() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.calls...)
}

func (s *server) refuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = true
}

// served is a pair whose links have servers.
func served(t testing.TB, connections int, sa, sb *server) *pair {
	t.Helper()
	p := &pair{}
	p.a, p.toldA = nodeWith(t, transport.Config{Rank: 0, Connections: connections})
	p.b, p.toldB = nodeWith(t, transport.Config{Rank: 1, Connections: connections})
	p.ab, p.ba = connect(t, p.a, p.b)
	p.la, p.lb = serve(t, p.a, commID, sa), serve(t, p.b, commID, sb)
	require.NoError(t, p.la.Ready(within(t)))
	require.NoError(t, p.lb.Ready(within(t)))
	return p
}

// serve makes a node's link to the other one. A *server may be nil: then there is none.
func serve(t testing.TB, n *Node, id uint64, s transport.Server) *Link {
	t.Helper()
	require.NoError(t, n.Join(transport.Comm{ID: id, Places: 2, Made: func(e transport.Endpoint) transport.Server {
		if s, ok := s.(*server); ok {
			if s == nil {
				return nil
			}
			s.e = e
		}
		return s
	}}))
	return n.Endpoint(id, 1-n.config.Rank, true).(*Link)
}

// over runs a test over one connection for data, over several, and over two rails.
func over(t *testing.T, f func(t *testing.T, connections int)) {
	for _, connections := range []int{1, 3, 2} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			if connections == 2 {
				twoRails(t)
			}
			f(t, connections)
		})
	}
}

// sent waits until all that a link has put counts as sent.
func (l *Link) allSent(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, func() bool { l.Poll(); return l.Sent() == l.Queued() })
}

// Writes land where the peer says, long ones in pieces, and a call comes after them.
func TestWrite(t *testing.T) {
	over(t, func(t *testing.T, connections int) {
		sb := &server{memory: make([]byte, 24<<20)}
		p := served(t, connections, nil, sb)
		want := make([]byte, len(sb.memory))
		var asked []piece
		var calls []string
		for i, n := range []int{1, 8, frame.Short, frame.Short + 1, frame.MaxPayload, frame.MaxPayload + 1, 2 * frame.MaxPayload, 20 << 20} {
			from := bytes.Repeat([]byte{byte(i + 1), 7, byte(n)}, n/3+1)[:n]
			to := transport.Target{Key: uint64(i) + 1<<63, Slot: 1, Offset: uint64(1000*i + 3)}
			copy(want[to.Offset:], from)
			calls = append(calls, fmt.Sprint("call ", i))
			p.la.Write(to, at(from), n, i%2 == 0)
			b := []byte(calls[i])
			p.la.Call(b)
			clear(b)
			p.la.allSent(t)
			testkit.Eventually(t, func() bool { p.lb.Poll(); return len(sb.heard()) == i+1 })
			require.True(t, bytes.Equal(want, sb.memory), "%d bytes", n)
			for n > 0 {
				k := min(n, frame.MaxPayload)
				asked = append(asked, piece{to, k})
				to.Offset, n = to.Offset+uint64(k), n-k
			}
		}
		require.Equal(t, asked, sb.pieces())
		require.Equal(t, calls, sb.heard())
		a, b := p.a.Traffic()[0], p.b.Traffic()[0]
		require.EqualValues(t, len(asked)+len(calls), a.SentPuts)
		require.EqualValues(t, len(asked)+len(calls), b.ReceivedPuts)
		p.close(t)
		require.Empty(t, p.toldA.downs())
		require.Empty(t, p.toldB.downs())
	})
}

// A write that more follows does not leave by itself, but with the call, or at the next progress.
func TestMore(t *testing.T) {
	sb := &server{memory: make([]byte, 1<<20)}
	p := served(t, 1, nil, sb)
	to, from := transport.Target{Key: 1, Slot: 1}, make([]byte, 1<<20)
	queued := func() int { return p.ab.data[0].Queued() }
	resume := hold(t, p.a) // the node's goroutine sends nothing
	p.a.said.Store(false)
	for _, n := range []int{8, 64 << 10} {
		before := p.ab.data[0].traffic().SentBytes
		p.a.mu.Lock() // nor by speak
		p.la.Write(to, at(from), n, true)
		held := queued()
		p.la.Call(from[:8])
		left := queued()
		p.a.mu.Unlock()
		require.Equal(t, 1, held)
		require.Zero(t, left)
		require.EqualValues(t, before+uint64(2*frame.HeaderSize+n+8), p.ab.data[0].traffic().SentBytes)
	}
	resume()
	p.la.Write(to, at(from), 64<<10, true)
	testkit.Eventually(t, func() bool { return queued() == 0 && p.la.Sent() == p.la.Queued() }, "the node's goroutine sends it")
	testkit.Eventually(t, func() bool { return len(sb.pieces()) == 3 && len(sb.heard()) == 2 })
	p.close(t)
}

// A random program of writes, calls and puts, with a peer that does not read at times: each call finds what was written
// before it. Servers answer with writes and calls of their own.
func TestServe(t *testing.T) {
	over(t, func(t *testing.T, connections int) {
		const area, head = 2 << 20, 24
		r := testkit.Random(t)
		rounds := max(testkit.Often(600), 100)
		var counts [2]struct{ calls, answers atomic.Int64 }
		var servers [2]*server
		for i := range servers {
			s := &server{memory: make([]byte, area+8)}
			s.called = func(b []byte) {
				if len(b) == 1 { // the answer: its write has come before
					k := counts[i].answers.Add(1)
					if got := binary.LittleEndian.Uint64(s.memory[area:]); got < uint64(k) {
						t.Errorf("answer %d comes after a write of %d", k, got)
					}
					return
				}
				le := binary.LittleEndian
				k, offset, n := le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:])
				if got := counts[i].calls.Add(1); uint64(got) != k {
					t.Errorf("call %d comes as number %d", k, got)
				}
				if got := s.memory[offset : offset+n]; bytes.Count(got, []byte{byte(k)}) != int(n) {
					t.Errorf("call %d: the bytes before it are not there", k)
				}
				s.e.Write(transport.Target{Key: k | 1<<61, Slot: 1, Offset: area}, at(le.AppendUint64(nil, k)), 8, k%2 == 0)
				s.e.Call([]byte{0})
			}
			servers[i] = s
		}
		p := served(t, connections, servers[0], servers[1])
		var all sync.WaitGroup
		var done atomic.Bool
		var stalls sync.WaitGroup
		seed := r.Uint64()
		stalls.Go(func() {
			for i := uint64(0); !done.Load(); i++ {
				n := []*Node{p.a, p.b}[(seed>>(i%64))&1]
				n.poll.moving.Lock()
				time.Sleep(time.Millisecond)
				n.poll.moving.Unlock()
				time.Sleep(time.Millisecond)
			}
		})
		for i, l := range []*Link{p.la, p.lb} {
			sizes := make([][3]int, rounds) // offset, bytes, what else
			for k := range sizes {
				n := []int{1, 8, 4096, 5000, 256 << 10, 300 << 10, 1 << 20}[r.IntN(7)]
				sizes[k] = [3]int{r.IntN(area - n), n, r.IntN(8)}
			}
			all.Go(func() {
				for k, size := range sizes {
					k := uint64(k + 1)
					b := bytes.Repeat([]byte{byte(k)}, size[1])
					l.Write(transport.Target{Key: k, Slot: 1, Offset: uint64(size[0])}, at(b), len(b), size[2]&1 == 0)
					switch size[2] {
					case 2:
						l.Put(0, k, nil, 0)
					case 3: // written nowhere
						l.Write(transport.Target{Key: k, Slot: 2}, at(b), len(b), true)
					case 4: // of keys that nothing is written to
						l.Withdraw(transport.Target{Key: k + 1, Slot: 1})
						l.Refuse(transport.Target{Key: 1 << 60, Slot: 1})
					}
					call := make([]byte, head, head+4000)
					binary.LittleEndian.PutUint64(call, k)
					binary.LittleEndian.PutUint64(call[8:], uint64(size[0]))
					binary.LittleEndian.PutUint64(call[16:], uint64(size[1]))
					call = call[:head+int(k%5)*1000]
					l.Call(call)
					clear(call)
					for begin := time.Now(); l.Queued()-l.Sent() > 20 && time.Since(begin) < testkit.Limit; {
						l.node.Wait(time.Millisecond)
					}
				}
				for begin := time.Now(); (counts[i].answers.Load() < int64(rounds) || l.Sent() < l.Queued()) && time.Since(begin) < testkit.Limit; {
					l.node.Wait(time.Millisecond)
				}
			})
		}
		all.Wait()
		done.Store(true)
		stalls.Wait()
		for i := range counts {
			require.EqualValues(t, rounds, counts[i].calls.Load())
			require.EqualValues(t, rounds, counts[i].answers.Load())
		}
		p.close(t)
		require.Empty(t, p.toldA.downs())
		require.Empty(t, p.toldB.downs())
	})
}

// A write that the server refuses is read and dropped, and what follows arrives.
func TestRefusedWrite(t *testing.T) {
	sb := &server{memory: make([]byte, 8)}
	p := served(t, 1, nil, sb)
	from := bytes.Repeat([]byte("x"), 2<<20)
	p.la.Write(transport.Target{Key: 1, Slot: 2}, at(from), len(from), false)
	p.la.Write(transport.Target{Key: 1, Slot: 2}, at(from), 8, false)
	p.la.Call([]byte("call"))
	p.la.Write(transport.Target{Key: 1, Slot: 1}, at(from), 8, true)
	p.la.Call([]byte("next"))
	testkit.Eventually(t, func() bool { p.la.Poll(); p.lb.Poll(); return len(sb.heard()) == 2 })
	require.Equal(t, []string{"call", "next"}, sb.heard())
	require.Equal(t, from[:8], sb.memory)
	require.Len(t, sb.pieces(), len(from)/frame.MaxPayload+2)
	p.close(t)
	require.Empty(t, p.toldB.downs())
}

// While the peer does not read, writes are withdrawn: their memory is not read any more, and they count as sent once what
// was put before them does. Others go on.
func TestWithdraw(t *testing.T) {
	over(t, func(t *testing.T, connections int) {
		sb := &server{memory: make([]byte, 32<<20)}
		p := served(t, connections, nil, sb)
		resume := hold(t, p.b)
		from, other := bytes.Repeat([]byte("x"), 32<<20), bytes.Repeat([]byte("y"), 5000)
		p.la.Write(transport.Target{Key: 1, Slot: 1}, at(from), len(from), false)
		require.Positive(t, p.ab.data[0].Queued())
		p.la.Write(transport.Target{Key: 2, Slot: 1, Offset: 31 << 20}, at(other), len(other), false)
		p.la.Write(transport.Target{Key: 1, Slot: 1, Offset: 30 << 20}, at(from), 1<<20, false)
		p.la.Call([]byte("call"))
		p.la.Withdraw(transport.Target{Key: 3, Slot: 1})
		p.la.Withdraw(transport.Target{Key: 1})
		require.Zero(t, p.la.Sent())
		p.la.Withdraw(transport.Target{Key: 1, Slot: 1, Offset: 5})
		require.Positive(t, p.la.Sent())
		p.la.Withdraw(transport.Target{Key: 1, Slot: 1})
		clear(from)
		resume()
		p.la.allSent(t)
		testkit.Eventually(t, func() bool { p.lb.Poll(); return len(sb.heard()) == 1 })
		landed := bytes.Count(sb.memory, []byte("x"))
		require.Zero(t, landed%frame.MaxPayload)
		require.Less(t, landed, len(from))
		require.Equal(t, landed, bytes.Count(sb.memory[:landed], []byte("x")))
		require.Equal(t, other, sb.memory[31<<20:][:len(other)])
		require.Zero(t, bytes.Count(sb.memory[30<<20:][:1<<20], []byte("x")))
		p.close(t)
		require.Empty(t, p.toldB.downs())
	})
}

// rawWrite is the bytes of a write's frame.
func rawWrite(t transport.Target, b []byte) []byte {
	f := make([]byte, frame.HeaderSize, frame.HeaderSize+len(b))
	frame.Header{Kind: frame.Write, Place: t.Slot, Comm: commID, Seq: t.Key, Length: uint64(len(b)), Offset: t.Offset}.Encode(f)
	return append(f, b...)
}

func rawCall(text string) []byte {
	f := make([]byte, frame.HeaderSize, frame.HeaderSize+len(text))
	frame.Header{Kind: frame.Call, Comm: commID, Length: uint64(len(text))}.Encode(f)
	return append(f, text...)
}

// Refuse and Close in the middle of a frame: no more of it lands. After Refuse, the next call comes, and a refusal of
// another key, or another communicator's, changes nothing.
func TestRefuse(t *testing.T) {
	to := transport.Target{Key: 5, Slot: 1, Offset: 100}
	for name, k := range map[string]struct {
		stop  func(p *pair)
		whole bool
		calls []string
	}{
		"refused":     {func(p *pair) { p.lb.Refuse(transport.Target{Key: 5, Slot: 1}) }, false, []string{"after"}},
		"another key": {func(p *pair) { p.lb.Refuse(transport.Target{Key: 4, Slot: 1}) }, true, []string{"after"}},
		"slot":        {func(p *pair) { p.lb.Refuse(transport.Target{Key: 5, Slot: 2}) }, true, []string{"after"}},
		"closed":      {func(p *pair) { p.lb.Close() }, false, []string{}},
		"communicator": {func(p *pair) {
			l := &Link{id: commID + 1}
			l.wire.Store(p.ba)
			l.Refuse(to)
		}, true, []string{"after"}},
	} {
		t.Run(name, func(t *testing.T) {
			sb := &server{memory: make([]byte, 1<<20)}
			p := served(t, 1, nil, sb)
			ping, pong := links(t, p.ab, p.ba, 9, 1)
			fd := p.ab.data[0].end.fd
			raw := rawWrite(to, bytes.Repeat([]byte("x"), 200<<10))
			half := len(raw) - 150<<10
			_, err := unix.Write(fd, raw[:half])
			require.NoError(t, err)
			count := func() int { return bytes.Count(sb.memory, []byte("x")) }
			resume := hold(t, p.b) // only this goroutine receives, so the memory can be looked at
			testkit.Eventually(t, func() bool { p.lb.Poll(); return count() == half-frame.HeaderSize })
			if !k.whole && name == "refused" {
				sb.refuse()
			}
			k.stop(p)
			for rest := append(raw[half:], rawCall("after")...); len(rest) > 0; {
				n, err := unix.Write(fd, rest)
				if err != nil {
					require.ErrorIs(t, err, unix.EAGAIN)
				}
				rest = rest[max(n, 0):]
				pong.Poll()
			}
			ping.Put(0, 1, nil, 0)
			pong.until(t, 0, 1)
			resume()
			require.Equal(t, k.calls, sb.heard())
			if k.whole {
				require.Equal(t, len(raw)-frame.HeaderSize, count())
			} else {
				require.Equal(t, half-frame.HeaderSize, count())
			}
			p.close(t)
			require.Empty(t, p.toldB.downs())
		})
	}
	(&Link{}).Refuse(to) // there is no wire
}

// A call whose frame comes in two halves is whole when it is heard; one that is cut off by Close is not heard.
func TestCallInHalves(t *testing.T) {
	for _, closes := range []bool{false, true} {
		sb := &server{}
		p := served(t, 1, nil, sb)
		ping, pong := links(t, p.ab, p.ba, 9, 1)
		fd := p.ab.data[0].end.fd
		raw := rawCall("a call in halves")
		_, err := unix.Write(fd, raw[:frame.HeaderSize+5])
		require.NoError(t, err)
		testkit.Eventually(t, func() bool { p.lb.Poll(); return p.ba.data[0].traffic().ReceivedPuts > 0 })
		want := []string{"a call in halves"}
		if closes {
			p.lb.Close()
			want = []string{}
		}
		_, err = unix.Write(fd, raw[frame.HeaderSize+5:])
		require.NoError(t, err)
		ping.Put(0, 1, nil, 0)
		pong.until(t, 0, 1)
		require.Equal(t, want, sb.heard())
		p.close(t)
		require.Empty(t, p.toldB.downs())
	}
}

// After Close of either side nothing lands, nothing is read, and the server is not asked. What is written later counts as
// sent.
func TestServeClose(t *testing.T) {
	over(t, func(t *testing.T, connections int) {
		for _, first := range []string{"writer", "server"} {
			sb := &server{memory: make([]byte, 32<<20)}
			p := served(t, connections, nil, sb)
			oa, ob := links(t, p.ab, p.ba, 9, 1)
			from := bytes.Repeat([]byte("x"), 32<<20)
			p.la.Write(transport.Target{Key: 1, Slot: 1}, at(from), len(from), false)
			p.la.Call([]byte("call"))
			testkit.Eventually(t, func() bool { p.lb.Poll(); return len(sb.pieces()) > 0 })
			if first == "server" {
				p.lb.Close()
				asked, landed := len(sb.pieces()), bytes.Count(sb.memory, []byte("x"))
				p.la.allSent(t)
				oa.Put(0, 1, nil, 0)
				ob.until(t, 0, 1)
				require.Equal(t, landed, bytes.Count(sb.memory, []byte("x")))
				require.Len(t, sb.pieces(), asked)
				require.Empty(t, sb.heard())
				p.la.Close()
			} else {
				p.la.Close()
				clear(from)
			}
			p.la.Write(transport.Target{Key: 1, Slot: 1}, at(from), len(from), true)
			p.la.Call([]byte("call"))
			p.la.Withdraw(transport.Target{Key: 1, Slot: 1})
			p.la.Refuse(transport.Target{Key: 1, Slot: 1})
			require.EqualValues(t, 4, p.la.Queued())
			require.EqualValues(t, 4, p.la.Sent())
			oa.Put(0, 2, nil, 0)
			ob.until(t, 0, 2)
			p.close(t)
			require.Empty(t, p.toldA.downs())
			require.Empty(t, p.toldB.downs())
		}
	})
}

// What is written and called before the pair is made comes once it is, in order, but for what is withdrawn before, which
// counts as sent after what was put before it.
func TestServeEarly(t *testing.T) {
	over(t, func(t *testing.T, connections int) {
		for _, closes := range []bool{false, true} {
			sb := &server{memory: make([]byte, 1<<20)}
			p := served(t, connections, nil, nil)
			la := serve(t, p.a, 9, nil)
			from := bytes.Repeat([]byte("x"), 300<<10)
			write := func(key, offset uint64) {
				la.Write(transport.Target{Key: key, Slot: 1, Offset: offset}, at(from), len(from), true)
			}
			call := func(text string) {
				b := []byte(text)
				la.Call(b)
				clear(b)
			}
			write(1, 0)
			la.Grant(0, 1, at(make([]byte, 8)), 8)
			write(1, 5)
			la.Withdraw(transport.Target{Key: 1, Slot: 1})
			require.EqualValues(t, 2, la.Sent())
			call("first")
			write(2, 0)
			write(3, 300<<10)
			call("second")
			la.Withdraw(transport.Target{Key: 2, Slot: 1})
			require.EqualValues(t, 2, la.Sent())
			require.EqualValues(t, 6, la.Queued())
			if closes {
				la.Close()
				require.EqualValues(t, 6, la.Sent())
				p.close(t)
				continue
			}
			lb := serve(t, p.b, 9, sb)
			require.NoError(t, la.Ready(within(t)))
			la.allSent(t)
			testkit.Eventually(t, func() bool { lb.Poll(); return len(sb.heard()) == 2 })
			require.Equal(t, []string{"first", "second"}, sb.heard())
			require.Equal(t, from, sb.memory[300<<10:600<<10])
			require.Equal(t, len(from), bytes.Count(sb.memory, []byte("x")))
			require.EqualValues(t, 3, sb.pieces()[0].t.Key)
			require.EqualValues(t, 1, lb.Granted(0).Load())
			p.close(t)
			require.Empty(t, p.toldB.downs())
		}
	})
}

// Writes and calls that the protocol does not allow end the wire, and nothing is written.
func TestServeViolations(t *testing.T) {
	to := transport.Target{Key: 1, Slot: 1}
	for name, k := range map[string]struct {
		frame      []byte
		connection int
		none       bool // no server
		broken     string
	}{
		"write without server": {rawWrite(to, []byte("x")), 0, true, "1 bytes at 0 of slot 1, key 1, of communicator 0x7: there is no server"},
		"call without server":  {rawCall("x"), 0, true, "a call of 1 bytes of communicator 0x7: there is no server"},
		"write elsewhere":      {rawWrite(to, []byte("x")), 1, false, "another connection"},
		"call elsewhere":       {rawCall("x"), 2, false, "another connection"},
		"key 0":                {rawWrite(transport.Target{Slot: 1}, []byte("x")), 0, false, "it begins with"},
		"empty":                {rawWrite(to, nil), 0, false, "it begins with"},
		"empty call":           {rawCall(""), 0, false, "it begins with"},
		"long call":            {rawCall(string(make([]byte, transport.MaxCall+1))), 0, false, "it begins with"},
		"far":                  {rawWrite(transport.Target{Key: 1, Slot: 1, Offset: transport.MaxOffset}, []byte("x")), 0, false, "it begins with"},
	} {
		t.Run(name, func(t *testing.T) {
			sb := &server{memory: make([]byte, 8)}
			if k.none {
				sb = nil
			}
			p := served(t, 3, nil, sb)
			_, err := unix.Write(p.ab.data[k.connection].end.fd, k.frame)
			require.NoError(t, err)
			testkit.Eventually(t, func() bool { return p.lb.Err() != nil && p.la.Err() != nil })
			require.Equal(t, transport.Broken, p.lb.Err().Kind)
			require.ErrorContains(t, p.lb.Err(), k.broken)
			require.Equal(t, transport.Broken, p.la.Err().Kind)
			if sb != nil {
				require.Empty(t, sb.pieces())
				require.Empty(t, sb.heard())
			}
			p.close(t)
		})
	}
	p := served(t, 1, nil, nil)
	p.la.Write(to, at([]byte("x")), 1, false)
	testkit.Eventually(t, func() bool { return p.lb.Err() != nil && p.la.Err() != nil })
	require.Equal(t, transport.Broken, p.lb.Err().Kind)
	p.close(t)
}

// The peer's revocation of a place leaves writes alone that wait, to a slot of that number.
func TestRevokeBesideWrites(t *testing.T) {
	sb := &server{memory: make([]byte, 16<<20)}
	p := served(t, 1, nil, sb)
	from := bytes.Repeat([]byte("x"), 16<<20)
	p.lb.Grant(1, 1, at(make([]byte, 8)), 8)
	resume := hold(t, p.b)
	p.la.Write(transport.Target{Key: 1, Slot: 1}, at(from), len(from), false)
	require.Positive(t, p.ab.data[0].Queued())
	p.lb.Revoke(1, 5)
	p.ba.data[0].Flush()
	testkit.Eventually(t, func() bool {
		p.la.Poll()
		p.la.putting.Lock()
		defer p.la.putting.Unlock()
		return p.la.places[1].theirs.revoked == 5
	})
	require.Zero(t, p.la.Sent())
	resume()
	p.la.Call([]byte("call"))
	testkit.Eventually(t, func() bool { p.la.Poll(); p.lb.Poll(); return len(sb.heard()) == 1 && p.lb.Revoking() == 0 })
	require.Equal(t, from, sb.memory)
	p.close(t)
}

// Writes and calls allocate nothing.
func TestServeAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	sb := &counter{memory: make([]byte, 64<<10)}
	a, _ := node(t, 0)
	b, _ := node(t, 1)
	connect(t, a, b)
	la, lb := serve(t, a, commID, nil), serve(t, b, commID, sb)
	require.NoError(t, la.Ready(within(t)))
	from, calls := make([]byte, 64<<10), uint64(0)
	trip := func() {
		for _, n := range []int{8, len(from)} {
			for _, more := range []bool{false, true} {
				la.Write(transport.Target{Key: 1, Slot: 1}, at(from), n, more)
				la.Call(from[:64])
				calls++
			}
		}
		for sb.calls.Load() < calls {
			lb.Poll()
			la.Poll()
		}
	}
	trip()
	require.Zero(t, testing.AllocsPerRun(1000, trip))
	closeAll(t, a, b)
}

// counter is a server that counts calls.
type counter struct {
	memory []byte
	calls  atomic.Uint64
}

func (s *counter) Reach(t transport.Target, n int) unsafe.Pointer {
	if t.Offset+uint64(n) > uint64(len(s.memory)) {
		return nil
	}
	return unsafe.Pointer(&s.memory[t.Offset])
}

func (*counter) Denied(transport.Target) {}

func (s *counter) Called([]byte) { s.calls.Add(1) }
