package transporttest

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// network makes a network of a fabric.
func network(t testing.TB, f *Fabric, configs []transport.Config) Network {
	n := Network{Background: !f.o.TwoSided, Kill: f.Kill, Cut: f.Cut, Pairs: f.Pairs}
	for _, c := range configs {
		node, err := f.Node(c)
		require.NoError(t, err)
		n.Nodes = append(n.Nodes, node)
	}
	return n
}

// Every kind of fabric is a transport.
func TestSuite(t *testing.T) {
	for _, k := range Kinds {
		t.Run(k.String(), func(t *testing.T) {
			Suite(t, func(t testing.TB, configs []transport.Config) Network { return network(t, New(t, k), configs) })
		})
	}
}

// told is a test that keeps its errors.
type told struct {
	testing.TB
	mu     sync.Mutex
	errors []string
}

func (t *told) Errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errors = append(t.errors, fmt.Sprintf(format, args...))
}

func (t *told) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.errors...)
}

// fabricJob is two nodes of a fabric, and what the fabric reports.
func fabricJob(t *testing.T, o Options) (*job, *Fabric, *told) {
	t.Helper()
	to := &told{TB: t}
	var f *Fabric
	s := &suite{func(t testing.TB, configs []transport.Config) Network {
		f = New(to, o)
		return network(t, f, configs)
	}}
	return s.job(t, 2), f, to
}

