package tcp

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// inline is the largest payload that is copied behind its header, so that one call sends or receives both.
const inline = 4 << 10

// ahead is how much is read together with a header. Copying some of it to its place is cheaper than another call.
const ahead = 16 << 10

// batch is about how many bytes one Receive, Put or Flush moves at most, so that a waiting caller can look at its words
// in between.
const batch = 1 << 20

// Sink receives frames. Its methods are called by one goroutine at a time, and may call the connection's Put, Queue and
// Withdraw alone.
type Sink interface {
	// Place returns where the payload goes. If not ok, it is read and dropped. An error ends the connection.
	Place(h Header) (p unsafe.Pointer, ok bool, err error)
	// Landed is called once all of a frame is where Place said.
	Landed(h Header)
	// Told is called for every frame that is no put. An error ends the connection.
	Told(h Header) error
}

// Conn is one data connection. Its methods are local and safe for concurrent use. None waits for the peer.
type Conn struct {
	fd   int // -1 once closed; written under both locks
	sink Sink
	want func(room bool) // tells whether the connection wants to know when the socket takes more

	counts counts

	receiving sync.Mutex
	in        [HeaderSize + ahead]byte
	at, have  int    // in[at:have] has not been handled yet
	now       Header // the frame whose payload is being read
	rest      int    // how much of it is missing; 0: no frame is being read
	base      unsafe.Pointer
	end       error
	into      [2]iovec

	sending sync.Mutex
	queue   []put
	head    int
	wanted  bool
	out     [HeaderSize + inline]byte
	from    [2 * together]iovec
	message scatter

	inbox struct { // puts that came while another goroutine was sending
		sync.Mutex
		puts []put
	}
	queued atomic.Int64 // puts in queue and inbox
}

const (
	together = 8         // puts that one call sends
	most     = 512 << 10 // bytes of puts and payloads that one call moves: see the system calls
)

// put is a frame under way.
type put struct {
	header  [HeaderSize]byte
	p       unsafe.Pointer
	n, done int // n: size of the payload; done: bytes sent, including the header
	h       Header
	sent    *atomic.Uint64 // nil: nobody counts
}

