package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// model takes frames for places 0 to 3 into memory of 64 bytes each, drops those for 4 to 7, and refuses all others.
type model struct {
	memory [4][64]byte
	placed int
	landed []Header
	told   []Header
}

func (m *model) Place(h Header) (unsafe.Pointer, bool, error) {
	m.placed++
	switch {
	case h.Place >= 8 || h.Place < 4 && h.Length > 64:
		return nil, false, Refused(h, "no such place")
	case h.Place >= 4:
		return nil, false, nil
	}
	return unsafe.Pointer(&m.memory[h.Place]), true, nil
}

func (m *model) Landed(h Header) { m.landed = append(m.landed, h) }

func (m *model) Told(h Header) error {
	if h.Comm > 8 {
		return Refused(h, "it is none")
	}
	m.told = append(m.told, h)
	return nil
}

func pair(t testing.TB) (fds [2]int) {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(l, 1))
	at, err := unix.Getsockname(l)
	require.NoError(t, err)
	fds[0], err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Connect(fds[0], at))
	fds[1], _, err = unix.Accept(l)
	require.NoError(t, err)
	for _, fd := range fds {
		require.NoError(t, unix.SetNonblock(fd, true))
	}
	require.NoError(t, unix.Close(l))
	return fds
}

// FuzzFrames: whatever arrives, in whatever pieces, frames land as a plain reader would take them, up to the first that
// breaks the protocol.
func FuzzFrames(f *testing.F) {
	frame := func(place uint32, length int) []byte {
		b := make([]byte, HeaderSize+length)
		Header{Kind: Put, Place: place, Comm: 1, Seq: 1, Length: uint64(length)}.Encode(b)
		for i := range length {
			b[HeaderSize+i] = byte(i + 1)
		}
		return b
	}
	f.Add(append(frame(0, 64), frame(3, 0)...), uint16(7))
	f.Add(append(frame(5, 5000), frame(1, 9)...), uint16(1000))
	f.Add(append(frame(2, 64), frame(9, 1)...), uint16(33))
	over := make([]byte, 2*HeaderSize)
	Header{Kind: Over, Comm: 8}.Encode(over)
	Header{Kind: Revoke, Place: 3, Comm: 9, Seq: 5}.Encode(over[HeaderSize:])
	f.Add(append(frame(2, 64), over...), uint16(40))
	f.Add([]byte("garbage that is longer than a header is"), uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, piece uint16) {
		if len(b) > 32<<10 {
			return
		}
		var want model
		var end error
		for rest := b; end == nil; {
			if len(rest) < HeaderSize {
				end = io.EOF
				if len(rest) > 0 {
					end = io.ErrUnexpectedEOF
				}
				break
			}
			h, err := Decode(rest)
			var p unsafe.Pointer
			var ok bool
			switch {
			case err == nil && h.Kind != Put:
				err = want.Told(h)
				h.Length = 0
			case err == nil:
				p, ok, err = want.Place(h)
			}
			if err != nil {
				end = err
				break
			}
			rest = rest[HeaderSize:]
			k := int(min(h.Length, uint64(len(rest))))
			if ok {
				copy(unsafe.Slice((*byte)(p), k), rest)
			}
			rest = rest[k:]
			switch {
			case uint64(k) < h.Length:
				end = io.ErrUnexpectedEOF
			case ok:
				want.Landed(h)
			}
		}

		var got model
		fds := pair(t)
		c := New(fds[0], &got, func(bool) {})
		defer unix.Close(fds[1])
		defer c.Close()
		var err error
		for rest := b; err == nil; {
			if len(rest) > 0 {
				k := min(len(rest), int(piece)+1)
				n, err := unix.Write(fds[1], rest[:k])
				if errors.Is(err, syscall.EAGAIN) {
					n = 0
				} else {
					require.NoError(t, err)
				}
				if rest = rest[n:]; len(rest) == 0 {
					require.NoError(t, unix.Shutdown(fds[1], unix.SHUT_WR))
				}
			} else if len(b) == 0 {
				require.NoError(t, unix.Shutdown(fds[1], unix.SHUT_WR))
			}
			_, err = c.Receive()
		}
		require.Equal(t, errors.Is(end, ErrFrame), errors.Is(err, ErrFrame), "%v, %v", end, err)
		require.Equal(t, errors.Is(end, io.EOF), errors.Is(err, io.EOF), "%v, %v", end, err)
		require.Equal(t, want.landed, got.landed)
		require.Equal(t, want.told, got.told)
		require.Equal(t, want.memory, got.memory)
	})
}

