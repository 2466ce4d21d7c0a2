package flight

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// story is a job whose dumps tests make by hand. A rank's file has what others of its host have published, as in a job.
type story struct {
	hosts []string // by rank
	comms []*chapter
	at    time.Time
	named bool // dumps name the ranks' hosts
}

// chapter is one communicator.
type chapter struct {
	s       *story
	id      string
	members []int
	pos     []uint32 // by its ranks
	all     []Comm
	none    map[int]bool // ranks that have none of it
	dead    map[int]bool
	closed  map[int]bool
}

func newStory(hosts string) *story {
	s := &story{at: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), named: true}
	for _, h := range hosts {
		s.hosts = append(s.hosts, string(h))
	}
	s.comm("w", nil)
	return s
}

// comm adds a communicator; members are none if its ranks are the job's.
func (s *story) comm(id string, members []int) *chapter {
	c := &chapter{s: s, id: id, members: members, none: map[int]bool{}, dead: map[int]bool{}, closed: map[int]bool{}}
	n := len(members)
	if members == nil {
		n = len(s.hosts)
	}
	for r := range n {
		c.all = append(c.all, Comm{ID: id, Rank: r, Size: n, Members: members, State: "open", Peer: -1})
	}
	c.pos = make([]uint32, n)
	s.comms = append(s.comms, c)
	return c
}

func (s *story) world() *chapter { return s.comms[0] }

// others are all ranks of c but some.
func (c *chapter) others(not ...int) (all []int) {
	for r := range c.all {
		if !ranksOf(not...).Has(r) {
			all = append(all, r)
		}
	}
	return all
}

// op gives ranks an operation in a state, a millisecond after the one before, and later by a microsecond for each rank.
func (c *chapter) op(state State, call string, ranks ...int) *chapter {
	c.s.at = c.s.at.Add(time.Millisecond)
	for _, r := range ranks {
		c.pos[r]++
		o := Op{Pos: c.pos[r], Seq: uint64(c.pos[r]), Call: call, Bytes: 16, Way: "eager", State: state.String(),
			Began: c.s.at.Add(time.Duration(r) * time.Microsecond)}
		switch state {
		case Done:
			o.Agreed, o.Took = 50, 100
		case Failed:
			o.Error, o.Took = "timed out", 100
		}
		side := &c.all[r].Side
		if side.Operations = append(side.Operations, o); len(side.Operations) > Entries {
			side.Operations = side.Operations[1:]
		}
	}
	return c
}

func (c *chapter) waits(rank int, op string, seq uint64, peer int) *chapter {
	c.all[rank].Waits = &Wait{op, seq, peer}
	return c
}

func (c *chapter) lanes(rank int, l ...Lane) *chapter {
	c.all[rank].Messages = append(c.all[rank].Messages, l...)
	return c
}

func (c *chapter) device(busy bool, ranks ...int) *chapter {
	for _, r := range ranks {
		c.all[r].Device = &Device{Name: fmt.Sprintf("cuda:%d", r), Busy: busy}
	}
	return c
}

func (c *chapter) broke(rank, peer int, why string) *chapter {
	c.all[rank].State, c.all[rank].Peer = why, peer
	return c
}

func (c *chapter) ofJob(rank int) int {
	if c.members == nil {
		return rank
	}
	return c.members[rank]
}

// dumps are the dumps of all ranks but those that are missing, ten seconds later.
func (s *story) dumps(missing ...int) (all []*Dump) {
	at := s.at.Add(10 * time.Second)
	for r, host := range s.hosts {
		if ranksOf(missing...).Has(r) {
			continue
		}
		d := &Dump{Version: Version, Job: "w", Rank: r, Size: len(s.hosts), Host: host, PID: 100 + r, Program: "prog",
			Time: at.Add(time.Duration(r) * time.Millisecond), Why: "SIGUSR2"}
		if s.named {
			d.Hosts = s.hosts
		}
		for _, c := range s.comms {
			for k := range c.all {
				if c.ofJob(k) != r || c.none[k] {
					continue
				}
				own := c.all[k]
				for o := range c.all {
					if at := c.ofJob(o); at != r && s.hosts[at] == host && !c.none[o] {
						p := Peer{Rank: o, Host: host, PID: 100 + at, Dead: c.dead[o], Closed: c.closed[o], Side: c.all[o].Side}
						p.Operations = p.Operations[max(0, len(p.Operations)-8):]
						own.Local = append(own.Local, p)
					}
				}
				d.Comms = append(d.Comms, own)
			}
		}
		all = append(all, d)
	}
	return all
}

