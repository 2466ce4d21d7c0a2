package transporttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// Network is what a Suite tests: the nodes of a job, all in this process, by rank. What is nil or false is not there:
// the tests that need it are skipped.
type Network struct {
	Nodes []transport.Node
	// Background says that data of a rank that makes no progress moves, too.
	Background bool
	// Kill ends a rank's node as if its process ended. The suite does not use the node afterwards, not even to close it.
	Kill func(rank int)
	// Cut loses all that two ranks send each other from now on.
	Cut func(a, b int)
	// Pairs is how much a rank's node keeps of its communicators. Both sides of a pair keep nothing once they are closed.
	Pairs func(rank int) int
}

// Suite tests whatever implements transport.Node. network makes nodes of these configurations, whose ranks count from 0,
// and does not call their Begin. It may use t for what a test needs; the suite closes the nodes.
func Suite(t *testing.T, network func(t testing.TB, configs []transport.Config) Network) {
	SuiteTurns(t, 0, 1, network)
}

// SuiteTurns runs the tests of Suite whose turn it is (testkit.Turn, from case first on).
func SuiteTurns(t *testing.T, first, of int, network func(t testing.TB, configs []transport.Config) Network) {
	for i, c := range []struct {
		name string
		run  func(t *testing.T, s *suite)
	}{
		{"puts", testPuts},
		{"posts", testPosts},
		{"words", testWords},
		{"traffic", testTraffic},
		{"small beside large", testSmallBesideLarge},
		{"nobody polls", testNobodyPolls},
		{"wait", testWait},
		{"traffic counts", testCounts},
		{"tell", testTell},
		{"tick", testTick},

		{"revoke a put", testRevokePut},
		{"revoke without puts", testRevokeWithoutPuts},
		{"put what is revoked", testPutRevoked},
		{"revoke before the pair", testRevokeEarly},
		{"revoke from a dead peer", testRevokeDead},

		{"writes", testWrites},
		{"writes and calls in order", testWritesInOrder},
		{"refused writes", testRefusedWrites},
		{"gets", testGets},
		{"servers of several peers", testForward},
		{"writes and calls of several goroutines", testWritesAtOnce},
		{"short beside long writes", testShortBesideLongWrites},
		{"nobody polls for writes", testNobodyPollsForWrites},
		{"withdraw", testWithdraw},
		{"refuse", testRefuse},
		{"early writes and calls", testEarlyWrites},
		{"close in the middle of writes", testCloseMidwayOfWrites},
		{"leave with writes", testLeaveWithWrites},
		{"node close drains writes", testCloseDrainsWrites},
		{"death in the middle of writes", testDeathMidwayOfWrites},
		{"cut in the middle of writes", testCutMidwayOfWrites},

		{"begin", testBegin},
		{"pair by one side", testPairByOne},
		{"pairs by both sides", testPairsByBoth},
		{"pair before join", testPairBeforeJoin},
		{"within made", testWithinMade},
		{"pair after leave", testPairAfterLeave},
		{"pair of different places", testPairPlaces},
		{"early puts and grants", testEarly},
		{"ready", testReady},
		{"one endpoint", testOneEndpoint},

		{"close in the middle", testCloseMidway},
		{"close of one communicator", testCloseOne},
		{"leave", testLeave},
		{"left", testLeft},
		{"node close drains", testCloseDrains},
		{"nothing stays", testNothingStays},
		{"death", testDeath},
		{"death in the middle", testDeathMidway},
		{"cut", testCut},
		{"cut off", testCutOff},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.Turn(t, first+i, of)
			c.run(t, &suite{network})
		})
	}
}

type suite struct {
	network func(t testing.TB, configs []transport.Config) Network
}

// rank is what a node's callbacks have told.
type rank struct {
	mu    sync.Mutex
	heard []heard
	downs []*transport.Down
	ticks int
	rows  int    // how often Config.RowOf was called
	down  func() // is called by Config.Down, if it is not nil
}

type heard struct {
	from int
	m    transport.Message
}

func (r *rank) messages() []heard {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]heard(nil), r.heard...)
}

