// Package mem is the memory of one rank that its peers can access: a few sealed, preallocated memory files (arenas),
// which peers map whole, cut into allocations; and memory of the rank's device. It is not on the Go heap. Only Free and
// Close free it. Every allocation has a generation, which is never reused.
//
// Free makes the pages and arena offsets available again at once, but virtual addresses as late as possible: each
// allocation is mapped at its own address, and after Free nothing is there, so that a stale view faults instead of
// reading somebody else's data. An address is reused only when 32 GiB, or 65,536 pieces, of addresses freed later are
// waiting, or, under a limit on address space (ulimit -v), when no other addresses are left. Device memory has the
// driver's addresses, which the driver may reuse.
package mem

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// Origin says where an allocation comes from.
type Origin uint8

// The origins of allocations.
const (
	Arena         Origin = iota // cut from an arena: peers can map it
	Adopted                     // memory of C code, mmap or another library, which its owner keeps alive
	Device                      // memory of the rank's device, made by the heap
	DeviceAdopted               // memory of the rank's device, made by another library, which its owner keeps alive
	View                        // a peer's memory, mapped here
)

// String names the origin.
func (o Origin) String() string {
	return [...]string{"arena", "adopted", "device", "adopted on the device", "view of a peer's"}[o]
}

// Location tells peers where (part of) an arena allocation is. It is plain numbers; whoever resolves them checks them.
type Location struct {
	Arena      uint32
	Slot       uint32
	Generation uint64
	Offset     uint64 // from the start of the arena; in a GoHeap heap, from the start of the allocation
}

// Add returns the location n bytes further on.
func (l Location) Add(n uintptr) Location {
	l.Offset += uint64(n)
	return l
}

// Allocation is memory of a Heap. Its fields do not change.
type Allocation struct {
	Ptr    unsafe.Pointer // not for the host to dereference if Dev is a device
	Bytes  int            // as requested
	Origin Origin
	Dev    hw.Device
	At     Location // all of it for Origin Arena, nothing for View; for others only Slot and Generation

	ReadOnly bool // a store to it faults

	heap  *Heap
	arena *arena // for Origin Arena of a heap with files
	pages int    // bytes mapped: whole pages, or a multiple of the device's granularity
	slab  *slab  // the slab that it is a part of, or nil
	id    uint64 // the driver's ID, DeviceAdopted only
	freed atomic.Bool
	leave sync.Mutex   // held by Leave
	left  atomic.Bool  // Leave has succeeded: no new uses
	kept  atomic.Bool  // see Quarantine
	uses  atomic.Int64 // operations that use it, plus freeing after WhenIdle
	end   sync.Mutex   // held while idle is called
	idle  []func()

	locking sync.Mutex
	locks   int // Locks without Unlock
}

const freeing = 1 << 40

// Hold keeps the memory from being freed until Release. It returns false if the memory is already being freed.
func (a *Allocation) Hold() bool {
	if a.uses.Add(1) < freeing {
		return true
	}
	a.Release()
	return false
}

// Release ends one Hold.
func (a *Allocation) Release() {
	uses := a.uses.Add(-1)
	if invariants.Enabled {
		a.checkReleased(uses)
	}
	if uses == freeing {
		a.ended()
	}
}

// HoldLast is Hold, but does nothing and returns false while there are Holds. If it returns true, no later Hold
// succeeds.
func (a *Allocation) HoldLast() bool { return a.uses.CompareAndSwap(0, freeing+1) }

// Holders returns how many Holds there are.
func (a *Allocation) Holders() int { return int(a.uses.Load() & (freeing - 1)) }

// WhenIdle calls f when the last Hold has ended; if there is none now, before it returns. No new Hold succeeds from now
// on.
func (a *Allocation) WhenIdle(f func()) {
	a.end.Lock()
	a.idle = append(a.idle, f)
	a.end.Unlock()
	if a.uses.Or(freeing)&^freeing == 0 {
		a.ended()
	}
}

// ended calls what WhenIdle was given.
func (a *Allocation) ended() {
	a.end.Lock()
	defer a.end.Unlock()
	for _, f := range a.idle {
		f()
	}
	a.idle = nil
}

// Leave is called by the owner before it frees a. If last returns nil, no new use of a may begin. The second time it
// returns fault.ErrClosed.
func (a *Allocation) Leave(last func() error) error {
	a.leave.Lock()
	defer a.leave.Unlock()
	if !a.Live() {
		return fmt.Errorf("the buffer has been freed: %w", fault.ErrClosed)
	}
	if err := last(); err != nil {
		return err
	}
	a.left.Store(true)
	return nil
}

// Base returns the allocation's first address.
func (a *Allocation) Base() uintptr { return uintptr(a.Ptr) }

