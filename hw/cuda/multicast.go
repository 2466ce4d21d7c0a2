//go:build linux && cgo && (amd64 || arm64)

package cuda

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/fdtrace"
)

// multicastState is the result of looking for the driver's calls, once per process.
type multicastState struct {
	emulated bool
	err      error
}

var multicastDriver = sync.OnceValue(func() multicastState {
	s := driver()
	var missing *C.char
	var emulated C.int
	switch loaded := C.ubc_multicast_load(&missing, &emulated); {
	case loaded < 0: // whatever the machine has
		return multicastState{err: ErrBuiltWithout}
	case s.err != nil:
		return multicastState{err: s.err}
	case loaded == 0:
		return multicastState{err: fmt.Errorf("the CUDA driver is too old for multicast: %s has no %s: %w", library,
			C.GoString(missing), hw.ErrNotSupported)}
	}
	return multicastState{emulated: emulated != 0}
})

// HaveMulticast reports whether this build, the driver and the environment permit multicast objects, as package cuda
// says. Whether a device has them, Info.Multicast says. Local.
func HaveMulticast() hw.Probe { return hw.Probe{Name: "NVLS", Err: multicastError()} }

func multicastError() error {
	m := multicastDriver()
	if m.err != nil {
		return m.err
	}
	on, err := env.NVLS.Get()
	if err != nil {
		return err
	}
	theirs, file := ncclSetting("NCCL_NVLS_ENABLE", ncclSystemFile)
	return multicastPermitted(m.emulated, on, theirs, file)
}

// multicasts returns why the context cannot take part in multicast, or nil.
func (c *Context) multicasts() error {
	if err := multicastError(); err != nil {
		return err
	}
	if c.handle() == 0 {
		return fmt.Errorf("multicast: the context was closed: %w", fault.ErrClosed)
	}
	d, err := Describe(c.device)
	if err == nil && !d.Multicast {
		err = fmt.Errorf("%v has no multicast: %w", c.device, hw.ErrNotSupported)
	}
	return err
}

// MulticastGranularity returns the numbers of bytes of which offsets and sizes of multicast objects for that many
// devices are multiples: the least that the driver takes, and the one for speed, which may be hundreds of MiB. n is the
// size that the object is to have, as far as is known. Both results are powers of two. Local; it makes no object, and is
// refused where none can be made. Source: cuMulticastGetGranularity.
func (c *Context) MulticastGranularity(devices, n int) (least, best int, err error) {
	if err := teamOf(devices, n); err != nil {
		return 0, 0, err
	}
	if err := c.multicasts(); err != nil {
		return 0, 0, err
	}
	r := C.ubc_multicast_granularity(C.uintptr_t(c.h), C.uint(devices), C.size_t(n))
	if err := check(r); err != nil {
		return 0, 0, fmt.Errorf("granularity of multicast on %v: %w", c.device, err)
	}
	least, best = int(r.a), int(r.b)
	if least <= 0 || least&(least-1) != 0 || best&(best-1) != 0 || best < least {
		return 0, 0, fmt.Errorf("the granularity of multicast on %v is %d bytes, or %d for speed, which are no powers of two: %w",
			c.device, least, best, hw.ErrNotSupported)
	}
	return least, best, nil
}

// CreateMulticast makes a multicast object of n bytes, a multiple of the least MulticastGranularity, for that many
// devices. One rank makes it, and the others import what it exports. The caller owns it until Close. Local; it does not
// wait. It may be called while a stream is captured, and is no part of the capture. Errors: hw.ErrNotSupported where
// package cuda refuses multicast, or the system's fabric manager does not run; fault.ErrArgument; fault.ErrLimit if the
// driver has room for no more. Source: cuMulticastCreate.
func (c *Context) CreateMulticast(devices, n int) (*Multicast, error) {
	m, err := c.newMulticast(devices, n)
	if err != nil {
		return nil, err
	}
	r := C.ubc_multicast_create(C.uintptr_t(c.h), C.uint(devices), C.size_t(n))
	if err := check(r); err != nil {
		return nil, fmt.Errorf("multicast object of %d bytes for %d devices, on %v: %w", n, devices, c.device, err)
	}
	m.h = uint64(r.a)
	return m, nil
}

// ImportMulticast makes a Multicast from a descriptor that Export made, here or in another process. devices and n are
// those of its CreateMulticast: the descriptor does not tell. The caller keeps the descriptor, and may close it at once;
// it owns the Multicast until Close. Local; it does not wait. Errors as of CreateMulticast. Source:
// cuMemImportFromShareableHandle.
func (c *Context) ImportMulticast(fd, devices, n int) (*Multicast, error) {
	if fd < 0 {
		return nil, fmt.Errorf("import of descriptor %d: %w", fd, fault.ErrArgument)
	}
	m, err := c.newMulticast(devices, n)
	if err != nil {
		return nil, err
	}
	r := C.ubc_import(C.uintptr_t(c.h), C.int(fd))
	if err := check(r); err != nil {
		return nil, fmt.Errorf("import of descriptor %d as a multicast object: %w", fd, err)
	}
	m.h = uint64(r.a)
	return m, nil
}

