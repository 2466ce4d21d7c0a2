//go:build cgo

package rdm

import (
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/conntest"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/ofi"
	"github.com/ubcoll/ubcoll/register"
)

// host is one process's rail and its registered memory.
type host struct {
	rail   *Rail
	cache  *register.Cache
	arena  []byte
	memory register.Memory
	ready  atomic.Pointer[func() bool] // of the endpoint that is open
}

// each runs test over tcp, and in full runs over each provider that is here.
func each(t *testing.T, test func(t *testing.T, i *fabric.Info)) {
	if p := fabric.Have(); p.Err != nil {
		testkit.Missing(t, "libfabric", p.Err)
	}
	for _, provider := range []string{"tcp;ofi_rxm", "udp;ofi_rxd", "sockets", "verbs;ofi_rxm"} {
		if provider != "tcp;ofi_rxm" && !testkit.Full() {
			return
		}
		t.Run(provider, func(t *testing.T) {
			infos, _, err := fabric.List(t.Context(), provider, "")
			require.NoError(t, err)
			for _, i := range infos {
				if !i.Address.IsValid() || i.Address.Is4() {
					test(t, i)
					if i.SendsLast && provider == "tcp;ofi_rxm" {
						t.Run("no order", func(t *testing.T) {
							other := *i
							other.SendsLast = false
							test(t, &other)
						})
					}
					return
				}
			}
			if provider == "tcp;ofi_rxm" {
				testkit.Missing(t, "libfabric", "libfabric has no provider "+provider+" here")
			}
			t.Skip("no provider ", provider, " here")
		})
	}
}

// newHost opens a domain, and registers memory with it. The end of the test checks that nothing is left.
func newHost(t testing.TB, i *fabric.Info) *host {
	t.Helper()
	d, err := fabric.Open(i)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(), "something is left") })
	on := ofi.Rail{Domain: d}
	b := ofi.New([]ofi.Rail{on}, nil)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	h := &host{}
	h.cache, err = register.New(register.Config{Backends: []register.Backend{b}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.cache.Close()) })
	watching := 0
	h.rail = Open(on, 0, func(_ int, ready, _ func() bool) (func(), error) {
		watching++
		h.ready.Store(&ready)
		return func() { watching-- }, nil
	})
	t.Cleanup(func() {
		require.NoError(t, h.rail.Close())
		require.Zero(t, watching)
	})
	h.arena, err = unix.Mmap(-1, 0, conntest.ArenaBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(h.arena)) })
	h.memory = register.Memory{ID: lastID.Add(1), Generation: 1, Base: uintptr(at(h.arena)), Bytes: len(h.arena), Device: hw.Host, Kind: "adopted"}
	ref, err := h.cache.Register(h.memory, h.memory.Base, len(h.arena))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ref.Close()) })
	return h
}

var lastID atomic.Uint64

func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func (h *host) find(addr uintptr, n int) *register.Claim { return h.cache.FindLocal(addr, n, 0) }

// poll lets the endpoint's connections handle what has come.
func (h *host) poll() { (*h.ready.Load())() }

// pair makes a connection between two hosts.
func pair(t testing.TB, ha, hb *host) (a, b *Conn) {
	t.Helper()
	a, at, err := New(ha.rail, ha.find)
	require.NoError(t, err)
	b, bt, err := New(hb.rail, hb.find)
	require.NoError(t, err)
	require.NoError(t, a.Meet(bt, "b"))
	require.NoError(t, b.Meet(at, "a"))
	pinged := make(chan error)
	go func() { pinged <- a.Ping(t.Context()) }()
	require.NoError(t, b.Ping(t.Context()))
	require.NoError(t, <-pinged)
	return a, b
}