// Puts that find the socket full are sent later, in order. A dropped put is not sent if it had not begun. If it had,
// the peer gets the bytes that were put, whatever happens to their memory.
func TestQueue(t *testing.T) {
	fds := pair(t)
	// The kernel would let buffers grow, now and then until all of it fits.
	require.NoError(t, unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 64<<10))
	require.NoError(t, unix.SetsockoptInt(fds[1], unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<10))
	room := false
	c := New(fds[0], &model{}, func(r bool) { room = r })
	var sent atomic.Uint64
	large := make([]byte, 4<<20)
	for i := range large {
		large[i] = 1
	}
	put := func(comm uint64, n int) {
		c.Put(Header{Kind: Put, Comm: comm, Seq: 1, Length: uint64(n)}, unsafe.Pointer(&large[0]), &sent)
	}
	put(1, len(large)) // begins
	put(1, 10)
	put(2, 20)
	for range 50 {
		put(3, 30)
	}
	require.True(t, room)
	require.Zero(t, sent.Load())
	require.Equal(t, 53, c.Queued())
	c.Drop(1)
	require.Equal(t, 52, c.Queued())
	require.EqualValues(t, 2, sent.Load())
	clear(large)

	var got []byte
	buf := make([]byte, 1<<20)
	for c.Queued() > 0 || len(got) < HeaderSize+len(large)+HeaderSize+20+50*(HeaderSize+30) {
		n, err := unix.Read(fds[1], buf)
		if errors.Is(err, syscall.EAGAIN) {
			c.Flush()
			continue
		}
		require.NoError(t, err)
		got = append(got, buf[:n]...)
	}
	require.False(t, room)
	require.EqualValues(t, 53, sent.Load())
	require.Equal(t, len(large), bytes.Count(got[HeaderSize:HeaderSize+len(large)], []byte{1}))
	rest := got[HeaderSize+len(large):]
	require.EqualValues(t, 2, binary.LittleEndian.Uint64(rest[8:]))
	require.EqualValues(t, 3, binary.LittleEndian.Uint64(rest[HeaderSize+20+8:]))
	c.Close()
	require.NoError(t, unix.Close(fds[1]))
	put(1, 1)
	c.Flush()
	require.EqualValues(t, 53, sent.Load())
}

// A put that has begun is sent whole even if it is dropped, wherever the socket got full: within its header, after it,
// or in its payload.
func TestDropAnywhere(t *testing.T) {
	const n = 1000
	for done := 1; done < HeaderSize+n; done += 13 {
		fds := pair(t)
		c := New(fds[0], &model{}, func(bool) {})
		var sent atomic.Uint64
		from := bytes.Repeat([]byte{7}, n)
		x := newPut(Header{Kind: Put, Comm: 1, Seq: 1, Length: n}, unsafe.Pointer(&from[0]), &sent)
		Header{Kind: Put, Comm: 1, Seq: 1, Length: n}.Encode(x.header[:])
		whole := append(x.header[:], from...)
		_, err := unix.Write(fds[0], whole[:done])
		require.NoError(t, err)
		x.done = done
		c.queue, c.wanted = append(c.queue, x), true
		c.queued.Add(1)
		c.Drop(1)
		clear(from)
		got := make([]byte, 2*len(whole))
		have := 0
		for have < len(whole) {
			k, err := unix.Read(fds[1], got[have:])
			if errors.Is(err, syscall.EAGAIN) {
				continue
			}
			require.NoError(t, err)
			have += k
		}
		require.Equal(t, whole, got[:have], "%d bytes were sent before", done)
		require.EqualValues(t, 1, sent.Load())
		c.Close()
		require.NoError(t, unix.Close(fds[1]))
	}
}

// After dropping everything queued, a connection stops waiting for room: a writable socket would wake it again and
// again.
func TestDropAll(t *testing.T) {
	fds := pair(t)
	wanted := true
	c := New(fds[0], &model{}, func(room bool) { wanted = room })
	var sent atomic.Uint64
	x := newPut(Header{Kind: Put, Comm: 1, Seq: 1}, nil, &sent)
	c.queue, c.wanted = append(c.queue, x), true
	c.queued.Add(1)
	c.Drop(1)
	require.False(t, wanted)
	require.Zero(t, c.Queued())
	require.EqualValues(t, 1, sent.Load())
	c.Close()
	require.NoError(t, unix.Close(fds[1]))
}

// Puts made while another goroutine holds the sending lock, to drop, shut or close, are sent once it is done.
func TestPutMeanwhile(t *testing.T) {
	fds := pair(t)
	c := New(fds[0], &model{}, func(bool) {})
	var sent atomic.Uint64
	b := make([]byte, 8)
	send := func() { c.Put(Header{Kind: Put, Comm: 1, Seq: 1, Length: 8}, unsafe.Pointer(&b[0]), &sent) }
	c.alone(send)
	require.Zero(t, c.Queued())
	require.EqualValues(t, 1, sent.Load())

	// Drop has the lock and is about to look into the inbox.
	c.inbox.Lock()
	dropped := make(chan struct{})
	go func() { c.Drop(99); close(dropped) }()
	for c.sending.TryLock() {
		c.sending.Unlock()
		runtime.Gosched()
	}
	x := newPut(Header{Kind: Put, Comm: 1, Seq: 1, Length: 8}, unsafe.Pointer(&b[0]), &sent)
	c.inbox.puts = append(c.inbox.puts, x)
	c.queued.Add(1)
	c.Flush() // as Put does; it cannot send
	require.Equal(t, 1, c.Queued())
	c.inbox.Unlock()
	<-dropped
	require.Zero(t, c.Queued())
	require.EqualValues(t, 2, sent.Load())
	c.Close()
	c.alone(send)
	require.Zero(t, c.Queued())
	require.EqualValues(t, 2, sent.Load())
	require.NoError(t, unix.Close(fds[1]))
}