// What breaks the rules is reported. If it is what the peer sends, it ends the wire.
func TestViolations(t *testing.T) {
	b8, b16, other := make([]byte, 8), make([]byte, 16), make([]byte, 8)
	for _, c := range []struct {
		name, want string
		broken     bool
		run        func(j *job, a, b transport.Endpoint)
	}{
		{"put without a grant", "rank 0 puts 8 bytes to place 1 of rank 1, sequence 1: nothing is granted", true,
			func(j *job, a, b transport.Endpoint) { a.Put(1, 1, at(b8), 8) }},
		{"put after the grant was used", "nothing is granted", true,
			func(j *job, a, b transport.Endpoint) {
				b.Post(1, 1, at(other), 8)
				a.Put(1, 1, at(b8), 8)
				j.word(b, 1, 1)
				a.Put(1, 2, at(b8), 8)
			}},
		{"put longer than the grant", "8 bytes are granted", true,
			func(j *job, a, b transport.Endpoint) { b.Post(1, 1, at(other), 8); a.Put(1, 1, at(b16), 16) }},
		{"put before its grant", "sequence 4 is granted", true,
			func(j *job, a, b transport.Endpoint) { b.Post(1, 4, at(other), 8); a.Put(1, 5, at(b8), 8) }},
		{"put of an older sequence", "sequence 5 was put before", true,
			func(j *job, a, b transport.Endpoint) { a.Put(1, 5, nil, 0); a.Put(1, 4, nil, 0) }},
		{"put of the same sequence", "sequence 5 was put before", true,
			func(j *job, a, b transport.Endpoint) { a.Put(1, 5, nil, 0); a.Put(1, 5, nil, 0) }},
		{"put of sequence 0", "sequence 0 was put before", true,
			func(j *job, a, b transport.Endpoint) { a.Put(1, 0, nil, 0) }},
		{"put to no place", "Put of place 2: there are 2", false,
			func(j *job, a, b transport.Endpoint) { a.Put(2, 1, nil, 0) }},
		{"post of other memory", "the place's first Post was of other memory", false,
			func(j *job, a, b transport.Endpoint) {
				b.Post(1, 1, at(other), 8)
				a.Put(1, 1, at(b8), 8)
				j.word(b, 1, 1)
				b.Post(1, 2, at(b16), 8)
			}},
		{"post of more memory", "the place's first Post was of other memory", false,
			func(j *job, a, b transport.Endpoint) {
				b.Post(1, 1, at(b16), 8)
				a.Put(1, 1, at(b8), 8)
				j.word(b, 1, 1)
				b.Post(1, 2, at(b16), 9)
			}},
		{"grant twice", "sequence 1 has neither landed nor been revoked", false,
			func(j *job, a, b transport.Endpoint) { b.Grant(1, 1, at(other), 8); b.Grant(1, 2, at(other), 8) }},
		{"grant before a revocation is done", "sequence 1 has neither landed nor been revoked", false,
			func(j *job, a, b transport.Endpoint) {
				b.Grant(1, 1, at(other), 8)
				b.Revoke(1, 1)
				b.Grant(1, 2, at(other), 8)
			}},
		{"grant of an older sequence", "sequence 3 was there before", false,
			func(j *job, a, b transport.Endpoint) {
				b.Revoke(1, 3)
				j.must("it is revoked", func() bool { return b.Revoking() == 0 })
				b.Grant(1, 3, at(other), 8)
			}},
		{"grant of sequence 0", "sequence 0 was there before", false,
			func(j *job, a, b transport.Endpoint) { b.Grant(1, 0, at(other), 8) }},
		{"calls of two goroutines", "while another goroutine", false,
			func(j *job, a, b transport.Endpoint) { a.(*endpoint).using.Store(true); a.Put(1, 1, nil, 0) }},
		{"grant within Made", "Grant of place 1 within Comm.Made", false,
			func(j *job, a, b transport.Endpoint) {
				j.join(8, 2, func(rank int, e transport.Endpoint) {
					if rank == 0 { // the peer's side may be made, too, before all ends
						e.Grant(1, 1, at(other), 8)
					}
				})
				j.Nodes[0].Endpoint(8, 1, true)
			}},
		{"endpoint without a communicator", "communicator 0x9, which has joined: false", false,
			func(j *job, a, b transport.Endpoint) { j.Nodes[0].Endpoint(9, 1, true) }},
		{"put after the node's Close", "after the node's Close", false,
			func(j *job, a, b transport.Endpoint) { j.close(testkit.Limit); a.Put(1, 1, nil, 0) }},
		{"progress after the node's Close", "Progress after the node's Close", false,
			func(j *job, a, b transport.Endpoint) { j.close(testkit.Limit); j.Nodes[0].Progress() }},
		{"poll after the node's Close", "Poll after the node's Close", false,
			func(j *job, a, b transport.Endpoint) { j.close(testkit.Limit); a.Poll() }},
		{"join after the node's Close", "Join after the node's Close", false,
			func(j *job, a, b transport.Endpoint) {
				j.close(testkit.Limit)
				require.ErrorIs(j.t, j.Nodes[0].Join(transport.Comm{ID: 1}), fault.ErrClosed)
			}},
	} {
		for _, k := range testkit.Sample(3, Kinds) {
			t.Run(c.name+", "+k.String(), func(t *testing.T) {
				j, _, to := fabricJob(t, k)
				a, b := j.pair(comm, 2)
				c.run(j, a, b)
				j.must("it is reported", func() bool { return len(to.all()) > 0 }, j.open()...)
				require.Contains(t, to.all()[0], c.want)
				require.Len(t, to.all(), 1)
				if !c.broken {
					return
				}
				j.must("both ends know", func() bool { return a.Err() != nil && b.Err() != nil })
				for _, e := range []transport.Endpoint{a, b} {
					require.Equal(t, transport.Broken, e.Err().Kind)
					require.ErrorContains(t, e.Err(), c.want)
				}
				j.must("both are told", func() bool { return len(j.ranks[0].lost()) == 1 && len(j.ranks[1].lost()) == 1 })
			})
		}
	}
}

// open is the ranks whose nodes the test has not closed.
func (j *job) open() []int {
	var open []int
	for i := range j.Nodes {
		if !j.closed[i] {
			open = append(open, i)
		}
	}
	return open
}

// What the rules allow is not reported, nor what a killed rank still does.
func TestKilledRankGoesOn(t *testing.T) {
	j, f, to := fabricJob(t, Options{})
	a, _ := j.pair(comm, 1)
	j.kill(0)
	require.Equal(t, transport.Left, a.Err().Kind)
	memory := make([]byte, 8)
	a.Post(0, 1, at(memory), 8)
	a.Put(0, 1, at(memory), 8)
	a.Revoke(0, 1)
	a.Tell(transport.Message{})
	a.Poll()
	a.Close()
	n := j.Nodes[0]
	n.Progress()
	n.Wait(time.Millisecond)
	n.Leave(comm)
	require.ErrorIs(t, n.Join(transport.Comm{ID: 8, Places: 1}), fault.ErrClosed)
	e := n.Endpoint(8, 1, true)
	require.Equal(t, transport.Left, e.Err().Kind)
	e.Put(0, 1, nil, 0)
	require.Error(t, e.Ready(t.Context()))
	require.NoError(t, n.Close(testkit.Limit))
	f.Kill(0)
	require.Empty(t, to.all())
}

