package gpu

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Collectives between hosts run on the host. On a stream of the device a kernel stands for each: it copies the data to
// page-locked host memory, rings, and waits for the result. The stream's goroutine, its proxy, waits for the ring and runs
// the operation. It makes no call of the driver: while the driver waits to take more work of the program, behind a kernel
// that waits for the proxy, it would take none of the proxy's.

// carry is what a communicator on several hosts has for that.
type carry struct {
	mu     sync.Mutex // held while kernels are queued and take their places: both orders are the same
	params kernels.CarryParams
	tells  uint32 // of the next kernel
	page   *page
	words  *kernels.CarryPage // on the page
	memory [2][2]*locked      // of the source and the destination, of even and of odd parts
	taken  []*locked          // all that it ever was
	serial uint64             // of the kernel that rings next; the turn guards it

	told    atomic.Bool                // the last blocking operation's kernel has told that it is done, and perhaps not ended
	kept    atomic.Pointer[[]captured] // in users' captures; their kernels have the index, plus 1, as id
	serving chan struct{}              // closed at the end of the goroutine that waits for those; nil: there is none
}

// captured is an operation of a user's capture.
type captured struct {
	work    team.Work
	carrier carrier // as each replay begins with it
}

// carryBlocks is how many blocks carry more than carryFew bytes, which one block does. Over TCP two are as fast.
const (
	carryBlocks = 4
	carryFew    = 64 << 10
)

// carrier carries the data of one operation. Implements team.Carrier.
type carrier struct {
	d      *Device
	memory [2][2]*locked
	parts  int
	blocks int
	id     uint32
	stream *Stream // for an operation that is waited for; else nil
	phased bool    // its kernels are several: see carryPhases
	kind   team.OpKind

	serial uint64 // once it has rung
	ended  bool
}

// Carry implements engine.DeviceStream.
func (s *Stream) Carry(c *engine.Comm, works []team.Work, place func()) (carriers []engine.Carrier, err error) {
	if err := launchable(c, s.s); err != nil { // perhaps there is no device
		return nil, err
	}
	d := DeviceOf(c)
	d.carry.mu.Lock()
	defer d.carry.mu.Unlock()
	kept, n := s.Captured(), 0
	for i := range works {
		n += works[i].Carriers()
	}
	d.Domain.pace(s, n) // and not between them: those before wait for the caller
	d.next.paced = true
	defer func() { d.next.paced = false }()
	for i := range works {
		one, err := d.carryOne(s, &works[i], kept)
		forget(&works[i]) // whoever frees the memory waits for the kernels first, and so for the operation
		if err != nil {
			return nil, d.failed(works[i].Kind, err)
		}
		if kept {
			d.keepCarried(&works[i], one)
			continue
		}
		carriers = append(carriers, one)
	}
	if kept {
		return nil, nil
	}
	place()
	return carriers, nil
}

// Carry implements engine.Accelerator.
func (d *Device) Carry(ctx context.Context, w *team.Work) (team.Carrier, error) {
	d.carry.mu.Lock()
	defer d.carry.mu.Unlock()
	if err := launchable(d.c, d.own.s); err != nil {
		return nil, err
	}
	d.Domain.pace(d.own, w.Carriers())
	d.carry.tells, d.next.paced = 1, true
	d.carry.told.Store(false)
	k, err := d.carryOne(d.own, w, false)
	d.carry.tells, d.next.paced = 0, false
	if err != nil { // nothing was queued, and the peers learn of it on the host, or the communicator is broken
		return nil, err
	}
	k.stream = d.own
	return k, w.Err
}

// carryOne queues the kernel of w on s. If this rank cannot take part in w, the kernel has no data, and w gets the reason. An
// error is the driver's. The caller holds carry.mu.
func (d *Device) carryOne(s *Stream, w *team.Work, kept bool) (*carrier, error) {
	c := &d.carry
	if err := c.open(d); err != nil {
		return nil, err
	}
	k := &carrier{d: d, parts: 1, kind: w.Kind}
	c.params = kernels.CarryParams{Status: d.Params.Status, Page: uint64(c.page.at), Parts: 1, Tells: c.tells}
	if kept {
		k.id = uint32(len(c.captures())) + 1
		c.params.ID = k.id
	}
	blocks := 1
	if w.Err == nil {
		w.Err = w.Hold()
	}
	if w.Err == nil && kept {
		w.Err = d.retain(w)
	}
	if w.Err == nil {
		div := w.Path.Divide(d.c.Team(), w)
		if w.Err = c.take(d, &div); w.Err == nil && div.Phases != nil {
			if w.Err = w.AcquireBuffers(func(v *team.Vec, b *team.Buf) error { return d.AcquireBuffer(w, v, b, !kept) }); w.Err == nil {
				return k, d.carryPhases(s, k, w, &div, kept)
			}
		} else if w.Err == nil {
			blocks = c.fill(k, w, &div)
		}
	}
	f, err := d.kernel(kernels.Carry, dtype.Invalid)
	if err != nil {
		return nil, err
	}
	d.next.f, d.next.args = f.f, kernels.Bytes(&c.params)
	d.shape(f, blocks, false)
	k.blocks = d.next.shape.Grid
	return k, d.enqueue(s, kept)
}

