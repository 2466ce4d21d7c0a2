package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/hw/cuda/kernels"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// WindowFlags say what ranks promise of a window, and want of it.
type WindowFlags uint32

// The flags; they may be combined.
const (
	WindowDefault        WindowFlags = 0
	WindowCollSymmetric  WindowFlags = 1 << 0
	WindowStrictOrdering WindowFlags = 1 << 1

	allWindowFlags = WindowCollSymmetric | WindowStrictOrdering
)

// String is "default", or the names of the flags.
func (f WindowFlags) String() string {
	var s []string
	if f&WindowCollSymmetric != 0 {
		s = append(s, "coll_symmetric")
	}
	if f&WindowStrictOrdering != 0 {
		s = append(s, "strict_ordering")
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
	gate
	c      *Comm
	flags  WindowFlags
	vec    Vec
	reg    *Registration
	gpu    *gpuWindow // nil on the host
	block  *mem.Allocation
	mine   *windowBlock
	ranks  []windowRank
	filled atomic.Bool // it is complete
	given  atomic.Bool // up, before it was complete
	ended  atomic.Bool // nothing of this rank touches another's part any more
}

// windowRank is what this rank knows of another's part; of its own, only signals.
type windowRank struct {
	*Remote
	base    mem.Location // of its memory
	block   *windowBlock
	at      mem.Location // of block
	slot    int          // of its end towards this rank, on devices
	signals *atomic.Uint64
	sent    uint64 // to it
	awaited uint64 // from it
}

// windowBlock is one rank's words: it alone writes them. A line for the signals to each rank follows.
type windowBlock struct {
	state   atomic.Uint64
	_       [120]byte
	copying atomic.Uint64
	_       [120]byte
}

const (
	windowBlockBytes = 256
	windowLine       = 128
)

func (b *windowBlock) signals(to int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Add(unsafe.Pointer(b), windowBlockBytes+to*windowLine))
}

// windowRecord is what ranks tell each other of a window.
type windowRecord struct {
	Flags    uint64
	Bytes    uint64
	Distance uint64 // from the start of the allocation
	At       mem.Location
	Grant    mem.Location
	Block    mem.Location
	Device   bool
	Slots    [kernels.MaxRanks]uint32 // of its ends, by rank
}

