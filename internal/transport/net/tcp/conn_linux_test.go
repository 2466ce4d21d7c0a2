package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// model takes frames for places 0 to 3 into memory of 64 bytes each, parts behind each other, drops those for 4 to 7,
// and refuses all others. Writes go to the same memory, at their offsets.
type model struct {
	memory [4][64]byte
	call   [transport.MaxCall]byte
	calls  [][]byte
	came   [4]uint64 // bytes of parts
	placed int
	landed []frame.Header
	told   []frame.Header
}

func (m *model) Place(h frame.Header) (unsafe.Pointer, bool, error) {
	m.placed++
	at := m.came[h.Place%4]
	switch {
	case h.Kind == frame.Call:
		return unsafe.Pointer(&m.call), true, nil
	case h.Kind == frame.Write:
		if at = h.Offset; h.Place >= 8 || at+h.Length > 64 {
			return nil, false, frame.Refused(h, "no such memory")
		}
	case h.Place >= 8 || h.Place < 4 && m.came[h.Place]+h.Length > 64:
		return nil, false, frame.Refused(h, "no such place")
	}
	if h.Place >= 4 {
		return nil, false, nil
	}
	return unsafe.Add(unsafe.Pointer(&m.memory[h.Place]), at), true, nil
}

func (m *model) Landed(h frame.Header) {
	m.landed = append(m.landed, h)
	switch h.Kind {
	case frame.Call:
		m.calls = append(m.calls, bytes.Clone(m.call[:h.Length]))
		return
	case frame.Write:
		return
	}
	if m.came[h.Place] += h.Length; h.Kind == frame.Put {
		m.came[h.Place] = 0
	}
}

func (m *model) Told(h frame.Header) error {
	if h.Comm > 8 {
		return frame.Refused(h, "it is none")
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
	kind := frame.Put
	framed := func(place uint32, length int) []byte {
		b := make([]byte, frame.HeaderSize+length)
		frame.Header{Kind: kind, Place: place, Comm: 1, Seq: 1, Length: uint64(length)}.Encode(b)
		for i := range length {
			b[frame.HeaderSize+i] = byte(i + 1)
		}
		return b
	}
	f.Add(append(framed(0, 64), framed(3, 0)...), uint16(7))
	f.Add(append(framed(5, 5000), framed(1, 9)...), uint16(1000))
	f.Add(append(framed(2, 64), framed(9, 1)...), uint16(33))
	over := make([]byte, 2*frame.HeaderSize)
	frame.Header{Kind: frame.Over, Comm: 8}.Encode(over)
	frame.Header{Kind: frame.Revoke, Place: 3, Comm: 9, Seq: 5}.Encode(over[frame.HeaderSize:])
	f.Add(append(framed(2, 64), over...), uint16(40))
	kind = frame.Part
	part := framed(2, 30)
	f.Add(append(append(part, framed(3, 64)...), framed(2, 34)...), uint16(20))
	f.Add(append(append(part, framed(2, 30)...), framed(2, 5)...), uint16(90))
	kind = frame.Put
	f.Add(append(append(part, framed(1, 64)...), framed(2, 34)...), uint16(50))
	call := make([]byte, frame.HeaderSize+transport.MaxCall)
	frame.Header{Kind: frame.Call, Comm: 1, Length: transport.MaxCall}.Encode(call)
	write := func(place uint32, offset uint64, length int) []byte {
		b := framed(place, length)
		frame.Header{Kind: frame.Write, Place: place, Comm: 1, Seq: 7, Length: uint64(length), Offset: offset}.Encode(b)
		return b
	}
	f.Add(append(append(write(2, 30, 34), call...), write(3, 0, 64)...), uint16(25))
	f.Add(append(append(write(4, 1<<40, 5000), write(1, 60, 4)...), write(1, 60, 5)...), uint16(600))
	f.Add([]byte("garbage that is longer than a header is"), uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, piece uint16) {
		if len(b) > 32<<10 {
			return
		}
		var want model
		var end error
		for rest := b; end == nil; {
			if len(rest) < frame.HeaderSize {
				end = io.EOF
				if len(rest) > 0 {
					end = io.ErrUnexpectedEOF
				}
				break
			}
			h, err := frame.Decode(rest)
			var p unsafe.Pointer
			var ok bool
			switch {
			case err == nil && !h.Kind.Loaded():
				err = want.Told(h)
				h.Length = 0
			case err == nil:
				p, ok, err = want.Place(h)
			}
			if err != nil {
				end = err
				break
			}
			rest = rest[frame.HeaderSize:]
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
		require.Equal(t, errors.Is(end, frame.ErrFrame), errors.Is(err, frame.ErrFrame), "%v, %v", end, err)
		require.Equal(t, errors.Is(end, io.EOF), errors.Is(err, io.EOF), "%v, %v", end, err)
		require.Equal(t, want.landed, got.landed)
		require.Equal(t, want.told, got.told)
		require.Equal(t, want.memory, got.memory)
		require.Equal(t, want.calls, got.calls)
	})
}

// full is a connection whose socket soon takes no more, and the other end.
func full(t *testing.T) (c *Conn, fd int, wanted *bool) {
	fds := pair(t)
	// The kernel would let buffers grow, now and then until all of it fits.
	require.NoError(t, unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 64<<10))
	require.NoError(t, unix.SetsockoptInt(fds[1], unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<10))
	wanted = new(bool)
	c = New(fds[0], &model{}, func(room bool) { *wanted = room })
	t.Cleanup(func() { c.Close(); require.NoError(t, unix.Close(fds[1])) })
	return c, fds[1], wanted
}

