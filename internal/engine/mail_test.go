package engine

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
)

func TestMessageList(t *testing.T) {
	var l MessageList
	ms := make([]Message, 5)
	for round := range 2 {
		for i := range ms {
			l.Push(&ms[i])
		}
		for i := range ms {
			require.Same(t, &ms[i], l.Pop(), "round %d", round)
		}
		require.Nil(t, l.Head)
	}
	l.Push(&ms[0])
	require.Same(t, &ms[0], l.Pop())
	l.Push(&ms[1]) // after it has been empty
	l.Push(&ms[2])
	require.Same(t, &ms[1], l.Pop())
	require.Same(t, &ms[2], l.Pop())
}

// fakeMail is the mail of one rank of a communicator that has nothing else; all areas are its own.
func fakeMail(ranks int) *Mail {
	c := &Comm{size: ranks, dom: new(Domain)}
	c.team.Init(c, 0, ranks)
	for r := range c.team.Peers {
		b := make([]byte, team.SharedBytes+MailBytes(ranks)+128)
		skip := -uintptr(unsafe.Pointer(&b[0])) & 127
		c.team.Peers[r].Area = (*team.Area)(unsafe.Pointer(&b[skip]))
	}
	m := NewMail(c, nil).(*Mail)
	for r := range ranks {
		m.Lay(r, c.team.Attached(r))
	}
	return m
}

// TestMailLayout: outboxes and eager slots are aligned, lie apart, and end where the area does.
func TestMailLayout(t *testing.T) {
	for _, ranks := range []int{1, 2, 16, 17, 128, 129} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			m := fakeMail(ranks)
			base := uintptr(unsafe.Pointer(m.team.Peers[0].Area)) + team.SharedBytes
			eager := uintptr(MailSlots * m.EagerLimit())
			boxes := uintptr(ranks) * unsafe.Sizeof(Outbox{})
			for r := range m.boxes {
				b := m.Box(r)
				require.Equal(t, base+uintptr(r)*unsafe.Sizeof(Outbox{}), uintptr(unsafe.Pointer(b.Out)))
				require.Equal(t, base+boxes+uintptr(r)*eager, uintptr(b.OutEager))
				require.Zero(t, uintptr(unsafe.Pointer(b.Out))%128)
				require.Equal(t, r, b.Peer)
			}
			require.Equal(t, uintptr(MailBytes(ranks)), boxes+uintptr(ranks)*eager)
			require.Less(t, InlineBytes, m.EagerLimit())
			require.Equal(t, unsafe.Pointer(m.Box(0).Out), unsafe.Pointer(m.Box(0).In), "a rank's mail to itself")
		})
	}
	require.LessOrEqual(t, unsafe.Sizeof(mem.Location{}), uintptr(InlineBytes))
}

func TestCloseMail(t *testing.T) {
	m := fakeMail(3)
	l := &m.Box(1).Recv
	require.NoError(t, l.Enter())
	l.Waiting.Push(&Message{Recv: true, Peer: 1})
	l.Unlock()
	m.OpenRequest()
	open := func() {
		for l := range m.lanes() {
			require.NoError(t, l.Enter(), "nothing is closed by a close that failed")
			l.Unlock()
		}
		require.EqualValues(t, 1, m.domain.open.Load())
	}
	require.ErrorIs(t, m.Shut(false), fault.ErrBusy)
	require.ErrorContains(t, m.Shut(false), "rank 1")
	open()
	require.NoError(t, m.Shut(true))
	m.Reopen() // something else is busy
	open()
	require.NoError(t, m.Shut(true), "what is broken can be closed")
	require.NoError(t, m.Close())
	require.ErrorIs(t, l.Enter(), fault.ErrClosed)
	require.False(t, l.TryEnter())
	require.True(t, l.Idle(), "what was on its way is abandoned")
	m.CloseRequest()
	require.Zero(t, m.domain.open.Load())
}
