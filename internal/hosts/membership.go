package hosts

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/membership"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// MembershipConfig is what a Membership gets from its communicator.
type MembershipConfig struct {
	ID      uint64   // the same on all ranks, and of nothing else
	Hosts   [][]int  // the communicator's ranks on each host
	Mine    int      // this rank's host
	Size    int      // of the communicator
	Network *Network // of the domain
	World   func(rank int) int
	Name    func(rank int) string
}

// Membership is one rank's side of what all ranks of different hosts tell each other while they agree on who is left of a broken
// communicator: see package membership. Each is connected to each of another host. Its methods are safe for concurrent use.
type Membership struct {
	MembershipConfig
	cancel  context.CancelFunc
	waiting sync.WaitGroup // counts the goroutines that wait for pairs

	mu      sync.Mutex
	peers   []*member // of other hosts
	network *membership.Network
	mine    []byte // what this rank has told last
}

// member is a rank of another host.
type member struct {
	rank, host, world int

	// What follows is guarded by the lock.

	link   transport.Endpoint
	up     bool // it hears what is told
	closed bool // it has closed the communicator
	told   bool
	state  membership.State
	note   []byte
}

// What ranks tell each other while they agree on who is left, beside kindBye, which has no text here.
const (
	kindState = 1 + kindMiss + iota // Text is a membership.State, and a note
	kindCut                         // Text is two hosts that do not reach each other
)

// OpenMembership makes a rank's side. It begins to connect to the ranks of all other hosts, and waits for none.
func OpenMembership(c MembershipConfig) (*Membership, error) {
	m := &Membership{MembershipConfig: c, network: membership.NewNetwork(c.Size, c.Hosts)}
	for h, ranks := range c.Hosts {
		for _, r := range ranks {
			if h != c.Mine {
				m.peers = append(m.peers, &member{rank: r, host: h, world: c.World(r)})
			}
		}
	}
	node := c.Network.node
	node.Begin()
	c.Network.add(c.ID, m)
	if err := node.Join(transport.Comm{ID: c.ID}); err != nil {
		c.Network.remove(c.ID)
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	for _, p := range m.peers {
		e := node.Endpoint(c.ID, p.world, true)
		m.mu.Lock()
		p.link = e
		m.mu.Unlock()
		m.waiting.Go(func() {
			if e.Ready(ctx) == nil {
				m.ready(p)
			}
		})
	}
	return m, nil
}

// ready tells a rank that hears from now on what it has missed.
func (m *Membership) ready(p *member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.up = true
	for _, k := range m.network.Cuts() {
		p.link.Tell(m.cut(k))
	}
	if m.mine != nil {
		p.link.Tell(m.message(kindState, m.mine))
	}
}

func (m *Membership) message(kind uint8, text []byte) transport.Message {
	return transport.Message{Comm: m.ID, Kind: kind, Text: string(text)}
}

func (m *Membership) cut(k [2]int) transport.Message {
	return m.message(kindCut, binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(k[0])), uint32(k[1])))
}

// toAll tells all others that hear. One that has told something does, also if this rank's side has not seen yet that the pair is
// made: otherwise it would miss the last that this rank tells before it closes the communicator. The caller holds the lock.
func (m *Membership) toAll(x transport.Message) {
	for _, p := range m.peers {
		if p.up || p.told {
			p.link.Tell(x)
		}
	}
}

// NoteBytes is how long a note may be.
func (m *Membership) NoteBytes() int { return transport.MaxText - membership.Bytes(m.Size) }

// Tell tells all others this rank's state, with a note.
func (m *Membership) Tell(s membership.State, note []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mine = append(s.Append(nil), note...)
	m.toAll(m.message(kindState, m.mine))
}

// Look moves data, takes in what has become of the connections, and calls f for each rank of another host: with what it has told
// last, if it has told anything, and whether it has ended, or closed the communicator. Its error says why a rank cannot be
// reached for a reason of this one.
func (m *Membership) Look(f func(rank int, told bool, s membership.State, dead, closed bool)) error {
	m.Network.node.Progress()
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, p := range m.peers {
		dead, closed, cut, err := p.lost()
		if cut {
			m.learn([2]int{min(m.Mine, p.host), max(m.Mine, p.host)})
		}
		if err != nil {
			errs = append(errs, reason.About(p.rank, fmt.Errorf("reach rank %d of host %s: %w", p.rank, m.Name(p.rank), err)))
		}
		f(p.rank, p.told, p.state, dead, closed || p.closed)
	}
	return errors.Join(errs...)
}

// lost says what the end of the pair means: that the rank has ended or closed the communicator, that the two hosts do not reach
// each other, or, as an error, that this rank lacks something.
func (p *member) lost() (dead, closed, cut bool, err error) {
	switch d := p.link.Err(); {
	case d == nil:
	case d.Kind == transport.Left, d.Kind == transport.Refused:
		closed = true
	case d.Kind == transport.Died, errors.Is(d, syscall.ECONNREFUSED):
		dead = true
	case errors.Is(d, fault.ErrLimit):
		err = d
	default:
		cut = true
	}
	return dead, closed, cut, err
}

// learn notes that two hosts do not reach each other, and passes it on. The caller holds the lock.
func (m *Membership) learn(k [2]int) {
	if m.network.Cut(k[0], k[1]) {
		m.toAll(m.cut(k))
	}
}

// Note is the note of what a rank has told last.
func (m *Membership) Note(rank int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.IndexFunc(m.peers, func(p *member) bool { return p.rank == rank }); i >= 0 {
		return m.peers[i].note
	}
	return nil
}

// Connecting reports whether it is open still whether this rank reaches some other one.
func (m *Membership) Connecting() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.peers, func(p *member) bool { return p.link.Name() == "" && p.link.Err() == nil })
}

// Cuts are the pairs of hosts that do not reach each other, as far as this rank knows.
func (m *Membership) Cuts() [][2]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.network.Cuts()
}

// Apart are the ranks that must go for the others to reach each other: see membership.Network.
func (m *Membership) Apart(gone membership.Set) membership.Set {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.network.Apart(gone, m.Mine)
}

// heard implements use.
func (m *Membership) heard(from int, x transport.Message) *fault.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.peers, func(p *member) bool { return p.world == from })
	if i < 0 {
		return nil
	}
	switch p := m.peers[i]; x.Kind {
	case kindState:
		if s, note, err := membership.Parse([]byte(x.Text), m.Size); err == nil {
			p.told, p.state, p.note = true, s, note
		}
	case kindCut:
		if b := []byte(x.Text); len(b) == 8 {
			m.learn([2]int{int(binary.LittleEndian.Uint32(b)), int(binary.LittleEndian.Uint32(b[4:]))})
		}
	case kindBye:
		p.closed = true
	}
	return nil
}

// down implements use.
func (m *Membership) down(*transport.Down) *fault.Error { return nil }

func (m *Membership) tick() {}

func (m *Membership) breakBy(why func() *fault.Error) { why() }

// Close tells the others that this rank has closed the communicator.
func (m *Membership) Close() {
	if m == nil {
		return
	}
	m.cancel()
	m.waiting.Wait()
	m.Network.remove(m.ID)
	m.Network.node.Leave(m.ID)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers { // those of pairs that were being made, too; there are none now that are made later
		p.link.Tell(m.message(kindBye, nil))
	}
}

// LeaveMembership is Close for a communicator that has no Membership: none of its ID can be made any more, and ranks of other
// hosts are told so.
func (n *Network) LeaveMembership(id uint64) { n.node.Leave(id) }
