package net

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"github.com/ubcoll/ubcoll/internal/transport"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// Messages come in order, even many more than the peer reads at once, and before their sender's end.
func TestTell(t *testing.T) {
	p := newPair(t, 1)
	want := transport.Message{Comm: 1 << 60, Kind: 3, Code: 4, About: -1, Text: strings.Repeat("x", transport.MaxText)}
	for i := range 50 {
		want.About = int32(i) - 1
		p.ab.tell(want)
		p.ba.tell(transport.Message{About: int32(i)})
	}
	p.ab.tell(transport.Message{Text: strings.Repeat("y", transport.MaxText+1)})
	testkit.Eventually(t, func() bool { return len(p.toldA.messages()) == 50 && len(p.toldB.messages()) == 51 })
	for range 50 {
		p.ab.tell(want) // some are not sent yet when both close
		p.ba.tell(want)
	}
	p.close(t)
	got := p.toldB.messages()
	require.Len(t, got, 101)
	for i, m := range got[:50] {
		require.EqualValues(t, i-1, m.About)
		require.Equal(t, want.Text, m.Text)
	}
	require.Equal(t, strings.Repeat("y", transport.MaxText), got[50].Text)
	require.Len(t, p.toldA.messages(), 100)
}

// If a peer reads nothing, only a few bytes of messages are sent; the rest waits. Of those that may be lost, what is too
// much is dropped; all others come, in order.
func TestTellWindow(t *testing.T) {
	p := newPair(t, 1)
	p.ba.control.receiving.Lock() // reads nothing
	m := transport.Message{Text: strings.Repeat("x", transport.MaxText), MayBeLost: true}
	for range 200 {
		p.ab.tell(m)
	}
	p.ab.control.sending.Lock()
	require.LessOrEqual(t, p.ab.control.unread, window)
	require.LessOrEqual(t, len(p.ab.control.held), held)
	p.ab.control.sending.Unlock()
	m.MayBeLost = false
	for i := range 100 {
		m.About = int32(i)
		p.ab.tell(m)
	}
	p.ab.tell(transport.Message{About: -1, MayBeLost: true}) // has no room, however short
	p.ba.control.receiving.Unlock()
	testkit.Eventually(t, p.ab.control.drained)
	p.close(t)
	got := p.toldB.messages()
	const size = controlHeader + tellFixed + transport.MaxText
	require.Len(t, got, window/size+held/size+100)
	for i, h := range got[len(got)-100:] {
		require.EqualValues(t, i, h.About)
	}
}

// A process that ends without a bye has died. This is reported once, after its messages, and every link has the error.
func TestDeath(t *testing.T) {
	for _, part := range []string{"all", "data", "control"} {
		t.Run(part, func(t *testing.T) {
			p := newPair(t, 1)
			p.ab.tell(transport.Message{Kind: 9})
			p.ab.ended.Store(true) // as in a process that is gone: it notices nothing
			for _, e := range p.ab.sockets() {
				p.a.poll.remove(e)
			}
			if part != "control" {
				p.ab.data[0].Close()
			}
			if part != "data" {
				p.ab.control.close()
			}
			testkit.Eventually(t, func() bool { return p.lb.Err() != nil })
			require.Equal(t, transport.Died, p.lb.Err().Kind)
			require.ErrorIs(t, p.lb.Err(), fault.ErrPeerLost)
			testkit.Eventually(t, func() bool { return len(p.toldB.downs()) == 1 })
			require.Same(t, p.lb.Err(), p.toldB.downs()[0])
			require.Len(t, p.toldB.messages(), 1)
			_, err := p.b.Connect(within(t), 0, p.a.row)
			require.ErrorIs(t, err, fault.ErrPeerLost)
			p.lb.Put(0, 1, nil, 0)
			p.lb.Poll()
			p.ba.tell(transport.Message{})
			p.ab.close()
			p.close(t)
			require.Len(t, p.toldB.downs(), 1)
		})
	}
}

