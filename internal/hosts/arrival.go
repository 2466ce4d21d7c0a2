package hosts

import (
	"math/bits"
	"time"

	"github.com/ubcoll/ubcoll/internal/team"
)

// Who arrived last, between hosts. A host cannot see when the others came: what it hears in a round is of several of them.
// But each leader knows how long it waited for the others, and the last host has waited least. So with the proposals of an
// operation the hosts tell each other how long they have waited in the one before, and the least of that travels on.

// arrival is how long a leader has waited for the other hosts, as a class in the high 4 bits, and 1 + the rank of its host
// that came last, in 12. 0: not known.
type arrival uint16

const (
	shortest  = 13 // bits of the nanoseconds of class 0: less than 8 µs
	longer    = 2  // so many classes more than the last host have those that have waited for it, and not for the network
	arrivalAt = 12
)

func newArrival(rank int, waited uint64) arrival {
	class := min(max(bits.Len64(waited)-shortest, 0), 14)
	return arrival(class<<arrivalAt | (rank+1)&(1<<arrivalAt-1))
}

func (a arrival) class() int { return int(a >> arrivalAt) }

func (a arrival) rank() int { return int(a&(1<<arrivalAt-1)) - 1 }

// earliest is the one that has waited less.
func (a arrival) earliest(b arrival) arrival {
	if b != 0 && (a == 0 || b < a) {
		return b
	}
	return a
}

// arrivals is what a rank knows of two operations.
type arrivals struct {
	over   uint64    // when the hosts had agreed, by flight.Now; 0: not yet
	own    arrival   // this leader's, of the operation before; 0 on other ranks
	waited uint64    // how long that was
	mates  team.Late // of this host's ranks, in the operation before
	whose  int       // 1 + the rank of the communicator that came last in the operation before; 0: not known
	last   team.Late // that rank, and how long this one has waited for it: see Last
}

// Last returns the rank of the communicator that came last in the operation before the last one, and how long this rank
// has waited for it: 0 if it has not, or it is not known. It says so once.
func (s *Stage) Last() team.Late {
	l := s.arrivals.last
	s.arrivals.last = team.Late{}
	return l
}

// judge finds out, from the least that a leader has waited, who came last in the operation before.
func (s *Stage) judge(least arrival) {
	a := &s.arrivals
	if least == 0 || least.rank() >= s.Team.Whole() {
		return
	}
	here := s.Team.Index(least.rank()) >= 0
	if here || a.own != 0 && a.own.class() >= least.class()+longer {
		s.came(least.rank(), here, time.Duration(a.waited))
	}
}

// came notes who came last in the operation before. waited is how long this host has waited then, if the rank is not here.
func (s *Stage) came(rank int, here bool, waited time.Duration) {
	a := &s.arrivals
	if here {
		waited = a.mates.For
	}
	a.whose, a.last = rank+1, team.Late{Rank: rank, For: waited}
}

// The bits of Area.Verdict's Sig: the verdict, 1 + the rank that came last in the operation before, and for how many
// microseconds this host has waited for it.
const (
	verdictBits = 1<<lastShift - 1
	lastShift   = 4
	waitedShift = 32
)

// word is what a leader tells the ranks of its host, beside the verdict. It says it once.
func (s *Stage) word() uint64 {
	a := &s.arrivals
	waited := min(max(uint64(a.last.For.Microseconds()), 1), 1<<(64-waitedShift)-1)
	w := uint64(a.whose)<<lastShift | waited<<waitedShift
	if a.whose == 0 {
		w = 0
	}
	a.whose = 0
	return w
}

// told is judge of a rank that follows its leader, whose word it is.
func (s *Stage) told(word uint64) {
	if rank := int(word&(1<<waitedShift-1)>>lastShift) - 1; rank >= 0 && rank < s.Team.Whole() {
		s.came(rank, s.Team.Index(rank) >= 0, time.Duration(word>>waitedShift)*time.Microsecond)
	}
}

// keep keeps what this rank knows of an operation that all hosts want. mates is who came last on this host; leaders say when
// that was complete, by flight.Now.
func (s *Stage) keep(mates team.Late, complete uint64) {
	t, a := s.Team, &s.arrivals
	a.own, a.mates = 0, mates
	if !s.leads || a.over < complete {
		return
	}
	last := t.Rank()
	if mates.For > 0 {
		last = mates.Rank
	}
	a.waited = a.over - complete
	a.own = newArrival(t.Name(last), a.waited)
}
