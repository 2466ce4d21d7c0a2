// Package membership lets the ranks that are left of a broken communicator agree on who they are, and go step by step until
// each of them knows that all are done: the part of it that neither waits nor reads any memory.
//
// Each rank tells all others its State, whenever that changes: first the set of the ranks that it knows to be gone. A rank
// takes over what others know. Once all that it believes alive hold the same set as itself, it goes one step on, and so with
// each further step. If a rank is found gone before it has told the last step, all go back to the first with a larger set:
// nobody can have ended with the old one. Who finds all at the last step says so, and ends.
//
// That a rank is gone must be certain, stay so, and be known only after everything that the rank has told: then those that end
// well all do with the same set. Between ranks that tell each other by messages a rank may end after it has heard from one that
// died before it told the others; these learn it from the first, for which they wait.
package membership

import "slices"

// Step says how far a rank has come.
type Step uint8

// The steps. Which one is the last is up to the caller.
const (
	Idle      Step = iota // it has not begun
	Proposed              // its set is told
	Made                  // it holds the same set as all others, and has made its part of what the ranks make
	Mapped                // it has mapped the parts of all others of its host
	Connected             // it has connected to other hosts
	Refused   Step = 255  // it gave up the attempt
)

// State is what a rank tells the others.
type State struct {
	Attempt uint32 // counts the calls
	Step    Step
	Gone    Set    // the ranks that it knows to be gone
	Done    uint32 // the last attempt that ended well
}

// Verdict is what a rank should do next.
type Verdict uint8

// The verdicts.
const (
	Wait     Verdict = iota // for the rank named
	Ready                   // all are as far as this rank: do what comes next, and call Advance
	Over                    // all have done the last step, with the set Ended
	Failed                  // the rank named gave up the attempt
	Excluded                // the rank named says that this one is gone
)

// Agreement is one rank's side of an attempt.
type Agreement struct {
	me, n int
	last  Step
	mine  State
	told  []State // by the others
	lost  Set     // for certain
	ended Set     // the set with which this rank has done the last step, or nil
}

// New begins an attempt of rank me of n, after that rank's earlier attempts. told is what the others have told so far. An attempt
// that others have begun is joined, also if they tell of it later.
func New(me, n int, last Step, before State, told []State) *Agreement {
	a := &Agreement{me: me, n: n, last: last, told: make([]State, n), lost: NewSet(n)}
	a.mine = State{Attempt: before.Attempt + 1, Step: Proposed, Gone: NewSet(n), Done: before.Done}
	for r, s := range told {
		if r != me {
			a.mine.Attempt = max(a.mine.Attempt, s.Attempt)
		}
	}
	for r, s := range told {
		a.Heard(r, s)
	}
	return a
}

// Mine is what this rank tells the others now. The set is the agreement's.
func (a *Agreement) Mine() State { return a.mine }

// Ended is the set with which this rank has done the last step, once Next has said Over.
func (a *Agreement) Ended() Set { return a.ended }

// Heard takes what a rank tells. The set must not change afterwards.
func (a *Agreement) Heard(rank int, s State) {
	if rank == a.me {
		return
	}
	// Either it gave up this rank's attempt, or it has joined another rank's that has: this one cannot end well any more.
	if s.Attempt > a.mine.Attempt && s.Done != a.mine.Attempt {
		a.mine.Attempt, a.mine.Step, a.ended = s.Attempt, Proposed, nil
	}
	a.told[rank] = s
}

// Lost says that a rank is gone, after all that Heard has taken of it.
func (a *Agreement) Lost(rank int) { a.lost.Add(rank) }

// Advance says that this rank has done what comes after its step.
func (a *Agreement) Advance() {
	if a.mine.Step++; a.mine.Step == a.last {
		a.ended = slices.Clone(a.mine.Gone)
	}
}

// Refuse gives up the attempt. It reports whether others may go on with this rank all the same, since it has told them of its last
// step: then it must take part in none any more, and is to them like a rank that dies now.
func (a *Agreement) Refuse() (left bool) {
	if a.ended != nil {
		return true
	}
	a.mine.Step = Refused
	return false
}

// same reports whether a rank holds the same set as this one in the same attempt.
func (a *Agreement) same(s *State) bool {
	return s.Attempt == a.mine.Attempt && s.Step != Idle && s.Gone.Equal(a.mine.Gone)
}

// Next says what this rank should do, given what it has heard, and which rank that is about. It may change Mine.
func (a *Agreement) Next() (v Verdict, about int) {
	grown := false
	for r := range a.told {
		s := &a.told[r]
		if r == a.me || a.mine.Gone.Has(r) {
			continue
		}
		now := s.Attempt == a.mine.Attempt
		switch {
		case a.ended != nil && s.Done == a.mine.Attempt:
			return a.over()
		case now && s.Step != Idle && s.Gone.Has(a.me), s.Done > a.mine.Done: // it has ended without this rank
			return Excluded, r
		case now && s.Step == Refused:
			a.ended = nil // nor can anybody else end with it
			return Failed, r
		case now && s.Step != Idle && !a.mine.Gone.Holds(s.Gone):
			a.mine.Gone = slices.Clone(a.mine.Gone)
			a.mine.Gone.join(s.Gone)
			grown = true
		}
	}
	for r := range a.told {
		s := &a.told[r]
		done := a.same(s) && s.Step == a.last && a.mine.Step == a.last // perhaps some have ended with it
		if r != a.me && a.lost.Has(r) && !a.mine.Gone.Has(r) && !done {
			if !grown {
				a.mine.Gone = slices.Clone(a.mine.Gone)
			}
			a.mine.Gone.Add(r)
			grown = true
		}
	}
	if grown {
		a.mine.Step = Proposed
	}
	for r := range a.told {
		if s := &a.told[r]; r != a.me && !a.mine.Gone.Has(r) && (!a.same(s) || s.Step < a.mine.Step) {
			return Wait, r
		}
	}
	if a.mine.Step == a.last {
		return a.over()
	}
	return Ready, -1
}

func (a *Agreement) over() (Verdict, int) {
	a.mine.Step, a.mine.Gone, a.mine.Done = a.last, a.ended, a.mine.Attempt
	return Over, -1
}
