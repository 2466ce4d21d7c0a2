package onesided

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpuend"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// WindowFlags say what the ranks promise about a window, and what they require.
type WindowFlags uint32

// The flags; they may be combined.
const (
	WindowDefault        WindowFlags = 0
	WindowCollSymmetric  WindowFlags = 1 << 0
	WindowStrictOrdering WindowFlags = 1 << 1
	WindowReadOnly       WindowFlags = 1 << 16
	WindowAtomic         WindowFlags = 1 << 17

	allWindowFlags = WindowCollSymmetric | WindowStrictOrdering | WindowReadOnly | WindowAtomic
)

// access is what the ranks may do with each other's parts.
func (f WindowFlags) access() engine.Access {
	switch {
	case f&WindowReadOnly != 0:
		return engine.LocalWrite | engine.RemoteRead
	case f&WindowAtomic != 0:
		return engine.DefaultAccess | engine.RemoteAtomic
	}
	return engine.DefaultAccess
}

// String returns "default", or the names of the flags.
func (f WindowFlags) String() string {
	var s []string
	for _, k := range []struct {
		flag WindowFlags
		name string
	}{{WindowCollSymmetric, "coll_symmetric"}, {WindowStrictOrdering, "strict_ordering"}, {WindowReadOnly, "read_only"},
		{WindowAtomic, "atomic"}} {
		if f&k.flag != 0 {
			s = append(s, k.name)
		}
	}
	if rest := f &^ allWindowFlags; rest != 0 {
		s = append(s, fmt.Sprintf("%#x", uint32(rest)))
	}
	if s == nil {
		return "default"
	}
	return strings.Join(s, "|")
}

// Window is memory of every rank that all ranks may put to and get from.
type Window struct {
	uses
	counters
	sp     *Space
	c      *engine.Comm
	flags  WindowFlags
	vec    team.Vec
	reg    *engine.Registration
	device *gpuend.Window // nil on the host
	slots  []int          // on devices: of the ends, by the team's rank
	block  *mem.Allocation
	mine   *windowBlock
	ranks  []windowRank  // by the team's rank
	id     uint64        // between hosts: the same on all ranks, and of no other window
	export engine.Export // of this rank's part
	record []byte        // for the ranks of this host
	nic    windowNIC
	filled atomic.Bool // the window is complete
	making sync.Mutex  // guards the two fields below
	begun  bool        // whoever runs its group is making it
	given  bool        // closed before it was complete
	ended  atomic.Bool // this rank no longer accesses other parts

	viewing sync.Mutex
}

// windowRank is what this rank knows of another rank's part. For its own part, it has only signals.
type windowRank struct {
	*Remote
	base    mem.Location // of that rank's memory
	block   *windowBlock
	at      mem.Location // where block is
	slot    int          // on devices: of that rank's end towards this one
	signals *atomic.Uint64
	sent    uint64   // signals to that rank
	awaited uint64   // signals from that rank
	view    view     // of that rank's part, if it was made; guarded by Window.viewing
	far     *farRank // of a rank of another host: then all above are empty but the signals
}

// windowBlock is one rank's words, which it alone writes. windowWords for each rank follow.
type windowBlock struct {
	state atomic.Uint64
	_     [120]byte
}

// windowWords are a rank's words for one other rank. The word that this other rank polls and the words that are written
// at every copy are on different pairs of cache lines.
type windowWords struct {
	signals atomic.Uint64
	_       [120]byte
	copying atomic.Uint64 // copies under way in the other rank's part
	grant   atomic.Uint64 // the grant that they use
	_       [112]byte
}

// windowBytes returns the size of a rank's words, for the ranks of its host.
func windowBytes(ranks int) int {
	return int(unsafe.Sizeof(windowBlock{})) + ranks*int(unsafe.Sizeof(windowWords{}))
}

// to returns the words for the team's rank r.
func (b *windowBlock) to(r int) *windowWords {
	return (*windowWords)(unsafe.Add(unsafe.Pointer(b),
		int(unsafe.Sizeof(*b))+r*int(unsafe.Sizeof(windowWords{}))))
}

