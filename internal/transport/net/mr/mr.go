// Package mr is the backend NET of the registration cache: it registers memory with this host's RDMA devices, its NICs, so
// that peers on other hosts can reach it, and says by which keys.
//
// The cache has whole allocations registered: a [Region], with one memory region (MR) on each NIC over all of it and for all
// that a NIC can do there. Its keys are for operations that are under way; they are given to nobody who keeps them. What a
// handle or a window exports has a Region of its own over exactly those bytes ([Backend.Exact]), so that closing it takes
// that access away and no other.
//
// NICs give keys again: in time a registration at the same address gets the rkey of one that has ended, and what a peer puts
// there by the old key is no error to the NIC. So each Region has a generation, which none of its backend has after it. A
// [Token] carries it beside the keys, and [Backend.Valid] knows a stale token, whatever the NIC makes of its keys.
//
// Everything here is local, not collective, and safe for concurrent use. No lock is held while a NIC registers or
// deregisters, which takes as long as pinning the memory does.
package mr

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/register"
)

// Config is which NICs a backend has, and how they register.
type Config struct {
	Select verbs.Selection // of the devices whose ports are active
	// Relaxed lets NICs write in another order than the data came ([verbs.RelaxedOrdering]): who is told of data by a
	// completion does not notice, who polls memory does.
	Relaxed bool
	// DMABuf makes a descriptor of a device's memory, all of m, which begins at an offset of it; the backend closes it.
	// nil: memory of devices is fault.ErrNotSupported.
	DMABuf func(m register.Memory) (fd int, offset uint64, err error)
	// Keep is told of memory that a NIC has not let go of, before Deregister or Close returns that: whoever uses it for
	// something else may find it written by a peer. Or nil.
	Keep func(m register.Memory)
	Log  *slog.Logger // told once that memory could not be registered; or nil
}

// NIC is an RDMA device that a backend has open. It is the backend's.
type NIC struct {
	Device *verbs.Device
	PD     *verbs.PD // of all that this backend registers there
	Ports  []int     // those that are selected and active

	access verbs.Access // for what whole allocations are registered
}

// Backend implements [register.Backend].
type Backend struct {
	config Config
	nics   []NIC
	told   sync.Once

	mu       sync.RWMutex // for what follows
	closed   bool
	making   int                // registrations under way
	last     uint64             // generation
	live     map[uint64]*Region // by generation
	stubborn []*verbs.MR        // that a NIC did not let go of
}

// Open opens the NICs, in the order of their names. Blocking. fault.ErrNotSupported says why there is none: there is no RDMA
// here, or no port is both selected and active. A device that is selected and cannot be opened is an error.
func Open(config Config) (*Backend, error) {
	names, err := verbs.Devices()
	if err != nil {
		return nil, err
	}
	b := &Backend{config: config, live: map[uint64]*Region{}}
	var idle []string
	for _, name := range names {
		if !selected(config.Select, name) {
			idle = append(idle, name+" is not selected")
			continue
		}
		why, err := b.open(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("RDMA device %s, which UBCOLL_IB_HCA=^=%s would leave out: %w", name, name, err),
				b.Close())
		}
		idle = append(idle, why...)
	}
	if len(b.nics) == 0 {
		why := strings.Join(idle, ", ")
		if len(names) == 0 {
			why = "there is none"
		}
		return nil, fmt.Errorf("no RDMA device with an active port (%s): %w", why, hw.ErrNotSupported)
	}
	return b, nil
}

// selected reports whether some port of a device may be.
func selected(s verbs.Selection, name string) bool {
	for port := 1; port <= 255; port++ {
		if s.Match(name, port) {
			return true
		}
	}
	return false
}

