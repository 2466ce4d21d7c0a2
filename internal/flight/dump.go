package flight

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Version is that of the format of dumps.
const Version = 1

// Dump is what one rank knows of its communicators: a file of the folder that UBCOLL_DUMP names. Times are of the
// rank's host.
type Dump struct {
	Version int       `json:"version"`
	Job     string    `json:"job"` // the first communicator's number
	Rank    int       `json:"rank"`
	Size    int       `json:"size"`
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Program string    `json:"program"`
	Time    time.Time `json:"time"`
	Why     string    `json:"why"`             // it was written
	Hosts   []string  `json:"hosts,omitempty"` // by ranks of the job: where they are, since a host may write nothing
	Comms   []Comm    `json:"communicators"`
}

// Comm is one communicator of a rank.
type Comm struct {
	ID      string `json:"id"`
	Rank    int    `json:"rank"`
	Size    int    `json:"size"`
	Members []int  `json:"members,omitempty"` // by its ranks: the ranks of the job; none: the same
	State   string `json:"state"`             // "open", "closed", or why it broke
	Peer    int    `json:"peer"`              // the rank that broke it, or -1
	Side
	Local    []Peer  `json:"local,omitempty"`    // what the other ranks of the host have published, who may have no dump of their own
	Messages []Lane  `json:"messages,omitempty"` // by peer and direction
	Device   *Device `json:"device,omitempty"`
}

// Side is one rank's side of a communicator, as its shared memory has it.
type Side struct {
	Waits      *Wait `json:"waits,omitempty"` // what it waits for, if for long
	Operations []Op  `json:"operations"`
	Late       *Slow `json:"late,omitempty"` // the rank that arrived last most often, as this one has seen it
}

// Peer is another rank's side.
type Peer struct {
	Rank   int    `json:"rank"`
	Host   string `json:"host"`
	PID    int    `json:"pid"`
	Closed bool   `json:"closed,omitempty"`
	Dead   bool   `json:"dead,omitempty"`
	Side
}

// Wait is what a rank waits for: an operation, or a message.
type Wait struct {
	Op   string `json:"op"`
	Seq  uint64 `json:"seq,omitempty"`
	Peer int    `json:"peer"`
}

// String is "recv #3 from rank 1".
func (w Wait) String() string {
	s, to := w.Op, "for"
	switch w.Op {
	case "send":
		to = "to"
	case "recv":
		to = "from"
	}
	if w.Seq > 0 {
		s += fmt.Sprintf(" #%d", w.Seq)
	}
	return fmt.Sprintf("%s %s rank %d", s, to, w.Peer)
}

// Op is one operation.
type Op struct {
	Pos    uint32    `json:"pos"` // its place in the order of the rank's operations
	Seq    uint64    `json:"seq"`
	Call   string    `json:"call"` // with what all ranks must agree on: "all_reduce(count 5, float32, sum)"
	Bytes  uint64    `json:"bytes"`
	Way    string    `json:"way,omitempty"`
	State  string    `json:"state"`
	Error  string    `json:"error,omitempty"`
	Began  time.Time `json:"began,omitzero"`      // zero: not read
	Agreed float64   `json:"agreed_us,omitempty"` // microseconds from then until all had come; 0: at once, or not read
	Took   float64   `json:"took_us,omitempty"`   // until the end; likewise
}

// Name is the operation's name: "all_reduce".
func (o *Op) Name() string {
	name, _, _ := strings.Cut(o.Call, "(")
	return name
}

// Over reports whether the operation has ended.
func (o *Op) Over() bool { return o.State == Done.String() || o.State == Failed.String() }

// Slow is the rank that was the last to arrive most often.
type Slow struct {
	Rank   int     `json:"rank"`
	Calls  uint64  `json:"calls"`
	Of     uint64  `json:"of"`
	Median float64 `json:"median_us"` // after the rank that tells
}

// Slow is l for people.
func (l Late) Slow() *Slow {
	return &Slow{Rank: int(uint32(l.Rank)), Calls: l.Calls, Of: l.Of, Median: float64(l.Median) / 1e3}
}