// begin begins an operation on the window towards a rank, or Peer; end(w) ends this use.
func (w *Window) begin(ctx context.Context, op string, peer int) (*windowRank, error) {
	c := w.c
	if !w.filled.Load() {
		return nil, c.LocalError(op, fmt.Errorf("the window is not complete: its group has not ended, or failed: %w",
			fault.ErrClosed))
	}
	if !w.Enter() {
		if err := told(w, c, op != peerOp); err != nil {
			return nil, c.LocalError(op, err)
		}
	}
	err := error(nil)
	switch e := c.Broken(); {
	case e != nil:
		err = e
	case ctx.Err() != nil:
		err = c.LocalError(op, reason.Ended(ctx))
	case peer < 0 || peer >= c.Size():
		err = c.LocalError(op, fmt.Errorf("rank %d of %d: %w", peer, c.Size(), fault.ErrArgument))
	}
	if err == nil && w.sp.local(peer) < 0 {
		var k *windowRank
		if k, err = w.farRank(ctx, op, w.sp.far(peer, true)); err == nil {
			return k, nil
		}
		err = peerError(c, op, peer, err)
	}
	if err != nil {
		end(w)
		return nil, err
	}
	return &w.ranks[w.sp.local(peer)], nil
}

// allows returns why the window's flags do not allow what a call needs, or nil.
func (w *Window) allows(need engine.Access) error {
	switch {
	case w.flags.access()&need == need:
		return nil
	case need == engine.RemoteAtomic:
		return fmt.Errorf("the window allows no atomics (it is registered without WindowAtomic): %w", fault.ErrArgument)
	}
	return fmt.Errorf("the window is registered with WindowReadOnly: %w", fault.ErrArgument)
}

// queues reports whether to queue a whole call on s, which may be nil. On devices, steps are queued instead.
func (w *Window) queues(s *engine.Stream) bool { return s != nil && w.vec.Dev.IsHost() }

// Copy copies all of v to offset off in peer's part, or from there to v, on s or at once.
func (w *Window) Copy(ctx context.Context, s *engine.Stream, op string, peer, off int, v team.Vec, put bool) error {
	if w.queues(s) {
		return w.queueCopy(ctx, s, op, peer, off, v, put)
	}
	k, err := w.begin(ctx, op, peer)
	if err != nil {
		return err
	}
	defer end(w)
	need := engine.RemoteRead
	if put {
		need = engine.RemoteWrite
	}
	if err = v.CheckAs(!put); err == nil {
		err = w.allows(need)
	}
	if err != nil {
		return peerError(w.c, op, peer, err)
	}
	if w.device != nil {
		to, err := w.deviceEnd(k, peer)
		if err == nil {
			err = w.device.Copy(ctx, s, to, off, v, put)
		}
		if err == nil {
			w.count(put, v.Bytes())
		}
		return w.wrap(op, peer, err)
	}
	if !v.Dev.IsHost() {
		return peerError(w.c, op, peer, fmt.Errorf("memory on %v, and the window is on the host: %w", v.Dev,
			fault.ErrArgument))
	}
	if a := v.Alloc; a != nil {
		if !a.Hold() {
			return peerError(w.c, op, peer, fmt.Errorf("the buffer at %p has been freed: %w", v.Ptr, fault.ErrStale))
		}
		defer a.Release()
	}
	n := v.Bytes()
	if peer == w.c.Rank() {
		mine, claim, err := w.reg.Range(off, n)
		if err != nil {
			return peerError(w.c, op, peer, err)
		}
		defer claim.Release()
		w.copyOwn(mine, v.Ptr, n, put)
		w.count(put, n)
		return nil
	}
	if k.far != nil {
		err = w.copyFar(ctx, op, k, off, v.Ptr, n, put)
	} else {
		err = k.Remote.copy(&w.mine.to(w.sp.local(peer)).copying, off, v.Ptr, n, put)
	}
	if err == nil {
		w.count(put, n)
	}
	return w.wrap(op, peer, err)
}

// queueCopy queues Copy. It is a separate function, so that a Copy at once allocates no closure.
func (w *Window) queueCopy(ctx context.Context, s *engine.Stream, op string, peer, off int, v team.Vec, put bool) error {
	return s.Do(ctx, w.c, func(ctx context.Context) error { return w.Copy(ctx, nil, op, peer, off, v, put) }, nil)
}

// wrap returns err as an error of a call about peer, or nil.
func (w *Window) wrap(op string, peer int, err error) error {
	if err == nil {
		return nil
	}
	return peerError(w.c, op, peer, err)
}

// Signal lets one Wait for this rank go on at peer.
func (w *Window) Signal(ctx context.Context, s *engine.Stream, peer int) error {
	return w.signal(ctx, s, peer, gpuend.StepSignal)
}

// Wait waits for a signal of peer.
func (w *Window) Wait(ctx context.Context, s *engine.Stream, peer int) error {
	return w.signal(ctx, s, peer, gpuend.StepWait)
}

