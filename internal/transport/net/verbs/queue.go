package verbs

import (
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/register"
)

// queue is what a connection has to send.
type queue struct {
	words []byte // frames that go first, with their payloads
	ends  []int  // of each in words
	lines []*line
	turn  int // of lines, who is next
}

// line is a communicator's puts, in order.
type line struct {
	comm        uint64
	first, last *put // that are not over
	next        *put // of these, the first that is not sent as a whole; nil: all are
}

// put is one whose memory is in use.
type put struct {
	h      frame.Header // of the whole put
	p      unsafe.Pointer
	off    int             // bytes that were sent
	flying int             // chunks under way
	claim  *register.Claim // of p; nil: it goes in messages
	key    uint32          // of p, if it has a claim
	sent   *atomic.Uint64  // nil: nobody counts
	counts uint64          // how many puts count as sent with this one: words go before it, and count in order
	line   *line
	after  *put
	copied []byte            // a call's payload, at p
	result *transport.Result // of a read
	part   bool              // not all of it was done
}

// whole reports whether all of it was sent.
func (x *put) whole() bool { return x.off == int(x.h.Length) }

// chunk is how much the next chunk or message carries, and its head.
func (x *put) chunk() (h frame.Header, n int) {
	h, n = x.h, int(x.h.Length)-x.off
	switch {
	case x.claim != nil:
		n = min(n, frame.MaxPayload)
	case n > frame.Short:
		if n = frame.Short; h.Kind == frame.Put {
			h.Kind = frame.Part
		}
	}
	if h.Length = uint64(n); h.Kind == frame.Write {
		h.Offset += uint64(x.off)
	}
	return h, n
}

// pending is how many bytes wait.
func (q *queue) pending() (n int) {
	n = len(q.words)
	for _, l := range q.lines {
		for x := l.next; x != nil; x = x.after {
			n += int(x.h.Length) - x.off
		}
	}
	return n
}

// of returns a communicator's line, or nil.
func (q *queue) of(comm uint64) *line {
	for _, l := range q.lines {
		if l.comm == comm {
			return l
		}
	}
	return nil
}

// add puts a frame into the queue. It reports whether its payload goes from registered memory to such.
func (c *Conn) add(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) (devices bool) {
	q, n := &c.queue, h.Payload()
	behind := n > frame.Short
	l := q.of(h.Comm)
	if l != nil {
		for x := l.next; x != nil && !behind; x = x.after {
			behind = h.Behind(&x.h)
		}
	}
	c.queued.Add(1)
	if !behind {
		if h.Kind.Loaded() {
			c.counts.puts++
		}
		q.words = h.Append(q.words)
		if h.Landing != (frame.Landing{}) && h.Kind == frame.Grant {
			q.words = appendLanding(q.words, h.Landing)
		}
		q.words = append(q.words, unsafe.Slice((*byte)(p), n)...)
		q.ends = append(q.ends, len(q.words))
		count(l, sent)
		return false
	}
	x := &put{h: h, p: p, sent: sent, counts: 1}
	switch {
	case h.Kind == frame.Call: // its memory may be changed
		x.copied = append(x.copied, unsafe.Slice((*byte)(p), n)...)
		x.p = unsafe.Pointer(&x.copied[0])
	case h.Landing.Keys[c.nic.index] != 0:
		x.claim, x.key = c.claim(p, n, 0)
	}
	c.line(x)
	return x.claim != nil
}

// line puts x behind its communicator's other puts. The caller holds mu.
func (c *Conn) line(x *put) {
	l := c.queue.of(x.h.Comm)
	if l == nil {
		l = &line{comm: x.h.Comm, first: x}
		c.queue.lines = append(c.queue.lines, l)
	} else {
		l.last.after = x
	}
	l.last, x.line = x, l
	if l.next == nil {
		l.next = x
	}
}

// count counts a put whose memory is free, once those before it are over.
func count(l *line, sent *atomic.Uint64) {
	switch {
	case sent == nil:
	case l == nil:
		sent.Add(1)
	default:
		l.last.counts++
	}
}

// settle ends the puts of a line that are over, and the line if there are no more. The caller holds mu.
func (c *Conn) settle(l *line) {
	for x := l.first; x != nil && x.whole() && x.flying == 0; x = l.first {
		l.first = x.after
		c.over(x)
	}
	if l.first == nil {
		c.queue.drop(l)
	}
}

// over frees a put's memory. The caller holds mu.
func (c *Conn) over(x *put) {
	if x.sent != nil {
		x.sent.Add(x.counts)
	}
	if x.claim != nil {
		c.ended = append(c.ended, x.claim)
	}
	if x.result != nil {
		x.result.End(x.whole() && x.flying == 0 && !x.part)
	}
	c.queued.Add(-1)
	x.p = nil
}

// drop forgets a line.
func (q *queue) drop(l *line) {
	for i, other := range q.lines {
		if other == l {
			q.lines = append(q.lines[:i], q.lines[i+1:]...)
			if q.turn > i {
				q.turn--
			}
			return
		}
	}
}

// remove takes puts out of a communicator's line as far as they are not sent. The caller holds mu.
func (c *Conn) remove(comm uint64, which func(h *frame.Header) bool) {
	l := c.queue.of(comm)
	if l == nil {
		return
	}
	var before *put
	for at := &l.first; *at != nil; {
		x := *at
		switch {
		case x.whole() || !which(&x.h):
		case x.flying > 0: // over once what was sent is
			x.h.Length, x.part = uint64(x.off), true
		default:
			if before != nil && x.sent != nil { // counts first
				before.counts += x.counts
				x.counts = 0
			}
			*at = x.after
			c.over(x)
			continue
		}
		before, at = x, &x.after
	}
	l.last, l.next = before, l.first
	for l.next != nil && l.next.whole() {
		l.next = l.next.after
	}
	c.settle(l)
}