const (
	sum   = "all_reduce(count 4, float32, sum)"
	cast  = "broadcast(count 8, float32, root 0)"
	block = "barrier"
)

// hang is a job that hangs, or not, and what is to be found.
type hang struct {
	name  string
	kind  Kind // "": no difference
	ranks []int
	make  func() []*Dump
}

func hangs() []hang {
	return []hang{
		{"nothing is wrong", "", nil, func() []*Dump {
			s := newStory("aabb")
			c := s.world().op(Done, sum, 0, 1, 2, 3).op(Done, cast, 0, 1, 2, 3)
			c.all[0].Late = &Slow{Rank: 3, Calls: 1100, Of: 1200, Median: 1300}
			c.all[1].Late = &Slow{Rank: 3, Calls: 1090, Of: 1200, Median: 1310}
			s.comm("x", []int{3, 1}).op(Done, block, 0, 1)
			return s.dumps()
		}},
		{"a single rank", "", nil, func() []*Dump {
			s := newStory("a")
			s.world().op(Done, sum, 0)
			return s.dumps()
		}},
		{"a single rank that has called nothing", "", nil, func() []*Dump { return newStory("a").dumps() }},
		{"mismatched order", Mismatch, []int{3}, func() []*Dump {
			s := newStory("aaaabbbb")
			c := s.world()
			c.op(Done, block, c.others()...)
			c.op(Entered, sum, c.others(3)...).op(Entered, cast, 3)
			return s.dumps()
		}},
		{"mismatched order, two against two", Mismatch, []int{1, 3}, func() []*Dump {
			s := newStory("aabb")
			s.world().op(Failed, sum, 0, 2).op(Failed, cast, 1, 3)
			return s.dumps()
		}},
		{"two ranks differ", Mismatch, []int{1}, func() []*Dump {
			s := newStory("aa")
			s.world().op(Done, sum, 0, 1).op(Failed, sum, 0).op(Failed, cast, 1)
			return s.dumps()
		}},
		{"three calls", Mismatch, []int{2, 3}, func() []*Dump {
			s := newStory("aaaa")
			s.world().op(Failed, sum, 0, 1).op(Failed, cast, 2).op(Failed, block, 3)
			return s.dumps()
		}},
		{"they went on after a mismatch, and one stops later", Missing, []int{2}, func() []*Dump {
			s := newStory("aaa")
			s.world().op(Failed, sum, 0, 1).op(Failed, cast, 2).op(Done, sum, 0, 1, 2).op(Entered, block, 0, 1)
			return s.dumps()
		}},
		{"one has not called", Missing, []int{3}, func() []*Dump {
			s := newStory("aaaabbbb")
			c := s.world()
			c.op(Done, block, c.others()...).op(Done, cast, c.others()...).op(Entered, sum, c.others(3)...)
			for _, r := range c.others(3) {
				c.waits(r, "all_reduce", 3, 3)
			}
			return s.dumps()
		}},
		{"it is in an earlier operation", Missing, []int{2}, func() []*Dump {
			s := newStory("aaa")
			s.world().op(Done, cast, 0, 1).op(Entered, sum, 0, 1).op(Agreed, cast, 2)
			return s.dumps()
		}},
		{"two have not called", Missing, []int{1, 2}, func() []*Dump {
			s := newStory("aabb")
			c := s.world()
			c.op(Done, block, c.others()...).op(Failed, sum, 0, 3)
			for _, r := range []int{0, 3} {
				c.broke(r, 1, "all_reduce #2: rank 0 (host a): waits for rank 1: timed out")
			}
			return s.dumps()
		}},
		{"one has called nothing", Missing, []int{0}, func() []*Dump {
			s := newStory("aa")
			s.world().op(Entered, sum, 1)
			return s.dumps()
		}},
		{"times are not known", Missing, []int{1}, func() []*Dump {
			s := newStory("aa")
			c := s.world().op(Done, block, 0, 1).op(Done, cast, 0, 1).op(Entered, sum, 0)
			c.all[1].Operations[1].Began, c.all[0].Operations[2].Began = time.Time{}, time.Time{}
			return s.dumps()
		}},
		{"one has closed it", Missing, []int{1}, func() []*Dump {
			s := newStory("aabb")
			c := s.comm("x", []int{0, 1, 2, 3}).op(Done, sum, 0, 1, 2, 3).op(Entered, block, 0, 2, 3)
			c.none[1] = true
			return s.dumps()
		}},
		{"one aborted", Missing, []int{2}, func() []*Dump {
			s := newStory("aaa")
			s.world().op(Done, sum, 0, 1, 2).op(Entered, sum, 0, 1).broke(2, 2, "abort: rank 2 (host a): out of paper: aborted")
			return s.dumps()
		}},
		{"positions wrap around", Missing, []int{1}, func() []*Dump {
			s := newStory("aaa")
			c := s.world()
			for r := range c.pos {
				c.pos[r] = 1<<32 - 3
			}
			for range 5 {
				c.op(Done, sum, 0, 1, 2)
			}
			c.op(Entered, sum, 0, 2)
			return s.dumps()
		}},
		{"the rings of the others lack what one did last", Missing, []int{0}, func() []*Dump {
			s := newStory("aa")
			c := s.world().op(Done, sum, 0, 1).device(true, 1).device(false, 0)
			for range 2 * Entries {
				c.op(Queued, sum, 1)
			}
			return s.dumps()
		}},
		{"a file is missing", Silent, []int{1}, func() []*Dump {
			s := newStory("aa")
			s.world().op(Done, sum, 0, 1)
			return s.dumps(1)
		}},
		{"a stopped rank", Lost, []int{2}, func() []*Dump {
			s := newStory("aaab")
			c := s.world()
			c.op(Done, sum, c.others()...).op(Entered, sum, c.others(2)...)
			return s.dumps(2)
		}},
		{"a dead rank", Lost, []int{1}, func() []*Dump {
			s := newStory("aab")
			c := s.world()
			c.op(Done, sum, 0, 1, 2).op(Failed, sum, 0, 2)
			c.dead[1] = true
			for _, r := range []int{0, 2} {
				c.broke(r, 1, "all_reduce #2: rank 0 (host a): the process of rank 1 has ended: peer lost")
			}
			return s.dumps(1)
		}},
		{"a stopped host", Lost, []int{4, 5, 6, 7}, func() []*Dump {
			s := newStory("aaaabbbb")
			c := s.world()
			c.op(Done, sum, c.others()...).op(Entered, sum, 0, 1, 2, 3).waits(0, "all_reduce", 2, 4)
			return s.dumps(4, 5, 6, 7)
		}},
		{"a stopped host, and a circle of waits for it", Lost, []int{4, 5}, func() []*Dump {
			s := newStory("aabbcc")
			c := s.world()
			c.op(Done, sum, c.others()...).op(Entered, sum, 0, 1, 2, 3)
			c.broke(0, 4, "all_reduce #2: rank 0 (host a): hosts a and c do not reach each other: peer lost")
			return s.dumps(4, 5)
		}},
		{"a stopped host whose name is not known", Lost, []int{2, 3}, func() []*Dump {
			s := newStory("aabb")
			s.named = false
			s.world().op(Agreed, sum, 0, 1).waits(0, "all_reduce", 1, 2)
			return s.dumps(2, 3)
		}},
		{"a circle of sends", Circle, []int{0, 1}, func() []*Dump {
			s := newStory("ab")
			s.world().waits(0, "send", 3, 1).waits(1, "send", 5, 0)
			return s.dumps()
		}},
		{"a circle of receives beside others that wait", Circle, []int{1, 2, 3}, func() []*Dump {
			s := newStory("aabb")
			s.world().waits(1, "recv", 1, 2).waits(2, "recv", 1, 3).waits(3, "recv", 1, 1).op(Entered, sum, 0).waits(0, "all_reduce", 1, 1)
			return s.dumps()
		}},
		{"a circle of a message and a collective", Circle, []int{0, 1}, func() []*Dump {
			s := newStory("aaa")
			s.world().op(Entered, sum, 0, 2).waits(1, "recv", 1, 0)
			return s.dumps()
		}},
		{"a circle through two communicators", Circle, []int{0, 3}, func() []*Dump {
			s := newStory("aabb")
			s.world().op(Entered, sum, 0, 1, 2)
			s.comm("x", []int{3, 0}).op(Entered, block, 0)
			return s.dumps()
		}},
		{"a rank waits, and the one that it waits for does not", Missing, []int{2}, func() []*Dump {
			s := newStory("aabb")
			s.world().op(Entered, sum, 0, 3)
			s.comm("x", []int{1, 2}).waits(0, "recv", 6, 1)
			return s.dumps()
		}},
		{"a message that was not sent", Missing, []int{1}, func() []*Dump {
			s := newStory("ab")
			s.world().waits(0, "recv", 6, 1).lanes(0, Lane{Peer: 1, Recv: true, Over: 5, Open: []int{4}, Count: 1}).
				lanes(1, Lane{Peer: 0, Over: 5})
			return s.dumps()
		}},
		{"a message that nobody receives", Missing, []int{1}, func() []*Dump {
			s := newStory("aaa")
			s.world().waits(0, "send", 3, 1).waits(2, "send", 1, 1).lanes(1, Lane{Peer: 0, Recv: true, Over: 2})
			return s.dumps()
		}},
		{"a message that was sent", Missing, []int{1}, func() []*Dump {
			s := newStory("ab")
			s.world().waits(0, "recv", 6, 1).lanes(1, Lane{Peer: 0, Over: 6})
			return s.dumps()
		}},
		{"a kernel that waits for a rank that has not called", Missing, []int{2}, func() []*Dump {
			s := newStory("aaaa")
			c := s.world().op(Queued, sum, 0, 1, 2, 3).op(Queued, sum, 0, 1, 3).op(Queued, sum, 0, 3).device(true, 0, 1, 3).device(false, 2)
			_ = c
			return s.dumps()
		}},
		{"a kernel that has not ended on one device", Unfinished, []int{1}, func() []*Dump {
			s := newStory("aaa")
			s.world().op(Queued, sum, 0, 1, 2).device(true, 1).device(false, 0, 2)
			return s.dumps()
		}},
		{"a kernel that is no collective", Unfinished, []int{1}, func() []*Dump {
			s := newStory("aaa")
			s.world().op(Done, sum, 0, 1, 2).device(true, 1).device(false, 0, 2)
			return s.dumps()
		}},
		{"all are in it, and one waits for nobody", Unfinished, []int{2}, func() []*Dump {
			s := newStory("aaab")
			c := s.world()
			c.op(Agreed, sum, c.others()...).waits(0, "all_reduce", 1, 1).waits(1, "all_reduce", 1, 2).waits(3, "all_reduce", 1, 0)
			return s.dumps()
		}},
		{"it has ended on some", Unfinished, []int{1, 3}, func() []*Dump {
			s := newStory("aabb")
			s.world().op(Done, cast, 0, 2).op(Agreed, cast, 1, 3)
			return s.dumps()
		}},
		{"one failed", Unfinished, []int{1}, func() []*Dump {
			s := newStory("aab")
			s.world().op(Agreed, cast, 0, 2).op(Failed, cast, 1)
			return s.dumps()
		}},
		{"only one communicator hangs", Missing, []int{6}, func() []*Dump {
			s := newStory("aaaabbbb")
			c := s.world()
			c.op(Done, sum, c.others()...)
			s.comm("even", []int{6, 4, 2, 0}).op(Done, block, 0, 1, 2, 3).op(Entered, cast, 1, 2, 3)
			s.comm("odd", []int{1, 3, 5, 7}).op(Done, sum, 0, 1, 2, 3)
			return s.dumps()
		}},
		{"many ranks", Missing, []int{300}, func() []*Dump {
			s := newStory(strings.Repeat("a", 128) + strings.Repeat("b", 128) + strings.Repeat("c", 128) + strings.Repeat("d", 128))
			c := s.world()
			c.op(Done, sum, c.others()...).op(Entered, sum, c.others(300)...)
			for _, r := range c.others(300) {
				c.waits(r, "all_reduce", 2, (r+1)%512)
			}
			return s.dumps()
		}},
		{"dumps of different moments", "", nil, func() []*Dump {
			s := newStory("ab")
			s.world().op(Done, sum, 0, 1).op(Done, sum, 1).op(Done, sum, 1)
			return s.dumps()
		}},
		{"a job that goes on", Missing, []int{1}, func() []*Dump {
			s := newStory("ab")
			s.world().op(Done, sum, 0, 1).op(Entered, sum, 0)
			ds := s.dumps()
			for _, d := range ds {
				d.Time = d.Time.Add(-9990 * time.Millisecond)
			}
			return ds
		}},
		{"dumps that cannot be", "", nil, func() []*Dump {
			s := newStory("ab")
			s.world().op(Done, sum, 0, 1)
			ds := s.dumps()
			ds[0].Comms = append(ds[0].Comms, []Comm{{ID: "a", Size: 1e9, Peer: -1}, {ID: "b", Rank: -1, Size: 2}, {ID: "c", Size: 2, Members: []int{0}},
				{ID: "d", Size: 2, Members: []int{0, 0}}, {ID: "e", Rank: 1, Size: 2}, {ID: "w", Size: 1}}...)
			return append(ds, &Dump{Rank: 3, Size: 1e9}, &Dump{Rank: 1, Size: 8})
		}},
	}
}