func (r *rank) lost() []*transport.Down {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*transport.Down(nil), r.downs...)
}

func (r *rank) ticked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ticks
}

// job is the nodes of a test.
type job struct {
	Network
	t      *testing.T
	ranks  []*rank
	random *rand.Rand
	closed map[int]bool // nodes that the test has closed or killed
}

// job makes n nodes that have begun.
func (s *suite) job(t *testing.T, n int) *job {
	t.Helper()
	j := s.idle(t, n)
	j.begin()
	return j
}

// idle makes n nodes. When the test ends, they are closed, and nothing must stay of them.
func (s *suite) idle(t *testing.T, n int) *job {
	t.Helper()
	leaks := testkit.NoLeaks(t)
	t.Cleanup(func() {
		if !t.Failed() {
			leaks()
		}
	})
	j := &job{t: t, random: testkit.Random(t), closed: map[int]bool{}}
	var rows [][]byte
	var configs []transport.Config
	for i := range n {
		r := &rank{}
		j.ranks = append(j.ranks, r)
		configs = append(configs, transport.Config{Rank: i, Size: n, Secret: []byte("the secret of the tests"),
			RowOf: func(rank int) []byte { r.mu.Lock(); defer r.mu.Unlock(); r.rows++; return rows[rank] },
			Heard: func(from int, m transport.Message) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.heard = append(r.heard, heard{from, m})
			},
			Down: func(peer int, d *transport.Down) {
				r.mu.Lock()
				defer r.mu.Unlock()
				if peer != d.Peer {
					t.Errorf("rank %d: rank %d is lost, it says of rank %d: %v", i, d.Peer, peer, d)
				}
				r.downs = append(r.downs, d)
				if r.down != nil {
					r.down()
				}
			},
			Tick: func() { r.mu.Lock(); defer r.mu.Unlock(); r.ticks++ },
		})
	}
	j.Network = s.network(t, configs)
	for _, n := range j.Nodes {
		row := n.Row()
		require.LessOrEqual(t, len(row), transport.MaxRow)
		rows = append(rows, bytes.Clone(row))
	}
	t.Cleanup(func() {
		limit := testkit.Limit
		if t.Failed() {
			limit = time.Second
		}
		j.close(limit)
	})
	return j
}

func (j *job) begin() {
	for _, n := range j.Nodes {
		n.Begin()
	}
}

// close closes all nodes at the same time, as ranks do.
func (j *job) close(limit time.Duration) {
	var all sync.WaitGroup
	for i, n := range j.Nodes {
		if j.closed[i] {
			continue
		}
		j.closed[i] = true
		all.Go(func() {
			if err := n.Close(limit); err != nil {
				j.t.Errorf("rank %d: close: %v", i, err)
			}
		})
	}
	all.Wait()
}

// kill kills a rank, or skips the test.
func (j *job) kill(rank int) {
	j.t.Helper()
	if j.Kill == nil {
		j.t.Skip("nobody can kill a rank of this network")
	}
	j.Kill(rank)
	j.closed[rank] = true
}

// healthy fails the test if a node has lost a peer.
func (j *job) healthy() {
	j.t.Helper()
	for i, r := range j.ranks {
		require.Empty(j.t, r.lost(), "rank %d", i)
	}
}

// move makes progress on these ranks' nodes, all if there are none.
func (j *job) move(ranks ...int) {
	for i, n := range j.Nodes {
		if !j.closed[i] && len(ranks) == 0 {
			n.Progress()
		}
	}
	for _, i := range ranks {
		j.Nodes[i].Progress()
	}
	runtime.Gosched()
}

// until makes progress on these ranks' nodes, all if there are none, until done, or until the test has failed. Any
// goroutine may call it.
func (j *job) until(what string, done func() bool, ranks ...int) bool {
	j.t.Helper()
	for begin := time.Now(); !done(); j.move(ranks...) {
		if j.t.Failed() {
			return false
		}
		if time.Since(begin) > testkit.Limit {
			j.t.Errorf("not so after %v: %s", testkit.Limit, what)
			return false
		}
	}
	return true
}

