package verbs

import (
	"errors"
	"fmt"
	"sync/atomic"
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

// Shut does nothing: the peer learns of the end on the control connection, and what was sent before has arrived once
// Queued is 0.
func (c *Conn) Shut() {}

// errAborted is the end of a connection on which something is not completed in time.
var errAborted = fmt.Errorf("the device does not complete what was sent: %w", fault.ErrTimeout)

// abort destroys the queue pair, so that no memory is in use.
func (c *Conn) abort() {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	if c.end == nil {
		c.end = errAborted
	}
	c.kill()
}

// kill destroys the queue pair, and forgets all that is queued. The caller holds receiving.
func (c *Conn) kill() {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.stop()
	c.mu.Lock()
	defer c.unlock()
	c.gone = true
	c.queue.Clear()
	clear(c.flight[:])
	c.first = c.next
}

// stop destroys the queue pair, if there is one. The caller holds receiving and sending.
func (c *Conn) stop() {
	if c.qp == nil || c.dead {
		return
	}
	c.dead = true
	if err := c.qp.Close(); err != nil {
		// What the device may still do with memory, nobody knows. This does not happen with live devices.
		c.nic.fail(err)
	}
}

// Close ends the connection. Once it returns, it uses no memory of puts and places. It may be called again.
func (c *Conn) Close() {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	if c.closed {
		return
	}
	if c.end == nil {
		c.end = fault.ErrClosed
	}
	c.kill()
	c.sending.Lock()
	c.closed = true
	c.sending.Unlock()
	c.nic.fail(c.free())
}

// free closes what there is of the connection.
func (c *Conn) free() error {
	var errs []error
	if c.qp != nil && !c.dead {
		errs = append(errs, c.qp.Close())
	}
	if c.cq != nil {
		for {
			n, err := c.cq.Poll(c.done[:], 1)
			for i := range c.done[:n] {
				if x := &c.done[i]; x.ID&own == 0 {
					c.used = append(c.used, x.ID)
				}
			}
			if n == 0 || err != nil {
				break
			}
		}
		errs = append(errs, c.cq.Close())
	}
	if c.channel != nil {
		errs = append(errs, c.channel.Close())
	}
	if c.out.memory != nil {
		errs = append(errs, c.out.close())
	}
	errs = append(errs, c.nic.give(c.used))
	c.used = nil
	return errors.Join(errs...)
}

// counts is what a connection has carried. Frames of writes, and calls, count as puts.
type counts struct {
	sent, acked, puts      uint64 // guarded by mu
	received, putsReceived atomic.Uint64
}

// Add adds what the connection has carried to t. It may be called at any time, also after Close.
func (c *Conn) Add(t *transport.Traffic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Add(transport.Traffic{SentBytes: c.counts.sent, SentPuts: c.counts.puts, ReceivedBytes: c.counts.received.Load(),
		ReceivedPuts: c.counts.putsReceived.Load()})
}

// Look does nothing: devices do not count what they send again for each queue pair.
func (c *Conn) Look() {}

// Load returns how many bytes the peer has not acknowledged, of those under way and in the queue, and how many it has.
func (c *Conn) Load() (waiting int, acked uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queue.Pending() + int(c.counts.sent-c.counts.acked), c.counts.acked
}

// Unanswered says nothing: the device does not tell.
func (c *Conn) Unanswered() (waits bool, heard time.Duration) { return false, 0 }
