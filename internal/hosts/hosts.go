// Package hosts does what the hosts of a communicator do together: it makes one verdict of what their teams have agreed
// on, and moves data between the teams' leaders.
//
// A team's leader is its first rank. Only leaders have wires. The other ranks of a team wait for what their leader
// writes in its area.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// Config is what a stage gets from its communicator.
type Config struct {
	ID    uint64     // of the communicator
	Team  *team.Team // of this rank's host
	Hosts [][]int    // the communicator's ranks on each host, in order; hosts in the order of their first ranks
	Mine  int        // this rank's host
	Names []string   // of the hosts

	Network *Network           // of the domain
	World   func(rank int) int // a rank's number in the job
	// Break breaks the communicator if why returns an error. It may be called from any goroutine.
	Break func(why func() *fault.Error)
	// RunPart runs a collective of this team alone, as part of the communicator's operation.
	RunPart func(ctx context.Context, w *team.Work) error
}

// Stage is one rank's side of the hosts of a communicator.
type Stage struct {
	Config
	n     int    // hosts
	me    int    // this host
	ranks int    // of the communicator
	most  int    // most ranks on one host
	seq   uint64 // of the running operation, the same on all ranks
	bad   uint64 // operations on which the hosts disagreed: numbers the exchanges of reports
	leads bool   // this rank is its team's leader; other ranks use none of the fields below

	link team.Link // see Link

	peers  []*peer // by host; nil: no link to it
	rounds int     // of an exchange

	srcs   []unsafe.Pointer      // see Scratch
	dataOf func(host int) []byte // of blocks
	blocks []block               // of the running exchange, by host
	buf    []byte                // this host's block, followed by received ones in order of arrival
	slots  [][]byte              // where blocks land

	pipe pipe

	ending  sync.Mutex // held by Close, and by users of links outside of the communicator's turn
	closed  bool
	severed bool // the links are closed
}

// peer is the leader of another host that this leader has a link to.
type peer struct {
	host, rank int // rank of the communicator
	world      int
	link       transport.Endpoint
	// left is 0 until the peer closes the communicator, then 1 + the last operation that it has completed.
	left atomic.Uint64
	// misses is 1 + the rank that the peer says it waits for (itself if for nobody); 0: no answer.
	misses atomic.Int32
	asks   atomic.Uint32 // counts long waits for it, to recognize late answers about earlier ones
}

// Begin lets the stage receive messages from the network, such as that the communicator broke.
func (s *Stage) Begin() {
	if s.leads {
		s.Network.add(s)
	}
}

// Open makes this rank's side; Begin completes it. Collective over the leaders: each connects to those that it
// exchanges with.
func Open(ctx context.Context, c Config) (*Stage, error) {
	s := &Stage{Config: c, n: len(c.Hosts), me: c.Mine, leads: c.Team.Rank() == 0, rounds: bits.Len(uint(len(c.Hosts) - 1))}
	for _, ranks := range c.Hosts {
		s.ranks += len(ranks)
		s.most = max(s.most, len(ranks))
	}
	name, lanes := c.Network.node.Transport()
	s.link = team.Link{Name: name, Lanes: lanes, Why: "copied by the kernel", Leader: s.leads,
		Single: c.Team.Size() == 1}
	if s.leads {
		s.peers = make([]*peer, s.n)
		for _, h := range s.partners() {
			rank := s.Hosts[h][0]
			s.peers[h] = &peer{host: h, rank: rank, world: s.World(rank)}
		}
		s.lay()
	}
	s.Network.node.Begin()
	if err := s.Network.node.Join(transport.Comm{ID: s.ID, Places: s.places(), Made: s.made}); err != nil {
		return nil, err
	}
	if !s.leads {
		return s, nil
	}
	if err := s.connect(ctx); err != nil {
		s.Close()
		return nil, err
	}
	s.link.Name = s.wires()
	return s, nil
}

// partners returns the hosts that this one exchanges with.
func (s *Stage) partners() (hosts []int) {
	for k := range s.rounds {
		for _, h := range [2]int{s.me + 1<<k, s.me - 1<<k + s.n} {
			if h %= s.n; h != s.me && !slices.Contains(hosts, h) {
				hosts = append(hosts, h)
			}
		}
	}
	return hosts
}

