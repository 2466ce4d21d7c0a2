package mail

import (
	"fmt"
	"maps"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
)

func TestMessageList(t *testing.T) {
	var l messageList
	ms := make([]Message, 5)
	for round := range 2 {
		for i := range ms {
			l.push(&ms[i])
		}
		for i := range ms {
			require.Same(t, &ms[i], l.pop(), "round %d", round)
		}
		require.Nil(t, l.Head)
	}
	l.push(&ms[0])
	require.Same(t, &ms[0], l.pop())
	l.push(&ms[1]) // after the list has been empty
	l.push(&ms[2])
	require.Same(t, &ms[1], l.pop())
	require.Same(t, &ms[2], l.pop())
}

// fakeMail is the mail of rank 0 of a communicator that has nothing else. All areas are its own; rank 0's is at base.
func fakeMail(ranks int) (m *Mail, base unsafe.Pointer) {
	m = newMail(0, ranks)
	for r := range ranks {
		b := make([]byte, AreaBytes(ranks)+128)
		at := unsafe.Pointer(&b[-uintptr(unsafe.Pointer(&b[0]))&127])
		if m.Lay(r, at); r == 0 {
			base = at
		}
	}
	return m, base
}

// TestMailLayout: outboxes and eager slots are aligned, lie apart, and end where the area does.
func TestMailLayout(t *testing.T) {
	for _, ranks := range []int{1, 2, 16, 17, 128, 129} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			m, at := fakeMail(ranks)
			base := uintptr(at)
			eager := uintptr(SendSlots * eagerRoom(ranks))
			boxes := uintptr(ranks) * unsafe.Sizeof(outbox{})
			for r := range m.boxes {
				b := m.Box(r)
				require.Equal(t, base+uintptr(r)*unsafe.Sizeof(outbox{}), uintptr(unsafe.Pointer(b.Out)))
				require.Equal(t, base+boxes+uintptr(r)*eager, uintptr(b.outEager))
				require.Zero(t, uintptr(unsafe.Pointer(b.Out))%128)
				require.Equal(t, r, b.Peer)
			}
			require.Equal(t, uintptr(AreaBytes(ranks)), boxes+uintptr(ranks)*eager)
			require.Less(t, inlineBytes, m.EagerLimit())
			require.Equal(t, eagerRoom(ranks), m.EagerLimit())
			require.Zero(t, eagerRoom(ranks)%128)
			require.Equal(t, unsafe.Pointer(m.Box(0).Out), unsafe.Pointer(m.Box(0).in), "a rank's mail to itself")
		})
	}
	require.LessOrEqual(t, unsafe.Sizeof(mem.Location{}), uintptr(inlineBytes))
}

func TestCloseMail(t *testing.T) {
	m, _ := fakeMail(3)
	l := &m.Box(1).Recv
	require.NoError(t, l.Enter())
	l.waiting.push(&Message{Recv: true, Peer: 1})
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
	m.Reopen() // as if something else were busy
	open()
	require.NoError(t, m.Shut(true), "what is broken can be closed")
	require.NoError(t, m.Close())
	require.ErrorIs(t, l.Enter(), fault.ErrClosed)
	require.False(t, l.tryEnter())
	require.True(t, l.idle(), "what was on its way is abandoned")
	m.CloseRequest()
	require.Zero(t, m.domain.open.Load())
}

// The waits of a rank move the messages of each communicator for as long as that has open requests, and no longer. A
// communicator that closes takes its own requests with it, and no others.
func TestOpenRequests(t *testing.T) {
	a, _ := fakeMail(2)
	b, _ := fakeMail(2)
	p := a.domain
	b.domain = p
	requests := func(ofA, ofB int) {
		t.Helper()
		want := map[*Mail]int{a: ofA, b: ofB}
		maps.DeleteFunc(want, func(_ *Mail, n int) bool { return n == 0 })
		require.Equal(t, want, p.mails)
		require.EqualValues(t, ofA+ofB, p.open.Load())
	}
	for range 3 {
		a.OpenRequest()
	}
	b.OpenRequest()
	requests(3, 1)
	a.CloseRequest()
	requests(2, 1)
	a.CloseRequest()
	a.CloseRequest()
	requests(0, 1)
	a.CloseRequest() // of a communicator that has been closed meanwhile
	requests(0, 1)
	a.OpenRequest()
	a.OpenRequest()
	a.CloseRequest()
	require.NoError(t, a.Shut(true))
	require.NoError(t, a.Close())
	requests(0, 1)
	b.CloseRequest()
	requests(0, 0)
}
