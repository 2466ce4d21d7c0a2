package tcp

import "time"

// Load is what a connection has to send, and has sent. All but Limited is in bytes.
type Load struct {
	Queued  int // the kernel has not taken
	Unsent  int // the kernel has not sent
	Unacked int // was sent, and the peer's kernel has not acknowledged
	Acked   uint64
	Limited time.Duration // how long the peer's kernel had no room
}

// Load returns the connection's load. While another goroutine sends it is not ok, and only Queued is known.
func (c *Conn) Load() (l Load, ok bool) {
	if c.sending.TryLock() {
		if c.fd >= 0 {
			l, ok = load(c.fd)
		}
		c.sending.Unlock()
		c.Flush() // what was put meanwhile
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l.Queued = len(c.words)
	for _, x := range c.turns {
		for ; x != nil; x = x.next {
			l.Queued += int(x.h.Length) - x.off
		}
	}
	return l, ok
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