// New makes a connection of a non-blocking socket, and owns it from now on. want tells whether the connection wants
// Flush to be called once the socket takes more.
func New(fd int, sink Sink, want func(room bool)) *Conn { return &Conn{fd: fd, sink: sink, want: want} }

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
		var n, asked int
		var e syscall.Errno
		switch {
		case c.rest == 0:
			asked = len(c.in) - c.have
			n, e = receive(c.fd, unsafe.Pointer(&c.in[c.have]), asked)
		case c.base == nil:
			asked = min(c.rest, most)
			n, e = skip(c.fd, asked)
		default:
			// Reads beyond the payload, too: usually that is the next header.
			k := min(c.rest, most)
			c.into[0] = element(unsafe.Add(c.base, int(c.now.Length)-c.rest), k)
			c.into[1] = element(unsafe.Pointer(&c.in[0]), HeaderSize+inline)
			v := c.into[:]
			if asked = k + HeaderSize + inline; k < c.rest {
				v, asked = v[:1], k
			}
			n, e = gather(c.fd, v)
			c.into[0] = iovec{}
		}
		switch {
		case e == again:
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
			c.counts.received.Add(uint64(n))
			c.end = c.arrived(n)
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
	for c.have-c.at >= HeaderSize && c.rest == 0 {
		h, err := Decode(c.in[c.at:])
		if err != nil {
			return err
		}
		if h.Kind != Put {
			if err := c.sink.Told(h); err != nil {
				return err
			}
			c.at += HeaderSize
			continue
		}
		p, ok, err := c.sink.Place(h)
		if err != nil {
			return err
		}
		c.counts.putsReceived.Add(1)
		c.at += HeaderSize
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
func (c *Conn) Stop(f func(h Header) (drop bool)) {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	if f(c.now) && c.rest > 0 {
		c.base = nil
	}
}

// Put sends a frame as far as the kernel takes it at once, and queues the rest. p is in use until sent is raised by 1,
// or Drop or Close has returned. sent may be nil. After Close, Put does nothing.
func (c *Conn) Put(h Header, p unsafe.Pointer, sent *atomic.Uint64) {
	var direct bool
	if c.queued.Load() == 0 && c.sending.TryLock() {
		if direct = c.queued.Load() == 0; direct {
			c.put(h, p, sent)
		}
		c.sending.Unlock()
	}
	if !direct {
		c.enqueue(newPut(h, p, sent))
	}
	// Goroutines that put meanwhile found this one sending, so send for them. If the socket is full, a later Flush
	// does.
	if !direct || c.queued.Load() > 0 {
		c.Flush()
	}
}

// Queue puts a frame without payload, which leaves together with the next Put, or at the next Flush.
func (c *Conn) Queue(h Header) { c.enqueue(newPut(h, nil, nil)) }

func (c *Conn) enqueue(x put) {
	c.inbox.Lock()
	c.inbox.puts = append(c.inbox.puts, x)
	c.queued.Add(1)
	c.inbox.Unlock()
}

func newPut(h Header, p unsafe.Pointer, sent *atomic.Uint64) put {
	x := put{p: p, n: h.payload(), h: h, sent: sent}
	h.Encode(x.header[:])
	return x
}

// count counts a put whose memory is free again.
func (x *put) count() {
	if x.sent != nil {
		x.sent.Add(1)
	}
}

// put sends a frame. Nothing is queued before it.
func (c *Conn) put(h Header, p unsafe.Pointer, sent *atomic.Uint64) {
	if c.fd < 0 {
		return
	}
	n := h.payload()
	h.Encode(c.out[:])
	var done, asked int
	var e syscall.Errno
	if n <= inline {
		if n > 0 {
			copy(c.out[HeaderSize:], unsafe.Slice((*byte)(p), n))
		}
		asked = HeaderSize + n
		done, e = send(c.fd, c.out[:asked])
	} else {
		k := min(n, most)
		asked = HeaderSize + k
		c.from[0], c.from[1] = element(unsafe.Pointer(&c.out[0]), HeaderSize), element(p, k)
		done, e = c.message.send(c.fd, c.from[:2])
		c.from[1] = iovec{}
	}
	if e == 0 {
		c.counts.sent.Add(uint64(done))
	}
	if e == 0 && done == HeaderSize+n {
		c.counted(&h)
		if sent != nil {
			sent.Add(1)
		}
		return
	}
	if e != 0 {
		done = 0 // EAGAIN, or an error that Receive will report
	}
	x := newPut(h, p, sent)
	x.done = done
	c.queue = append(c.queue, x)
	c.queued.Add(1)
	if done < asked {
		c.wants(true)
	}
}

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
		c.collect()
		if c.fd < 0 {
			c.forget()
			return true
		}
		if c.head == len(c.queue) {
			c.wants(false)
			return false
		}
		want, v := 0, c.from[:0]
		const limit = HeaderSize + most
		for i := c.head; i < len(c.queue) && i < c.head+together && want < limit; i++ {
			x := &c.queue[i]
			if x.done < HeaderSize {
				v = append(v, element(unsafe.Pointer(&x.header[x.done]), HeaderSize-x.done))
				want += HeaderSize - x.done
			}
			done := max(x.done-HeaderSize, 0)
			if done == x.n {
				continue
			}
			k := min(x.n-done, limit-want)
			if k <= 0 {
				break
			}
			v = append(v, element(unsafe.Add(x.p, done), k))
			want += k
		}
		n, e := c.message.send(c.fd, v)
		clear(v)
		if e == interrupted {
			continue
		}
		if e != 0 {
			c.wants(true)
			return true
		}
		left -= n
		c.counts.sent.Add(uint64(n))
		short := n < want
		for n > 0 {
			x := &c.queue[c.head]
			k := min(n, HeaderSize+x.n-x.done)
			x.done += k
			n -= k
			if x.done == HeaderSize+x.n {
				c.counted(&x.h)
				x.count()
				*x = put{}
				c.head++
				c.queued.Add(-1)
			}
		}
		if short || left <= 0 && c.head < len(c.queue) {
			c.wants(true)
			return true
		}
	}
}

