package onesided

import (
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// A rank that takes memory back must see its peers' copies under way (see engine.Domain.WatchCopies). It looks at all
// slots of a peer's table that have been used: channels over a semaphore come and go without a word to the peer, so the
// peer knows none of their slots. It watches the table from the first meeting with that peer on, which is before the
// peer copies anything. The owner of the table publishes how many slots it has used before it uses one; it sets a
// slot's grant before the first copy, and does not change it while the slot is in use.

// watchCopies makes this rank's registrations wait for a peer's copies through channels.
func (sp *Space) watchCopies(peer int) error {
	t, err := sp.tableOf(peer)
	if err != nil {
		return err
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.watched == nil {
		sp.watched = make([]bool, sp.c.Team().Size())
	}
	if sp.watched[sp.local(peer)] {
		return nil
	}
	sp.watched[sp.local(peer)] = true
	side := team.Reader{State: &t.state, Mem: sp.peer(peer).Mem, At: sp.places[sp.local(peer)].At.Location()}
	rank := sp.c.Rank()
	sp.c.Domain().WatchCopies(side, peer, func(g mem.Location) bool { return t.copying(rank, g) })
	return nil
}

// copying reports whether the table's owner has a copy under way that uses grant g of a rank. Grants of different ranks
// may have the same generation.
func (t *endTable) copying(rank int, g mem.Location) bool {
	for i := range min(t.most.Load(), tableEnds) {
		e := &t.ends[i]
		if e.copying.Load() != 0 && e.grant.Load() == g.Generation && keyTo(e.key.Load()) == rank {
			return true
		}
	}
	return false
}
