package nvls

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

// Object is this rank's part of a communicator's multicast object: what its device has bound and mapped. Any goroutine
// may use it.
type Object struct {
	b       *Backend
	m       *cuda.Multicast
	name    string
	size    int
	address cuda.Addr // where it is mapped
	places  []*place  // in order
	lagging func() bool
}

// Adopt makes m, an object of n bytes, the backend's. name says whose it is, for people.
func (b *Backend) Adopt(m *cuda.Multicast, n int, name string) *Object {
	o := &Object{b: b, m: m, size: n, name: name}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.objects = append(b.objects, o)
	return o
}

// Begin binds n bytes at p, the library's own, at the beginning of the object, and maps the object. It comes after all
// ranks have added their devices.
func (o *Object) Begin(p cuda.Addr, n int) error {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if err := o.bind(nil, 0, uintptr(p), n); err != nil {
		return err
	}
	at, err := o.m.Map()
	o.address = at
	return err
}

// Address is where the object is mapped.
func (o *Object) Address() uint64 { return uint64(o.address) }

// Place is where a buffer of the communicator's first rank is in the object. The zero Place is nowhere.
type Place struct {
	At           uint64 // of the buffer
	Begin, Bytes uint64 // what is bound there
}

// At returns where the n bytes at addr are bound. captured says that graphs may use them from now on.
func (o *Object) At(r *Region, addr uintptr, n int, captured bool) (Place, bool) {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	p := o.find(r.x)
	if p == nil || addr < p.from || addr+uintptr(n) > p.from+uintptr(p.n) {
		return Place{}, false
	}
	p.captured = p.captured || captured
	return Place{uint64(p.at) + uint64(addr-p.from), uint64(p.at), uint64(p.n)}, true
}

// Why is what has kept r from being bound, or "".
func (r *Region) Why() string {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	return r.why
}

// Due reports whether operation number now should try to bind it. Each vain try doubles how many operations there are
// until the next one.
func (r *Region) Due(now uint64) bool {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	return now >= r.next
}

// Missed notes that operation number now could not bind it, and why.
func (r *Region) Missed(now uint64, why string) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.why = "not bound: " + why
	r.next = now + 1<<min(r.tries, mostDoublings)
	r.tries++
}

const mostDoublings = 12

// Lead binds the first rank's memory, where there is room.
func (o *Object) Lead(r *Region) error {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if o.find(r.x) != nil {
		return fmt.Errorf("another part of its allocation is used: %w", fault.ErrNotSupported)
	}
	n := int(r.x.to - r.x.from)
	at := 0
	for _, p := range o.places {
		if p.at-at >= n {
			break
		}
		at = p.at + p.n
	}
	if at+n > o.size {
		return fmt.Errorf("the multicast object of %d bytes has no room for %d more: %w", o.size, n, fault.ErrLimit)
	}
	err := o.bind(r.x, at, r.x.from, n)
	r.done(err)
	return err
}

// Follow binds the memory of another rank such that its buffer at addr is where the first rank has its own. What else this
// rank has there is unbound, unless graphs use it, or idle says that work is queued.
func (o *Object) Follow(r *Region, addr uintptr, lead Place, idle func() bool) error {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	grain, end := uint64(o.b.grain), lead.Begin+lead.Bytes
	if lead.Bytes == 0 || lead.Begin%grain != 0 || lead.Bytes%grain != 0 || end < lead.Begin || end > uint64(o.size) ||
		lead.At < lead.Begin || lead.At >= end {
		return fmt.Errorf("the first rank says that its memory is at [%#x,+%d) of the multicast object: %w", lead.Begin, lead.Bytes,
			fault.ErrMismatch)
	}
	if o.find(r.x) != nil {
		return fmt.Errorf("it is bound where the first rank has other memory: %w", fault.ErrNotSupported)
	}
	base := int(lead.At) - int(addr-r.x.from) // where all of the extent would begin; it may be less than 0
	if base%int(grain) != 0 {
		return fmt.Errorf("its offset in units of %d bytes is not the one of the first rank's: %w", grain, fault.ErrNotSupported)
	}
	from, to := max(base, int(lead.Begin)), min(base+int(r.x.to-r.x.from), int(end))
	if from >= to {
		return fmt.Errorf("no whole %d bytes of it face the first rank's: %w", grain, fault.ErrNotSupported)
	}
	for _, p := range slices.Clone(o.places) {
		if p.at >= to || p.at+p.n <= from {
			continue
		}
		if p.extent == nil || p.captured || !idle() {
			return fmt.Errorf("other memory of this rank is bound there: %w", fault.ErrInUse)
		}
		if err := o.unbind(p); err != nil {
			return err
		}
	}
	err := o.bind(r.x, from, r.x.from+uintptr(from-base), to-from)
	r.done(err)
	return err
}

// done notes that r was bound, unless err says otherwise. The caller holds the backend's mutex.
func (r *Region) done(err error) {
	if err == nil {
		r.why, r.tries, r.next = "", 0, 0
	}
}

// find returns the place of x. The caller holds the backend's mutex, as do those of the functions below.
func (o *Object) find(x *extent) *place {
	for _, p := range x.places {
		if p.object == o && p.n > 0 {
			return p
		}
	}
	return nil
}

func (o *Object) bind(x *extent, at int, from uintptr, n int) error {
	memory, err := o.b.ctx.Retain(cuda.Addr(from))
	if err != nil {
		return err
	}
	if err := o.m.BindAddr(at, cuda.Addr(from), n); err != nil {
		return errors.Join(err, o.b.ctx.Release(memory))
	}
	p := &place{object: o, extent: x, from: from, at: at, n: n, memory: memory}
	i, _ := slices.BinarySearchFunc(o.places, at, func(p *place, at int) int { return cmp.Compare(p.at, at) })
	o.places = slices.Insert(o.places, i, p)
	if x != nil {
		x.places = append(x.places, p)
	}
	return nil
}

// unbind undoes bind. What fails is tried again the next time.
func (o *Object) unbind(p *place) error {
	if p.n > 0 {
		if err := o.m.Unbind(p.at, p.n); err != nil {
			return err
		}
		p.n = 0
	}
	if err := o.b.ctx.Release(p.memory); err != nil {
		return err
	}
	same := func(q *place) bool { return q == p }
	o.places = slices.DeleteFunc(o.places, same)
	if p.extent != nil {
		p.extent.places = slices.DeleteFunc(p.extent.places, same)
	}
	return nil
}

// Close ends this rank's part, whose kernels have ended. If lagging is not nil, it says whether kernels of peers may still
// use what this rank has bound; while they may, the object stays until Backend.Close.
func (o *Object) Close(lagging func() bool) error {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	o.lagging = lagging
	if o.used() {
		return nil
	}
	return o.end()
}

// used reports whether kernels of peers may use an object that this rank has closed.
func (o *Object) used() bool { return o.lagging != nil && o.lagging() }

// end unmaps the object, unbinds all, and gives the reference back. What fails stays, and a later end tries it again.
func (o *Object) end() error {
	var errs []error
	if o.address != 0 {
		err := o.m.Unmap()
		if err == nil {
			o.address = 0
		}
		errs = append(errs, err)
	}
	for _, p := range slices.Clone(o.places) {
		errs = append(errs, o.unbind(p))
	}
	err := errors.Join(errs...)
	if err == nil {
		err = o.m.Close()
	}
	if err == nil {
		o.b.objects = slices.DeleteFunc(o.b.objects, func(q *Object) bool { return q == o })
	}
	return err
}
