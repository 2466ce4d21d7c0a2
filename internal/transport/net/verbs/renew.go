package verbs

import (
	"errors"

	"github.com/ubcoll/ubcoll/fault"
	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// A write or read by a key that is no good fails the queue pairs at both ends. What was posted before has been done, and
// what was posted after has not: so a new queue pair goes on where the old one has failed, without the work that the peer's
// memory has refused. Only one end sends frames on such a connection; the other one returns credits.

// Refused reports whether a connection has ended because the peer's memory refused a write or a read.
func Refused(err error) bool {
	e, ok := errors.AsType[*ib.CompletionError](err)
	return ok && e.Status == ib.RemoteAccess
}

// End is why the connection has ended, or nil.
func (c *Conn) End() error {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	return c.end
}

// Renew makes another queue pair in the place of one that has failed at either end, and returns its address. Call Connect
// then: what was not done, and what is queued, leaves after that. Work that the peer has refused is forgotten and counts as
// sent, as does all else to the same key; denied, unless nil, is called with its head before. After an error the connection is of
// no use.
func (c *Conn) Renew(denied func(h frame.Header)) (addr ib.Address, err error) {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.dead || c.wrong {
		return addr, fault.ErrClosed
	}
	c.mu.Lock()
	c.open = false
	c.mu.Unlock()
	if err := c.qp.Fail(); err != nil { // now everything has completed
		return addr, err
	}
	for n := len(c.done); n == len(c.done); {
		if n, err = c.cq.Poll(c.done[:], 1); err != nil {
			return addr, err
		}
		for i := range c.done[:n] {
			c.handle(&c.done[i])
		}
	}
	if c.wrong {
		return addr, c.end
	}
	if err := c.qp.Close(); err != nil {
		return addr, err
	}
	err = c.nic.again(c.used)
	c.used = c.used[:0]
	c.mu.Lock()
	x := c.flight[c.first%depth]
	c.mu.Unlock()
	refused := x != nil && Refused(c.end)
	if refused && denied != nil {
		denied(x.H)
	}
	c.mu.Lock()
	if refused {
		c.refuse(x.H)
	}
	c.rewind()
	c.unlock()
	c.end = nil
	if err == nil {
		addr, err = c.pair()
	}
	return addr, err
}

// refuse forgets what is put to h's key. The caller holds mu.
func (c *Conn) refuse(h frame.Header) {
	for i := c.first; i < c.next; i++ {
		if y := c.flight[i%depth]; y != nil && y.H.Writes(h.Comm, h.Place, h.Seq) {
			c.forget(i)
		}
	}
	c.queue.Remove(h.Comm, func(y *frame.Header) bool { return y.Writes(h.Comm, h.Place, h.Seq) })
}

// forget takes back work that was not done. The caller holds mu.
func (c *Conn) forget(i uint64) {
	c.queue.Forget(c.flight[i%depth])
	c.flight[i%depth] = nil
}

// rewind makes the work that was not done the first that Connect posts, and both ends have all credits. The caller holds mu.
func (c *Conn) rewind() {
	from, to := c.first, c.next
	c.have, c.owed = credits, 0
	c.next = from
	for i := from; i < to; i++ {
		w, x, n := c.works[i%depth], c.flight[i%depth], c.sizes[i%depth]
		c.flight[i%depth] = nil
		c.queue.Hold(-1)
		c.counts.sent -= uint64(n)
		if x == nil {
			if w.Op != ib.Send { // forgotten
				continue
			}
			b := c.slotOf(i)[:w.Length]
			if b[0] == credit || b[0] == ping {
				continue
			}
			b[creditByte] = 0
			b = b[:copy(c.slot(), b)]
			c.send(&w, c.slot()[:len(b)])
			continue
		}
		c.fly(&w, x, n)
	}
}

// Adopt queues what waits on a connection that was never connected, in its order, to travel in messages.
func (c *Conn) Adopt(from *Conn) {
	from.mu.Lock()
	moved := from.queue.Move()
	from.mu.Unlock()
	c.mu.Lock()
	c.queue.Adopt(moved, c.gone)
	c.unlock()
	c.Flush()
}