// drain sends all that is queued, shuts, and returns the frames that came and, of each place's sequence, the bytes.
func drain(t *testing.T, c *Conn, fd int) (frames []frame.Header, bytes map[frame.Header][]byte) {
	var got []byte
	buf := make([]byte, 1<<20)
	end := 0 // of the frames that are whole
	bytes = map[frame.Header][]byte{}
	for shut := false; ; {
		if !shut && c.Queued() == 0 {
			c.Shut()
			shut = true
		}
		n, err := unix.Read(fd, buf)
		if errors.Is(err, syscall.EAGAIN) {
			c.Flush()
			continue
		}
		require.NoError(t, err)
		if n == 0 {
			require.Equal(t, len(got), end, "a frame is not whole")
			return frames, bytes
		}
		got = append(got, buf[:n]...)
		for len(got)-end >= frame.HeaderSize {
			h, err := frame.Decode(got[end:])
			require.NoError(t, err)
			next := end + frame.HeaderSize + h.Payload()
			if next > len(got) {
				break
			}
			frames = append(frames, h)
			of := frame.Header{Comm: h.Comm, Place: h.Place, Seq: h.Seq}
			if h.Kind.Served() {
				of.Kind = h.Kind
			}
			bytes[of] = append(bytes[of], got[end+frame.HeaderSize:next]...)
			end = next
		}
	}
}

// What tables of puts and frames consist of.
func putFrame(comm uint64, place uint32, seq uint64, n int) frame.Header {
	return frame.Header{Kind: frame.Put, Comm: comm, Place: place, Seq: seq, Length: uint64(n)}
}

func part(comm uint64, place uint32, seq uint64) frame.Header {
	return frame.Header{Kind: frame.Part, Comm: comm, Place: place, Seq: seq, Length: frame.MaxPayload}
}

func write(comm uint64, slot uint32, key uint64, offset, n int) frame.Header {
	return frame.Header{Kind: frame.Write, Comm: comm, Place: slot, Seq: key, Length: uint64(n), Offset: uint64(offset)}
}

func call(comm uint64, n int) frame.Header {
	return frame.Header{Kind: frame.Call, Comm: comm, Length: uint64(n)}
}

func note(kind frame.Kind, comm uint64, place uint32) frame.Header {
	return frame.Header{Kind: kind, Comm: comm, Place: place, Seq: 1}
}

// pattern is the memory of a put.
func pattern(h frame.Header) []byte {
	b := make([]byte, h.Length+1)
	for i := range b {
		b[i] = byte(i>>8) ^ byte(i)*31 ^ byte(h.Comm<<6|uint64(h.Place)<<3|h.Seq)
	}
	return b
}

