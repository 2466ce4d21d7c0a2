package net

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	stdnet "net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

func (n *Node) addr() string { return netip.AddrPortFrom(n.row.Addrs[0], n.row.Port).String() }

func strangerTo(t *testing.T, n *Node) stdnet.Conn {
	t.Helper()
	c, err := stdnet.Dial("tcp", n.addr())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// refused fails unless the node ends the connection after sending a nonce at most.
func refused(t *testing.T, c stdnet.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(testkit.Limit))
	b, err := io.ReadAll(c)
	require.NotErrorIs(t, err, syscall.ETIMEDOUT)
	require.False(t, errors.Is(err, context.DeadlineExceeded))
	require.LessOrEqual(t, len(b), nonceSize)
}

func newHello(t *testing.T, from, to int) (hello, *ecdh.PrivateKey) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	require.NoError(t, err)
	h := hello{from: uint32(from), to: uint32(to), count: 2, key: [32]byte(key.PublicKey().Bytes())}
	_, _ = rand.Read(h.nonce[:])
	return h, key
}

// No stranger gets past the handshake, whatever it sends, and it leaves nothing behind.
func TestStrangers(t *testing.T) {
	p := newPair(t, 1)
	goroutines, fds := runtime.NumGoroutine(), descriptorsOpen(t)
	good, _ := newHello(t, 0, 1)
	edit := func(f func(h *hello)) []byte { h := good; f(&h); return h.bytes() }
	for name, b := range map[string][]byte{
		"garbage":        bytes.Repeat([]byte("GET / HTTP/1.1\r\n\r\n"), 100),
		"closes":         nil,
		"half a hello":   good.bytes()[:50],
		"magic":          append([]byte("x"), good.bytes()[1:]...),
		"to another":     edit(func(h *hello) { h.to = 2 }),
		"from itself":    edit(func(h *hello) { h.from = 1 }),
		"from a higher":  edit(func(h *hello) { h.from = 5 }),
		"index":          edit(func(h *hello) { h.index = h.count }),
		"count":          edit(func(h *hello) { h.count = 1 << 30 }),
		"a key of zeros": edit(func(h *hello) { h.key = [32]byte{} }),
		"no proof":       good.bytes(),
		"a wrong proof":  append(good.bytes(), make([]byte, 32)...),
		"more than that": append(good.bytes(), make([]byte, 1<<20)...),
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				c := strangerTo(t, p.b)
				_, _ = c.Write(b)
				_ = c.(*stdnet.TCPConn).CloseWrite()
				refused(t, c)
				c.Close()
			}
		})
	}
	testkit.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines && descriptorsOpen(t) <= fds })
	p.la.Put(0, 1, nil, 0)
	p.lb.until(t, 0, 1)
	p.close(t)
}

// recorder keeps what is written to a connection.
type recorder struct {
	stdnet.Conn
	all bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	r.all.Write(b)
	return r.Conn.Write(b)
}

