package tcp

import (
	"sync/atomic"

	"github.com/ubcoll/ubcoll/internal/transport"
)

// counts is what a connection has carried. Puts count as sent when they are put: also those in the queue, and those that
// were taken back there. Calls and frames of writes count as puts.
type counts struct {
	sent, direct           uint64        // bytes, and puts that did not wait; guarded by sending
	waited                 uint64        // puts that did; guarded by mu
	received, putsReceived uint64        // bytes, and puts; guarded by receiving
	retries                atomic.Uint64 // as of the last Look
}

// Look asks the kernel what Add adds as retries.
func (c *Conn) Look() { c.alone(c.look) }

// look is Look. The caller holds sending.
func (c *Conn) look() {
	if c.fd < 0 {
		return
	}
	if n, ok := retries(c.fd); ok {
		c.counts.retries.Store(n)
	}
}

// Add adds what the connection has carried to t. It may be called at any time, also after Close.
func (c *Conn) Add(t *transport.Traffic) {
	x := &c.counts
	c.receiving.Lock()
	t.Add(transport.Traffic{ReceivedBytes: x.received, ReceivedPuts: x.putsReceived, Retries: x.retries.Load()})
	c.receiving.Unlock()
	c.alone(func() {
		c.mu.Lock()
		t.Add(transport.Traffic{SentBytes: x.sent, SentPuts: x.direct + x.waited})
		c.mu.Unlock()
	})
}