// collect moves puts from the inbox into the queue.
func (c *Conn) collect() {
	c.inbox.Lock()
	if c.head > len(c.queue)/2 { // so that a queue that is never empty does not grow forever
		k := copy(c.queue, c.queue[c.head:])
		clear(c.queue[k:])
		c.queue, c.head = c.queue[:k], 0
	}
	c.queue = append(c.queue, c.inbox.puts...)
	clear(c.inbox.puts)
	c.inbox.puts = c.inbox.puts[:0]
	c.inbox.Unlock()
}

func (c *Conn) wants(room bool) {
	if room != c.wanted && c.fd >= 0 {
		c.wanted = room
		c.want(room)
	}
}

// Drop forgets the puts of a communicator. Those that have not begun are not sent. The rest of one that has begun
// (there is at most one) is copied and sent from the copy, so that the peer sees a whole put. Once Drop returns, the
// puts' memory is not read any more, and all count as sent.
func (c *Conn) Drop(comm uint64) {
	c.alone(func() {
		c.keep(func(x *put) bool {
			if x.h.Comm != comm {
				return true
			}
			x.count()
			if x.done == 0 {
				return false
			}
			x.own()
			return true
		})
	})
}

// Withdraw forgets the puts to a communicator's place up to a sequence that have not begun: they count as sent.
func (c *Conn) Withdraw(comm uint64, place uint32, seq uint64) {
	c.alone(func() {
		c.keep(func(x *put) bool {
			if x.h.Kind != Put || x.h.Comm != comm || x.h.Place != place || x.h.Seq > seq || x.done > 0 {
				return true
			}
			x.count()
			return false
		})
	})
}

// keep forgets the queued puts that f does not want.
func (c *Conn) keep(f func(x *put) bool) {
	c.collect()
	kept := c.queue[:0]
	for _, x := range c.queue[c.head:] {
		if f(&x) {
			kept = append(kept, x)
		} else {
			c.queued.Add(-1)
		}
	}
	clear(c.queue[len(kept):])
	c.queue, c.head = kept, 0
	if len(kept) == 0 { // nobody flushes an empty queue, so a writable socket would wake waiters again and again
		c.wants(false)
	}
}

// alone runs f while nobody sends. Then it sends what was put meanwhile by goroutines that found this one sending.
func (c *Conn) alone(f func()) {
	c.sending.Lock()
	f()
	c.sending.Unlock()
	c.Flush()
}

// own copies what is left of a put that has begun.
func (x *put) own() {
	done := max(x.done-HeaderSize, 0)
	b := make([]byte, x.n-done)
	if len(b) > 0 {
		copy(b, unsafe.Slice((*byte)(unsafe.Add(x.p, done)), len(b)))
	}
	x.p, x.n, x.done, x.sent = unsafe.Pointer(unsafe.SliceData(b)), len(b), x.done-done, nil
}

// Queued is how many puts the kernel has not taken completely.
func (c *Conn) Queued() int { return int(c.queued.Load()) }

// Shut says that nothing more is sent: after all data, the peer finds the end of the stream.
func (c *Conn) Shut() {
	c.alone(func() {
		if c.fd >= 0 {
			shutdown(c.fd)
		}
	})
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
			c.collect()
			c.forget()
		}
	})
}

// forget drops all puts that are in the queue.
func (c *Conn) forget() {
	c.queued.Add(int64(c.head - len(c.queue)))
	c.queue, c.head = nil, 0
}

// Refused is the error of a Sink about a frame.
func Refused(h Header, why string) error {
	return fmt.Errorf("%w: %d bytes for place %d of communicator %#x, sequence %d: %s", ErrFrame, h.Length, h.Place, h.Comm,
		h.Seq, why)
}
