package hosts

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// Network is a rank's end of the network, for all of its communicators that span hosts. Its methods are safe for
// concurrent use.
type Network struct {
	node transport.Node
	JobConfig
	landing pool
	slots   spares

	mu    sync.Mutex
	uses  map[uint64]use      // by transport.Comm.ID
	early map[uint64][]letter // what came before the use, by that ID; empty ones of those that are to be added
}

// letter is a message, and the rank of the job that sent it.
type letter struct {
	from int
	m    transport.Message
}

// use is what one communicator has on the network: its stage, or its pairs. Its methods may be called from any
// goroutine.
type use interface {
	// heard handles a message from another rank, and down the end of a wire, which may be an older one to the same
	// peer. They return why the communicator breaks, or nil.
	heard(from int, m transport.Message) *fault.Error
	down(d *transport.Down) *fault.Error
	// tick is called every 20 ms.
	tick()
	// breakBy breaks the communicator if why returns an error.
	breakBy(why func() *fault.Error)
}

// JobConfig is what a network gets from its rank's job.
type JobConfig struct {
	Rank, Size  int
	Secret      []byte
	Timeout     time.Duration // how long another host may be silent
	Connections int           // for data, of each wire
	Log         *slog.Logger
	// RDMA: see transport.Config. Memory returns n bytes, which it can find, for as long as the network lives; nil: Go's memory.
	RDMA   transport.RDMA
	Memory func(n int) []byte
	// Turns: this rank's process takes turns with others on its device.
	Turns bool
	// RowOf returns what a rank of the job published with Row. It is called from the first Open on.
	RowOf func(rank int) []byte
	// NewNode makes the rank's node.
	NewNode func(c transport.Config) (transport.Node, error)
}

// Listen makes the network of a rank.
func Listen(c JobConfig) (n *Network, err error) {
	n = &Network{JobConfig: c, uses: map[uint64]use{}, early: map[uint64][]letter{}}
	n.landing.memory, n.slots.memory = c.Memory, c.Memory
	n.node, err = c.NewNode(transport.Config{Rank: c.Rank, Size: c.Size, Secret: c.Secret, Log: c.Log, Timeout: c.Timeout,
		Connections: c.Connections, RDMA: c.RDMA, RowOf: n.rowOf,
		Heard: n.heard, Down: n.down, Tick: n.tick})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// The bits of a row's first byte.
const (
	rowRDMA  = 1 << iota // the rank has RDMA devices
	rowTurns             // JobConfig.Turns
)

// Row is what other ranks need to know of this one: a byte of bits, and what its node needs to be reached.
func (n *Network) Row() []byte {
	row := []byte{0}
	if n.RDMA.NICs != nil {
		row[0] |= rowRDMA
	}
	if n.Turns {
		row[0] |= rowTurns
	}
	return append(row, n.node.Row()...)
}

// rowOf is the row of a rank's node, or nil.
func (n *Network) rowOf(rank int) []byte {
	row := n.RowOf(rank)
	if len(row) == 0 {
		return nil
	}
	return row[1:]
}

// bits are those of a rank's row.
func (n *Network) bits(rank int) byte {
	if row := n.RowOf(rank); len(row) > 0 {
		return row[0]
	}
	return 0
}

// Traffic is what this rank has exchanged with another host.
type Traffic struct {
	Host                           string
	SentBytes, ReceivedBytes       uint64 // with the frames' heads
	SentMessages, ReceivedMessages uint64
	Retries                        uint64 // segments that the kernel sent again
}

// Traffic is what this rank has exchanged with each other host that it has or had wires to, in the order of the ranks at
// their ends. host is the name of a rank's. It may be called at any time, also after Close.
func (n *Network) Traffic(host func(rank int) string) (all []Traffic) {
	for _, t := range n.node.Traffic() {
		name := host(t.Peer)
		i := slices.IndexFunc(all, func(h Traffic) bool { return h.Host == name })
		if i < 0 {
			i, all = len(all), append(all, Traffic{Host: name})
		}
		h := &all[i]
		h.SentBytes += t.SentBytes
		h.ReceivedBytes += t.ReceivedBytes
		h.SentMessages += t.SentPuts
		h.ReceivedMessages += t.ReceivedPuts
		h.Retries += t.Retries
	}
	return all
}

// closeTimeout is how long Close waits for peers to take data under way. It is less than the 5 s after which a closing
// communicator goes on without an answer.
const closeTimeout = 4500 * time.Millisecond

// Close ends the network, after its stages. Its error says what peers did not take in time.
func (n *Network) Close() error {
	if err := n.node.Close(closeTimeout); err != nil {
		return fmt.Errorf("the network: %w", err)
	}
	return nil
}

// Cut cuts this rank off from all other hosts: see transport.Node.
func (n *Network) Cut() error { return n.node.Cut() }

// expect keeps the messages for a use that will be added, or removed: a rank that has connected may tell something, such as that it
// has closed the communicator, before this one is ready to hear it.
func (n *Network) expect(id uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.early[id] = nil
}

func (n *Network) add(id uint64, u use) {
	n.mu.Lock()
	n.uses[id] = u
	early := n.early[id]
	delete(n.early, id)
	n.mu.Unlock()
	for _, l := range early {
		u.breakBy(func() *fault.Error { return u.heard(l.from, l.m) })
	}
}

func (n *Network) remove(id uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.uses, id)
	delete(n.early, id)
}

func (n *Network) list() (all []use) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, u := range n.uses {
		all = append(all, u)
	}
	return all
}

// heard handles a message from another rank.
func (n *Network) heard(from int, m transport.Message) {
	n.mu.Lock()
	u := n.uses[m.Comm]
	if early, ok := n.early[m.Comm]; ok {
		n.early[m.Comm] = append(early, letter{from, m})
	}
	n.mu.Unlock()
	if u != nil {
		u.breakBy(func() *fault.Error { return u.heard(from, m) })
	}
}

// down handles the end of a wire.
func (n *Network) down(_ int, down *transport.Down) {
	for _, u := range n.list() {
		u.breakBy(func() *fault.Error { return u.down(down) })
	}
}

func (n *Network) tick() {
	for _, u := range n.list() {
		u.tick()
	}
}