// signal does Signal or Wait.
func (w *Window) signal(ctx context.Context, s *engine.Stream, peer int, kind gpuend.StepKind) error {
	if w.queues(s) {
		return s.Do(ctx, w.c, func(ctx context.Context) error { return w.signal(ctx, nil, peer, kind) }, nil)
	}
	op := kind.String()
	k, err := w.begin(ctx, op, peer)
	if err != nil {
		return err
	}
	defer end(w)
	switch {
	case w.device != nil:
		var to gpuend.WindowEnd
		if to, err = w.deviceEnd(k, peer); err == nil {
			err = w.device.Signal(ctx, s, to, kind)
		}
	case k.far != nil && kind == gpuend.StepSignal:
		err = w.signalFar(ctx, k)
	case k.far != nil:
		err = w.waitFar(ctx, k)
	case kind == gpuend.StepSignal:
		k.sent++
		spin.Release(&w.mine.to(w.sp.local(peer)).signals, k.sent)
	default:
		next := k.awaited + 1
		if err = waitSignal(ctx, w.sp, w, &k.block.state, peer, k.signals, next); err == nil {
			k.awaited = next
		}
	}
	return w.wrap(op, peer, err)
}

// Flush completes this rank's puts and gets. On one host they are already complete when they return.
func (w *Window) Flush(ctx context.Context, s *engine.Stream) error {
	const op = "flush"
	if w.queues(s) {
		return s.Do(ctx, w.c, func(ctx context.Context) error { return w.Flush(ctx, nil) }, nil)
	}
	if _, err := w.begin(ctx, op, w.c.Rank()); err != nil {
		return err
	}
	defer end(w)
	if w.device != nil {
		return w.wrap(op, -1, w.device.Flush(ctx, s))
	}
	about, err := w.flushFar(ctx)
	return w.wrap(op, about, err)
}

// Flags returns the flags that the window was made with.
func (w *Window) Flags() WindowFlags { return w.flags }

// Bytes returns the size of each rank's part.
func (w *Window) Bytes() int { return w.vec.Bytes() }

// Close closes this rank's part.
func (w *Window) Close() error {
	w.making.Lock()
	if !w.filled.Load() { // its group failed, or has not ended
		defer w.making.Unlock()
		if w.given {
			return w.c.LocalError("close", fmt.Errorf("the window: %w", fault.ErrClosed))
		}
		w.given = true
		if w.begun { // then the maker ends it
			return nil
		}
		return w.discard()
	}
	w.making.Unlock()
	if err := shutFor(w, w.c, w.device != nil); err != nil {
		return peerError(w.c, "close", -1, err)
	}
	return nil
}

func (w *Window) name() string     { return "the window" }
func (w *Window) failed(err error) { w.c.Domain().Failed(err) }

// Err returns why this rank's waits on the window must end, or nil.
func (w *Window) Err() error {
	if w.Closed() || w.c.Closing() {
		return closedDuringWait(w)
	}
	return nil
}

// reader returns the side of a rank of the team of the window, as a reader of this rank's memory.
func (w *Window) reader(r int) team.Reader {
	k := &w.ranks[r]
	return team.Reader{State: &k.block.state, Mem: k.Memory, At: k.at}
}

// giveUp closes the registration. The words stay until the other ranks have closed their parts.
func (w *Window) giveUp(quick bool) error {
	var readers []team.Reader
	for r := range w.ranks {
		if r != w.c.Team().Rank() {
			readers = append(readers, w.reader(r))
		}
	}
	var err error
	if w.device != nil {
		w.reg.Revoke()
		err = w.device.Close(quick)
		// The registration ends only after the peers have given up the memory; they do that when they see this state.
		w.mine.state.Store(team.StateClosed)
	}
	w.endViews()
	err = errors.Join(err, w.deregister(), w.nic.close())
	w.leaveFar()
	w.ended.Store(true)
	w.mine.state.Store(team.StateClosed)
	w.c.Domain().Retire([]*mem.Allocation{w.block}, readers)
	w.sp.remove(w)
	return err
}

// deregister ends the registration. Abort, which does not wait for calls, may already have done so.
func (w *Window) deregister() error {
	if err := w.reg.End(); !errors.Is(err, fault.ErrClosed) {
		return err
	}
	return nil
}

// copyOwn copies n bytes from local to this rank's own part, or the other way.
func (w *Window) copyOwn(part, local unsafe.Pointer, n int, put bool) {
	if stream := n >= w.c.Team().Tuning().StreamFrom; put {
		cpu.Copy(part, local, n, stream)
	} else {
		cpu.Copy(local, part, n, stream)
	}
}