// What is queued leaves in this order, wherever the socket gets full, and each put's bytes are its own.
func TestQueueOrder(t *testing.T) {
	const most = frame.MaxPayload
	for _, k := range []struct {
		name string
		puts []frame.Header
		want []frame.Header
	}{
		{"parts", []frame.Header{putFrame(1, 0, 1, 2*most+5000)}, []frame.Header{part(1, 0, 1), part(1, 0, 1), putFrame(1, 0, 1, 5000)}},
		{"one frame", []frame.Header{putFrame(1, 0, 1, most)}, []frame.Header{putFrame(1, 0, 1, most)}},
		{"one more byte", []frame.Header{putFrame(1, 0, 1, most+1)}, []frame.Header{part(1, 0, 1), putFrame(1, 0, 1, 1)}},
		{"two whole frames", []frame.Header{putFrame(1, 0, 1, 2*most)}, []frame.Header{part(1, 0, 1), putFrame(1, 0, 1, most)}},
		{"turns", []frame.Header{putFrame(1, 0, 1, 3*most), putFrame(2, 0, 1, 2*most), putFrame(1, 1, 1, 5000), putFrame(3, 0, 1, 5000)},
			[]frame.Header{part(1, 0, 1), part(2, 0, 1), putFrame(3, 0, 1, 5000), part(1, 0, 1), putFrame(2, 0, 1, most),
				putFrame(1, 0, 1, most), putFrame(1, 1, 1, 5000)}},
		{"a turn has few frames", []frame.Header{putFrame(1, 0, 1, 5000), putFrame(1, 1, 1, 5000), putFrame(1, 2, 1, 5000), putFrame(1, 3, 1, 5000), putFrame(1, 4, 1, 5000),
			putFrame(1, 5, 1, 5000), putFrame(1, 6, 1, 5000), putFrame(1, 7, 1, 5000), putFrame(1, 8, 1, 5000), putFrame(2, 0, 1, 5000)},
			[]frame.Header{putFrame(1, 0, 1, 5000), putFrame(1, 1, 1, 5000), putFrame(1, 2, 1, 5000), putFrame(1, 3, 1, 5000), putFrame(1, 4, 1, 5000),
				putFrame(1, 5, 1, 5000), putFrame(1, 6, 1, 5000), putFrame(1, 7, 1, 5000), putFrame(2, 0, 1, 5000), putFrame(1, 8, 1, 5000)}},
		{"words first", []frame.Header{putFrame(1, 0, 1, 2*most), putFrame(2, 0, 1, 8), note(frame.Grant, 1, 0), putFrame(1, 1, 1, frame.Short), note(frame.Revoked, 2, 0),
			putFrame(1, 2, 1, 0), putFrame(1, 3, 1, frame.Short+1)},
			[]frame.Header{putFrame(2, 0, 1, 8), note(frame.Grant, 1, 0), putFrame(1, 1, 1, frame.Short), note(frame.Revoked, 2, 0), putFrame(1, 2, 1, 0), part(1, 0, 1),
				putFrame(1, 0, 1, most), putFrame(1, 3, 1, frame.Short+1)}},
		{"a word behind its place", []frame.Header{putFrame(1, 0, 1, most+1), putFrame(1, 0, 2, 8), putFrame(1, 0, 3, 0), putFrame(2, 0, 1, 8), putFrame(1, 1, 1, 8)},
			[]frame.Header{putFrame(2, 0, 1, 8), putFrame(1, 1, 1, 8), part(1, 0, 1), putFrame(1, 0, 1, 1), putFrame(1, 0, 2, 8), putFrame(1, 0, 3, 0)}},
		{"a write in frames", []frame.Header{write(1, 7, 9, 100, 2*most+5000)},
			[]frame.Header{write(1, 7, 9, 100, most), write(1, 7, 9, 100+most, most), write(1, 7, 9, 100+2*most, 5000)}},
		{"writes and calls first", []frame.Header{putFrame(1, 0, 1, most+1), write(1, 0, 1, 5, frame.Short), call(1, 8), write(1, 0, 1, 0, 1)},
			[]frame.Header{write(1, 0, 1, 5, frame.Short), call(1, 8), write(1, 0, 1, 0, 1), part(1, 0, 1), putFrame(1, 0, 1, 1)}},
		{"writes and calls in order", []frame.Header{write(1, 7, 9, 1, most+1), call(1, frame.Short), write(1, 6, 9, 5, 8), write(1, 7, 9, 0, 5000), call(1, 1),
			call(2, 2), write(2, 7, 9, 3, 8)},
			[]frame.Header{call(2, 2), write(2, 7, 9, 3, 8), write(1, 7, 9, 1, most), write(1, 7, 9, 1+most, 1), call(1, frame.Short), write(1, 6, 9, 5, 8),
				write(1, 7, 9, 0, 5000), call(1, 1)}},
		{"a slot is no place", []frame.Header{write(1, 0, 1, 0, 5000), putFrame(1, 0, 1, 8), note(frame.Grant, 1, 0), call(1, 8)},
			[]frame.Header{putFrame(1, 0, 1, 8), note(frame.Grant, 1, 0), write(1, 0, 1, 0, 5000), call(1, 8)}},
		{"turns of writes", []frame.Header{write(1, 0, 1, 0, 2*most), call(1, 8), putFrame(2, 0, 1, most+5000), write(2, 3, 1, 0, 5000)},
			[]frame.Header{write(1, 0, 1, 0, most), part(2, 0, 1), write(1, 0, 1, most, most), putFrame(2, 0, 1, 5000), write(2, 3, 1, 0, 5000), call(1, 8)}},
	} {
		t.Run(k.name, func(t *testing.T) {
			c, fd, _ := full(t)
			memory := map[frame.Header][]byte{}
			var sent [4]atomic.Uint64
			counts := [4]uint64{}
			c.sending.Lock() // so that all is queued
			for _, h := range k.puts {
				if !h.Kind.Loaded() {
					c.Queue(h, nil, nil)
					continue
				}
				b := pattern(h)
				of := frame.Header{Comm: h.Comm, Place: h.Place, Seq: h.Seq}
				if h.Kind.Served() {
					of.Kind = h.Kind
				}
				memory[of] = append(memory[of], b[:h.Length]...)
				c.Put(h, unsafe.Pointer(&b[0]), &sent[h.Comm])
				if h.Kind == frame.Call {
					clear(b) // it is a copy that waits
				}
				counts[h.Comm]++
			}
			require.Equal(t, len(k.puts), c.Queued())
			c.sending.Unlock()
			frames, got := drain(t, c, fd)
			require.Equal(t, k.want, frames)
			for of, b := range memory {
				require.True(t, bytes.Equal(b, got[of]), "%+v", of)
			}
			for i, n := range counts {
				require.Equal(t, n, sent[i].Load(), "communicator %d", i)
			}
			require.Empty(t, c.turns)
		})
	}
}

