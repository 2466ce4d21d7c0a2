package tcp

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// inline is the largest payload that is copied behind its header, so that one call sends or receives both. A put of up
// to that many bytes is a word.
const inline = 4 << 10

// ahead is how much is read together with a header. Copying some of it to its place is cheaper than another call.
const ahead = 16 << 10

// batch is about how many bytes one Receive, Put or Flush moves at most, so that a waiting caller can look at its words
// in between.
const batch = 1 << 20

// Sink receives frames. Its methods are called by one goroutine at a time, and may call the connection's Put, Queue and
// Withdraw alone.
type Sink interface {
	// Place returns where the payload of a put or a part goes. If not ok, it is read and dropped. An error ends the
	// connection.
	Place(h Header) (p unsafe.Pointer, ok bool, err error)
	// Landed is called once all of a frame is where Place said.
	Landed(h Header)
	// Told is called for every frame without a payload. An error ends the connection.
	Told(h Header) error
}

// Conn is one data connection. Its methods are local and safe for concurrent use. None waits for the peer.
//
// What the socket does not take at once waits in a queue, from which goes first what is short: words, and frames without
// a payload, in the order in which they were put. Then communicators take turns with their other puts. A turn is a frame
// of up to MaxPayload, or more of them up to about as much, or twice as much while no other communicator waits. So what is short waits for one frame at most, and for what
// the kernel has taken. Puts to one place stay in order.
type Conn struct {
	fd   int // -1 once closed; written under receiving and sending
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

	sending sync.Mutex // held by the goroutine that sends, or takes puts out of the queue
	wanted  bool
	out     [HeaderSize + inline]byte
	heads   [together][HeaderSize]byte
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
	most     = 512 << 10 // bytes of puts and payloads that one call moves: see the system calls
)

// put is one that waits for its turns.
type put struct {
	h      Header // of the whole put
	p      unsafe.Pointer
	off    int            // bytes of the payload whose frames have been sent
	begun  int            // bytes of the next frame that have been sent, with its head
	sent   *atomic.Uint64 // nil: nobody counts
	counts uint64         // how many puts count as sent with this one: words go before it, and count in order
	next   *put           // of the communicator
}

