package gpuend_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpuend"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/internal/transport/ipc"
)

// attachment attaches ends to a communicator, and nothing else. It owns them.
type attachment struct {
	table  *gpuend.Table
	closed atomic.Bool
}

func newAttachment(*engine.Comm, engine.Attachment) engine.Attachment { return &attachment{} }

func (a *attachment) AreaBytes() int          { return 0 }
func (a *attachment) Lay(int, unsafe.Pointer) {}
func (a *attachment) Advance()                {}
func (a *attachment) Pass()                   {}
func (a *attachment) Count(*engine.Stats)     {}
func (a *attachment) Shut(bool) error         { return nil }
func (a *attachment) Reopen()                 {}
func (a *attachment) Close() error            { return nil }
func (a *attachment) Abort()                  {}

// OnDevice implements gpu.ClientMaker.
func (a *attachment) OnDevice(d *gpu.Device) gpu.Client {
	a.table = gpuend.NewTable(d)
	return a.table
}

// Err implements gpuend.Owner.
func (a *attachment) Err() error {
	if a.closed.Load() {
		return fmt.Errorf("the owner: %w", fault.ErrClosed)
	}
	return nil
}

const memory = 1000 // bytes of each rank

// side is one rank's end, and its memory.
type side struct {
	c     *engine.Comm
	owner *attachment
	vec   team.Vec
	reg   *engine.Registration
	out   engine.Export
	end   *gpuend.End
	shut  atomic.Bool // the peer's PeerClosed
}

// open opens a communicator of two ranks, and an end on each.
func open(t *testing.T) (sides [2]*side) {
	t.Helper()
	t.Setenv(env.CUDA.Name, "share")
	bs := bootstrap.Local(2)
	require.NoError(t, errors.Join(testkit.Each(bs, func(b bootstrap.Bootstrap) (err error) {
		s := &side{}
		s.c, err = engine.Open(t.Context(), b, engine.Options{Timeout: testkit.Limit}, nil, engine.Providers{IPC: ipc.New,
			Accelerators: gpu.Accelerators, Attachments: []engine.NewAttachment{newAttachment}})
		sides[b.Rank()] = s
		return err
	})...))
	testkit.Each(bs, bootstrap.Bootstrap.Close)
	for _, s := range sides {
		t.Cleanup(func() { require.NoError(t, s.c.Close()) })
	}
	require.NoError(t, errors.Join(testkit.Each(sides[:], (*side).export)...))
	if sides[0].owner == nil {
		_, err := sides[0].c.GPU()
		testkit.Missing(t, "cuda", err)
	}
	require.NoError(t, errors.Join(testkit.Each(sides[:], func(s *side) error { return s.open(sides[1-s.c.Rank()]) })...))
	for _, s := range sides {
		t.Cleanup(func() { require.NoError(t, s.end.Close(false)) })
	}
	return sides
}

// slot returns the slot of a rank's end.
func slot(rank int) int { return 3 + rank }

// export makes s's memory and exports it, if there is a device.
func (s *side) export() error {
	dev, err := s.c.GPU()
	if err != nil {
		return nil
	}
	s.owner, _ = engine.Attached[*attachment](s.c)
	a, err := s.c.Alloc(dev, memory)
	if err != nil {
		return err
	}
	s.vec = team.Vec{Ptr: a.Ptr, Len: memory, Type: dtype.Uint8, Dev: dev, Alloc: a}
	if s.reg, err = s.c.RegisterBuffer(s.vec); err != nil {
		return err
	}
	if s.out, err = s.reg.Export(); err != nil {
		return err
	}
	return s.owner.table.Clear(slot(s.c.Rank()))
}

func (s *side) open(peer *side) (err error) {
	r := peer.c.Rank()
	s.end, err = s.owner.table.Open(context.Background(), gpuend.Config{Signals: gpuend.Signals{Owner: s.owner, Op: "test", Name: "the end",
		Rank: r, Index: r, Slot: slot(s.c.Rank()), PeerSlot: slot(r), PeerClosed: peer.shut.Load}, Memory: s.memory(peer)})
	return err
}

// memory is s's memory and the peer's.
func (s *side) memory(peer *side) gpuend.Memory {
	r := peer.c.Rank()
	return gpuend.Memory{Local: s.reg, Remote: &engine.Import{Export: peer.out, Rank: r, Memory: s.c.Team().Peers[r].Mem}}
}

// copy copies between b and s's memory from off on.
func (s *side) copy(t *testing.T, off int, b []byte, in bool) {
	t.Helper()
	require.NoError(t, gpu.DeviceOf(s.c).Domain.Copy(cuda.Addr(uintptr(s.vec.Ptr))+cuda.Addr(off), b, in))
}

