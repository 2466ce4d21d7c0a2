package tcp

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// The queue of what the socket has not taken at once: see Conn.

// put is one that waits for its turns.
type put struct {
	h      frame.Header // of the whole put
	p      unsafe.Pointer
	off    int            // bytes of the payload whose frames have been sent
	begun  int            // bytes of the next frame that have been sent, with its head
	sent   *atomic.Uint64 // nil: nobody counts
	counts uint64         // how many puts count as sent with this one: words go before it, and count in order
	next   *put           // of the communicator
	copied []byte         // a call's payload, at p; kept for the next call
}

// mostKept is the largest copy of a call that a put keeps for the next one.
const mostKept = 256

// frame is the head of the put's frame that begins at off.
func (x *put) frame(off int) frame.Header {
	h := x.h
	left := int(h.Length) - off
	if left > frame.MaxPayload && h.Kind == frame.Put {
		h.Kind = frame.Part
	}
	if h.Length = uint64(min(left, frame.MaxPayload)); h.Kind == frame.Write {
		h.Offset += uint64(off)
	}
	return h
}

// ends reports whether the put ends with its frame of n bytes that begins at off.
func (x *put) ends(off, n int) bool { return off+n == int(x.h.Length) }

// first puts the rest of a frame that has begun before all others. The caller holds mu.
func (c *Conn) first(rest []byte) {
	c.words = slices.Insert(c.words, 0, rest...)
	c.frames++
	c.queued.Add(1)
}

func (c *Conn) enqueue(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.waited += h.Frames()
	n := h.Payload()
	behind := n > frame.Short
	i := c.turn(h.Comm)
	var last *put
	if i >= 0 {
		for last = c.turns[i]; ; last = last.next {
			behind = behind || h.Behind(&last.h)
			if last.next == nil {
				break
			}
		}
	}
	if !behind {
		c.words = slices.Grow(c.words, frame.HeaderSize+n)
		at := len(c.words)
		c.words = c.words[:at+frame.HeaderSize+n]
		h.Encode(c.words[at:])
		copy(c.words[at+frame.HeaderSize:], unsafe.Slice((*byte)(p), n))
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

// Skip counts a put of a communicator that is not sent, once all its puts before it are.
func (c *Conn) Skip(comm uint64, sent *atomic.Uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.turn(comm)
	if i < 0 {
		sent.Add(1)
		return
	}
	last := c.turns[i]
	for last.next != nil {
		last = last.next
	}
	last.counts++
}

// wait makes a put that waits for its turns.
func (c *Conn) wait(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) *put {
	x := c.spare
	if x == nil {
		x = new(put)
	} else {
		c.spare = x.next
	}
	*x = put{h: h, p: p, sent: sent, counts: 1, copied: x.copied}
	if h.Kind == frame.Call { // its memory may be changed
		x.copied = append(x.copied[:0], unsafe.Slice((*byte)(p), h.Length)...)
		x.p = unsafe.Pointer(&x.copied[0])
	}
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
	kept := x.copied
	if cap(kept) > mostKept {
		kept = nil
	}
	*x = put{next: c.spare, copied: kept}
	c.spare = x
	return next
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
	frames, limit := together, frame.MaxPayload
	if len(c.turns) == 1 { // nobody waits for the end of this turn
		limit = mostOut
	}
	if x != nil && x.begun > 0 {
		if len(c.words) > 0 {
			frames = 1
		}
	} else if words = min(len(c.words), frame.MaxPayload); words > 0 {
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
		if size += n; size > mostOut {
			break
		}
		h.Encode(c.heads[i][:])
		if begun < frame.HeaderSize {
			v = append(v, element(unsafe.Pointer(&c.heads[i][begun]), frame.HeaderSize-begun))
		}
		if done := max(begun-frame.HeaderSize, 0); done < n {
			v = append(v, element(unsafe.Add(x.p, off+done), n-done))
		}
		want += frame.HeaderSize + n - begun
		begun = 0
		if x.ends(off, n) {
			x, off = x.next, 0
		} else {
			off += n
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
		size := min(int(x.h.Length)-x.off, frame.MaxPayload) // of the frame's payload
		k := min(n, frame.HeaderSize+size-x.begun)
		n -= k
		if x.begun += k; x.begun < frame.HeaderSize+size {
			break
		}
		x.begun = 0
		if x.ends(x.off, size) {
			x = c.done(x)
		} else {
			x.off += size
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

// Drop forgets the puts of a communicator that have waited for a turn. A frame that has begun (there is at most one) is
// completed from a copy. Once Drop returns, the puts' memory is not read any more, and all count as sent.
func (c *Conn) Drop(comm uint64) { c.remove(comm, func(*put) bool { return true }) }

// Withdraw does the same for a communicator's puts to a place, up to a sequence. What is put afterwards is sent after
// the last frame of these.
func (c *Conn) Withdraw(comm uint64, place uint32, seq uint64) {
	c.remove(comm, func(x *put) bool { return x.h.Kind == frame.Put && x.h.Place == place && x.h.Seq <= seq })
}

// WithdrawWrites does the same for a communicator's writes to a key.
func (c *Conn) WithdrawWrites(comm uint64, slot uint32, key uint64) {
	c.remove(comm, func(x *put) bool { return x.h.Writes(comm, slot, key) })
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
	b := make([]byte, frame.HeaderSize, frame.HeaderSize+int(h.Length))
	h.Encode(b)
	return append(b, unsafe.Slice((*byte)(unsafe.Add(x.p, x.off)), int(h.Length))...)[x.begun:]
}

// Queued is how many puts the kernel has not taken completely.
func (c *Conn) Queued() int { return int(c.queued.Load()) }

// forget drops all that is queued.
func (c *Conn) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.words, c.frames, c.turns, c.spare = nil, 0, nil, nil
	c.queued.Store(0)
}
