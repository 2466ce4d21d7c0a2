package onesided_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestCloseBusy closes a communicator during a wait on a channel: it is busy. Later its Close closes the channel, too.
func TestCloseBusy(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{})
	channels, regs := make([]*onesided.Channel, 2), make([]*engine.Registration, 2)
	for _, err := range testkit.Each(comms, func(c *engine.Comm) (err error) {
		_, regs[c.Rank()] = enginetest.Registered(t, c, 100)
		channels[c.Rank()], err = onesided.SpaceOf(c).Connect(background, 1-c.Rank(), regs[c.Rank()], nil)
		return err
	}) {
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(background)
	done := make(chan error)
	require.NoError(t, channels[0].Begin(ctx))
	go func() {
		err := channels[0].Wait(ctx)
		channels[0].End()
		done <- err
	}()
	require.ErrorIs(t, comms[0].Close(), fault.ErrBusy)
	require.NoError(t, comms[0].Err())
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, regs[0].Close())
	require.NoError(t, comms[0].Close())
	require.ErrorIs(t, channels[0].Begin(background), fault.ErrClosed)
	// The other end must see it.
	require.NoError(t, channels[1].Begin(background))
	err := channels[1].Wait(background)
	require.True(t, errors.Is(err, fault.ErrClosed) || errors.Is(err, fault.ErrPeerLost), "%v", err)
	channels[1].End()
}

// TestCloseBusyBroken closes a broken communicator while a channel or a window is in use: it is busy, too.
func TestCloseBusyBroken(t *testing.T) {
	for _, window := range []bool{false, true} {
		t.Run(fmt.Sprintf("window=%v", window), func(t *testing.T) {
			e := newEnds(t, enginetest.Open(t, 2, engine.Options{}), window)[0]
			_, done, err := e.reach(8)
			require.NoError(t, err)
			e.c.Fail(&fault.Error{Op: "test", Peer: -1, Err: fault.ErrPeerLost}) // Abort would close it
			over := time.AfterFunc(testkit.Limit, func() { done() })             // a Close that waits must end
			err = e.c.Close()
			if over.Stop() {
				done() // the copy's result does not matter here
			}
			require.ErrorIs(t, err, fault.ErrBusy)
			require.NoError(t, e.c.Close())
		})
	}
}

// TestConnectAlone connects to a peer that does not: the call ends with its context, and the communicator goes on. The
// peer's own call, made later, fails too.
func TestConnectAlone(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{})
	_, r := enginetest.Registered(t, comms[0], 100)
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	alone := make(chan error, 1)
	go func() {
		_, err := onesided.SpaceOf(comms[0]).Connect(ctx, 1, r, nil)
		alone <- err
	}()
	testkit.Eventually(t, func() bool { return onesided.SpaceOf(comms[0]).Made(1) == 1 })
	cancel()
	require.ErrorIs(t, <-alone, context.Canceled)
	for _, err := range testkit.Each(comms, enginetest.Barrier) {
		require.NoError(t, err)
	}
	_, q := enginetest.Registered(t, comms[1], 100)
	// The peer would not wait for copies through a channel that it does not know.
	_, err := onesided.SpaceOf(comms[1]).Connect(background, 0, q, nil)
	require.ErrorIs(t, err, fault.ErrClosed)
	// The next two calls make one channel.
	for _, err := range testkit.Each(comms, func(c *engine.Comm) error {
		l, err := onesided.SpaceOf(c).Connect(background, 1-c.Rank(), []*engine.Registration{r, q}[c.Rank()], nil)
		if err != nil {
			return err
		}
		return l.Close()
	}) {
		require.NoError(t, err)
	}
}

// TestLastWord lets a peer close its communicator right after it has done what a wait is for: the wait must succeed.
func TestLastWord(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{})
	ends := newEnds(t, comms, false)
	peer := ends[0].c.Team()
	peer.Leave() // as if it were about to close
	defer peer.Me.State.Store(team.StateOpen)
	e := ends[1]
	require.NoError(t, e.channel.Begin(background))
	looks, err := e.channel.WaitPolls()
	require.NoError(t, err)
	require.Equal(t, team.PollsPerClock, looks, "whoever waits has looked before, and looks after each housekeeping")
	require.NoError(t, e.c.Err())
	e.channel.End()
}

// TestWaitOnBroken waits for a peer whose communicator breaks, for several reasons: then this rank's breaks, too. If
// only this rank's wait ends, its communicator stays as it was.
func TestWaitOnBroken(t *testing.T) {
	for _, k := range []struct {
		name string
		end  func(c, other *engine.Comm)
		want error
		ends bool
	}{
		{"abort", func(_, other *engine.Comm) { other.Abort(errors.New("enough")) }, fault.ErrAborted, true},
		{"its deadline", func(_, other *engine.Comm) { mail.Of(other).Fail("recv", 1, fault.ErrTimeout) }, fault.ErrTimeout, true},
		{"its context", func(_, other *engine.Comm) { mail.Of(other).Fail("recv", 1, context.Canceled) }, fault.ErrAborted, true},
		{"this rank's deadline", func(c, _ *engine.Comm) { c.SetTimeout(time.Millisecond) }, fault.ErrTimeout, false},
	} {
		for _, window := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/window=%v", k.name, window), func(t *testing.T) {
				comms := enginetest.Open(t, 2, engine.Options{})
				ends := newEnds(t, comms, window)
				e := ends[1]
				k.end(e.c, ends[0].c)
				var err error
				if window {
					err = e.window.Wait(background, nil, 0)
				} else {
					require.NoError(t, e.channel.Begin(background))
					err = e.channel.Wait(background)
					e.channel.End()
				}
				require.ErrorIs(t, err, k.want)
				if !k.ends {
					require.NoError(t, e.c.Err())
					return
				}
				require.ErrorIs(t, e.c.Err(), k.want)
			})
		}
	}
}
