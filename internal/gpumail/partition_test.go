package gpumail

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// listed returns the lanes of a set.
func listed(s gpu.LaneSet) (all []int) {
	for i := s.Next(0); i >= 0; i = s.Next(i + 1) {
		all = append(all, i)
	}
	return all
}

// For any messages that start together, each lane is in exactly one part, and each part fits one kernel or is a single
// lane that needs several.
func TestParts(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	check := func(t *testing.T, ranks, most int, ms []Message) (parts int) {
		p := newPartition(2 * ranks)
		p.most = most
		p.set(ms)
		left, seen := p.lanes, map[int]bool{}
		for ; !left.Empty(); parts++ {
			first := left.Next(0)
			part := p.part(&left)
			require.Equal(t, first, part.Next(0), "the first lane's own stream has it")
			messages, apart := 0, false
			for _, lane := range listed(part) {
				require.False(t, seen[lane], "lane %d twice", lane)
				seen[lane] = true
				apart = apart || p.apart(lane)
				for i := range ms {
					if laneOf(ms[i].Peer, ms[i].Recv) == lane {
						messages++
					}
				}
			}
			if apart {
				require.Equal(t, 1, part.Len())
				continue
			}
			require.LessOrEqual(t, part.Len(), most)
			require.LessOrEqual(t, messages, kernels.MaxMessages)
		}
		for i := range ms {
			require.True(t, seen[laneOf(ms[i].Peer, ms[i].Recv)])
		}
		return parts
	}
	for range 300 {
		ranks := 1 + r.IntN(engine.MaxRanks)
		var ms []Message
		for range 1 + r.IntN(300) {
			msg := message(r.IntN(1+r.IntN(ranks)), r.IntN(2) == 0, r.IntN(100), 0)
			if !msg.Recv && r.IntN(20) == 0 {
				msg.to = 5
			}
			ms = append(ms, msg)
		}
		check(t, ranks, []int{1, 16, 64}[r.IntN(3)], ms)
	}
	for _, k := range []struct {
		name         string
		ranks, times int
		most         int
		copies       int // sends to this many ranks
		parts        int
	}{
		{"one", 1, 1, 16, 0, 1},
		{"2 ranks, as many as a kernel has", 2, 16, 16, 0, 1},
		{"2 ranks, one more each", 2, 17, 16, 0, 2},
		{"2 ranks, more than a kernel in each lane", 2, 65, 16, 0, 4},
		{"8 ranks", 8, 1, 16, 0, 1},
		{"8 ranks, 4 each", 8, 4, 16, 0, 1},
		{"8 ranks, 5 each", 8, 5, 16, 0, 2},
		{"8 ranks, copies to two", 8, 1, 16, 2, 3},
		{"72 ranks", 72, 1, 16, 0, 9},
		{"72 ranks, wide kernels", 72, 1, 64, 0, 3},
		{"72 ranks, wide kernels, copies to two", 72, 1, 64, 2, 5},
	} {
		t.Run(k.name, func(t *testing.T) {
			var ms []Message
			for range k.times {
				for peer := range k.ranks {
					send := message(peer, false, 100, 0)
					if peer < k.copies {
						send.to = 1
					}
					ms = append(ms, send, message(peer, true, 100, 0))
				}
			}
			require.Equal(t, k.parts, check(t, k.ranks, k.most, ms))
		})
	}
}

// A partition can be used again, for other messages.
func TestPartitionAgain(t *testing.T) {
	p := newPartition(4)
	many := slices.Repeat([]Message{message(1, true, 5, 0)}, 70)
	many[3].Recv, many[3].to = false, 1
	p.set(many)
	require.True(t, p.apart(2) && p.apart(3))
	p.set([]Message{message(1, true, 5, 0)})
	require.Equal(t, []int{3}, listed(p.lanes))
	require.False(t, p.apart(2) || p.apart(3) || p.copies, fmt.Sprint(p.each))
}

// The host's work for each message allocates nothing, however many ranks there are.
func TestPartitionAllocs(t *testing.T) {
	for _, ranks := range []int{2, engine.MaxRanks} {
		m := newMessages(ranks, &gpu.Device{Room: gpu.RoomOf(132, ranks)})
		var ms []Message
		for peer := range ranks {
			ms = append(ms, message(peer, false, 1<<20, 0), message(peer, true, 1<<20, 0))
		}
		p := newPartition(2 * ranks)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			lanes := lanesOf(ms)
			if m.lock(lanes) != nil {
				return
			}
			p.set(ms)
			m.share(p.blocks, ms, nil)
			for left := p.lanes; !left.Empty(); {
				p.part(&left)
			}
			m.unlock(lanes)
		}), "%d ranks", ranks)
	}
}

func BenchmarkPartition(b *testing.B) {
	for _, ranks := range []int{2, 8, engine.MaxRanks} {
		for _, peers := range []int{1, ranks - 1} {
			b.Run(fmt.Sprintf("%d ranks, %d peers", ranks, peers), func(b *testing.B) {
				m := newMessages(ranks, &gpu.Device{Room: gpu.RoomOf(132, ranks)})
				var ms []Message
				for peer := range peers {
					ms = append(ms, message(1+peer, false, 1<<20, 0), message(1+peer, true, 1<<20, 0))
				}
				p := newPartition(2 * ranks)
				for b.Loop() {
					p.set(ms)
					m.share(p.blocks, ms, nil)
					for left := p.lanes; !left.Empty(); {
						p.part(&left)
					}
				}
			})
		}
	}
}