// Heap returns the heap that a belongs to.
func (a *Allocation) Heap() *Heap { return a.heap }

// Live reports whether a has not been freed.
func (a *Allocation) Live() bool { return !a.left.Load() && !a.freed.Load() }

// Contains reports whether [p, p+n) lies in a.
func (a *Allocation) Contains(p uintptr, n int) bool {
	return p >= a.Base() && n >= 0 && n <= a.Bytes && p-a.Base() <= uintptr(a.Bytes-n)
}

// Heap allocates memory. Any goroutine may call its methods. Only those that say so wait for other ranks.
type Heap struct {
	Domain uint64 // identifies the heap in the job

	// A goHeap heap allocates from the Go heap, for race builds in which ranks are goroutines. Its peers are in this
	// process, and resolve locations by their slot.
	goHeap bool

	mu         sync.Mutex
	dirFile    *shm.File
	dir        *Directory
	arenas     []*arena // by number, without those that no longer exist
	spare      int      // bytes of arenas without allocations to keep
	missed     int      // bytes of arenas that were given back and not made again
	space      space
	live       []*Allocation // by address
	freeSlots  []uint32
	nextSlot   uint32
	generation uint64
	low, high  atomic.Uintptr // bounds of all memory that was ever live
	closed     bool
	abandoned  bool                         // see Abandon
	owed       map[*Allocation]func()       // what Adopt was given, until Return calls it
	slots      []atomic.Pointer[Allocation] // GoHeap only
	device     device

	quarantines int // number not lifted
	held        []held

	onArena func() // called, without the lock, after an arena was published
}

var heaps sync.Map // domain -> *Heap, GoHeap heaps only

// Find returns the GoHeap heap of this process with the given domain, or nil.
func Find(domain uint64) *Heap {
	if h, ok := heaps.Load(domain); ok {
		return h.(*Heap)
	}
	return nil
}

// New makes the heap of one rank. domain must be unique in the job. The caller closes it.
func New(domain uint64, goHeap bool) (*Heap, error) {
	h := &Heap{Domain: domain, goHeap: goHeap, spare: firstArena, space: space{window: windowSize}}
	if goHeap {
		h.dir = new(Directory)
		h.slots = make([]atomic.Pointer[Allocation], MaxSlots)
		heaps.Store(domain, h)
	} else {
		f, err := shm.Create("directory", DirectorySize)
		if err != nil {
			return nil, err
		}
		p, err := f.Map(0, DirectorySize, true)
		if err != nil {
			f.Close()
			return nil, err
		}
		h.dirFile, h.dir = f, (*Directory)(p)
	}
	h.dir.magic, h.dir.domain = directoryMagic, domain
	return h, nil
}

// OnArena sets a function that is called, without locks held, whenever peers should look at the directory again. Call
// it before the first Alloc.
func (h *Heap) OnArena(f func()) { h.onArena = f }

// GoHeap reports whether the heap allocates from the Go heap.
func (h *Heap) GoHeap() bool { return h.goHeap }

// Directory returns what peers read.
func (h *Heap) Directory() *Directory { return h.dir }

// DirectoryRef names the directory's memory file for peers. It is zero for a GoHeap heap.
func (h *Heap) DirectoryRef() shm.Ref {
	if h.goHeap {
		return shm.Ref{}
	}
	return h.dirFile.Ref()
}

// File returns the memory file that r names, or nil: the descriptor service must hand out no other files.
func (h *Heap) File(r shm.Ref) *shm.File {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.goHeap {
		return nil
	}
	if h.dirFile.Ref() == r {
		return h.dirFile
	}
	for _, a := range h.arenas {
		if a.file.Ref() == r {
			return a.file
		}
	}
	return nil
}

// Alloc returns n bytes, zeroed, page-aligned and populated. It costs system calls and, if no arena has room, the
// making of an arena.
func (h *Heap) Alloc(n int) (*Allocation, error) {
	if n <= 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w", n, fault.ErrArgument)
	}
	if n > 1<<46 {
		return nil, fmt.Errorf("allocate %d bytes: more than the address space: %w", n, fault.ErrLimit)
	}
	a, grew, err := h.alloc(n)
	if err == nil && grew && h.onArena != nil {
		h.onArena()
	}
	return a, err
}

func (h *Heap) alloc(n int) (a *Allocation, grew bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, false, fmt.Errorf("allocate after the rank's last communicator: %w", fault.ErrClosed)
	}
	slot, err := h.slot()
	if err != nil {
		return nil, false, err
	}
	a = &Allocation{Bytes: n, heap: h, pages: shm.RoundUp(n), At: Location{Slot: slot}}
	if h.goHeap {
		a.Ptr = goPages(a.pages)
	} else if grew, err = h.place(a); err != nil {
		h.freeSlots = append(h.freeSlots, slot)
		return nil, false, err
	}
	h.enter(a)
	return a, grew, nil
}

