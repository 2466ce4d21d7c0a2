package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/fdtrace"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport/nvls"
	"github.com/ubcoll/ubcoll/register"
)

// multicast is a communicator's use of a multicast object (NVLS). Staging memory of all ranks is bound at its beginning.
// Users' memory is bound when operations first use it: the communicator's first rank chooses the offsets, and writes in
// its notes where the buffers of each operation are.
type multicast struct {
	on     bool // all ranks have set it up: operations may use it
	object *nvls.Object
	stage  *mem.Allocation
	notes  *notes

	call    uint64 // number of the operation that is prepared next, 0: it binds nothing; the turn guards these
	pending bool   // it would bind more if it were prepared again, when the first rank has come so far
	note    uint32 // notes written

	// While it is set up:
	why   string // the first failure, on any rank
	grain int
	bytes int
	card  multicastCard // the first rank's
	fd    int
	lent  func()
	made  *cuda.Multicast
}

// multicastCard is what a rank tells the others in each step of setting multicast up.
type multicastCard struct {
	Why   string       `json:"why,omitempty"`
	Grain int          `json:"grain,omitempty"`
	Bytes int          `json:"bytes,omitempty"` // of the device's memory
	Loan  uint64       `json:"loan,omitempty"`  // of the first rank's descriptor
	Notes mem.Location `json:"notes"`
}

// notes are the first rank's: where its buffers are in the object, for the last operations that used it.
type notes [noteSlots]note

type note struct {
	call     atomic.Uint64 // the operation; written last, and 0 meanwhile
	src, dst [3]atomic.Uint64
	_        uint64
}

const noteSlots = 64

// wantsMulticast reports whether the ranks are to try to make a multicast object. All come to the same result.
func (d *Device) wantsMulticast() bool {
	on, err := env.NVLS.Get()
	n := d.c.Size()
	return err == nil && on == "on" && n > 1 && n <= kernels.Narrow && d.Domain.Sharers == 1 && !d.c.SpansHosts()
}

// JoinMulticast implements Accelerator.
func (d *Device) JoinMulticast(ctx context.Context) []*engine.Gathering {
	if !d.wantsMulticast() {
		return nil
	}
	step := func(do func(ctx context.Context, card *multicastCard) error, met func(cards []multicastCard)) *engine.Gathering {
		return &engine.Gathering{Kind: team.KindOpen, HostOnly: true,
			Before: func() ([]byte, error) {
				var card multicastCard
				if d.multi.why == "" {
					if err := do(ctx, &card); err != nil {
						card.Why = fmt.Sprintf("rank %d: %v", d.c.Rank(), err)
						card.Why = card.Why[:min(len(card.Why), team.TextBytes)]
					}
				}
				return json.Marshal(card)
			},
			Check: func(all [][]byte) (int, error) {
				cards := make([]multicastCard, len(all))
				for r := range all {
					if err := json.Unmarshal(all[r], &cards[r]); err != nil {
						return r, fmt.Errorf("what rank %d told of multicast: %w: %w", r, err, fault.ErrMismatch)
					}
				}
				for r := range cards {
					if d.multi.why == "" {
						d.multi.why = cards[r].Why
					}
				}
				met(cards)
				return -1, nil
			}}
	}
	return []*engine.Gathering{
		step(d.multicastLimits, d.setLimits),
		step(d.createMulticast, func(cards []multicastCard) { d.multi.card = cards[0] }),
		step(d.addToMulticast, func([]multicastCard) {}),
		step(d.bindStaging, d.endJoining),
	}
}

// multicastLimits tells what this rank's device asks of an object.
func (d *Device) multicastLimits(_ context.Context, card *multicastCard) error {
	unit, err := d.c.Domain().NVLS.Unit()
	if err != nil {
		return err
	}
	_, total, err := d.Domain.Context.Available()
	if err != nil {
		return err
	}
	card.Bytes = total
	card.Grain, _, err = d.Domain.Context.MulticastGranularity(d.c.Size(), total)
	if err == nil && card.Grain > unit {
		err = fmt.Errorf("the granularity for %d devices is %d bytes, more than the %d that memory is rounded to: %w", d.c.Size(),
			card.Grain, unit, fault.ErrNotSupported)
	}
	return err
}

// setLimits computes the size of the object, which has room for all memory of a device beside the staging memory.
func (d *Device) setLimits(cards []multicastCard) {
	m := &d.multi
	for _, k := range cards {
		m.grain = max(m.grain, k.Grain)
		if m.bytes == 0 || k.Bytes < m.bytes {
			m.bytes = k.Bytes
		}
	}
	if m.why == "" {
		m.bytes = (m.bytes+kernels.StagingBytes)&^(m.grain-1) + m.grain
	}
}

