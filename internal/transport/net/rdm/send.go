package rdm

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"
	"unsafe"

	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/sendq"
)

// Put sends a frame, or a put or write of any length, as far as the provider and the peer take it at once, and queues the
// rest. p is in use until sent is raised by 1, or Drop or Close has returned. sent is the same for all puts of a
// communicator, or nil. After Close, Put does nothing.
func (c *Conn) Put(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) {
	c.Queue(h, p, sent)
	c.Flush()
}

// Queue is Put, but nothing leaves before the next Put or Flush: then it does together with that.
func (c *Conn) Queue(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return
	}
	if h.Kind == frame.Revoked && c.queue.Flies(h.Comm, h.Place) { // it says that nothing more is written there
		c.held = append(c.held, h)
		c.queue.Hold(1)
		return
	}
	var claim func(x *sendq.Put)
	if rail := c.Index(); h.Kind == frame.Put && rail < int(h.Landing.Index) && c.end.rma {
		claim = func(x *sendq.Put) {
			if !c.end.any {
				cl, all, _ := c.claim(p, int(h.Length), fabric.Write)
				if cl == nil {
					return
				}
				x.Claim, x.Key = cl, uint64(all[rail].Desc())
			}
			x.Device, x.Tail, x.Chases = true, true, c.end.ordered
		}
	}
	x := c.queue.Add(h, p, sent, claim)
	switch {
	case x != nil:
	case h.Kind.Loaded():
		c.counts.puts++
	case h.Kind == frame.Grant && h.Landing.Index != 0:
		c.queue.Extend(func(b []byte) []byte { return appendLanding(b, h.Landing) })
	}
}

// Skip counts a put of a communicator that is not sent, once all its puts before it are.
func (c *Conn) Skip(comm uint64, sent *atomic.Uint64) {
	c.mu.Lock()
	c.queue.Skip(comm, sent)
	c.mu.Unlock()
}

// room reports whether one more message or chunk may be under way. One is kept for a message that returns credits. The caller
// holds mu.
func (c *Conn) room() bool { return c.next-c.first < depth-1 }

// credited reports whether one more message may be sent. One credit is kept. The caller holds mu.
func (c *Conn) credited() bool { return c.sent-c.taken < credits-1 }

// waits reports whether something can be sent. The caller holds mu.
func (c *Conn) waits() bool {
	return c.open && c.err == nil && (c.queue.Ready() || c.shut) && c.room() && c.credited()
}

// Flush sends what is queued as far as provider and peer take it. It does nothing while another goroutine sends, which
// will look again.
func (c *Conn) Flush() {
	for {
		c.mu.Lock()
		waits := c.waits() || c.from < c.to
		c.mu.Unlock()
		if !waits || !c.sending.TryLock() {
			return
		}
		more := c.flush()
		c.sending.Unlock()
		if !more {
			return
		}
	}
}

// flush sends until nothing waits, or there is no room, and reports whether to look again. The caller holds sending.
func (c *Conn) flush() bool {
	for !c.closed {
		if c.from == c.to {
			c.mu.Lock()
			n := c.plan()
			c.from, c.to = 0, n
			c.unlock()
			if n == 0 {
				return true
			}
		}
		if !c.post() {
			return false
		}
	}
	return false
}

// post posts what is laid out, and reports whether the provider has taken it all. The caller holds sending.
func (c *Conn) post() bool {
	for c.from < c.to {
		n, err := c.end.end.Post(c.work[c.from:c.to])
		c.mu.Lock()
		c.from += n
		c.mu.Unlock()
		if err != nil {
			if !errors.Is(err, fabric.ErrAgain) {
				c.fail(err, false)
			}
			return false
		}
	}
	return true
}

// plan lays out what one call posts, and returns how much that is. The caller holds sending and mu.
func (c *Conn) plan() (n int) {
	for n < len(c.work) && c.open && c.err == nil && c.room() && c.credited() {
		b := c.slot()
		w := &c.work[n]
		if x := c.queue.NextTail(); x != nil {
			c.written(w, b, x)
		} else if n := c.words(b[prefixBytes:]); n > 0 {
			c.send(w, framed, b[:prefixBytes+n])
		} else if x := c.queue.Next(); x != nil {
			c.chunk(w, x)
		} else if c.shut {
			c.shut = false
			c.queue.Hold(-1)
			c.send(w, last, b[:prefixBytes])
		} else {
			break
		}
		n++
	}
	return n
}

// words lays out the words that go first, as many as one message takes, and returns how long they are.
func (c *Conn) words(b []byte) (n int) {
	for k := c.queue.WordBytes(); k > 0 && n+k <= len(b); k = c.queue.WordBytes() {
		n += c.queue.Word(b[n:])
	}
	return n
}

