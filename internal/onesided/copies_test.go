package onesided_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// oneSided is one rank's end of a channel, or of a window, in a separate communicator.
type oneSided struct {
	c       *engine.Comm
	vec     team.Vec
	reg     *engine.Registration // of the channel
	channel *onesided.Channel
	over    *onesided.Semaphore // of the channel, if it has no signals of its own
	window  *onesided.Window
}

func newOneSided(t *testing.T, c *engine.Comm, window bool) (*oneSided, error) {
	d, err := c.Dup(background)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := d.Close(); closedOnce(err) != nil {
			t.Error(err)
		}
	})
	e := &oneSided{c: d}
	a, err := d.Alloc(hw.Host, 4096)
	if err != nil {
		return nil, err
	}
	e.vec = team.Vec{Ptr: a.Ptr, Len: 4096, Type: dtype.Uint8, Alloc: a}
	if window {
		v := engine.View{Comm: d}
		e.window, err = onesided.SpaceOf(v.Comm).RegisterWindow(background, &v, e.vec, 0)
		return e, err
	}
	if e.reg, err = d.RegisterBuffer(e.vec); err == nil {
		e.channel, err = onesided.SpaceOf(d).Connect(background, 1-d.Rank(), e.reg, nil)
	}
	return e, err
}

// newEnds makes the ends of both ranks.
func newEnds(t *testing.T, comms []*engine.Comm, window bool) []*oneSided {
	t.Helper()
	ends := make([]*oneSided, 2)
	require.NoError(t, errors.Join(testkit.Each(comms, func(c *engine.Comm) (err error) {
		ends[c.Rank()], err = newOneSided(t, c, window)
		return err
	})...))
	return ends
}

// abroad makes rank 0's copies go to memory that rank 1 has exported, but not through its end.
func abroad(t *testing.T, ends []*oneSided) (mine, theirs *oneSided) {
	vec, reg := enginetest.Registered(t, ends[1].c, 4096)
	h, err := onesided.MarshalHandle(reg)
	require.NoError(t, err)
	m, err := onesided.SpaceOf(ends[0].c).Import(h)
	require.NoError(t, err)
	next := []*oneSided{{c: ends[0].c, vec: ends[0].vec, reg: ends[0].reg}, {c: ends[1].c, vec: vec, reg: reg}}
	require.NoError(t, errors.Join(testkit.Each([]*engine.Comm{ends[0].c, ends[1].c}, func(c *engine.Comm) (err error) {
		remote := []*onesided.Remote{m, nil}[c.Rank()]
		next[c.Rank()].channel, err = onesided.SpaceOf(c).Connect(background, 1-c.Rank(), ends[c.Rank()].reg, remote)
		return err
	})...))
	return next[1], next[0]
}

// shared makes channels over a semaphore between the memories of ends, and returns the ranks' last ones. Both have `most`
// channels over it.
func shared(t *testing.T, ends []*oneSided, most int) (mine, theirs *oneSided) {
	next := make([]*oneSided, 2)
	require.NoError(t, errors.Join(testkit.Each(ends, func(e *oneSided) error {
		h, err := onesided.MarshalHandle(ends[1-e.c.Rank()].reg)
		if err != nil {
			return err
		}
		m, err := onesided.SpaceOf(e.c).Import(h)
		if err != nil {
			return err
		}
		o := &oneSided{c: e.c, vec: e.vec, reg: e.reg}
		next[e.c.Rank()] = o
		if o.over, err = onesided.SpaceOf(e.c).NewSemaphore(background, 1-e.c.Rank(), hw.Host); err != nil {
			return err
		}
		for range most {
			if o.channel, err = o.over.Channel(e.reg, m); err != nil {
				return err
			}
		}
		return nil
	})...))
	return next[1], next[0]
}

// reach begins a copy of n bytes in the peer's memory.
func (e *oneSided) reach(n int) (unsafe.Pointer, func() error, error) {
	if e.window != nil {
		return e.window.Reach(1-e.c.Rank(), n)
	}
	if err := e.channel.Begin(background); err != nil {
		return nil, nil, err
	}
	p, err := e.channel.Reach(0, n)
	if err != nil {
		e.channel.End()
	}
	return p, func() error {
		defer e.channel.End()
		defer e.channel.Done()
		return e.channel.Live()
	}, err
}

// live returns why the peer's memory must not be used any more, or nil.
func (e *oneSided) live() error {
	if e.window != nil {
		return e.window.Live(1 - e.c.Rank())
	}
	return e.channel.Live()
}

