package hosts

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// PairsConfig is what pairs get from their communicator.
type PairsConfig struct {
	ID     uint64 // the same on all ranks, and of nothing else
	Places int    // of each pair
	// Made is called for each pair, once, before the peer can put anything, by any goroutine. It may Post, and returns
	// what Pair.Mine is to be: a transport.Server, if the peer may write and call. It must not wait.
	Made func(x *Pair) any
	// Last returns what a peer is told when this rank closes: see Pair.Last. Only Close calls it.
	Last func(p *Pair) Last

	Team    *team.Team // of this rank's host
	Network *Network   // of the domain
	World   func(rank int) int
	Rank    func(world int) int // World's inverse; -1: none
	Name    func(rank int) string
	Break   func(why func() *fault.Error) // as Config's
}

// Pairs is one rank's pairs with ranks of other hosts, for one purpose of a communicator. A pair is made when one of its
// ranks first wants it. Its methods are safe for concurrent use.
type Pairs struct {
	PairsConfig

	mu     sync.Mutex                    // held by goroutines that add a pair
	all    atomic.Pointer[map[int]*Pair] // by the peer's rank
	closed atomic.Bool
}

// Pair is one rank's side of a pair.
type Pair struct {
	transport.Endpoint
	Rank int // of the peer, in the communicator
	Mine any // what PairsConfig.Made has returned

	last   atomic.Pointer[Last]
	link   atomic.Pointer[team.Link]
	asking asking
	mute   mute
}

// Last says how far a rank got before it closed its communicator.
type Last struct {
	Sent, Taken uint64 // messages to the peer, and of the peer
}

// unmade is the link of a pair that has no wire yet.
var unmade = team.Link{Hosts: 2, Why: "kept until the two are connected", Leader: true, Single: true}

// Link says how data goes to the peer.
func (x *Pair) Link() *team.Link {
	l := x.link.Load()
	if l != nil {
		return l
	}
	name := x.Name()
	if name == "" {
		return &unmade
	}
	l = &team.Link{Name: name, Connections: x.Connections(), Hosts: 2, Leader: true, Single: true}
	if l.Why, l.RDMA = how(name); l.RDMA {
		l.Why = ""
	}
	x.link.Store(l)
	return l
}

// RDMA reports whether data goes to the peer by RDMA.
func (x *Pair) RDMA() bool { return x.Link().RDMA }

// OpenPairs makes a rank's side. Collective over the communicator's ranks, but nobody waits for another.
func OpenPairs(c PairsConfig) (*Pairs, error) {
	p := &Pairs{PairsConfig: c}
	p.all.Store(&map[int]*Pair{})
	c.Network.add(c.ID, p)
	c.Network.node.Begin()
	if err := c.Network.node.Join(transport.Comm{ID: c.ID, Places: c.Places, Made: p.made}); err != nil {
		c.Network.remove(c.ID)
		return nil, err
	}
	return p, nil
}

// made adds the pair of an endpoint.
func (p *Pairs) made(e transport.Endpoint) transport.Server {
	rank := p.Rank(e.Peer())
	if rank < 0 { // it is no rank of this communicator: it can put nothing
		return nil
	}
	s, _ := p.add(&Pair{Endpoint: e, Rank: rank}).Mine.(transport.Server)
	return s
}

func (p *Pairs) add(x *Pair) *Pair {
	x.Mine = p.Made(x)
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := (*p.all.Load())[x.Rank]; old != nil {
		return old
	}
	all := maps.Clone(*p.all.Load())
	all[x.Rank] = x
	p.all.Store(&all)
	return x
}

// With returns the pair with a rank of another host. The first call makes it, without waiting. expected says that the
// peer is about to, too.
func (p *Pairs) With(rank int, expected bool) *Pair {
	if x := (*p.all.Load())[rank]; x != nil {
		return x
	}
	e := p.Network.node.Endpoint(p.ID, p.World(rank), expected)
	if x := (*p.all.Load())[rank]; x != nil {
		return x
	}
	return p.add(&Pair{Endpoint: e, Rank: rank}) // the pairs are closed, and Made was not called
}

// All returns all pairs, in the order of their ranks.
func (p *Pairs) All() []*Pair {
	return slices.SortedFunc(maps.Values(*p.all.Load()), func(a, b *Pair) int { return cmp.Compare(a.Rank, b.Rank) })
}

// Wait is the state of a wait for a peer. The zero Wait begins one.
type Wait struct {
	since time.Time
	asked question
}

