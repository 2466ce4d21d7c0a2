package onesided

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/words"
)

// Atomics of windows whose ranks have RDMA devices. The owner's device executes all of them, so that its process need not
// take part. A processor's atomics are not atomic with those of most devices, so that either the device does all on the
// words of a rank, or the processor does. The ranks of each host decide that when they make the window: the
// device does, if all of them can use it. Each has a queue pair to each of the others, and to itself, and tries it.
//
// Ranks of other hosts ask for a queue pair when they first use a word. Who gets none, or whose queue pair fails, asks the
// owner's process, as over TCP, which lets its device do it.

// windowNIC is a rank's part in this.
type windowNIC struct {
	set   *words.Set // nil: it has no device for that
	err   error      // why it has not reached all ranks of its host
	near  []nearWords
	ready atomic.Bool // the devices do all atomics on the words of this host's ranks
	other *words.Pair // the other end of the pair to this rank itself
}

// nearWords are a rank of this host, by the team's rank, as its words are reached.
type nearWords struct {
	pair   *words.Pair
	addr   verbs.Address // of this rank's end
	region transport.Region
	peer   verbs.Address // of its end
}

// farWords are a rank of another host in the same way. With no pair its process is asked.
type farWords struct {
	pair   *words.Pair
	region transport.Region
}

// tryLimit is how long a rank waits for the first atomic by a queue pair.
const tryLimit = 2 * time.Second

// nicSteps are the exchanges that connect the ranks of this host. Nobody uses a queue pair before all are connected, and all go
// on, whatever comes of it.
func (w *Window) nicSteps() []*engine.Gathering {
	n := &w.nic
	step := func(before func() ([]byte, error), check func(all [][]byte) (int, error)) *engine.Gathering {
		return &engine.Gathering{Kind: team.KindWindow, HostOnly: true, Before: before, Check: check, Failed: w.unmade}
	}
	tried := func(f func() error) func() ([]byte, error) {
		return func() ([]byte, error) {
			if n.err == nil {
				n.err = f()
			}
			if n.err != nil {
				text := n.err.Error()
				return []byte(text[:min(len(text), transport.MaxText)]), nil
			}
			return nil, nil
		}
	}
	failed := func(all [][]byte) (int, error) {
		for i := range w.ranks {
			if r := w.ranks[i].Rank; n.err == nil && len(all[r]) > 0 {
				n.err = fmt.Errorf("rank %d: %s", r, all[r])
			}
		}
		return -1, nil
	}
	return []*engine.Gathering{
		step(func() ([]byte, error) { return w.offerWords(), nil }, w.meetWords),
		step(tried(w.connectWords), failed),
		step(tried(w.tryWords), func(all [][]byte) (int, error) {
			failed(all)
			n.ready.Store(n.err == nil)
			if n.err != nil {
				w.c.Log().Info("one-sided: the owners' processes, not RDMA devices, do the atomics on a window of this host", "err", n.err)
			}
			return -1, nil
		}),
	}
}

// offerWords makes this rank's ends, and returns its record: where its part is, and the address for each rank; nothing if it has
// none.
func (w *Window) offerWords() []byte {
	n := &w.nic
	if w.ranks == nil || w.reg == nil {
		n.err = fmt.Errorf("its ranks did not agree: %w", fault.ErrMismatch)
		return nil
	}
	region := w.reg.Region()
	if n.set, n.err = words.Open(w.c.Domain().NICs()); n.err == nil && region.Key == 0 {
		n.err = fmt.Errorf("the window is not registered with the RDMA device: %w", fault.ErrNotSupported)
	}
	b := binary.LittleEndian.AppendUint64(nil, region.Address)
	b = binary.LittleEndian.AppendUint32(b, region.Key)
	n.near = make([]nearWords, len(w.ranks))
	for i := range n.near {
		k := &n.near[i]
		if n.err == nil {
			k.pair, k.addr, n.err = n.set.New()
		}
		b = k.addr.Append(b)
	}
	if n.err == nil {
		n.other, n.near[w.c.Team().Rank()].peer, n.err = n.set.New()
	}
	if len(b) > team.MaxRecord && n.err == nil {
		n.err = fmt.Errorf("%d ranks on a host: %w", len(n.near), fault.ErrLimit)
	}
	if n.err != nil {
		return nil
	}
	return b
}