// Data that a process sent before it died lands.
func TestDeathAfterPut(t *testing.T) {
	p := newPair(t, 1)
	from, to := bytes.Repeat([]byte("x"), 100<<10), make([]byte, 100<<10) // which the kernel takes though nobody reads
	p.lb.Post(0, 1, at(to), len(to))
	resume := hold(t, p.b) // does not look before the end
	p.la.Put(0, 1, at(from), len(from))
	testkit.Eventually(t, func() bool { p.la.Poll(); return p.la.Sent() == 1 })
	p.ab.ended.Store(true)
	p.ab.close()
	resume()
	testkit.Eventually(t, func() bool { return p.lb.Err() != nil })
	require.EqualValues(t, 1, p.lb.Word(0).Load())
	require.Equal(t, from, to)
	p.close(t)
}

// It also lands if another goroutine receives when the end is seen.
func TestDeathBesideReader(t *testing.T) {
	p := newPair(t, 1)
	from, to := bytes.Repeat([]byte("x"), 32<<10), make([]byte, 32<<10)
	p.lb.Post(0, 1, at(to), len(to))
	held, release := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		p.ba.data[0].Stop(func(frame.Header) bool { close(held); <-release; return false }) // like a reader
	})
	<-held
	p.la.Put(0, 1, at(from), len(from))
	testkit.Eventually(t, func() bool {
		n, err := unix.IoctlGetInt(p.ba.data[0].end.fd, unix.TIOCINQ)
		return err == nil && n == frame.HeaderSize+len(from)
	})
	all.Go(func() { p.ba.finish(transport.Died, fault.ErrPeerLost) })
	testkit.Eventually(t, p.ba.ended.Load)
	time.Sleep(5 * time.Millisecond) // until it waits, to catch a mistake: correct code passes without this
	close(release)
	all.Wait()
	require.EqualValues(t, 1, p.lb.Word(0).Load())
	require.Equal(t, from, to)
	p.close(t)
}

