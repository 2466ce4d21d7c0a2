// Package tcp carries frames over TCP connections. The receiver reads payloads straight into the places that it reserved.
package tcp

import (
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// ahead is how much is read together with a header. Copying some of it to its place is cheaper than another call.
const ahead = 16 << 10

// batch is about how many bytes one Receive, Put or Flush moves at most, so that a waiting caller can look at its words
// in between.
const batch = 1 << 20

// Conn is one data connection. Its methods are local and safe for concurrent use. None waits for the peer.
//
// What the socket does not take at once waits in a queue, from which goes first what is short: words, and frames without
// a payload, in the order in which they were put. Then communicators take turns with their other puts. A turn is a frame
// of up to MaxPayload, or more of them up to about as much, or twice as much while no other communicator waits. So what is short waits for one frame at most, and for what
// the kernel has taken. Puts to one place stay in order, and so do a communicator's writes and calls: to the queue, each is
// a put.
type Conn struct {
	fd   int // -1 once closed; written under receiving and sending
	sink frame.Sink
	want func(room bool) // tells whether the connection wants to know when the socket takes more

	counts counts

	receiving sync.Mutex
	in        [frame.HeaderSize + ahead]byte
	at, have  int          // in[at:have] has not been handled yet
	now       frame.Header // the frame whose payload is being read
	rest      int          // how much of it is missing; 0: no frame is being read
	dry       bool         // the last call read less than it asked for
	base      unsafe.Pointer
	end       error
	into      [2]iovec

	sending sync.Mutex // held by the goroutine that sends, or takes puts out of the queue
	wanted  bool
	out     [frame.HeaderSize + frame.Short]byte
	heads   [together][frame.HeaderSize]byte
	from    [1 + 2*together]iovec
	message scatter

	mu     sync.Mutex // guards the queue
	words  []byte     // frames that go first: their payloads are copied
	frames int        // that words has had since it was empty
	turns  []*put     // each communicator's first put, in the order of their turns; only of turns[0] may a frame have begun
	spare  *put
	queued atomic.Int64 // puts in turns, and frames
}

const (
	together = 8         // puts that one call sends
	mostIn   = 512 << 10 // bytes of payloads that one call reads: see the system calls
	mostOut  = 2 << 20   // bytes of puts that one call sends: in calls of 512 KiB, 2 MiB took 1.3 times as long
)

// New makes a connection of a non-blocking socket, and owns it from now on. want tells whether the connection wants
// Flush to be called once the socket takes more.
func New(fd int, sink frame.Sink, want func(room bool)) *Conn {
	return &Conn{fd: fd, sink: sink, want: want}
}

// Receive reads what has arrived, up to about 1 MiB, and reports whether there was anything; if not it costs one system
// call. It does nothing while another goroutine receives. Once there is an error, every call returns it: io.EOF after
// the peer's last frame, io.ErrUnexpectedEOF within a frame, ErrFrame, an error of the Sink, or a syscall.Errno.
func (c *Conn) Receive() (moved bool, err error) {
	if !c.receiving.TryLock() {
		return false, nil
	}
	moved, err = c.receive()
	c.receiving.Unlock()
	return moved, err
}

// Drain waits until no other goroutine receives, and then receives all that has arrived. Its error is Receive's.
func (c *Conn) Drain() error {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	for {
		if moved, err := c.receive(); err != nil || !moved {
			return err
		}
	}
}

func (c *Conn) receive() (moved bool, err error) {
	for left := batch; left > 0 && c.end == nil; {
		if c.fd < 0 {
			return moved, nil
		}
		if c.dry && !readable(c.fd) {
			return moved, nil
		}
		var n, asked int
		var e syscall.Errno
		switch {
		case c.rest == 0:
			asked = len(c.in) - c.have
			n, e = receive(c.fd, unsafe.Pointer(&c.in[c.have]), asked)
		case c.base == nil:
			asked = min(c.rest, mostIn)
			n, e = skip(c.fd, asked)
		default:
			// Reads beyond the payload, too: usually that is the next header.
			k := min(c.rest, mostIn)
			c.into[0] = element(unsafe.Add(c.base, int(c.now.Length)-c.rest), k)
			c.into[1] = element(unsafe.Pointer(&c.in[0]), frame.HeaderSize+frame.Short)
			v := c.into[:]
			if asked = k + frame.HeaderSize + frame.Short; k < c.rest {
				v, asked = v[:1], k
			}
			n, e = gather(c.fd, v)
			c.into[0] = iovec{}
		}
		switch {
		case e == again:
			c.dry = true
			return moved, nil
		case e == interrupted:
			continue
		case e != 0:
			c.end = e
		case n == 0 && (c.rest > 0 || c.have > 0):
			c.end = io.ErrUnexpectedEOF
		case n == 0:
			c.end = io.EOF
		default:
			moved = true
			left -= n
			c.counts.received += uint64(n)
			c.end = c.arrived(n)
			c.dry = n < asked
			if n < asked && c.end == nil {
				return moved, nil
			}
		}
	}
	return moved, c.end
}

// arrived handles n bytes that were read: they belong first to the current payload, then to the buffer.
func (c *Conn) arrived(n int) error {
	if c.rest > 0 {
		k := min(n, c.rest)
		c.rest -= k
		n -= k
		if c.rest > 0 {
			return nil
		}
		if c.base != nil {
			c.base = nil
			c.sink.Landed(c.now)
		}
	}
	c.have += n
	for c.have-c.at >= frame.HeaderSize && c.rest == 0 {
		h, err := frame.Decode(c.in[c.at:])
		if err != nil {
			return err
		}
		if !h.Kind.Loaded() {
			if err := c.sink.Told(h); err != nil {
				return err
			}
			c.at += frame.HeaderSize
			continue
		}
		p, ok, err := c.sink.Place(h)
		if err != nil {
			return err
		}
		if h.Kind != frame.Part {
			c.counts.putsReceived++
		}
		c.at += frame.HeaderSize
		k := int(min(h.Length, uint64(c.have-c.at)))
		if ok && k > 0 {
			copy(unsafe.Slice((*byte)(p), k), c.in[c.at:])
		}
		c.at += k
		c.now, c.rest = h, int(h.Length)-k
		switch {
		case c.rest > 0 && ok:
			c.base = p
		case ok:
			c.sink.Landed(h)
		}
	}
	c.have = copy(c.in[:], c.in[c.at:c.have])
	c.at = 0
	return nil
}

// Stop runs f while nothing is received. If f says so of the current frame's header, the rest of that frame is dropped.
func (c *Conn) Stop(f func(h frame.Header) (drop bool)) {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	if f(c.now) && c.rest > 0 {
		c.base = nil
	}
}

// Put sends a frame, or a put or write of any length, as far as the kernel takes it at once, and queues the rest. p is in use
// until sent is raised by 1, or Drop or Close has returned. sent is the same for all puts of a communicator, or nil.
// After Close, Put does nothing.
func (c *Conn) Put(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) {
	var direct bool
	if h.Payload() <= frame.MaxPayload && c.queued.Load() == 0 && c.sending.TryLock() {
		if direct = c.queued.Load() == 0; direct {
			if h.Kind.Loaded() {
				c.counts.direct++
			}
			c.put(h, p, sent)
		}
		c.sending.Unlock()
	}
	if !direct {
		c.enqueue(h, p, sent)
	}
	// Goroutines that put meanwhile found this one sending, so send for them. If the socket is full, a later Flush
	// does.
	if !direct || c.queued.Load() > 0 {
		c.Flush()
	}
}

// put sends what is one frame. Nothing is queued before it.
func (c *Conn) put(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) {
	if c.fd < 0 {
		return
	}
	n := h.Payload()
	h.Encode(c.out[:])
	var done int
	var e syscall.Errno
	if n <= frame.Short {
		if n > 0 {
			copy(c.out[frame.HeaderSize:], unsafe.Slice((*byte)(p), n))
		}
		done, e = send(c.fd, c.out[:frame.HeaderSize+n])
	} else {
		c.from[0], c.from[1] = element(unsafe.Pointer(&c.out[0]), frame.HeaderSize), element(p, n)
		done, e = c.message.send(c.fd, c.from[:2])
		c.from[1] = iovec{}
	}
	if e != 0 {
		done = 0 // EAGAIN, or an error that Receive will report
	}
	c.counts.sent += uint64(done)
	if done < frame.HeaderSize+n {
		c.wants(true)
		c.mu.Lock()
		defer c.mu.Unlock()
		if n > frame.Short { // before what was put meanwhile
			x := c.wait(h, p, sent)
			x.begun = done
			if i := c.turn(h.Comm); i >= 0 {
				x.next = c.turns[i]
				c.turns = slices.Delete(c.turns, i, i+1)
			}
			c.turns = slices.Insert(c.turns, 0, x)
			return
		}
		c.first(c.out[done : frame.HeaderSize+n])
	}
	if sent != nil {
		sent.Add(1)
	}
}

// Queue is Put, but nothing leaves before the next Put or Flush: then it does together with that.
func (c *Conn) Queue(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) { c.enqueue(h, p, sent) }

// Flush sends what is queued as far as the kernel takes it. It does nothing while another goroutine sends, which will
// look again.
func (c *Conn) Flush() {
	for c.queued.Load() > 0 && c.sending.TryLock() {
		full := c.flush()
		c.sending.Unlock()
		if full {
			return
		}
	}
}

// flush returns true if the socket takes no more, or has taken enough for one call.
func (c *Conn) flush() (full bool) {
	for left := batch; ; {
		if c.fd < 0 {
			c.forget()
			return true
		}
		if c.queued.Load() == 0 {
			c.wants(false)
			return false
		}
		v, words, want := c.plan()
		n, e := c.message.send(c.fd, v)
		clear(v)
		if e == interrupted {
			continue
		}
		if e != 0 {
			c.wants(true)
			return true
		}
		c.took(n, words)
		left -= n
		c.counts.sent += uint64(n)
		if n < want || left <= 0 && c.queued.Load() > 0 {
			c.wants(true)
			return true
		}
	}
}

func (c *Conn) wants(room bool) {
	if room != c.wanted && c.fd >= 0 {
		c.wanted = room
		c.want(room)
	}
}

// alone runs f while nobody sends. Then it sends what was put meanwhile by goroutines that found this one sending.
func (c *Conn) alone(f func()) {
	c.sending.Lock()
	f()
	c.sending.Unlock()
	c.Flush()
}

// Shut says that nothing more is sent: after all data, the peer finds the end of the stream.
func (c *Conn) Shut() {
	c.alone(func() {
		if c.fd >= 0 {
			shutdown(c.fd)
		}
	})
}

// Replace calls do with the socket, for whose number do may put another one, while nobody sends or receives. After Close it does
// nothing.
func (c *Conn) Replace(do func(fd int) error) (err error) {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	c.alone(func() {
		if c.fd >= 0 {
			err = do(c.fd)
		}
	})
	return err
}

// Close ends the connection. Once it returns, it uses no memory of puts and places. It may be called again.
func (c *Conn) Close() {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	c.alone(func() {
		if c.fd >= 0 {
			c.look()
			closeFd(c.fd)
			c.fd, c.base = -1, nil
			c.forget()
		}
	})
}
