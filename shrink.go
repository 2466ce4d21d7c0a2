package ubcoll

import "context"

// Shrink makes a communicator of the ranks that are left of c, in their order in c, after c has broken ([Comm.Err]): a rank is
// gone if its process has ended, it has closed c, or its host cannot be reached. Collective and blocking, for all ranks that
// are left. A communicator that is not broken yet breaks by this, so that the others notice and can call it too. Ranks may die
// meanwhile: all that are left get a communicator of the same ranks, which may be broken soon by another death, and can be
// shrunk in its turn. A rank that called Abort stays a member.
//
// If hosts do not reach each other, only one part of the ranks goes on: more than half of those that are not known to be dead, or
// half of them with the lowest rank. The others get [ErrPeerLost], or [ErrAborted] if they are told.
//
// The new communicator shares the rank's memory as after [Comm.Split]: buffers stay, and c's registrations serve it until
// c is closed. Windows, channels, graphs and what the ranks have on devices are made anew. Operations that were under way
// when c broke are not repeated: some ranks may have the result, and others an error. Close c afterwards; its Close waits for
// nobody.
//
// If a rank that is left cannot go on, all return why: [ErrLimit], for instance. A rank that does not call Shrink is waited
// for as long as [Options.Timeout], then all get [ErrTimeout] about it. After an error all may call Shrink again, but not a
// rank that gave up when the others may have gone on already: [ErrAborted] there, and the others' communicator breaks.
// [ErrBusy] while another goroutine's call runs; [ErrClosed] after Close; [ErrArgument] in a group. Source: MPIX_Comm_shrink
// (User Level Failure Mitigation); the name is also ncclCommShrink's, whose caller says which ranks are gone.
func (c *Comm) Shrink(ctx context.Context) (*Comm, error) {
	child, err := c.view().Shrink(ctx)
	return (*Comm)(child), err
}
