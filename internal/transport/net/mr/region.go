package mr

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/register"
)

// Region is memory that is registered with all NICs of a backend.
type Region struct {
	backend    *Backend
	memory     register.Memory
	address    uint64
	bytes      int
	generation uint64
	access     verbs.Access // on every NIC
	keys       []Key
	mrs        []*verbs.MR
	readOnly   bool   // this process may not write it
	way        string // how NICs reach memory of a device
}

// Key is a NIC's keys for a Region. Work requests use the memory's own address: regions are never zero-based.
type Key struct {
	Local  verbs.LKey // for this process's work requests
	Remote verbs.RKey // for work requests of peers
}

// Token is what a peer needs to reach a Region: its address, its rkey on each of the backend's NICs, and the
// registration that the keys belong to.
type Token struct {
	Address    uint64
	Bytes      int
	Generation uint64
	Keys       []verbs.RKey // in the order of [Backend.NICs]
}

// String is like "registration 3 of [0x7f00,+4096)".
func (t Token) String() string {
	return fmt.Sprintf("registration %d of [%#x,+%d)", t.Generation, t.Address, t.Bytes)
}

// Export is a Region over exact bytes. Whoever asked for it closes it.
type Export struct {
	*Region
	closed atomic.Bool
}

// Close deregisters the memory. Its tokens are stale before the first NIC is asked. Operations that peers then do by
// them fail at the peers; overlapping registrations stay as they are. Close may block as long as unpinning takes. If a
// NIC fails to deregister, that is an error, and the backend tries again when it closes. A second Close is
// fault.ErrClosed.
func (e *Export) Close() error {
	if e.closed.Swap(true) {
		return fmt.Errorf("%v: %w", e.Token(), fault.ErrClosed)
	}
	return e.backend.end(e.Region)
}

// ErrAccess says that memory is registered, but not for all the access that was asked for.
var ErrAccess = fmt.Errorf("it is not registered for that: %w", fault.ErrNotSupported)

// For returns the keys for using the region with access, in the order of [Backend.NICs]. If some access is missing, the
// error says which, and wraps ErrAccess. The caller must not change the keys; they are valid as long as the region.
// Success costs one comparison.
func (r *Region) For(access verbs.Access) ([]Key, error) {
	if r.access.Has(access) {
		return r.keys, nil
	}
	var why []string
	if r.readOnly {
		why = append(why, "this process may only read it")
	}
	for i, n := range r.backend.nics {
		if missing := access &^ r.mrs[i].Access(); missing != 0 && !r.readOnly {
			what := fmt.Sprintf("%s lacks %v", n.Device.Name(), missing)
			if missing.Has(verbs.RemoteAtomic) && n.Device.Limits().Atomics == verbs.AtomicsNone {
				what += ", since it has no atomics"
			}
			why = append(why, what)
		}
	}
	return nil, fmt.Errorf("[%#x,+%d) of %v is registered for %v, not for %v (%s): %w", r.address, r.bytes, r.memory, r.access,
		access&^r.access, strings.Join(why, "; "), ErrAccess)
}

// Token returns what peers need.
func (r *Region) Token() Token {
	t := Token{Address: r.address, Bytes: r.bytes, Generation: r.generation, Keys: make([]verbs.RKey, len(r.keys))}
	for i, k := range r.keys {
		t.Keys[i] = k.Remote
	}
	return t
}

// Memory is the allocation.
func (r *Region) Memory() register.Memory { return r.memory }

// Address is where the region begins. Work requests and peers use the same address.
func (r *Region) Address() uint64 { return r.address }

// Bytes is its length.
func (r *Region) Bytes() int { return r.bytes }

// Way is how NICs reach memory of a device, as LastOp says it; "" for memory of the host.
func (r *Region) Way() string {
	if r.way == "" {
		return ""
	}
	return "GPUDirect RDMA by " + r.way
}

// String is like "rxe0, rxe1: LOCAL_WRITE|REMOTE_READ" or, for memory of a device, "rxe0: LOCAL_WRITE, by a dma-buf". It omits
// the keys, since anybody who knows them can use them.
func (r *Region) String() string {
	var names []string
	for _, n := range r.backend.nics {
		names = append(names, n.Device.Name())
	}
	s := fmt.Sprintf("%s: %v", strings.Join(names, ", "), r.access)
	if r.way != "" {
		s += ", by " + r.way
	}
	return s
}

