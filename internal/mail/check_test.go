//go:build invariants

package mail

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Messages to a rank have the numbers 1, 2, 3 and so on, in the slots in turns.
func TestNumbersAreDense(t *testing.T) {
	m, _ := fakeMail(2)
	b := m.Box(1)
	send := func(seq uint64) { m.publish(b, &b.Out.Slots[seq%SendSlots], seq, 0) }
	for seq := range uint64(SendSlots) {
		send(seq + 1)
	}
	testkit.Violation(t, "message 10 to rank 1 is published after 8", func() { send(10) })
	testkit.Violation(t, "message 8 to rank 1 is published after 8", func() { send(8) })
	testkit.Violation(t, "message 9 to rank 1 has no slot: 0 have been taken", func() { send(9) })
	b.Send.taken = 1
	b.Out.Slots[1].Seq.Store(3)
	testkit.Violation(t, "message 9 to rank 1 takes the slot of 3", func() { send(9) })
	b.Out.Slots[1].Seq.Store(1)
	send(9)
}

func TestMessagesAreTakenInOrder(t *testing.T) {
	m, _ := fakeMail(2)
	b := m.Box(1)
	b.taken(verdictOK)
	b.taken(verdictOK)
	b.Recv.Seq++
	testkit.Violation(t, "message 4 of rank 1 is taken after 2", func() { b.taken(verdictOK) })
}
