// Package nvls is the NVLS backend of a rank's registration cache, and this rank's part of the multicast objects of its
// communicators.
//
// A rank binds memory to an object by itself, but kernels use it there only if all ranks have bound theirs at the same
// offset. So the first rank of a communicator chooses where its memory goes (Object.Lead), and the others bind what they
// use in the same operation at the same offset (Object.Follow). Nobody waits for that: an operation whose kernels find
// different offsets, or none, stages its data. Whatever was bound for other operations does no harm.
//
// What is bound is the driver's allocation, once in each object, as far as whole units of the granularity lie in it.
package nvls

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// Backend implements register.Backend. Registering binds nothing: which memory goes together, only operations tell. Any
// goroutine may use it.
type Backend struct {
	heap *mem.Heap

	mu      sync.Mutex // guards what follows, and all objects
	ctx     *cuda.Context
	grain   uintptr
	none    error // why memory of this rank cannot be bound, while ctx is nil
	extents map[extentKey]*extent
	objects []*Object
}

// New returns the backend of the heap's rank. Use or Refuse follow before memory of a device is registered.
func New(h *mem.Heap) *Backend {
	return &Backend{heap: h, none: fmt.Errorf("this rank uses no device: %w", fault.ErrNotSupported),
		extents: map[extentKey]*extent{}}
}

// Use makes memory of ctx's device usable, in units of grain bytes, a power of two. ctx stays open until after Close.
func (b *Backend) Use(ctx *cuda.Context, grain int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ctx, b.grain, b.none = ctx, uintptr(grain), nil
}

// Refuse says why no memory of this rank can be bound.
func (b *Backend) Refuse(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.none = why
}

// Unit is the granularity that Use was told, or why no memory can be bound.
func (b *Backend) Unit() (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int(b.grain), b.none
}

// extentKey identifies an allocation of the driver.
type extentKey struct {
	base cuda.Addr
	id   uint64
}

// extent is an allocation of the driver, in which several registered pieces of memory may lie.
type extent struct {
	key      extentKey
	from, to uintptr // what can be bound
	users    int     // registrations
	places   []*place
}

// place is memory that is bound to an object.
type place struct {
	object   *Object
	extent   *extent // nil: staging memory
	from     uintptr
	at, n    int             // n is 0 once nothing is bound there any more
	memory   cuda.Allocation // a reference, which keeps the memory alive
	captured bool            // graphs may use it at any time
}

// Region is the backend's handle: registered memory as it can be bound.
type Region struct {
	b *Backend
	x *extent

	// What has kept it from being bound, for Explain; the backend's mutex guards these, too.
	why   string
	tries int    // in vain, since it was bound last
	next  uint64 // the operation that tries again
}

// Kind implements register.Backend.
func (b *Backend) Kind() register.BackendKind { return register.NVLS }

// Register implements register.Backend.
func (b *Backend) Register(m register.Memory) (any, error) {
	if m.Device.IsHost() {
		return nil, fmt.Errorf("memory of the host: %w", fault.ErrNotSupported)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.none != nil {
		return nil, b.none
	}
	x, err := b.inspect(m)
	if err != nil {
		return nil, err
	}
	if old := b.extents[x.key]; old != nil {
		x = old
	}
	b.extents[x.key] = x
	x.users++
	return &Region{b: b, x: x}, nil
}

// inspect returns what of m's allocation can be bound.
func (b *Backend) inspect(m register.Memory) (*extent, error) {
	a := b.heap.Lookup(m.Base, m.Bytes)
	if a == nil || a.At.Generation != m.Generation {
		return nil, fmt.Errorf("%v is no allocation of this rank: %w", m, fault.ErrStale)
	}
	d, err := a.Inspect()
	switch {
	case err != nil:
		return nil, err
	case m.Device != b.ctx.Device():
		return nil, fmt.Errorf("memory of %v, and this rank's device is %v: %w", m.Device, b.ctx.Device(), hw.ErrNotSupported)
	case d.LegacyIPC || d.Pool || !d.PosixFD:
		return nil, fmt.Errorf("only memory of Alloc, or of the driver's calls for virtual memory with a descriptor as its handle, "+
			"can be bound to a multicast object: %w", hw.ErrNotSupported)
	}
	x := &extent{key: extentKey{d.Base, d.ID}}
	x.from = (uintptr(d.Base) + b.grain - 1) &^ (b.grain - 1)
	x.to = (uintptr(d.Base) + uintptr(d.Size)) &^ (b.grain - 1)
	if x.from >= x.to {
		return nil, fmt.Errorf("it has no whole %d bytes, the granularity of multicast objects: %w", b.grain, hw.ErrNotSupported)
	}
	return x, nil
}

// Deregister implements register.Backend. It waits for this rank's queued work. After a failure a peer's kernel may still
// store to the memory: then it stays bound, and so alive, until the object ends.
func (b *Backend) Deregister(_ register.Memory, handle any) error {
	x := handle.(*Region).x
	if !b.leave(x) {
		return nil
	}
	if !b.heap.Quarantined() {
		b.heap.Quiesce()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if x.users > 0 { // registered again meanwhile
		return nil
	}
	delete(b.extents, x.key)
	if b.heap.Quarantined() {
		return nil
	}
	var errs []error
	for _, p := range slices.Clone(x.places) {
		if !p.object.used() {
			errs = append(errs, p.object.unbind(p))
		}
	}
	return errors.Join(errs...)
}

// leave ends a use of x, and reports whether it was the last.
func (b *Backend) leave(x *extent) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	x.users--
	return x.users == 0
}

// String says for Explain where it is bound.
func (r *Region) String() string {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	var all []string
	for _, p := range r.x.places {
		if p.n == 0 {
			continue
		}
		all = append(all, fmt.Sprintf("bound at %#x of the multicast object of %s", p.at, p.object.name))
	}
	if r.why != "" || len(all) == 0 {
		all = append(all, cmp.Or(r.why, "not bound: no operation by multicast has used it"))
	}
	return strings.Join(all, "; ")
}

// Close ends all objects that are left: those of communicators that had broken. It waits, for limit at most, until no
// kernel of a peer uses them; look is called meanwhile, and notices dead peers. What is still used then stays.
func (b *Backend) Close(limit time.Duration, look func()) error {
	if b == nil {
		return nil
	}
	var errs []error
	for end := time.Now().Add(limit); b.used(); time.Sleep(time.Millisecond) {
		if look(); time.Now().After(end) {
			errs = append(errs, fmt.Errorf("kernels of peers may still use a multicast object, which stays: %w", fault.ErrTimeout))
			break
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range slices.Clone(b.objects) {
		if !o.used() {
			errs = append(errs, o.end())
		}
	}
	return errors.Join(errs...)
}

// used reports whether kernels of peers may use an object.
func (b *Backend) used() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.objects, (*Object).used)
}
