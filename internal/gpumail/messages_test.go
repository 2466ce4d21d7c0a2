package gpumail

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
)

func message(peer int, recv bool, n int, word uint64) Message {
	return Message{Call: mail.Call{Vec: team.Vec{Len: n, Type: dtype.Uint8}, Peer: peer, Recv: recv}, word: word}
}

// shared returns the blocks that m.share gives to ms.
func shared(m *messages, ms []Message, keep *gpu.LaneBlocks) gpu.LaneBlocks {
	blocks := make(gpu.LaneBlocks, len(m.lanes))
	m.share(blocks, ms, keep)
	return blocks
}

// All lanes of a rank find room at the same time, whatever messages they have, in any order, beside a collective.
func TestRoom(t *testing.T) {
	for _, sms := range []int{4, 60, 108, 114, 132, 148} {
		for _, ranks := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 71, engine.MaxRanks} {
			t.Run(fmt.Sprintf("%d ranks, %d multiprocessors", ranks, sms), func(t *testing.T) {
				room := gpu.RoomOf(sms, ranks)
				left := sms - room.Collectives
				require.LessOrEqual(t, room.Messages+room.Channels, gpu.RoomBlocks*left)
				if sms < gpu.LeastForMessages(ranks) {
					_, err := newMessages(ranks, &gpu.Device{Domain: &gpu.Domain{Sharers: 1}, Room: room, Multiprocessors: sms}).load()
					require.ErrorIs(t, err, fault.ErrNotSupported)
					require.ErrorContains(t, err, fmt.Sprintf("between %d ranks take %d multiprocessors", ranks,
						gpu.LeastForMessages(ranks)))
					return
				}
				if sms >= 60 {
					require.GreaterOrEqual(t, room.Messages, 2*ranks, "a block for each lane")
				}
				most := max(room.Messages, 2*ranks) // each lane gets a block, even where there is no room
				if sms > 100 && ranks <= 8 {
					require.Equal(t, min(sms/6, 20), left)
				}
				rest := func(n int32) int32 { return min(pushBlocks, max(int32(most-2*ranks)+1-n, 1)) }
				for _, n := range []int{0, 1, 1000, kernels.EagerBytes, kernels.EagerBytes + 1, 1 << 20, 1 << 30} {
					var all []Message
					for peer := range ranks {
						all = append(all, message(peer, false, n, 0), message(peer, true, n, 0))
					}
					total := 0
					alone := newMessages(ranks, &gpu.Device{Room: room})
					for i := range all {
						b := shared(alone, all[i:i+1], nil)[laneOf(all[i].Peer, all[i].Recv)]
						require.Positive(t, b)
						total += int(b)
					}
					require.LessOrEqual(t, total, most, "%d bytes, one by one", n)
					total = 0
					for _, b := range shared(newMessages(ranks, alone.d), all, nil) {
						require.Positive(t, b)
						total += int(b)
					}
					require.LessOrEqual(t, total, most, "%d bytes, together", n)
					var first, second gpu.LaneBlocks
					captured := newMessages(ranks, alone.d)
					shared(captured, all[:1], &first)
					shared(captured, all[1:], &second)
					total = 0
					for i := range first {
						total += int(max(first[i], second[i]))
					}
					require.LessOrEqual(t, total, most, "%d bytes, captured", n)
					huge := []Message{message(0, true, 1<<30, 0)}
					again := slices.Clone(second)
					shared(captured, all[1:], &second)
					require.Equal(t, again, second, "a graph's calls run one after the other")
					captured.giveUp(&gpu.LaneBlocks{})
					shared(captured, all[:1], captured.shares.Kept())
					captured.giveUp(&first)
					captured.giveUp(&second)
					kept := (*captured.shares.Kept())[0]
					require.EqualValues(t, min(takeBlocks, rest(kept-1)), shared(captured, huge, nil)[1], "kept: %d", kept)
				}
				m := newMessages(ranks, &gpu.Device{Room: room})
				huge := []Message{message(0, false, 1<<30, 0)}
				require.Equal(t, rest(0), shared(m, huge, nil)[0], "it may have all the rest")
				direct := []Message{message(0, true, 1<<30, 1<<63)}
				require.EqualValues(t, 1, shared(m, direct, nil)[1])
			})
		}
	}
}

// A copy engine does a send only if all messages of its lane have been captured on both sides.
func TestMatch(t *testing.T) {
	const me, other = 3, 4
	m := newMessages(other+1, nil)
	received := func(ms ...Message) (all []uint64) {
		for i := range ms {
			all = append(all, uint64(ms[i].Peer), ms[i].word, m.message(&ms[i]).Head)
		}
		return all
	}
	a, b := message(1, false, 100<<20, 0), message(1, false, 40<<20, 0)
	ra, rb, theirs := message(me, true, 100<<20, 7), message(me, true, 40<<20, 8), message(other, true, 100<<20, 9)
	short := b
	short.Vec.Len--
	for _, k := range []struct {
		name  string
		sends []*Message
		words []uint64
		want  []uint64
	}{
		{"none", nil, received(theirs), nil},
		{"one", []*Message{&a}, received(ra), []uint64{7}},
		{"beside others", []*Message{&a, &b}, received(theirs, ra, theirs, rb), []uint64{7, 8}},
	} {
		t.Run(k.name, func(t *testing.T) {
			words, ok := m.match(k.sends, k.words, me)
			require.True(t, ok)
			require.Equal(t, k.want, words)
		})
	}
	for _, k := range []struct {
		name  string
		sends []*Message
		words []uint64
	}{
		{"not received", []*Message{&a}, received(theirs)},
		{"received once more", []*Message{&a}, received(ra, rb)},
		{"another order", []*Message{&a, &b}, received(rb, ra)},
		{"another size", []*Message{&short}, received(rb)},
		{"cut off", []*Message{&a}, received(ra)[:2]},
	} {
		t.Run(k.name, func(t *testing.T) {
			_, ok := m.match(k.sends, k.words, me)
			require.False(t, ok)
		})
	}
}
