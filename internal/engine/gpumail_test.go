package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda/kernels"
)

func message(peer int, recv bool, n int, word uint64) DeviceMessage {
	return DeviceMessage{Vec: Vec{Len: n, Type: dtype.Uint8}, Peer: peer, Recv: recv, word: word}
}

// All lanes of a rank find room at the same time, whatever is in them.
func TestMailBlocks(t *testing.T) {
	for _, most := range []int{32, 108, 132, 264} {
		for ranks := 1; ranks <= kernels.MaxRanks; ranks++ {
			t.Run(fmt.Sprintf("%d of %d", ranks, most), func(t *testing.T) {
				m := &gpuMail{d: &device{c: &Comm{size: ranks}}, most: most}
				for _, n := range []int{0, 1, 1000, kernels.EagerBytes, kernels.EagerBytes + 1, 1 << 20, 1 << 30} {
					total := 0
					for peer := range ranks {
						send, staged, direct := message(peer, false, n, 0), message(peer, true, n, 0), message(peer, true, n, 1<<63)
						total += m.blocks(&send) + max(m.blocks(&staged), m.blocks(&direct))
						require.Positive(t, m.blocks(&direct))
						if n > kernels.EagerBytes {
							require.Equal(t, 1, m.blocks(&direct))
						}
					}
					require.LessOrEqual(t, total, most, "%d bytes", n)
				}
				huge, packet := message(0, false, 1<<30, 0), message(0, false, 1, 0)
				require.Greater(t, m.blocks(&huge), 1)
				require.Equal(t, 1, m.blocks(&packet))
			})
		}
	}
}

// A send is a copy engine's only if all messages of its lane have been captured on both sides.
func TestMatch(t *testing.T) {
	const me, other = 3, 4
	received := func(ms ...DeviceMessage) (all []uint64) {
		for i := range ms {
			all = append(all, uint64(ms[i].Peer), ms[i].word, ms[i].message().Head)
		}
		return all
	}
	a, b := message(1, false, 100<<20, 0), message(1, false, 40<<20, 0)
	ra, rb, theirs := message(me, true, 100<<20, 7), message(me, true, 40<<20, 8), message(other, true, 100<<20, 9)
	short := b
	short.Vec.Len--
	for _, k := range []struct {
		name  string
		sends []*DeviceMessage
		words []uint64
		want  []uint64
	}{
		{"none", nil, received(theirs), nil},
		{"one", []*DeviceMessage{&a}, received(ra), []uint64{7}},
		{"beside others", []*DeviceMessage{&a, &b}, received(theirs, ra, theirs, rb), []uint64{7, 8}},
	} {
		t.Run(k.name, func(t *testing.T) {
			words, ok := match(k.sends, k.words, me)
			require.True(t, ok)
			require.Equal(t, k.want, words)
		})
	}
	for _, k := range []struct {
		name  string
		sends []*DeviceMessage
		words []uint64
	}{
		{"not received", []*DeviceMessage{&a}, received(theirs)},
		{"received once more", []*DeviceMessage{&a}, received(ra, rb)},
		{"another order", []*DeviceMessage{&a, &b}, received(rb, ra)},
		{"another size", []*DeviceMessage{&short}, received(rb)},
		{"cut off", []*DeviceMessage{&a}, received(ra)[:2]},
	} {
		t.Run(k.name, func(t *testing.T) {
			_, ok := match(k.sends, k.words, me)
			require.False(t, ok)
		})
	}
}
