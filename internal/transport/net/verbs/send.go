package verbs

import (
	"sync/atomic"
	"time"
	"unsafe"

	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/sendq"
	"github.com/ubcoll/ubcoll/register"
)

// claim returns the claim on registered memory, and its key on the NIC; nil if it is not registered for that.
func (c *Conn) claim(p unsafe.Pointer, n int, access ib.Access) (*register.Claim, uint64) {
	cl := c.find(uintptr(p), n)
	if cl == nil {
		return nil, 0
	}
	all := keys(cl, access)
	if all == nil {
		cl.Release()
		return nil, 0
	}
	return cl, uint64(all[c.nic.index].Local)
}

// Put sends a frame, or a put or write of any length, as far as the device and the peer take it at once, and queues the
// rest. p is in use until sent is raised by 1, or Drop or Close has returned. sent is the same for all puts of a
// communicator, or nil. After Close, Put does nothing.
func (c *Conn) Put(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) {
	c.Queue(h, p, sent)
	c.Flush()
}

// Queue is Put, but nothing leaves before the next Put or Flush: then it does together with that.
func (c *Conn) Queue(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) { c.Write(h, p, sent) }

// Write is Queue. It reports whether the devices move the payload; else it goes in messages.
func (c *Conn) Write(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) (devices bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone && c.add(h, p, sent)
}

// add puts a frame into the queue. It reports whether its payload goes from registered memory to such.
func (c *Conn) add(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) (devices bool) {
	var claim func(x *sendq.Put)
	if h.Landing.Keys[c.nic.index] != 0 {
		claim = func(x *sendq.Put) {
			x.Claim, x.Key = c.claim(p, int(h.Length), 0)
			x.Device = x.Claim != nil
		}
	}
	x := c.queue.Add(h, p, sent, claim)
	switch {
	case x != nil:
		return x.Device
	case h.Kind.Loaded():
		c.counts.puts++
	case h.Kind == frame.Grant && h.Landing != (frame.Landing{}):
		c.queue.Extend(func(b []byte) []byte { return appendLanding(b, h.Landing) })
	}
	return false
}

// PutDevice is Put of memory that only the device reads, to a landing. It reports false, and does nothing, if that does not reach the
// memory.
func (c *Conn) PutDevice(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64) bool {
	return c.move(&sendq.Put{H: h, P: p, Sent: sent}, 0)
}

// Read reads from the peer's memory, of which h has the landing, to registered memory at p: see Put. It reports false,
// and does nothing, if that is not registered for it, or the connection is not made, or is made anew.
func (c *Conn) Read(h frame.Header, p unsafe.Pointer, sent *atomic.Uint64, r *transport.Result) bool {
	return c.move(&sendq.Put{H: h, P: p, Sent: sent, Result: r}, ib.LocalWrite)
}

// move puts or reads, by the device alone, memory that is registered for access.
func (c *Conn) move(x *sendq.Put, access ib.Access) bool {
	cl, key := c.claim(x.P, int(x.H.Length), access)
	if cl == nil {
		return false
	}
	x.Device, x.Claim, x.Key = true, cl, key
	c.mu.Lock()
	open := c.open && !c.gone
	if open {
		c.queue.Append(x)
	}
	c.mu.Unlock()
	if !open {
		cl.Release()
		return false
	}
	c.Flush()
	return true
}

// Skip counts a put of a communicator that is not sent, once all its puts before it are.
func (c *Conn) Skip(comm uint64, sent *atomic.Uint64) {
	c.mu.Lock()
	c.queue.Skip(comm, sent)
	c.mu.Unlock()
}

// waits reports whether something can be sent.
func (c *Conn) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open && c.queue.Ready() && c.room()
}

// Flush sends what is queued as far as device and peer take it. It does nothing while another goroutine sends, which
// will look again.
func (c *Conn) Flush() {
	for c.waits() && c.sending.TryLock() {
		dead := c.dead
		c.flush()
		c.sending.Unlock()
		if dead {
			return
		}
	}
}

// flush sends until nothing waits, or there is no room. The caller holds sending.
func (c *Conn) flush() {
	for left := !c.dead; left; {
		c.mu.Lock()
		n := c.plan()
		left = c.open && c.queue.Ready() && c.room()
		c.unlock()
		if n > 0 {
			c.post(n)
		}
	}
}

// post posts the first n of work. If that fails, the next Receive finds the queue pair's failure.
func (c *Conn) post(n int) {
	if _, err := c.qp.Post(c.work[:n]...); err != nil {
		c.broken.CompareAndSwap(nil, &err)
	}
}

// room reports whether one more message or chunk may be sent. One credit is kept for returning credits. The caller
// holds mu.
func (c *Conn) room() bool { return c.have > 1 && c.next-c.first < depth-1 }

// plan lays out what one call posts, and returns how much that is. The caller holds sending and mu.
func (c *Conn) plan() (n int) {
	for n < len(c.work) && c.open && c.room() {
		b := c.slot()
		if k := c.queue.Word(b); k > 0 {
			c.send(&c.work[n], b[:k])
		} else if x := c.queue.Next(); x != nil {
			c.chunk(&c.work[n], x)
		} else {
			break
		}
		n++
	}
	return n
}

