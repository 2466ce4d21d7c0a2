package net

import (
	stdnet "net"
	"testing"

	"github.com/stretchr/testify/require"
)

// A side that has taken another address closes a connection whose ends have proved themselves, with the last message
// read or not.
func TestNoProbe(t *testing.T) {
	l, err := stdnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, reset := range []bool{false, true} {
		c, err := stdnet.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		s, err := l.Accept()
		require.NoError(t, err)
		if reset {
			require.NoError(t, c.(*stdnet.TCPConn).SetLinger(0))
		}
		require.NoError(t, c.Close())
		require.ErrorIs(t, accepting(t.Context(), s, nil, noOffer), errNoProbe)
		s.Close()
	}
}