// A thousand strangers of all kinds dial two ranks that exchange data all the time: none gets past the handshake, none
// leaves anything behind, and the data is right.
func TestStrangersBesideTraffic(t *testing.T) {
	count := 1000
	if testing.Short() || race.Enabled {
		count = 100
	}
	p := newPair(t, 2)
	fds := descriptorsOpen(t)

	// The recorded messages of a rank, to be replayed: it proves itself, and leaves before the probe.
	genuine := &recorder{Conn: strangerTo(t, p.b)}
	h, _ := newHello(t, 0, 1)
	h.key = p.a.row.Key
	require.NoError(t, p.a.meet(genuine, h, p.b.row.Key))
	genuine.Close()
	replay := append(append(genuine.all.Bytes(), probeBytes()...), 1)
	testkit.Eventually(t, func() bool { return descriptorsOpen(t) <= fds })

	var stop atomic.Bool
	var rounds [2]int
	var all sync.WaitGroup
	for i, side := range []struct{ from, to *Link }{{p.la, p.lb}, {p.lb, p.la}} {
		// Place 0 says which round may come; place 1 has its data.
		var last atomic.Bool
		size := func(round uint64) int { return []int{1, 100, 4096, 5000, 64 << 10, 300 << 10}[round%6] }
		pattern := func(round uint64) []byte {
			return bytes.Repeat([]byte{byte(round), byte(round >> 8), byte(i)}, size(round)/3+1)[:size(round)]
		}
		all.Go(func() {
			for round := uint64(1); side.from.parked(t, 0, round) && !last.Load(); round++ {
				b := pattern(round)
				side.from.Put(1, round, at(b), len(b))
			}
		})
		all.Go(func() {
			for round := uint64(1); ; round++ {
				if stop.Load() && rounds[i] > 0 {
					last.Store(true)
					side.to.Put(0, round, nil, 0)
					return
				}
				to := make([]byte, size(round))
				side.to.Grant(1, round, at(to), len(to))
				side.to.Put(0, round, nil, 0)
				if !side.to.parked(t, 1, round) {
					return
				}
				if side.to.Landed(1) != len(to) || !bytes.Equal(pattern(round), to) {
					t.Errorf("round %d: the bytes differ", round)
				}
				rounds[i]++
			}
		})
	}
	goroutines := runtime.NumGoroutine()

	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	require.NoError(t, err)
	stranger := &Node{config: transport.Config{Secret: []byte("another secret of sixteen bytes")}, private: key}
	good, _ := newHello(t, 0, 1)
	says := func(b []byte) func(c stdnet.Conn) { return func(c stdnet.Conn) { _, _ = c.Write(b) } }
	kinds := []func(c stdnet.Conn){
		says(nil),
		says(bytes.Repeat([]byte("GET / HTTP/1.1\r\n\r\n"), 100)),
		says(good.bytes()[:50]),
		says(good.bytes()),
		says(append(good.bytes(), make([]byte, 32)...)),
		says(append(good.bytes(), make([]byte, 1<<20)...)),
		says(replay),
		func(c stdnet.Conn) {
			h := good
			h.key = [32]byte(key.PublicKey().Bytes())
			if stranger.meet(c, h, p.b.row.Key) == nil {
				t.Error("another secret is as good")
			}
		},
		func(c stdnet.Conn) { c.Close() },
	}
	const together = 20 // some of them are open at the same time
	for begin := 0; begin < count; begin += together {
		var open []stdnet.Conn
		for k := range together {
			// In turn, two strangers of each kind dial both ranks.
			open = append(open, strangerTo(t, []*Node{p.a, p.b}[k%2]))
		}
		for k, c := range open {
			_ = c.SetDeadline(time.Now().Add(testkit.Limit))
			kinds[(begin+k)/2%len(kinds)](c)
		}
		for k, c := range open {
			if kind := (begin + k) / 2 % len(kinds); kind != len(kinds)-1 {
				_ = c.(*stdnet.TCPConn).CloseWrite()
				refused(t, c)
			}
			c.Close()
		}
	}

	for _, n := range []*Node{p.a, p.b} {
		n.mu.Lock()
		wires, contacts := len(n.wires), len(n.contacts)
		n.mu.Unlock()
		require.Equal(t, []int{1, 1}, []int{wires, contacts})
	}
	testkit.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines && descriptorsOpen(t) <= fds })
	stop.Store(true)
	all.Wait()
	t.Logf("%d strangers beside %v rounds", count, rounds)
	p.close(t)
	require.Empty(t, p.toldA.downs())
	require.Empty(t, p.toldB.downs())
}

// parked waits for a word, parks meanwhile, and reports whether the word has come.
func (l *Link) parked(t testing.TB, place int, seq uint64) bool {
	for begin := time.Now(); l.Word(place).Load() < seq; l.node.Wait(time.Millisecond) {
		if d := l.Err(); d != nil || time.Since(begin) > testkit.Limit {
			t.Errorf("no word %d: %v", seq, d)
			return false
		}
	}
	return true
}

