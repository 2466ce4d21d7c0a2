package flight

import (
	"fmt"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll/internal/plural"
)

// Row is ranks of a communicator that are in the same state.
type Row struct {
	Ranks Ranks    `json:"ranks"`
	Hosts []string `json:"hosts"`
	PID   int      `json:"pid,omitempty"` // of a single rank
	Call  string   `json:"call,omitempty"`
	Seq   uint64   `json:"seq,omitempty"`
	State string   `json:"state"`
	Age   string   `json:"age,omitempty"`   // since the longest of them is in it
	Waits string   `json:"waits,omitempty"` // for what
}

// mostRows is how many rows a table has, and mostWaits of how many kinds what ranks wait for may be, to tell them apart.
const (
	mostRows  = 12
	mostWaits = 8
)

// summarize makes the table's rows.
func (t *Table) summarize() {
	t.Rows = t.rows(true)
	if len(t.Rows) > mostWaits {
		t.Rows = t.rows(false)
	}
	broken := newSaid()
	t.Quiet = len(t.unknown) == 0
	for _, s := range t.seats {
		if why := s.broken(); why != "" {
			broken.addError(why, s.rank)
		}
		o := s.last
		t.Quiet = t.Quiet && s.side != nil && s.side.Waits == nil && s.pos == t.top && !s.open() && s.broken() == "" && !s.dead &&
			(s.comm == nil || s.comm.Device == nil || !s.comm.Device.Busy) &&
			(o == nil || o.Call == t.seats[0].last.Call && o.State != Failed.String())
	}
	t.Broken = broken.all()
	switch {
	case !t.Quiet:
		t.Text = "something is under way, or differs"
	case t.top == nothing:
		t.Text = "no collective"
	default:
		t.Text = fmt.Sprintf("nothing is under way; all have ended %s", t.seats[0].last.title())
	}
	t.late()
}

func (t *Table) rows(waits bool) (rows []Row) {
	type key struct {
		call, state, waits string
		seq                uint64
	}
	by := map[key][]*seat{}
	var order []key
	for _, s := range t.seats {
		k := key{state: "has no such communicator"}
		if s.side != nil {
			if k.state = "no collective yet"; s.last != nil {
				if k.call, k.seq, k.state = s.last.Call, s.last.Seq, s.last.State; s.last.Error != "" {
					k.state += ": " + s.last.Error
				}
				if s.last.State == Queued.String() && !s.open() {
					k.state = "ended on its device"
				}
			}
			if w := s.side.Waits; w != nil && waits {
				of := *w
				of.Peer = t.ofJob(w.Peer)
				k.waits = of.String()
			} else if w != nil {
				k.waits = w.Op + " for different ranks"
			}
		}
		switch {
		case s.dead:
			k.state += ", dead"
		case s.shut:
			k.state += ", closed"
		case s.dump == nil:
			k.state += ", no dump"
		}
		if by[k] == nil {
			order = append(order, k)
		}
		by[k] = append(by[k], s)
	}
	for _, k := range order {
		ss := by[k]
		r := Row{Ranks: ranksOfSeats(ss), Call: k.call, Seq: k.seq, State: k.state, Waits: k.waits}
		if len(ss) == 1 {
			r.PID = ss[0].pid
		}
		for _, s := range ss {
			if !slices.Contains(r.Hosts, s.host) && len(r.Hosts) <= mostHosts {
				r.Hosts = append(r.Hosts, s.host)
			}
		}
		if ss[0].last != nil {
			r.Age = age(ss)
		}
		rows = append(rows, r)
	}
	if len(t.unknown) > 0 {
		rows = append(rows, Row{Ranks: t.unknown, State: "nothing is known"})
	}
	return rows
}

// mostHosts is how many hosts of a row are named.
const mostHosts = 4

// late says which rank arrives last, if one stands out.
func (t *Table) late() {
	var worst Slow
	var tellers []int
	for _, s := range t.seats {
		if s.side == nil || s.side.Late == nil {
			continue
		}
		if l := *s.side.Late; l.Of >= 16 && l.Calls <= l.Of && l.Calls >= l.Of/2 {
			if l.Rank = t.ofJob(l.Rank); l.Rank < 0 {
				continue
			}
			if tellers == nil || l.Calls > worst.Calls {
				worst = l
			}
			tellers = append(tellers, s.rank)
		}
	}
	if tellers != nil {
		t.Late = fmt.Sprintf("%v (as %v saw it)", worst, ranksOf(tellers...))
	}
}

