//go:build linux && cgo && (amd64 || arm64)

package ofi_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// lengths are of messages: none, inline ones, and some beyond all protocols' thresholds.
var lengths = []int{0, 1, 8, 64, 4096, 16<<10 + 1, 1 << 20}

// TestMessages sends messages of all lengths both ways, with data and without, inline and not.
func TestMessages(t *testing.T) {
	testkit.SkipRace(t)
	each(t, func(t *testing.T, i *ofi.Info) {
		a, b, toB, toA := pair(t, i)
		const room = 1 << 20
		src, from := a.registered(t, room)
		dst, to := b.registered(t, room)
		exchange := func(a, b *end, toB, toA ofi.Peer, src, dst []byte, from, to *ofi.MR) {
			for k, n := range lengths {
				for _, flags := range []ofi.Flag{0, ofi.WithData, ofi.Delivered, ofi.Inline, ofi.Inline | ofi.WithData} {
					if flags&ofi.Inline != 0 && n > i.Inline {
						continue
					}
					pattern(src[:n], byte(k)+byte(flags))
					clear(dst)
					r := work(ofi.OpReceive, toA, to, 0, nil, 0, room)
					r.Peer = []ofi.Peer{toA, ofi.Any}[k%2]
					require.NoError(t, b.post(a, r))
					s := work(ofi.OpSend, toB, from, 0, nil, 0, n)
					s.Flags, s.Data = flags, data(i, 0x1234_5678_9abc_def0+uint64(k))
					require.NoError(t, a.post(b, s))
					if flags&ofi.Inline == 0 {
						_, err := a.finish(b, s.ID)
						require.NoError(t, err)
					}
					c, err := b.finish(a, r.ID)
					require.NoError(t, err)
					require.Equal(t, uint64(n), c.Bytes, "flags %d", flags)
					require.Equal(t, ofi.OpReceive, c.Op)
					require.Equal(t, flags&ofi.WithData != 0, c.HasData(), "%d bytes, flags %d", n, flags)
					if c.HasData() {
						require.Equal(t, s.Data, c.Data)
					}
					require.True(t, bytes.Equal(src[:n], dst[:n]), "%d bytes, flags %d", n, flags)
					require.Equal(t, -1, firstSet(dst[n:]), "beyond %d bytes", n)
				}
			}
		}
		exchange(a, b, toB, toA, src, dst, from, to)
		exchange(b, a, toA, toB, dst, src, to, from)
	})
}

func firstSet(m []byte) int { return bytes.IndexFunc(m, func(r rune) bool { return r != 0 }) }

// TestWrites writes and reads at offsets in a peer's registration. With data, the peer learns that the bytes are there.
func TestWrites(t *testing.T) {
	testkit.SkipRace(t)
	each(t, func(t *testing.T, i *ofi.Info) {
		a, b, toB, _ := pair(t, i)
		const room, edge = 1<<20 + 64, 32
		src, from := a.registered(t, room)
		dst, to := b.registered(t, room)
		for k, n := range lengths {
			for _, flags := range []ofi.Flag{0, ofi.Delivered, ofi.WithData, ofi.WithData | ofi.Delivered, ofi.Inline, ofi.Inline | ofi.WithData} {
				if flags&ofi.Inline != 0 && n > i.Inline || n == 0 {
					continue
				}
				pattern(src[:n], byte(k)+byte(flags))
				clear(dst)
				w := work(ofi.OpWrite, toB, from, 0, to, edge, n)
				w.Flags, w.Data = flags, data(i, uint64(k)<<40+uint64(flags))
				require.NoError(t, a.post(b, w))
				if flags&ofi.Inline == 0 {
					_, err := a.finish(b, w.ID)
					require.NoError(t, err)
				}
				if flags&ofi.WithData != 0 {
					c, err := b.event(a)
					require.NoError(t, err)
					require.True(t, c.HasData())
					require.Equal(t, w.Data, c.Data)
				}
				if flags == 0 || flags == ofi.Inline {
					require.NoError(t, wait(a, b, "bytes", func() bool { return bytes.Equal(src[:n], dst[edge:edge+n]) }))
				}
				require.True(t, bytes.Equal(src[:n], dst[edge:edge+n]), "%d bytes, flags %d", n, flags)
				require.Equal(t, -1, firstSet(dst[:edge]), "before %d bytes", n)
				require.Equal(t, -1, firstSet(dst[edge+n:]), "beyond %d bytes", n)
			}
			if n == 0 {
				continue
			}
			pattern(dst[edge:edge+n], byte(k)+99)
			clear(src)
			_, err := a.do(b, work(ofi.OpRead, toB, from, edge/2, to, edge, n))
			require.NoError(t, err)
			require.True(t, bytes.Equal(src[edge/2:edge/2+n], dst[edge:edge+n]), "read of %d bytes", n)
		}
	})
}