// A peer that has said bye has left, even if its kernel resets the connections since it has not read everything.
func TestLeftByReset(t *testing.T) {
	p := newPair(t, 1)
	p.ab.control.tell(controlBye, nil, false)
	testkit.Eventually(t, func() bool { c := &p.ba.control; c.receiving.Lock(); defer c.receiving.Unlock(); return c.bye })
	p.ab.ended.Store(true)
	for _, e := range p.ab.sockets() {
		require.NoError(t, unix.SetsockoptLinger(e.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	}
	p.ab.close()
	testkit.Eventually(t, func() bool { return p.lb.Err() != nil })
	require.Equal(t, transport.Left, p.lb.Err().Kind)
	p.close(t)
	require.Empty(t, p.toldB.downs())
}

// A peer that has said bye is not given up while its earlier puts are still arriving.
func TestByeBeforeData(t *testing.T) {
	p := newPair(t, 1)
	seen := time.Now().Add(-time.Millisecond).UnixNano()
	p.ba.part.control.Store(seen)
	p.la.Put(0, 1, nil, 0)
	p.lb.until(t, 0, 1)
	testkit.Eventually(t, func() bool { return p.ba.part.control.Load() > seen })
	p.ba.part.control.Store(0)
	p.close(t)
}

// If both have said bye, and the end of a peer's data does not come, Close does not wait for it until its limit. That was
// seen of libfabric.
func TestByeWithoutEnd(t *testing.T) {
	p := newPair(t, 1)
	p.ab.control.tell(controlBye, nil, false)
	testkit.Eventually(t, p.ab.control.drained)
	p.ab.control.shut()
	p.ab.ended.Store(true) // so it does nothing more
	require.NoError(t, p.b.Close(closure-time.Second))
	p.ab.close()
	require.NoError(t, p.a.Close(testkit.Limit))
}

// If the kernel says that a host does not answer, that is a cut, not a death.
func TestCut(t *testing.T) {
	for _, e := range []syscall.Errno{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
		p := newPair(t, 1)
		p.ab.heard(e)
		require.Equal(t, transport.Cut, p.la.Err().Kind)
		require.ErrorIs(t, p.la.Err(), e)
		require.Len(t, p.toldA.downs(), 1)
		testkit.Eventually(t, func() bool { return p.lb.Err() != nil })
		p.close(t)
	}
}

// If packets of one direction are lost, the peer may give up first, and its end of stream arrives: that is no death.
func TestCutOneWay(t *testing.T) {
	testkit.LongOrRace(t)
	ends := map[string]func(p *pair){
		"all": func(p *pair) { p.ba.finish(transport.Cut, syscall.ETIMEDOUT) },
		"reset": func(p *pair) {
			if p.ba.ended.Swap(true) { // the machine is slow, and it has ended by itself
				return
			}
			for _, e := range p.ba.sockets() {
				require.NoError(t, unix.SetsockoptLinger(e.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
			}
			p.ba.close()
		},
		"data": func(p *pair) { p.ba.data[0].Close() },
	}
	for name, end := range ends {
		for _, cut := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s %v", name, cut), func(t *testing.T) {
				p := newPair(t, 1)
				if cut {
					deafen(t, p.ba.control.end.fd)
					testkit.Eventually(t, func() bool { return p.ab.control.silent() || p.la.Err() != nil })
					p.a.look(time.Now())
					require.True(t, p.ab.silentAt.Load() != 0 || p.la.Err() != nil, "nobody has looked")
				}
				end(p)
				testkit.Eventually(t, func() bool { return p.la.Err() != nil })
				want := transport.Died
				if cut {
					want = transport.Cut
				}
				require.Equal(t, want, p.la.Err().Kind, p.la.Err())
			})
		}
	}
}

// deafen drops what comes for a socket, so that nothing is acknowledged.
func deafen(t testing.TB, fd int) {
	drop := [1]unix.SockFilter{{Code: unix.BPF_RET}}
	err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
	if errors.Is(err, unix.EPERM) && os.Getuid() != 0 {
		t.Skip("this machine lets users attach no filter to a socket")
	}
	require.NoError(t, err)
}

// What the kernel sends again counts, also after the wire has ended.
func TestRetries(t *testing.T) {
	p := newPair(t, 1)
	deafen(t, p.ba.data[0].end.fd)
	p.la.Put(0, 1, nil, 0)
	testkit.Eventually(t, func() bool {
		i, err := unix.GetsockoptTCPInfo(p.ab.data[0].end.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && i.Total_retrans > 0
	})
	p.ab.finish(transport.Cut, syscall.ETIMEDOUT)
	require.Positive(t, p.a.Traffic()[0].Retries)
}

// A peer that breaks the protocol ends the wire. Both ends learn how it did, and nothing is written.
func TestViolations(t *testing.T) {
	good := frame.Header{Kind: frame.Put, Place: 1, Comm: commID, Seq: 5, Length: 8}
	edit := func(f func(b []byte)) []byte {
		b := make([]byte, frame.HeaderSize+16)
		good.Encode(b)
		f(b)
		return b
	}
	le := binary.LittleEndian
	for name, b := range map[string][]byte{
		"magic":            edit(func(b []byte) { b[0]++ }),
		"kind":             edit(func(b []byte) { b[2]++ }),
		"zero":             edit(func(b []byte) { b[3]++ }),
		"place":            edit(func(b []byte) { le.PutUint32(b[4:], 2) }),
		"large place":      edit(func(b []byte) { le.PutUint32(b[4:], 1<<31) }),
		"not granted":      edit(func(b []byte) { le.PutUint32(b[4:], 0) }),
		"communicator":     edit(func(b []byte) { b[8]++ }),
		"sequence":         edit(func(b []byte) { le.PutUint64(b[16:], 6) }),
		"sequence 0":       edit(func(b []byte) { le.PutUint64(b[16:], 0) }),
		"length":           edit(func(b []byte) { le.PutUint64(b[24:], 9) }),
		"large length":     edit(func(b []byte) { le.PutUint64(b[24:], 1<<63) }),
		"large part":       edit(func(b []byte) { b[2] = byte(frame.Part); le.PutUint64(b[24:], 9) }),
		"empty part":       edit(func(b []byte) { b[2] = byte(frame.Part); le.PutUint64(b[24:], 0) }),
		"part not granted": edit(func(b []byte) { b[2] = byte(frame.Part); le.PutUint32(b[4:], 0) }),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 2)
			to := make([]byte, 16)
			p.lb.Post(1, 5, at(to), 8)
			_, err := unix.Write(p.ab.data[0].end.fd, b)
			require.NoError(t, err)
			testkit.Eventually(t, func() bool { return p.lb.Err() != nil && p.la.Err() != nil })
			require.Equal(t, transport.Broken, p.lb.Err().Kind)
			require.ErrorIs(t, p.lb.Err(), frame.ErrFrame)
			require.Equal(t, transport.Broken, p.la.Err().Kind)
			require.ErrorContains(t, p.la.Err(), frame.ErrFrame.Error())
			require.Equal(t, make([]byte, 16), to)
			p.close(t)
		})
	}
	for name, c := range map[string]struct {
		next   frame.Header
		closed bool // this side, too
	}{
		"put after the last":               {good, false},
		"put after the last of a closed":   {good, true},
		"communicator that is over, again": {frame.Header{Kind: frame.Over, Comm: commID}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 2)
			p.lb.Post(1, 5, at(make([]byte, 16)), 8)
			if c.closed {
				p.lb.Close()
			}
			b := make([]byte, 2*frame.HeaderSize+8)
			frame.Header{Kind: frame.Over, Comm: commID}.Encode(b)
			c.next.Encode(b[frame.HeaderSize:])
			_, err := unix.Write(p.ab.data[0].end.fd, b)
			require.NoError(t, err)
			testkit.Eventually(t, func() bool { return p.lb.Err() != nil })
			require.ErrorIs(t, p.lb.Err(), frame.ErrFrame)
			p.close(t)
		})
	}
	t.Run("control", func(t *testing.T) {
		p := newPair(t, 2)
		_, err := unix.Write(p.ab.control.end.fd, []byte("garbage, and more of it"))
		require.NoError(t, err)
		testkit.Eventually(t, func() bool { return p.lb.Err() != nil && p.la.Err() != nil })
		require.Equal(t, transport.Broken, p.lb.Err().Kind)
		p.close(t)
	})
}

