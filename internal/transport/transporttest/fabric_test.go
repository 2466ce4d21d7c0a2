package transporttest

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"
	"unsafe"

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
	for i, k := range Kinds {
		t.Run(k.String(), func(t *testing.T) {
			SuiteTurns(t, i, 2, func(t testing.TB, configs []transport.Config) Network { return network(t, New(t, k), configs) })
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

// What breaks the rules of writes and calls is reported, too.
func TestViolationsOfWrites(t *testing.T) {
	b8, k := make([]byte, 8), transport.Target{Key: 1, Slot: 2, Offset: 3}
	for _, c := range []struct {
		name, want string
		broken     bool
		run        func(j *job, a, b transport.Endpoint)
	}{
		{"write of nothing", "Write of 0 bytes to key 0x1, slot 2, offset 3: there has to be one", false,
			func(j *job, a, b transport.Endpoint) { a.Write(k, at(b8), 0, false) }},
		{"write of less", "Write of -1 bytes", false,
			func(j *job, a, b transport.Endpoint) { a.Write(k, at(b8), -1, false) }},
		{"write to no key", "keys begin at 1", false,
			func(j *job, a, b transport.Endpoint) { a.Write(transport.Target{}, at(b8), 8, false) }},
		{"write beyond the last offset", "they end above offset 17592186044416", false,
			func(j *job, a, b transport.Endpoint) {
				a.Write(transport.Target{Key: 1, Offset: transport.MaxOffset - 7}, at(b8), 8, false)
			}},
		{"write to an offset that is too large", "they end above offset", false,
			func(j *job, a, b transport.Endpoint) {
				a.Write(transport.Target{Key: 1, Offset: math.MaxUint64 - 3}, at(b8), 8, false)
			}},
		{"call of nothing", "Call of 0 bytes: it takes 1 to 4096", false,
			func(j *job, a, b transport.Endpoint) { a.Call(nil) }},
		{"call of too much", "Call of 4097 bytes: it takes 1 to 4096", false,
			func(j *job, a, b transport.Endpoint) { a.Call(make([]byte, transport.MaxCall+1)) }},
		{"withdraw of no key", "Withdraw: keys begin at 1", false,
			func(j *job, a, b transport.Endpoint) { a.Withdraw(transport.Target{Slot: 1}) }},
		{"refuse of no key", "Refuse: keys begin at 1", false,
			func(j *job, a, b transport.Endpoint) { a.Refuse(transport.Target{Slot: 1}) }},
		{"write to a peer without a server", "rank 1 writes or calls 8 bytes to rank 0: it has no Server", true,
			func(j *job, a, b transport.Endpoint) { b.Write(k, at(b8), 8, false) }},
		{"call to a peer without a server", "rank 1 writes or calls 5 bytes to rank 0: it has no Server", true,
			func(j *job, a, b transport.Endpoint) { b.Call(b8[:5]) }},
		{"write within Made", "Write of 8 bytes to key 0x1, slot 2, offset 3 within Comm.Made", false,
			func(j *job, a, b transport.Endpoint) {
				j.inMade(func(e transport.Endpoint) { e.Write(k, at(b8), 8, false) })
			}},
		{"call within Made", "Call of 8 bytes within Comm.Made", false,
			func(j *job, a, b transport.Endpoint) { j.inMade(func(e transport.Endpoint) { e.Call(b8) }) }},
		{"withdraw within Made", "Withdraw within Comm.Made", false,
			func(j *job, a, b transport.Endpoint) { j.inMade(func(e transport.Endpoint) { e.Withdraw(k) }) }},
		{"refuse within Made", "Refuse within Comm.Made", false,
			func(j *job, a, b transport.Endpoint) { j.inMade(func(e transport.Endpoint) { e.Refuse(k) }) }},
		{"refuse within a server", "Refuse: a method of a Server calls it", false,
			func(j *job, a, b transport.Endpoint) { a.Call([]byte{1}) }},
		{"call after the node's Close", "Call of 8 bytes after the node's Close", false,
			func(j *job, a, b transport.Endpoint) { j.close(testkit.Limit); a.Call(b8) }},
	} {
		for _, o := range testkit.Sample(3, Kinds) {
			t.Run(c.name+", "+o.String(), func(t *testing.T) {
				j, _, to := fabricJob(t, o)
				for i, n := range j.Nodes {
					require.NoError(t, n.Join(transport.Comm{ID: comm, Made: func(e transport.Endpoint) transport.Server {
						if i == 0 {
							return nil
						}
						x := newServer(t, e)
						x.call = func([]byte) { e.Refuse(k) }
						return x
					}}))
				}
				a, b := j.endpoints(comm, 0, 1)
				c.run(j, a, b)
				j.must("it is reported", func() bool { return len(to.all()) > 0 }, j.open()...)
				require.Contains(t, to.all()[0], c.want)
				require.Len(t, to.all(), 1)
				if !c.broken {
					require.Zero(t, b.Queued())
					return
				}
				j.must("both ends know", func() bool { return a.Err() != nil && b.Err() != nil })
				for _, e := range []transport.Endpoint{a, b} {
					require.Equal(t, transport.Broken, e.Err().Kind)
					require.ErrorContains(t, e.Err(), c.want)
				}
			})
		}
	}
}

// inMade runs f within Comm.Made of rank 0.
func (j *job) inMade(f func(e transport.Endpoint)) {
	j.join(8, 0, func(rank int, e transport.Endpoint) {
		if rank == 0 { // the peer's side may be made, too, before all ends
			f(e)
		}
	})
	j.Nodes[0].Endpoint(8, 1, true)
}

// With delays, long writes land in pieces of several sizes, some count as sent before they land, and one that others are
// said to follow waits for them. Bytes of a call are no good once it is over.
func TestDelaysOfWrites(t *testing.T) {
	for _, o := range []Options{{Delays: true}, {Delays: true, TwoSided: true}} {
		t.Run(o.String(), func(t *testing.T) {
			j, _, to := fabricJob(t, o)
			var kept [][]byte
			sv := j.serve(comm, 0, func(rank int, x *server) {
				x.call = func(b []byte) { x.look(func() { kept = append(kept, b) }) }
			})
			a, _ := j.endpoints(comm, 0, 1)
			x, k := sv.of(1, 0), transport.Target{Key: 1}
			from, memory := filled(frame, 1), make([]byte, frame)
			early, pieces, waits := false, map[int]bool{}, false
			for i := 0; !early || !waits || len(pieces) < 10; i++ {
				require.Less(t, i, 1000, "early %v, waits %v, pieces %v", early, waits, pieces)
				x.allow(k, 0, memory)
				a.Write(k, at(from), len(from), true)
				a.(*endpoint).s.n.f.mu.Lock()
				waits = waits || o.TwoSided || len(a.(*endpoint).out) > 0
				a.(*endpoint).s.n.f.mu.Unlock()
				a.Call([]byte{5})
				j.must("it lands", func() bool {
					early = early || a.Sent() > 2*uint64(i) && x.served() == i
					return x.served() == i+1 && allSent(a)
				})
				next := 0
				for _, s := range x.spans(k) {
					require.EqualValues(t, next, s.offset)
					next += s.n
					pieces[s.n] = true
				}
				require.Equal(t, frame, next)
			}
			f := a.(*endpoint).s.n.f
			f.mu.Lock()
			x.look(func() { require.NotContains(t, kept, []byte{5}) })
			f.mu.Unlock()
			require.Empty(t, to.all())
		})
	}
}

// stuck is a server that takes its time in Reach.
type stuck struct {
	*server
	reached, goOn chan struct{}
}

// Reach implements transport.Server.
func (x *stuck) Reach(t transport.Target, n int) unsafe.Pointer {
	p := x.server.Reach(t, n)
	x.reached <- struct{}{}
	<-x.goOn
	return p
}

// stuckJob is fabricJob with two servers; b's is stuck.
func stuckJob(t *testing.T, o Options) (j *job, f *Fabric, to *told, x *stuck, a, b transport.Endpoint) {
	t.Helper()
	j, f, to = fabricJob(t, o)
	for i, n := range j.Nodes {
		require.NoError(t, n.Join(transport.Comm{ID: comm, Made: func(e transport.Endpoint) transport.Server {
			s := newServer(t, e)
			if i == 0 {
				return s
			}
			x = &stuck{s, make(chan struct{}), make(chan struct{})}
			return x
		}}))
	}
	a, b = j.endpoints(comm, 0, 1)
	return j, f, to, x, a, b
}

// What happens between Reach and the bytes counts: after Withdraw, Close, Kill and Stop nothing is read or written. Refuse
// waits until they have landed.
func TestBetweenReachAndBytes(t *testing.T) {
	for _, c := range []struct {
		name  string
		run   func(f *Fabric, a, b transport.Endpoint, k transport.Target)
		lands bool
	}{
		{"withdraw", func(f *Fabric, a, b transport.Endpoint, k transport.Target) { a.Withdraw(k) }, true},
		{"the writer closes", func(f *Fabric, a, b transport.Endpoint, k transport.Target) { a.Close() }, true},
		{"the receiver closes", func(f *Fabric, a, b transport.Endpoint, k transport.Target) { b.Close() }, false},
		{"the writer's node closes", func(f *Fabric, a, b transport.Endpoint, k transport.Target) {
			require.ErrorContains(t, f.nodes[0].Close(0), "has not taken 1 puts")
		}, false},
		{"the writer dies", func(f *Fabric, a, b transport.Endpoint, k transport.Target) { f.Kill(0) }, true},
		{"the receiver dies", func(f *Fabric, a, b transport.Endpoint, k transport.Target) { f.Kill(1) }, false},
		{"cut", func(f *Fabric, a, b transport.Endpoint, k transport.Target) { f.Cut(0, 1) }, false},
		{"stop", func(f *Fabric, a, b transport.Endpoint, k transport.Target) { f.Stop(1) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, f, to, x, a, b := stuckJob(t, Options{})
			k := transport.Target{Key: 1}
			from, memory := filled(frame, 1), make([]byte, frame)
			x.allow(k, 0, memory)
			a.Write(k, at(from), frame, false)
			<-x.reached
			c.run(f, a, b, k)
			j.closed[0], j.closed[1] = f.nodes[0].over, f.nodes[1].over
			stopped := f.nodes[1].stopped
			if !stopped {
				fill(from, 2)
			}
			x.goOn <- struct{}{}
			nothing := func() {
				time.Sleep(tick)
				f.mu.Lock()
				defer f.mu.Unlock()
				require.Equal(t, make([]byte, frame), memory)
			}
			if stopped {
				nothing()
				f.Continue(1)
				<-x.reached // it is asked again
				x.goOn <- struct{}{}
			}
			if c.lands {
				testkit.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return isFilled(memory, 1) })
			} else {
				nothing()
			}
			if c.name == "cut" {
				j.must("both notice", func() bool { return a.Err() != nil && b.Err() != nil })
			}
			require.Empty(t, to.all())
		})
	}
}

// Bytes land that the server has been asked about, also with delays, which may drop what is withdrawn.
func TestWithdrawAfterReach(t *testing.T) {
	for range 20 {
		_, f, to, x, a, _ := stuckJob(t, Options{Delays: true})
		k, from, memory := transport.Target{Key: 1}, filled(8, 1), make([]byte, 8)
		x.allow(k, 0, memory)
		a.Write(k, at(from), 8, false)
		<-x.reached
		a.Withdraw(k)
		fill(from, 2)
		x.goOn <- struct{}{}
		testkit.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return isFilled(memory, 1) })
		require.Empty(t, to.all())
	}
}

