package flight

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/fault"
)

// Findings is what the dumps of a job say together. Ranks are those of the job throughout.
type Findings struct {
	Job      string    `json:"job"`
	Size     int       `json:"size"`
	Program  string    `json:"program"`
	First    time.Time `json:"first"` // when the dumps were written, by the clocks of their hosts
	Last     time.Time `json:"last"`
	Written  Ranks     `json:"written"` // those that have dumps
	Why      []Said    `json:"why"`
	Notes    []string  `json:"notes,omitempty"` // what could not be used
	Findings []Finding `json:"findings"`        // the first difference first
	Comms    []*Table  `json:"communicators"`

	hosts int // that wrote
}

// Said is what some ranks say.
type Said struct {
	Ranks Ranks  `json:"ranks"`
	Text  string `json:"text"`
}

// Finding is one difference between ranks: what kind of one, in which communicator, and the ranks to look at.
type Finding struct {
	Kind  Kind   `json:"kind"`
	Comm  string `json:"communicator,omitempty"`
	Ranks Ranks  `json:"ranks"`
	Text  string `json:"text"`
}

// Kind is what kind of difference a finding is. The first is the most certain to be what others follow from.
type Kind string

// The kinds, in that order.
const (
	Mismatch   Kind = "mismatch"      // ranks called different things as the same operation
	Lost       Kind = "lost"          // a rank or host is dead, stopped or cut off, and others wait for it
	Circle     Kind = "circle"        // ranks wait for each other
	Missing    Kind = "not called"    // ranks wait for one that waits for nobody
	Follows    Kind = "waits itself"  // ranks wait for one that has not called, since it waits for another
	Unfinished Kind = "unfinished"    // all have called, and it has not ended
	Broken     Kind = "broken"        // a communicator is broken, and nothing else says why
	Silent     Kind = "silent"        // a rank has no dump, and nobody waits for it
	Survived   Kind = "past mismatch" // the ranks went on after a mismatch
)

var kinds = []Kind{Mismatch, Lost, Circle, Missing, Follows, Unfinished, Broken, Silent, Survived}

// maxSize is more ranks than any job has.
const maxSize = 1 << 13

// Join compares the dumps of one job, as Read returns them.
func Join(dumps []*Dump) *Findings {
	j := &join{f: &Findings{}, dumps: map[int]*Dump{}, tables: map[string]*Table{}}
	j.take(dumps)
	for _, t := range j.f.Comms {
		t.finish()
	}
	j.graph()
	j.report()
	for _, t := range j.f.Comms {
		if !j.mismatch(t) {
			j.progress(t)
		}
	}
	j.messages()
	j.circles()
	j.gone()
	slices.SortStableFunc(j.f.Findings, func(a, b Finding) int {
		return slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind)
	})
	for _, t := range j.f.Comms {
		t.summarize()
	}
	j.goesOn()
	return j.f
}

// goesOn notes that nothing shows a hang if no rank has waited for long, as in a job that goes on.
func (j *join) goesOn() {
	const long = 100 * time.Millisecond
	under := false
	for _, t := range j.f.Comms {
		for _, s := range t.seats {
			if s.broken() != "" || s.dead || s.side != nil && s.side.Waits != nil {
				return
			}
			if s.open() {
				under = true
				if d, exact, ok := s.since(); !ok || !exact || d >= long {
					return
				}
			}
		}
	}
	if under {
		j.note("no operation has been under way for %v: perhaps the job goes on", long)
	}
}

// join is the state of Join.
type join struct {
	f      *Findings
	dumps  map[int]*Dump
	hosts  []string // by rank, if known
	tables map[string]*Table
	edges  map[int][]edge // see graph
	silent Ranks          // those without a dump
	blamed Ranks          // those of them that a finding names
	lost   map[int]*said  // what others report of ranks that are lost
}

// Table is one communicator.
type Table struct {
	ID      string     `json:"id"`
	Size    int        `json:"size"`
	Members Ranks      `json:"members"`
	Quiet   bool       `json:"quiet"` // nothing is under way, and all agree
	Text    string     `json:"text"`
	Rows    []Row      `json:"ranks"` // those in the same state together
	Broken  []Said     `json:"broken,omitempty"`
	Late    string     `json:"late,omitempty"`
	Ops     []Position `json:"operations,omitempty"`

	members []int // none: those of the job
	seats   []*seat
	at      map[int]*seat // by ranks of the job
	unknown Ranks         // those of whom nothing is known
	awaits  []*seat       // those that wait for them, since all others have come
	base    uint32        // a position to count from
	haveOps bool
	low     int // the least position of those that have not closed, and the greatest of all
	top     int
}

// seat is what is known of one rank of a communicator.
type seat struct {
	rank int
	host string
	pid  int
	dump *Dump // its own; nil: others of its host tell
	comm *Comm // its own; nil: likewise, or it has none of this communicator
	side *Side
	read time.Time // when its side was read, by its host's clock
	gone bool      // it has a dump, but not of this communicator
	dead bool
	shut bool // it has closed the communicator

	ops  []placed // in order
	last *Op
	pos  int // of last
}