// Parts land behind each other, and what follows breaks the protocol where it does not fit: nothing is written beyond
// the grant. Parts of a sequence that was revoked, or has landed, are forgotten.
func TestParts(t *testing.T) {
	const room = 8
	framed := func(kind frame.Kind, place uint32, seq uint64, text string) []byte {
		b := make([]byte, frame.HeaderSize, frame.HeaderSize+len(text))
		frame.Header{Kind: kind, Place: place, Comm: commID, Seq: seq, Length: uint64(len(text))}.Encode(b)
		return append(b, text...)
	}
	part := func(seq uint64, text string) []byte { return framed(frame.Part, 0, seq, text) }
	put := func(seq uint64, text string) []byte { return framed(frame.Put, 0, seq, text) }
	for _, k := range []struct {
		name   string
		frames [][]byte // for sequence 5 of place 0; the last one raises place 1's word
		want   string   // at place 0
		landed int      // of sequence 5; 0: it does not
		broken string
	}{
		{"a part and the rest", [][]byte{part(5, "abc"), put(5, "de")}, "abcde", 5, ""},
		{"parts to the last byte", [][]byte{part(5, "abc"), part(5, "defg"), put(5, "h")}, "abcdefgh", 8, ""},
		{"others in between", [][]byte{part(5, "abc"), framed(frame.Put, 2, 1, "xyz"), part(5, "d"), framed(frame.Put, 3, 1, ""), put(5, "e")}, "abcde", 5, ""},
		{"a part alone", [][]byte{part(5, "abc")}, "abc", 0, ""},
		{"an empty end", [][]byte{part(5, "abc"), put(5, "")}, "abc", 3, ""},
		{"older parts", [][]byte{part(4, "wxyz"), part(5, "abc"), part(3, "w"), put(4, "w"), put(5, "d")}, "abcd", 4, ""},
		{"parts after the end", [][]byte{part(5, "abc"), put(5, "d"), part(5, "wxyz"), put(5, "w")}, "abcd", 4, ""},
		{"a part beyond the grant", [][]byte{part(5, "abcde"), part(5, "wxyz")}, "abcde", 0, "8 bytes are granted, of which 5 have come"},
		{"a put beyond the grant", [][]byte{part(5, "abcdefgh"), put(5, "w")}, "abcdefgh", 0, "8 bytes are granted, of which 8 have come"},
		{"another sequence's put", [][]byte{part(5, "abc"), put(6, "w")}, "abc", 0, "sequence 5 is granted"},
		{"another sequence's part", [][]byte{part(5, "abc"), part(6, "w")}, "abc", 0, "sequence 5 is granted"},
	} {
		t.Run(k.name, func(t *testing.T) {
			p := newPair(t, 4)
			to, other := make([]byte, 2*room), make([]byte, room)
			p.lb.Post(0, 5, at(to), room)
			p.lb.Post(2, 1, at(other), room)
			_, err := unix.Write(p.ab.data[0].end.fd, bytes.Join(append(k.frames, framed(frame.Put, 1, 1, "")), nil))
			require.NoError(t, err)
			testkit.Eventually(t, func() bool { return p.lb.Word(1).Load() == 1 || p.lb.Err() != nil })
			require.Equal(t, k.want+strings.Repeat("\x00", 2*room-len(k.want)), string(to))
			require.Equal(t, k.landed > 0, p.lb.Word(0).Load() == 5)
			require.Equal(t, k.landed, p.lb.Landed(0))
			if k.broken == "" {
				require.Nil(t, p.lb.Err())
			} else {
				require.Equal(t, transport.Broken, p.lb.Err().Kind)
				require.ErrorContains(t, p.lb.Err(), k.broken)
			}
			p.close(t)
		})
	}
	t.Run("revoked in between", func(t *testing.T) {
		p := newPair(t, 2)
		to := make([]byte, room)
		write := func(b []byte) {
			_, err := unix.Write(p.ab.data[0].end.fd, b)
			require.NoError(t, err)
		}
		p.lb.Post(0, 5, at(to), room)
		write(part(5, "abc"))
		write(framed(frame.Put, 1, 1, ""))
		p.lb.until(t, 1, 1)
		p.lb.Revoke(0, 5)
		testkit.Eventually(t, func() bool { p.lb.Poll(); return p.lb.Revoking() == 0 })
		write(part(5, "wxyz"))
		p.lb.Post(0, 6, at(to), room)
		write(part(6, "de"))
		write(put(6, "f"))
		p.lb.until(t, 0, 6)
		require.Equal(t, "def\x00\x00\x00\x00\x00", string(to))
		require.Equal(t, 3, p.lb.Landed(0))
		p.close(t)
		require.Empty(t, p.toldB.downs())
	})
}

