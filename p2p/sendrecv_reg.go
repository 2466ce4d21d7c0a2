package p2p

import (
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mail"
)

// acquire finds or makes the registration of a large message's memory, by the policy that collectives go by. A message
// to oneself goes through the window: registered or not, it is this rank alone that copies.
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