// golden has what Print writes. UPDATE=1 writes it.
const golden = "testdata/dumps.txt"

// Each kind of hang is found, and what people read of it stays what it was.
func TestJoin(t *testing.T) {
	var all strings.Builder
	for _, c := range hangs() {
		t.Run(c.name, func(t *testing.T) {
			f := Join(c.make())
			fmt.Fprintf(&all, "== %s\n", c.name)
			f.AddOps(2)
			require.NoError(t, f.Print(&all))
			_, err := json.Marshal(f)
			require.NoError(t, err)
			if c.kind == "" {
				require.Empty(t, f.Findings)
				return
			}
			require.NotEmpty(t, f.Findings)
			require.Equal(t, c.kind, f.Findings[0].Kind, f.Findings[0].Text)
			require.Equal(t, ranksOf(c.ranks...), f.Findings[0].Ranks, f.Findings[0].Text)
		})
	}
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(golden, []byte(all.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), all.String(), "UPDATE=1 writes %s", golden)
}

// In a job that did anything at random until something went wrong on one rank, that rank is named.
func TestJoinFinds(t *testing.T) {
	calls := []string{sum, cast, block, "all_gather(count 9, int8)"}
	for _, seed := range testkit.Seeds(t) {
		for i := range 1000 {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			n := 2 + r.IntN(7)
			hosts := make([]byte, n)
			for k := range hosts {
				hosts[k] = byte('a' + r.IntN(3))
			}
			s := newStory(string(hosts))
			s.named = r.IntN(2) == 0
			c := s.world()
			if m := 2 + r.IntN(n-1); r.IntN(2) == 0 { // beside one in which nothing hangs
				c.op(Done, sum, c.others()...)
				c = s.comm("x", r.Perm(n)[:m])
			}
			start := r.Uint32()
			if r.IntN(2) == 0 {
				start = -uint32(r.IntN(20))
			}
			for k := range c.pos {
				c.pos[k] = start
			}
			length := 1 + r.IntN(20)
			if r.IntN(100) == 0 {
				length += Entries
			}
			for range length {
				c.op(Done, calls[r.IntN(len(calls))], c.others()...)
			}
			bad := r.IntN(len(c.all))
			what, missing := r.IntN(4), []int(nil)
			call := calls[r.IntN(2)]
			switch what {
			case 0, 1: // it stops, and may have no file
				c.op(Entered, call, c.others(bad)...)
				for _, k := range c.others(bad) {
					if r.IntN(2) == 0 {
						c.waits(k, strings.Split(call, "(")[0], uint64(c.pos[k]), bad)
					}
				}
				if what == 1 {
					missing = []int{c.ofJob(bad)}
				}
			case 2: // it calls something else
				c.op(Entered, call, c.others(bad)...).op(Entered, calls[2+r.IntN(2)], bad)
				if len(c.all) == 2 { // the higher one is named
					bad = 0
					if c.ofJob(1) > c.ofJob(0) {
						bad = 1
					}
				}
			case 3: // its file is missing
				missing = []int{c.ofJob(bad)}
			}
			f := Join(s.dumps(missing...))
			require.NotEmpty(t, f.Findings, "seed %d, %d: %d on rank %d of %s", seed, i, what, c.ofJob(bad), hosts)
			require.Equal(t, ranksOf(c.ofJob(bad)), f.Findings[0].Ranks, "seed %d, %d: %d: %s", seed, i, what, f.Findings[0].Text)
			require.Equal(t, []Kind{Missing, Lost, Mismatch, Silent}[what], f.Findings[0].Kind, "seed %d, %d: %s", seed, i, f.Findings[0].Text)
		}
	}
}

