package mail

import "github.com/ubcoll/ubcoll/internal/invariants"

// This file has the checks of builds with -tags invariants. They read this rank's own outboxes only. Their caller holds
// the lane.

// checkNext checks that seq, the number of a message that is about to be published, is the one after the last, and that
// its slot is free.
func (b *Box) checkNext(seq uint64) {
	l := &b.Send
	if seq != l.Seq+1 {
		invariants.Violated("message %d to rank %d is published after %d", seq, b.Peer, l.Seq)
	}
	if seq-l.taken > SendSlots {
		invariants.Violated("message %d to rank %d has no slot: %d have been taken", seq, b.Peer, l.taken)
	}
	want := uint64(0)
	if seq > SendSlots {
		want = seq - SendSlots
	}
	if old := b.Out.Slots[seq%SendSlots].Seq.Load(); old != want {
		invariants.Violated("message %d to rank %d takes the slot of %d", seq, b.Peer, old)
	}
}

// checkTaken checks that the message that this rank is about to take is the one after the last that it says it has taken.
func (b *Box) checkTaken() {
	if said := b.Out.taken.Load(); said != b.Recv.Seq-1 {
		invariants.Violated("message %d of rank %d is taken after %d", b.Recv.Seq, b.Peer, said)
	}
}