// Frames that are older than the grant, or come twice, are read and dropped.
func TestOld(t *testing.T) {
	p := newPair(t, 2)
	to := make([]byte, 8)
	p.lb.Post(0, 5, at(to), 8)
	b := make([]byte, frame.HeaderSize+8)
	write := func(seq uint64, fill byte) {
		frame.Header{Kind: frame.Put, Comm: commID, Seq: seq, Length: 8}.Encode(b)
		copy(b[frame.HeaderSize:], bytes.Repeat([]byte{fill}, 8))
		_, err := unix.Write(p.ab.data[0].end.fd, b)
		require.NoError(t, err)
	}
	write(4, 4)
	write(5, 5)
	write(5, 6)
	write(3, 3)
	p.la.Put(1, 1, nil, 0)
	p.lb.until(t, 1, 1)
	require.Equal(t, bytes.Repeat([]byte{5}, 8), to)
	require.EqualValues(t, 5, p.lb.Word(0).Load())
	p.close(t)
	require.Empty(t, p.toldB.downs())
}

// Close drains: earlier puts and messages arrive, even if the peer looks late.
func TestCloseDrains(t *testing.T) {
	p := newPair(t, 1)
	from, to := bytes.Repeat([]byte("x"), 32<<20), make([]byte, 32<<20)
	p.lb.Post(0, 1, at(to), len(to))
	p.la.Put(0, 1, at(from), len(from))
	require.Positive(t, p.ab.data[0].Queued())
	p.ab.tell(transport.Message{Kind: 1})
	require.NoError(t, p.a.Close(testkit.Limit))
	require.EqualValues(t, 1, p.lb.Word(0).Load())
	require.Equal(t, from, to)
	testkit.Eventually(t, func() bool { return p.lb.Err() != nil })
	require.Equal(t, transport.Left, p.lb.Err().Kind)
	require.ErrorIs(t, p.lb.Err(), fault.ErrClosed)
	require.Len(t, p.toldB.messages(), 1)
	require.NoError(t, p.b.Close(testkit.Limit))
	require.Empty(t, p.toldB.downs())
	require.Empty(t, p.toldA.downs())
	require.NoError(t, p.a.Close(0))
	p.a.Progress()
	p.a.Wait(time.Millisecond)
}

