// Package hosts does what the hosts of a communicator do together: it makes one verdict of what their teams have agreed
// on, and moves data between hosts.
//
// A team's leader is its first rank. Only leaders agree: the other ranks of a team wait for what their leader writes in
// its area. Data go by lanes. A lane has a rank on each host, its owner, and moves a part of an operation's data between
// these. Leaders own lane 0.
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
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// Config is what a stage gets from its communicator.
type Config struct {
	ID    uint64     // of the communicator
	Team  *team.Team // of this rank's host
	Hosts [][]int    // the communicator's ranks on each host, in order; hosts in the order of their first ranks
	Mine  int        // this rank's host
	Name  func(host int) string

	Network *Network           // of the domain
	World   func(rank int) int // a rank's number in the job
	// Break breaks the communicator if why returns an error. It may be called from any goroutine.
	Break func(why func() *fault.Error)
}

// Stage is one rank's side of the hosts of a communicator.
type Stage struct {
	Config
	layout team.Layout
	n      int    // hosts
	me     int    // this host
	seq    uint64 // of the running operation, or of its second agreement, the same on all ranks
	leads  bool   // this rank is its team's leader
	lane   int    // this rank's, -1: none; such ranks use none of the fields below

	link   team.Link // see Link
	fabric *fabric   // nil: there is none

	peers []*peer                 // owners of this lane, by host; nil: no link to it, yet. For the communicator's turn
	known atomic.Pointer[[]*peer] // those that there are
	mover mover
	// agreeing says that the hosts agree while this rank moves data.
	agreeing bool
	counts   []uint64 // see Counts
	staged   bool     // some host stages, of the running operation
	arrivals arrivals

	// What follows is for leaders.

	agreement *agreement
	out       [][]byte  // messages of the agreement without contributions, by round, and the report
	full      [2][]byte // those with one contribution, and those with several
	slots     [][]byte  // where those of others land: see slot

	pending transfer // what the agreement waits for
	waits   bool     // it waits

	srcs   []unsafe.Pointer      // see Scratch
	dataOf func(host int) []byte // contributions
	folded *team.Work            // the operation whose contributions are folded

	ending  sync.Mutex // held by Close, and by users of links outside of the communicator's turn
	closed  bool
	severed bool // the links are closed
}

// peer is the owner of this rank's lane on another host, which this rank has a link to.
type peer struct {
	host, rank int // rank of the communicator
	world      int
	link       transport.Endpoint
	flow       flow
	// left is 0 until the peer closes the communicator, then 1 + the last operation that it has completed.
	left   atomic.Uint64
	mute   mute
	asking asking
}

// Begin lets the stage receive messages from the network, such as that the communicator broke.
func (s *Stage) Begin() {
	if s.lane >= 0 {
		s.Network.add(s.ID, s)
	}
}