// One call sends no more than a turn, and words of about as much.
func TestCallLength(t *testing.T) {
	for _, k := range []struct {
		name        string
		puts        []frame.Header
		words, want int
	}{
		{"words and a turn", []frame.Header{putFrame(1, 0, 1, 3*frame.MaxPayload), putFrame(2, 0, 1, 8), putFrame(2, 1, 1, frame.MaxPayload)}, frame.HeaderSize + 8,
			2*frame.HeaderSize + 8 + frame.MaxPayload},
		{"a turn of several puts", []frame.Header{putFrame(1, 0, 1, 100<<10), putFrame(1, 1, 1, 100<<10), putFrame(1, 2, 1, 100<<10), putFrame(1, 3, 1, 100<<10),
			putFrame(2, 0, 1, 5000)}, 0, 3 * (frame.HeaderSize + 100<<10)},
		{"puts that nobody waits for", slices.Repeat([]frame.Header{putFrame(1, 0, 1, 100<<10)}, together+1), 0, together * (frame.HeaderSize + 100<<10)},
		{"frames that nobody waits for", []frame.Header{putFrame(1, 0, 1, mostOut+frame.MaxPayload)}, 0, mostOut/frame.MaxPayload*frame.HeaderSize + mostOut},
		{"a short write and its call", []frame.Header{write(1, 0, 1, 0, 8), call(1, 8)}, 2 * (frame.HeaderSize + 8), 2 * (frame.HeaderSize + 8)},
		{"a write and its call", []frame.Header{write(1, 0, 1, 0, frame.MaxPayload), call(1, 8)}, 0, 2*frame.HeaderSize + frame.MaxPayload + 8},
		{"a long write", []frame.Header{write(1, 0, 1, 0, mostOut+frame.MaxPayload), call(1, 8)}, 0, mostOut/frame.MaxPayload*frame.HeaderSize + mostOut},
		{"many words", append(slices.Repeat([]frame.Header{putFrame(2, 0, 1, frame.Short)}, frame.MaxPayload/frame.Short), putFrame(1, 0, 1, 5000)), frame.MaxPayload, frame.MaxPayload},
	} {
		t.Run(k.name, func(t *testing.T) {
			c, _, _ := full(t)
			b := make([]byte, mostOut+frame.MaxPayload)
			for _, h := range k.puts {
				c.enqueue(h, unsafe.Pointer(&b[0]), nil)
			}
			_, words, want := c.plan()
			require.Equal(t, k.words, words)
			require.Equal(t, k.want, want)
		})
	}
}