// closedOnce returns err, or nil if it only says that something was already closed.
func closedOnce(err error) error {
	if errors.Is(err, fault.ErrClosed) {
		return nil
	}
	return err
}

// TestCopyOfTheDead takes memory back after a peer has died in the middle of a copy.
func TestCopyOfTheDead(t *testing.T) {
	var killed, dead atomic.Bool
	o := engine.Options{CopyTimeout: testkit.Limit / 4}
	comms := enginetest.OpenHooked(t, o,
		enginetest.Hooks{Look: func() { dead.Store(killed.Load()) }, Live: func() {}, Dead: dead.Load})
	ends := newEnds(t, comms, false)
	_, done, err := ends[0].reach(100)
	require.NoError(t, err)
	killed.Store(true)
	require.NoError(t, ends[1].reg.Close())
	require.NoError(t, comms[1].Free(ends[1].vec.Alloc))
	require.Zero(t, comms[1].Stats().Memory.HeldBytes)
	done()
}

// TestCloseWaitsForCopies takes memory back while a peer is copying to it, in every possible order: it must wait for
// the copy to end.
func TestCloseWaitsForCopies(t *testing.T) {
	for _, k := range []struct {
		name   string
		window bool
		abroad bool // the copy goes through a channel over an import of other memory
		shared int  // the copy goes through the last of so many channels over a semaphore
		close  func(e *oneSided) error
	}{
		{name: "registration, over a semaphore", shared: 1, close: func(e *oneSided) error { return e.reg.Close() }},
		{name: "semaphore, registration", shared: 3, close: func(e *oneSided) error {
			return errors.Join(e.over.Close(), e.reg.Close())
		}},
		{name: "registration, last slot", shared: 510, close: func(e *oneSided) error { return e.reg.Close() }},
		{name: "communicator of the semaphore, registration", shared: 2, close: func(e *oneSided) error {
			return errors.Join(e.c.Close(), closedOnce(e.reg.Close()))
		}},
		{name: "registration", close: func(e *oneSided) error { return e.reg.Close() }},
		{name: "registration, channel", close: func(e *oneSided) error {
			return errors.Join(e.reg.Close(), e.channel.Close())
		}},
		{name: "channel, registration", close: func(e *oneSided) error {
			return errors.Join(e.channel.Close(), e.reg.Close())
		}},
		{name: "communicator, registration", close: func(e *oneSided) error {
			return errors.Join(e.c.Close(), closedOnce(e.reg.Close()))
		}},
		{name: "import, channel, registration", abroad: true, close: func(e *oneSided) error {
			return errors.Join(e.channel.Close(), e.reg.Close())
		}},
		{name: "window", window: true, close: func(e *oneSided) error { return e.window.Close() }},
		{name: "window in use", window: true, close: func(e *oneSided) error {
			waits := make(chan error, 1)
			go func() { waits <- e.window.Wait(background, nil, 0) }()
			for !e.window.InUse() {
				time.Sleep(time.Millisecond)
			}
			err := e.window.Close()
			if w := <-waits; !errors.Is(w, fault.ErrClosed) {
				return errors.Join(err, w, errors.New("the wait should have been ErrClosed"))
			}
			return err
		}},
		{name: "communicator of the window", window: true, close: func(e *oneSided) error { return e.c.Close() }},
	} {
		t.Run(k.name, func(t *testing.T) {
			comms := enginetest.Open(t, 2, engine.Options{CopyTimeout: testkit.Limit})
			ends := newEnds(t, comms, k.window)
			e, p := ends[1], ends[0]
			if k.abroad {
				e, p = abroad(t, ends)
			}
			if k.shared > 0 {
				e, p = shared(t, ends, k.shared)
			}
			at, done, err := p.reach(100)
			require.NoError(t, err)
			closed := make(chan error, 1)
			go func() { closed <- k.close(e) }()
			testkit.Eventually(t, func() bool { return p.live() != nil }, "it is closing")
			time.Sleep(20 * time.Millisecond) // longer than Close takes if it does not wait
			require.Empty(t, closed, "closed during a copy")
			require.ErrorIs(t, comms[1].Free(e.vec.Alloc), fault.ErrInUse)
			*(*byte)(at) = 1
			require.ErrorIs(t, done(), fault.ErrStale)
			require.NoError(t, <-closed)
			require.Equal(t, byte(1), *(*byte)(e.vec.Ptr))
			require.NoError(t, comms[1].Free(e.vec.Alloc))
			_, _, err = p.reach(1)
			require.Error(t, err)
		})
	}
}

