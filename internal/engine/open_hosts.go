package engine

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/roster"
)

// listen makes what this rank's domain has of the network, once, and is what the other ranks need to reach it: its row.
// The first rank of a host lays the table of all ranks' rows.
func (c *Comm) listen(r *roster.Roster, mine *card) (row []byte, err error) {
	if r.First() && mine.Rows == (mem.Location{}) {
		a, err := c.dom.Heap.Alloc(r.TableBytes()) // as long as the domain
		if err != nil {
			return nil, fmt.Errorf("the table of all ranks: %w", err)
		}
		mine.Rows = a.At
		r.Lay(unsafe.Slice((*byte)(a.Ptr), r.TableBytes()))
	}
	return nil, nil
}

// layRows maps the table that this host's first rank has laid.
func (c *Comm) layRows(r *roster.Roster, at mem.Location) error {
	if r.First() {
		return nil
	}
	p, err := c.team.Peers[0].Mem.Resolve(at, r.TableBytes())
	if err != nil {
		return reason.About(c.team.Name(0), fmt.Errorf("map the table of all ranks: %w", err))
	}
	r.Lay(unsafe.Slice((*byte)(p), r.TableBytes()))
	return nil
}

// openStage makes what connects the hosts. Collective over the job; all ranks of each host have mapped each other, and
// each has the rows of all.
func (c *Comm) openStage(ctx context.Context, r *roster.Roster) error {
	return r.Several()
}