// Whatever files say, they are read or refused, and what is read can be compared and printed.
func FuzzRead(f *testing.F) {
	for _, c := range hangs() {
		if ds := c.make(); len(ds) < 10 {
			var all []byte
			for _, d := range ds {
				b, err := json.Marshal(d)
				require.NoError(f, err)
				all = append(append(all, b...), '\n')
			}
			f.Add(all)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		folder := t.TempDir()
		for i, b := range bytes.SplitN(text, []byte{'\n'}, 8) {
			require.NoError(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("ubcoll-w-%05d.json", i)), b, 0o644))
		}
		jobs, err := Read(folder)
		if err != nil {
			return
		}
		for _, ds := range jobs {
			f := Join(ds)
			f.AddOps(3)
			require.NoError(t, f.Print(io.Discard))
		}
	})
}

func TestRanks(t *testing.T) {
	for _, c := range []struct {
		name string
		all  Ranks
		want string
		len  int
	}{
		{"none", nil, "ranks ", 0},
		{"one", ranksOf(3), "rank 3", 1},
		{"twice", ranksOf(3, 3), "rank 3", 1},
		{"two", ranksOf(4, 3), "ranks 3, 4", 2},
		{"more", ranksOf(5, 0, 2, 1), "ranks 0-2, 5", 4},
		{"many", ranksOf(0, 2, 4, 6, 8, 10, 12, 14, 16, 17, 18), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 3 more", 11},
		{"a hole", below(8).without(ranksOf(3)), "ranks 0-2, 4-7", 7},
		{"holes at the ends", below(8).without(ranksOf(0, 7)), "ranks 1-6", 6},
		{"nothing left", below(3).without(below(8)), "ranks ", 0},
		{"a huge one", below(1e9).without(ranksOf(1, 2)), "ranks 0, 3-999999999", 1e9 - 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, c.all.String())
			require.Equal(t, c.len, c.all.Len())
		})
	}
	b, err := json.Marshal(ranksOf(2, 0, 1))
	require.NoError(t, err)
	require.Equal(t, "[0,1,2]", string(b))
}

// Folders with dumps of several jobs, of another version, and with what is none.
func TestRead(t *testing.T) {
	folder := t.TempDir()
	jobs, err := Read(folder)
	require.NoError(t, err)
	require.Empty(t, jobs)
	early, late := newStory("ab").dumps(), newStory("abc").dumps()
	for _, d := range early {
		d.Job, d.Time = "v", d.Time.Add(-time.Hour)
		require.NoError(t, d.Write(folder))
	}
	for i := range late {
		require.NoError(t, late[len(late)-1-i].Write(folder))
	}
	jobs, err = Read(folder)
	require.NoError(t, err)
	require.Equal(t, [][]*Dump{late, early}, jobs)
	for _, c := range []struct{ name, text, want string }{
		{"no JSON", "{", "unexpected end"},
		{"another version", `{"version":2}`, "has version 2 of the format, and this program reads 1"},
		{"no rank", `{"version":1,"size":2,"rank":2}`, "is of rank 2 of 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(folder, "ubcoll-w-00000.json"), []byte(c.text), 0o644))
			_, err := Read(folder)
			require.ErrorContains(t, err, c.want)
		})
	}
}
