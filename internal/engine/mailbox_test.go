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
func fakeMail(ranks int) *Comm {
	c := &Comm{size: ranks, dom: new(Domain)}
	c.team.Init(c, 0, ranks)
	for r := range c.team.Peers {
		b := make([]byte, team.SharedBytes+MailBytes(ranks)+128)
		skip := -uintptr(unsafe.Pointer(&b[0])) & 127
		c.team.Peers[r].Area = (*team.Area)(unsafe.Pointer(&b[skip]))
	}
	a := NewMail(c, nil)
	for r := range ranks {
		a.Lay(r, c.team.Attached(r))
	}
	return c
}

// TestMailLayout: outboxes and eager slots are aligned, lie apart, and end where the area does.
func TestMailLayout(t *testing.T) {
	for _, ranks := range []int{1, 2, 16, 17, 128, 129} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			c := fakeMail(ranks)
			base := uintptr(unsafe.Pointer(c.me0())) + team.SharedBytes
			eager := uintptr(MailSlots * c.EagerLimit())
			boxes := uintptr(ranks) * unsafe.Sizeof(Outbox{})
			for r := range c.mails {
				m := c.Mail(r)
				require.Equal(t, base+uintptr(r)*unsafe.Sizeof(Outbox{}), uintptr(unsafe.Pointer(m.Out)))
				require.Equal(t, base+boxes+uintptr(r)*eager, uintptr(m.OutEager))
				require.Zero(t, uintptr(unsafe.Pointer(m.Out))%128)
				require.Equal(t, r, m.Peer)
			}
			require.Equal(t, uintptr(MailBytes(ranks)), boxes+uintptr(ranks)*eager)
			require.Less(t, InlineBytes, c.EagerLimit())
			require.Equal(t, unsafe.Pointer(c.Mail(0).Out), unsafe.Pointer(c.Mail(0).In), "a rank's mail to itself")
		})
	}
	require.LessOrEqual(t, unsafe.Sizeof(mem.Location{}), uintptr(InlineBytes))
}

func (c *Comm) me0() *team.Area { return c.team.Peers[0].Area }

func TestCloseMail(t *testing.T) {
	c := fakeMail(3)
	l := &c.Mail(1).Recv
	require.NoError(t, l.Enter())
	l.Waiting.Push(&Message{Recv: true, Peer: 1})
	l.Unlock()
	c.OpenRequest()
	open := func() {
		for l := range c.lanes() {
			require.NoError(t, l.Enter(), "nothing is closed by a close that failed")
			l.Unlock()
		}
		require.EqualValues(t, 1, c.mail.room.open.Load())
	}
	require.ErrorIs(t, c.mail.Shut(false), fault.ErrBusy)
	require.ErrorContains(t, c.mail.Shut(false), "rank 1")
	open()
	require.NoError(t, c.mail.Shut(true))
	c.mail.Reopen() // something else is busy
	open()
	require.NoError(t, c.mail.Shut(true), "what is broken can be closed")
	require.NoError(t, c.mail.Close())
	require.ErrorIs(t, l.Enter(), fault.ErrClosed)
	require.False(t, l.TryEnter())
	require.True(t, l.Idle(), "what was on its way is abandoned")
	c.CloseRequest()
	require.Zero(t, c.mail.room.open.Load())
}