// A dialler that knows everything but the secret is a stranger. So is one that replays a rank's messages.
func TestProof(t *testing.T) {
	a, _ := node(t, 0)
	b, toldB := node(t, 1)
	t.Run("another secret", func(t *testing.T) {
		a.config.Secret = []byte("another secret of sixteen bytes")
		defer func() { a.config.Secret = secret }()
		_, err := a.Connect(within(t), 1, b.row)
		require.ErrorIs(t, err, fault.ErrPeerLost)
		require.ErrorContains(t, err, "another secret")
	})
	t.Run("another's key", func(t *testing.T) {
		row := b.row
		row.Key = a.row.Key
		_, err := a.Connect(within(t), 1, row)
		require.ErrorIs(t, err, fault.ErrPeerLost)
	})
	t.Run("not the rank", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // it tries again, as if the rank were overloaded
		defer cancel()
		_, err := a.Connect(ctx, 2, b.row)
		require.ErrorIs(t, err, fault.ErrPeerLost)
		require.ErrorContains(t, err, "does not answer as a rank")
	})
	t.Run("replay", func(t *testing.T) {
		// A relay between the ranks records the messages of rank 0.
		l, err := stdnet.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		var mu sync.Mutex
		var recorded [][]byte
		var relays sync.WaitGroup
		relays.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				d, err := stdnet.Dial("tcp", b.addr())
				if err != nil {
					c.Close()
					return
				}
				relays.Go(func() {
					defer d.(*stdnet.TCPConn).CloseWrite()
					var all bytes.Buffer
					_, _ = io.Copy(io.MultiWriter(d, &all), c)
					mu.Lock()
					defer mu.Unlock()
					recorded = append(recorded, all.Bytes())
				})
				relays.Go(func() { _, _ = io.Copy(c, d); c.Close(); d.Close() })
			}
		})
		row := b.row
		row.Port = netip.MustParseAddrPort(l.Addr().String()).Port()
		toldB.rows.Store(0, a.row) // b does not dial: then its connections might become the wire
		_, err = a.Connect(within(t), 1, row)
		require.NoError(t, err)
		closeAll(t, a)
		l.Close()
		relays.Wait()
		require.Len(t, recorded, 2)
		for range 20 {
			for _, all := range recorded {
				c := strangerTo(t, b)
				_, _ = c.Write(all)
				_ = c.(*stdnet.TCPConn).CloseWrite()
				refused(t, c)
			}
		}
	})
	closeAll(t, b)
}

// An impostor that answers in a rank's place cannot prove to be that rank, whatever it does with the messages it gets.
func TestImpostor(t *testing.T) {
	a, _ := node(t, 0)
	b, _ := node(t, 1)
	genuine := func(first, nonce, _ []byte) []byte {
		key, err := b.pairKey(a.row.Key, 0, 1, a.row.Key, b.row.Key)
		require.NoError(t, err)
		return proof(key, "accept", first, nonce)
	}
	for name, answer := range map[string]func(first, nonce, theirs []byte) []byte{
		"the rank":         genuine,
		"zeros":            func(_, _, _ []byte) []byte { return make([]byte, 32) },
		"the same proof":   func(_, _, theirs []byte) []byte { return theirs },
		"of another nonce": func(first, _, theirs []byte) []byte { return genuine(first, theirs, nil) },
		"nearly right":     func(first, nonce, _ []byte) []byte { p := genuine(first, nonce, nil); p[31] ^= 1; return p },
	} {
		t.Run(name, func(t *testing.T) {
			here, there := stdnet.Pipe()
			defer here.Close()
			defer there.Close()
			go func() {
				first, nonce, theirs := make([]byte, helloSize), make([]byte, nonceSize), make([]byte, 32)
				_, _ = io.ReadFull(there, first)
				_, _ = there.Write(nonce)
				_, _ = io.ReadFull(there, theirs)
				_, _ = there.Write(answer(first, nonce, theirs))
			}()
			err := a.meet(here, hello{from: 0, to: 1, count: 2, key: a.row.Key}, b.row.Key)
			if name == "the rank" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, errStranger)
			require.ErrorContains(t, err, "cannot prove")
		})
	}
	closeAll(t, a, b)
}

// If a peer that has proved itself makes more connections than its wire has, they are closed.
func TestDuplicates(t *testing.T) {
	p := newPair(t, 1)
	fds := descriptorsOpen(t)
	for range 20 {
		h := hello{from: 0, to: 1, count: 2, key: p.a.row.Key, attempt: p.ab.attempt}
		c, err := p.a.attempt(t.Context(), h, netip.Addr{}, netip.MustParseAddrPort(p.b.addr()), p.b.row.Key)
		require.NoError(t, err)
		require.ErrorIs(t, testkit.ErrOf(dialled(t.Context(), c, noOffer)), errCrossed)
		_, err = c.Read(make([]byte, 1))
		require.Error(t, err)
		c.Close()
	}
	testkit.Eventually(t, func() bool { return descriptorsOpen(t) <= fds })
	require.Nil(t, p.la.Err())
	p.close(t)
}

