package p2p

import (
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mail"
)

// acquire finds or makes the registration of a large message's memory, under the same policy as for collectives. A
// message to this rank itself needs none: this rank alone copies it, through the window.
func acquire(c *engine.Comm, m *mail.Message) error {
	switch {
	case m.Peer == c.Rank():
		m.Buf.Why = "it is this rank itself"
		return nil
	case m.Freed():
		m.Buf.Why = "it has been freed meanwhile"
		return nil
	}
	return c.Acquire(&m.Vec, &m.Buf, false)
}
