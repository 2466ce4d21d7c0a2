package net

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// filters skips the test where users may attach no filter to a socket.
func filters(t *testing.T) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer unix.Close(s)
	if err := deaf(s); err != nil && os.Getuid() != 0 {
		t.Skip("this machine lets users attach no filter to a socket:", err)
	}
}

// A rank that is cut off sends nothing and hears nothing, whatever was under way. Both ends of its wires find them cut after
// the time limit; others go on. It reaches nobody any more, and nobody reaches it.
func TestCutOff(t *testing.T) {
	testkit.LongOrRace(t)
	filters(t)
	const limit = time.Second
	nodes, tolds := make([]*Node, 4), make([]*told, 4)
	for r := range nodes {
		nodes[r], tolds[r] = nodeWith(t, transport.Config{Rank: r, Timeout: limit, Connections: 1 + r%2})
	}
	a, b, c, late := nodes[0], nodes[1], nodes[2], nodes[3]
	ab, ba := connect(t, a, b)
	ac, ca := connect(t, a, c)
	bc, cb := connect(t, b, c)
	la, lb := links(t, ab, ba, commID, 2)
	_, _ = links(t, ac, ca, commID+1, 1) // on which nothing is under way
	lbc, lcb := links(t, bc, cb, commID+2, 1)
	before := descriptorsOpen(t)

	from, to := make([]byte, 8<<20), make([]byte, 8<<20)
	lb.Grant(0, 1, at(to), len(to))
	testkit.Eventually(t, func() bool { lb.Poll(); return la.Granted(0).Load() == 1 })
	resume := hold(t, b) // it reads nothing, so that sockets fill
	la.Put(0, 1, at(from), len(from))
	began := time.Now()
	require.NoError(t, a.Cut())
	require.NoError(t, a.Cut()) // once more
	require.Greater(t, descriptorsOpen(t), before)
	lb.Tell(transport.Message{Text: "unheard"})
	resume()
	_, err := late.Connect(within(t), 0, a.row)
	require.ErrorIs(t, err, fault.ErrPeerLost)
	require.ErrorContains(t, err, "no answer for 1s (UBCOLL_NET_TIMEOUT)")
	for _, w := range []*Wire{ab, ba, ac, ca} {
		testkit.Eventually(t, func() bool { return w.Err() != nil })
		require.Equal(t, transport.Cut, w.Err().Kind, w.Err())
		require.ErrorIs(t, w.Err(), fault.ErrPeerLost)
		require.GreaterOrEqual(t, time.Since(began), limit/2) // the last acknowledgement may have come earlier
	}
	require.Zero(t, lb.Word(0).Load())
	require.Empty(t, tolds[0].messages())
	require.Empty(t, tolds[1].messages())
	testkit.Eventually(t, func() bool {
		return len(tolds[0].downs()) == 2 && len(tolds[1].downs()) == 1 && len(tolds[2].downs()) == 1
	})

	lcb.Post(0, 1, at(to), 8)
	lbc.Put(0, 1, at(from), 8)
	lcb.until(t, 0, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = a.Connect(ctx, 3, late.row)
	require.Error(t, err)
	require.Empty(t, late.all())
	closeAll(t, nodes...)
}

// A wire that is made when its rank has been cut off already, by a handshake that was under way, is cut, too.
func TestCutWhileConnecting(t *testing.T) {
	testkit.LongOrRace(t)
	filters(t)
	a, _ := nodeWith(t, transport.Config{Timeout: time.Second})
	b, _ := nodeWith(t, transport.Config{Rank: 1, Timeout: time.Second})
	a.cut.at.Store(time.Now().UnixNano())
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer unix.Close(fds[1])
	more, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer unix.Close(more[1])
	w, err := a.wire(1, []int{fds[0], more[0]}, nil, [16]byte{1})
	require.NoError(t, err)
	require.True(t, w.isolated.Load())
	testkit.Eventually(t, func() bool { return w.Err() != nil })
	require.ErrorIs(t, w.Err(), syscall.ETIMEDOUT)
	closeAll(t, a, b)
}

// Close of a rank that is cut off waits for as long as it may, and says that nobody answers.
func TestCloseCutOff(t *testing.T) {
	filters(t)
	p := newPair(t, 1)
	require.NoError(t, p.a.Cut())
	err := p.a.Close(50 * time.Millisecond)
	require.ErrorIs(t, err, fault.ErrPeerLost)
	require.ErrorContains(t, err, "and its host does not answer")
}
