// Package transporttest is for tests of transports, and of what uses one. A Fabric is a network within a process: it
// does what the interface allows and a real network rarely does, dies on command, and reports what breaks the rules.
// Suite is what every implementation of transport.Node has to pass.
package transporttest

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// Options says what kind of network a Fabric is.
type Options struct {
	// Delays lets each message take a random time. Puts to different places, grants and messages overtake each other.
	// Large puts and writes land in pieces. Some are copied at once, so that they count as sent before they land. Writes and
	// calls that others follow may wait for these.
	Delays bool
	// TwoSided is a network that only sends and receives. A grant is a posted receive. At most 32 requests of an
	// endpoint are outstanding; the rest waits. Nothing moves unless both nodes make progress: their goroutines only
	// call Tick, and notice that a peer has ended. With Delays a send may have to be tried again.
	TwoSided bool
}

// Kinds are all kinds of networks.
var Kinds = []Options{{}, {Delays: true}, {TwoSided: true}, {TwoSided: true, Delays: true}}

// String names the kind.
func (o Options) String() string {
	switch {
	case o.TwoSided && o.Delays:
		return "two-sided, delays"
	case o.TwoSided:
		return "two-sided"
	case o.Delays:
		return "delays"
	}
	return "plain"
}

// most is how many sends of an endpoint are outstanding, and how many receives. If all requests could be receives, no
// send might be left for what the peer waits for.
const most = 16

// frame is how much of a put lands before what is shorter does, batch about how much lands in one call.
const (
	frame = 256 << 10
	batch = 1 << 20
)

// mostTold is how many messages may be on their way between two nodes before more that may be lost are dropped.
const mostTold = 80

const (
	tick     = 20 * time.Millisecond // how often Config.Tick is called
	patience = 50 * time.Millisecond // how long the higher rank waits for an expected peer's side
)

// Fabric is a network within this process.
type Fabric struct {
	t testing.TB
	o Options

	// mu guards everything of the fabric and its nodes and endpoints but what is atomic. All memory is read and written
	// under it. Callbacks are called without it.
	mu     sync.Mutex
	random *rand.Rand
	nodes  map[int]*node
}

// New makes a network without nodes. It logs its seed. What breaks the rules fails t. When t ends, nodes that are not
// closed yet are ended.
func New(t testing.TB, o Options) *Fabric {
	t.Helper()
	f := &Fabric{t: t, o: o, random: testkit.Random(t), nodes: map[int]*node{}}
	t.Cleanup(f.end)
	return f
}