// fill puts until a frame has begun that the socket does not take, and returns its index and the memory.
func (c *Conn) fill(t *testing.T, h frame.Header, sent *atomic.Uint64) (begun int, memory []byte) {
	memory = pattern(h)
	c.Put(h, unsafe.Pointer(&memory[0]), sent)
	for off, shut := -1, false; !shut || off != c.turns[0].off; { // under load the peer's kernel takes late what this one has
		unsent, err1 := unix.IoctlGetInt(c.fd, unix.SIOCOUTQNSD)
		unanswered, err2 := unix.IoctlGetInt(c.fd, unix.TIOCOUTQ)
		require.NoError(t, errors.Join(err1, err2))
		shut = unsent > 0 && unanswered == unsent // the peer's window is
		off = c.turns[0].off
		c.Flush()
		require.Equal(t, 1, c.Queued(), "more than both kernels take")
	}
	require.Positive(t, c.turns[0].begun, "the socket got full between frames, which its buffers' sizes do not allow")
	return c.turns[0].off / frame.MaxPayload, memory
}

// A put that is not sent counts once those before it do, whose memory is in use until then; and not behind those of others.
func TestSkip(t *testing.T) {
	c, fd, _ := full(t)
	var sent, others atomic.Uint64
	b := make([]byte, frame.MaxPayload)
	c.Skip(1, &sent)
	require.EqualValues(t, 1, sent.Load(), "nothing waits")
	_, memory := c.fill(t, putFrame(1, 1, 1, 4*frame.MaxPayload), &sent)
	c.Put(putFrame(1, 2, 1, frame.MaxPayload), unsafe.Pointer(&b[0]), &sent)
	c.Skip(1, &sent)
	c.Skip(1, &sent)
	c.Skip(2, &others)
	require.EqualValues(t, 1, sent.Load())
	require.EqualValues(t, 1, others.Load())
	drain(t, c, fd)
	require.EqualValues(t, 5, sent.Load())
	runtime.KeepAlive(memory)
}

// A frame that the socket does not take, or takes in part, goes before those that come meanwhile.
func TestTakenInPart(t *testing.T) {
	for _, n := range []int{0, 8, frame.Short, frame.Short + 1, frame.MaxPayload} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c, fd, wanted := full(t)
			before := 0 // bytes of others; the largest frame is too large anyway
			for n < frame.MaxPayload {
				k, err := unix.Write(c.fd, make([]byte, 10<<10))
				if err != nil {
					break
				}
				before += k
			}
			h := putFrame(1, 1, 1, n)
			b, other := pattern(h), make([]byte, 5000)
			var sent atomic.Uint64
			for _, h := range []frame.Header{putFrame(2, 0, 1, 5000), putFrame(1, 2, 1, 5000), putFrame(2, 1, 1, 8)} { // while it is being sent
				c.enqueue(h, unsafe.Pointer(&other[0]), &sent)
			}
			c.put(h, unsafe.Pointer(&b[0]), &sent)
			require.True(t, *wanted)
			require.Len(t, c.turns, 2)
			for before > 0 {
				k, err := unix.Read(fd, make([]byte, min(before, 10<<10)))
				if !errors.Is(err, syscall.EAGAIN) {
					require.NoError(t, err)
					before -= k
				}
			}
			frames, got := drain(t, c, fd)
			require.Len(t, frames, 4)
			if n == frame.Short+1 { // it has not begun
				require.Equal(t, putFrame(2, 1, 1, 8), frames[0])
				frames = frames[1:]
			}
			require.Equal(t, h, frames[0])
			require.True(t, bytes.Equal(b[:n], got[frame.Header{Comm: 1, Place: 1, Seq: 1}]))
			require.EqualValues(t, 4, sent.Load())
		})
	}
}

// A word waits for the frame that has begun, and for no other.
func TestWordBeside(t *testing.T) {
	c, fd, wanted := full(t)
	var sent, other atomic.Uint64
	h := putFrame(1, 0, 1, 4<<20)
	begun, memory := c.fill(t, h, &sent)
	require.True(t, *wanted)
	word := pattern(putFrame(2, 0, 1, 8))
	c.Put(putFrame(2, 0, 1, 8), unsafe.Pointer(&word[0]), &other)
	require.EqualValues(t, 1, other.Load())
	clear(word) // it is a copy that waits
	frames, got := drain(t, c, fd)
	require.Equal(t, putFrame(2, 0, 1, 8), frames[begun+1])
	require.Len(t, frames, 4<<20/frame.MaxPayload+1)
	require.True(t, bytes.Equal(memory[:h.Length], got[frame.Header{Comm: 1, Seq: 1}]))
	require.Equal(t, pattern(putFrame(2, 0, 1, 8))[:8], got[frame.Header{Comm: 2, Seq: 1}])
	require.False(t, *wanted)
	require.EqualValues(t, 1, sent.Load())
}

