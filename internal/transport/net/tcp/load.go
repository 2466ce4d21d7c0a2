package tcp

import "time"

// Load returns how many bytes the peer has not acknowledged, of those in the kernel and in the queue, and how many it has.
func (c *Conn) Load() (waiting int, acked uint64) {
	c.alone(func() {
		if c.fd >= 0 {
			waiting = outstanding(c.fd)
		}
		acked = c.counts.sent - min(c.counts.sent, uint64(waiting))
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting += len(c.words)
	for _, x := range c.turns {
		for ; x != nil; x = x.next {
			waiting += int(x.h.Length) - x.off
		}
	}
	return waiting, acked
}

// Unanswered reports whether the kernel has sent something for which nothing has come back, and how long ago the last
// acknowledgement came.
func (c *Conn) Unanswered() (waits bool, heard time.Duration) {
	c.alone(func() {
		if c.fd >= 0 {
			waits, heard = unanswered(c.fd)
		}
	})
	return waits, heard
}