// connect makes a connection between two hosts whose ends are tested.
func connect(t testing.TB, ha, hb *host) (a, b *conntest.End) {
	t.Helper()
	ca, cb := pair(t, ha, hb)
	begin := func(c *Conn) *conntest.End {
		return conntest.New(t, c, func(s conntest.Sink) { c.Begin(s, func() bool { moved, _ := c.Receive(); return moved }) })
	}
	return begin(ca), begin(cb)
}

func TestPuts(t *testing.T) {
	each(t, func(t *testing.T, i *fabric.Info) {
		h := newHost(t, i)
		a, b := connect(t, h, h)
		conntest.Puts(t, a, b, h.arena)
	})
}

func TestCredits(t *testing.T) {
	each(t, func(t *testing.T, i *fabric.Info) {
		h := newHost(t, i)
		conntest.Credits(t, func(t *testing.T) (a, b *conntest.End) { return connect(t, h, h) }, h.arena)
	})
}

// sink counts what comes.
type sink struct {
	frame.Sink
	told []frame.Header
}

func (s *sink) Told(h frame.Header) error {
	s.told = append(s.told, h)
	return nil
}

// message0 is a message to c as its peer would send it.
func (c *Conn) message0(number uint32, kind byte, h frame.Header) []byte {
	b := make([]byte, slotBytes)
	prefix{c.mine, number, 0, kind}.encode(b)
	h.Encode(b[prefixBytes:])
	return b[:prefixBytes+frame.HeaderSize]
}

// TestOrder: whatever order a provider gives messages in, they are handled in the order in which they were sent; what
// is no message of the peer's is not handled.
func TestOrder(t *testing.T) {
	one := func(seq uint64) frame.Header { return frame.Header{Kind: frame.Revoke, Comm: 1, Seq: seq} }
	for name, k := range map[string]struct {
		come func(c *Conn, give func(b []byte) bool)
		want []uint64
		err  error
	}{
		"in order": {func(c *Conn, give func([]byte) bool) {
			for i := range uint32(3) {
				give(c.message0(1+i, framed, one(uint64(i)+1)))
			}
		}, []uint64{1, 2, 3}, nil},
		"backwards": {func(c *Conn, give func([]byte) bool) {
			for i := range uint32(3) {
				give(c.message0(3-i, framed, one(uint64(3-i))))
			}
		}, []uint64{1, 2, 3}, nil},
		"one is missing": {func(c *Conn, give func([]byte) bool) {
			give(c.message0(1, framed, one(1)))
			give(c.message0(3, framed, one(3)))
		}, []uint64{1}, nil},
		"a stranger": {func(c *Conn, give func([]byte) bool) {
			b := c.message0(1, framed, one(7))
			b[7] ^= 1
			if give(b) {
				panic("it was taken")
			}
			give(c.message0(1, framed, one(1)))
		}, []uint64{1}, nil},
		"twice": {func(c *Conn, give func([]byte) bool) {
			give(c.message0(2, framed, one(2)))
			if give(c.message0(2, framed, one(7))) {
				panic("it was taken")
			}
			give(c.message0(1, framed, one(1)))
		}, []uint64{1, 2}, nil},
		"again": {func(c *Conn, give func([]byte) bool) {
			if give(c.message0(0, framed, one(7))) {
				panic("it was taken")
			}
		}, nil, nil},
		"too early": {func(c *Conn, give func([]byte) bool) {
			if give(c.message0(1+credits, framed, one(7))) {
				panic("it was taken")
			}
		}, nil, nil},
		"no kind":  {func(c *Conn, give func([]byte) bool) { give(c.message0(1, kinds, one(1))) }, nil, frame.ErrFrame},
		"no frame": {func(c *Conn, give func([]byte) bool) { give(c.message0(1, framed, one(1))[:prefixBytes+3]) }, nil, frame.ErrFrame},
		"written nothing": {func(c *Conn, give func([]byte) bool) {
			give(c.message0(1, written, frame.Header{Kind: frame.Put, Comm: 1, Seq: 1}))
		}, nil, frame.ErrFrame},
		"a call was written": {func(c *Conn, give func([]byte) bool) {
			give(append(c.message0(1, written, one(1)), make([]byte, 8)...))
		}, nil,
			frame.ErrFrame},
		"a long head": {func(c *Conn, give func([]byte) bool) { give(append(c.message0(1, framed, one(1)), 7)) }, []uint64{1}, frame.ErrFrame},
		"two frames": {func(c *Conn, give func([]byte) bool) {
			b := c.message0(1, framed, one(1))
			give(append(b, b[prefixBytes:]...))
		}, []uint64{1, 1}, nil},
		"a bad landing": {func(c *Conn, give func([]byte) bool) {
			b := c.message0(1, framed, frame.Header{Kind: frame.Grant, Comm: 1, Seq: 1, Length: 9})
			b[prefixBytes+keysByte] = 1
			give(append(b, make([]byte, 8)...))
		}, nil, frame.ErrFrame},
		"many keys": {func(c *Conn, give func([]byte) bool) {
			b := c.message0(1, framed, frame.Header{Kind: frame.Grant, Comm: 1, Seq: 1, Length: 9})
			b[prefixBytes+keysByte] = 9
			give(append(b, make([]byte, 80)...))
		}, nil, frame.ErrFrame},
		"keys of a revocation": {func(c *Conn, give func([]byte) bool) {
			b := c.message0(1, framed, one(1))
			b[prefixBytes+keysByte] = 1
			give(append(b, make([]byte, 16)...))
		}, nil, frame.ErrFrame},
		"the end": {func(c *Conn, give func([]byte) bool) {
			give(c.message0(2, last, frame.Header{}))
			give(c.message0(3, framed, one(7)))
			give(c.message0(1, framed, one(1)))
		}, []uint64{1}, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Conn{end: &Endpoint{closed: fault.ErrClosed}, mine: 5<<32 | 1, handled: 1, counts: counts{}}
			c.end.slots.memory = make([]byte, 8*slotBytes)
			s := &sink{}
			c.sink = s
			slot := uint32(0)
			k.come(c, func(b []byte) bool {
				copy(c.end.slots.at(int(slot)), b)
				slot++
				return c.came(slot-1, len(b))
			})
			_, err := c.take(false)
			require.ErrorIs(t, err, k.err)
			var seqs []uint64
			for _, h := range s.told {
				seqs = append(seqs, h.Seq)
			}
			require.Equal(t, k.want, seqs)
			_, again := c.take(false)
			require.ErrorIs(t, again, k.err)
		})
	}
}

