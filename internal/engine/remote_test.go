package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/await"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// registered is n bytes of c's, registered.
func registered(t *testing.T, c *engine.Comm, n int) (engine.Vec, *engine.Registration) {
	t.Helper()
	a, err := c.Alloc(hw.Host, n)
	require.NoError(t, err)
	v := engine.Vec{Ptr: a.Ptr, Len: n, Type: dtype.Uint8, Alloc: a}
	r, err := c.RegisterBuffer(v)
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() }) // before the communicator
	return v, r
}

// TestImportOfAnotherOpen hands a handle to a communicator of another job, and to one whose ranks do not include its
// maker.
func TestImportOfAnotherOpen(t *testing.T) {
	comms, others := open(t, 3, engine.Options{}), open(t, 2, engine.Options{})
	_, r := registered(t, comms[0], 100)
	defer r.Close()
	h, err := r.MarshalBinary()
	require.NoError(t, err)
	_, err = others[1].Import(h)
	require.ErrorIs(t, err, fault.ErrStale)
	require.ErrorContains(t, err, "another job")

	subs := make([]*engine.Comm, 3)
	for i, err := range each(comms, func(c *engine.Comm) (err error) {
		subs[c.Rank()], err = c.Split(background, min(c.Rank(), 1), 0)
		return err
	}) {
		require.NoError(t, err)
		defer subs[i].Close()
	}
	m, err := comms[1].Import(h)
	require.NoError(t, err)
	require.Equal(t, 0, m.Rank())
	_, err = subs[1].Import(h) // ranks 1 and 2
	require.ErrorIs(t, err, fault.ErrStale)
	require.ErrorContains(t, err, "not among the ranks")
}

// TestExchange gathers records of other lengths, and too long ones.
func TestExchange(t *testing.T) {
	comms := open(t, 3, engine.Options{})
	for _, n := range []int{0, 1, 100, 5000} {
		for _, err := range each(comms, func(c *engine.Comm) error {
			all, err := c.Exchange(background, engine.KindSplit, make([]byte, n*c.Rank()), nil)
			if err != nil {
				return err
			}
			for r, b := range all {
				if len(b) != n*r {
					return errors.New("wrong length")
				}
			}
			return nil
		}) {
			require.NoError(t, err)
		}
	}
	for _, err := range each(comms, func(c *engine.Comm) error {
		n := 0
		if c.Rank() == 1 {
			n = engine.EagerBytes
		}
		_, err := c.Exchange(background, engine.KindSplit, make([]byte, n), nil)
		return err
	}) {
		require.ErrorIs(t, err, fault.ErrLimit)
	}
	for _, err := range each(comms, barrier) {
		require.NoError(t, err)
	}
}

// TestCloseBusy closes a communicator during a wait on a channel: busy; and the channel with it afterwards.
func TestCloseBusy(t *testing.T) {
	comms := open(t, 2, engine.Options{})
	links, regs := make([]*engine.Link, 2), make([]*engine.Registration, 2)
	for _, err := range each(comms, func(c *engine.Comm) (err error) {
		_, regs[c.Rank()] = registered(t, c, 100)
		links[c.Rank()], err = c.Connect(background, 1-c.Rank(), regs[c.Rank()], nil)
		return err
	}) {
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(background)
	done := make(chan error)
	require.NoError(t, links[0].Begin(ctx))
	go func() {
		err := links[0].Wait(ctx)
		links[0].End()
		done <- err
	}()
	require.ErrorIs(t, comms[0].Close(), fault.ErrBusy)
	require.NoError(t, comms[0].Err())
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, regs[0].Close())
	require.NoError(t, comms[0].Close())
	require.ErrorIs(t, links[0].Begin(background), fault.ErrClosed)
	// The other end sees it.
	require.NoError(t, links[1].Begin(background))
	err := links[1].Wait(background)
	require.True(t, errors.Is(err, fault.ErrClosed) || errors.Is(err, fault.ErrPeerLost), "%v", err)
	links[1].End()
}

// TestConnectAlone connects to a peer that does not: the call ends with its context, the communicator goes on, and the
// peer's own call, when it comes, finds the end closed.
func TestConnectAlone(t *testing.T) {
	comms := open(t, 2, engine.Options{})
	_, r := registered(t, comms[0], 100)
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	alone := make(chan error, 1)
	go func() {
		_, err := comms[0].Connect(ctx, 1, r, nil)
		alone <- err
	}()
	require.Eventually(t, func() bool { return comms[0].Links(1) == 1 }, await.Limit, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-alone, context.Canceled)
	for _, err := range each(comms, barrier) {
		require.NoError(t, err)
	}
	_, q := registered(t, comms[1], 100)
	l, err := comms[1].Connect(background, 0, q, nil)
	require.NoError(t, err)
	require.NoError(t, l.Begin(background))
	require.ErrorIs(t, l.Wait(background), fault.ErrClosed)
	l.End()
	require.NoError(t, l.Close())
	// The next two belong together.
	for _, err := range each(comms, func(c *engine.Comm) error {
		l, err := c.Connect(background, 1-c.Rank(), []*engine.Registration{r, q}[c.Rank()], nil)
		if err != nil {
			return err
		}
		return l.Close()
	}) {
		require.NoError(t, err)
	}
}

// TestCloseWaitsForCopies closes a registration while a peer is in the middle of a copy.
func TestCloseWaitsForCopies(t *testing.T) {
	defer engine.SettleFor(await.Limit)()
	comms := open(t, 2, engine.Options{})
	links, regs := make([]*engine.Link, 2), make([]*engine.Registration, 2)
	vecs := make([]engine.Vec, 2)
	for _, err := range each(comms, func(c *engine.Comm) (err error) {
		vecs[c.Rank()], regs[c.Rank()] = registered(t, c, 4096)
		links[c.Rank()], err = c.Connect(background, 1-c.Rank(), regs[c.Rank()], nil)
		return err
	}) {
		require.NoError(t, err)
	}
	require.NoError(t, links[0].Begin(background))
	p, err := links[0].Reach(0, 100)
	require.NoError(t, err)
	closed := make(chan time.Time)
	go func() {
		regs[1].Close()
		closed <- time.Now()
	}()
	require.Eventually(t, func() bool { return links[0].Live() != nil }, await.Limit, time.Millisecond, "it is closing")
	time.Sleep(50 * time.Millisecond) // longer than it takes where it does not wait
	*(*byte)(p) = 1
	ended := time.Now()
	require.ErrorIs(t, links[0].Done(), fault.ErrStale)
	require.False(t, (<-closed).Before(ended), "closed during a copy")
	links[0].End()
	require.Equal(t, byte(1), *(*byte)(unsafe.Pointer(vecs[1].Ptr)))
	require.NoError(t, comms[1].Free(vecs[1].Alloc))
}
