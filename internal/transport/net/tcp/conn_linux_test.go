package tcp

import (
	"encoding/binary"
	"errors"
	"io"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// model takes frames of places 0 to 3 in memory of 64 bytes each, drops those of 4 to 7, and refuses the others.
type model struct {
	memory [4][64]byte
	placed int
	landed []Header
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

// FuzzFrames: whatever comes, in whatever pieces, frames land as a plain reader takes them, up to the first that breaks a
// rule.
func FuzzFrames(f *testing.F) {
	frame := func(place uint32, length int) []byte {
		b := make([]byte, HeaderSize+length)
		Header{Place: place, Comm: 1, Seq: 1, Length: uint64(length)}.Encode(b)
		for i := range length {
			b[HeaderSize+i] = byte(i + 1)
		}
		return b
	}
	f.Add(append(frame(0, 64), frame(3, 0)...), uint16(7))
	f.Add(append(frame(5, 5000), frame(1, 9)...), uint16(1000))
	f.Add(append(frame(2, 64), frame(9, 1)...), uint16(33))
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
			if err == nil {
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
		require.Equal(t, want.memory, got.memory)
	})
}

// Puts that find the socket full go out later in their order, with what is dropped as zeros where it had begun and not at
// all where not.
func TestQueue(t *testing.T) {
	fds := pair(t)
	room := false
	c := New(fds[0], &model{}, func(r bool) { room = r })
	var sent atomic.Uint64
	large := make([]byte, 4<<20)
	for i := range large {
		large[i] = 1
	}
	put := func(comm uint64, n int) {
		c.Put(Header{Comm: comm, Seq: 1, Length: uint64(n)}, unsafe.Pointer(&large[0]), &sent)
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
	require.EqualValues(t, 52, sent.Load())
	ones := 0
	for got[HeaderSize+ones] == 1 {
		ones++
	}
	require.Less(t, ones, len(large))
	for _, x := range got[HeaderSize+ones : HeaderSize+len(large)] {
		require.Zero(t, x)
	}
	rest := got[HeaderSize+len(large):]
	require.EqualValues(t, 2, binary.LittleEndian.Uint64(rest[8:]))
	require.EqualValues(t, 3, binary.LittleEndian.Uint64(rest[HeaderSize+20+8:]))
	c.Close()
	require.NoError(t, unix.Close(fds[1]))
	put(1, 1)
	c.Flush()
	require.EqualValues(t, 52, sent.Load())
}
