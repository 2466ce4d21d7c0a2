package gpu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

// A kernel that is launched early waits on the device beside the kernel before it. If the two do not fit into the room
// of collectives, it would wait in the room of messages, and the kernel before it may be waiting, through a peer, for
// these.
func TestRoomForEarlyKernels(t *testing.T) {
	room := RoomOf(132, 2)
	large, small := int32(RoomBlocks*room.Collectives), int32(64)
	s := &Stream{}
	for i, k := range []struct {
		takes int32
		early bool
	}{{large, true}, {small, false}, {small, true}, {small, true}, {large, false}, {0, true}, {small, true}, {large / 2, true},
		{large/2 + 1, false}, {1, true}} {
		before := s.taken.Load()
		require.Equal(t, k.early, s.Follows(k.takes, room.Collectives), "kernel %d", i)
		if k.early {
			require.LessOrEqual(t, int(before+k.takes)+room.Messages+room.Channels, RoomBlocks*132, "kernel %d", i)
		}
	}
}

// However many ranks and multiprocessors there are, all work that shares a device fits on it: one block of each message
// lane, a collective and a channel, all at the same time.
func TestRoomOf(t *testing.T) {
	for _, k := range []struct {
		name        string
		sms, ranks  int
		collectives int
		messages    int
		channels    int
	}{
		{"2 ranks, H200", 132, 2, 112, 32, 8},
		{"8 ranks, H200", 132, 8, 112, 32, 8},
		{"9 ranks, H200", 132, 9, 111, 34, 8},
		{"16 ranks, H200", 132, 16, 104, 48, 8},
		{"72 ranks, H200", 132, 72, 48, 160, 8},
		{"72 ranks, B200", 148, 72, 64, 160, 8},
		{"72 ranks, as few as do", 77, 72, 1, 144, 8},
		{"72 ranks, fewer", 76, 72, 72, 0, 8},
		{"2 ranks, small", 10, 2, 6, 6, 2},
		{"8 ranks, tiny", 4, 8, 1, 4, 2},
		{"16 ranks, small", 10, 16, 8, 0, 4},
	} {
		t.Run(k.name, func(t *testing.T) {
			require.Equal(t, room{Threads: 512, PerSM: RoomBlocks, Collectives: k.collectives, Messages: k.messages,
				Channels: k.channels}, RoomOf(k.sms, k.ranks))
		})
	}
	for sms := 10; sms <= 200; sms++ {
		for ranks := 1; ranks <= 72; ranks++ {
			r := RoomOf(sms, ranks)
			what := fmt.Sprintf("%d ranks, %d multiprocessors: %+v", ranks, sms, r)
			require.Positive(t, r.Collectives, what)
			require.GreaterOrEqual(t, r.Channels, RoomBlocks, what)
			require.LessOrEqual(t, r.Messages+r.Channels, RoomBlocks*(sms-r.Collectives), what)
			if ranks <= roomRanks {
				left := max(min(sms/6, 20), 2*ranks)
				require.Equal(t, sms-min(left, sms-1), r.Collectives, what)
				continue
			}
			least := LeastForMessages(ranks)
			require.LessOrEqual(t, least, ranks+5, what)
			if sms < least {
				require.Zero(t, r.Messages, what)
			} else {
				require.GreaterOrEqual(t, r.Messages, 2*ranks, what)
			}
			if one := RoomOf(sms+1, ranks); sms >= least {
				require.GreaterOrEqual(t, one.Messages, r.Messages, what)
				require.GreaterOrEqual(t, one.Collectives, r.Collectives, what)
			}
		}
	}
}

// The kernels that may wait at once, of all ranks that share a device, fit together, and leave a multiprocessor free.
func TestSharedRoom(t *testing.T) {
	for sms := 20; sms <= 160; sms++ {
		for sharers := 1; sharers <= 8; sharers++ {
			for ranks := sharers; ranks <= 8; ranks++ { // the others have other devices
				what := fmt.Sprintf("%d of %d ranks, %d multiprocessors", sharers, ranks, sms)
				first, later := firstShare(sms, sharers, ranks), laterShare(ranks)
				share := shareOf(sms, sharers)
				require.LessOrEqual(t, sharers*share, sharedPerSM*(sms-1), what)
				require.LessOrEqual(t, first.units(), share, what)
				for _, r := range []room{first, later} {
					require.Positive(t, r.Collectives, what)
					require.Positive(t, r.Channels, what)
					require.GreaterOrEqual(t, r.Messages, 2*ranks, what)
				}
				require.LessOrEqual(t, later.units(), needOf(ranks)+laterSpare, what)
			}
		}
	}
	// Beyond that there may be no room for messages.
	r := firstShare(132, 72, 72)
	require.Equal(t, room{Threads: 128, PerSM: 8, Collectives: 6, Channels: 1}, r)
	require.Positive(t, firstShare(20, 40, 40).Collectives)
}

// Ranks with a device each have few streams; those that share one make room for users' too.
func TestStreamsOf(t *testing.T) {
	for _, k := range []struct{ sharers, ranks, want, more int }{{1, 1, 10, 0}, {1, 2, 12, 0}, {1, 8, 24, 0}, {1, 72, 152, 0},
		{2, 2, 24, 32}, {8, 8, 192, 32}, {72, 72, 992, 32}} {
		n, more := streamsOf(k.sharers, k.ranks)
		require.Equal(t, []int{k.want, k.more}, []int{n, more}, "%d of %d ranks", k.sharers, k.ranks)
	}
}

// Where ranks share a device, no more streams have work at the same time than there are queues. A stream keeps its place for
// as long as it may have work, and no longer.
func TestAdmit(t *testing.T) {
	d := &Domain{Sharers: 2, shared: &shared{most: 3, queued: map[*Stream]bool{}, context: new(cuda.Context)}}
	busy := func() *Stream {
		s := new(Stream)
		s.using.Lock() // whoever asks finds it in use
		return s
	}
	over := func(s *Stream) {
		s.gone = true
		s.using.Unlock()
	}
	a, b, c, e := busy(), busy(), busy(), busy()
	for _, s := range []*Stream{a, b, c, a} {
		require.NoError(t, d.Admit(s))
	}
	require.ErrorIs(t, d.Admit(e), fault.ErrLimit)
	require.ErrorContains(t, d.Admit(e), "work on more than 3 streams")
	over(b)
	require.NoError(t, d.Admit(e))
	require.ErrorIs(t, d.Admit(b), fault.ErrLimit, "its place is another's")
	over(a)
	over(c)
	require.NoError(t, d.Admit(busy()))
	require.NoError(t, d.Admit(busy()))
	require.ErrorIs(t, d.Admit(busy()), fault.ErrLimit)
	alone := &Domain{Sharers: 1, shared: d.shared}
	require.NoError(t, alone.Admit(busy()), "a rank with a device of its own needs no place")
}