func (s *side) launch(steps ...gpuend.Step) error {
	return s.end.Launch(context.Background(), nil, steps)
}

// TestEnd puts to the peer's memory, and gets from it.
func TestEnd(t *testing.T) {
	sides := open(t)
	a, b := sides[0], sides[1]
	for round := range 3 {
		sent, got := []byte(fmt.Sprintf("round %d", round)), make([]byte, 7)
		a.copy(t, 100, sent, true)
		require.NoError(t, a.launch(gpuend.Step{Kind: gpuend.StepPut, Dst: 200, Src: 100, N: len(sent)},
			gpuend.Step{Kind: gpuend.StepSignal}))
		require.NoError(t, b.launch(gpuend.Step{Kind: gpuend.StepWait}))
		b.copy(t, 200, got, false)
		require.Equal(t, sent, got)
		require.NoError(t, a.launch(gpuend.Step{Kind: gpuend.StepGet, Dst: 300, Src: 200, N: len(sent)}))
		a.copy(t, 300, got, false)
		require.Equal(t, sent, got)
	}
	require.ErrorIs(t, a.launch(gpuend.Step{Kind: gpuend.StepSignal}, gpuend.Step{Kind: gpuend.StepPut, N: memory + 1}),
		fault.ErrArgument)
	require.NoError(t, a.launch(gpuend.Step{Kind: gpuend.StepSignal}), "nothing was queued before")
	require.NoError(t, b.launch(gpuend.Step{Kind: gpuend.StepWait}))
}

// TestWaitEnds ends waits whose signal does not come, and with them the end. No end breaks the communicator.
func TestWaitEnds(t *testing.T) {
	for _, k := range []struct {
		name string
		end  func(s, peer *side)
		want error
		text string
	}{
		{"the owner closes", func(s, _ *side) { s.owner.closed.Store(true) }, fault.ErrClosed, "the owner"},
		{"the peer closes", func(_, peer *side) { peer.shut.Store(true) }, fault.ErrClosed,
			"rank 1 has closed its side of the end"},
		{"the communicator breaks", func(s, _ *side) { s.c.Abort(errors.New("enough")) }, fault.ErrAborted, "enough"},
	} {
		t.Run(k.name, func(t *testing.T) {
			sides := open(t)
			s, peer := sides[0], sides[1]
			waits := make(chan error, 1)
			go func() { waits <- s.launch(gpuend.Step{Kind: gpuend.StepWait}) }()
			time.Sleep(20 * time.Millisecond) // in most runs the kernel waits now
			require.Empty(t, waits)
			k.end(s, peer)
			err := <-waits
			require.ErrorIs(t, err, k.want)
			require.ErrorContains(t, err, k.text)
			if k.want == fault.ErrClosed {
				require.ErrorIs(t, s.launch(gpuend.Step{Kind: gpuend.StepSignal}), k.want, "it ends the end")
				require.NoError(t, s.c.Err())
			}
		})
	}
}

// TestCloseEndsQueuedWaits closes an end whose wait is queued on a stream: the stream's Sync has the error.
func TestCloseEndsQueuedWaits(t *testing.T) {
	s := open(t)[0]
	on, err := gpu.OpenStream(s.vec.Dev)
	require.NoError(t, err)
	require.NoError(t, s.end.Launch(t.Context(), on, []gpuend.Step{{Kind: gpuend.StepWait}}))
	require.NoError(t, s.end.Close(false))
	err = on.Sync(t.Context())
	require.ErrorIs(t, err, fault.ErrClosed)
	require.ErrorContains(t, err, "the end")
	require.NoError(t, on.Sync(t.Context()), "one Sync returns it")
	require.NoError(t, on.Close())
}

// TestTakenBack lets the peer take its memory back: puts are refused, signals are not, and the memory is not held.
func TestTakenBack(t *testing.T) {
	sides := open(t)
	s, peer := sides[0], sides[1]
	put := gpuend.Step{Kind: gpuend.StepPut, N: 8}
	require.NoError(t, s.launch(put))
	require.NoError(t, peer.reg.Close())
	require.ErrorIs(t, s.launch(put), fault.ErrStale)
	require.ErrorIs(t, s.launch(gpuend.Step{Kind: gpuend.StepGet, N: 8}), fault.ErrStale)
	require.NoError(t, s.launch(gpuend.Step{Kind: gpuend.StepSignal}))
	require.ErrorIs(t, peer.launch(gpuend.Step{Kind: gpuend.StepWait}), fault.ErrStale, "its own registration is closed")
}