// Words that go before others of their communicator count as sent after these: who counts knows whose memory is free.
func TestSentInOrder(t *testing.T) {
	c, fd, _ := full(t)
	var sent atomic.Uint64
	_, memory := c.fill(t, putFrame(1, 0, 1, 4<<20), &sent)
	for i, n := range []int{8, 5000, 8, 8} {
		c.Put(putFrame(1, uint32(i+1), 1, n), unsafe.Pointer(&memory[0]), &sent)
	}
	require.Zero(t, sent.Load())
	buf := make([]byte, 4<<10)
	for c.Queued() > 0 {
		if _, err := unix.Read(fd, buf); err != nil {
			require.ErrorIs(t, err, syscall.EAGAIN)
			c.Flush()
		}
		want := uint64(5)
		if len(c.turns) > 0 {
			want = map[uint32]uint64{0: 0, 2: 2}[c.turns[0].h.Place]
		}
		require.Equal(t, want, sent.Load())
	}
	require.EqualValues(t, 5, sent.Load())
}

// Drop and Withdraw in the middle of a put complete the frame that has begun, and no more of it; what is put afterwards
// comes then. The memory is not read any more, and all that is taken back counts as sent. Others' puts go on.
func TestTakeBack(t *testing.T) {
	for _, k := range []struct {
		name string
		take func(c *Conn)
		left []frame.Header // of those after the large one
		sent uint64
	}{
		{"drop", func(c *Conn) { c.Drop(1) }, []frame.Header{putFrame(2, 0, 1, 5000)}, 4},
		{"withdraw", func(c *Conn) { c.Withdraw(1, 0, 7) }, []frame.Header{putFrame(1, 1, 5, 5000), putFrame(1, 0, 9, 5000), putFrame(2, 0, 1, 5000)}, 1},
		{"withdraw earlier ones", func(c *Conn) { c.Withdraw(1, 0, 4) }, nil, 0},
		{"withdraw from another place", func(c *Conn) { c.Withdraw(1, 1, 4) }, nil, 0},
		{"withdraw another communicator's", func(c *Conn) { c.Withdraw(2, 0, 1) }, nil, 0},
	} {
		t.Run(k.name, func(t *testing.T) {
			c, fd, wanted := full(t)
			var sent, other atomic.Uint64
			large := putFrame(1, 0, 5, 4<<20)
			_, memory := c.fill(t, large, &sent)
			want := bytes.Clone(memory)
			small := make([]byte, 5000)
			for _, h := range []frame.Header{putFrame(1, 1, 5, 5000), putFrame(1, 0, 6, 5000), putFrame(1, 0, 9, 5000)} {
				c.Put(h, unsafe.Pointer(&small[0]), &sent)
			}
			c.Put(putFrame(2, 0, 1, 5000), unsafe.Pointer(&small[0]), &other)
			c.Queue(note(frame.Grant, 2, 0), nil, nil)
			x := c.turns[c.turn(1)]
			n := (x.off + min(x.begun, 1) + frame.MaxPayload - 1) / frame.MaxPayload // frames; the kernel may have taken more meanwhile
			k.take(c)
			require.True(t, *wanted)
			require.Equal(t, k.sent, sent.Load())
			c.Put(note(frame.Revoked, 1, 0), nil, nil)
			if k.left != nil {
				clear(memory)
			}
			frames, got := drain(t, c, fd)
			if k.left == nil {
				require.Contains(t, frames, note(frame.Revoked, 1, 0))
				require.True(t, bytes.Equal(want[:large.Length], got[frame.Header{Comm: 1, Seq: 5}]))
			} else {
				require.Equal(t, append(slices.Repeat([]frame.Header{part(1, 0, 5)}, n), note(frame.Grant, 2, 0), note(frame.Revoked, 1, 0)), frames[:n+2])
				require.Equal(t, k.left, frames[n+2:])
				require.True(t, bytes.Equal(want[:n*frame.MaxPayload], got[frame.Header{Comm: 1, Seq: 5}]))
			}
			require.EqualValues(t, 4, sent.Load())
			require.False(t, *wanted)
		})
	}
}

