package team

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// A communicator of seven ranks on two hosts. The team under test has the ranks 1, 4 and 6; this rank is 4.
var (
	here = []int{1, 4, 6}
	all  = 7
)

const me, before, behind = 1, 0, 2 // ranks of the team: 4, 1 and 6

// memory is the memory of a peer whose process may be dead.
type memory struct {
	PeerMemory
	dead bool
}

func (m *memory) Dead() bool { return m.dead }

// hosts is a communicator on two hosts.
type hosts struct {
	looked
	log *slog.Logger
}

func (h *hosts) Log() *slog.Logger        { return h.log }
func (h *hosts) Hostname(rank int) string { return fmt.Sprint("host of ", rank) }

func newHosts(said *strings.Builder) *Team {
	x := &Team{}
	x.Init(&hosts{log: slog.New(slog.NewTextHandler(said, nil))}, Ranks{Rank: 4, Size: all, Local: here})
	for r := range x.Peers {
		x.Peers[r] = Peer{Area: &Area{}, Proc: shm.Process{PID: 100 + r}, Host: "here", Mem: &memory{}}
		x.Peers[r].Area.Desc[0].Seq.Store(6)
		x.Peers[r].Area.Desc[1].Seq.Store(7)
	}
	x.Peers[me].Mem = nil
	x.Me = x.Peers[me].Area
	x.Seq = 8
	x.Work.Kind = KindBarrier
	x.Timeout.Store(int64(time.Hour))
	return x
}

// refuse publishes a refusal of a peer.
func (t *Team) refuse(rank int, err error) {
	was := t.rank
	t.rank, t.Me = rank, t.Peers[rank].Area
	t.Publish(&Work{}, err)
	t.rank, t.Me = was, t.Peers[was].Area
}

func TestNamesOfRanks(t *testing.T) {
	x := newHosts(new(strings.Builder))
	require.Equal(t, []int{1, 3}, []int{x.Rank(), x.Size()})
	for r, name := range here {
		require.Equal(t, name, x.Name(r))
		require.Equal(t, r, x.Index(name))
	}
	for _, name := range []int{-1, 0, 2, 3, 5, 7} {
		require.Equal(t, -1, x.Index(name), name)
	}
}