// frame is the head of the put's frame that begins at off.
func (x *put) frame(off int) Header {
	h := x.h
	if left := int(h.Length) - off; left > MaxPayload {
		h.Kind, h.Length = Part, MaxPayload
	} else {
		h.Length = uint64(left)
	}
	return h
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
			c.counts.received += uint64(n)
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
		if h.Kind != Put && h.Kind != Part {
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
		if h.Kind == Put {
			c.counts.putsReceived++
		}
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

// Put sends a frame, or a put of any length, as far as the kernel takes it at once, and queues the rest. p is in use
// until sent is raised by 1, or Drop or Close has returned. sent is the same for all puts of a communicator, or nil.
// After Close, Put does nothing.
func (c *Conn) Put(h Header, p unsafe.Pointer, sent *atomic.Uint64) {
	var direct bool
	if h.payload() <= MaxPayload && c.queued.Load() == 0 && c.sending.TryLock() {
		if direct = c.queued.Load() == 0; direct {
			if h.Kind == Put {
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
func (c *Conn) put(h Header, p unsafe.Pointer, sent *atomic.Uint64) {
	if c.fd < 0 {
		return
	}
	n := h.payload()
	h.Encode(c.out[:])
	var done int
	var e syscall.Errno
	if n <= inline {
		if n > 0 {
			copy(c.out[HeaderSize:], unsafe.Slice((*byte)(p), n))
		}
		done, e = send(c.fd, c.out[:HeaderSize+n])
	} else {
		c.from[0], c.from[1] = element(unsafe.Pointer(&c.out[0]), HeaderSize), element(p, n)
		done, e = c.message.send(c.fd, c.from[:2])
		c.from[1] = iovec{}
	}
	if e != 0 {
		done = 0 // EAGAIN, or an error that Receive will report
	}
	c.counts.sent += uint64(done)
	if done < HeaderSize+n {
		c.wants(true)
		c.mu.Lock()
		defer c.mu.Unlock()
		if n > inline { // before what was put meanwhile
			x := c.wait(h, p, sent)
			x.begun = done
			if i := c.turn(h.Comm); i >= 0 {
				x.next = c.turns[i]
				c.turns = slices.Delete(c.turns, i, i+1)
			}
			c.turns = slices.Insert(c.turns, 0, x)
			return
		}
		c.first(c.out[done : HeaderSize+n])
	}
	if sent != nil {
		sent.Add(1)
	}
}

// first puts the rest of a frame that has begun before all others. The caller holds mu.
func (c *Conn) first(rest []byte) {
	c.words = slices.Insert(c.words, 0, rest...)
	c.frames++
	c.queued.Add(1)
}

// Queue puts a frame without payload, which leaves together with the next Put, or at the next Flush.
func (c *Conn) Queue(h Header) { c.enqueue(h, nil, nil) }

func (c *Conn) enqueue(h Header, p unsafe.Pointer, sent *atomic.Uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.Kind == Put {
		c.counts.waited++
	}
	n := h.payload()
	behind := n > inline
	i := c.turn(h.Comm)
	var last *put
	if i >= 0 {
		for last = c.turns[i]; ; last = last.next {
			behind = behind || h.Kind == Put && last.h.Place == h.Place
			if last.next == nil {
				break
			}
		}
	}
	if !behind {
		c.words = slices.Grow(c.words, HeaderSize+n)
		at := len(c.words)
		c.words = c.words[:at+HeaderSize+n]
		h.Encode(c.words[at:])
		copy(c.words[at+HeaderSize:], unsafe.Slice((*byte)(p), n))
		c.frames++
		c.queued.Add(1)
		switch {
		case sent == nil:
		case last == nil:
			sent.Add(1)
		default:
			last.counts++
		}
		return
	}
	x := c.wait(h, p, sent)
	if last != nil {
		last.next = x
	} else {
		c.turns = append(c.turns, x)
	}
}

// wait makes a put that waits for its turns.
func (c *Conn) wait(h Header, p unsafe.Pointer, sent *atomic.Uint64) *put {
	x := c.spare
	if x == nil {
		x = new(put)
	} else {
		c.spare = x.next
	}
	*x = put{h: h, p: p, sent: sent, counts: 1}
	c.queued.Add(1)
	return x
}

// turn is the index of a communicator in turns, or -1.
func (c *Conn) turn(comm uint64) int {
	for i, x := range c.turns {
		if x.h.Comm == comm {
			return i
		}
	}
	return -1
}

// done forgets a put whose memory is free again, and returns the next one of its communicator.
func (c *Conn) done(x *put) (next *put) {
	if x.sent != nil {
		x.sent.Add(x.counts)
	}
	c.queued.Add(-1)
	next = x.next
	*x = put{next: c.spare}
	c.spare = x
	return next
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

// plan returns what one call sends: the rest of the frame that has begun; or else words, and the first communicator's
// turn. It is want bytes, of which words come first.
func (c *Conn) plan() (v []iovec, words, want int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v = c.from[:0]
	var x *put
	if len(c.turns) > 0 {
		x = c.turns[0]
	}
	frames, limit := together, MaxPayload
	if len(c.turns) == 1 { // nobody waits for the end of this turn
		limit = most
	}
	if x != nil && x.begun > 0 {
		if len(c.words) > 0 {
			frames = 1
		}
	} else if words = min(len(c.words), MaxPayload); words > 0 {
		v = append(v, element(unsafe.Pointer(&c.words[0]), words))
		want = words
		if words < len(c.words) {
			frames = 0
		}
	}
	if x == nil {
		return v, words, want
	}
	off, begun := x.off, x.begun
	for i, size := 0, 0; x != nil && i < frames && size < limit; i++ {
		h := x.frame(off)
		n := int(h.Length)
		if size += n; size > most {
			break
		}
		h.Encode(c.heads[i][:])
		if begun < HeaderSize {
			v = append(v, element(unsafe.Pointer(&c.heads[i][begun]), HeaderSize-begun))
		}
		if done := max(begun-HeaderSize, 0); done < n {
			v = append(v, element(unsafe.Add(x.p, off+done), n-done))
		}
		want += HeaderSize + n - begun
		off, begun = off+n, 0
		if h.Kind == Put {
			x, off = x.next, 0
		}
	}
	return v, words, want
}

// took takes n bytes that were sent out of the queue, as plan has laid them out.
func (c *Conn) took(n, words int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if words = min(words, n); words > 0 {
		c.words = c.words[:copy(c.words, c.words[words:])]
		if len(c.words) == 0 {
			c.queued.Add(int64(-c.frames))
			c.frames = 0
		}
	}
	if n -= words; n == 0 {
		return
	}
	x := c.turns[0]
	for n > 0 {
		h := x.frame(x.off)
		k := min(n, HeaderSize+int(h.Length)-x.begun)
		n -= k
		if x.begun += k; x.begun < HeaderSize+int(h.Length) {
			break
		}
		x.off, x.begun = x.off+int(h.Length), 0
		if h.Kind == Put {
			x = c.done(x)
		}
	}
	if c.turns[0] = x; x != nil && x.begun > 0 {
		return
	}
	copy(c.turns, c.turns[1:])
	c.turns[len(c.turns)-1] = x
	if x == nil {
		c.turns = c.turns[:len(c.turns)-1]
	}
}

func (c *Conn) wants(room bool) {
	if room != c.wanted && c.fd >= 0 {
		c.wanted = room
		c.want(room)
	}
}

// Drop forgets the puts of a communicator that have waited for a turn. A frame that has begun (there is at most one) is
// completed from a copy. Once Drop returns, the puts' memory is not read any more, and all count as sent.
func (c *Conn) Drop(comm uint64) { c.remove(comm, func(*put) bool { return true }) }

// Withdraw does the same for a communicator's puts to a place, up to a sequence. What is put afterwards is sent after
// the last frame of these.
func (c *Conn) Withdraw(comm uint64, place uint32, seq uint64) {
	c.remove(comm, func(x *put) bool { return x.h.Place == place && x.h.Seq <= seq })
}

// remove takes puts out of the communicator's turns.
func (c *Conn) remove(comm uint64, which func(x *put) bool) {
	c.alone(func() {
		c.mu.Lock()
		if i := c.turn(comm); i >= 0 {
			var before *put
			for at := &c.turns[i]; *at != nil; {
				x := *at
				if !which(x) {
					before, at = x, &x.next
					continue
				}
				if x.begun > 0 {
					c.first(x.left())
				}
				if before != nil { // counts first
					before.counts += x.counts
					x.counts = 0
				}
				*at = c.done(x)
			}
			if c.turns[i] == nil {
				c.turns = slices.Delete(c.turns, i, i+1)
			}
		}
		c.mu.Unlock()
		if c.queued.Load() == 0 { // nobody flushes an empty queue, so a writable socket would wake waiters again and again
			c.wants(false)
		}
	})
}

// left is a copy of what is left of the frame that has begun.
func (x *put) left() []byte {
	h := x.frame(x.off)
	b := make([]byte, HeaderSize, HeaderSize+int(h.Length))
	h.Encode(b)
	return append(b, unsafe.Slice((*byte)(unsafe.Add(x.p, x.off)), int(h.Length))...)[x.begun:]
}

// alone runs f while nobody sends. Then it sends what was put meanwhile by goroutines that found this one sending.
func (c *Conn) alone(f func()) {
	c.sending.Lock()
	f()
	c.sending.Unlock()
	c.Flush()
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
			c.forget()
		}
	})
}

// forget drops all that is queued.
func (c *Conn) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.words, c.frames, c.turns, c.spare = nil, 0, nil, nil
	c.queued.Store(0)
}

// Refused is the error of a Sink about a frame.
func Refused(h Header, why string) error {
	return fmt.Errorf("%w: %d bytes for place %d of communicator %#x, sequence %d: %s", ErrFrame, h.Length, h.Place, h.Comm,
		h.Seq, why)
}