// WithdrawWrites takes back writes to a key, and Withdraw puts to a place that has the slot's number.
func TestWithdrawWrites(t *testing.T) {
	rest := []frame.Header{putFrame(1, 0, 4, 5000), write(1, 0, 6, 0, 5000), write(1, 1, 5, 0, 5000), call(1, 100), write(2, 0, 5, 0, 5000)}
	for _, k := range []struct {
		name string
		take func(c *Conn)
		gone bool           // the large one
		left []frame.Header // of those after it
		sent uint64
	}{
		{"writes", func(c *Conn) { c.WithdrawWrites(1, 0, 5) }, true, rest, 1},
		{"puts", func(c *Conn) { c.Withdraw(1, 0, 7) }, false, append([]frame.Header{write(1, 0, 5, 100, 5000)}, rest[1:]...), 0},
		{"another key", func(c *Conn) { c.WithdrawWrites(1, 0, 7) }, false, append([]frame.Header{rest[0], write(1, 0, 5, 100, 5000)}, rest[1:]...), 0},
		{"drop", func(c *Conn) { c.Drop(1) }, true, rest[4:], 6},
	} {
		t.Run(k.name, func(t *testing.T) {
			c, fd, _ := full(t)
			var sent, other atomic.Uint64
			large := write(1, 0, 5, 1<<30, 4<<20)
			_, memory := c.fill(t, large, &sent)
			want := bytes.Clone(memory)
			small := make([]byte, 5000)
			for _, h := range append([]frame.Header{rest[0], write(1, 0, 5, 100, 5000)}, rest[1:]...) {
				s := &sent
				if h.Comm == 2 {
					s = &other
				}
				c.Put(h, unsafe.Pointer(&small[0]), s)
			}
			x := c.turns[c.turn(1)]
			n := (x.off + min(x.begun, 1) + frame.MaxPayload - 1) / frame.MaxPayload
			k.take(c)
			require.Equal(t, k.sent, sent.Load())
			if k.gone {
				clear(memory)
			} else {
				n = len(memory) / frame.MaxPayload
			}
			c.Put(write(1, 0, 5, 7, 8), unsafe.Pointer(&small[0]), &sent)
			frames, got := drain(t, c, fd)
			for i := range n {
				require.Contains(t, frames, write(1, 0, 5, 1<<30+i*frame.MaxPayload, frame.MaxPayload))
			}
			require.NotContains(t, frames, write(1, 0, 5, 1<<30+n*frame.MaxPayload, frame.MaxPayload))
			require.True(t, bytes.HasPrefix(got[frame.Header{Kind: frame.Write, Comm: 1, Seq: 5}], want[:n*frame.MaxPayload]))
			require.Contains(t, frames, write(1, 0, 5, 7, 8))
			frames = slices.DeleteFunc(frames, func(h frame.Header) bool { return h.Length == frame.MaxPayload || h.Length == 8 })
			of := func(comm uint64, all []frame.Header) []frame.Header { // communicators take turns
				return slices.DeleteFunc(slices.Clone(all), func(h frame.Header) bool { return h.Comm != comm })
			}
			for comm := range uint64(3) {
				require.Equal(t, of(comm, k.left), of(comm, frames))
			}
			require.EqualValues(t, 7, sent.Load())
			require.EqualValues(t, 1, other.Load())
		})
	}
}

