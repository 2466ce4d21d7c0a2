package membership

import (
	"cmp"
	"slices"
)

// Network is what a rank knows of the hosts of a communicator that do not reach each other.
type Network struct {
	n     int
	hosts [][]int // the ranks of each
	cuts  map[[2]int]bool
}

// NewNetwork is the network of a communicator of n ranks with these on each host. No cut is known.
func NewNetwork(n int, hosts [][]int) *Network {
	return &Network{n: n, hosts: hosts, cuts: map[[2]int]bool{}}
}

// Cut says that two hosts do not reach each other, and reports whether that is new.
func (w *Network) Cut(a, b int) bool {
	k := [2]int{min(a, b), max(a, b)}
	if a == b || k[0] < 0 || k[1] >= len(w.hosts) || w.cuts[k] {
		return false
	}
	w.cuts[k] = true
	return true
}

// Cuts are all that are known.
func (w *Network) Cuts() [][2]int {
	all := make([][2]int, 0, len(w.cuts))
	for k := range w.cuts {
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b [2]int) int { return cmp.Or(a[0]-b[0], a[1]-b[1]) })
	return all
}

// Apart is who must go so that those who are left all reach each other, as a rank of host mine sees it: all ranks of the hosts
// that mine does not reach, on no way either, and then those of one host after another of which two do not reach each other: the
// one first that most ranks do not reach. gone are the ranks that are dead or count as such. The answer has none of them, and is
// the same on all ranks of the hosts that reach each other and know the same.
func (w *Network) Apart(gone Set, mine int) Set {
	alive := make([]int, len(w.hosts)) // ranks on each host
	for h, ranks := range w.hosts {
		for _, r := range ranks {
			if !gone.Has(r) {
				alive[h]++
			}
		}
	}
	all := NewSet(w.n)
	drop := func(h int) {
		for _, r := range w.hosts[h] {
			if !gone.Has(r) {
				all.Add(r)
			}
		}
		alive[h] = 0
	}
	near := w.near(mine, alive)
	for h := range w.hosts {
		if alive[h] > 0 && !near[h] {
			drop(h)
		}
	}
	for {
		worst, most := -1, 0
		for h := range w.hosts {
			lacks := 0
			for o, n := range alive {
				if w.apart(h, o) {
					lacks += n
				}
			}
			if alive[h] > 0 && lacks > 0 && (worst < 0 || cmp.Or(cmp.Compare(lacks, most), cmp.Compare(alive[worst], alive[h]), 1) > 0) {
				worst, most = h, lacks
			}
		}
		if worst < 0 {
			return all
		}
		drop(worst)
	}
}

func (w *Network) apart(a, b int) bool { return w.cuts[[2]int{min(a, b), max(a, b)}] }

// near are the hosts with ranks that are alive which a host reaches, perhaps by way of others.
func (w *Network) near(mine int, alive []int) []bool {
	near := make([]bool, len(w.hosts))
	near[mine] = true
	for todo := []int{mine}; len(todo) > 0; {
		h := todo[0]
		todo = todo[1:]
		for o := range w.hosts {
			if !near[o] && alive[o] > 0 && !w.apart(h, o) {
				near[o] = true
				todo = append(todo, o)
			}
		}
	}
	return near
}

// Quorum reports whether the ranks that are not in gone may go on, of n of which those in dead are known to be dead: they are
// more than half of those that are not, or as many as the others and with the lowest of all.
func Quorum(n int, gone, dead Set) bool {
	on, off, lowest := 0, 0, false
	for r := range n {
		switch {
		case !gone.Has(r):
			lowest = lowest || on+off == 0
			on++
		case !dead.Has(r):
			off++
		}
	}
	return on > off || on == off && lowest
}
