package p2p

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestPutPacketsWhilePeerCloses makes the peer take its memory back just before a check of the grant, when some or all
// of the packets have arrived. A put whose packets have all arrived succeeds.
func TestPutPacketsWhilePeerCloses(t *testing.T) {
	for _, k := range []struct {
		name  string
		n     int
		taken bool // the peer takes all packets first
		want  error
	}{
		{"taken, a part of a piece", 13, true, nil},
		{"taken, a piece and a part", packPiece + 13, true, nil},
		{"taken, whole pieces", 2 * packPiece, true, nil},
		{"in the middle", 2 * packPiece, false, fault.ErrStale},
	} {
		for _, w := range testkit.Sample(2, []PacketWidth{Packet8, Packet16}) {
			t.Run(fmt.Sprintf("%s/%d", k.name, w), func(t *testing.T) {
				look := func() {}
				var armed atomic.Bool
				comms := enginetest.OpenHooked(t, engine.Options{}, enginetest.Hooks{Look: func() {}, Dead: func() bool { return false },
					Live: func() {
						if armed.Load() {
							look()
						}
					}})
				var mem [2]unsafe.Pointer
				chs := make([]*Channel, 2)
				room := (k.n + 15) &^ 15
				for r, c := range comms {
					v, reg := enginetest.Registered(t, c, room+w.size(k.n))
					mem[r], chs[r] = v.Ptr, &Channel{local: reg}
				}
				require.NoError(t, errors.Join(testkit.Each(comms, func(c *engine.Comm) (err error) {
					ch := chs[c.Rank()]
					if ch.end, err = onesided.SpaceOf(c).Connect(t.Context(), 1-c.Rank(), ch.local, nil); err == nil {
						ch.packets = newPackets(ch.end)
					}
					return err
				})...))
				taker, putter := chs[0], chs[1]
				src := unsafe.Slice((*byte)(mem[1]), k.n)
				copy(src, testkit.Bytes(testkit.Random(t), k.n))

				// A packet's last word is its flag, or contains it.
				came := func(end int) bool {
					return atomic.LoadUint64((*uint64)(unsafe.Add(mem[0], room+end-8))) != 0
				}
				looked := make(chan struct{})
				now := sync.OnceFunc(func() { close(looked) })
				look = func() {
					at := int(w)
					if k.taken {
						at = w.size(k.n)
					}
					if came(at) && armed.CompareAndSwap(true, false) {
						now()
						testkit.Eventually(t, func() bool { return putter.end.Live() != nil }, "the peer takes its memory back")
					}
				}
				closed := make(chan error, 1)
				go func() {
					var err error
					if k.taken {
						err = taker.GetPackets(t.Context(), 0, room, k.n, w)
					} else {
						<-looked
					}
					closed <- errors.Join(err, taker.local.Close())
				}()
				armed.Store(true)
				err := putter.PutPackets(t.Context(), room, 0, k.n, w)
				armed.Store(false)
				now()
				require.ErrorIs(t, err, k.want)
				require.NoError(t, <-closed)
				require.Equal(t, k.taken, came(w.size(k.n)), "the last packet")
				if k.taken {
					require.True(t, bytes.Equal(src, unsafe.Slice((*byte)(mem[0]), k.n)), "wrong data")
				}
				require.ErrorIs(t, putter.PutPackets(t.Context(), room, 0, k.n, w), fault.ErrStale)
			})
		}
	}
}