// createMulticast makes the object, on the first rank.
func (d *Device) createMulticast(_ context.Context, card *multicastCard) (err error) {
	m, dom := &d.multi, d.c.Domain()
	if d.c.Team().Rank() != 0 {
		return nil
	}
	page, err := dom.Heap.Alloc(int(unsafe.Sizeof(notes{})))
	if err != nil {
		return err
	}
	d.c.RetireAtClose(page)
	m.notes = (*notes)(page.Ptr)
	card.Notes = page.At
	if m.made, err = d.Domain.Context.CreateMulticast(d.c.Size(), m.bytes); err != nil {
		return err
	}
	if m.fd, err = m.made.Export(); err != nil {
		return err
	}
	card.Loan, m.lent, err = dom.Exports.Lend(m.fd)
	return err
}

// addToMulticast imports the object, and adds the device. No rank binds anything before all have done so.
func (d *Device) addToMulticast(ctx context.Context, _ *multicastCard) (err error) {
	m, c := &d.multi, d.c
	if c.Team().Rank() != 0 {
		p, err := c.Team().Peers[0].Mem.Resolve(m.card.Notes, int(unsafe.Sizeof(notes{})))
		if err != nil {
			return err
		}
		m.notes = (*notes)(p)
		fd, err := c.DevicePeer(0).Borrow(ctx, m.card.Loan)
		if err != nil {
			return err
		}
		m.made, err = d.Domain.Context.ImportMulticast(fd, c.Size(), m.bytes)
		if err = errors.Join(err, closeDescriptor(fd)); err != nil {
			return err
		}
	}
	if m.stage, err = c.Domain().Heap.AllocDeviceOwn(kernels.StagingBytes); err != nil {
		return err
	}
	d.mu.Lock()
	d.extras = append(d.extras, m.stage)
	d.mu.Unlock()
	if err := d.Domain.Kernels.LoadNVLS(ctx); err != nil {
		return err
	}
	return m.made.AddDevice()
}

// bindStaging binds the staging memory, and maps the object.
func (d *Device) bindStaging(context.Context, *multicastCard) error {
	m := &d.multi
	m.object = d.c.Domain().NVLS.Adopt(m.made, m.bytes, fmt.Sprintf("communicator %#x", d.c.Team().ID()))
	m.made = nil
	return m.object.Begin(cuda.Addr(m.stage.Base()), (kernels.StagingBytes+m.grain-1)&^(m.grain-1))
}

// endJoining says whether operations use multicast. Without it, everything is given back.
func (d *Device) endJoining([]multicastCard) {
	m := &d.multi
	err := m.endLoan()
	if m.on = m.why == ""; !m.on {
		err = errors.Join(err, d.closeMulticast())
		if _, err := d.c.Domain().NVLS.Unit(); err == nil && d.c.Rank() == 0 { // else the log has it already
			d.c.Log().Warn("ubcoll: no multicast, though UBCOLL_NVLS=on", "error", m.why)
		}
	}
	d.c.Domain().Failed(err)
}

// endLoan closes the descriptor that the others import.
func (m *multicast) endLoan() error {
	if m.lent != nil {
		m.lent()
		m.lent = nil
	}
	if m.fd < 0 {
		return nil
	}
	fd := m.fd
	m.fd = -1
	return closeDescriptor(fd)
}

// closeMulticast gives everything back but the staging memory. If the communicator has broken, peers' kernels may still use
// what this rank has bound: then the object stays until they have ended, or the domain ends.
func (d *Device) closeMulticast() error {
	m := &d.multi
	m.on = false
	errs := []error{m.endLoan()} // it is still there if a rank was lost meanwhile
	if m.made != nil {
		errs = append(errs, m.made.Close())
		m.made = nil
	}
	if m.object != nil {
		var lagging func() bool
		if d.c.Broken() != nil {
			lagging = d.c.Team().Lagging
		}
		errs = append(errs, m.object.Close(lagging))
		m.object = nil
	}
	return errors.Join(errs...)
}

func closeDescriptor(fd int) error {
	fdtrace.Close(fd)
	return syscall.Close(fd)
}

// Multicasts reports whether operations may use a multicast object; all ranks come to the same result.
func (d *Device) Multicasts() bool { return d.multi.on }

// nextCall numbers the operation that is prepared next, the same on all ranks: i is its number in what is captured, from 1
// on, or 0.
func (d *Device) nextCall(i int) { d.multi.call = (d.ops+1)<<20 | uint64(i) }