// Open makes this rank's side; Begin completes it. Collective over the leaders: each connects to those that it agrees
// with.
func Open(ctx context.Context, c Config) (*Stage, error) {
	s := &Stage{Config: c, n: len(c.Hosts), me: c.Mine, leads: c.Team.Rank() == 0, lane: -1}
	on := make([]int, s.n)
	for h := range on {
		on[h] = s.On(h)
	}
	s.layout = LayoutOf(on)
	all, some := c.bits()
	s.layout.RDMA, s.layout.Turns = all&rowRDMA != 0, some&rowTurns != 0
	for l := range s.Lanes() {
		if s.Owner(l) == c.Team.Rank() {
			s.lane = l
		}
	}
	name, connections := c.Network.node.Transport()
	s.link = team.Link{Name: name, Connections: connections, Hosts: s.n, Asked: c.Team.Algorithm(), Leader: s.leads, Owner: s.lane >= 0,
		Single: c.Team.Size() == 1}
	s.link.Why, _ = how(name)
	if c.Team.Tuning().Assumed(s.layout.RDMA) {
		s.link.Choice = "default costs"
	}
	if s.lane >= 0 {
		s.peers = make([]*peer, s.n)
		s.mover.local = make([]unsafe.Pointer, c.Team.Size())
	}
	if s.leads {
		s.agreement = newAgreement(s.n, s.me, s.layout.Ranks, s.rooms(), s.layout.Contribution)
		s.meet()
		s.lay()
	}
	s.Network.node.Begin()
	if s.lane >= 0 {
		s.Network.expect(s.ID)
	}
	if err := s.Network.node.Join(transport.Comm{ID: s.ID, Places: places, Made: s.made}); err != nil {
		s.Network.remove(s.ID)
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
	s.link.Why, s.link.RDMA = how(s.link.Name)
	if s.link.RDMA && s.link.Single {
		s.link.Why = "" // each buffer says it for itself
	}
	return s, nil
}

// bits are those that all ranks have in their rows, and those that some have. They are the same on all ranks, whatever wires these
// get.
func (c *Config) bits() (all, some byte) {
	all = 0xff
	for _, ranks := range c.Hosts {
		for _, r := range ranks {
			bits := c.Network.bits(c.World(r))
			all, some = all&bits, some|bits
		}
	}
	return all, some
}

// meet lists the leaders that this one agrees with. Those in the tree of reports are among them.
func (s *Stage) meet() {
	var all []*peer
	for k := range s.agreement.rounds {
		for _, h := range [2]int{s.agreement.from[k], s.agreement.to[k]} {
			if s.peers[h] == nil {
				s.peers[h] = s.newPeer(h)
				all = append(all, s.peers[h])
			}
		}
	}
	s.known.Store(&all)
}

func (s *Stage) newPeer(host int) *peer {
	rank := s.Hosts[host][s.owner(s.lane, host)]
	return &peer{host: host, rank: rank, world: s.World(rank)}
}

// peer returns the owner of this rank's lane on another host. The first call makes the pair, if Open has not, without
// waiting: its errors are those of waiting for that host.
func (s *Stage) peer(host int) *peer {
	if p := s.peers[host]; p != nil {
		return p
	}
	p := s.newPeer(host)
	p.link = s.Network.node.Endpoint(s.ID, p.world, true)
	s.peers[host] = p
	all := append(slices.Clone(s.partners()), p)
	s.known.Store(&all)
	return p
}

// partners are the ranks that this one has links to. For any goroutine.
func (s *Stage) partners() []*peer {
	if all := s.known.Load(); all != nil {
		return *all
	}
	return nil
}

// connect makes the pairs with the leaders that this one exchanges with.
func (s *Stage) connect(ctx context.Context) error {
	errs := make([]error, len(s.partners()))
	var wg sync.WaitGroup
	for i, p := range s.partners() {
		p.link = s.Network.node.Endpoint(s.ID, p.world, true)
		wg.Go(func() {
			if err := p.link.Ready(ctx); err != nil {
				errs[i] = reason.About(p.rank, fmt.Errorf("from host %s to host %s: %w", s.Name(s.me), s.Name(p.host), err))
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

// how says what wires of these names do to the data, and whether all are RDMA's.
func how(names string) (why string, rdma bool) {
	const byTCP, byOFI, byRDMA = "copied by the kernel", "by libfabric if registered, else copied into messages", "by RDMA if registered, else copied into messages"
	has := func(transport string) bool {
		return slices.ContainsFunc(strings.Split(names, ", "), func(name string) bool { return name == transport || strings.HasPrefix(name, transport+" ") })
	}
	var all []string
	ofi, verbs := has("ofi"), has("verbs")
	if has("tcp") || !ofi && !verbs {
		all = append(all, byTCP)
	}
	if ofi {
		all = append(all, byOFI)
	}
	rdma = all == nil
	if verbs {
		all = append(all, byRDMA)
	}
	return strings.Join(all, ", or "), rdma
}

// wires names the transports of the links, and this host's interfaces that they use: "tcp eth0".
func (s *Stage) wires() string {
	var names []string
	for _, p := range s.partners() {
		if !slices.Contains(names, p.link.Name()) {
			names = append(names, p.link.Name())
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// places is how many places an endpoint has: those of agreements come first, then those of items.
const places = agreementPlaces + window

// slot is the memory where a message lands. Each host that reports to this one has a slot for reports, of either place.
func (s *Stage) slot(d transfer) []byte {
	a := s.agreement
	if d.round < a.rounds {
		return s.slots[2*d.round+int(d.seq&1)]
	}
	i := a.children
	if d.host > s.me {
		i = bits.TrailingZeros(uint(d.host - s.me))
	}
	return s.slots[2*a.rounds+i]
}

// post lets a peer send a message.
func (s *Stage) post(e transport.Endpoint, d transfer) {
	b := s.slot(d)
	e.Post(s.agreement.place(d), d.seq, unsafe.Pointer(&b[0]), len(b))
}

// Combine implements team.Hosts.
func (s *Stage) Combine(w *team.Work, out, a, b unsafe.Pointer, as, bs schedule.Span, n int, last bool) {
	if bs.First < as.First { // alike on both sides
		a, b, as, bs = b, a, bs, as
	}
	s.add(w, out, a, b, as, bs, n, last)
}

// Members implements team.Hosts.
func (s *Stage) Members(host int) []int { return s.Hosts[host] }

// Counts implements team.Hosts.
func (s *Stage) Counts() []uint64 {
	if s.counts == nil {
		s.counts = make([]uint64, 2*s.layout.Ranks)
	}
	return s.counts
}

// Staged implements team.Hosts.
func (s *Stage) Staged() bool { return s.staged }

// Layout implements team.Hosts.
func (s *Stage) Layout() *team.Layout { return &s.layout }

// rooms is the most bytes that each host may contribute if all do.
func (s *Stage) rooms() []int {
	all := make([]int, s.n)
	for h := range all {
		all[h] = room(s.n, s.layout.Ranks, s.layout.Most, s.On(h))
	}
	return all
}

// lay makes the memory for agreements.
func (s *Stage) lay() {
	a := s.agreement
	sizes := []int{a.size(0, s.me), 0}
	for k := range a.rounds {
		sizes = append(sizes, empty, a.size(k, a.from[k]), a.size(k, a.from[k]))
		if a.count(k) > 1 {
			sizes[1] = max(sizes[1], a.several(k, s.me))
		}
	}
	for range a.children + 2 {
		sizes = append(sizes, reportBytes)
	}
	all := cut(sizes)
	s.full = [2][]byte(all)
	all = all[2:]
	for k := range a.rounds {
		s.out, s.slots = append(s.out, all[3*k]), append(s.slots, all[3*k+1], all[3*k+2])
	}
	all = all[3*a.rounds:]
	s.out, s.slots = append(s.out, all[0]), append(s.slots, all[1:]...)
	s.dataOf = func(host int) []byte { return a.data[host] }
	s.srcs = make([]unsafe.Pointer, s.n)
}

// made posts the slots of the first two operations, and of the first report, to a peer that sends to them.
func (s *Stage) made(e transport.Endpoint) transport.Server {
	if !s.leads {
		return nil
	}
	post := func(d transfer) { // its peers are there from the beginning
		if s.peers[d.host].world == e.Peer() {
			s.post(e, d)
		}
	}
	a := s.agreement
	for k := range a.rounds {
		post(a.heard(k, 1))
		post(a.heard(k, 2))
	}
	for i := range a.children {
		post(a.reported(s.me+1<<i, 1))
	}
	if s.me != 0 {
		post(a.reported(a.parent(), 1))
	}
	return nil
}

// Size is the number of hosts. Implements team.Hosts.
func (s *Stage) Size() int { return s.n }

// Host is this rank's host. Implements team.Hosts.
func (s *Stage) Host() int { return s.me }

// Ranks is the number of the communicator's ranks. Implements team.Hosts.
func (s *Stage) Ranks() int { return s.layout.Ranks }

// Most is the number of ranks on the host that has most of them. Implements team.Hosts.
func (s *Stage) Most() int { return s.layout.Most }

// Of is the host of a rank of the communicator. Implements team.Hosts.
func (s *Stage) Of(rank int) int {
	return slices.IndexFunc(s.Hosts, func(ranks []int) bool { return slices.Contains(ranks, rank) })
}

// On is how many ranks are on a host. Implements team.Hosts.
func (s *Stage) On(host int) int { return len(s.Hosts[host]) }

// Progress implements team.Hosts. Before this rank has links, too: its peers may want some.
func (s *Stage) Progress() { s.Network.node.Progress() }

// Lanes implements team.Hosts.
func (s *Stage) Lanes() int { return s.layout.Lanes }

// Lane implements team.Hosts.
func (s *Stage) Lane() int { return s.lane }

// Owner implements team.Hosts.
func (s *Stage) Owner(lane int) int { return s.owner(lane, s.me) }

// owner is the rank of a host's team that has a lane.
func (s *Stage) owner(lane, host int) int { return lane * s.On(host) / s.layout.Lanes }

// Link implements team.Hosts.
func (s *Stage) Link() *team.Link { return &s.link }

// Scratch implements team.Hosts.
func (s *Stage) Scratch() []unsafe.Pointer { return s.srcs }

// Puts is how many messages this rank has sent to other hosts. In operations without errors the number follows from the
// operation (see the test).
func (s *Stage) Puts() (n uint64) {
	for _, p := range s.partners() {
		if p.link != nil {
			n += p.link.Queued()
		}
	}
	return n
}