// must is until for the test's goroutine.
func (j *job) must(what string, done func() bool, ranks ...int) {
	j.t.Helper()
	if !j.until(what, done, ranks...) {
		j.t.FailNow()
	}
}

// busy counts the goroutines of a test that are not done. Those that are go on making progress for the others.
type busy struct {
	j    *job
	left atomic.Int64
}

func (j *job) busy(n int) *busy {
	b := &busy{j: j}
	b.left.Store(int64(n))
	return b
}

// done ends a goroutine of a rank.
func (b *busy) done(me int) {
	b.left.Add(-1)
	b.j.until("all others are done", func() bool { return b.left.Load() == 0 }, me)
}

// word waits until a word has come.
func (j *job) word(e transport.Endpoint, place int, seq uint64) {
	j.t.Helper()
	j.must("the word has come", func() bool { require.Nil(j.t, e.Err()); return e.Word(place).Load() >= seq })
	require.Equal(j.t, seq, e.Word(place).Load())
}

// sent waits until all puts have been sent.
func (j *job) sent(e transport.Endpoint) {
	j.t.Helper()
	j.must("all puts are sent", func() bool { return e.Sent() == e.Queued() })
}

// join makes a communicator of all nodes. made may be nil.
func (j *job) join(comm uint64, places int, made func(rank int, e transport.Endpoint)) {
	j.t.Helper()
	for i, n := range j.Nodes {
		if !j.closed[i] {
			require.NoError(j.t, n.Join(member(comm, places, i, made)))
		}
	}
}

func member(comm uint64, places, rank int, made func(rank int, e transport.Endpoint)) transport.Comm {
	return transport.Comm{ID: comm, Places: places, Made: func(e transport.Endpoint) transport.Server {
		if made != nil {
			made(rank, e)
		}
		return nil
	}}
}

// comm is the communicator of tests that need only one.
const comm = 7

// pair makes a communicator of all nodes, and its pair of ranks 0 and 1.
func (j *job) pair(comm uint64, places int) (a, b transport.Endpoint) {
	j.t.Helper()
	j.join(comm, places, nil)
	return j.endpoints(comm, 0, 1)
}

// endpoints makes a pair.
func (j *job) endpoints(comm uint64, x, y int) (a, b transport.Endpoint) {
	j.t.Helper()
	a, b = j.Nodes[x].Endpoint(comm, y, true), j.Nodes[y].Endpoint(comm, x, true)
	require.NoError(j.t, j.ready(j.within(), a, y))
	require.NoError(j.t, j.ready(j.within(), b, x))
	return a, b
}

// ready is e.Ready. Meanwhile it makes progress on the peer, for networks that move nothing by themselves.
func (j *job) ready(ctx context.Context, e transport.Endpoint, peer int) error {
	if j.Background || j.closed[peer] {
		return e.Ready(ctx)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				j.Nodes[peer].Wait(time.Millisecond)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	return e.Ready(ctx)
}

// within is the test's context, with a limit for what must not wait forever.
func (j *job) within() context.Context {
	ctx, cancel := context.WithTimeout(j.t.Context(), testkit.Limit)
	j.t.Cleanup(cancel)
	return ctx
}

func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// fill fills b with what key stands for.
func fill(b []byte, key ...uint64) []byte {
	var seed [32]byte
	for i, k := range key {
		binary.LittleEndian.PutUint64(seed[8*i:], k)
	}
	rand.NewChaCha8(seed).Read(b)
	return b
}

// filled returns n such bytes.
func filled(n int, key ...uint64) []byte { return fill(make([]byte, n), key...) }

// isFilled reports whether b is filled so.
func isFilled(b []byte, key ...uint64) bool { return bytes.Equal(b, filled(len(b), key...)) }

// rounds is how often a test does something: less in short runs, and with the race detector.
func rounds(full int) int {
	switch {
	case testing.Short():
		return max(1, full/4)
	case race.Enabled:
		return max(1, full/2)
	}
	return full
}