// share opens an end that shares s's signals.
func (s *side) share(t *testing.T, peer *side) *gpuend.End {
	t.Helper()
	e, err := s.end.Share(context.Background(), s.memory(peer))
	require.NoError(t, err)
	return e
}

// TestShare shares signals between ends: a wait on any takes a signal of any, in the order of the calls, and the close of
// an end leaves the others open.
func TestShare(t *testing.T) {
	sides := open(t)
	a, b := sides[0], sides[1]
	shared := [2][]*gpuend.End{{a.share(t, b), a.share(t, b)}, {b.share(t, a)}}
	ctx := t.Context()
	on, err := gpu.OpenStream(a.vec.Dev)
	require.NoError(t, err)
	for round := range 4 {
		sent, got := []byte(fmt.Sprintf("round %d", round)), make([]byte, 7)
		a.copy(t, 100, sent, true)
		// Not on the stream of the signals.
		require.NoError(t, shared[0][round%2].Launch(ctx, on, []gpuend.Step{{Kind: gpuend.StepPut, Dst: 200, Src: 100, N: 7}}))
		require.NoError(t, shared[0][1-round%2].Launch(ctx, nil, []gpuend.Step{{Kind: gpuend.StepSignal}}))
		require.NoError(t, a.launch(gpuend.Step{Kind: gpuend.StepSignal}))
		require.NoError(t, shared[1][0].Launch(ctx, nil, []gpuend.Step{{Kind: gpuend.StepWait}}))
		b.copy(t, 200, got, false)
		require.Equal(t, sent, got)
		require.NoError(t, b.launch(gpuend.Step{Kind: gpuend.StepWait}))
	}
	require.NoError(t, shared[0][0].Close(false))
	require.NoError(t, shared[0][1].Launch(ctx, nil, []gpuend.Step{{Kind: gpuend.StepSignal}}))
	require.NoError(t, b.launch(gpuend.Step{Kind: gpuend.StepWait}))
	require.NoError(t, errors.Join(shared[0][1].Close(false), shared[1][0].Close(false)))
	require.NoError(t, errors.Join(on.Sync(ctx), on.Close()))
}

// TestCloseOfSharingEnd closes an end whose wait is queued: it goes on, and the close waits for it, until the signal comes
// or the waits of the signals end.
func TestCloseOfSharingEnd(t *testing.T) {
	for _, k := range []struct {
		name string
		end  func(s, peer *side) error
		want error
	}{
		{"the signal comes", func(_, peer *side) error { return peer.launch(gpuend.Step{Kind: gpuend.StepSignal}) }, nil},
		{"its signals end", func(s, _ *side) error { s.end.EndWaits(); return nil }, fault.ErrClosed},
		{"the peer closes", func(_, peer *side) error { peer.shut.Store(true); return nil }, fault.ErrClosed},
	} {
		t.Run(k.name, func(t *testing.T) {
			sides := open(t)
			s, peer := sides[0], sides[1]
			e := s.share(t, peer)
			on, err := gpu.OpenStream(s.vec.Dev)
			require.NoError(t, err)
			require.NoError(t, e.Launch(t.Context(), on, []gpuend.Step{{Kind: gpuend.StepWait}}))
			closed := make(chan error, 1)
			go func() { closed <- e.Close(false) }()
			time.Sleep(50 * time.Millisecond) // time for what must not happen
			require.Empty(t, closed)
			require.NoError(t, k.end(s, peer))
			require.NoError(t, <-closed)
			require.ErrorIs(t, on.Sync(t.Context()), k.want)
			require.NoError(t, on.Close())
			if k.want != nil {
				require.ErrorIs(t, s.launch(gpuend.Step{Kind: gpuend.StepSignal}), k.want)
			}
		})
	}
}

// TestSharedTakenBack takes one memory back of an end that shares its signals: the others' copies go on.
func TestSharedTakenBack(t *testing.T) {
	sides := open(t)
	s, peer := sides[0], sides[1]
	e := s.share(t, peer)
	other := peer.reg
	var err error
	peer.reg, err = peer.c.RegisterBuffer(peer.vec)
	require.NoError(t, err)
	peer.out, err = peer.reg.Export()
	require.NoError(t, err)
	kept := s.share(t, peer)
	put := []gpuend.Step{{Kind: gpuend.StepPut, N: 8}}
	require.NoError(t, errors.Join(e.Launch(t.Context(), nil, put), kept.Launch(t.Context(), nil, put)))
	require.NoError(t, other.Close())
	require.ErrorIs(t, e.Launch(t.Context(), nil, put), fault.ErrStale)
	require.NoError(t, kept.Launch(t.Context(), nil, put))
	require.NoError(t, e.Launch(t.Context(), nil, []gpuend.Step{{Kind: gpuend.StepSignal}}))
	require.NoError(t, errors.Join(e.Close(false), kept.Close(false)))
}