// connect makes the pairs with the leaders that this one exchanges with.
func (s *Stage) connect(ctx context.Context) error {
	errs := make([]error, s.n)
	var wg sync.WaitGroup
	for h, p := range s.peers {
		if p == nil {
			continue
		}
		p.link = s.Network.node.Endpoint(s.ID, p.world, true)
		wg.Go(func() {
			if err := p.link.Ready(ctx); err != nil {
				errs[h] = reason.About(p.rank, fmt.Errorf("from host %s to host %s: %w", s.Names[s.me], s.Names[h], err))
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if e, ok := errors.AsType[*fault.Error](err); ok {
			return e // why the caller has ended ctx; the other errors follow from that
		}
	}
	return errors.Join(errs...)
}

// wires names the transports of the links, and this host's interfaces that they use: "tcp eth0".
func (s *Stage) wires() string {
	var names []string
	for _, p := range s.peers {
		if p != nil && !slices.Contains(names, p.link.Name()) {
			names = append(names, p.link.Name())
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Places of an endpoint. First come those of exchanges: two for each round, for even and odd exchanges; then a second
// set of these for reports. Then come those for pipe items from the host before.
func (s *Stage) slot(set, round int, seq uint64) int { return (set*s.rounds+round)*2 + int(seq&1) }
func (s *Stage) pipePlace() int                      { return 2 * sets * s.rounds }
func (s *Stage) places() int                         { return s.pipePlace() + pipeWindow(s.n) }

// The sets of slots: for the exchange of an operation, and for the exchange of reports if something is wrong with it.
const (
	forBlocks = iota
	forReports
	sets
)

// lay makes the memory for exchanges and the pipe. There is extra room since hosts that are in different operations may
// together have more data than any one operation has.
func (s *Stage) lay() {
	room := [sets]int{forBlocks: s.n*blockBytes(0) + MaxBlocks*3/2 + s.n*16, forReports: s.n * blockBytes(reportBytes)}
	s.blocks, s.buf = make([]block, s.n), make([]byte, max(room[forBlocks], room[forReports]))
	s.slots = make([][]byte, 2*sets*s.rounds)
	for i := range s.slots {
		s.slots[i] = make([]byte, room[i/(2*s.rounds)])
	}
	s.dataOf = func(host int) []byte { return s.blocks[host].data }
	s.srcs = make([]unsafe.Pointer, s.n)
	s.pipe.lay(s)
}

// made posts the slots of the first two operations to a peer that sends to them.
func (s *Stage) made(e transport.Endpoint) {
	for k := range s.rounds {
		if p := s.sender(k); p != nil && p.world == e.Peer() {
			for seq := uint64(1); seq <= 2; seq++ {
				for set := range sets {
					s.post(e, set, k, seq)
				}
			}
		}
	}
}

// sender is the leader that sends round k's blocks; nil on other ranks than leaders.
func (s *Stage) sender(k int) *peer {
	if !s.leads {
		return nil
	}
	return s.peers[(s.me+1<<k)%s.n]
}

// post lets e, which sends round k's blocks, write those of operation seq.
func (s *Stage) post(e transport.Endpoint, set, k int, seq uint64) {
	i := s.slot(set, k, seq)
	e.Post(i, seq, unsafe.Pointer(&s.slots[i][0]), len(s.slots[i]))
}

// Size is the number of hosts. Implements team.Hosts.
func (s *Stage) Size() int { return s.n }

// Host is this rank's host. Implements team.Hosts.
func (s *Stage) Host() int { return s.me }

// Ranks is the number of the communicator's ranks. Implements team.Hosts.
func (s *Stage) Ranks() int { return s.ranks }

// Most is the number of ranks on the host that has most of them. Implements team.Hosts.
func (s *Stage) Most() int { return s.most }

// Of is the host of a rank of the communicator. Implements team.Hosts.
func (s *Stage) Of(rank int) int {
	return slices.IndexFunc(s.Hosts, func(ranks []int) bool { return slices.Contains(ranks, rank) })
}

// On is how many ranks are on a host. Implements team.Hosts.
func (s *Stage) On(host int) int { return len(s.Hosts[host]) }

// Link implements team.Hosts.
func (s *Stage) Link() *team.Link { return &s.link }

// Scratch implements team.Hosts.
func (s *Stage) Scratch() []unsafe.Pointer { return s.srcs }

// Sub implements team.Hosts.
func (s *Stage) Sub(ctx context.Context, w *team.Work) error { return s.RunPart(ctx, w) }

// Puts is how many messages this rank has sent to other hosts. In operations without errors the number follows from the
// operation (see the test).
func (s *Stage) Puts() (n uint64) {
	for _, p := range s.peers {
		if p != nil && p.link != nil {
			n += p.link.Queued()
		}
	}
	return n
}