// short writes a time with three digits or so.
func short(d time.Duration) string {
	for _, u := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= u {
			d = d.Round(u / 10)
			break
		}
	}
	return d.String()
}

// since is for how long s has been in the state of its last operation when it was read, by its host's clock. If that is not
// known, it is less than since the operation before it began, whose times are; then exact is false.
func (s *seat) since() (d time.Duration, exact, ok bool) {
	for i := len(s.ops) - 1; i >= 0; i-- {
		o := s.ops[i].op
		if o.Began.IsZero() {
			continue
		}
		at := o.Began
		exact = i == len(s.ops)-1 && (!o.Over() || o.Took > 0)
		if exact && o.Over() {
			at = o.end()
		}
		d := s.read.Sub(at)
		return d, exact, d >= 0
	}
	return 0, false, false
}

// end is when o ended, which has both times.
func (o *Op) end() time.Time {
	const most = float64(1 << 62)
	return o.Began.Add(time.Duration(min(max(o.Took, 0)*1e3, most)))
}

// age is the longest since of some seats: "12.3s", or "<12.3s"; "" if it is not known.
func age(all []*seat) string {
	best, exact := time.Duration(-1), false
	for _, s := range all {
		d, e, ok := s.since()
		if ok && (e && !exact || e == exact && d > best) {
			best, exact = d, e
		}
	}
	switch {
	case best < 0:
		return ""
	case exact:
		return short(best)
	}
	return "<" + short(best)
}

// longest is age in a sentence: " for 12.3s".
func longest(all []*seat) string {
	switch a := age(all); {
	case a == "":
		return ""
	case a[0] == '<':
		return " for less than " + a[1:]
	default:
		return " for " + a
	}
}

// ended says when the last operation of s ended.
func (s *seat) ended() string {
	d, exact, ok := s.since()
	switch {
	case !ok:
		return ", " + s.last.State
	case exact:
		return fmt.Sprintf(", %s at %s, %s before this was seen", s.last.State, s.last.end().Format(clock), short(d))
	}
	return fmt.Sprintf(", %s less than %s before this was seen", s.last.State, short(d))
}

const clock = "15:04:05.000"

// Position is one operation of all ranks.
type Position struct {
	Pos    uint32 `json:"pos"`
	Seq    uint64 `json:"seq"`
	Bytes  uint64 `json:"bytes"`
	Way    string `json:"way,omitempty"`
	Calls  []Said `json:"calls"`
	States []Said `json:"states"`
	Last   string `json:"last,omitempty"` // who entered last
}

// AddOps adds the last n operations of each communicator.
func (f *Findings) AddOps(n int) {
	for _, t := range f.Comms {
		t.Ops = t.positions(n)
	}
}

func (t *Table) positions(n int) (all []Position) {
	if t.top == nothing {
		return nil
	}
	for at := t.top; len(all) < n && at > t.top-2*Entries; at-- {
		p := Position{Pos: t.base + uint32(at)}
		calls, states := newSaid(), newSaid()
		var first, last *seat
		var begin, end time.Time
		var called, entered int
		for _, s := range t.seats {
			o := s.op(at)
			switch {
			case s.side == nil:
				continue
			case o == nil && s.pos < at:
				states.add("not called", s.rank)
				continue
			case o == nil:
				states.add("no longer known", s.rank)
				continue
			}
			called++
			if calls.order == nil {
				p.Seq, p.Bytes, p.Way = o.Seq, o.Bytes, o.Way
			}
			if p.Way == "" {
				p.Way = o.Way
			}
			calls.add(o.Call, s.rank)
			state := o.State
			if o.Error != "" {
				state += ": " + o.Error
			}
			states.add(state, s.rank)
			if o.Began.IsZero() {
				continue
			}
			if entered++; first == nil || o.Began.Before(begin) {
				first, begin = s, o.Began
			}
			if last == nil || o.Began.After(end) {
				last, end = s, o.Began
			}
		}
		if calls.order == nil {
			continue
		}
		if entered > 1 && last != first {
			p.Last = fmt.Sprintf("rank %d entered last, %s after rank %d", last.rank, short(end.Sub(begin)), first.rank)
			if last.host != first.host {
				p.Last += " by the hosts' clocks"
			}
			if entered < called {
				p.Last += fmt.Sprintf(", of %s whose times are known", plural.Count(entered, "rank"))
			}
		}
		p.Calls, p.States = calls.all(), states.all()
		all = append(all, p)
	}
	slices.Reverse(all)
	return all
}