// With delays, a receiver that looks too early sees a part of a put, and puts to different places land in any order.
func TestDelays(t *testing.T) {
	j, _, to := fabricJob(t, Options{Delays: true, TwoSided: true})
	a, b := j.pair(comm, 3)
	from, memory := bytes.Repeat([]byte{1}, 64<<10), make([]byte, 64<<10)
	half, overtaken, early := false, false, false
	for seq := uint64(1); !half || !overtaken || !early; seq++ {
		require.Less(t, seq, uint64(1000), "half %v, overtaken %v, early %v", half, overtaken, early)
		clear(memory)
		b.Post(0, seq, at(memory), len(memory))
		a.Put(0, seq, at(from), len(from))
		a.Put(1, seq, nil, 0)
		a.Put(2, seq, nil, 0)
		j.must("it lands", func() bool {
			got := bytes.Count(memory, []byte{1})
			half = half || got > 0 && got < len(memory)
			overtaken = overtaken || b.Word(2).Load() == seq && b.Word(1).Load() < seq
			early = early || a.Sent() > 3*(seq-1) && b.Word(0).Load() < seq
			return b.Word(0).Load() == seq && b.Word(1).Load() == seq && b.Word(2).Load() == seq && allSent(a)
		})
	}
	require.Empty(t, to.all())
}

// ticksOf waits until these ranks' goroutines have looked a few times.
func (j *job) ticksOf(ranks ...int) {
	for _, r := range ranks {
		before := j.ranks[r].ticked()
		testkit.Eventually(j.t, func() bool { return j.ranks[r].ticked() > before+2 })
	}
}

// A two-sided fabric moves nothing by itself, and needs the progress of both sides. It notices a death.
func TestTwoSided(t *testing.T) {
	j, _, to := fabricJob(t, Options{TwoSided: true})
	a, b := j.pair(comm, 2)
	memory := make([]byte, 8)
	b.Grant(0, 1, at(memory), 8)
	b.Revoke(1, 1)
	a.Put(1, 2, nil, 0)
	a.Tell(transport.Message{})
	j.ticksOf(0, 1)
	require.Zero(t, a.Granted(0).Load())
	require.Zero(t, b.Word(1).Load())
	require.Zero(t, a.Sent())
	require.Empty(t, j.ranks[1].messages())
	a.Poll()
	require.Zero(t, a.Granted(0).Load(), "its sender has not polled")
	require.Zero(t, b.Word(1).Load())
	// One poll does nothing while the node's goroutine looks.
	j.must("the receiver has polled", func() bool { return b.Word(1).Load() == 2 && len(j.ranks[1].messages()) == 1 }, 1)
	require.Zero(t, a.Granted(0).Load())
	j.must("the sender has polled", func() bool { return a.Granted(0).Load() == 1 && a.Sent() == 1 }, 0)
	require.Equal(t, 1, b.Revoking())
	j.must("the revocation is done", func() bool { return b.Revoking() == 0 }, 1)
	j.kill(0)
	testkit.Eventually(t, func() bool { return b.Err() != nil })
	require.Empty(t, to.all())
}

// Few requests are outstanding, and those that wait land in whatever order they are posted and put.
func TestTwoSidedLimit(t *testing.T) {
	const places = 5 * most
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprint("backwards ", back), func(t *testing.T) {
			j, f, to := fabricJob(t, Options{TwoSided: true})
			a, b := j.pair(comm, places)
			from, memory := filled(places, 1), make([]byte, places)
			for p := range places {
				b.Post(p, 1, at(memory[p:]), 1)
			}
			for i := range places {
				p := i
				if back {
					p = places - 1 - i
				}
				a.Put(p, 1, at(from[p:]), 1)
			}
			j.must("all land", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				require.LessOrEqual(t, len(a.(*endpoint).flying), most)
				require.LessOrEqual(t, b.(*endpoint).receives, most)
				listed := 0
				for _, x := range b.(*endpoint).places {
					if x.listed {
						listed++
					}
				}
				require.Equal(t, b.(*endpoint).receives, listed)
				return allSent(a)
			})
			require.Equal(t, from, memory)
			require.Empty(t, to.all())
		})
	}
}