// Node makes the node of c.Rank.
func (f *Fabric) Node(c transport.Config) (transport.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes[c.Rank] != nil {
		return nil, fmt.Errorf("rank %d has a node: %w", c.Rank, fault.ErrInUse)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	n := &node{f: f, config: c, bell: make(chan struct{}), served: make(chan struct{}), sides: map[int]*side{},
		joined: map[uint64]transport.Comm{}, left: map[uint64]bool{}}
	f.nodes[c.Rank] = n
	go n.serve()
	return n, nil
}

// Kill ends a rank's node as if its process ended. What it has sent before lands or gets lost. Once Kill returns, nothing
// reads or writes the rank's memory. Its own endpoints say Left, so that its goroutines can end, and its calls do
// nothing.
func (f *Fabric) Kill(rank int) {
	f.mu.Lock()
	n := f.nodes[rank]
	if n.over {
		f.mu.Unlock()
		return
	}
	for _, s := range n.sides {
		if s.down != nil {
			continue
		}
		q := s.other.in
		for i, m := range q {
			if m.kind == bye { // it cannot be taken back
				break
			}
			if f.random.IntN(len(q)+1) == 0 {
				q = q[:i]
				break
			}
			m.copy()
		}
		s.other.in = q
		if m := s.other.taking; m != nil {
			m.copy()
		}
		s.send(&message{kind: died})
	}
	n.finish("this rank was killed")
	f.mu.Unlock()
}

// Cut ends all traffic between two ranks. What is under way is lost. Both notice it a little later, as they do that a
// host no longer answers.
func (f *Fabric) Cut(a, b int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.nodes[a].side(b)
	for _, s := range []*side{s, s.other} {
		s.cut, s.in = true, nil
		s.cutAt = time.Now().Add(time.Duration(f.random.Int64N(int64(2 * tick))))
		s.n.ring()
	}
}

// Stop makes a rank's node do nothing, like a process that is stopped. Its calls return, but have no effect outside until
// Continue. Once Stop returns, nothing writes to the rank's memory.
func (f *Fabric) Stop(rank int) { f.stop(rank, true) }

// Continue ends what Stop began.
func (f *Fabric) Continue(rank int) { f.stop(rank, false) }

func (f *Fabric) stop(rank int, stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[rank]
	n.stopped = stopped
	n.ring()
}

// Pairs is how many endpoints a rank's node has, and messages for which it waits.
func (f *Fabric) Pairs(rank int) (pairs int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.nodes[rank].sides {
		pairs += len(s.eps) + len(s.in)
	}
	return pairs
}

// end ends all nodes that are not closed.
func (f *Fabric) end() {
	f.mu.Lock()
	for _, n := range f.nodes {
		if !n.over {
			n.finish("the test has ended")
		}
	}
	f.mu.Unlock()
	for _, n := range f.nodes {
		<-n.served
	}
}

// violated reports that a user of the fabric broke the rules. The caller holds mu.
func (f *Fabric) violated(format string, args ...any) { f.t.Errorf("transport: "+format, args...) }

// delay is how long a message takes.
func (f *Fabric) delay() time.Duration {
	if !f.o.Delays {
		return 0
	}
	if f.random.IntN(20) == 0 {
		return time.Duration(f.random.Int64N(int64(2 * time.Millisecond)))
	}
	return time.Duration(f.random.Int64N(int64(200 * time.Microsecond)))
}

// chance is true once in n times, if the fabric has delays.
func (f *Fabric) chance(n int) bool { return f.o.Delays && f.random.IntN(n) == 0 }

// side is a node's side of the wire to a peer.
type side struct {
	n     *node
	peer  int
	other *side
	eps   map[uint64]*endpoint // by communicator
	in    []*message           // on their way to this node, as they were sent

	taking *message        // is no longer in in, and perhaps not received yet: a callback runs
	known  bool            // Config.RowOf has returned the peer's row
	up     bool            // a message has come from one side to the other
	down   *transport.Down // nothing moves any more
	cut    bool
	cutAt  time.Time // when this side notices it
	count  transport.Traffic
	byes   struct {
		sent, taken bool // this node's
	}
}

// send sends a message to the other side.
func (s *side) send(m *message) {
	if s.cut || s.other.down != nil {
		return // it gets lost
	}
	m.at = time.Now().Add(s.n.f.delay())
	s.other.in = append(s.other.in, m)
	s.other.n.ring()
}

// breaks ends the wire at both sides, since the rules were broken.
func (s *side) breaks(text string) {
	for _, s := range []*side{s, s.other} {
		if s.down == nil {
			s.in, s.cut, s.up = []*message{{kind: broken, text: text}}, true, true
			s.n.ring()
		}
	}
}

type kind uint8

const (
	open   kind = iota // the sender has made its side of a pair
	refuse             // and the peer makes none
	put                // with its acknowledgements and those of revocations in order, for each place
	ack                //
	grant              // in order with revocations, for each place
	revoke             //
	write              // with calls in order
	call               //
	tell               // in order
	bye                // after all else
	died               // after all else
	broken             // instead of all else
)

// message is what nodes send each other.
type message struct {
	kind  kind
	comm  uint64
	place int
	seq   uint64
	to    transport.Target // of a write
	n     int              // bytes of a put, write, call or grant, or how many places the sender of open has
	data  []byte           // of a put or write: the sender's memory, or a copy; of a call: a copy
	own   bool             // data is a copy
	rest  [2]int           // what part of data has not landed
	told  transport.Message
	text  string
	from  *endpoint // nil if it is the node's own
	at    time.Time // when it arrives
	done  bool      // its sender need not care any more
	asked bool      // the server has said where a part of a write goes, which lands next
}

// counts reports whether Queued and Sent count the message.
func (m *message) counts() bool { return m.kind == put || m.kind == write || m.kind == call }

// copy makes the message independent of its sender's memory.
func (m *message) copy() {
	if !m.own {
		m.data, m.own = bytes.Clone(m.data), true
	}
}

// channel is what keeps its order.
type channel struct {
	kind  kind
	comm  uint64
	place int
}

func (m *message) channel() channel {
	switch m.kind {
	case open, refuse:
		return channel{open, m.comm, 0}
	case put, ack:
		return channel{put, m.comm, m.place}
	case grant, revoke:
		return channel{grant, m.comm, m.place}
	case write, call:
		return channel{write, m.comm, 0}
	}
	return channel{kind: m.kind}
}

// next takes the first message off the queue that has arrived and that hold does not hold back, or returns nil. Puts and
// writes of more than a frame come last.
func (s *side) next(now time.Time, hold func(m *message) bool) *message {
	blocked := map[channel]bool{}
	others := false // messages other than opens are before this
	long := -1
	for i, m := range s.in {
		c := m.channel()
		after := blocked[c] || m.kind < tell && blocked[channel{kind: open, comm: m.comm}]
		if m.kind == bye || m.kind == died {
			after = others
		}
		if after || m.at.After(now) || hold(m) {
			blocked[c] = true
			others = others || m.kind != open || m.at.After(now)
			continue
		}
		if m.rest[1]-m.rest[0] > frame {
			blocked[c], others = true, true
			if long < 0 {
				long = i
			}
			continue
		}
		return s.pick(i)
	}
	if long >= 0 {
		return s.pick(long)
	}
	return nil
}

// pick takes a message off the queue.
func (s *side) pick(i int) *message {
	m := s.in[i]
	s.in = append(s.in[:i:i], s.in[i+1:]...)
	return m
}