// TestOrderOfBothSides queues steps of both sides, of which the first waits, and then a signal on another stream: signals and
// puts run in the order of the calls, whatever the streams.
func TestOrderOfBothSides(t *testing.T) {
	sides := open(t)
	a, b := sides[0], sides[1]
	var on [2]*engine.Stream
	for i := range on {
		var err error
		on[i], err = gpu.OpenStream(a.vec.Dev)
		require.NoError(t, err)
	}
	a.copy(t, 100, []byte("first"), true)
	require.NoError(t, a.end.Launch(t.Context(), on[0], []gpuend.Step{{Kind: gpuend.StepWait}, {Kind: gpuend.StepPut, Dst: 200, Src: 100, N: 5}}))
	require.NoError(t, a.end.Launch(t.Context(), on[1], []gpuend.Step{{Kind: gpuend.StepSignal}}))
	waits := make(chan error, 1)
	go func() { waits <- b.launch(gpuend.Step{Kind: gpuend.StepWait}) }()
	time.Sleep(50 * time.Millisecond) // time for what must not happen
	require.Empty(t, waits, "the signal has overtaken the put")
	require.NoError(t, b.launch(gpuend.Step{Kind: gpuend.StepSignal}))
	require.NoError(t, <-waits)
	got := make([]byte, 5)
	b.copy(t, 200, got, false)
	require.Equal(t, "first", string(got))
	for _, s := range on {
		require.NoError(t, s.Sync(t.Context()))
		require.NoError(t, s.Close())
	}
}

// TestRoomForCapturedWaits: what a user has captured may wait at any time, so its blocks are taken from the room of all others
// until the communicator ends, whether or not the capture goes on.
func TestRoomForCapturedWaits(t *testing.T) {
	s := open(t)[0]
	d := gpu.DeviceOf(s.c)
	room := d.Room.Channels
	require.Greater(t, room, 1)
	defer func(n int) { d.Domain.Sharers = n }(d.Domain.Sharers)
	d.Domain.Sharers = 2
	cu, handle, end, err := gputest.Foreign(s.vec.Dev)
	require.NoError(t, err)
	user := gpu.StreamOf((*inside.Stream)(handle).Engine())
	other, err := gpu.OpenStream(s.vec.Dev)
	require.NoError(t, err)
	require.NoError(t, cu.BeginCapture())
	blocks, err := d.AdmitWait(user, 1)
	require.NoError(t, err)
	require.Equal(t, 1, blocks)
	g, err := cu.EndCapture()
	require.NoError(t, err)
	blocks, err = d.AdmitWait(gpu.StreamOf(other), room)
	require.NoError(t, err)
	require.Equal(t, room-1, blocks, "all but what is captured")
	require.NoError(t, cu.BeginCapture())
	blocks, err = d.AdmitWait(user, room)
	require.NoError(t, err)
	require.Equal(t, room-1, blocks)
	again, err := cu.EndCapture()
	require.NoError(t, err)
	_, err = d.AdmitWait(gpu.StreamOf(other), 1)
	require.ErrorIs(t, err, fault.ErrLimit)
	require.NoError(t, errors.Join(g.Close(), again.Close(), other.Close(), end()))
}

// TestSignalThenClose lets a peer signal and at once close its side, while a wait for that signal runs: it takes the signal.
// Kernels look only now and then at what ends waits, emulated ones often (UBC_CHANNEL_POLLS).
func TestSignalThenClose(t *testing.T) {
	rounds := testkit.Often(1000)
	sides := open(t)
	s, peer := sides[0], sides[1]
	for range rounds {
		waits := make(chan error, 1)
		go func() { waits <- s.launch(gpuend.Step{Kind: gpuend.StepWait}) }()
		time.Sleep(time.Millisecond)
		require.NoError(t, peer.launch(gpuend.Step{Kind: gpuend.StepSignal}))
		peer.shut.Store(true)
		s.owner.table.Watch()
		require.NoError(t, <-waits)
		peer.shut.Store(false)
		for _, x := range sides { // the next pair of ends
			require.NoError(t, x.end.Close(false))
			require.NoError(t, x.owner.table.Clear(slot(x.c.Rank())))
		}
		require.NoError(t, errors.Join(testkit.Each(sides[:], func(x *side) error { return x.open(sides[1-x.c.Rank()]) })...))
	}
}