// String is "rank 7 arrived last in 92% of 1200 calls, 1.3ms in the median".
func (s Slow) String() string {
	d := time.Duration(s.Median * 1e3)
	for _, u := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= u {
			d = d.Round(u / 10)
			break
		}
	}
	return fmt.Sprintf("rank %d arrived last in %.0f%% of %d calls, %v in the median", s.Rank,
		100*float64(s.Calls)/float64(max(s.Of, 1)), s.Of, d)
}

// Lane is the messages from or to one rank.
type Lane struct {
	Peer  int    `json:"peer"`
	Recv  bool   `json:"recv,omitempty"`
	Over  uint64 `json:"over"`           // how many are over
	Open  []int  `json:"open,omitempty"` // the bytes of those under way, in order, 64 at most
	Count int    `json:"count,omitempty"`
	Busy  bool   `json:"busy,omitempty"` // a call was moving them: nothing else is known
}

// Device is the device side of a communicator.
type Device struct {
	Name string `json:"name"`
	Busy bool   `json:"busy"` // operations are queued there that have not ended
}

// Write writes d to a file of the folder, in place of an earlier one of the same rank. Nobody sees half a file.
func (d *Dump) Write(folder string) error {
	b, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, ".ubcoll-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Chmod(f.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(folder, d.file()))
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// file is the name of d's file.
func (d *Dump) file() string { return fmt.Sprintf("ubcoll-%s-%05d.json", d.Job, d.Rank) }

// Read returns the dumps of a folder by jobs, those that wrote last first, each by rank.
func Read(folder string) (jobs [][]*Dump, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "ubcoll-*-*.json"))
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		d := &Dump{}
		if err := json.Unmarshal(b, d); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if d.Version != Version {
			return nil, fmt.Errorf("%s has version %d of the format, and this program reads %d", name, d.Version, Version)
		}
		if d.Size < 1 || d.Rank < 0 || d.Rank >= d.Size {
			return nil, fmt.Errorf("%s is of rank %d of %d", name, d.Rank, d.Size)
		}
		i, ok := at[d.Job]
		if !ok {
			i, jobs = len(jobs), append(jobs, nil)
			at[d.Job] = i
		}
		jobs[i] = append(jobs[i], d)
	}
	latest := func(ds []*Dump) time.Time {
		return slices.MaxFunc(ds, func(a, b *Dump) int { return a.Time.Compare(b.Time) }).Time
	}
	slices.SortStableFunc(jobs, func(a, b []*Dump) int { return latest(b).Compare(latest(a)) })
	for _, ds := range jobs {
		slices.SortFunc(ds, func(a, b *Dump) int { return a.Rank - b.Rank })
	}
	return jobs, nil
}

// String says in one line what the rank is in: "communicator 3f of 8 ranks: in all_reduce(count 4, float32, sum) #7 since
// 12:00:01.5, waits in recv #3 from rank 1".
func (c *Comm) String() string {
	s := fmt.Sprintf("communicator %s, rank %d of %d: %s", strings.TrimLeft(c.ID, "0"), c.Rank, c.Size, c.Doing())
	if c.State != "open" {
		s += "; broken: " + c.State
	}
	return s
}

// Doing says what a rank does or has done last.
func (s *Side) Doing() string {
	text := "no operation yet"
	if n := len(s.Operations); n > 0 {
		text = s.Operations[n-1].doing()
	}
	if s.Waits != nil && (len(s.Operations) == 0 || s.Waits.Op != s.Operations[len(s.Operations)-1].Name()) {
		text += ", waits in " + s.Waits.String()
	} else if s.Waits != nil {
		text += fmt.Sprintf(", for rank %d", s.Waits.Peer)
	}
	if s.Late != nil {
		text += "; " + s.Late.String()
	}
	return text
}

func (o *Op) doing() string {
	at, in := "", map[string]string{Entered.String(): "waits in", Agreed.String(): "moves data in", Queued.String(): "has queued",
		Failed.String(): "has failed in"}[o.State]
	if in == "" {
		in = "last was"
	}
	if !o.Began.IsZero() {
		at = " since " + o.Began.Format("15:04:05.000")
		if o.Over() {
			at = " at " + o.Began.Format("15:04:05.000")
		}
	}
	return fmt.Sprintf("%s %s #%d%s", in, o.Call, o.Seq, at)
}