// RegisterWindow makes a window of v on every rank. Collective. On a view that records, the window is complete when
// what was recorded has run.
func (v *View) RegisterWindow(ctx context.Context, vec Vec, flags WindowFlags) (*Window, error) {
	w := &Window{c: v.Comm, flags: flags, vec: vec}
	tell := &gathering{kind: KindWindow, before: w.offer, check: w.compare}
	meet := &gathering{kind: KindWindow, before: func() ([]byte, error) { return nil, w.meet(ctx) }, after: w.complete}
	if v.Recorder == nil {
		err := v.Comm.steps(ctx, tell, meet)
		if err != nil {
			return nil, also(err, w.discard())
		}
		return w, nil
	}
	meet.step = 1
	for _, g := range []*gathering{tell, meet} {
		if err := v.Recorder.Record(v.Comm, g.work()); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// offer registers this rank's part, and says where it is.
func (w *Window) offer() ([]byte, error) {
	c := w.c
	switch {
	case w.given.Load():
		return nil, fmt.Errorf("the window was closed before its group ended: %w", fault.ErrClosed)
	case w.flags&^allWindowFlags != 0:
		return nil, fmt.Errorf("window flags %v: %w", w.flags, fault.ErrArgument)
	}
	var err error
	if !w.vec.Dev.IsHost() {
		if err = c.onGPU(w.vec.Dev); err != nil {
			return nil, err
		}
	}
	if w.reg, err = c.RegisterBuffer(w.vec); err != nil {
		return nil, cause(err)
	}
	e, err := w.reg.export()
	if err != nil {
		return nil, err
	}
	if w.block, err = c.dom.Heap.Alloc(windowBlockBytes + c.size*windowLine); err != nil {
		return nil, fmt.Errorf("window's words: %w", err)
	}
	w.mine = (*windowBlock)(w.block.Ptr)
	w.mine.state.Store(stateOpen)
	x := windowRecord{Flags: uint64(w.flags), Bytes: uint64(e.bytes),
		Distance: uint64(uintptr(w.vec.Ptr) - c.Allocation(w.vec).Base()), At: e.at, Grant: e.grant, Block: w.block.At,
		Device: e.gpu}
	if e.gpu {
		if err := w.takeSlots(); err != nil {
			return nil, err
		}
		for r, slot := range w.gpu.slots {
			x.Slots[r] = uint32(slot)
		}
	}
	return binary.Append(nil, binary.LittleEndian, x)
}

// cause is an error of a local call without where it happened, which the operation will say.
func cause(err error) error {
	var e *fault.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// compare checks what must be equal on all ranks, and keeps what they said.
func (w *Window) compare(all [][]byte) (int, error) {
	var first windowRecord
	w.ranks = make([]windowRank, w.c.size)
	for r, b := range all {
		var x windowRecord
		if err := binary.Read(bytes.NewReader(b), binary.LittleEndian, &x); err != nil {
			return r, fmt.Errorf("record of rank %d: %w: %w", r, err, fault.ErrMismatch)
		}
		if r == 0 {
			first = x
		}
		differ := func(what string, a, b any) (int, error) {
			return r, fmt.Errorf("%s is %v on rank 0 and %v on rank %d: %w", what, a, b, r, fault.ErrMismatch)
		}
		switch {
		case x.Device != first.Device:
			return differ("the window's memory", whereIs[first.Device], whereIs[x.Device])
		case x.Device && (w.c.rank >= len(x.Slots) || x.Slots[w.c.rank] >= maxLinks):
			return r, fmt.Errorf("record of rank %d: bad end: %w", r, fault.ErrMismatch)
		case x.Flags != first.Flags:
			return differ("the window's flags", WindowFlags(first.Flags), WindowFlags(x.Flags))
		case x.Bytes != first.Bytes:
			return differ("the window's size in bytes", first.Bytes, x.Bytes)
		case WindowFlags(x.Flags)&WindowCollSymmetric != 0 && x.Distance != first.Distance:
			return differ("the symmetric window's offset in its allocation", first.Distance, x.Distance)
		}
		k := &w.ranks[r]
		k.at, k.base = x.Block, x.At
		k.Remote = &Remote{c: w.c, rank: r, mem: w.c.peers[r].mem, at: x.At, bytes: int(x.Bytes), grant: x.Grant,
			gpu: x.Device}
		if x.Device {
			k.slot = int(x.Slots[w.c.rank])
		}
	}
	return -1, nil
}

var whereIs = map[bool]string{false: "the host's", true: "a device's"}

// meet maps the other ranks' parts.
func (w *Window) meet(ctx context.Context) error {
	if w.ranks == nil || w.mine == nil {
		return fmt.Errorf("its ranks did not agree: %w", fault.ErrMismatch)
	}
	for r := range w.ranks {
		k := &w.ranks[r]
		if r == w.c.rank {
			k.block, k.ptr = w.mine, w.vec.Ptr
			k.signals = w.mine.signals(r)
		} else {
			block, err := k.mem.Resolve(k.at, windowBlockBytes+w.c.size*windowLine)
			if err != nil {
				return fmt.Errorf("map the words of rank %d's window: %w", r, err)
			}
			k.block = (*windowBlock)(block)
			k.signals = k.block.signals(w.c.rank)
		}
		var err error
		if w.gpu != nil {
			err = w.openEnd(ctx, r)
		} else if r != w.c.rank {
			if k.ptr, err = k.mem.Resolve(k.base, k.bytes); err != nil {
				err = fmt.Errorf("map the window of rank %d: %w", r, err)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// complete makes the window usable. All ranks get here, or none.
func (w *Window) complete([][]byte) {
	for r := range w.ranks {
		if r != w.c.rank {
			w.c.dom.watchCopies(&w.ranks[r].block.copying)
		}
	}
	w.c.nouns.add(w)
	w.filled.Store(true)
}

// discard gives back what there is of a window that did not come to be.
func (w *Window) discard() error {
	errs := []error{w.gpu.discard(&w.c.nouns)}
	if w.reg != nil {
		errs = append(errs, w.reg.Close())
	}
	if w.block != nil {
		errs = append(errs, w.c.dom.Heap.Retire(w.block))
	}
	return errors.Join(errs...)
}

// begin begins a use of the window towards a rank.
func (w *Window) begin(ctx context.Context, op string, peer int) (*windowRank, error) {
	c := w.c
	if !w.filled.Load() {
		return nil, c.local(op, fmt.Errorf("the window is not complete: its group has not ended, or failed: %w",
			fault.ErrClosed))
	}
	if err := begin(w); err != nil {
		return nil, c.local(op, err)
	}
	err := error(nil)
	switch e := c.broken.Load(); {
	case e != nil:
		err = e
	case ctx.Err() != nil:
		err = c.local(op, ended(ctx))
	case peer < 0 || peer >= c.size:
		err = c.local(op, fmt.Errorf("rank %d of %d: %w", peer, c.size, fault.ErrArgument))
	}
	if err != nil {
		end(w)
		return nil, err
	}
	return &w.ranks[peer], nil
}

// later queues do on s if that is not nil and the window is on the host: on devices each step is queued by itself.
func (w *Window) later(ctx context.Context, s *Stream, do func(ctx context.Context) error) (queued bool, err error) {
	if s == nil || !w.vec.Dev.IsHost() {
		return false, nil
	}
	return true, s.Do(ctx, w.c, do)
}

// Copy copies all of v to off in peer's part, or from there to v; on s, or at once.
func (w *Window) Copy(ctx context.Context, s *Stream, op string, peer, off int, v Vec, put bool) error {
	if queued, err := w.later(ctx, s, func(ctx context.Context) error {
		return w.Copy(ctx, nil, op, peer, off, v, put)
	}); queued {
		return err
	}
	k, err := w.begin(ctx, op, peer)
	if err != nil {
		return err
	}
	defer end(w)
	if err := v.Check(); err != nil {
		return w.c.aside(op, peer, err)
	}
	if w.gpu != nil {
		return w.told(op, peer, w.copyDevice(ctx, s, peer, off, v, put))
	}
	if !v.Dev.IsHost() {
		return w.c.aside(op, peer, fmt.Errorf("memory on %v, and the window is on the host: %w", v.Dev, fault.ErrArgument))
	}
	n := v.Bytes()
	if peer == w.c.rank {
		mine, claim, err := w.reg.Range(off, n)
		if err != nil {
			return w.c.aside(op, peer, err)
		}
		defer claim.Release()
		w.copyEither(mine, v.Ptr, n, put)
		return nil
	}
	theirs, err := k.Remote.begin(&w.mine.copying, off, n)
	if err != nil {
		return w.c.aside(op, peer, err)
	}
	w.copyEither(theirs, v.Ptr, n, put)
	w.mine.copying.Add(^uint64(0))
	if err := k.live(); err != nil {
		return w.c.aside(op, peer, err)
	}
	return nil
}

// told is an error of a call about peer, or nil.
func (w *Window) told(op string, peer int, err error) error {
	if err == nil {
		return nil
	}
	return w.c.aside(op, peer, err)
}

// Signal lets one Wait for this rank on peer go on.
func (w *Window) Signal(ctx context.Context, s *Stream, peer int) error {
	const op = "signal"
	if queued, err := w.later(ctx, s, func(ctx context.Context) error { return w.Signal(ctx, nil, peer) }); queued {
		return err
	}
	k, err := w.begin(ctx, op, peer)
	if err != nil {
		return err
	}
	defer end(w)
	if w.gpu != nil {
		return w.told(op, peer, w.step(ctx, s, peer, Step{Kind: StepSignal}))
	}
	k.sent++
	spin.Release(w.mine.signals(peer), k.sent)
	return nil
}

// Wait takes a signal of peer.
func (w *Window) Wait(ctx context.Context, s *Stream, peer int) error {
	const op = "wait"
	if queued, err := w.later(ctx, s, func(ctx context.Context) error { return w.Wait(ctx, nil, peer) }); queued {
		return err
	}
	k, err := w.begin(ctx, op, peer)
	if err != nil {
		return err
	}
	defer end(w)
	if w.gpu != nil {
		return w.told(op, peer, w.step(ctx, s, peer, Step{Kind: StepWait}))
	}
	next := k.awaited + 1
	looks := looksPerPoll
	if w.c.crowded {
		looks = looksCrowded
	}
	state := waiting{op: op, ctx: ctx, peer: peer, step: "signal", health: healthEvery}
	for {
		for i := 0; i < looks; i++ {
			if reached(k.signals.Load(), next) {
				k.awaited = next
				return nil
			}
		}
		err := w.c.pollNoun(&state, w, &k.block.state)
		if err != nil && !reached(k.signals.Load(), next) {
			return w.c.aside(op, peer, err)
		}
	}
}

// Fence completes this rank's puts and gets; on the host they are complete when they return.
func (w *Window) Fence(ctx context.Context, s *Stream) error {
	const op = "fence"
	if queued, err := w.later(ctx, s, func(ctx context.Context) error { return w.Fence(ctx, nil) }); queued {
		return err
	}
	if _, err := w.begin(ctx, op, w.c.rank); err != nil {
		return err
	}
	defer end(w)
	if w.gpu != nil {
		return w.told(op, -1, w.gpu.fence(ctx, w.c, s))
	}
	return nil
}

// Peer is a rank's part.
func (w *Window) Peer(rank int) (Vec, error) {
	k, err := w.begin(context.Background(), "peer", rank)
	if err != nil {
		return Vec{}, err
	}
	defer end(w)
	if rank == w.c.rank {
		return w.vec, nil
	}
	if err := k.live(); err != nil {
		return Vec{}, w.c.aside("peer", rank, err)
	}
	if w.gpu != nil {
		return w.peerVec(rank), nil
	}
	return Vec{Ptr: k.ptr, Len: k.bytes / w.vec.Type.Size(), Type: w.vec.Type}, nil
}

// Flags are those that the window was made with.
func (w *Window) Flags() WindowFlags { return w.flags }

// Bytes is the size of each rank's part.
func (w *Window) Bytes() int { return w.vec.Bytes() }

// Close ends this rank's part.
func (w *Window) Close() error {
	if !w.filled.Load() { // its group failed, or has not ended
		if w.given.Swap(true) {
			return w.c.local("close", fmt.Errorf("the window: %w", fault.ErrClosed))
		}
		return w.discard()
	}
	if err := shut(w, false); err != nil {
		return w.c.aside("close", -1, err)
	}
	return nil
}

func (w *Window) use() *gate   { return &w.gate }
func (w *Window) name() string { return "the window" }

// reader is a rank's side of the window's words.
func (w *Window) reader(r int) reader {
	k := &w.ranks[r]
	return reader{&k.block.state, k.mem, k.at}
}

// giveUp closes the registration. The words stay until the other ranks have closed theirs.
func (w *Window) giveUp(quick bool) error {
	var readers []reader
	for r := range w.ranks {
		if r != w.c.rank {
			w.c.dom.forgetCopies(&w.ranks[r].block.copying)
			readers = append(readers, w.reader(r))
		}
	}
	var err error
	if w.gpu != nil {
		w.reg.revoke()
		err = w.gpu.close(w.c, quick)
		// The registration's end waits until the peers have given the memory up, as those do that see this.
		w.mine.state.Store(stateClosed)
	}
	err = errors.Join(err, w.reg.close(quick))
	w.ended.Store(true)
	w.mine.state.Store(stateClosed)
	w.c.dom.retire([]*mem.Allocation{w.block}, readers)
	w.c.nouns.remove(w)
	return err
}

func (w *Window) copyEither(there, here unsafe.Pointer, n int, put bool) {
	if stream := n >= w.c.tuning.StreamFrom; put {
		cpu.Copy(there, here, n, stream)
	} else {
		cpu.Copy(here, there, n, stream)
	}
}