// TestAtomics adds and swaps in a peer's memory.
func TestAtomics(t *testing.T) {
	testkit.SkipRace(t)
	each(t, func(t *testing.T, i *ofi.Info) {
		a, b, toB, _ := pair(t, i)
		if !a.Atomics() {
			t.Skip("no atomics")
		}
		src, from := a.registered(t, 4096)
		dst, to := b.registered(t, 4096)
		_, err := a.do(b, work(ofi.OpWrite, toB, from, 0, to, 0, 8))
		require.NoError(t, err)
		for k := range 10 {
			w := work(ofi.OpFetchAdd, toB, from, 8, to, 16, 8)
			w.Add = 3
			_, err := a.do(b, w)
			require.NoError(t, err)
			require.EqualValues(t, 3*k, src[8])
			require.EqualValues(t, 3*(k+1), dst[16])
		}
		for _, c := range []struct{ expect, then byte }{{29, 30}, {30, 77}, {0, 77}} {
			before := dst[16]
			w := work(ofi.OpCompareSwap, toB, from, 8, to, 16, 8)
			w.Add, w.Swap = uint64(c.expect), uint64(c.then)
			_, err := a.do(b, w)
			require.NoError(t, err)
			require.Equal(t, before, src[8])
			if before == c.expect {
				require.Equal(t, c.then, dst[16])
			} else {
				require.Equal(t, before, dst[16])
			}
		}
	})
}

// TestWait sleeps until the descriptor of an endpoint is readable, as a background goroutine does.
func TestWait(t *testing.T) {
	each(t, func(t *testing.T, i *ofi.Info) {
		a, b, toB, _ := pair(t, i)
		if i.Provider == "udp;ofi_rxd" { // it must not be asked: see Endpoint.open
			require.Negative(t, b.FD())
			may, err := b.MayWait()
			require.NoError(t, err)
			require.False(t, may)
			return
		}
		require.GreaterOrEqual(t, b.FD(), 0)
		_, from := a.registered(t, 4096)
		_, to := b.registered(t, 4096)
		w := work(ofi.OpWrite, toB, from, 0, to, 0, 4096)
		_, err := a.do(b, w) // they have met
		require.NoError(t, err)
		slept := 0
		for range 20 {
			w := work(ofi.OpWrite, toB, from, 0, to, 0, 4096)
			w.Flags = ofi.WithData
			posted := make(chan error, 1)
			go func() {
				time.Sleep(2 * time.Millisecond)
				posted <- a.post(a, w)
			}()
			for len(b.events) == 0 {
				idle, err := b.MayWait()
				require.NoError(t, err)
				if idle {
					n, err := unix.Poll([]unix.PollFd{{Fd: int32(b.FD()), Events: unix.POLLIN}}, int(limit.Milliseconds()))
					if err != unix.EINTR {
						require.NoError(t, err)
						require.Positive(t, n, "the descriptor is not readable")
					}
					slept++
				}
				require.NoError(t, b.progress())
			}
			b.events = nil
			require.NoError(t, <-posted)
			_, err = a.finish(b, w.ID)
			require.NoError(t, err)
		}
		require.Positive(t, slept)
	})
}
