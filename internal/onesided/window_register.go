package onesided

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// windowRecord is what ranks of a host tell each other about a window. On devices, the slots of its ends follow: a u32 for each
// of them.
type windowRecord struct {
	Flags    uint64
	Bytes    uint64
	Distance uint64 // from the start of the allocation
	At       mem.Location
	Grant    mem.Location
	Block    mem.Location
	Device   bool
}

// bytes returns the record, followed by the slots.
func (x *windowRecord) bytes(slots []int) ([]byte, error) {
	b, err := binary.Append(nil, binary.LittleEndian, x)
	for _, slot := range slots {
		b = binary.LittleEndian.AppendUint32(b, uint32(slot))
	}
	return b, err
}

// readWindowRecord decodes the record of a rank. It also returns the slot of that rank's end towards rank mine. There
// are `ranks` ranks.
func readWindowRecord(b []byte, ranks, mine int) (x windowRecord, slot uint32, err error) {
	n, err := binary.Decode(b, binary.LittleEndian, &x)
	if err != nil {
		return x, 0, err
	}
	slots := 0
	if x.Device {
		slots = ranks
	}
	if b = b[n:]; len(b) != 4*slots {
		return x, 0, fmt.Errorf("%d bytes of slots, not %d", len(b), 4*slots)
	}
	if x.Device {
		slot = binary.LittleEndian.Uint32(b[4*mine:])
	}
	return x, slot, nil
}

