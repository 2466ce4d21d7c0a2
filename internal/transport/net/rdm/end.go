package rdm

import (
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// Stop runs f while nothing is received. No frame is ever half received.
func (c *Conn) Stop(f func(h frame.Header) (drop bool)) {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	f(frame.Header{})
}

// Shut says that nothing more is sent: after all that is queued, the peer's Receive returns io.EOF.
func (c *Conn) Shut() {
	c.mu.Lock()
	if !c.gone {
		c.shut = true
		c.queue.Hold(1)
	}
	c.mu.Unlock()
	c.Flush()
}

// Doubt says that the peer may have begun to write what this end has granted, and does not say when it has ended: Close closes
// the endpoint, so that nothing comes any more.
func (c *Conn) Doubt() {
	c.mu.Lock()
	c.foul = true
	c.mu.Unlock()
}

// abort closes the endpoint, so that no memory is in use.
func (c *Conn) abort() {
	c.end.close(fmt.Errorf("%s was closed, since it did not complete in %v what it was to send to %s: %w", c.Device(), patience, c.name,
		fault.ErrTimeout))
	c.mu.Lock()
	c.clear()
	c.unlock()
}

// clear forgets all that is queued or was under way. The caller holds mu.
func (c *Conn) clear() {
	c.gone = true
	c.queue.Clear()
	c.held = nil
	clear(c.flight[:])
	c.first = c.next
}

// Close ends the connection. Once it returns, it uses no memory of puts and places. It may be called again. It waits until what
// was sent has completed, for patience at most: then, and after Doubt, it closes the endpoint, which ends all connections over it.
func (c *Conn) Close() {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	if c.closed {
		return
	}
	c.sending.Lock()
	c.closed = true
	c.sending.Unlock()
	for begin := time.Now(); c.uses(); c.end.poll(true) {
		if time.Since(begin) > patience {
			c.Doubt()
			break
		}
		time.Sleep(20 * time.Microsecond)
	}
	c.mu.Lock()
	foul := c.foul && !c.stale
	c.clear()
	if c.err == nil {
		c.err = fault.ErrClosed
	}
	for i := range c.in {
		if m := &c.in[i]; m.bytes > 0 {
			c.used = append(c.used, m.slot)
			m.bytes = 0
		}
	}
	opened, peer := c.open, c.peer
	c.unlock()
	e := c.end
	e.mu.Lock()
	delete(e.conns, c.id)
	e.mu.Unlock()
	if foul {
		e.close(fmt.Errorf("%s was closed, since %s may still have written to memory that it had been granted: %w", c.Device(), c.name,
			fault.ErrPeerLost))
	}
	if !e.over() {
		if opened {
			e.rail.fail(e.end.Remove(peer))
		}
		e.rail.fail(e.again(c.used))
	}
	c.used = nil
	e.free()
	e.rail.fail(c.out.close())
}

// uses reports whether the provider uses memory for what was posted.
func (c *Conn) uses() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	unposted := uint32(c.to - c.from)
	live := uint32(0)
	for i := range c.flight {
		if c.flight[i].live {
			live++
		}
	}
	return !c.stale && live > unposted
}

// Look does nothing: providers do not count what they send again.
func (c *Conn) Look() {}

// Waits reports whether something was sent that has not completed, and how much has.
func (c *Conn) Waits() (waits bool, acts uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first != c.next, c.acts.Load()
}

// Unanswered says nothing: the provider does not tell.
func (c *Conn) Unanswered() (waits bool, heard time.Duration) { return false, 0 }

// Add adds what the connection has carried to t. It may be called at any time, also after Close.
func (c *Conn) Add(t *transport.Traffic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Add(transport.Traffic{SentBytes: c.counts.sent, SentPuts: c.counts.puts, ReceivedBytes: c.counts.received.Load(),
		ReceivedPuts: c.counts.putsReceived.Load()})
}