// TestEnd: what was sent before Shut comes before the end of the stream.
func TestEnd(t *testing.T) {
	each(t, func(t *testing.T, i *fabric.Info) {
		h := newHost(t, i)
		ca, cb := pair(t, h, h)
		defer ca.Close()
		defer cb.Close()
		s := &sink{}
		ca.Begin(&sink{}, func() bool { moved, _ := ca.Receive(); return moved })
		cb.Begin(s, func() bool { return false })
		for k := range uint64(200) {
			ca.Put(frame.Header{Kind: frame.Revoke, Comm: 1, Seq: k + 1}, nil, nil)
		}
		ca.Shut()
		var err error
		testkit.Eventually(t, func() bool { h.poll(); ca.Flush(); _, err = cb.Receive(); return err != nil })
		require.ErrorIs(t, err, io.EOF)
		require.Len(t, s.told, 200)
		testkit.Eventually(t, func() bool { h.poll(); return ca.Queued() == 0 })
	})
}

// TestFewReceives: connections that share fewer receives than they could hold get all that is sent to them.
func TestFewReceives(t *testing.T) {
	each(t, func(t *testing.T, i *fabric.Info) {
		few := *i
		few.Receives = 8
		h := newHost(t, &few)
		var from, to []*Conn
		var sinks []*sink
		for range 12 {
			a, b := pair(t, h, h)
			defer a.Close()
			defer b.Close()
			s := &sink{}
			a.Begin(&sink{}, func() bool { moved, _ := a.Receive(); return moved })
			b.Begin(s, func() bool { moved, _ := b.Receive(); return moved })
			from, to, sinks = append(from, a), append(to, b), append(sinks, s)
		}
		for round := range uint64(20) {
			for _, c := range from {
				c.Put(frame.Header{Kind: frame.Revoke, Comm: 1, Seq: round + 1}, nil, nil)
			}
			for k, s := range sinks {
				testkit.Eventually(t, func() bool {
					h.poll()
					_, err := to[k].Receive()
					require.NoError(t, err)
					return len(s.told) == int(round+1)
				})
			}
		}
	})
}