// Idle is one step of a wait: it moves all data that can move, and after some steps it gives the processor away, until
// data can move, for at most a millisecond. x is nil if there is no pair yet. others says that something else than the
// network may end the wait.
func (p *Pairs) Idle(w *Wait, x *Pair, others bool) {
	if w.since.IsZero() {
		w.since = time.Now()
	}
	p.Network.node.Progress()
	waited := time.Since(w.since)
	if x != nil {
		x.asking.ask(&w.asked, waited, p.ID, x)
	}
	idle := blockAfter
	if p.Team.Crowded {
		idle = blockAfterShort
	}
	switch {
	case waited < idle:
	case others:
		p.Network.node.Wait(shortestBlock)
	default:
		p.Network.node.Wait(longestBlock)
	}
}

// Lost returns why the peer will do nothing more, or nil. What it did before has landed then, but for what it has put
// before it closed its communicator: see Last.
func (p *Pairs) Lost(x *Pair) error {
	down, here := x.Err(), p.Name(p.Team.Name(p.Team.Rank()))
	switch {
	case down == nil:
		return nil
	case x.last.Load() == nil && x.mute.just(down):
		return nil
	case down.Kind != transport.Unreached:
		return lostText(x.Rank, here, p.Name(x.Rank), down)
	case errors.Is(down, syscall.ECONNREFUSED): // the pair was first wanted after that
		return lostText(x.Rank, here, p.Name(x.Rank), &transport.Down{Kind: transport.Died, Err: down.Err})
	case errors.Is(down, fault.ErrPeerLost):
		return lostText(x.Rank, here, p.Name(x.Rank), &transport.Down{Kind: transport.Cut, Err: down.Err})
	}
	return reason.About(x.Rank, fmt.Errorf("from host %s to rank %d of host %s: %w", here, x.Rank, p.Name(x.Rank), down.Err))
}

// Closed is the error about a rank that has closed its communicator.
func Closed(rank int) error {
	return fmt.Errorf("rank %d closed its communicator: %w", rank, fault.ErrPeerLost)
}

// Last returns how far the peer got before it closed its communicator, or nil if it has not.
func (x *Pair) Last() *Last { return x.last.Load() }

// heard implements use.
func (p *Pairs) heard(from int, m transport.Message) *fault.Error {
	x := (*p.all.Load())[p.Rank(from)]
	if x == nil {
		return nil
	}
	switch m.Kind {
	case kindBye:
		var l Last
		fmt.Sscan(m.Text, &l.Sent, &l.Taken)
		x.last.Store(&l)
	case kindAsk:
		answer(p.Team, m, x)
	case kindMiss:
		x.asking.answers(p.Team, x.Rank, m)
	case kindLost:
		return brokeThere(p.Team, x.Rank, m)
	}
	return nil
}

// down implements use.
func (p *Pairs) down(d *transport.Down) *fault.Error {
	for _, x := range *p.all.Load() {
		if x.Err() == d && x.last.Load() == nil {
			w := team.WaitState{Op: NoCall, Step: "wait"}
			return p.Team.ErrorOf(&w, x.Rank, p.Lost(x))
		}
	}
	return nil
}

func (p *Pairs) tick() {}

func (p *Pairs) breakBy(why func() *fault.Error) { p.Break(why) }

// Close ends all pairs. Unless the communicator is broken, it first waits until the puts are on their way, as long as
// Network.Close does. Its error says what peers did not take in time.
func (p *Pairs) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	var err error
	if p.Team.Broken() == nil {
		err = p.flush()
	}
	p.Network.remove(p.ID)
	ended := p.All()
	for _, x := range ended {
		p.end(x)
	}
	p.Network.node.Leave(p.ID)
	for _, x := range p.All() {
		if !slices.Contains(ended, x) { // the peer has made it meanwhile
			p.end(x)
		}
	}
	return err
}

// end ends a pair, and tells the peer why.
func (p *Pairs) end(x *Pair) {
	if e := p.Team.Broken(); e != nil {
		x.Tell(broke(p.Team, p.ID, e)) // before it finds that the pair has ended
	} else {
		l := p.Last(x)
		x.Tell(transport.Message{Comm: p.ID, Kind: kindBye, Text: fmt.Sprint(l.Sent, l.Taken)})
	}
	x.Close()
}

// flush waits until the kernel has taken all puts.
func (p *Pairs) flush() error {
	end := clock.In(closeTimeout)
	for _, x := range p.All() {
		for x.Sent() < x.Queued() && x.Err() == nil {
			if end.Passed() {
				return reason.About(x.Rank, fmt.Errorf("rank %d of host %s has not taken the last %d puts within %v: %w", x.Rank,
					p.Name(x.Rank), x.Queued()-x.Sent(), closeTimeout, fault.ErrTimeout))
			}
			p.Network.node.Wait(longestBlock)
		}
	}
	return nil
}