// A frame that has begun is sent whole even if its put is dropped, wherever the socket got full: within its header, after
// it, or in its payload.
func TestDropAnywhere(t *testing.T) {
	for done := 1; done < frame.HeaderSize+5000; done += 61 {
		fds := pair(t)
		c := New(fds[0], &model{}, func(bool) {})
		var sent atomic.Uint64
		h := putFrame(1, 0, 1, 5000)
		if done%2 == 0 {
			h = write(1, 0, 1, 1<<40, 5000)
		}
		from := pattern(h)
		whole := make([]byte, frame.HeaderSize)
		h.Encode(whole)
		whole = append(whole, from[:5000]...)
		c.enqueue(h, unsafe.Pointer(&from[0]), &sent)
		_, err := unix.Write(fds[0], whole[:done])
		require.NoError(t, err)
		c.turns[0].begun = done
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
	c.wanted = true
	var sent atomic.Uint64
	large := make([]byte, 5000)
	c.enqueue(putFrame(1, 0, 1, 5000), unsafe.Pointer(&large[0]), &sent)
	c.Drop(1)
	require.False(t, wanted)
	require.Zero(t, c.Queued())
	require.EqualValues(t, 1, sent.Load())
	c.Close()
	c.Put(putFrame(1, 0, 2, 5000), unsafe.Pointer(&large[0]), &sent)
	c.Put(putFrame(1, 0, 3, 8), unsafe.Pointer(&large[0]), &sent)
	require.Zero(t, c.Queued())
	require.EqualValues(t, 1, sent.Load())
	require.NoError(t, unix.Close(fds[1]))
}

// Puts made while another goroutine holds the sending lock, to drop, shut or close, are sent once it is done.
func TestPutMeanwhile(t *testing.T) {
	fds := pair(t)
	c := New(fds[0], &model{}, func(bool) {})
	var sent atomic.Uint64
	b := make([]byte, 8)
	c.alone(func() { c.Put(putFrame(1, 0, 1, 8), unsafe.Pointer(&b[0]), &sent) })
	require.Zero(t, c.Queued())

	// Drop has the lock and is about to look into the queue.
	c.mu.Lock()
	dropped := make(chan struct{})
	go func() { c.Drop(99); close(dropped) }()
	for c.sending.TryLock() {
		c.sending.Unlock()
		runtime.Gosched()
	}
	h := putFrame(1, 0, 2, 0)
	c.words = append(c.words, make([]byte, frame.HeaderSize)...)
	h.Encode(c.words)
	c.frames++
	c.queued.Add(1)
	c.Flush() // as Put does; it cannot send
	require.Equal(t, 1, c.Queued())
	c.mu.Unlock()
	<-dropped
	require.Zero(t, c.Queued())
	frames, _ := drain(t, c, fds[1])
	require.Equal(t, []frame.Header{putFrame(1, 0, 1, 8), h}, frames)
	c.Close()
	require.NoError(t, unix.Close(fds[1]))
}

// Puts that find a queue allocate nothing, once it has been as long before.
func TestQueueAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	fds := pair(t)
	c := New(fds[0], &model{}, func(bool) {})
	var sent atomic.Uint64
	large := make([]byte, 2*frame.MaxPayload)
	sink := make([]byte, 1<<20)
	trip := func() {
		c.sending.Lock()
		for comm := range uint64(3) {
			c.Put(putFrame(comm, 0, 1, 2*frame.MaxPayload), unsafe.Pointer(&large[0]), &sent)
			c.Put(putFrame(comm, 1, 1, 8), unsafe.Pointer(&large[0]), &sent)
			c.Put(putFrame(comm, 2, 1, 5000), unsafe.Pointer(&large[0]), &sent)
			c.Put(write(comm, 2, 1, 0, 5000), unsafe.Pointer(&large[0]), &sent)
			c.Put(call(comm, 64), unsafe.Pointer(&large[0]), &sent)
			c.Queue(note(frame.Grant, comm, 1), nil, nil)
		}
		c.sending.Unlock()
		for c.Queued() > 0 {
			c.Flush()
			_, _ = unix.Read(fds[1], sink)
		}
	}
	trip()
	require.Zero(t, testing.AllocsPerRun(20, trip))
	c.Close()
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
		b.Put(frame.Header{Kind: frame.Put, Seq: 1, Length: 64}, unsafe.Pointer(&there.memory[1]), new(atomic.Uint64))
		received(a, &here)
	}()
	data[0] = 1
	var sent atomic.Uint64
	a.Put(frame.Header{Kind: frame.Put, Seq: 1, Length: 64}, unsafe.Pointer(data), &sent)
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
	grant := frame.Header{Kind: frame.Grant, Comm: 1, Place: 2, Seq: 3, Length: 4}
	a.Queue(grant, nil, nil)
	_, err := b.Receive()
	require.NoError(t, err)
	require.Empty(t, got.told)
	data := [8]byte{1}
	var sent atomic.Uint64
	a.Put(frame.Header{Kind: frame.Put, Comm: 1, Seq: 1, Length: 8}, unsafe.Pointer(&data[0]), &sent)
	require.EqualValues(t, 1, sent.Load())
	for len(got.landed) == 0 {
		_, err := b.Receive()
		require.NoError(t, err)
	}
	require.Equal(t, []frame.Header{grant}, got.told)
	a.Queue(grant, nil, nil)
	a.Flush()
	for len(got.told) == 1 {
		_, err := b.Receive()
		require.NoError(t, err)
	}
	require.Zero(t, a.Queued())
}