// open makes the page.
func (c *carry) open(d *Device) (err error) {
	if c.page != nil {
		return nil
	}
	if c.page, err = d.Domain.shared.takePage(int(unsafe.Sizeof(kernels.CarryPage{}))); err != nil {
		return err
	}
	c.words = (*kernels.CarryPage)(unsafe.Pointer(&c.page.bytes[0]))
	c.serial = 1
	c.words.Serial.Store(c.serial)
	return nil
}

// take takes memory for the parts of an operation. What it replaces stays taken: kernels that use it are queued.
func (c *carry) take(d *Device, div *team.Division) error {
	for which := range div.Blocks {
		_, n := div.Part(which, 0)
		if n *= div.Blocks[which]; div.Phases != nil {
			n = div.Host[which]
		}
		for i := range min(div.Parts, 2) {
			if at := &c.memory[which][i]; n > 0 && (*at == nil || (*at).bytes < n) {
				l, err := d.Domain.pinned.take(d.Domain, n)
				if err != nil {
					return fmt.Errorf("page-locked memory for what goes between hosts: %w", err)
				}
				*at = l
				c.taken = append(c.taken, l)
			}
		}
	}
	return nil
}

// fill sets the parameters of k's kernel, and returns how many blocks it has.
func (c *carry) fill(k *carrier, w *team.Work, div *team.Division) (blocks int) {
	p := &c.params
	k.parts, k.memory = div.Parts, c.memory
	all := 0
	for which := range div.Blocks {
		for i := range min(div.Parts, 2) {
			if div.Bytes[which] == 0 {
				k.memory[which][i] = nil
			} else if at := uint64(c.memory[which][i].at); which == team.Source {
				p.In[i] = at
			} else {
				p.Out[i] = at
			}
		}
		all += div.Blocks[which] * div.Bytes[which]
	}
	p.Src, p.Dst = uint64(uintptr(w.Src.Ptr)), uint64(uintptr(w.Dst.Ptr))
	p.SrcCount, p.DstCount, p.Most = uint64(div.Bytes[team.Source]), uint64(div.Bytes[team.Destination]), uint64(div.Most)
	p.SrcBlocks, p.DstBlocks, p.Parts = uint32(div.Blocks[team.Source]), uint32(div.Blocks[team.Destination]), uint32(div.Parts)
	if all <= carryFew {
		return 1
	}
	return carryBlocks
}

// Memory implements team.Carrier.
func (k *carrier) Memory(which, part int) team.Vec {
	l := k.memory[which][part%2]
	if l == nil {
		return team.Vec{}
	}
	return team.Vec{Ptr: l.ptr, Alloc: l.alloc}
}

// Load implements team.Carrier.
func (k *carrier) Load(ctx context.Context, part int) error {
	var w carryWait
	for !k.rung(part) {
		if e := k.d.c.Broken(); e != nil {
			return e
		}
		if k.serial == 0 {
			k.d.serve()
		}
		waited := w.step()
		if waited == 0 || part == 0 && k.stream == nil { // nobody knows when a user's stream gets to the kernel
			continue
		}
		if ctx.Err() != nil && k.serial == 0 {
			return reason.Ended(ctx)
		}
		if _, err := k.late(waited); err != nil {
			return err
		}
	}
	return nil
}

// carryWait is a wait for a kernel.
type carryWait struct {
	steps        int
	begun, asked time.Time
}

// step lets others run, or sleeps. About once in a millisecond it returns how long the wait has lasted, else 0.
func (w *carryWait) step() time.Duration {
	if w.steps++; w.steps < spinningLooks {
		runtime.Gosched()
		return 0
	}
	now := time.Now()
	if w.begun.IsZero() {
		w.begun, w.asked = now, now
	}
	waited := now.Sub(w.begun)
	carrySleep(waited)
	if now.Sub(w.asked) < time.Millisecond {
		return 0
	}
	w.asked = now
	return waited
}

// late reports whether the kernel of an operation that is waited for has ended, and if the device has failed, or takes too
// long, why.
func (k *carrier) late(waited time.Duration) (ended bool, err error) {
	if k.stream != nil {
		if ended, err = k.stream.Done(); err != nil {
			return true, err
		}
	}
	if waited > time.Duration(k.d.c.Team().Timeout.Load())+WaitGrace {
		return false, fmt.Errorf("the device has not ended what it copies after %v: %w", waited.Round(time.Second), fault.ErrTimeout)
	}
	return ended, nil
}