// meetWords keeps the addresses of all ranks of this host.
func (w *Window) meetWords(all [][]byte) (int, error) {
	n, me := &w.nic, w.c.Team().Rank()
	for i := range n.near {
		k, b := &n.near[i], all[w.ranks[i].Rank]
		if n.err != nil {
			break
		}
		if len(b) != 12+len(n.near)*verbs.AddressSize {
			n.err = fmt.Errorf("rank %d has no queue pairs for it: %w", w.ranks[i].Rank, fault.ErrNotSupported)
			break
		}
		k.region = transport.Region{Address: binary.LittleEndian.Uint64(b), Key: binary.LittleEndian.Uint32(b[8:])}
		if i != me {
			k.peer, n.err = verbs.ParseAddress(b[12+me*verbs.AddressSize:][:verbs.AddressSize])
		}
	}
	return -1, nil
}

// connectWords connects this rank's ends.
func (w *Window) connectWords() error {
	n, me := &w.nic, w.c.Team().Rank()
	name := func(i int) string { return fmt.Sprint("rank ", w.ranks[i].Rank) }
	for i := range n.near {
		if err := n.near[i].pair.Connect(n.near[i].peer, name(i)); err != nil {
			return err
		}
	}
	return n.other.Connect(n.near[me].addr, name(me))
}