// TestErrorsNameRanks: a team's errors name the communicator's ranks, ranks of other hosts included.
func TestErrorsNameRanks(t *testing.T) {
	barrier, sum := Signature(KindBarrier, 0, 0, 0, 0), Signature(KindAllReduce, dtype.Int32, Sum, 0, 3)
	publish := func(x *Team, sigs ...uint64) {
		for r, s := range sigs {
			x.Peers[r].Area.Desc[0].Sig = s
		}
	}
	disagree := func(x *Team, _ *WaitState) error { return x.disagreement(0, nil) }
	lost := func(from int, code uint64, about int, text string) func(*Team, *WaitState) error {
		return func(x *Team, s *WaitState) error {
			x.Peers[from].Area.lostText.Set(text)
			return x.LostError(s, from, code<<32|uint64(about+1))
		}
	}
	for _, k := range []struct {
		name  string
		about int
		is    error
		text  string
		do    func(*Team, *WaitState) error
	}{
		{"who differs", 6, fault.ErrMismatch, "rank 6 called all_reduce(count 3, int32, sum), 2 of 3 ranks barrier:",
			func(x *Team, s *WaitState) error { publish(x, barrier, barrier, sum); return disagree(x, s) }},
		{"who refused", 6, fault.ErrArgument, "rank 6 refused: no", func(x *Team, s *WaitState) error {
			publish(x, barrier, barrier, barrier)
			x.refuse(behind, fmt.Errorf("no: %w", fault.ErrArgument))
			return disagree(x, s)
		}},
		{"a refusal about another host's", 5, fault.ErrPeerLost, "rank 1 refused: gone", func(x *Team, s *WaitState) error {
			publish(x, barrier, barrier, barrier)
			x.refuse(before, reason.About(5, fmt.Errorf("gone: %w", fault.ErrPeerLost)))
			return disagree(x, s)
		}},
		{"a refusal about nobody that there is", 1, fault.ErrArgument, "rank 1 refused", func(x *Team, s *WaitState) error {
			publish(x, barrier, barrier, barrier)
			x.refuse(before, reason.About(all, fault.ErrArgument))
			return disagree(x, s)
		}},
		{"a death", 6, fault.ErrPeerLost, "peer rank 6: how", lost(before, lostPeer, 6, "how")},
		{"a death on another host", 5, fault.ErrPeerLost, "peer rank 5: how", lost(before, lostPeer, 5, "how")},
		{"whom another host does not reach", 1, fault.ErrPeerLost, "peer rank 1: how", lost(before, lostPeer, 1, "how")},
		{"what is about nobody that there is", 1, fault.ErrPeerLost, "damaged", lost(before, lostPeer, all, "")},
		{"who waited", 0, fault.ErrTimeout, "peer rank 0: long", lost(behind, lostTimeout, 0, "long")},
		{"who waited for this rank", 6, fault.ErrTimeout, "rank 6 waited for this rank: long",
			lost(behind, lostTimeout, 4, "long")},
		{"who waited for what this rank is in its team", 1, fault.ErrTimeout, "peer rank 1: long",
			lost(behind, lostTimeout, me, "long")},
		{"who gave up", 6, fault.ErrAborted, "rank 6 gave up: late", lost(behind, lostCancelled, 4, "late")},
		{"a mismatch with this rank", 6, fault.ErrMismatch, "other", lost(behind, lostMismatch, 4, "other")},
		{"a mismatch with another host's", 2, fault.ErrMismatch, "other", lost(behind, lostMismatch, 2, "other")},
		{"who aborted", 3, fault.ErrAborted, "enough", lost(behind, lostAborted, 3, "enough")},
		{"who failed", 6, fault.ErrAborted, "rank 6 failed: oh", lost(behind, lostInternal, 6, "oh")},
		{"a dead process", 6, fault.ErrPeerLost, "the process of rank 6 (", func(x *Team, s *WaitState) error {
			x.Peers[behind].Mem.(*memory).dead = true
			return x.PollHealth(s)
		}},
		{"who closed", 6, fault.ErrPeerLost, "rank 6 closed", func(x *Team, s *WaitState) error {
			x.Peers[behind].Area.State.Store(StateClosed)
			s.Peer = x.ClosedPeer()
			return x.PollClock(s)
		}},
		{"who closed, with an error about another host's", 2, fault.ErrPeerLost, "peer rank 2: how",
			func(x *Team, s *WaitState) error {
				x.Peers[behind].Area.State.Store(StateClosed)
				x.Peers[behind].Area.lostText.Set("how")
				x.Peers[behind].Area.Lost.Store(lostPeer<<32 | 3)
				s.Peer = behind
				return x.PollClock(s)
			}},
		{"who calls on its device", 6, fault.ErrMismatch, "rank 4 has called on host memory what rank 6 has called on its device",
			func(x *Team, s *WaitState) error {
				x.Peers[behind].Area.queued.Store(1)
				x.Me.Desc[0].Seq.Store(8)
				return x.PollHealth(s)
			}},
		{"memory that is not there", 6, fault.ErrStale, "gone", func(x *Team, _ *WaitState) error {
			return x.Errorf("import", x.Name(behind), fmt.Errorf("gone: %w", fault.ErrStale))
		}},
		{"a control area", 6, fault.ErrStale, "rank 6 of 7", func(x *Team, _ *WaitState) error {
			return x.Errorf("", 6, x.Peers[behind].Area.check(1, x.Name(behind), x.all))
		}},
		{"a deadline", 1, fault.ErrTimeout, "on this host ranks 1, 6 in no wait, rank 4 in barrier #8 for rank 1",
			func(x *Team, s *WaitState) error {
				x.Timeout.Store(1)
				s.Peer = before
				return x.PollClock(s)
			}},
	} {
		t.Run(k.name, func(t *testing.T) {
			x := newHosts(new(strings.Builder))
			err := k.do(x, &WaitState{Ctx: context.Background(), Peer: before, Step: "test"})
			require.ErrorIs(t, err, k.is)
			require.ErrorContains(t, err, k.text)
			e, ok := errors.AsType[*fault.Error](err)
			require.True(t, ok)
			require.Equal(t, []int{4, k.about}, []int{e.Rank, e.Peer})
		})
	}
}