// placed is an operation with its position, counted from Table.base.
type placed struct {
	at int
	op *Op
}

// nothing is the position of a rank that has called nothing.
const nothing = math.MinInt32 - 1

// take sorts what the dumps have by communicators and ranks.
func (j *join) take(dumps []*Dump) {
	f := j.f
	for _, d := range dumps {
		switch o := j.dumps[d.Rank]; {
		case d.Size < 1 || d.Size > maxSize || d.Rank < 0 || d.Rank >= d.Size:
			j.note("a dump of rank %d of %d is left out: there are no such jobs", d.Rank, d.Size)
			continue
		case f.Size != 0 && d.Size != f.Size:
			j.note("the dump of rank %d is left out: it says that the job has %d ranks, others %d", d.Rank, d.Size, f.Size)
			continue
		case o != nil && d.Time.Before(o.Time):
			continue
		}
		f.Job, f.Size, f.Program = d.Job, d.Size, d.Program
		j.dumps[d.Rank] = d
	}
	ranks := slices.Sorted(maps.Keys(j.dumps))
	f.Written = ranksOf(ranks...)
	j.silent = below(f.Size).without(f.Written)
	why, hosts := newSaid(), map[string]bool{}
	for _, r := range ranks {
		d := j.dumps[r]
		hosts[d.Host] = true
		if f.First.IsZero() || d.Time.Before(f.First) {
			f.First = d.Time
		}
		if d.Time.After(f.Last) {
			f.Last = d.Time
		}
		if len(d.Hosts) == d.Size && j.hosts == nil {
			j.hosts = d.Hosts
		}
		why.addError(d.Why, r)
		for i := range d.Comms {
			j.own(d, &d.Comms[i])
		}
	}
	f.Why, f.hosts = why.all(), len(hosts)
	for _, r := range ranks {
		d := j.dumps[r]
		for i := range d.Comms {
			j.local(d, &d.Comms[i])
		}
		for _, t := range f.Comms {
			if t.at[r] == nil && t.Members.Has(r) {
				t.add(&seat{rank: r, host: d.Host, pid: d.PID, dump: d, gone: true, read: d.Time})
			}
		}
	}
}

func (j *join) note(format string, args ...any) {
	j.f.Notes = append(j.f.Notes, fmt.Sprintf(format, args...))
}

// own takes a rank's side of a communicator from its own dump.
func (j *join) own(d *Dump, c *Comm) {
	t := j.tables[c.ID]
	made := &Table{ID: c.ID, Size: c.Size, members: c.Members, at: map[int]*seat{}}
	switch {
	case c.Size < 1 || c.Size > j.f.Size || c.Rank < 0 || c.Rank >= c.Size,
		len(c.Members) != 0 && (len(c.Members) != c.Size || !distinct(c.Members, j.f.Size)):
		j.note("communicator %s in the dump of rank %d is left out: rank %d of %d with %d members in a job of %d", c.ID, d.Rank,
			c.Rank, c.Size, len(c.Members), j.f.Size)
		return
	case t != nil && (t.Size != c.Size || !slices.Equal(t.members, c.Members)):
		j.note("communicator %s in the dump of rank %d is left out: its ranks are others than rank %d says", c.ID, d.Rank, t.seats[0].rank)
		return
	case made.ofJob(c.Rank) != d.Rank:
		j.note("communicator %s in the dump of rank %d is left out: it is that of rank %d", c.ID, d.Rank, made.ofJob(c.Rank))
		return
	}
	if t == nil {
		t = made
		if t.Members = below(t.Size); len(t.members) != 0 {
			t.Members = ranksOf(t.members...)
		}
		j.tables[c.ID] = t
		j.f.Comms = append(j.f.Comms, t)
	}
	if t.at[d.Rank] == nil {
		t.add(&seat{rank: d.Rank, host: d.Host, pid: d.PID, dump: d, comm: c, side: &c.Side, read: d.Time, shut: c.State == "closed"})
	}
}

// local takes what a rank has seen of others of its host.
func (j *join) local(d *Dump, c *Comm) {
	t := j.tables[c.ID]
	if t == nil || t.at[d.Rank] == nil || t.at[d.Rank].comm != c {
		return // it was left out
	}
	for i := range c.Local {
		p := &c.Local[i]
		r := t.ofJob(p.Rank)
		if r < 0 || r == d.Rank {
			continue
		}
		s := t.at[r]
		switch {
		case s == nil:
			t.add(&seat{rank: r, host: p.Host, pid: p.PID, side: &p.Side, read: d.Time, dead: p.Dead, shut: p.Closed})
		case s.dump != nil:
			s.dead = s.dead || p.Dead
			s.shut = s.shut || p.Closed && s.comm == nil // it may have closed after what it has written
		case d.Time.After(s.read):
			s.side, s.read, s.dead, s.shut = &p.Side, d.Time, s.dead || p.Dead, s.shut || p.Closed
		}
	}
}