// tryWords adds nothing to a word of each rank of this host.
func (w *Window) tryWords() error {
	for i := range w.nic.near {
		k, begin := &w.nic.near[i], time.Now()
		if err := w.tryPair(k.pair, k.region, func(ready func() bool) error {
			for !ready() {
				if time.Since(begin) > tryLimit {
					return fmt.Errorf("the RDMA device of rank %d does not answer: %w", w.c.Team().Name(i), fault.ErrTimeout)
				}
				time.Sleep(time.Microsecond)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// tryPair adds nothing to the first word of a rank's part.
func (w *Window) tryPair(p *words.Pair, r transport.Region, wait func(ready func() bool) error) error {
	off := -r.Address & 7
	if int(off)+8 > w.vec.Bytes() {
		return fmt.Errorf("no whole word of 8 bytes in the window: %w", fault.ErrNotSupported)
	}
	_, err := p.Do(words.FetchAdd(0), r, off, wait)
	return err
}

// close ends the queue pairs, once the memory is registered no more.
func (n *windowNIC) close() error {
	n.ready.Store(false)
	return n.set.Close()
}

// work is op as devices have it.
func (op *AtomicOp) work() verbs.Work {
	if op.Swap {
		return words.CompareSwap(op.Old, op.New)
	}
	return words.FetchAdd(op.Add)
}

// changeNear does op by the device of a rank of this host.
func (w *Window) changeNear(ctx context.Context, k *windowRank, off int, op *AtomicOp) (was uint64, err error) {
	if err := w.update(k, off, 8, 8, func(unsafe.Pointer, int, int) {
		was, err = w.change(ctx, w.sp.local(k.Rank), off, op)
	}); err != nil {
		return 0, err
	}
	return was, err
}

// change does op by the device of the team's rank i.
func (w *Window) change(ctx context.Context, i, off int, op *AtomicOp) (uint64, error) {
	k := &w.nic.near[i]
	return k.pair.Do(op.work(), k.region, uint64(off), func(ready func() bool) error {
		looks := w.c.Team().Looks()
		if within(looks, ready) {
			return nil
		}
		x := waiting{WaitState: team.WaitState{Op: op.Name, Ctx: ctx, Peer: w.c.Team().Name(i), Step: "its RDMA device"}, c: w.c, of: w,
			sp: w.sp}
		return x.until(looks, ready)
	})
}

// byDevice returns the window that uses a grant of this rank, if its device does the atomics there; else nil.
func (sp *Space) byDevice(g mem.Location) *Window {
	if sp.c.Domain().NICs() == nil {
		return nil
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for _, w := range sp.windows {
		if w.nic.ready.Load() && w.export.Grant == g {
			return w
		}
	}
	return nil
}

// changeFor does op to a word of this rank for the peer, which has no queue pair.
func (f *far) changeFor(w *Window, id uint64, off int, op AtomicOp) {
	if begin(w) != nil {
		f.done(id, staleError(f.sp.c.Rank()), 0)
		return
	}
	was, err := w.change(context.Background(), w.c.Team().Rank(), off, &op)
	end(w)
	switch {
	case isUnknown(err):
		err = fault.ErrTimeout // which says so to the peer
	case err != nil && !errors.Is(err, fault.ErrStale):
		err = fault.ErrNotSupported
	}
	f.done(id, err, was)
}

// isUnknown reports whether an atomic may have been done though it has failed.
func isUnknown(err error) bool {
	_, ok := errors.AsType[*words.Unknown](err)
	return ok
}

// changeFar does op to a word of a rank of another host.
func (w *Window) changeFar(ctx context.Context, k *windowRank, m *Remote, off int, op *AtomicOp) (uint64, error) {
	f := k.far.far
	_, err := f.atomicAt(m, off)
	if err != nil {
		return 0, err
	}
	x := k.far.words.Load()
	if x == nil {
		if x, err = w.askWords(ctx, op.Name, k, m); err != nil {
			return 0, err
		}
	}
	if x.pair == nil || x.pair.Err() != nil {
		return f.atomic(ctx, w, m, off, op)
	}
	if err := f.takes(ctx, w); err != nil {
		return 0, err
	}
	was, err := x.pair.Do(op.work(), x.region, uint64(off), func(ready func() bool) error {
		return f.waitDevice(ctx, op.Name, w, m.Grant, ready)
	})
	switch {
	case err == nil, isUnknown(err):
		return was, err
	case errors.Is(err, fault.ErrStale):
		f.refuse(m.Grant)
		return 0, staleError(m.Rank)
	case x.pair.Err() != nil: // another goroutine's has failed: this one was not begun
		return f.atomic(ctx, w, m, off, op)
	}
	return 0, err
}

// waitDevice waits for an answer of the peer's device. If the peer has closed its part meanwhile, none may come: its queue pair is
// gone, and this rank's device would go on asking for half a minute.
func (f *far) waitDevice(ctx context.Context, op string, w *Window, g mem.Location, ready func() bool) error {
	if within(looksDevice, ready) {
		return nil
	}
	var closed time.Time
	late := false
	looks := 0
	err := f.wait(ctx, op, "its RDMA device", w, func() bool {
		if ready() {
			return true
		}
		if looks++; looks%64 == 0 && f.live(g) != nil {
			if closed.IsZero() {
				closed = time.Now()
			}
			late = time.Since(closed) > lateAnswer
		}
		return late
	})
	if err == nil && late {
		err = staleError(f.pair.Rank)
	}
	return err
}

// looksDevice is how often a rank looks for the answer of a device, which takes some microseconds, before it does anything else.
const looksDevice = 200

// lateAnswer is how long the answer to an atomic may take once the peer has closed its part.
const lateAnswer = 50 * time.Millisecond

// askWords asks a rank of another host for a queue pair, and tries it.
func (w *Window) askWords(ctx context.Context, op string, k *windowRank, m *Remote) (*farWords, error) {
	x, err := &farWords{}, error(nil)
	if w.nic.set != nil && k.far.pair.RDMA() {
		if x, err = w.connectFar(ctx, op, k, m); err != nil {
			return nil, err
		}
	}
	if !k.far.words.CompareAndSwap(nil, x) { // another goroutine's goes first; the set has this one
		x = k.far.words.Load()
	}
	return x, nil
}

func (w *Window) connectFar(ctx context.Context, op string, k *windowRank, m *Remote) (*farWords, error) {
	f, rank := k.far.far, k.far.pair.Rank
	byCalls := func(err error) (*farWords, error) {
		w.c.Log().Info("one-sided: its process is asked for atomics", "peer", rank, "err", err)
		return &farWords{}, nil
	}
	p, addr, err := w.nic.set.New()
	if err != nil {
		return byCalls(err)
	}
	q := &call{Kind: callWords, A: w.id}
	q.setAddress(addr)
	a, err := f.result(ctx, op, w, q)
	switch {
	case errors.Is(err, fault.ErrNotSupported):
		return byCalls(err)
	case err != nil:
		return nil, err
	}
	x := &farWords{p, transport.Region{Address: a.Generation, Key: uint32(a.Slot)}}
	theirs, err := a.address()
	if err == nil {
		err = p.Connect(theirs, fmt.Sprint("rank ", rank))
	}
	if err == nil {
		soon, cancel := context.WithTimeoutCause(ctx, tryLimit, fault.ErrTimeout)
		defer cancel()
		err = w.tryPair(p, x.region, func(ready func() bool) error { return f.waitDevice(soon, op, w, m.Grant, ready) })
	}
	switch stale := f.live(m.Grant); {
	case err == nil:
		return x, nil
	case stale != nil:
		return nil, stale
	case ctx.Err() != nil, f.lost() != nil:
		return nil, err
	}
	return byCalls(err)
}

// serveWords makes a queue pair for a peer's atomics on this rank's words. Connecting may take seconds.
func (f *far) serveWords(k *call) {
	f.sp.mu.Lock()
	w := f.sp.windows[k.A]
	f.sp.mu.Unlock()
	if w == nil {
		f.done(k.ID, staleError(f.sp.c.Rank()), 0)
		return
	}
	asked := *k
	go func() {
		answer := call{Kind: callDone, ID: asked.ID}
		theirs, err := asked.address()
		if err == nil {
			err = w.answerWords(&answer, theirs, f.pair.Rank)
		}
		if err != nil {
			w.c.Log().Debug("one-sided: no queue pair for a peer's atomics", "peer", f.pair.Rank, "err", err)
			if answer.A = codeOf(fault.ErrNotSupported); w.Closed() {
				answer.A = uint64(codeStale)
			}
		}
		f.send(&answer, nil)
	}()
}

func (w *Window) answerWords(answer *call, theirs verbs.Address, rank int) error {
	if err := begin(w); err != nil {
		return staleError(w.c.Rank())
	}
	defer end(w)
	if !w.nic.ready.Load() {
		return fmt.Errorf("its process does the atomics: %w", fault.ErrNotSupported)
	}
	p, addr, err := w.nic.set.New()
	if err != nil {
		return err
	}
	if err := p.Connect(theirs, fmt.Sprint("rank ", rank)); err != nil {
		return err
	}
	region := w.reg.Region()
	answer.Generation, answer.Slot = region.Address, uint64(region.Key)
	answer.setAddress(addr)
	return nil
}

// setAddress puts the address of a queue pair into k.
func (k *call) setAddress(a verbs.Address) {
	b := a.Append(nil)
	for i, v := range [...]*uint64{&k.Offset, &k.B, &k.C, &k.D} {
		*v = binary.LittleEndian.Uint64(b[8*i:])
	}
}

// address is its inverse.
func (k *call) address() (verbs.Address, error) {
	var b []byte
	for _, v := range [...]uint64{k.Offset, k.B, k.C, k.D} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return verbs.ParseAddress(b)
}
