package net

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

var secret = []byte("the secret of the tests")

// told records what a node reports about its peers.
type told struct {
	mu      sync.Mutex
	heard   []transport.Message
	down    []*transport.Down
	ticks   int
	rows    sync.Map // by rank: its Row, as Connect was told
	rowElse func(rank int) []byte
}

func (t *told) messages() []transport.Message {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]transport.Message(nil), t.heard...)
}
func (t *told) downs() []*transport.Down {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]*transport.Down(nil), t.down...)
}

// node makes a node on loopback, and closes it at the end of the test if the test has not.
func node(t testing.TB, rank int) (*Node, *told) { return nodeWith(t, transport.Config{Rank: rank}) }

func nodeWith(t testing.TB, c transport.Config) (*Node, *told) {
	t.Helper()
	t.Setenv("UBCOLL_NET", interfaces)
	h := &told{rowElse: c.RowOf}
	n, err := New(transport.Config{Rank: c.Rank, Secret: secret, Size: c.Size, Timeout: c.Timeout, Connections: c.Connections, RDMA: c.RDMA, Log: c.Log, RowOf: h.rowOf,
		Heard: func(_ int, m transport.Message) { h.mu.Lock(); defer h.mu.Unlock(); h.heard = append(h.heard, m) },
		Down:  func(_ int, d *transport.Down) { h.mu.Lock(); defer h.mu.Unlock(); h.down = append(h.down, d) },
		Tick:  func() { h.mu.Lock(); defer h.mu.Unlock(); h.ticks++ },
	})
	require.NoError(t, err)
	tolds.Store(n, h)
	n.Begin()
	t.Cleanup(func() { _ = n.Close(0); tolds.Delete(n) })
	return n, h
}

// hold keeps the node from receiving, until resume or the end of the test, so that nothing hangs if the test fails before.
func hold(t testing.TB, n *Node) (resume func()) {
	n.poll.moving.Lock()
	resume = sync.OnceFunc(n.poll.moving.Unlock)
	t.Cleanup(resume)
	return resume
}

// interfaces is what nodes listen on.
var interfaces = "lo"

// twoRails lets nodes of this test listen on two interfaces, which are two subnets of loopback.
func twoRails(t testing.TB) {
	t.Helper()
	system := locals
	t.Cleanup(func() { locals, interfaces = system, "lo" })
	locals, interfaces = func() ([]local, error) { return host("rail0", "127.0.0.1/24", "rail1", "127.0.1.1/24"), nil }, "rail0,rail1"
}

var tolds sync.Map // by *Node: its *told

func (t *told) rowOf(rank int) []byte {
	if r, ok := t.rows.Load(rank); ok {
		return r.(Row).Append(nil)
	}
	if t.rowElse != nil {
		return t.rowElse(rank)
	}
	return nil
}

// Connect connects to a peer, which does so, too, with the row at.
func (n *Node) Connect(ctx context.Context, peer int, at Row) (*Wire, error) {
	if t, ok := tolds.Load(n); ok {
		t.(*told).rows.Store(peer, at)
	}
	return n.connect(ctx, peer, true)
}

// Link makes this side of a communicator's link.
func (w *Wire) Link(id uint64, places int) (*Link, error) {
	n := w.node
	err := n.Join(transport.Comm{ID: id, Places: places})
	n.mu.Lock()
	c := n.comms[id]
	n.mu.Unlock()
	c.mu.Lock()
	has := c.links[w.peer]
	c.mu.Unlock()
	if err != nil && has != nil {
		return nil, err
	}
	return n.Endpoint(id, w.peer, true).(*Link), nil
}

// connect connects two nodes.
func connect(t testing.TB, a, b *Node) (ab, ba *Wire) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Limit)
	defer cancel()
	var errA, errB error
	var both sync.WaitGroup
	both.Go(func() { ab, errA = a.Connect(ctx, b.config.Rank, b.row) })
	both.Go(func() { ba, errB = b.Connect(ctx, a.config.Rank, a.row) })
	both.Wait()
	require.NoError(t, errA)
	require.NoError(t, errB)
	return ab, ba
}

// pair is two nodes with a wire and a link between them.
type pair struct {
	a, b         *Node
	toldA, toldB *told
	ab, ba       *Wire
	la, lb       *Link
}

const commID = 7

func newPair(t testing.TB, places int) *pair {
	return pairOf(t, places, transport.Config{}, transport.Config{})
}

// pairOf makes a pair of nodes of ranks 0 and 1.
func pairOf(t testing.TB, places int, a, b transport.Config) *pair {
	t.Helper()
	var p pair
	b.Rank = 1
	p.a, p.toldA = nodeWith(t, a)
	p.b, p.toldB = nodeWith(t, b)
	p.ab, p.ba = connect(t, p.a, p.b)
	p.la, p.lb = links(t, p.ab, p.ba, commID, places)
	return &p
}

func links(t testing.TB, ab, ba *Wire, id uint64, places int) (*Link, *Link) {
	t.Helper()
	la, err := ab.Link(id, places)
	require.NoError(t, err)
	lb, err := ba.Link(id, places)
	require.NoError(t, err)
	require.NoError(t, la.Ready(within(t)))
	require.NoError(t, lb.Ready(within(t)))
	return la, lb
}

// close closes both nodes at the same time, as ranks do.
func (p *pair) close(t testing.TB) {
	t.Helper()
	closeAll(t, p.a, p.b)
}

func closeAll(t testing.TB, nodes ...*Node) {
	t.Helper()
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() {
			if err := n.Close(testkit.Limit); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// until makes progress on a link until the word has come.
func (l *Link) until(t testing.TB, place int, seq uint64) {
	for begin := time.Now(); l.Word(place).Load() < seq; l.Poll() {
		if d := l.Err(); d != nil {
			t.Errorf("down: %v", d)
			return
		}
		if time.Since(begin) > testkit.Limit {
			t.Errorf("no word %d", seq)
			return
		}
	}
}

// descriptorsOpen is how many descriptors this process has open.
func descriptorsOpen(t testing.TB) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(l)
}

// within is the test's context, with a limit for what must not wait forever.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	t.Cleanup(cancel)
	return ctx
}

// traffic is what a data connection has carried.
func (d *data) traffic() (t transport.Traffic) {
	d.Add(&t)
	return t
}

// noOffer is what a side without RDMA does in the handshake.
func noOffer(p *dialProbe) error {
	_, err := new(Node).agree(context.Background(), 0, p, nil, newOffer(""), nil)
	return err
}