// A stopped rank does nothing until it continues.
func TestStop(t *testing.T) {
	j, f, to := fabricJob(t, Options{})
	a, b := j.pair(comm, 2)
	f.Stop(1)
	a.Put(0, 1, nil, 0)
	b.Put(0, 1, nil, 0)
	for range mostTold + 5 {
		a.Tell(transport.Message{MayBeLost: true})
	}
	for range 5 {
		a.Tell(transport.Message{})
	}
	before := j.ranks[1].ticked()
	j.ticksOf(0)
	for range 100 {
		j.move()
	}
	require.Zero(t, a.Word(0).Load())
	require.Zero(t, b.Word(0).Load())
	require.LessOrEqual(t, j.ranks[1].ticked(), before+1, "one may have begun before Stop")
	f.Continue(1)
	j.word(a, 0, 1)
	j.word(b, 0, 1)
	j.must("all messages but those that were dropped come", func() bool { return len(j.ranks[1].messages()) == mostTold+5 })
	require.Empty(t, to.all())
}

// Close waits no longer than its limit for a peer that takes nothing, and says what it leaves.
func TestCloseLimit(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprint("cut ", cut), func(t *testing.T) {
			j, f, to := fabricJob(t, Options{})
			a, b := j.pair(comm, 1)
			memory := make([]byte, 8)
			b.Post(0, 1, at(memory), 8)
			f.Stop(1)
			from, is := filled(8, 1), fault.ErrTimeout
			a.Put(0, 1, at(from), 8)
			if cut {
				f.Cut(0, 1)
				f.mu.Lock()
				f.nodes[0].sides[1].cutAt = time.Now().Add(testkit.Limit) // not noticed before Close ends
				f.mu.Unlock()
				is = fault.ErrPeerLost
			}
			j.closed[0] = true
			err := j.Nodes[0].Close(time.Millisecond)
			require.ErrorIs(t, err, is)
			require.ErrorContains(t, err, "rank 1 has not taken 1 puts")
			require.ErrorContains(t, err, "within 1ms")
			require.Equal(t, 1, reason.Blamed(err, -1))
			require.Equal(t, transport.Left, a.Err().Kind)
			f.Continue(1)
			j.must("the peer notices", func() bool { return b.Err() != nil }, 1)
			require.Zero(t, b.Word(0).Load())
			require.Equal(t, make([]byte, 8), memory)
			require.Empty(t, to.all())
		})
	}
}

// A wire is only made to the rank whose row RowOf returns.
func TestRows(t *testing.T) {
	f := New(t, Options{})
	logger, log := testkit.Logs(slog.LevelInfo)
	x, err := f.Node(transport.Config{Rank: 0, RowOf: func(int) []byte { return []byte("rank 2") }, Log: logger})
	require.NoError(t, err)
	_, err = f.Node(transport.Config{Rank: 1})
	require.NoError(t, err)
	_, err = f.Node(transport.Config{Rank: 1})
	require.ErrorIs(t, err, fault.ErrInUse)
	x.Begin()
	require.NoError(t, x.Join(transport.Comm{ID: comm}))
	e := x.Endpoint(comm, 1, false)
	require.ErrorIs(t, e.Ready(t.Context()), fault.ErrArgument)
	require.Equal(t, transport.Unreached, e.Err().Kind)

	y := f.nodes[1]
	y.config.RowOf = func(int) []byte { return x.Row() }
	y.Begin()
	f.Cut(0, 1)
	require.NoError(t, y.Join(transport.Comm{ID: comm}))
	e = y.Endpoint(comm, 0, false)
	require.ErrorIs(t, e.Ready(t.Context()), fault.ErrPeerLost)
	require.Equal(t, transport.Unreached, e.Err().Kind, "there was no wire")
	require.Eventually(t, func() bool { return log.String() != "" }, testkit.Limit, time.Millisecond)
	require.Contains(t, log.String(), "no answer")
}