// Refuse waits for what has been reached, and for nothing else.
func TestRefuseWaits(t *testing.T) {
	j, f, to, x, a, b := stuckJob(t, Options{})
	k := transport.Target{Key: 1}
	memory := make([]byte, 8)
	x.allow(k, 0, memory)
	a.Refuse(k) // of its own peer, which writes nothing
	a.Write(k, at(filled(8, 1)), 8, false)
	<-x.reached
	x.allow(k, 0, nil)
	refused := make(chan struct{})
	go func() { b.Refuse(k); close(refused) }()
	select {
	case <-refused:
		t.Error("it did not wait")
	case <-time.After(tick / 2):
	}
	x.goOn <- struct{}{}
	<-refused
	require.True(t, isFilled(memory, 1))
	clear(memory)
	a.Write(k, at(filled(8, 2)), 8, false)
	<-x.reached
	x.goOn <- struct{}{}
	j.sent(a)
	f.mu.Lock()
	require.Equal(t, make([]byte, 8), memory)
	f.mu.Unlock()
	require.Empty(t, to.all())
}

// A node that is being closed still serves.
func TestCloseServes(t *testing.T) {
	for _, o := range Kinds {
		t.Run(o.String(), func(t *testing.T) {
			j, _, to := fabricJob(t, o)
			j.serve(comm, 0, func(rank int, x *server) {
				x.call = func(b []byte) {
					if b[0]--; b[0] > 0 {
						x.e.Call(b)
					}
				}
			})
			a, b := j.endpoints(comm, 0, 1)
			a.Call([]byte{20})
			b.Call([]byte{20})
			j.close(testkit.Limit)
			require.Empty(t, to.all())
		})
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