// acquireMulticast finds where w's buffers are bound, and binds them if need be. wait: it may wait for the first rank.
func (d *Device) acquireMulticast(w *team.Work, wait bool) error {
	m := &d.multi
	call := m.call
	m.call, m.pending = 0, false
	var at [2]nvls.Place
	own := ownAlone(w.Kind)
	for i, v := range []*team.Vec{&w.Src, &w.Dst} {
		b := []*team.Buf{&w.SrcBuf, &w.DstBuf}[i]
		if own[i] {
			b.Why = "its own rank alone uses it"
			continue
		}
		root := w.Kind == team.KindBroadcast && w.Dst.Bytes() == 0 // what it sends to all ranks, it also stores to its own memory
		if root {
			v, b = &w.Src, &w.SrcBuf
		}
		if err := d.c.Acquire(v, b, w.Graph); err != nil {
			return err
		}
		if b.Claim == nil {
			continue
		}
		why := ""
		if r, err := b.Claim.Handle(register.NVLS); err != nil {
			why = err.Error()
		} else {
			at[i], why = d.bound(r.(*nvls.Region), v, i, call, wait, w.Graph)
		}
		if why != "" {
			b.Claim.Release()
			b.Claim, b.Why = nil, why
			continue
		}
		b.At = mem.Location{Offset: at[i].At}
		if root {
			w.DstBuf = w.SrcBuf
			w.DstBuf.Shared = true
		}
	}
	if call != 0 && d.c.Team().Rank() == 0 {
		m.write(call, at)
	}
	return nil
}

// ownAlone tells which buffers of an operation, source and destination, need not be bound.
func ownAlone(k team.OpKind) [2]bool {
	switch k {
	case team.KindReduceScatter:
		return [2]bool{false, true}
	case team.KindAllGather, team.KindBroadcast:
		return [2]bool{true, false}
	}
	return [2]bool{}
}

// bound returns where v, which is in r, is bound; side is 0 for a source. If it is not, and call is not 0, it binds it:
// the first rank at once, the others when they know where the first rank has its own. captured: graphs may use it at any
// time.
func (d *Device) bound(r *nvls.Region, v *team.Vec, side int, call uint64, wait, captured bool) (at nvls.Place, why string) {
	m, p, n := &d.multi, uintptr(v.Ptr), v.Bytes()
	at, ok := m.object.At(r, p, n, captured)
	switch {
	case ok:
		return at, ""
	case call == 0 || !r.Due(call>>20):
		return at, notBound(r)
	}
	var err error
	if d.c.Team().Rank() == 0 {
		err = m.object.Lead(r)
	} else {
		var lead nvls.Place
		if lead, err = d.lead(call, side, wait); errors.Is(err, errNotThere) && !wait {
			m.pending = true
			return at, err.Error()
		}
		if err == nil {
			err = m.object.Follow(r, p, lead, d.Domain.idle)
		}
	}
	if err != nil {
		r.Missed(call>>20, err.Error())
		return at, notBound(r)
	}
	if at, ok = m.object.At(r, p, n, captured); !ok {
		r.Missed(call>>20, "not all of it lies in what can be bound")
		return at, notBound(r)
	}
	return at, ""
}

func notBound(r *nvls.Region) string {
	if why := r.Why(); why != "" {
		return why
	}
	return "not bound to the multicast object yet"
}

var errNotThere = errors.New("the first rank had not made the call, or has made many since")

// lead returns where the first rank's buffer of that operation is. It may wait for the first rank's call, as await does
// for peers that map memory.
func (d *Device) lead(call uint64, side int, wait bool) (at nvls.Place, err error) {
	found := false
	look := func() bool {
		at, found = d.multi.notes.find(call, side)
		return found
	}
	if !look() && wait {
		d.await(look)
	}
	switch {
	case !found:
		return at, errNotThere
	case at.Bytes == 0:
		return at, fmt.Errorf("the first rank's is not: %w", fault.ErrNotSupported)
	}
	return at, nil
}

// write notes where the buffers of an operation are.
func (m *multicast) write(call uint64, at [2]nvls.Place) {
	n := &m.notes[m.note%noteSlots]
	m.note++
	n.call.Store(0)
	for i, to := range []*[3]atomic.Uint64{&n.src, &n.dst} {
		to[0].Store(at[i].At)
		to[1].Store(at[i].Begin)
		to[2].Store(at[i].Bytes)
	}
	n.call.Store(call)
}

// find returns what the first rank noted of an operation.
func (all *notes) find(call uint64, side int) (at nvls.Place, found bool) {
	for i := range all {
		n := &all[i]
		if n.call.Load() != call {
			continue
		}
		from := &n.src
		if side == 1 {
			from = &n.dst
		}
		at = nvls.Place{At: from[0].Load(), Begin: from[1].Load(), Bytes: from[2].Load()}
		if n.call.Load() == call { // it was not overwritten meanwhile
			return at, true
		}
	}
	return at, false
}