// carrySleep is a step of a wait for a kernel.
func carrySleep(waited time.Duration) {
	if waited < team.SleepAfter {
		runtime.Gosched()
	} else {
		time.Sleep(min(waited/64, 200*time.Microsecond))
	}
}

// rung reports whether all blocks of k's kernel have copied a part.
func (k *carrier) rung(part int) bool {
	c := &k.d.carry
	for b := range k.blocks {
		v := c.words.Rung[b].Load()
		if v>>32 != c.serial || v&(1<<32-1) < uint64(part)+1 {
			return false
		}
	}
	if k.serial == 0 {
		if c.words.ID.Load() != k.id {
			return false
		}
		k.serial = c.serial
	}
	return true
}

// Store implements team.Carrier.
func (k *carrier) Store(part int) { k.answer(uint64(part) + 1) }

// answer tells k's kernel that so many parts are complete. After the last answer the next item may ring.
func (k *carrier) answer(parts uint64) {
	c := &k.d.carry
	if parts >= uint64(k.parts) {
		k.ended = true
		if c.serial = (c.serial + 1) & (1<<32 - 1); c.serial == 0 {
			c.serial = 1
		}
		c.words.Serial.Store(c.serial)
	}
	c.words.Answer.Store(k.serial<<32 | parts)
}

// End implements engine.Carrier.
func (k *carrier) End() {
	if !k.ended && k.d.c.Broken() == nil && k.Load(context.Background(), 0) == nil {
		k.answer(kernels.CarryNothing)
	}
	k.ended = true
}

// Wait implements team.Carrier.
func (k *carrier) Wait() error {
	if k.stream == nil {
		return nil
	}
	k.End()
	if k.phased {
		return k.d.phasesEnded(k)
	}
	var w carryWait
	for !k.told() {
		waited := w.step()
		if waited == 0 {
			continue
		}
		if ended, err := k.late(waited); ended || err != nil {
			return err
		}
	}
	k.d.carry.told.Store(true)
	return nil
}

// told reports whether all blocks of k's kernel have told that they are done.
func (k *carrier) told() bool {
	for b := range k.blocks {
		if k.d.carry.words.Rung[b].Load() != k.serial<<32|uint64(k.parts)+1 {
			return false
		}
	}
	return true
}

// captures returns the operations of users' captures.
func (c *carry) captures() []captured {
	if all := c.kept.Load(); all != nil {
		return *all
	}
	return nil
}

// keepCarried keeps an operation of a user's capture, and waits for its kernels from now on. The caller holds carry.mu.
func (d *Device) keepCarried(w *team.Work, k *carrier) {
	c := &d.carry
	w.SendCounts, w.RecvCounts = slices.Clone(w.SendCounts), slices.Clone(w.RecvCounts)
	all := append(slices.Clone(c.captures()), captured{*w, *k})
	c.kept.Store(&all)
	if c.serving == nil {
		c.serving = make(chan struct{})
		go d.serveCaptures(c.serving)
	}
}

// ringing returns the operation of a user's capture whose kernel rings, or nil.
func (c *carry) ringing() *captured {
	all := c.captures()
	if len(all) == 0 || c.words.Rung[0].Load()>>32 != c.words.Serial.Load() {
		return nil
	}
	if id := c.words.ID.Load(); id > 0 {
		return &all[id-1]
	}
	return nil
}

// serve runs the operation of a user's capture whose kernel rings, if there is one. It is called in the communicator's turn,
// also in that of an operation whose own kernel has not rung yet: that may wait for the capture.
func (d *Device) serve() {
	k := d.carry.ringing()
	if k == nil {
		return
	}
	w, one := k.work, k.carrier
	err := d.c.RunCarried(context.Background(), &w, &one)
	if err != nil {
		d.mu.Lock()
		d.pending = append(d.pending, err)
		d.mu.Unlock()
	}
	one.End()
}

// serveCaptures runs the operations of users' captures.
func (d *Device) serveCaptures(ended chan struct{}) {
	defer close(ended)
	last := time.Now()
	for d.c.Broken() == nil { // else kernels end by themselves
		select {
		case <-d.stop:
			return
		default:
		}
		if d.carry.ringing() == nil {
			carrySleep(time.Since(last))
			continue
		}
		d.c.EnterQueue()
		d.serve()
		d.c.Leave()
		last = time.Now()
	}
}

// close ends it, when no kernel runs any more.
func (c *carry) close(d *Device) {
	c.mu.Lock()
	serving := c.serving
	c.mu.Unlock()
	if serving != nil {
		<-serving
	}
	d.Domain.pinned.give(c.taken...)
	if c.page != nil {
		d.Domain.shared.givePage(c.page)
	}
}