// The race detector knows what the network orders: once an answer has come, the goroutine that reads it may write the
// memory of the put.
func TestOrder(t *testing.T) {
	fds := pair(t)
	var here, there model
	a, b := New(fds[0], &here, func(bool) {}), New(fds[1], &there, func(bool) {})
	defer a.Close()
	defer b.Close()
	data := &here.memory[0] // the memory of the put, and the place of the answer
	received := func(c *Conn, m *model) {
		for len(m.landed) == 0 {
			if _, err := c.Receive(); err != nil {
				t.Error(err)
				return
			}
		}
	}
	answered := make(chan struct{})
	go func() { // receives at both ends; knows about the put only from the network
		defer close(answered)
		received(b, &there)
		b.Put(Header{Kind: Put, Seq: 1, Length: 64}, unsafe.Pointer(&there.memory[1]), new(atomic.Uint64))
		received(a, &here)
	}()
	data[0] = 1
	var sent atomic.Uint64
	a.Put(Header{Kind: Put, Seq: 1, Length: 64}, unsafe.Pointer(data), &sent)
	<-answered
	require.Equal(t, byte(1), there.memory[0][0])
}

// Queued frames leave with the next put, before it.
func TestQueuedFrames(t *testing.T) {
	fds := pair(t)
	var got model
	a, b := New(fds[0], &model{}, func(bool) {}), New(fds[1], &got, func(bool) {})
	defer a.Close()
	defer b.Close()
	grant := Header{Kind: Grant, Comm: 1, Place: 2, Seq: 3, Length: 4}
	a.Queue(grant)
	_, err := b.Receive()
	require.NoError(t, err)
	require.Empty(t, got.told)
	data := [8]byte{1}
	var sent atomic.Uint64
	a.Put(Header{Kind: Put, Comm: 1, Seq: 1, Length: 8}, unsafe.Pointer(&data[0]), &sent)
	require.EqualValues(t, 1, sent.Load())
	for len(got.landed) == 0 {
		_, err := b.Receive()
		require.NoError(t, err)
	}
	require.Equal(t, []Header{grant}, got.told)
	a.Queue(grant)
	a.Flush()
	for len(got.told) == 1 {
		_, err := b.Receive()
		require.NoError(t, err)
	}
	require.Zero(t, a.Queued())
}

// Withdraw counts puts of the place and sequences as sent, if they have not begun, and leaves all others.
func TestWithdraw(t *testing.T) {
	fds := pair(t)
	wanted := false
	c := New(fds[0], &model{}, func(room bool) { wanted = room })
	var sent atomic.Uint64
	data := make([]byte, 4)
	add := func(h Header, done int) {
		x := newPut(h, unsafe.Pointer(&data[0]), &sent)
		x.done = done
		c.queue, c.wanted, wanted = append(c.queue, x), true, true
		c.queued.Add(1)
	}
	add(Header{Kind: Put, Comm: 1, Place: 2, Seq: 3, Length: 4}, 1) // has begun
	for _, h := range []Header{
		{Kind: Put, Comm: 1, Place: 2, Seq: 4, Length: 4},
		{Kind: Put, Comm: 1, Place: 2, Seq: 5, Length: 4},
		{Kind: Put, Comm: 1, Place: 2, Seq: 6, Length: 4},   // a later sequence
		{Kind: Put, Comm: 1, Place: 3, Seq: 4, Length: 4},   // another place
		{Kind: Put, Comm: 2, Place: 2, Seq: 4, Length: 4},   // another communicator
		{Kind: Grant, Comm: 1, Place: 2, Seq: 4, Length: 4}, // no put
	} {
		add(h, 0)
	}
	require.NoError(t, unix.Shutdown(fds[0], unix.SHUT_WR)) // so that nothing is sent
	c.Withdraw(1, 2, 5)
	require.EqualValues(t, 2, sent.Load())
	var left []uint64
	for _, x := range c.queue[c.head:] {
		left = append(left, uint64(x.h.Kind)<<32|x.h.Comm<<16|uint64(x.h.Place)<<8|x.h.Seq)
	}
	require.Equal(t, []uint64{1<<32 | 1<<16 | 2<<8 | 3, 1<<32 | 1<<16 | 2<<8 | 6, 1<<32 | 1<<16 | 3<<8 | 4,
		1<<32 | 2<<16 | 2<<8 | 4, 5<<32 | 1<<16 | 2<<8 | 4}, left)
	require.True(t, wanted)
	c.Close()
	require.NoError(t, unix.Close(fds[1]))
}