// TestPublishLost: the word names the rank that the error is about, whatever host it is on.
func TestPublishLost(t *testing.T) {
	for _, k := range []struct {
		peer  int
		err   error
		about int
		code  uint64
	}{
		{5, fault.ErrPeerLost, 5, lostPeer},
		{6, fault.ErrTimeout, 6, lostTimeout},
		{-1, fault.ErrPeerLost, 4, lostInternal},
		{-1, fault.ErrAborted, 4, lostAborted},
	} {
		x := newHosts(new(strings.Builder))
		x.PublishLost(&fault.Error{Peer: k.peer, Err: k.err})
		require.Equal(t, k.code<<32|uint64(k.about+1), x.Me.Lost.Load(), "%v about %d", k.err, k.peer)
	}
}

// Why a communicator broke is published once: peers may be reading it.
func TestPublishLostTwice(t *testing.T) {
	x := newHosts(new(strings.Builder))
	x.PublishLost(&fault.Error{Peer: 6, Err: fmt.Errorf("first: %w", fault.ErrPeerLost)})
	v := x.Me.Lost.Load()
	x.PublishLost(&fault.Error{Peer: 5, Err: fmt.Errorf("second: %w", fault.ErrAborted)})
	require.Equal(t, v, x.Me.Lost.Load())
	require.Contains(t, x.Me.lostText.Get(), "first")
}

// TestOwnWait: errors and waits have the running operation's name and the communicator's number of it.
func TestOwnWait(t *testing.T) {
	x := newHosts(new(strings.Builder))
	e := x.Errorf("step", 2, fault.ErrTimeout)
	require.Equal(t, []any{"barrier", uint64(8), 4, 2}, []any{e.Op, e.Seq, e.Rank, e.Peer})
	s := &WaitState{Peer: behind}
	x.publishWait(s)
	require.Equal(t, "barrier #8 for rank 6", x.WaitsIn(me))
	x.EndWait(s)
	require.Equal(t, "no wait", x.WaitsIn(me))
}

// TestFarWait: a wait for a rank of another host behaves like any other wait.
func TestFarWait(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	wait := func(x *Team, far int) *WaitState {
		return &WaitState{Ctx: context.Background(), Peer: x.Rank(), Far: far + 1, Step: "ring"}
	}
	for _, k := range []struct {
		name  string
		about int
		is    error
		text  string
		set   func(*Team, *WaitState)
	}{
		{"the deadline", 5, fault.ErrTimeout, "on this host ranks 1, 6 in no wait, rank 4 in barrier #8 for rank 5",
			func(x *Team, _ *WaitState) { x.Timeout.Store(1) }},
		{"the context", 5, context.Canceled, "canceled", func(_ *Team, s *WaitState) { s.Ctx = ended }},
		{"a peer's word", 2, fault.ErrPeerLost, "peer rank 2: how", func(x *Team, _ *WaitState) {
			x.Peers[behind].Area.lostText.Set("how")
			x.Peers[behind].Area.Lost.Store(lostPeer<<32 | 3)
		}},
		{"a dead process", 1, fault.ErrPeerLost, "died",
			func(x *Team, _ *WaitState) { x.Peers[before].Mem.(*memory).dead = true }},
	} {
		t.Run(k.name, func(t *testing.T) {
			x := newHosts(new(strings.Builder))
			s := wait(x, 5)
			k.set(x, s)
			var err *fault.Error
			for err == nil {
				err = x.Poll(s)
			}
			require.ErrorIs(t, err, k.is)
			require.ErrorContains(t, err, k.text)
			require.Equal(t, []any{k.about, 4, "ring"}, []any{err.Peer, err.Rank, err.Step})
		})
	}
	t.Run("who waits for who waits for another host", func(t *testing.T) {
		x := newHosts(new(strings.Builder))
		x.Peers[before].Area.waits.Store(uint64(newWaitWord(KindAllReduce, false, 3, 9)))
		text, about := x.account(&WaitState{Peer: before})
		require.Equal(t, 3, about)
		require.Contains(t, text, "on this host rank 1 in all_reduce #9 for rank 3, ranks 4, 6 in no wait")
	})
	t.Run("nobody that there is", func(t *testing.T) {
		x := newHosts(new(strings.Builder))
		x.Peers[before].Area.waits.Store(uint64(newWaitWord(KindAllReduce, false, all, 9)))
		_, about := x.account(&WaitState{Peer: before})
		require.Equal(t, 1, about)
	})
	t.Run("the report", func(t *testing.T) {
		var said strings.Builder
		x := newHosts(&said)
		x.ReportAfter.Store(1)
		s := wait(x, 5)
		for !s.reported {
			require.Nil(t, x.Poll(s))
		}
		require.Contains(t, said.String(), `op=barrier seq=8 rank=4 host="host of 5" step=ring missing=5`)
	})
}