func (c *Context) newMulticast(devices, n int) (*Multicast, error) {
	least, _, err := c.MulticastGranularity(devices, n)
	if err != nil {
		return nil, err
	}
	if n%least != 0 {
		return nil, fmt.Errorf("multicast object of %d bytes: no multiple of the granularity, %d: %w", n, least, fault.ErrArgument)
	}
	return &Multicast{c: c, devices: devices, size: n, grain: least}, nil
}

// usable returns why m's calls are refused, or nil. The caller holds mu.
func (m *Multicast) usable() error {
	if err := m.open(); err != nil {
		return err
	}
	return multicastError()
}

// open is usable for calls that take something back, which nothing forbids. The caller holds mu.
func (m *Multicast) open() error {
	if m.c.handle() == 0 {
		return fmt.Errorf("multicast object: used after it was closed: %w", fault.ErrClosed)
	}
	return nil
}

// joined is usable for calls that need the device in the team.
func (m *Multicast) joined() error {
	err := m.usable()
	if err == nil && !m.added {
		err = fmt.Errorf("multicast object: %v was not added: %w", m.c.device, fault.ErrArgument)
	}
	return err
}

// failed adds to the error of a call on m what was done.
func (m *Multicast) failed(what string, r C.ubc_result) error {
	if err := check(r); err != nil {
		return fmt.Errorf("%s a multicast object of %d bytes on %v: %w", what, m.size, m.c.device, err)
	}
	return nil
}

// Export makes a file descriptor, closed on exec, that other processes, and other contexts of this one, can import. The
// caller closes it; the object lives at least until then. Local; it does not wait. Source: cuMemExportToShareableHandle.
func (m *Multicast) Export() (fd int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(); err != nil {
		return -1, err
	}
	r := C.ubc_export(C.uintptr_t(m.c.h), C.uint64_t(m.h))
	if err := m.failed("export of", r); err != nil {
		return -1, err
	}
	fd = int(C.int(r.a))
	fdtrace.Open(fd, "export of a multicast object")
	return fd, nil
}

// AddDevice adds the context's device to the object, for as long as that lives. Each of the object's devices is added
// once. Local; it does not wait. fault.ErrArgument the second time. Source: cuMulticastAddDevice.
func (m *Multicast) AddDevice() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(); err != nil {
		return err
	}
	if m.added {
		return fmt.Errorf("multicast object: %v was added before: %w", m.c.device, fault.ErrArgument)
	}
	err := m.failed("add the device to", C.ubc_multicast_add(C.uintptr_t(m.c.h), C.uint64_t(m.h), C.int(m.c.device.Index())))
	m.added = err == nil
	return err
}

// Bind binds n bytes of a, from its byte from on, at offset at of the object: what is stored at the object's address then
// arrives there, too. at, from and n are multiples of the least granularity. a is memory of the context's device that
// Create made, whose n, rounded up to the granularity, leaves room for all of it. The caller keeps the memory, and a
// reference or a mapping of it, until Unbind. Nothing may be bound there yet.
//
// The driver waits until all devices were added, for ever if one is missing, whatever happens. So ranks meet after
// AddDevice, and only if all of them have succeeded does any of them bind. Otherwise the call is local. Errors:
// fault.ErrArgument; fault.ErrInUse for an offset that is taken; fault.ErrLimit, also if the switches have no room for
// more; hw.ErrNotSupported. After an error nothing is bound. Source: cuMulticastBindMem.
func (m *Multicast) Bind(at int, a Allocation, from, n int) error {
	return m.bind(at, from, n, func() C.ubc_result {
		return C.ubc_multicast_bind(C.uintptr_t(m.c.h), C.uint64_t(m.h), C.size_t(at), C.uint64_t(a), C.size_t(from), C.size_t(n))
	})
}

// BindAddr is Bind for the n bytes of memory that are mapped at p, a multiple of the least granularity. They lie in one
// mapping of one Allocation: memory of Alloc, of cudaMalloc or of another library's pool cannot be bound. Source:
// cuMulticastBindAddr.
func (m *Multicast) BindAddr(at int, p Addr, n int) error {
	if int(p) < 0 {
		return fmt.Errorf("bind memory at %#x: %w", uintptr(p), fault.ErrArgument)
	}
	return m.bind(at, int(p), n, func() C.ubc_result {
		return C.ubc_multicast_bind_addr(C.uintptr_t(m.c.h), C.uint64_t(m.h), C.size_t(at), C.uintptr_t(p), C.size_t(n))
	})
}