// TestEndpointCloses: where a peer may still write, or does not let what was sent complete, Close and Drop close the endpoint: its
// other connections end and say why, nothing is written any more, and the next connection has another endpoint.
func TestEndpointCloses(t *testing.T) {
	for name, f := range map[string]func(c *Conn, sent *atomic.Uint64){
		"the peer may write":  func(c *Conn, sent *atomic.Uint64) { c.Doubt(); c.Close() },
		"it does not take it": func(c *Conn, sent *atomic.Uint64) { c.Close() },
		"dropped":             func(c *Conn, sent *atomic.Uint64) { c.Drop(1); c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, i *fabric.Info) {
				here, there := newHost(t, i), newHost(t, i)
				a, b := pair(t, here, there)
				other, far := pair(t, here, there)
				defer other.Close()
				for _, c := range []*Conn{a, b, other, far} {
					c.Begin(&sink{}, func() bool { return false })
				}
				landing, claim := b.Landing(at(there.arena), 4<<20)
				require.NotNil(t, claim)
				defer claim.Release()
				var sent atomic.Uint64
				for k := range here.arena[4<<20:] {
					here.arena[4<<20+k] = byte(k) | 1
				}
				a.Put(frame.Header{Kind: frame.Put, Comm: 1, Seq: 1, Length: 4 << 20, Landing: landing}, at(here.arena[4<<20:]), &sent)
				f(a, &sent) // while the other side does nothing
				require.EqualValues(t, 1, sent.Load())
				_, err := other.Receive()
				if i.Manual || name == "the peer may write" {
					require.Error(t, err)
					require.Contains(t, err.Error(), "was closed, since")
					require.True(t, errors.Is(err, fault.ErrTimeout) || errors.Is(err, fault.ErrPeerLost))
				}
				clear(here.arena) // nobody reads it any more
				c, d := pair(t, here, there)
				defer c.Close()
				defer d.Close()
				b.Close()
				far.Close()
			})
		})
	}
}

// TestMessageAfterEnd: a message that has come when its endpoint closes, since another connection ends, can still be read.
func TestMessageAfterEnd(t *testing.T) {
	each(t, func(t *testing.T, i *fabric.Info) {
		here, there := newHost(t, i), newHost(t, i)
		a, b := pair(t, here, there)
		other, far := pair(t, here, there)
		s := &sink{}
		for _, c := range []*Conn{a, b, other, far} {
			c.Begin(s, func() bool { return false })
		}
		far.Put(frame.Header{Kind: frame.Revoke, Comm: 1, Seq: 7}, nil, nil)
		testkit.Eventually(t, func() bool {
			far.end.poll(true)
			other.end.poll(true)
			other.mu.Lock()
			defer other.mu.Unlock()
			return other.in[other.handled%credits].bytes > 0
		})
		a.Doubt()
		a.Close()
		_, err := other.Receive()
		require.ErrorIs(t, err, fault.ErrPeerLost)
		require.Len(t, s.told, 1)
		require.EqualValues(t, 7, s.told[0].Seq)
		other.Close()
		require.False(t, here.rail.current.unused, "the receives' memory is left")
		b.Close()
		far.Close()
	})
}