// open adds a device if some port of it is of use, and says which are not.
func (b *Backend) open(name string) (idle []string, err error) {
	d, err := verbs.Open(name)
	if err != nil {
		return nil, err
	}
	n := NIC{Device: d, access: verbs.LocalWrite | verbs.Remote}
	limits := d.Limits()
	for number := 1; number <= limits.Ports; number++ {
		p, err := d.Port(number)
		switch {
		case err != nil:
			return nil, errors.Join(err, d.Close())
		case !b.config.Select.Match(name, number):
			idle = append(idle, fmt.Sprintf("%s:%d is not selected", name, number))
		case p.State != verbs.PortActive:
			idle = append(idle, fmt.Sprintf("%s:%d is %v", name, number, p.State))
		default:
			n.Ports = append(n.Ports, number)
		}
	}
	if n.Ports == nil {
		return idle, d.Close()
	}
	if n.PD, err = d.AllocPD(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if limits.Atomics == verbs.AtomicsNone {
		n.access &^= verbs.RemoteAtomic
	}
	if b.config.Relaxed {
		n.access |= verbs.RelaxedOrdering
	}
	b.nics = append(b.nics, n)
	return idle, nil
}

// NICs are those that the backend has; keys and tokens have theirs in this order. The caller must not change it.
func (b *Backend) NICs() []NIC { return b.nics }

// Kind implements [register.Backend].
func (b *Backend) Kind() register.BackendKind { return register.NET }

// Register implements [register.Backend]: the handle is a *Region over all of m. Memory that this process may only read is
// registered for that. Either all NICs have registered it or none has: the error names the first one that did not.
// fault.ErrLimit says which limit it was, and how to raise it.
func (b *Backend) Register(m register.Memory) (any, error) {
	r, err := b.region(m, uint64(m.Base), m.Bytes, nil)
	if err != nil {
		if log := b.config.Log; log != nil && !errors.Is(err, fault.ErrNotSupported) {
			b.told.Do(func() {
				log.Warn("ubcoll: the RDMA devices cannot have registered memory, which goes other ways (of later memory only "+
					"Explain tells)", "memory", m, "error", err)
			})
		}
		return nil, err
	}
	return r, nil
}

// Deregister implements [register.Backend]. Its keys are stale before the first NIC is asked. What a NIC does not let go of
// is an error; Close asks it again.
func (b *Backend) Deregister(_ register.Memory, handle any) error { return b.end(handle.(*Region)) }

// Exact registers exactly the n bytes at address, a part of m, for what peers, and work requests of this process, may do
// there. Blocking; errors as of Register, and fault.ErrArgument for bytes that are not in m. The caller closes it before m
// is freed.
func (b *Backend) Exact(m register.Memory, address uintptr, n int, access verbs.Access) (*Export, error) {
	if err := access.Check(); err != nil {
		return nil, err
	}
	if n <= 0 || address < m.Base || n > m.Bytes || address-m.Base > uintptr(m.Bytes-n) {
		return nil, fmt.Errorf("export [%#x,+%d): it is not in %v, [%#x,+%d): %w", address, n, m, m.Base, m.Bytes,
			fault.ErrArgument)
	}
	r, err := b.region(m, uint64(address), n, &access)
	if err != nil {
		return nil, err
	}
	return &Export{Region: r}, nil
}

// Valid reports whether what a peer does by t reaches the memory that t was made for: nil, or fault.ErrStale when that
// registration has ended, also where a later one has its keys. Who is about to use a token, or to say that something done
// by it has succeeded, has its maker ask this first: that the NIC has completed it is no proof. It does not block.
func (b *Backend) Valid(t Token) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	r := b.live[t.Generation]
	if r != nil && r.address == t.Address && r.bytes == t.Bytes && slices.EqualFunc(r.keys, t.Keys, isKey) {
		return nil
	}
	err := fmt.Errorf("%v has ended: %w", t, fault.ErrStale)
	for _, other := range b.live {
		for i, k := range other.keys {
			if i < len(t.Keys) && isKey(k, t.Keys[i]) {
				return fmt.Errorf("%w; its %v on %s is that of generation %d by now, %v", err, k.Remote, b.nics[i].Device.Name(),
					other.generation, other.memory)
			}
		}
	}
	return err
}

func isKey(k Key, r verbs.RKey) bool { return k.Remote == r }

// Close closes the NICs: fault.ErrInUse, and nothing is done, while something is registered. It is an error if a NIC still
// does not let go of what it did not deregister; the system takes that back with the process. A nil backend closes as well.
func (b *Backend) Close() error {
	if b == nil {
		return nil
	}
	stubborn, err := b.shut()
	if err != nil {
		return fmt.Errorf("registrations with RDMA devices: %w", err)
	}
	var errs []error
	for _, m := range stubborn {
		errs = append(errs, m.Close())
	}
	for _, n := range b.nics {
		errs = append(errs, n.PD.Close(), n.Device.Close())
	}
	return errors.Join(errs...)
}

// shut ends registering, unless something is registered.
func (b *Backend) shut() ([]*verbs.MR, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fault.ErrClosed
	}
	if n := len(b.live) + b.making; n > 0 {
		var some string
		for _, g := range slices.Sorted(maps.Keys(b.live))[:min(len(b.live), 4)] {
			some += fmt.Sprintf("; %v", b.live[g].memory)
		}
		return nil, fmt.Errorf("%d are open%s: %w", n, some, fault.ErrInUse)
	}
	b.closed = true
	return b.stubborn, nil
}
