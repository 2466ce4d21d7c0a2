package procs

import (
	"cmp"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Job is processes that share communicators, as far as they are on this host.
type Job struct {
	Processes []*Process
	Comms     []*Comm // the largest first
}

// Comm is a communicator of a job.
type Comm struct {
	ID    uint64
	Size  int
	Ranks []*Rank // those on this host, in order
}

// Rank is one rank of a communicator.
type Rank struct {
	*team.Found
	Process *Process
	comm    *Comm
}

// Jobs sorts processes by the communicators that they have in common.
func Jobs(all []*Process) (jobs []*Job) {
	comms := map[uint64]*Comm{}
	of := map[*Process]*Job{}
	for _, p := range all {
		job := &Job{Processes: []*Process{p}}
		of[p], jobs = job, append(jobs, job)
		for i := range p.Ranks {
			f := &p.Ranks[i]
			c := comms[f.Comm]
			if c == nil {
				c = &Comm{ID: f.Comm, Size: f.Size}
				comms[f.Comm] = c
				of[p].Comms = append(of[p].Comms, c)
			} else if a, b := of[c.Ranks[0].Process], of[p]; a != b {
				a.Processes, a.Comms = append(a.Processes, b.Processes...), append(a.Comms, b.Comms...)
				for _, q := range b.Processes {
					of[q] = a
				}
				jobs = slices.DeleteFunc(jobs, func(j *Job) bool { return j == b })
			}
			c.Ranks = append(c.Ranks, &Rank{f, p, c})
		}
	}
	for _, j := range jobs {
		slices.SortFunc(j.Processes, order)
		slices.SortStableFunc(j.Comms, func(a, b *Comm) int { return b.Size - a.Size })
		for _, c := range j.Comms {
			slices.SortStableFunc(c.Ranks, func(a, b *Rank) int { return cmp.Compare(a.Rank, b.Rank) })
		}
	}
	return jobs
}

// Shown is the communicators that are worth showing: those in which something is under way, and for processes that take part
// in none of these, the first of each that is broken, or else the first.
func (j *Job) Shown() (shown []*Comm) {
	has := map[*Process]bool{}
	add := func(c *Comm) {
		shown = append(shown, c)
		for _, r := range c.Ranks {
			has[r.Process] = true
		}
	}
	for _, c := range j.Comms {
		if slices.ContainsFunc(c.Ranks, (*Rank).Busy) {
			add(c)
		}
	}
	for _, wanted := range []func(*Rank) bool{func(r *Rank) bool { return r.Broken }, func(*Rank) bool { return true }} {
		for _, c := range j.Comms {
			if slices.ContainsFunc(c.Ranks, func(r *Rank) bool { return !has[r.Process] && wanted(r) }) {
				add(c)
			}
		}
	}
	slices.SortFunc(shown, j.compare)
	return shown
}

// Elsewhere is the ranks of c that have no process here.
func (c *Comm) Elsewhere() (ranks []int) {
	for r := range c.Size {
		if c.at(r) == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// at returns a rank; nil if it has no process here.
func (c *Comm) at(rank int) *Rank {
	i, ok := slices.BinarySearchFunc(c.Ranks, rank, func(r *Rank, rank int) int { return cmp.Compare(r.Rank, rank) })
	if !ok {
		return nil
	}
	return c.Ranks[i]
}

// Late is what the ranks of c say of the one that arrives last: what the rank says that has seen most calls.
func (c *Comm) Late() (late *flight.Slow) {
	for _, r := range c.Ranks {
		if l := r.Late; l != nil && (late == nil || l.Of > late.Of || l.Of == late.Of && l.Calls > late.Calls) {
			late = l
		}
	}
	return late
}

// Comm is the communicator that r is a rank of.
func (r *Rank) Comm() *Comm { return r.comm }

// last is the operation that the rank has begun last, or nil.
func (r *Rank) last() *flight.Op {
	if n := len(r.Operations); n > 0 {
		return &r.Operations[n-1]
	}
	return nil
}

// Busy reports whether something is under way on the rank, in this communicator.
func (r *Rank) Busy() bool {
	o := r.last()
	return !r.Broken && (r.Waits != nil || o != nil && !o.Over())
}

// Ago is how long ago the rank has begun its last operation; ok is false if that is not known.
func (r *Rank) Ago(now time.Time) (d time.Duration, ok bool) {
	o := r.last()
	if o == nil || o.Began.IsZero() {
		return 0, false
	}
	return max(0, now.Sub(o.Began)), true
}

// Doing says what the rank is in, without times, so that ranks in the same say the same.
func (r *Rank) Doing() string {
	s := flight.Side{Waits: r.Waits}
	o := r.last()
	if o != nil {
		timeless := *o
		timeless.Began = time.Time{}
		s.Operations = []flight.Op{timeless}
	}
	text := s.Doing()
	switch {
	case r.Broken:
		text = "broken: " + r.Why + "; " + text
	case o != nil && o.Error != "":
		text += ": " + o.Error
	}
	return text
}
