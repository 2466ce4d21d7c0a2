package p2p

import (
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mail"
)

// acquire finds or makes the registration of a large message's memory, under the same policy as for collectives. A
// message to this rank itself needs none: this rank alone copies it, through the window.
func acquire(c *engine.Comm, h *mail.Message) error {
	switch {
	case h.Peer == c.Rank():
		h.Buf.Why = "it is this rank itself"
		return nil
	case h.Freed():
		h.Buf.Why = "it has been freed meanwhile"
		return nil
	}
	return c.Acquire(&h.Vec, &h.Buf, false)
}