func distinct(list []int, size int) bool {
	seen := map[int]bool{}
	for _, r := range list {
		if r < 0 || r >= size || seen[r] {
			return false
		}
		seen[r] = true
	}
	return true
}

func (t *Table) add(s *seat) {
	t.at[s.rank] = s
	t.seats = append(t.seats, s)
}

// ofJob is the rank in the job of a rank of the communicator, or -1.
func (t *Table) ofJob(rank int) int {
	switch {
	case rank < 0 || rank >= t.Size:
		return -1
	case len(t.members) != 0:
		return t.members[rank]
	}
	return rank
}

// finish puts the operations of all ranks in their order. Positions wrap around, so they count from one of them.
func (t *Table) finish() {
	slices.SortFunc(t.seats, func(a, b *seat) int { return a.rank - b.rank })
	var known []int
	for _, s := range t.seats {
		known = append(known, s.rank)
		if !t.haveOps && s.side != nil && len(s.side.Operations) > 0 {
			t.base, t.haveOps = s.side.Operations[0].Pos, true
		}
	}
	t.unknown = t.Members.without(ranksOf(known...))
	t.low, t.top = math.MaxInt, nothing
	for _, s := range t.seats {
		s.pos = nothing
		if s.side == nil {
			continue
		}
		for i := range s.side.Operations {
			o := &s.side.Operations[i]
			s.ops = append(s.ops, placed{int(int32(o.Pos - t.base)), o})
		}
		slices.SortStableFunc(s.ops, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
		s.ops = slices.CompactFunc(s.ops, func(a, b placed) bool { return a.at == b.at }) // which no rank writes
		if n := len(s.ops); n > 0 {
			s.last, s.pos = s.ops[n-1].op, s.ops[n-1].at
		}
		if s.shut && (s.open() || s.side.Waits != nil) { // that was later, since it broke
			s.shut = false
		}
		if t.top = max(t.top, s.pos); !s.shut {
			t.low = min(t.low, s.pos)
		}
	}
}

// op is the operation of s at a position, or nil.
func (s *seat) op(at int) *Op {
	i, ok := slices.BinarySearchFunc(s.ops, at, func(p placed, at int) int { return cmp.Compare(p.at, at) })
	if !ok {
		return nil
	}
	return s.ops[i].op
}

// open reports whether the last operation of s has not ended. One on a device ends without a word to the ring: if the
// communicator has broken, perhaps because its kernel has waited in vain.
func (s *seat) open() bool {
	if s.last == nil || s.last.Over() {
		return false
	}
	return s.last.State != Queued.String() || s.comm == nil || s.comm.Device == nil || s.comm.Device.Busy || s.broken() != ""
}

// entered reports whether the last operation of s waits until all ranks have called it.
func (s *seat) entered() bool { return s.open() && s.last.State == Entered.String() }

// came reports whether the last operation of s shows that all ranks have called it.
func (s *seat) came() bool {
	switch {
	case s.last == nil:
		return false
	case s.last.State == Queued.String():
		return !s.open()
	}
	return s.last.State == Agreed.String() || s.last.State == Done.String()
}

// broken is why s is broken, or "".
func (s *seat) broken() string {
	if s.comm == nil || s.comm.State == "open" || s.comm.State == "closed" {
		return ""
	}
	return s.comm.State
}

// title is "all_reduce #42".
func (o *Op) title() string { return fmt.Sprintf("%s #%d", o.Name(), o.Seq) }

// said gathers who says the same.
type said struct {
	order []string
	by    map[string][]int
	text  map[string]string
}

func newSaid() *said { return &said{by: map[string][]int{}, text: map[string]string{}} }

func (s *said) add(text string, rank int) { s.addAs(text, text, rank) }

// addAs adds a text to those with the same key.
func (s *said) addAs(key, text string, rank int) {
	if _, ok := s.by[key]; !ok {
		s.order, s.text[key] = append(s.order, key), text
	}
	s.by[key] = append(s.by[key], rank)
}

// addError adds an error to those that differ only in which rank tells them, and for which peer.
func (s *said) addError(text string, rank int) {
	text = brief(text)
	s.addAs(teller.ReplaceAllString(text, ""), text, rank)
}

// teller is who tells an error.
var teller = regexp.MustCompile(`\brank \d+ \(host [^)]*\)`)

func (s *said) all() (all []Said) {
	for _, key := range s.order {
		all = append(all, Said{ranksOf(s.by[key]...), s.text[key]})
	}
	return all
}

// brief is a text of at most so many characters, without what the dumps themselves say.
func brief(text string) string {
	const most = 300
	if head, _, cut := strings.Cut(text, "; UBCOLL_TIMEOUT or Options.Timeout says how long to wait"); cut {
		text = head + ": " + fault.ErrTimeout.Error()
	}
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + " ..."
	}
	return text
}
