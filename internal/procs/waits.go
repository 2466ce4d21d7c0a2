package procs

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Hang is ranks of one communicator that wait, whoever is between, for the same rank, or for each other.
type Hang struct {
	Comm    *Comm
	Waiting []int // its ranks
	// In is the communicator of the rank that they wait for, which is that rank's number there. At is nil if it has no
	// process here.
	In   *Comm
	Rank int
	At   *Rank
	// Circle is the ranks that wait for each other, instead.
	Circle []*Rank
}

// All reports whether all of the communicator on this host wait but the rank that they wait for.
func (h *Hang) All() bool {
	n := len(h.Waiting)
	if h.Circle == nil && h.In == h.Comm && h.At != nil {
		n++
	}
	return n == len(h.Comm.Ranks) && len(h.Waiting) > 1
}

// Hangs says for whom ranks wait longer than limit, or for a time that nobody knows, as far as that can be told on this
// host; what most wait for first.
func (j *Job) Hangs(now time.Time, limit time.Duration) []*Hang {
	type end struct {
		from, in *Comm
		rank     int
		circle   bool
	}
	hangs := map[end]*Hang{}
	follow := j.follower()
	for _, c := range j.Comms {
		for _, r := range c.Ranks {
			if r.Waits == nil || r.Process.Halted() || r.Broken {
				continue
			}
			if ago, ok := r.Ago(now); ok && ago < limit && r.Waits.Op == r.last().Name() {
				continue
			}
			in, rank, circle := follow(r)
			k := end{c, in, rank, circle != nil}
			if hangs[k] == nil {
				hangs[k] = &Hang{Comm: c, In: in, Rank: rank, At: in.at(rank), Circle: circle}
			}
			hangs[k].Waiting = append(hangs[k].Waiting, r.Rank)
		}
	}
	return slices.SortedFunc(maps.Values(hangs), func(a, b *Hang) int {
		return cmp.Or(len(b.Waiting)-len(a.Waiting), j.compare(a.Comm, b.Comm), j.compare(a.In, b.In), a.Rank-b.Rank)
	})
}

// compare compares the places of two communicators.
func (j *Job) compare(a, b *Comm) int { return slices.Index(j.Comms, a) - slices.Index(j.Comms, b) }

// follower returns a function that goes from a rank that waits to the one that it waits for, and so on: to one that waits for
// nobody, does not run, or is not here, or round a circle, of which it returns the first rank, too.
func (j *Job) follower() func(*Rank) (in *Comm, rank int, circle []*Rank) {
	waits := map[*Process]*Rank{} // the first rank of a process that waits
	several := map[*Process]bool{}
	for _, c := range j.Comms {
		has := map[*Process]bool{}
		for _, r := range c.Ranks {
			if r.Waits != nil && waits[r.Process] == nil {
				waits[r.Process] = r
			}
			several[r.Process] = several[r.Process] || has[r.Process]
			has[r.Process] = true
		}
	}
	return func(r *Rank) (in *Comm, rank int, circle []*Rank) {
		seen := map[*Rank]int{r: 0}
		for path := []*Rank{r}; ; {
			c, to := r.comm, r.Waits.Peer
			next := c.at(to)
			if next == nil || next.Process.Halted() {
				return c, to, nil
			}
			// A process of one rank may wait in another communicator. Which ranks of a process of several are the same is not known.
			if next.Waits == nil && !several[next.Process] {
				if other := waits[next.Process]; other != nil {
					next = other
				}
			}
			if next.Waits == nil {
				return c, to, nil
			}
			if i, ok := seen[next]; ok {
				circle = slices.SortedFunc(slices.Values(path[i:]), func(a, b *Rank) int {
					return cmp.Or(j.compare(a.comm, b.comm), a.Rank-b.Rank)
				})
				return circle[0].comm, circle[0].Rank, circle
			}
			seen[next] = len(path)
			path, r = append(path, next), next
		}
	}
}
