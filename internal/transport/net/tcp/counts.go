package tcp

import (
	"sync/atomic"

	"github.com/ubcoll/ubcoll/internal/transport"
)

// counts is what a connection has carried. It is read without the connection's locks.
type counts struct {
	sent, received         atomic.Uint64 // bytes
	putsSent, putsReceived atomic.Uint64 // sent: also those in the queue, and those that were taken back there
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
	t.Add(transport.Traffic{SentBytes: c.counts.sent.Load(), ReceivedBytes: c.counts.received.Load(),
		SentPuts: c.counts.putsSent.Load(), ReceivedPuts: c.counts.putsReceived.Load(), Retries: c.counts.retries.Load()})
}