// RegisterWindow makes a window of v on every rank. Collective. If v records, the window is complete when the recorded
// calls have run. The caller closes the window.
func (sp *Space) RegisterWindow(ctx context.Context, v *engine.View, vec team.Vec, flags WindowFlags) (*Window, error) {
	w := &Window{sp: sp, c: sp.c, flags: flags, vec: vec}
	watch(w, sp.c)
	steps := w.steps(ctx)
	if v.Recorder == nil {
		err := v.Comm.Gather(ctx, steps...)
		if err != nil {
			return nil, engine.WithCleanup(err, w.discard())
		}
		return w, nil
	}
	for i, g := range steps {
		g.Step = i
		recorded := v.Recorder.Begin()
		*recorded = g.Work()
		if err := v.Recorder.Record(v.Comm, recorded); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// steps are the exchanges that make a window. Between hosts, ranks first agree on what they have, and then those of each
// host tell each other where that is.
func (w *Window) steps(ctx context.Context) []*engine.Gathering {
	kind := team.KindWindow
	agree := &engine.Gathering{Kind: kind, Before: w.offer, Check: w.compare, Failed: w.unmade}
	meet := &engine.Gathering{Kind: kind, Before: func() ([]byte, error) { return nil, w.meet(ctx) }, After: w.complete,
		Failed: w.unmade}
	if !w.c.SpansHosts() {
		return []*engine.Gathering{agree, meet}
	}
	all := []*engine.Gathering{{Kind: kind, Before: w.offerFar, Check: w.compareFar, Failed: w.unmade},
		{Kind: kind, Before: func() ([]byte, error) { return w.record, nil }, Check: w.compare, Failed: w.unmade, HostOnly: true}}
	if w.flags&WindowAtomic != 0 && w.c.Team().Hosts.Layout().RDMA {
		all = append(all, w.nicSteps()...)
	}
	return append(all, meet)
}

// offerFar is offer for ranks of several hosts, which get what they have to agree on.
func (w *Window) offerFar() (b []byte, err error) {
	if w.record, err = w.offer(); err != nil {
		return nil, err
	}
	var x windowRecord
	if _, err := binary.Decode(w.record, binary.LittleEndian, &x); err != nil {
		return nil, err
	}
	return binary.Append(nil, binary.LittleEndian, x.far())
}

// compareFar checks that the ranks of all hosts agree, and lets peers ask for this rank's part.
func (w *Window) compareFar(all [][]byte) (int, error) {
	var first windowRecord
	for r, b := range all {
		var x farRecord
		if _, err := binary.Decode(b, binary.LittleEndian, &x); err != nil {
			return r, fmt.Errorf("record of rank %d: %w: %w", r, err, fault.ErrMismatch)
		}
		of := x.window()
		if r == 0 {
			first = of
		}
		if err := of.differs(&first, 0, r); err != nil {
			return r, err
		}
	}
	w.id = w.c.Team().Seq
	w.sp.mu.Lock()
	defer w.sp.mu.Unlock()
	if w.sp.windows == nil {
		w.sp.windows = map[uint64]*Window{}
	}
	w.sp.windows[w.id] = w
	return -1, nil
}

// differs returns how the record x of rank r and the one of rank `from` differ.
func (x *windowRecord) differs(first *windowRecord, from, r int) error {
	differ := func(what string, a, b any) error {
		return fmt.Errorf("%s is %v on rank %d and %v on rank %d: %w", what, a, from, b, r, fault.ErrMismatch)
	}
	switch {
	case x.Device != first.Device:
		return differ("the window's memory", whereIs[first.Device], whereIs[x.Device])
	case x.Flags != first.Flags:
		return differ("the window's flags", WindowFlags(first.Flags), WindowFlags(x.Flags))
	case x.Bytes != first.Bytes:
		return differ("the window's size in bytes", first.Bytes, x.Bytes)
	case WindowFlags(x.Flags)&WindowCollSymmetric != 0 && x.Distance != first.Distance:
		return differ("the symmetric window's offset in its allocation", first.Distance, x.Distance)
	}
	return nil
}

// offer registers this rank's part, and returns its record.
func (w *Window) offer() ([]byte, error) {
	c := w.c
	w.making.Lock()
	given := w.given
	w.begun = !given
	w.making.Unlock()
	switch {
	case given:
		return nil, fmt.Errorf("the window was closed before its group ended: %w", fault.ErrClosed)
	case w.flags&^allWindowFlags != 0:
		return nil, fmt.Errorf("window flags %v: %w", w.flags, fault.ErrArgument)
	case w.flags&WindowReadOnly != 0 && w.flags&WindowAtomic != 0:
		return nil, fmt.Errorf("window flags %v: atomics write: %w", w.flags, fault.ErrArgument)
	case w.flags&WindowReadOnly != 0 && uintptr(w.vec.Ptr)%uintptr(shm.PageSize) != 0:
		return nil, fmt.Errorf("a read-only window at %p, which is no multiple of the page size, %d (the start of a buffer of "+
			"Alloc is): %w", w.vec.Ptr, shm.PageSize, fault.ErrArgument)
	case w.flags&WindowAtomic != 0 && !w.vec.Dev.IsHost():
		return nil, fmt.Errorf("atomics on memory of %v: %w", w.vec.Dev, fault.ErrNotSupported)
	}
	var err error
	if !w.vec.Dev.IsHost() {
		if err = c.CheckDevice(w.vec.Dev); err != nil {
			return nil, err
		}
	}
	if w.reg, err = c.RegisterWith(w.vec, engine.RegisterOptions{Access: w.flags.access()}); err != nil {
		return nil, engine.Cause(err)
	}
	e, err := w.reg.Export()
	if err != nil {
		return nil, err
	}
	w.export = e
	if w.block, err = c.Domain().Heap.Alloc(windowBytes(c.Team().Size())); err != nil {
		return nil, fmt.Errorf("window's words: %w", err)
	}
	w.mine = (*windowBlock)(w.block.Ptr)
	w.mine.state.Store(team.StateOpen)
	x := windowRecord{Flags: uint64(w.flags), Bytes: uint64(e.Bytes),
		Distance: uint64(uintptr(w.vec.Ptr) - c.Allocation(w.vec).Base()), At: e.At, Grant: e.Grant, Block: w.block.At,
		Device: e.GPU}
	if !e.GPU {
		return x.bytes(nil)
	}
	if err := w.takeSlots(); err != nil {
		return nil, err
	}
	return x.bytes(w.slots)
}

// compare checks that the ranks of this host agree, and keeps their records.
func (w *Window) compare(all [][]byte) (int, error) {
	var first windowRecord
	t := w.c.Team()
	w.ranks = make([]windowRank, t.Size())
	for i := range w.ranks {
		r := t.Name(i)
		x, slot, err := readWindowRecord(all[r], t.Size(), t.Rank())
		if err != nil {
			return r, fmt.Errorf("record of rank %d: %w: %w", r, err, fault.ErrMismatch)
		}
		if i == 0 {
			first = x
		}
		err = x.differs(&first, t.Name(0), r)
		if err == nil && x.Device && int(slot) >= w.sp.deviceSlots() {
			err = fmt.Errorf("record of rank %d: bad end: %w", r, fault.ErrMismatch)
		}
		if err != nil {
			return r, err
		}
		k := &w.ranks[i]
		k.at, k.base = x.Block, x.At
		k.Remote = &Remote{c: w.c, Import: engine.Import{Rank: r, Memory: t.Peers[i].Mem,
			Export: engine.Export{At: x.At, Bytes: int(x.Bytes), Grant: x.Grant, GPU: x.Device,
				Access: WindowFlags(x.Flags).access()}}}
		k.slot = int(slot)
	}
	return -1, nil
}

var whereIs = map[bool]string{false: "the host's", true: "a device's"}

// meet maps the parts of the other ranks of this host.
func (w *Window) meet(ctx context.Context) error {
	if w.ranks == nil || w.mine == nil {
		return fmt.Errorf("its ranks did not agree: %w", fault.ErrMismatch)
	}
	me := w.c.Team().Rank()
	for i := range w.ranks {
		k := &w.ranks[i]
		if i == me {
			k.block, k.ptr = w.mine, w.vec.Ptr
			k.signals = &w.mine.to(i).signals
		} else {
			block, err := k.Memory.Resolve(k.at, windowBytes(len(w.ranks)))
			if err != nil {
				return fmt.Errorf("map the words of rank %d's window: %w", k.Rank, err)
			}
			k.block = (*windowBlock)(block)
			k.signals = &k.block.to(me).signals
			w.mine.to(i).grant.Store(k.Grant.Generation)
		}
		var err error
		if w.device != nil {
			err = w.openEnd(ctx, i)
		} else if i != me {
			if k.ptr, err = k.Memory.Resolve(k.base, k.Bytes); err != nil {
				err = fmt.Errorf("map the window of rank %d: %w", k.Rank, err)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// complete makes the window usable. Either all ranks call it, or none.
func (w *Window) complete([][]byte) {
	me := w.c.Team().Rank()
	for i := range w.ranks {
		if i != me {
			words := w.ranks[i].block.to(me)
			w.c.Domain().WatchCopies(w.reader(i), w.ranks[i].Rank, engine.CopyWords(&words.copying, &words.grant))
		}
	}
	w.sp.add(w)
	w.making.Lock()
	w.filled.Store(true)
	given := w.given
	w.making.Unlock()
	if given {
		w.failed(shut(w, false))
	}
}

// unmade is called at the end of the group if it failed.
func (w *Window) unmade(error) {
	w.making.Lock()
	defer w.making.Unlock()
	if w.begun && w.given && !w.filled.Load() {
		w.failed(w.discard())
	}
	w.begun = false
}

// discard releases the parts of a window that was not completed.
func (w *Window) discard() error {
	w.leaveFar()
	errs := []error{w.discardEnds()}
	if w.reg != nil {
		errs = append(errs, w.deregister())
	}
	errs = append(errs, w.nic.close())
	if w.block != nil {
		errs = append(errs, w.c.Domain().Heap.Retire(w.block))
	}
	return errors.Join(errs...)
}
