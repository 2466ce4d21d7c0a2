package mixed

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// team is a communicator of some of the ranks, beside others that were made by the same Split.
type team struct {
	c      *ubcoll.Comm // nil: this rank is in none of them
	groups [][]int      // world ranks, in rank order
	me     int          // which of them is this rank's
	rank   int
}

// members is this rank's group.
func (t *team) members() []int { return t.groups[t.me] }

func (m *program) team() *team { return m.teams[m.all.IntN(len(m.teams))] }

// split makes communicators of another's ranks.
func (m *program) split() error {
	if len(m.teams) == 4 {
		return m.closeTeam(1 + m.all.IntN(3))
	}
	from := m.team()
	colors, keys := make([]int, m.n), make([]int, m.n)
	dup, most := m.all.IntN(3) == 0, 1+m.all.IntN(3)
	for r := range m.n {
		colors[r], keys[r] = m.all.IntN(most+1)-1, m.all.IntN(3)
		if dup {
			colors[r], keys[r] = 0, 0
		}
	}
	t := &team{me: -1}
	for _, members := range from.groups {
		for color := range most {
			var group []int
			for key := range 3 {
				for _, w := range members {
					if colors[w] == color && keys[w] == key {
						group = append(group, w)
					}
				}
			}
			for r, w := range group {
				if w == m.me {
					t.me, t.rank = len(t.groups), r
				}
			}
			if len(group) > 0 {
				t.groups = append(t.groups, group)
			}
		}
	}
	m.note("%v from %v, dup: %v", t.groups, from.groups, dup)
	if from.c != nil {
		var err error
		if dup {
			t.c, err = from.c.Dup(m.ctx)
		} else {
			t.c, err = from.c.Split(m.ctx, colors[m.me], keys[m.me])
		}
		if err != nil {
			return err
		}
		if (t.c != nil) != (t.me >= 0) {
			return fmt.Errorf("split gave %v, and this rank is in %v: %d", t.c, t.groups, t.me)
		}
		if t.c != nil && (t.c.Rank() != t.rank || t.c.Size() != len(t.members())) {
			return fmt.Errorf("split gave rank %d of %d, not %d of %v", t.c.Rank(), t.c.Size(), t.rank, t.members())
		}
	}
	if len(t.groups) > 0 {
		m.teams = append(m.teams, t)
	}
	return nil
}

// closeTeam ends communicators, and the graphs of them.
func (m *program) closeTeam(i int) error {
	if i >= len(m.teams) {
		return nil
	}
	t := m.teams[i]
	m.teams = slices.Delete(m.teams, i, i+1)
	var errs []error
	for j := 0; j < len(m.graphs); {
		if m.graphs[j].t != t {
			j++
			continue
		}
		errs = append(errs, m.closeGraph(j))
	}
	if t.c != nil {
		errs = append(errs, t.c.Close(), m.expect("a call on a closed communicator", nil, coll.Barrier(m.ctx, t.c), ubcoll.ErrClosed))
	}
	return errors.Join(errs...)
}