// goPages returns n bytes of the Go heap that begin at a page.
func goPages(n int) unsafe.Pointer {
	b := make([]byte, n+shm.PageSize)
	skip := -uintptr(unsafe.Pointer(&b[0])) & uintptr(shm.PageSize-1)
	return unsafe.Pointer(&b[skip])
}

func (h *Heap) slot() (uint32, error) {
	if k := len(h.freeSlots); k > 0 {
		s := h.freeSlots[k-1]
		h.freeSlots = h.freeSlots[:k-1]
		return s, nil
	}
	if h.nextSlot == MaxSlots {
		return 0, fmt.Errorf("more than %d allocations live on one rank (allocate fewer, larger buffers): %w",
			MaxSlots, fault.ErrLimit)
	}
	h.nextSlot++
	return h.nextSlot - 1, nil
}

// enter makes a known: to peers by its generation, to Lookup by its address.
func (h *Heap) enter(a *Allocation) {
	h.generation++
	a.At.Generation = h.generation
	h.dir.slots[a.At.Slot].Store(a.At.Generation)
	if h.goHeap {
		h.slots[a.At.Slot].Store(a)
	}
	i, _ := slices.BinarySearchFunc(h.live, a.Base(), byBase)
	h.live = slices.Insert(h.live, i, a)
	if low := h.low.Load(); low == 0 || a.Base() < low {
		h.low.Store(a.Base())
	}
	h.high.Store(max(h.high.Load(), a.Base()+uintptr(a.Bytes)))
	if invariants.Enabled {
		h.check()
	}
}

func byBase(a *Allocation, p uintptr) int {
	switch {
	case a.Base() < p:
		return -1
	case a.Base() > p:
		return 1
	}
	return 0
}

// place finds an arena offset and an address for a, and maps it.
func (h *Heap) place(a *Allocation) (grew bool, err error) {
	addr, err := h.space.take(a.pages)
	if err != nil {
		return false, err
	}
	ar, off, grew, err := h.take(a.pages)
	if err != nil {
		h.space.give(addr, a.pages)
		return grew, err
	}
	if err := ar.file.MapAt(addr, off, a.pages); err != nil {
		ar.free.add(off, a.pages)
		if errors.Is(err, shm.ErrLost) {
			h.space.abandon(addr, a.pages)
		} else {
			h.space.give(addr, a.pages)
		}
		return grew, err
	}
	ar.live++
	a.Ptr, a.arena, a.At.Arena, a.At.Offset = addr, ar, ar.number, uint64(off)
	if old := min(ar.used-off, a.pages); old > 0 {
		zero(addr, old)
	}
	ar.used = max(ar.used, off+a.pages)
	return grew, nil
}

//go:noinline
func zeroPiece(p unsafe.Pointer, n int) { clear(unsafe.Slice((*byte)(p), n)) }

// zero clears in pieces, because the garbage collector has to wait for a long assembly routine.
func zero(p unsafe.Pointer, n int) {
	for n > 0 {
		k := min(n, 64<<10)
		zeroPiece(p, k)
		p, n = unsafe.Add(p, k), n-k
	}
}

// Lookup returns the live allocation that contains [p, p+n), or nil. For most Go memory it returns nil without locking.
func (h *Heap) Lookup(p uintptr, n int) *Allocation {
	if p < h.low.Load() || p > h.high.Load() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	i, ok := slices.BinarySearchFunc(h.live, p, byBase)
	if !ok {
		i--
	}
	if i >= 0 && h.live[i].Contains(p, n) {
		return h.live[i]
	}
	return nil
}