// chunk makes work of the next part of a put.
func (c *Conn) chunk(w *ib.Work, x *sendq.Put) {
	h, n := x.Chunk(frame.Short)
	if !x.Device && !x.H.Landing.Device {
		b := c.slot()
		h.Encode(b)
		k := frame.HeaderSize + copy(b[frame.HeaderSize:], unsafe.Slice((*byte)(unsafe.Add(x.P, x.Off)), n))
		if x.Off += n; h.Kind != frame.Part {
			c.counts.puts++
		}
		c.send(w, b[:k])
	} else {
		*w = ib.Work{Op: ib.WriteImmediate, Local: uint64(uintptr(x.P)) + uint64(x.Off), Length: uint32(n), Key: ib.LKey(x.Key),
			Remote: x.H.Landing.Address + x.H.Offset + uint64(x.Off), Peer: ib.RKey(x.H.Landing.Keys[c.nic.index])}
		if !x.Device { // the peer has no other way there
			b := c.slot()
			copy(b, unsafe.Slice((*byte)(unsafe.Add(x.P, x.Off)), n))
			w.Local, w.Key = uint64(uintptr(unsafe.Pointer(&b[0]))), c.out.region.LKey()
		}
		x.Off += n
		switch x.H.Kind {
		case frame.Write: // what follows in order tells the peer
			w.Op = ib.Write
		case frame.Read:
			w.Op = ib.Read
		default:
			k := min(c.owed, mostReturns)
			c.owed -= k
			if w.Value = x.H.Landing.Index | uint32(k)<<creditShift; x.Whole() {
				w.Value |= lastBit
			}
		}
		if x.Whole() {
			c.counts.puts++
		}
		x.Flying++
		c.fly(w, x, n)
	}
	c.queue.Posted(x)
}

// slot is where the next message is laid out.
func (c *Conn) slot() []byte { return c.slotOf(c.next) }

func (c *Conn) slotOf(i uint64) []byte {
	return unsafe.Slice((*byte)(c.out.at(int(i%depth))), slotBytes)
}

// send makes work of the message in a slot. Its credits are added.
func (c *Conn) send(w *ib.Work, b []byte) {
	i, counts := creditByte, len(b)
	if b[0] == credit || b[0] == ping {
		i, counts = 1, 0
	}
	k := min(c.owed, mostReturns)
	c.owed -= k
	b[i] = byte(k)
	*w = ib.Work{Op: ib.Send, Local: uint64(uintptr(unsafe.Pointer(&b[0]))), Length: uint32(len(b)), Key: c.out.region.LKey()}
	c.fly(w, nil, counts)
}

// fly notes that work is under way, of which so many bytes count.
func (c *Conn) fly(w *ib.Work, x *sendq.Put, counts int) {
	w.ID, w.Flags = own|c.next, ib.Signaled
	i := c.next % depth
	c.flight[i], c.sizes[i], c.works[i] = x, counts, *w
	c.counts.sent += uint64(counts)
	c.next++
	if takesReceive(w.Op) {
		c.have--
	}
	c.queue.Hold(1)
}

// takesReceive reports whether the peer learns of an operation, which takes one of its receives.
func takesReceive(o ib.Op) bool { return o == ib.Send || o == ib.WriteImmediate }

// own marks the IDs of work requests; those of receives lack it.
const own = 1 << 63

// message sends a message that is no frame, if there is room, at once.
func (c *Conn) message(b []byte) {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.dead {
		return
	}
	c.mu.Lock()
	ok := c.open && c.have > 0 && c.next-c.first < depth && (b[0] == ping || c.owed >= half)
	if ok {
		c.send(&c.work[0], append(c.slot()[:0], b...))
	}
	c.mu.Unlock()
	if ok {
		c.post(1)
	}
}

// Withdraw forgets the puts of a communicator to a place, up to a sequence, as far as they were not sent. What is put
// afterwards is sent behind what was. The memory of a put that has begun is in use until that has completed.
func (c *Conn) Withdraw(comm uint64, place uint32, seq uint64) {
	c.mu.Lock()
	c.queue.Remove(comm, func(h *frame.Header) bool { return h.Kind == frame.Put && h.Place == place && h.Seq <= seq })
	c.unlock()
}

// WithdrawWrites forgets a communicator's writes to a key, and its reads, as far as they were not sent. Their memory may
// be in use until Await returns.
func (c *Conn) WithdrawWrites(comm uint64, slot uint32, key uint64) {
	c.mu.Lock()
	c.queue.Remove(comm, func(h *frame.Header) bool { return h.Writes(comm, slot, key) })
	c.unlock()
}

// Await waits for a communicator's writes to a key, and its reads, that were sent: as Drop does.
func (c *Conn) Await(comm uint64, slot uint32, key uint64) {
	which := func(h *frame.Header) bool { return h.Writes(comm, slot, key) }
	c.await(func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !c.queue.Has(comm, which)
	})
}

// Drop forgets the puts of a communicator as far as they were not sent, and waits for the rest. If the device does not
// complete it within patience, the connection fails. Once Drop returns, the puts' memory is not read any more, and all
// count as sent.
func (c *Conn) Drop(comm uint64) {
	c.mu.Lock()
	c.queue.Remove(comm, sendq.All)
	c.unlock()
	c.await(func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !c.queue.Has(comm, sendq.All)
	})
}

// await waits until over returns true, which the device sees to, or whoever calls Renew. If it takes longer than patience,
// the connection fails.
func (c *Conn) await(over func() bool) {
	for begin := time.Now(); !over(); {
		moved, err := c.Receive()
		if renewed := Refused(err); err != nil && !renewed || !moved && time.Since(begin) > patience {
			c.abort()
			return
		} else if renewed {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

const patience = time.Second

// Queued is how many puts and messages wait or are under way.
func (c *Conn) Queued() int { return c.queue.Count() }