// Close waits no longer than its limit for a peer that reads nothing, and says what it leaves.
func TestCloseLimit(t *testing.T) {
	p := newPair(t, 1)
	resume := hold(t, p.b) // stops receiving
	from := make([]byte, 32<<20)
	p.la.Put(0, 1, at(from), len(from))
	err := p.a.Close(50 * time.Millisecond)
	require.ErrorContains(t, err, "rank 1 has not taken 1 puts within 50ms")
	require.ErrorIs(t, err, fault.ErrTimeout)
	require.Equal(t, transport.Left, p.la.Err().Kind)
	resume()
	testkit.Eventually(t, func() bool { return p.lb.Err() != nil }) // there is no grant, either
	p.close(t)
}

// Nothing stays behind after many wires, however they end: no goroutine (TestMain checks) and no descriptor.
func TestNothingStays(t *testing.T) {
	newPair(t, 1).close(t)
	before := descriptorsOpen(t)
	for i := range 10 {
		p := newPair(t, 1)
		switch i % 3 {
		case 1:
			p.ab.finish(transport.Died, fault.ErrPeerLost)
		case 2:
			require.NoError(t, p.a.Close(testkit.Limit))
		}
		p.close(t)
	}
	testkit.Eventually(t, func() bool { return descriptorsOpen(t) <= before })
}

// Tick is called while there is a wire, even if another goroutine makes progress all the time.
func TestTick(t *testing.T) {
	p := newPair(t, 1)
	ticks := func(h *told) int { h.mu.Lock(); defer h.mu.Unlock(); return h.ticks }
	testkit.Eventually(t, func() bool { return ticks(p.toldB) > 1 })
	begin := ticks(p.toldA)
	testkit.Eventually(t, func() bool { p.a.Wait(time.Millisecond); return ticks(p.toldA) > begin+1 })
	begin = ticks(p.toldA)
	for start := time.Now(); ticks(p.toldA) < begin+2 && time.Since(start) < testkit.Limit; {
		p.la.Poll()
	}
	require.GreaterOrEqual(t, ticks(p.toldA), begin+2)
	p.close(t)
}