// TestChain: what ranks of other hosts have answered is followed, told to those that ask, and forgotten with the wait.
func TestChain(t *testing.T) {
	word := func(k OpKind, peer int) waitWord { return newWaitWord(k, false, peer, 1) }
	wait := &WaitState{Peer: me, Far: 5 + 1, Op: "recv", Kind: KindRecv}
	ask := func(answer ...waitWord) (x *Team, ok bool) {
		x = newHosts(new(strings.Builder))
		s := *wait
		s.Published = 0
		x.publishWait(&s)
		var words []uint64
		for _, w := range answer {
			words = append(words, uint64(w))
		}
		ok = x.SetBeyond(5, words)
		wait.Published = s.Published
		return x, ok
	}
	for _, k := range []struct {
		name   string
		answer []waitWord
		about  int
		text   string
		chain  int
	}{
		{"nobody", []waitWord{nobody}, 5, "; on others rank 5 in no wait", 2},
		{"a rank that waits for nobody", []waitWord{word(KindSend, 2), nobody}, 2, "rank 2 in no wait, rank 5 in send #1 to rank 2", 3},
		{"a rank of which nothing is known", []waitWord{word(KindSend, 2)}, 2, "; on others rank 5 in send #1 to rank 2", 2},
		{"over two hosts and back here", []waitWord{word(KindSend, 2), word(KindRecv, 6)}, 6, "rank 2 in recv #1 from rank 6", 3},
		{"a circle", []waitWord{word(KindRecv, 2), word(KindRecv, 4)}, 5, "a circle of receives (2 -> 4 -> 5 -> 2)", 3},
	} {
		t.Run(k.name, func(t *testing.T) {
			x, ok := ask(k.answer...)
			require.True(t, ok)
			text, about := x.account(wait)
			require.Contains(t, text, k.text)
			require.Equal(t, k.about, about)
			require.Len(t, x.Chain(), k.chain)
			next := *wait
			next.Far, next.Published = 2+1, 0 // another wait
			x.publishWait(&next)
			require.Len(t, x.Chain(), 1)
		})
	}
	for name, bad := range map[string][]waitWord{"none": nil, "too long": slices.Repeat([]waitWord{nobody}, mostBeyond+1),
		"no rank": {word(KindRecv, all)}, "no wait": {^waitWord(0)}} {
		_, ok := ask(bad...)
		require.False(t, ok, name)
	}
	t.Run("of a rank that it no longer waits for", func(t *testing.T) {
		x, _ := ask(nobody)
		next := *wait
		next.Far, next.Published = 2+1, 0
		x.publishWait(&next)
		require.True(t, x.SetBeyond(5, []uint64{uint64(word(KindSend, 6))}))
		require.Len(t, x.Chain(), 1)
	})
	t.Run("through ranks of this host", func(t *testing.T) {
		x := newHosts(new(strings.Builder))
		x.Me.waits.Store(uint64(word(KindRecv, 6)))
		x.Peers[behind].Area.waits.Store(uint64(word(KindBarrier, 2)))
		x.Peers[behind].Area.beyond[0].Store(uint64(nobody))
		require.Equal(t, []uint64{uint64(word(KindRecv, 6)), uint64(word(KindBarrier, 2)), uint64(nobody)}, x.Chain())
	})
}

// TestGroupsNameRanks: a wait for a leader names the member that is missing.
func TestGroupsNameRanks(t *testing.T) {
	x := newHosts(new(strings.Builder))
	x.groups, x.mine = [][]int{{before, me}, {behind}}, 0
	x.Me.Desc[0].Seq.Store(8)
	require.Equal(t, 1, x.absent(&WaitState{Peer: before, Step: StepAgree}))
	x.Peers[before].Area.Desc[0].Seq.Store(8)
	require.Equal(t, 6, x.absent(&WaitState{Peer: behind, Step: StepAgree}))
	x.Peers[behind].Area.Desc[0].Seq.Store(8)
	require.Equal(t, 6, x.absent(&WaitState{Peer: behind, Step: StepAgree}))
}

// allOf is all ranks of a communicator, on one host; this one is rank.
func allOf(rank, size int) Ranks {
	in := Ranks{Rank: rank, Size: size, Local: make([]int, size)}
	for r := range in.Local {
		in.Local[r] = r
	}
	return in
}
