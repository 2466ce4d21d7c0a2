package mixed

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// siblings are the communicators that one Split made. This rank is in one of them, or in none.
type siblings struct {
	c      *ubcoll.Comm // nil: this rank is in none of them
	groups [][]int      // world ranks, in rank order
	me     int          // index of this rank's group
	rank   int
}

// members returns this rank's group.
func (t *siblings) members() []int { return t.groups[t.me] }

func (p *program) drawSiblings() *siblings { return p.splits[p.all.IntN(len(p.splits))] }

// between reports whether some of these ranks are on different hosts.
func (p *program) between(members []int) bool {
	return slices.ContainsFunc(members, func(w int) bool { return p.world.Hostname(w) != p.world.Hostname(members[0]) })
}

// severalHosts reports whether the ranks are on several hosts.
func (p *program) severalHosts() bool { return p.world.LocalSize() < p.world.Size() }

// host returns the first rank of a rank's host.
func (p *program) host(w int) int {
	for r := range w {
		if p.world.Hostname(r) == p.world.Hostname(w) {
			return r
		}
	}
	return w
}

// split makes communicators from the ranks of another.
func (p *program) split() error {
	if len(p.splits) == 4 {
		return p.closeSiblings(1 + p.all.IntN(3))
	}
	from := p.drawSiblings()
	colors, keys := make([]int, p.n), make([]int, p.n)
	dup, most := p.all.IntN(3) == 0, 1+p.all.IntN(3)
	byHost := p.severalHosts() && p.all.IntN(2) == 0
	if byHost {
		dup, most = false, p.n
	}
	for r := range p.n {
		colors[r], keys[r] = p.all.IntN(most+1)-1, p.all.IntN(3)
		if dup {
			colors[r], keys[r] = 0, 0
		}
		if byHost {
			colors[r] = p.host(r)
		}
	}
	t := &siblings{me: -1}
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
				if w == p.me {
					t.me, t.rank = len(t.groups), r
				}
			}
			if len(group) > 0 {
				t.groups = append(t.groups, group)
			}
		}
	}
	p.note("%v from %v, dup: %v", t.groups, from.groups, dup)
	if from.c != nil {
		var err error
		if dup {
			t.c, err = from.c.Dup(p.ctx)
		} else {
			t.c, err = from.c.Split(p.ctx, colors[p.me], keys[p.me])
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
		p.splits = append(p.splits, t)
	}
	return nil
}

// closeSiblings closes communicators and their graphs.
func (p *program) closeSiblings(i int) error {
	if i >= len(p.splits) {
		return nil
	}
	t := p.splits[i]
	p.splits = slices.Delete(p.splits, i, i+1)
	var errs []error
	for j := 0; j < len(p.graphs); {
		if p.graphs[j].t != t {
			j++
			continue
		}
		errs = append(errs, p.closeGraph(j))
	}
	if t.c != nil {
		errs = append(errs, t.c.Close(), p.expect("a call on a closed communicator", nil, coll.Barrier(p.ctx, t.c), ubcoll.ErrClosed))
	}
	return errors.Join(errs...)
}