// TestCloseTwiceDuringCopy closes a registration again while the first Close waits for a peer's copy: the memory must
// stay registered until the copy is over.
func TestCloseTwiceDuringCopy(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{CopyTimeout: testkit.Limit})
	ends := newEnds(t, comms, false)
	e, p := ends[1], ends[0]
	_, done, err := p.reach(100)
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- e.reg.Close() }()
	testkit.Eventually(t, func() bool { return p.live() != nil }, "it is closing")
	require.ErrorIs(t, e.reg.Close(), fault.ErrClosed)
	require.ErrorIs(t, comms[1].Free(e.vec.Alloc), fault.ErrInUse)
	_, other := enginetest.Registered(t, comms[1], 100)
	_, err = onesided.MarshalHandle(other)
	require.NoError(t, err)
	require.NoError(t, other.Close(), "the copy is not in this memory")
	require.ErrorIs(t, done(), fault.ErrStale)
	require.NoError(t, <-closed)
	require.NoError(t, comms[1].Free(e.vec.Alloc))
}

// TestCopyThatDoesNotEnd takes memory back from a peer that never ends its copy: nobody else may get that memory.
func TestCopyThatDoesNotEnd(t *testing.T) {
	if race.Enabled {
		t.Skip("there the memory is the garbage collector's")
	}
	comms := enginetest.Open(t, 2, engine.Options{CopyTimeout: time.Millisecond})
	ends := newEnds(t, comms, false)
	e, p := ends[1], ends[0]
	at, done, err := p.reach(100)
	require.NoError(t, err)
	err = e.reg.Close()
	require.ErrorIs(t, err, fault.ErrTimeout)
	require.ErrorContains(t, err, "rank 0 has been in the middle of a copy")
	require.NoError(t, comms[1].Free(e.vec.Alloc))
	require.Equal(t, int64(shm.PageSize), comms[1].Stats().Memory.HeldBytes)
	var next []*mem.Allocation
	for range 3 {
		a, err := comms[1].Alloc(hw.Host, 4096)
		require.NoError(t, err)
		next = append(next, a)
	}
	*(*byte)(at) = 1
	for _, a := range next {
		require.Zero(t, *(*byte)(a.Ptr))
		require.NoError(t, comms[1].Free(a))
	}
	require.ErrorIs(t, done(), fault.ErrStale)
}

// TestAbortDuringUse aborts a communicator during calls on a channel and a window: both must be released later without
// errors.
func TestAbortDuringUse(t *testing.T) {
	for _, window := range []bool{false, true} {
		comms := enginetest.Open(t, 2, engine.Options{})
		ends := newEnds(t, comms, window)
		e := ends[1]
		_, done, err := e.reach(100)
		require.NoError(t, err)
		e.c.Abort(errors.New("enough"))
		done()
		require.Zero(t, comms[1].Stats().Failures, "window: %v", window)
		require.NoError(t, comms[1].Free(e.vec.Alloc))
	}
}

// TestCopiesToOtherRanks copies to one rank's memory while another rank closes a registration whose grant may have the
// same generation: it need not wait.
func TestCopiesToOtherRanks(t *testing.T) {
	comms := enginetest.Open(t, 3, engine.Options{CopyTimeout: testkit.Limit})
	regs := make([]*engine.Registration, 3)
	semaphores := make([]*onesided.Semaphore, 3) // those of ranks 1 and 2 with rank 0, and rank 0's with rank 2
	require.NoError(t, errors.Join(testkit.Each(comms, func(c *engine.Comm) (err error) {
		_, regs[c.Rank()] = enginetest.Registered(t, c, 4096)
		if _, err = onesided.MarshalHandle(regs[c.Rank()]); err != nil {
			return err
		}
		if c.Rank() != 0 {
			semaphores[c.Rank()], err = onesided.SpaceOf(c).NewSemaphore(background, 0, hw.Host)
			return err
		}
		for r := range 2 {
			if semaphores[0], err = onesided.SpaceOf(c).NewSemaphore(background, r+1, hw.Host); err != nil {
				return err
			}
		}
		return nil
	})...))
	h, err := onesided.MarshalHandle(regs[2])
	require.NoError(t, err)
	m, err := onesided.SpaceOf(comms[0]).Import(h)
	require.NoError(t, err)
	ch, err := semaphores[0].Channel(regs[0], m)
	require.NoError(t, err)
	p := &oneSided{c: comms[0], channel: ch}
	// Rank 2's grant is its first, and so is rank 1's.
	_, done, err := p.reach(2) // p.reach uses the channel only
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- regs[1].Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(testkit.Limit / 2):
		t.Error("it waits for a copy in another rank's memory")
	}
	require.NoError(t, done())
}