func (m *Multicast) bind(at, from, n int, call func() C.ubc_result) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.joined(); err != nil {
		return err
	}
	if err := m.bindable(at, from, n); err != nil {
		return err
	}
	err := m.failed("bind memory to", call())
	if err == nil {
		m.bound = append(m.bound, extent{at, n})
	}
	return err
}

// Unbind undoes a Bind or BindAddr with exactly this at and n. Nobody may use the object's address any more: ranks meet
// before. It comes before the memory is freed, and before Close. Local; it does not wait for queued work.
// fault.ErrArgument for what was not bound. After another error the memory counts as bound, and the caller may try
// again. Source: cuMulticastUnbind.
func (m *Multicast) Unbind(at, n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.open(); err != nil {
		return err
	}
	i := slices.Index(m.bound, extent{at, n})
	if i < 0 {
		return fmt.Errorf("multicast object: nothing was bound at %d with %d bytes: %w", at, n, fault.ErrArgument)
	}
	err := m.failed("unbind memory from", C.ubc_multicast_unbind(C.uintptr_t(m.c.h), C.uint64_t(m.h), C.int(m.c.device.Index()),
		C.size_t(at), C.size_t(n)))
	if err == nil {
		m.bound = slices.Delete(m.bound, i, i+1)
	}
	return err
}

// Map returns an address of the whole object, for the context's device, until Unmap. Kernels use it by the instructions
// multimem.st, multimem.red and multimem.ld_reduce alone, at natural alignment and where all devices have memory bound:
// ranks meet between Bind and first use. It waits as Bind does. Otherwise local. fault.ErrInUse if it is mapped already.
// After an error nothing is mapped, or the error says what is left, which Unmap then undoes. Source: cuMemAddressReserve,
// cuMemMap, cuMemSetAccess.
func (m *Multicast) Map() (Addr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.joined(); err != nil {
		return 0, err
	}
	if m.at != 0 {
		return 0, fmt.Errorf("multicast object: mapped already: %w", fault.ErrInUse)
	}
	r := C.ubc_reserve(C.uintptr_t(m.c.h), C.size_t(m.size), C.size_t(m.grain))
	if err := m.failed("addresses for", r); err != nil {
		return 0, err
	}
	m.at = Addr(r.a)
	err := m.failed("map", C.ubc_map(C.uintptr_t(m.c.h), C.uintptr_t(m.at), C.size_t(m.size), C.uint64_t(m.h)))
	if err == nil {
		m.mapped = true
		err = m.failed("access to", C.ubc_set_access(C.uintptr_t(m.c.h), C.uintptr_t(m.at), C.size_t(m.size), C.int(m.c.device.Index())))
	}
	if err != nil {
		return 0, errors.Join(err, m.unmap())
	}
	return m.at, nil
}

// Unmap undoes Map. Local; it does not wait for queued work, so the caller does. fault.ErrArgument if it is not mapped.
// After another error the caller may try again.
func (m *Multicast) Unmap() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.open(); err != nil {
		return err
	}
	if m.at == 0 {
		return fmt.Errorf("multicast object: not mapped: %w", fault.ErrArgument)
	}
	return m.unmap()
}

// unmap takes the steps of Map back that have succeeded.
func (m *Multicast) unmap() error {
	if m.mapped {
		if err := m.failed("unmap", C.ubc_unmap(C.uintptr_t(m.c.h), C.uintptr_t(m.at), C.size_t(m.size))); err != nil {
			return err
		}
		m.mapped = false
	}
	err := m.failed("give back addresses of", C.ubc_unreserve(C.uintptr_t(m.c.h), C.uintptr_t(m.at), C.size_t(m.size)))
	if err == nil {
		m.at = 0
	}
	return err
}

// Close gives the reference back; the object ends with the last one, in all processes. Local. fault.ErrInUse while
// memory is bound or the object is mapped: Unmap and Unbind come first. After any error it is still open. Closing again
// is harmless. Source: cuMemRelease.
func (m *Multicast) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.c == nil:
		return nil
	case len(m.bound) > 0:
		return fmt.Errorf("multicast object: memory is bound at %d: %w", m.bound[0].at, fault.ErrInUse)
	case m.at != 0:
		return fmt.Errorf("multicast object: mapped at %#x: %w", uintptr(m.at), fault.ErrInUse)
	}
	err := m.failed("release", C.ubc_release_handle(C.uintptr_t(m.c.h), C.uint64_t(m.h)))
	if err == nil {
		m.c = nil
	}
	return err
}
