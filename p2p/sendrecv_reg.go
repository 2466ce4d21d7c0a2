package p2p

import (
	"fmt"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// acquire finds or makes the registration of a large message's memory, by the policy that collectives go by. A message
// to oneself goes through the window: registered or not, it is this rank alone that copies.
func acquire(c *engine.Comm, m *engine.Mail, h *engine.Message) error {
	switch {
	case m.Peer == c.Rank():
		h.Buf.Why = "it is this rank itself"
		return nil
	case h.Freed():
		h.Buf.Why = "it has been freed meanwhile"
		return nil
	}
	return c.Acquire(&h.Vec, &h.Buf, false)
}

// prepare makes ready what a large message is sent from: registered memory, or the window.
func prepare(c *engine.Comm, m *engine.Mail, h *engine.Message) error {
	if h.Bytes > maxBytes {
		return fmt.Errorf("a message of %d bytes, more than %d: %w", h.Bytes, maxBytes, errLimit)
	}
	if err := acquire(c, m, h); err != nil || h.Buf.Direct() {
		return err
	}
	return c.GrowWindow(m, windowPieces*windowPiece)
}