// Duplicate connections of an attempt, and attempts that were given up, leave nothing behind.
func TestDuplicatesBefore(t *testing.T) {
	a, _ := node(t, 0)
	b, toldB := node(t, 1)
	toldB.rows.Store(0, a.row)
	fds := descriptorsOpen(t)
	for i := range 20 {
		h := hello{from: 0, to: 1, count: 2, key: a.row.Key, attempt: [16]byte{byte(i / 4)}}
		c, err := a.attempt(t.Context(), h, netip.Addr{}, netip.MustParseAddrPort(b.addr()), b.row.Key)
		require.NoError(t, err)
		if _, err := dialled(t.Context(), c, noOffer); i%4 == 0 {
			require.NoError(t, err)
		} else {
			require.Error(t, err)
		}
		c.Close()
	}
	testkit.Eventually(t, func() bool { return descriptorsOpen(t) <= fds+1 }) // of the last attempt
	connect(t, a, b)
	testkit.Eventually(t, func() bool { return descriptorsOpen(t) <= fds+2*2+1 }) // and a set of sockets, perhaps
	closeAll(t, a, b)
}

// A rank that ends its dialling knows whether its peer may have a wire by now. If not, the peer got nothing that it could take for
// the seal.
func TestDiallingEnds(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		t.Run(fmt.Sprintf("sealed %v", sealed), func(t *testing.T) {
			here, there := stdnet.Pipe()
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan []byte)
			go func() {
				p := newProbe(there)
				if err := testkit.InOrder(p.read(make([]byte, 1)), p.write([]byte{goOn}), p.read(p.theirs), p.write(p.mine)); err != nil {
					t.Error(err)
				}
				b := make([]byte, 1)
				n, _ := there.Read(b)
				cancel()
				rest, _ := io.ReadAll(there)
				got <- append(b[:n], rest...)
			}()
			is, err := dialled(ctx, here, func(*dialProbe) error {
				if !sealed {
					cancel()
					<-ctx.Done()
				}
				return nil
			})
			require.Error(t, err)
			here.Close()
			require.Equal(t, sealed, is)
			want := []byte{}
			if sealed {
				want = []byte{1}
			}
			require.Equal(t, want, <-got)
			there.Close()
		})
	}
}

// Ranks find each other, however many connections are silent.
func TestSilentStrangers(t *testing.T) {
	a, _ := node(t, 0)
	b, _ := node(t, 1)
	for range 4 * strangers {
		strangerTo(t, b)
	}
	connect(t, a, b)
	b.strangers.mu.Lock()
	require.LessOrEqual(t, len(b.strangers.list), strangers)
	b.strangers.mu.Unlock()
	closeAll(t, a, b)
}

// A silent connection is closed after some seconds.
func TestSilence(t *testing.T) {
	defer func(d time.Duration) { strangerLimit = d }(strangerLimit)
	strangerLimit = 300 * time.Millisecond
	b, _ := node(t, 1)
	c := strangerTo(t, b)
	begin := time.Now()
	refused(t, c)
	require.GreaterOrEqual(t, time.Since(begin), strangerLimit*9/10)
	closeAll(t, b)
}

// All ranks connect to all others at once, some twice. Each pair has one wire.
func TestConnectAll(t *testing.T) {
	const ranks = 6
	var nodes []*Node
	for r := range ranks {
		n, _ := node(t, r)
		nodes = append(nodes, n)
	}
	var wires [ranks][ranks][2]*Wire
	var all sync.WaitGroup
	for i, a := range nodes {
		for j, b := range nodes {
			for k := range 2 {
				if i != j {
					all.Go(func() {
						w, err := a.Connect(within(t), j, b.row)
						if err != nil {
							t.Error(err)
						}
						wires[i][j][k] = w
					})
				}
			}
		}
	}
	all.Wait()
	for i := range nodes {
		for j := range nodes {
			require.Same(t, wires[i][j][0], wires[i][j][1])
		}
	}
	closeAll(t, nodes...)
}