// Retire ends a's life for everybody: views of it fault, and handles to it are refused. No host operation of this rank
// may use it; Retire waits for what is queued on the device. A second Retire returns fault.ErrClosed.
func (h *Heap) Retire(a *Allocation) error {
	if invariants.Enabled {
		a.checkIdle()
	}
	if !a.Dev.IsHost() {
		return h.retireDevice(a)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.leave(a); err != nil {
		return err
	}
	if h.closed || a.Origin != Arena {
		return nil
	}
	if invariants.Enabled {
		h.poison(a)
	}
	if h.goHeap {
		h.slots[a.At.Slot].Store(nil)
		return nil
	}
	if err := shm.Retire(a.Ptr, a.pages); err != nil {
		return err // views of it keep working, so neither its memory nor its addresses are reused
	}
	h.space.delayReuse(a.Ptr, a.pages)
	return h.give(a)
}

// leave undoes enter.
func (h *Heap) leave(a *Allocation) error {
	if a.freed.Swap(true) {
		return fmt.Errorf("the buffer has been freed: %w", fault.ErrClosed)
	}
	h.dir.slots[a.At.Slot].Store(0)
	if i, ok := slices.BinarySearchFunc(h.live, a.Base(), byBase); ok {
		h.live = slices.Delete(h.live, i, i+1)
	}
	h.freeSlots = append(h.freeSlots, a.At.Slot)
	if invariants.Enabled {
		h.check()
	}
	return nil
}

// Quarantine keeps a from being reused after it has been freed, independently of Heap.Quarantine: a peer does not end a
// copy in it or has it mapped, or a device has not released it.
func (a *Allocation) Quarantine() { a.kept.Store(true) }

// Keep quarantines the n bytes at p, if they are still an allocation of that generation.
func (h *Heap) Keep(p uintptr, n int, generation uint64) {
	if a := h.Lookup(p, n); a != nil && a.At.Generation == generation {
		a.Quarantine()
	}
}

// Abandon is Keep for memory that a thread of this process may use for ever, in a foreign library: Close leaves it mapped.
func (h *Heap) Abandon(p uintptr, n int, generation uint64) {
	h.Keep(p, n, generation)
	h.mu.Lock()
	h.abandoned = true
	h.mu.Unlock()
}

// Resolve returns the address of n bytes at l in a GoHeap heap of this process.
func (h *Heap) Resolve(l Location, n int) (unsafe.Pointer, error) {
	if l.Slot < MaxSlots {
		if a := h.slots[l.Slot].Load(); a != nil && a.At.Generation == l.Generation &&
			n >= 0 && l.Offset <= uint64(a.pages) && n <= a.pages-int(l.Offset) {
			return unsafe.Add(a.Ptr, l.Offset), nil
		}
	}
	return nil, fmt.Errorf("%d bytes at %+v: %w", n, l, fault.ErrStale)
}

// Stats is a heap's use of memory.
type Stats struct {
	Arenas      int   // memory files
	ArenaBytes  int64 // their size; all of it has memory except what is held
	Allocations int
	LiveBytes   int64 // of host memory, as requested
	DeviceBytes int64 // of device memory, as requested
	OwnBytes    int64 // of device memory that the library has for itself, which is in no buffer
	HeldBytes   int64 // freed, but not reused while a peer may access it; takes no memory
}

// Stats returns the heap's use of memory.
func (h *Heap) Stats() Stats {
	var own int64
	h.device.slicing.Lock()
	for _, x := range h.device.slabs {
		own += int64(x.whole.pages)
	}
	h.device.slicing.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Stats{OwnBytes: own, Arenas: len(h.arenas), Allocations: len(h.live)}
	for _, a := range h.arenas {
		s.ArenaBytes += int64(a.file.Size())
	}
	for _, p := range h.held {
		s.HeldBytes += int64(p.n)
	}
	for _, a := range h.live {
		if a.Dev.IsHost() {
			s.LiveBytes += int64(a.Bytes)
		} else {
			s.DeviceBytes += int64(a.Bytes)
		}
	}
	return s
}

// Close frees everything, even live allocations: their views fault from now on. It waits for the last Hold. At its end
// it does what Return has not done.
func (h *Heap) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return fmt.Errorf("heap: %w", fault.ErrClosed)
	}
	h.closed = true
	live := slices.Clone(h.live)
	h.mu.Unlock()
	var held sync.WaitGroup
	for _, a := range live {
		a.left.Store(true)
		held.Add(1)
		a.WhenIdle(held.Done)
	}
	held.Wait()
	err := h.closeDevice() // without the lock, because it waits
	err = errors.Join(err, h.unmap())
	h.mu.Lock()
	owed := h.owed
	h.owed = nil
	h.mu.Unlock()
	for _, back := range owed {
		back()
	}
	return err
}

// unmap gives all host memory back.
func (h *Heap) unmap() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.live {
		a.freed.Store(true)
	}
	if h.goHeap {
		heaps.Delete(h.Domain)
		return nil
	}
	var errs []error
	if !h.abandoned {
		errs = append(errs, h.space.unmap())
	}
	for _, a := range h.arenas {
		errs = append(errs, a.file.Close())
	}
	for i := range h.dir.slots[:h.nextSlot] {
		h.dir.slots[i].Store(0)
	}
	errs = append(errs, shm.Unmap(unsafe.Pointer(h.dir), DirectorySize), h.dirFile.Close())
	h.dir = new(Directory) // late Live and Retire calls find nothing
	return errors.Join(errs...)
}