// region registers n bytes at address for access; nil means for what operations need.
func (b *Backend) region(m register.Memory, address uint64, n int, access *verbs.Access) (*Region, error) {
	generation, err := b.begin()
	if err != nil {
		return nil, err
	}
	r := &Region{backend: b, memory: m, address: address, bytes: n, generation: generation}
	err = b.pin(r, access)
	if err != nil {
		err = errors.Join(err, b.unpin(r))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.making--
	if err != nil {
		return nil, err
	}
	b.live[generation] = r
	return r, nil
}

// begin counts a registration that is under way, and returns its generation.
func (b *Backend) begin() (generation uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, fmt.Errorf("registrations with RDMA devices: %w", fault.ErrClosed)
	}
	b.making++
	b.last++
	return b.last, nil
}

// pin registers r with the NICs. After an error some NICs may have it.
func (b *Backend) pin(r *Region, access *verbs.Access) error {
	if !r.memory.Device.IsHost() {
		return b.pinDevice(r, access)
	}
	return b.pinAddress(r, access)
}

// pinAddress registers r by its address.
func (b *Backend) pinAddress(r *Region, access *verbs.Access) error {
	return b.pinEach(r, access, func(n NIC, a verbs.Access) (*verbs.MR, error) {
		return n.PD.Register(uintptr(r.address), r.bytes, a)
	})
}

// pinEach is pin by a function that registers with one NIC.
func (b *Backend) pinEach(r *Region, access *verbs.Access, register func(n NIC, a verbs.Access) (*verbs.MR, error)) error {
	for i, n := range b.nics {
		a := n.access
		if access != nil {
			a = *access | n.access&verbs.RelaxedOrdering
		}
		if r.readOnly {
			a = 0
		}
		m, err := register(n, a)
		if access == nil && i == 0 && r.memory.Device.IsHost() && errors.Is(err, syscall.EFAULT) {
			if m, err := register(n, 0); err == nil {
				r.readOnly = true
				r.add(m)
				continue
			}
		}
		if err != nil {
			return b.failed(i, err)
		}
		r.add(m)
	}
	return nil
}

// failed adds to err which NIC failed, and the NIC's limits.
func (b *Backend) failed(i int, err error) error {
	n := b.nics[i].Device
	where := fmt.Sprintf("RDMA device %s, %d of %d", n.Name(), i+1, len(b.nics))
	if most := n.Limits().MRs; most > 0 && errors.Is(err, fault.ErrLimit) {
		return fmt.Errorf("%s, with room for %d regions of all processes: %w", where, most, err)
	}
	return fmt.Errorf("%s: %w", where, err)
}

func (r *Region) add(m *verbs.MR) {
	if r.mrs == nil {
		r.access = m.Access()
	}
	r.access &= m.Access()
	r.mrs = append(r.mrs, m)
	r.keys = append(r.keys, Key{m.LKey(), m.RKey()})
}

// end deregisters a region. Its tokens are stale before that.
func (b *Backend) end(r *Region) error {
	b.mu.Lock()
	delete(b.live, r.generation)
	b.making++ // so that the NICs stay open
	b.mu.Unlock()
	err := b.unpin(r)
	b.mu.Lock()
	b.making--
	b.mu.Unlock()
	return err
}

// unpin deregisters with every NIC that has r, even if one fails.
func (b *Backend) unpin(r *Region) error {
	var errs []error
	var stubborn []*verbs.MR
	for i, m := range r.mrs {
		if err := m.Close(); err != nil {
			errs = append(errs, fmt.Errorf("RDMA device %s, %d of %d: %w", b.nics[i].Device.Name(), i+1, len(b.nics), err))
			stubborn = append(stubborn, m)
		}
	}
	if stubborn == nil {
		return nil
	}
	if b.config.Keep != nil {
		b.config.Keep(r.memory)
	}
	b.mu.Lock()
	b.stubborn = append(b.stubborn, stubborn...)
	b.mu.Unlock()
	return errors.Join(errs...)
}