// Errors of Connect say what failed and where.
func TestConnectErrors(t *testing.T) {
	a, _ := node(t, 0)
	b, toldB := node(t, 1)
	toldB.rows.Store(0, a.row)
	_, err := a.Connect(within(t), 0, a.row)
	require.ErrorIs(t, err, fault.ErrArgument)

	gone, _ := node(t, 2)
	closeAll(t, gone)
	_, err = a.Connect(within(t), 2, gone.row)
	require.ErrorIs(t, err, fault.ErrPeerLost)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "rank 0 dials rank 2: ")
	require.ErrorContains(t, err, gone.addr())
	require.ErrorContains(t, err, "nobody listens there any more")

	// Nobody answers.
	l, err := stdnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	silent := b.row
	silent.Port = netip.MustParseAddrPort(l.Addr().String()).Port()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = a.Connect(ctx, 1, silent)
	require.ErrorIs(t, err, fault.ErrTimeout)
	require.ErrorContains(t, err, l.Addr().String())

	// The first address fails, the second works.
	row := b.row
	row.Addrs = append([]netip.Addr{netip.MustParseAddr("127.0.0.99")}, row.Addrs...)
	_, err = a.Connect(within(t), 1, row)
	require.NoError(t, err)
	closeAll(t, a, b)
	_, err = a.Connect(within(t), 3, row)
	require.ErrorIs(t, err, fault.ErrClosed)
}

// If only small packets pass, Connect fails and says so.
func TestSmallPacketsOnly(t *testing.T) {
	a, _ := node(t, 0)
	b, atB := node(t, 1)
	l, err := stdnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var relays sync.WaitGroup
	var stop atomic.Bool
	relays.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		d, err := stdnet.Dial("tcp", b.addr())
		if err != nil {
			return
		}
		relays.Go(func() { _, _ = io.Copy(c, d); c.Close() })
		_, _ = io.CopyN(d, c, helloSize+32+1) // the proof, and the byte behind it
		for !stop.Load() {
			time.Sleep(time.Millisecond)
		}
		c.Close()
		d.Close()
	})
	mute, err := stdnet.Listen("tcp", "127.0.0.1:0") // what rank 1 dials: to rank 0 itself, it may be the one that is chosen
	require.NoError(t, err)
	defer mute.Close()
	row, muteRow := b.row, a.row
	row.Port = netip.MustParseAddrPort(l.Addr().String()).Port()
	muteRow.Port = netip.MustParseAddrPort(mute.Addr().String()).Port()
	atB.rows.Store(0, muteRow) // rank 0 may be there before rank 1 dials
	var both sync.WaitGroup
	over, end := context.WithCancel(t.Context()) // rank 1's end must not be what rank 0 notices first
	both.Go(func() {
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		_, err := a.Connect(ctx, 1, row)
		assert.ErrorIs(t, err, fault.ErrTimeout)
		assert.ErrorContains(t, err, "MTU")
	})
	both.Go(func() {
		_, err := b.Connect(over, 0, muteRow)
		assert.Error(t, err)
	})
	both.Wait()
	stop.Store(true)
	l.Close()
	relays.Wait()
	closeAll(t, a, b)
}

func TestHello(t *testing.T) {
	h, _ := newHello(t, 3, 4)
	h.index = 1
	got, err := parseHello(h.bytes(), 4)
	require.NoError(t, err)
	require.Equal(t, h, got)
	require.Len(t, h.bytes(), helloSize)
}

// Ranks connect even if many strangers dial all the time.
func TestStrangersAllTheTime(t *testing.T) {
	a, _ := node(t, 0)
	b, _ := node(t, 1)
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		var open []stdnet.Conn
		for {
			if c, err := stdnet.Dial("tcp", b.addr()); err == nil {
				open = append(open, c)
			}
			if len(open) == 200 {
				open[0].Close()
				open = open[1:]
			}
			select {
			case <-stop:
				for _, c := range open {
					c.Close()
				}
				return
			default:
			}
		}
	})
	ab, ba := connect(t, a, b)
	close(stop)
	all.Wait()
	la, lb := links(t, ab, ba, commID, 1)
	la.Put(0, 1, nil, 0)
	lb.until(t, 0, 1)
	closeAll(t, a, b)
}

