package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/await"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/transport/ipc"
)

// registered is n bytes of c's, registered.
func registered(t *testing.T, c *engine.Comm, n int) (team.Vec, *engine.Registration) {
	t.Helper()
	a, err := c.Alloc(hw.Host, n)
	require.NoError(t, err)
	v := team.Vec{Ptr: a.Ptr, Len: n, Type: dtype.Uint8, Alloc: a}
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
	h, err := engine.MarshalHandle(r)
	require.NoError(t, err)
	_, err = engine.SpaceOf(others[1]).Import(h)
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
	m, err := engine.SpaceOf(comms[1]).Import(h)
	require.NoError(t, err)
	require.Equal(t, 0, m.Rank())
	_, err = engine.SpaceOf(subs[1]).Import(h) // ranks 1 and 2
	require.ErrorIs(t, err, fault.ErrStale)
	require.ErrorContains(t, err, "not among the ranks")
}

// TestExchange gathers records of other lengths, and too long ones.
func TestExchange(t *testing.T) {
	comms := open(t, 3, engine.Options{})
	for _, n := range []int{0, 1, 100, 5000} {
		for _, err := range each(comms, func(c *engine.Comm) error {
			all, err := c.Exchange(background, team.KindSplit, make([]byte, n*c.Rank()), nil)
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
			n = team.EagerBytes
		}
		_, err := c.Exchange(background, team.KindSplit, make([]byte, n), nil)
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
	links, regs := make([]*engine.Channel, 2), make([]*engine.Registration, 2)
	for _, err := range each(comms, func(c *engine.Comm) (err error) {
		_, regs[c.Rank()] = registered(t, c, 100)
		links[c.Rank()], err = engine.SpaceOf(c).Connect(background, 1-c.Rank(), regs[c.Rank()], nil)
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
// peer's own call, when it comes, fails too.
func TestConnectAlone(t *testing.T) {
	comms := open(t, 2, engine.Options{})
	_, r := registered(t, comms[0], 100)
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	alone := make(chan error, 1)
	go func() {
		_, err := engine.SpaceOf(comms[0]).Connect(ctx, 1, r, nil)
		alone <- err
	}()
	require.Eventually(t, func() bool { return comms[0].Channels(1) == 1 }, await.Limit, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-alone, context.Canceled)
	for _, err := range each(comms, barrier) {
		require.NoError(t, err)
	}
	_, q := registered(t, comms[1], 100)
	// It would not wait for copies by a channel that it knows nothing of.
	_, err := engine.SpaceOf(comms[1]).Connect(background, 0, q, nil)
	require.ErrorIs(t, err, fault.ErrClosed)
	// The next two belong together.
	for _, err := range each(comms, func(c *engine.Comm) error {
		l, err := engine.SpaceOf(c).Connect(background, 1-c.Rank(), []*engine.Registration{r, q}[c.Rank()], nil)
		if err != nil {
			return err
		}
		return l.Close()
	}) {
		require.NoError(t, err)
	}
}

// settleFor sets how long a peer may take for a copy, and returns what restores it.
func settleFor(d time.Duration) (restore func()) {
	old := engine.SettleFor
	engine.SettleFor = d
	return func() { engine.SettleFor = old }
}

// hooked is a transport of which a test hears some calls first.
type hooked struct {
	engine.IPC
	look func()
	live func()
	dead func() bool
}

type hookedPeer struct {
	team.PeerMemory
	engine.DevicePeer
	h *hooked
}

func (h *hooked) Look() { h.look(); h.IPC.Look() }

func (h *hooked) Attach(ctx context.Context, card json.RawMessage) (team.PeerMemory, error) {
	p, err := h.IPC.Attach(ctx, card)
	if err != nil {
		return nil, err
	}
	return &hookedPeer{p, p.(engine.DevicePeer), h}, nil
}

func (p *hookedPeer) Live(l mem.Location) bool { p.h.live(); return p.PeerMemory.Live(l) }
func (p *hookedPeer) Dead() bool               { return p.h.dead() || p.PeerMemory.Dead() }

// openHooked opens a communicator of two ranks, rank 1's over a transport with the hooks of h.
func openHooked(t *testing.T, h *hooked) []*engine.Comm {
	t.Helper()
	bs, comms, errs := bootstrap.Local(2), make([]*engine.Comm, 2), make([]error, 2)
	var wg sync.WaitGroup
	for r, b := range bs {
		wg.Go(func() {
			comms[r], errs[r] = engine.Open(background, b, engine.Options{}, nil,
				roomsWith(func(heap *mem.Heap, secret []byte) (engine.IPC, error) {
					tr, err := ipc.New(heap, secret)
					if r == 0 {
						return tr, err
					}
					h.IPC = tr
					return h, err
				}))
			if errs[r] == nil {
				t.Cleanup(func() { comms[r].Close() })
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	return comms
}

// TestCloseWaitsForImport closes the rank's last communicator while another goroutine looks at what a peer exports: what
// it looks at is mapped until it is done.
func TestCloseWaitsForImport(t *testing.T) {
	for _, k := range []struct {
		name string
		do   func(c *engine.Comm, r *engine.Registration, m *engine.Remote, h []byte) error
	}{
		{"import", func(c *engine.Comm, _ *engine.Registration, _ *engine.Remote, h []byte) error {
			_, err := engine.SpaceOf(c).Import(h)
			return err
		}},
		{"connect", func(c *engine.Comm, r *engine.Registration, m *engine.Remote, _ []byte) error {
			_, err := engine.SpaceOf(c).Connect(background, 0, r, m)
			return err
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			var hold atomic.Bool
			looks, goOn := make(chan struct{}), make(chan struct{})
			comms := openHooked(t, &hooked{look: func() {}, dead: func() bool { return false }, live: func() {
				if hold.CompareAndSwap(true, false) {
					looks <- struct{}{}
					<-goOn
				}
			}})
			_, theirs := registered(t, comms[0], 100)
			_, mine := registered(t, comms[1], 100)
			h, err := engine.MarshalHandle(theirs)
			require.NoError(t, err)
			m, err := engine.SpaceOf(comms[1]).Import(h)
			require.NoError(t, err)
			hold.Store(true)
			did, closed := make(chan error, 1), make(chan error, 1)
			go func() { did <- k.do(comms[1], mine, m, h) }()
			<-looks
			go func() { closed <- comms[1].Close() }()
			require.Eventually(t, func() bool { return comms[1].Err() != nil }, await.Limit, time.Millisecond)
			time.Sleep(20 * time.Millisecond) // longer than it takes where it does not wait
			require.Empty(t, closed)
			close(goOn)
			if err := <-did; err != nil {
				require.ErrorIs(t, err, fault.ErrClosed)
			}
			require.NoError(t, <-closed)
			require.ErrorIs(t, k.do(comms[1], mine, m, h), fault.ErrClosed)
		})
	}
}

// TestCopyOfTheDead takes memory back while a peer is in the middle of a copy that has died meanwhile.
func TestCopyOfTheDead(t *testing.T) {
	defer settleFor(await.Limit / 4)()
	var killed, dead atomic.Bool
	comms := openHooked(t, &hooked{look: func() { dead.Store(killed.Load()) }, live: func() {}, dead: dead.Load})
	ends := make([]*oneSided, 2)
	require.NoError(t, errors.Join(each(comms, func(c *engine.Comm) (err error) {
		ends[c.Rank()], err = newOneSided(t, c, false)
		return err
	})...))
	_, done, err := ends[0].reach(100)
	require.NoError(t, err)
	killed.Store(true)
	require.NoError(t, ends[1].reg.Close())
	require.NoError(t, comms[1].Free(ends[1].vec.Alloc))
	require.Zero(t, comms[1].Stats().Memory.HeldBytes)
	done()
}

// TestQuarantineEndsWithTheDead has a peer die that has not closed the communicator that broke: the next Free sees it.
func TestQuarantineEndsWithTheDead(t *testing.T) {
	if race.Enabled {
		t.Skip("there the memory is the garbage collector's")
	}
	var killed, dead atomic.Bool
	comms := openHooked(t, &hooked{look: func() { dead.Store(killed.Load()) }, live: func() {}, dead: dead.Load})
	dups := make([]*engine.Comm, 2)
	require.NoError(t, errors.Join(each(comms, func(c *engine.Comm) (err error) {
		dups[c.Rank()], err = c.Dup(background)
		return err
	})...))
	c := comms[1]
	free := func() {
		t.Helper()
		a, err := c.Alloc(hw.Host, 100)
		require.NoError(t, err)
		require.NoError(t, c.Free(a))
	}
	dups[1].Abort(errors.New("enough"))
	free()
	require.NoError(t, dups[1].Close())
	free()
	require.Equal(t, int64(2*shm.PageSize), c.Stats().Memory.HeldBytes)
	killed.Store(true)
	free()
	require.Zero(t, c.Stats().Memory.HeldBytes)
	require.NoError(t, dups[0].Close())
}

// TestCloseWaitsForCopies takes memory back while a peer is in the middle of a copy to it, in every order in which that
// can be done: it waits for the end of the copy.
func TestCloseWaitsForCopies(t *testing.T) {
	for _, k := range []struct {
		name   string
		window bool
		abroad bool // the copy is by a channel over an import, which shows other memory
		close  func(e *oneSided) error
	}{
		{name: "registration", close: func(e *oneSided) error { return e.reg.Close() }},
		{name: "registration, channel", close: func(e *oneSided) error {
			return errors.Join(e.reg.Close(), e.link.Close())
		}},
		{name: "channel, registration", close: func(e *oneSided) error {
			return errors.Join(e.link.Close(), e.reg.Close())
		}},
		{name: "communicator, registration", close: func(e *oneSided) error {
			return errors.Join(e.c.Close(), closedOnce(e.reg.Close()))
		}},
		{name: "import, channel, registration", abroad: true, close: func(e *oneSided) error {
			return errors.Join(e.link.Close(), e.reg.Close())
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
			defer settleFor(await.Limit)()
			comms := open(t, 2, engine.Options{})
			ends := make([]*oneSided, 2)
			require.NoError(t, errors.Join(each(comms, func(c *engine.Comm) (err error) {
				ends[c.Rank()], err = newOneSided(t, c, k.window)
				return err
			})...))
			e, p := ends[1], ends[0]
			if k.abroad {
				e, p = abroad(t, ends)
			}
			at, done, err := p.reach(100)
			require.NoError(t, err)
			closed := make(chan error, 1)
			go func() { closed <- k.close(e) }()
			require.Eventually(t, func() bool { return p.live() != nil }, await.Limit, time.Millisecond, "it is closing")
			time.Sleep(20 * time.Millisecond) // longer than it takes where it does not wait
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

// TestCloseTwiceDuringCopy closes a registration again while the first Close waits for a peer's copy: the memory stays
// registered until that is over.
func TestCloseTwiceDuringCopy(t *testing.T) {
	defer settleFor(await.Limit)()
	comms := open(t, 2, engine.Options{})
	ends := make([]*oneSided, 2)
	require.NoError(t, errors.Join(each(comms, func(c *engine.Comm) (err error) {
		ends[c.Rank()], err = newOneSided(t, c, false)
		return err
	})...))
	e, p := ends[1], ends[0]
	_, done, err := p.reach(100)
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- e.reg.Close() }()
	require.Eventually(t, func() bool { return p.live() != nil }, await.Limit, time.Millisecond, "it is closing")
	require.ErrorIs(t, e.reg.Close(), fault.ErrClosed)
	require.ErrorIs(t, comms[1].Free(e.vec.Alloc), fault.ErrInUse)
	_, other := registered(t, comms[1], 100)
	_, err = engine.MarshalHandle(other)
	require.NoError(t, err)
	require.NoError(t, other.Close(), "the copy is not in this memory")
	require.ErrorIs(t, done(), fault.ErrStale)
	require.NoError(t, <-closed)
	require.NoError(t, comms[1].Free(e.vec.Alloc))
}

// TestCopyThatDoesNotEnd takes memory back from a peer that stays in the middle of a copy: nobody else gets it.
func TestCopyThatDoesNotEnd(t *testing.T) {
	if race.Enabled {
		t.Skip("there the memory is the garbage collector's")
	}
	defer settleFor(time.Millisecond)()
	comms := open(t, 2, engine.Options{})
	ends := make([]*oneSided, 2)
	require.NoError(t, errors.Join(each(comms, func(c *engine.Comm) (err error) {
		ends[c.Rank()], err = newOneSided(t, c, false)
		return err
	})...))
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

// TestAbortDuringUse aborts a communicator while a channel's and a window's calls are under way: what those give up
// later has gone well.
func TestAbortDuringUse(t *testing.T) {
	for _, window := range []bool{false, true} {
		comms := open(t, 2, engine.Options{})
		ends := make([]*oneSided, 2)
		require.NoError(t, errors.Join(each(comms, func(c *engine.Comm) (err error) {
			ends[c.Rank()], err = newOneSided(t, c, window)
			return err
		})...))
		e := ends[1]
		_, done, err := e.reach(100)
		require.NoError(t, err)
		e.c.Abort(errors.New("enough"))
		done()
		require.Zero(t, comms[1].Stats().Failures, "window: %v", window)
		require.NoError(t, comms[1].Free(e.vec.Alloc))
	}
}

// TestClosedEndsAreForgotten connects and closes again and again: what a slot was used for before is not looked at for as
// long as the slot is in use.
func TestClosedEndsAreForgotten(t *testing.T) {
	comms := open(t, 2, engine.Options{})
	require.NoError(t, errors.Join(each(comms, func(c *engine.Comm) error {
		_, r := registered(t, c, 100)
		for range 300 {
			l, err := engine.SpaceOf(c).Connect(background, 1-c.Rank(), r, nil)
			if err == nil {
				err = errors.Join(l.Close(), barrier(c)) // so that the next one has the same slot
			}
			if err != nil {
				return err
			}
		}
		return nil // r's Close would forget what has been closed
	})...))
	for _, c := range comms {
		require.Less(t, c.Domain().Watched(), 100)
	}
}

// closedOnce is err, but for what closed with something else already.
func closedOnce(err error) error {
	if errors.Is(err, fault.ErrClosed) {
		return nil
	}
	return err
}

// oneSided is one rank's end of a channel, or of a window, of a communicator of its own.
type oneSided struct {
	c      *engine.Comm
	vec    team.Vec
	reg    *engine.Registration // of the channel
	link   *engine.Channel
	window *engine.Window
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
		e.window, err = engine.SpaceOf(v.Comm).RegisterWindow(background, &v, e.vec, 0)
		return e, err
	}
	if e.reg, err = d.RegisterBuffer(e.vec); err == nil {
		e.link, err = engine.SpaceOf(d).Connect(background, 1-d.Rank(), e.reg, nil)
	}
	return e, err
}

// abroad makes rank 0's copies go to memory that rank 1 has exported, and that its end does not show.
func abroad(t *testing.T, ends []*oneSided) (mine, theirs *oneSided) {
	vec, reg := registered(t, ends[1].c, 4096)
	h, err := engine.MarshalHandle(reg)
	require.NoError(t, err)
	m, err := engine.SpaceOf(ends[0].c).Import(h)
	require.NoError(t, err)
	next := []*oneSided{{c: ends[0].c, vec: ends[0].vec, reg: ends[0].reg}, {c: ends[1].c, vec: vec, reg: reg}}
	require.NoError(t, errors.Join(each([]*engine.Comm{ends[0].c, ends[1].c}, func(c *engine.Comm) (err error) {
		remote := []*engine.Remote{m, nil}[c.Rank()]
		next[c.Rank()].link, err = engine.SpaceOf(c).Connect(background, 1-c.Rank(), ends[c.Rank()].reg, remote)
		return err
	})...))
	return next[1], next[0]
}

// reach begins a copy of n bytes in the peer's memory.
func (e *oneSided) reach(n int) (unsafe.Pointer, func() error, error) {
	if e.window != nil {
		return e.window.Reach(1-e.c.Rank(), n)
	}
	if err := e.link.Begin(background); err != nil {
		return nil, nil, err
	}
	p, err := e.link.Reach(0, n)
	if err != nil {
		e.link.End()
	}
	return p, func() error { defer e.link.End(); return e.link.Done() }, err
}

// live is whether the peer's memory may be used.
func (e *oneSided) live() error {
	if e.window != nil {
		return e.window.Live(1 - e.c.Rank())
	}
	return e.link.Live()
}

// TestLastWord has a peer close its communicator right after what a wait is for: that is no loss.
func TestLastWord(t *testing.T) {
	comms := open(t, 2, engine.Options{})
	ends := make([]*oneSided, 2)
	require.NoError(t, errors.Join(each(comms, func(c *engine.Comm) (err error) {
		ends[c.Rank()], err = newOneSided(t, c, false)
		return err
	})...))
	defer ends[0].c.ForgeClosed()()
	e := ends[1]
	require.NoError(t, e.link.Begin(background))
	require.NoError(t, e.link.WaitPolls())
	require.NoError(t, e.c.Err())
	e.link.End()
}

// TestRegistrationsEnd closes or aborts the communicator that registrations were made with.
func TestRegistrationsEnd(t *testing.T) {
	for _, k := range []struct {
		name string
		end  func(c *engine.Comm) error
		want error // of what comes later
	}{
		{"close", (*engine.Comm).Close, fault.ErrClosed},
		{"abort", func(c *engine.Comm) error { c.Abort(errors.New("enough")); return nil }, fault.ErrAborted},
	} {
		t.Run(k.name, func(t *testing.T) {
			comms := open(t, 2, engine.Options{})
			dups := make([]*engine.Comm, 2)
			require.NoError(t, errors.Join(each(comms, func(c *engine.Comm) (err error) {
				dups[c.Rank()], err = c.Dup(background)
				return err
			})...))
			defer dups[0].Close()
			defer dups[1].Close()
			d := dups[1]
			a, err := d.Alloc(hw.Host, 4096)
			require.NoError(t, err)
			v := team.Vec{Ptr: a.Ptr, Len: 4096, Type: dtype.Uint8, Alloc: a}
			r, err := d.RegisterBuffer(v)
			require.NoError(t, err)
			h, err := engine.MarshalHandle(r)
			require.NoError(t, err)
			m, err := engine.SpaceOf(comms[0]).Import(h)
			require.NoError(t, err)
			early, err := d.RegisterBuffer(v)
			require.NoError(t, err)
			require.NoError(t, early.Close())
			other, err := comms[1].RegisterBuffer(v)
			require.NoError(t, err)

			require.NoError(t, k.end(d))
			require.ErrorIs(t, r.Close(), fault.ErrClosed)
			_, err = engine.MarshalHandle(r)
			require.ErrorIs(t, err, fault.ErrStale)
			require.ErrorIs(t, m.Live(), fault.ErrStale)
			_, err = d.RegisterBuffer(v)
			require.ErrorIs(t, err, k.want)
			err = d.Free(a)
			require.ErrorIs(t, err, fault.ErrInUse, "the one that the parent made stays")
			require.ErrorContains(t, err, "1 local")
			require.NoError(t, other.Close())
			require.NoError(t, d.Free(a))
		})
	}
}

// TestCloseWindowInTheMaking closes a window while its group is under way: what it is made of lives until that is over,
// and then goes, whether the window came to be or not.
func TestCloseWindowInTheMaking(t *testing.T) {
	for _, k := range []struct {
		name string
		size int // of the other rank's part
		want error
	}{
		{"and it comes to be", 4096, nil},
		{"and it fails", 100, fault.ErrMismatch},
	} {
		t.Run(k.name, func(t *testing.T) {
			comms := open(t, 2, engine.Options{})
			vecs, wins := make([]team.Vec, 2), make([]*engine.Window, 2)
			works := make([][]team.Work, 2)
			for r, c := range comms {
				a, err := c.Alloc(hw.Host, 4096)
				require.NoError(t, err)
				vecs[r] = team.Vec{Ptr: a.Ptr, Len: []int{4096, k.size}[r], Type: dtype.Uint8, Alloc: a}
				rec := &recorder{room: 2}
				v := engine.View{Comm: c, Recorder: rec}
				wins[r], err = engine.SpaceOf(v.Comm).RegisterWindow(background, &v, vecs[r], 0)
				require.NoError(t, err)
				works[r] = rec.works
			}
			s := engine.NewStream()
			require.NoError(t, (&engine.View{Comm: comms[0], Stream: s}).SubmitAll(background, "group", works[0], nil))
			requireWaiting(t, comms, 1, 1)
			before := comms[0].Stats().Memory.Allocations
			require.NoError(t, wins[0].Close())
			require.ErrorIs(t, wins[0].Close(), fault.ErrClosed)
			require.ErrorIs(t, comms[0].Free(vecs[0].Alloc), fault.ErrInUse)
			require.Equal(t, before, comms[0].Stats().Memory.Allocations)

			require.ErrorIs(t, (&engine.View{Comm: comms[1]}).SubmitAll(background, "group", works[1], nil), k.want)
			require.ErrorIs(t, s.Sync(background), k.want)
			require.NoError(t, s.Close())
			require.ErrorIs(t, wins[0].Close(), fault.ErrClosed)
			require.NoError(t, comms[0].Free(vecs[0].Alloc))
			if k.want == nil {
				require.ErrorIs(t, wins[1].Live(0), fault.ErrStale)
			}
			require.NoError(t, wins[1].Close())
			require.NoError(t, comms[1].Free(vecs[1].Alloc))
			require.Zero(t, comms[0].Stats().Failures)
		})
	}
}

// TestWaitOnBroken waits for a peer whose communicator has broken, for whatever reason: this rank's has then, too. What
// ends the wait here alone leaves it as it was.
func TestWaitOnBroken(t *testing.T) {
	for _, k := range []struct {
		name string
		end  func(c, other *engine.Comm)
		want error
		ends bool
	}{
		{"abort", func(_, other *engine.Comm) { other.Abort(errors.New("enough")) }, fault.ErrAborted, true},
		{"its deadline", func(_, other *engine.Comm) { engine.MailOf(other).Fail("recv", 1, fault.ErrTimeout) }, fault.ErrTimeout, true},
		{"its context", func(_, other *engine.Comm) { engine.MailOf(other).Fail("recv", 1, context.Canceled) }, fault.ErrAborted, true},
		{"this rank's deadline", func(c, _ *engine.Comm) { c.SetTimeout(time.Millisecond) }, fault.ErrTimeout, false},
	} {
		for _, window := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/window=%v", k.name, window), func(t *testing.T) {
				comms := open(t, 2, engine.Options{})
				ends := make([]*oneSided, 2)
				require.NoError(t, errors.Join(each(comms, func(c *engine.Comm) (err error) {
					ends[c.Rank()], err = newOneSided(t, c, window)
					return err
				})...))
				e := ends[1]
				k.end(e.c, ends[0].c)
				var err error
				if window {
					err = e.window.Wait(background, nil, 0)
				} else {
					require.NoError(t, e.link.Begin(background))
					err = e.link.Wait(background)
					e.link.End()
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
