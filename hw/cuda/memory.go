//go:build linux && cgo && (amd64 || arm64)

package cuda

/*
#include "driver.h"
#cgo noescape ubc_inspect
#cgo nocallback ubc_inspect
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/fdtrace"
)

// Inspect returns what the driver knows about the memory at a. If it knows nothing, the result has type Unknown; that
// is no error.
func Inspect(a Addr) (Memory, error) {
	if s := driver(); s.err != nil {
		return Memory{}, s.err
	}
	var m C.ubc_memory
	if err := check(C.ubc_inspect(C.uintptr_t(a), &m)); err != nil {
		return Memory{}, fmt.Errorf("memory at %#x: %w", uintptr(a), err)
	}
	// Several mappings can share a reserved range, and several allocations one of the driver's mappings, so take the
	// intersection.
	start, end := m.start, m.start+m.size
	if m.map_size != 0 {
		start, end = max(start, m.map_start), min(end, m.map_start+m.map_size)
	}
	x := Memory{Base: Addr(start), Size: int(end - start), ID: uint64(m.id), LegacyIPC: m.legacy_ipc != 0,
		PosixFD: m.handle_types&C.UBC_HANDLE_POSIX_FD != 0, Pool: m.pool != 0, DirectRDMA: m.rdma != 0}
	switch {
	case m._type == 0:
		return Memory{}, nil
	case m.managed != 0:
		x.Type = Managed
	case m._type == C.UBC_MEMORY_HOST:
		x.Type = HostSide
	case m._type == C.UBC_MEMORY_DEVICE:
		x.Type = OnDevice
	}
	if i := int32(m.device); i >= 0 { // managed memory may have none
		x.Device = hw.CUDA(int(i))
	}
	return x, nil
}

// Available returns how many bytes of the device's memory are free, and how many it has.
func (c *Context) Available() (free, total int, err error) {
	r := C.ubc_mem_info(C.uintptr_t(c.h))
	return int(r.a), int(r.b), check(r)
}

// Alloc allocates n bytes of device memory, which the caller owns until Free.
func (c *Context) Alloc(n int) (Addr, error) {
	if err := size("device memory", n); err != nil {
		return 0, err
	}
	r := C.ubc_alloc(C.uintptr_t(c.h), C.size_t(n))
	if err := check(r); err != nil {
		return 0, fmt.Errorf("%d bytes on %v: %w", n, c.device, err)
	}
	return Addr(r.a), nil
}

// Free frees what Alloc allocated. It waits until the work that is queued in the context is done.
func (c *Context) Free(a Addr) error { return c.at(a, C.ubc_free(C.uintptr_t(c.h), C.uintptr_t(a))) }

// at adds the address to the error of a failed call.
func (c *Context) at(a Addr, r C.ubc_result) error {
	if err := check(r); err != nil {
		return fmt.Errorf("memory at %#x on %v: %w", uintptr(a), c.device, err)
	}
	return nil
}

// HostRegister page-locks n bytes of host memory for all contexts, and returns their address on the device. The memory
// must not be on the Go heap, and must stay mapped until HostUnregister.
func (c *Context) HostRegister(p unsafe.Pointer, n int) (Addr, error) {
	if err := size("host memory", n); err != nil {
		return 0, err
	}
	r := C.ubc_host_register(C.uintptr_t(c.h), p, C.size_t(n))
	if err := check(r); err != nil {
		return 0, fmt.Errorf("%d bytes of host memory: %w", n, err)
	}
	return Addr(r.a), nil
}

// HostUnregister undoes HostRegister; p is the same address. It waits until the work that is queued in the context is
// done.
func (c *Context) HostUnregister(p unsafe.Pointer) error {
	return check(C.ubc_host_unregister(C.uintptr_t(c.h), p))
}

// IPCHandle exports the whole allocation around a, which Alloc or the runtime's cudaMalloc made. It refuses memory with
// LegacyIPC false.
func (c *Context) IPCHandle(a Addr) (IPCHandle, error) {
	var h C.ubc_ipc
	if err := c.at(a, C.ubc_ipc_get(C.uintptr_t(c.h), C.uintptr_t(a), &h)); err != nil {
		return IPCHandle{}, err
	}
	return *(*IPCHandle)(unsafe.Pointer(&h)), nil
}

// OpenIPC maps another process's allocation until CloseIPC, returns its base, and enables peer access to its device. A
// process cannot open its own handle. The owner must not free the memory before every CloseIPC.
func (c *Context) OpenIPC(h IPCHandle) (Addr, error) {
	r := C.ubc_ipc_open(C.uintptr_t(c.h), (*C.ubc_ipc)(unsafe.Pointer(&h)))
	if err := check(r); err != nil {
		return 0, fmt.Errorf("a peer's memory for %v: %w", c.device, err)
	}
	return Addr(r.a), nil
}

// CloseIPC undoes OpenIPC.
func (c *Context) CloseIPC(a Addr) error {
	return c.at(a, C.ubc_ipc_close(C.uintptr_t(c.h), C.uintptr_t(a)))
}

// Granularity returns the number of bytes by which sizes for Create and Reserve should be divisible, for speed.
func (c *Context) Granularity() (int, error) {
	r := C.ubc_granularity(C.uintptr_t(c.h), C.int(c.device.Index()))
	return int(r.a), check(r)
}

// Create makes n bytes of device memory that can be exported and, if the device supports it, accessed by network cards.
// The caller releases it.
func (c *Context) Create(n int) (Allocation, error) {
	if err := size("device memory", n); err != nil {
		return 0, err
	}
	var rdma C.int
	if c.rdma {
		rdma = 1
	}
	r := C.ubc_create(C.uintptr_t(c.h), C.int(c.device.Index()), rdma, C.size_t(n))
	if err := check(r); err != nil {
		return 0, fmt.Errorf("%d bytes on %v: %w", n, c.device, err)
	}
	return Allocation(r.a), nil
}

// Release gives the reference back.
func (c *Context) Release(m Allocation) error {
	return check(C.ubc_release_handle(C.uintptr_t(c.h), C.uint64_t(m)))
}

// Retain takes another reference to the memory mapped at a, whoever mapped it. It refuses memory that was not made by
// Create or the driver's call for it.
func (c *Context) Retain(a Addr) (Allocation, error) {
	r := C.ubc_retain_handle(C.uintptr_t(c.h), C.uintptr_t(a))
	return Allocation(r.a), c.at(a, r)
}

// Export makes a file descriptor, closed on exec, that other processes can Import. The caller closes it; the memory
// lives at least until then.
func (c *Context) Export(m Allocation) (fd int, err error) {
	r := C.ubc_export(C.uintptr_t(c.h), C.uint64_t(m))
	if err := check(r); err != nil {
		return -1, err
	}
	fd = int(C.int(r.a))
	fdtrace.Open(fd, "export of device memory")
	return fd, nil
}

// DMABuf makes a descriptor, closed on exec, of the n bytes at a, of one allocation, by which a network card's driver can map
// them. Both must be multiples of the system's page size. The caller closes it, and does so before the memory is freed.
func (c *Context) DMABuf(a Addr, n int) (fd int, err error) {
	if err := size("device memory", n); err != nil {
		return -1, err
	}
	r := C.ubc_dma_buf(C.uintptr_t(c.h), C.uintptr_t(a), C.size_t(n))
	if err := c.at(a, r); err != nil {
		return -1, err
	}
	fd = int(C.int(r.a))
	fdtrace.Open(fd, "dma-buf of device memory")
	return fd, nil
}

// FlushRDMAWrites makes visible on c's device what network cards have written to its memory, as far as the host knows of it.
// Devices with OrderedRDMA do not need it; of others, those with FlushRDMA have it.
func (c *Context) FlushRDMAWrites() error { return check(C.ubc_rdma_flush(C.uintptr_t(c.h))) }

// Import makes an Allocation from a descriptor that Export made, here or in another process. The caller keeps the
// descriptor, and may close it at once. The caller releases the Allocation.
func (c *Context) Import(fd int) (Allocation, error) {
	if fd < 0 {
		return 0, fmt.Errorf("import of descriptor %d: %w", fd, fault.ErrArgument)
	}
	r := C.ubc_import(C.uintptr_t(c.h), C.int(fd))
	if err := check(r); err != nil {
		return 0, fmt.Errorf("import of descriptor %d: %w", fd, err)
	}
	return Allocation(r.a), nil
}

// Reserve reserves n bytes of addresses, without memory, until Unreserve.
func (c *Context) Reserve(n int) (Addr, error) {
	return c.ReserveAligned(n, 0)
}

// ReserveAligned is Reserve for an address that is a multiple of align, a power of two; 0 is the driver's choice.
func (c *Context) ReserveAligned(n, align int) (Addr, error) {
	if err := size("addresses", n); err != nil {
		return 0, err
	}
	if align < 0 || align&(align-1) != 0 {
		return 0, fmt.Errorf("addresses at multiples of %d, which is no power of two: %w", align, fault.ErrArgument)
	}
	r := C.ubc_reserve(C.uintptr_t(c.h), C.size_t(n), C.size_t(align))
	if err := check(r); err != nil {
		return 0, fmt.Errorf("addresses for %d bytes: %w", n, err)
	}
	return Addr(r.a), nil
}

// Unreserve returns all n bytes of addresses that Reserve gave at a. Nothing may be mapped there.
func (c *Context) Unreserve(a Addr, n int) error {
	return c.at(a, C.ubc_unreserve(C.uintptr_t(c.h), C.uintptr_t(a), C.size_t(n)))
}

// Map maps m, of n bytes, at address a from Reserve. No device can access it before Access.
func (c *Context) Map(a Addr, n int, m Allocation) error {
	return c.at(a, C.ubc_map(C.uintptr_t(c.h), C.uintptr_t(a), C.size_t(n), C.uint64_t(m)))
}

// Unmap undoes Map. It does not wait for queued work.
func (c *Context) Unmap(a Addr, n int) error {
	return c.at(a, C.ubc_unmap(C.uintptr_t(c.h), C.uintptr_t(a), C.size_t(n)))
}

// Access lets d read and write the n bytes mapped at a. d is the context's device, or one with access by P2P.
func (c *Context) Access(a Addr, n int, d hw.Device) error {
	i, err := ordinal(d)
	if err != nil {
		return err
	}
	if err := check(C.ubc_set_access(C.uintptr_t(c.h), C.uintptr_t(a), C.size_t(n), i)); err != nil {
		return fmt.Errorf("access of %v to memory at %#x: %w", d, uintptr(a), err)
	}
	return nil
}