func TestIPv6(t *testing.T) {
	l, err := stdnet.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here: ", err)
	}
	l.Close()
	a, _ := node(t, 0)
	t.Setenv("UBCOLL_NET", "::1")
	told := &told{}
	b, err := New(transport.Config{Rank: 1, Secret: secret, RowOf: told.rowOf})
	require.NoError(t, err)
	tolds.Store(b, told)
	b.Begin()
	require.Equal(t, []netip.Addr{netip.IPv6Loopback()}, b.row.Addrs)
	connect(t, a, b)
	closeAll(t, a, b)
}

// If descriptors run out, the error says how many the process may have.
func TestDescriptors(t *testing.T) {
	a, _ := node(t, 0)
	b, _ := node(t, 1)
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	few := before
	few.Cur = 3 // whatever other numbers become free meanwhile, as what earlier tests have left ends
	require.NoError(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &few, nil))
	_, err := a.Connect(within(t), 1, b.row)
	_, errNew := newPoll()
	require.NoError(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &before, nil))
	require.ErrorIs(t, err, fault.ErrLimit)
	require.ErrorContains(t, err, "ulimit -n")
	require.ErrorIs(t, errNew, fault.ErrLimit)
	closeAll(t, a, b)
}

// If ctx has ended, probe does not wait, even if ctx ended as it began.
func TestProbeDone(t *testing.T) {
	l, err := stdnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		c, err := stdnet.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		begin := time.Now()
		require.ErrorIs(t, accepting(ctx, c, nil, noOffer), context.Canceled)
		require.Less(t, time.Since(begin), testkit.Limit)
		require.NoError(t, c.Close())
	}
}

// A call waits for another that connects to the same peer only until its own context ends.
func TestConnectBeside(t *testing.T) {
	a, _ := node(t, 0)
	b, _ := node(t, 1)
	silent, err := stdnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	row := a.row
	row.Port = netip.MustParseAddrPort(silent.Addr().String()).Port()
	long, end := context.WithCancel(t.Context())
	var other sync.WaitGroup
	other.Go(func() { _, _ = b.Connect(long, 0, row) })
	taken := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.contacts[0] != nil && len(b.contacts[0].calling) == 1
	}
	testkit.Eventually(t, taken)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = b.Connect(short, 0, row)
	require.ErrorIs(t, err, fault.ErrTimeout)
	require.True(t, taken())
	end()
	other.Wait()
	closeAll(t, a, b)
}

// noRoom is a listener in a process that has no descriptors left.
type noRoom struct {
	stdnet.Listener
	stop  atomic.Bool
	asked atomic.Int64
}

func (l *noRoom) Accept() (stdnet.Conn, error) {
	if l.stop.Load() {
		return nil, stdnet.ErrClosed
	}
	l.asked.Add(1)
	return nil, &stdnet.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
}

// A node that can accept nobody for lack of descriptors goes on as soon as it can.
func TestAcceptLimit(t *testing.T) {
	a, _ := node(t, 0)
	b, _ := node(t, 1)
	l := &noRoom{Listener: b.listeners[0]}
	b.handshake.Go(func() { b.accept(l) })
	testkit.Eventually(t, func() bool { return l.asked.Load() > 1 })
	l.stop.Store(true)
	connect(t, a, b)
	closeAll(t, a, b)
}

// A wire that fails before it has a link is not reported as a death, and does not block the next attempt.
func TestWireWithoutLink(t *testing.T) {
	a, toldA := node(t, 0)
	b, toldB := node(t, 1)
	ab, ba := connect(t, a, b)
	ab.ended.Store(true) // as if making it failed at the dialling end
	ab.close()
	a.mu.Lock()
	delete(a.wires, 1)
	a.mu.Unlock()
	testkit.Eventually(t, func() bool { return ba.Err() != nil })
	ab, ba = connect(t, a, b)
	la, lb := links(t, ab, ba, commID, 1)
	la.Put(0, 1, nil, 0)
	lb.until(t, 0, 1)
	closeAll(t, a, b)
	require.Empty(t, toldA.downs())
	require.Empty(t, toldB.downs())
}
