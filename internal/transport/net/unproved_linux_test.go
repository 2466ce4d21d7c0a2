package net

import (
	"errors"
	"io"
	stdnet "net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who gives up its place when a connection comes for which there is none.
func TestUnproved(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		all, one stranger // strangers-1 of the first, then one of the second
		gone     int      // index of the one that is closed; -1: the newcomer waits
	}{
		"a silent stranger":            {stranger{spoke: true, since: now}, stranger{since: now}, strangers - 1},
		"the oldest silent stranger":   {stranger{since: now}, stranger{since: now}, 0},
		"a stranger before a rank":     {stranger{known: true, since: now.Add(-time.Second)}, stranger{since: now}, strangers - 1},
		"a rank that is silent long":   {stranger{known: true, spoke: true, since: now}, stranger{known: true, since: now.Add(-2 * silentLimit)}, strangers - 1},
		"a rank that has just come":    {stranger{known: true, spoke: true, since: now}, stranger{known: true, since: now}, -1},
		"one that has spoken long ago": {stranger{spoke: true, since: now}, stranger{spoke: true, since: now.Add(-2 * spokenLimit)}, strangers - 1},
		"one that has just spoken":     {stranger{spoke: true, since: now}, stranger{spoke: true, since: now}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUnproved()
			for i := range strangers {
				s := c.all
				if i == strangers-1 {
					s = c.one
				}
				s.Conn = pipeEnd(t)
				u.list = append(u.list, s)
			}
			before := append([]stranger(nil), u.list...)
			newcomer := pipeEnd(t)
			added, closed := u.tryAdd(stranger{Conn: newcomer}, now)
			require.False(t, closed)
			require.Equal(t, c.gone >= 0, added)
			for i, s := range before {
				require.Equal(t, i == c.gone, ended(s.Conn), i)
				require.Equal(t, i != c.gone, u.find(s.Conn) >= 0, i)
			}
			require.Equal(t, added, u.remove(newcomer))
		})
	}
}

// A connection waits for a place, and gets it when another has proved itself, or never, if the node closes.
func TestUnprovedWaits(t *testing.T) {
	u := newUnproved()
	first := pipeEnd(t)
	require.True(t, u.add(first, true))
	u.speaks(first)
	for range strangers - 1 {
		c := pipeEnd(t)
		require.True(t, u.add(c, true))
		u.speaks(c)
	}
	added := make(chan bool)
	go func() { added <- u.add(pipeEnd(t), false) }()
	require.True(t, u.remove(first))
	require.True(t, <-added)
	require.False(t, u.remove(first))
	go func() { added <- u.add(pipeEnd(t), false) }()
	u.close()
	require.False(t, <-added)
}

func pipeEnd(t *testing.T) stdnet.Conn {
	c, other := stdnet.Pipe()
	t.Cleanup(func() { c.Close(); other.Close() })
	return c
}

func ended(c stdnet.Conn) bool { return errors.Is(c.SetDeadline(time.Time{}), io.ErrClosedPipe) }