// chunk makes work of the next part of a put.
func (c *Conn) chunk(w *fabric.Work, x *sendq.Put) {
	h, n := x.Chunk(slotBytes - prefixBytes - frame.HeaderSize)
	if !x.Device {
		b := c.slot()
		h.Encode(b[prefixBytes:])
		k := frame.HeaderSize + copy(b[prefixBytes+frame.HeaderSize:], unsafe.Slice((*byte)(unsafe.Add(x.P, x.Off)), n))
		if x.Off += n; h.Kind != frame.Part {
			c.counts.puts++
		}
		c.send(w, framed, b[:prefixBytes+k])
	} else {
		*w = fabric.Work{Op: fabric.OpWrite, Local: uint64(uintptr(x.P)) + uint64(x.Off), Length: uint64(n), Desc: fabric.Desc(x.Key),
			Remote: x.H.Landing.Address + uint64(x.Off), Key: fabric.Key(x.H.Landing.Keys[c.Index()]),
			Flags: fabric.Delivered}
		x.Off += n
		x.Flying++
		c.fly(w, x, n)
	}
	c.queue.Posted(x)
}

// written makes work of the message that says that a put's chunks are where they go.
func (c *Conn) written(w *fabric.Work, b []byte, x *sendq.Put) {
	h := x.H
	h.Length = 0
	h.Encode(b[prefixBytes:])
	binary.LittleEndian.PutUint64(b[prefixBytes+frame.HeaderSize:], x.H.Length)
	c.counts.puts++
	c.send(w, written, b[:prefixBytes+frame.HeaderSize+8])
	c.queue.PostedTail(x)
}

// slot is where the next message is laid out.
func (c *Conn) slot() []byte { return c.out.at(int(c.next % depth)) }

// send makes work of the message in a slot, all but its prefix.
func (c *Conn) send(w *fabric.Work, kind byte, b []byte) {
	prefix{c.theirs, c.sent, c.handled, kind}.encode(b)
	c.sent++
	c.told = c.handled
	*w = fabric.Work{Op: fabric.OpSend, Local: addressOf(b), Length: uint64(len(b)), Desc: c.out.desc()}
	size := len(b) - prefixBytes
	c.fly(w, nil, size)
}

// fly notes that work is under way, of which so many bytes count.
func (c *Conn) fly(w *fabric.Work, x *sendq.Put, size int) {
	w.ID, w.Peer = uint64(c.id)<<32|uint64(c.next), c.peer
	c.flight[c.next%depth] = flight{x, size, true}
	c.counts.sent += uint64(size)
	c.next++
	c.queue.Hold(1)
}

// message sends a message that is no frame, if there is room.
func (c *Conn) message(kind byte) {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.closed || c.from < c.to && !c.post() {
		return
	}
	c.mu.Lock()
	ok := c.open && c.err == nil && c.sent-c.taken < credits && c.next-c.first < depth && (kind != credit || c.handled-c.told >= half)
	if ok {
		c.send(&c.work[0], kind, c.slot()[:prefixBytes])
		c.from, c.to = 0, 1
	}
	c.mu.Unlock()
	if ok {
		c.post()
	}
}

// Withdraw forgets the puts of a communicator to a place, up to a sequence, as far as they were not sent. What is put
// afterwards is handled behind what was. The memory of a put that has begun is in use until that has completed.
func (c *Conn) Withdraw(comm uint64, place uint32, seq uint64) {
	c.mu.Lock()
	c.queue.Remove(comm, func(h *frame.Header) bool { return h.Kind == frame.Put && h.Place == place && h.Seq <= seq })
	c.unlock()
}

// WithdrawWrites forgets a communicator's writes to a key as far as they were not sent: their memory is not read any more.
func (c *Conn) WithdrawWrites(comm uint64, slot uint32, key uint64) {
	c.mu.Lock()
	c.queue.Remove(comm, func(h *frame.Header) bool { return h.Writes(comm, slot, key) })
	c.unlock()
}

// Drop forgets the puts of a communicator as far as they were not sent, and waits for the rest. If the provider does not
// complete it within patience, the endpoint is closed. Once Drop returns, the puts' memory is not read any more, and all
// count as sent.
func (c *Conn) Drop(comm uint64) {
	c.mu.Lock()
	c.queue.Remove(comm, sendq.All)
	c.unlock()
	for begin := time.Now(); ; {
		c.mu.Lock()
		if c.stale {
			c.clear()
		}
		over := !c.queue.Has(comm, sendq.All)
		c.unlock()
		if over {
			return
		}
		moved, _ := c.Receive()
		if c.Flush(); !moved && time.Since(begin) > patience {
			c.abort()
			return
		}
	}
}

const patience = time.Second

// Queued is how many puts and messages wait or are under way.
func (c *Conn) Queued() int { return c.queue.Count() }

// Load returns how many bytes the peer has not acknowledged, of those under way and in the queue, and how many it has.
func (c *Conn) Load() (waiting int, acked uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.Pending() + int(c.counts.sent-c.counts.acked), c.counts.acked
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
