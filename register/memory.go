package register

import (
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// Memory describes one allocation. Its owner makes it, vouches that the bytes stay mapped until [Cache.Forget] says
// that they are unused, and gives a new generation whenever it uses an ID again. (ID, Generation) is its identity: the
// same bytes under another identity are other memory.
type Memory struct {
	ID         uint64
	Generation uint64 // not 0
	Base       uintptr
	Bytes      int
	Device     hw.Device
	Kind       string // its origin, for people and backends: "arena", "adopted"
}

// String is like "memory 3 generation 1 (arena, host)".
func (m Memory) String() string {
	return fmt.Sprintf("memory %d generation %d (%s, %v)", m.ID, m.Generation, m.Kind, m.Device)
}

func (m Memory) end() uint64 { return uint64(m.Base) + uint64(m.Bytes) }

// check returns what is wrong with m, or with [addr, addr+n) as a part of it.
func (m Memory) check(addr uintptr, n int) error {
	switch {
	case m.Bytes <= 0 || uint64(m.Base) >= maxAddr || uint64(m.Bytes) >= maxAddr:
		return fmt.Errorf("%v has %d bytes at %#x, which is no memory: %w", m, m.Bytes, m.Base, fault.ErrArgument)
	case m.Generation == 0:
		return fmt.Errorf("%v: generations begin at 1: %w", m, fault.ErrArgument)
	case n <= 0:
		return fmt.Errorf("%d bytes at %#x: nothing to register: %w", n, addr, fault.ErrArgument)
	case addr < m.Base || uint64(addr) >= m.end() || uint64(n) > m.end()-uint64(addr):
		return fmt.Errorf("%s is outside of %v, which is %s: %w", span(uint64(addr), uint64(addr)+uint64(n)), m,
			span(uint64(m.Base), m.end()), fault.ErrArgument)
	}
	return nil
}

func span(start, end uint64) string { return fmt.Sprintf("[%#x,+%d)", start, end-start) }

// BackendKind is what a backend reaches. Deregistration runs in this order.
type BackendKind int

// The kinds of backends.
const (
	NET     BackendKind = iota // other hosts
	NVLS                       // multicast within a switch domain
	COLLNET                    // offload to the network's switches
	IPC                        // other processes of this host
	kinds
)

// String is "NET", "NVLS", "COLLNET" or "IPC".
func (k BackendKind) String() string {
	if k < 0 || k >= kinds {
		return fmt.Sprintf("Kind(%d)", int(k))
	}
	return [kinds]string{"NET", "NVLS", "COLLNET", "IPC"}[k]
}

// Backend registers whole allocations with one kind of transport. Register and Deregister may block. They are called
// without any lock that lookups or other allocations need, once per registration, but possibly for several
// registrations at once from several goroutines. They must not call the cache. An error that wraps
// fault.ErrNotSupported says that this memory can never be used that way, and why; it is no failure. When Deregister is
// called, the handle belongs to the backend again, whatever Deregister returns.
type Backend interface {
	Kind() BackendKind
	Register(m Memory) (handle any, err error)
	Deregister(m Memory, handle any) error
}

// Config configures a cache. The zero Config makes a cache without backends and limits.
type Config struct {
	MaxRegions int         // claims at most; 0 = no limit
	MaxBytes   int64       // pinned bytes at most: the page-rounded sizes of all registered allocations; 0 = no limit
	PageSize   int         // a power of two; 0 = the system's
	Backends   []Backend   // at most one of a kind, in any order
	NoNet      error       // why there is no NET backend, for errors; or nil
	OnError    func(error) // gets each failure to deregister, and each misuse, that no caller gets; or nil.
	// OnError is called without locks, on the goroutine that ended the last use, and must not block.
	Locker Locker // locks registered host memory in RAM; or nil
	Pin    Pin    // whether registering fails where Lock does
}

// Locker keeps host memory from being paged out while it is registered. It is called as a Backend is, and before the
// backends. It counts: memory may be locked for a new registration while that before it still ends. With PinAuto a failed
// Lock fails no registration: its error only goes to Explain, and such memory is not unlocked. With PinRequired it does,
// and later registrations try again. fault.ErrNotSupported says that this memory is not the Locker's to lock; that never
// fails a registration.
type Locker interface {
	Lock(m Memory) error
	Unlock(m Memory) error
}

// Validate reports all that is wrong with c, wrapping ErrArgument.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, fault.ErrArgument)...))
	}
	if c.MaxRegions < 0 {
		bad("MaxRegions is %d, must be 0 (no limit) or more", c.MaxRegions)
	}
	if c.MaxBytes < 0 {
		bad("MaxBytes is %d, must be 0 (no limit) or more", c.MaxBytes)
	}
	if c.PageSize < 0 || c.PageSize&(c.PageSize-1) != 0 {
		bad("PageSize is %d, must be a power of two or 0 (the system's)", c.PageSize)
	}
	if !c.Pin.known() || c.Pin == PinRequired && c.Locker == nil {
		bad("Pin is %v, must be auto, or required with a Locker", c.Pin)
	}
	var seen [kinds]bool
	for i, b := range c.Backends {
		switch {
		case b == nil:
			bad("backend %d is nil", i)
		case b.Kind() < 0 || b.Kind() >= kinds:
			bad("backend %d has the unknown kind %d", i, int(b.Kind()))
		case seen[b.Kind()]:
			bad("backend %d is a second one of kind %v", i, b.Kind())
		default:
			seen[b.Kind()] = true
		}
	}
	return errors.Join(errs...)
}
