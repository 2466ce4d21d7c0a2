// Package cuda binds the part of NVIDIA's CUDA driver API that collectives need: devices, primary contexts, memory and
// its export to other processes, streams, events, graphs, modules and launches. The first call that needs the driver
// loads it, libcuda.so.1. So a program built with this package also starts on a machine without a driver, and says what
// is missing.
//
// All calls are local. The package wraps the driver's handles one to one: it counts, caches and frees nothing by
// itself. Whoever made an object closes it, before the Context that it belongs to. A closed object returns
// fault.ErrClosed; the caller must not close an object while another goroutine uses it. Otherwise, any goroutine and
// any thread may call anything: within one C function, each call makes its context current and restores the previous
// one. Calls return when the driver does; those that queue work on a Stream return before the work is done. As in the
// driver, any later call may return an error of queued work.
//
// Free, HostUnregister, the first Function of a Module and then its Close wait until what is queued in the context is
// done, in all its streams. While they wait the driver also holds up launches, copies, records, allocations and new
// streams of other threads. So nobody may make these calls while a kernel runs that waits for what this process has yet
// to queue.
//
// The streams of a context that have work share its hardware queues. A queue passes work on in the order in which it
// was queued, so a kernel may stand behind another stream's work that has to wait. The driver makes 8 queues, or as
// many as CUDA_DEVICE_MAX_CONNECTIONS says. If that is not set, this package sets it to 32, the most there are, before
// it starts the driver. That has no effect if someone else in the process has started the driver before.
//
// A multicast object is memory of several devices under one address, by which the NVLink switches copy what is stored and
// add up what is loaded (NVLink SHARP, NVLS): see Multicast. On a host that several people use, making one can take all
// GPUs down. So only builds with tag nvls (make build NVLS=1) contain the calls that make one, and these refuse with
// hw.ErrNotSupported unless UBCOLL_NVLS is on and NCCL_NVLS_ENABLE is not 0, in the environment or the files where NCCL looks
// for it (NCCL_CONF_FILE or ~/.nccl.conf, /etc/nccl.conf), or the loaded driver is the emulated one of this project's tests,
// which a symbol of its own tells. HaveMulticast says which.
//
// Errors of the driver have type *Error. They wrap hw.ErrNotSupported if this device or driver cannot do the call,
// fault.ErrLimit if memory ran out, and fault.ErrArgument and fault.ErrClosed for these causes. In builds without cgo
// or not for 64-bit Linux, every call returns an error that wraps hw.ErrNotSupported.
package cuda

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// Addr is an address in the unified address space of the host and all devices. It is no Go pointer, since the host
// cannot dereference most of them.
type Addr uintptr

// isDevice refuses a number that no device can have, in any build.
func isDevice(d hw.Device) error {
	if !d.Valid() {
		return fmt.Errorf("%v is no device: they count from 0: %w", d, fault.ErrArgument)
	}
	return nil
}

// Info describes a device.
type Info struct {
	Device          hw.Device
	Name            string
	UUID            [16]byte
	PCI             string // "0000:1b:00.0"
	Memory          int    // bytes
	Major, Minor    int    // compute capability
	Multiprocessors int
	CopyEngines     int
	SharedMemory    int // the most that a block can have, in bytes

	VMM           bool // virtual memory management: Create, Reserve, Map
	PosixFD       bool // its memory can be exported as a file descriptor
	Fabric        bool // ... and as a fabric handle
	Pools         bool // stream-ordered memory pools
	DirectRDMA    bool // network cards can reach its memory
	DirectRDMAVMM bool // also memory made by Create
	OrderedRDMA   bool // what network cards have written there is visible on the device once the host knows of it
	FlushRDMA     bool // ... or once FlushRDMAWrites has returned
	DMABuf        bool // its memory can be exported as a dma-buf
	HostAtomics   bool // the link to the host carries atomic operations
	Multicast     bool // it can be in multicast objects; whether this build can make some: HaveMulticast
	MPS           bool // NVIDIA's MPS lets processes run on it at the same time; drivers before CUDA 12.3 do not tell
}

// String is "cuda:0 NVIDIA H200, 0000:1b:00.0, compute 9.0, 139 GiB".
func (i Info) String() string {
	return fmt.Sprintf("%v %s, %s, compute %d.%d, %d GiB", i.Device, i.Name, i.PCI, i.Major, i.Minor, i.Memory>>30)
}

// Link describes how one device accesses another's memory.
type Link struct {
	Access      bool // access is possible, once peer access is enabled or set
	Atomics     bool // all atomic operations work across
	Performance int  // the driver's rank of the link among the machine's; 0 is the best
}

// MemoryType is the driver's view of a piece of memory.
type MemoryType int

// The types of memory.
const (
	Unknown  MemoryType = iota // unknown to the driver: pageable host memory, or freed
	HostSide                   // page-locked host memory
	OnDevice                   // memory of one device
	Managed                    // moves between host and devices
)

// String returns "device memory" and the like.
func (k MemoryType) String() string {
	switch k {
	case HostSide:
		return "page-locked host memory"
	case OnDevice:
		return "device memory"
	case Managed:
		return "managed memory"
	}
	return "memory that the CUDA driver does not know"
}

// Memory is what the driver knows about an address. LegacyIPC and PosixFD say how the memory can be exported: by
// IPCHandle, or by Retain and Export. Memory with neither cannot leave its process.
type Memory struct {
	Type       MemoryType
	Device     hw.Device // its owner, or the device through which host memory was page-locked
	Base       Addr      // start of the allocation or mapping around the address
	Size       int
	ID         uint64 // never reused in this process: distinguishes an allocation from a later one at the same address
	LegacyIPC  bool
	PosixFD    bool
	Pool       bool // from a stream-ordered pool
	DirectRDMA bool
}

// Allocation is physical device memory that Create, Import or Retain returned. It has no address until it is mapped.
// Each is one reference, which Release gives back. The memory is freed with the last reference and mapping, in all
// processes.
type Allocation uint64

// Multicast is a multicast object, as one device sees it: a reference to it, and what this device has bound and mapped.
// CreateMulticast and ImportMulticast make one, in builds with tag nvls. Ranks with a device each go through these steps,
// each of them local, and meet where it says so:
//
//  1. one rank: CreateMulticast, Export; the others: ImportMulticast
//  2. AddDevice; all meet
//  3. Bind or BindAddr of memory at equal offsets, Map; all meet
//  4. kernels use the address
//  5. all meet; Unmap, Unbind, Close, and then the memory may be freed
//
// Who fails, or learns in a meeting that another rank did, goes back by step 5. At each offset a device has one piece of
// memory bound at a time. Its methods may be called from any goroutine, and go one after the other.
type Multicast struct {
	c       *Context // nil once closed
	h       uint64
	devices int
	size    int
	grain   int // the least granularity

	mu     sync.Mutex
	added  bool
	bound  []extent
	at     Addr // addresses that are reserved for it; 0 for none
	mapped bool
}

// extent is a range of a multicast object with memory.
type extent struct{ at, n int }

// bindable returns why n bytes, from byte from of some memory on, cannot be bound at offset at, or nil.
func (m *Multicast) bindable(at, from, n int) error {
	if n <= 0 || at < 0 || from < 0 || at%m.grain != 0 || from%m.grain != 0 || n%m.grain != 0 || n > m.size || at > m.size-n {
		return fmt.Errorf("multicast object of %d bytes: bind %d bytes from %#x at %d: multiples of %d fit: %w", m.size, n, from, at,
			m.grain, fault.ErrArgument)
	}
	for _, b := range m.bound {
		if at < b.at+b.n && b.at < at+n {
			return fmt.Errorf("multicast object: bind %d bytes at %d: memory is bound from %d to %d: %w", n, at, b.at, b.at+b.n,
				fault.ErrInUse)
		}
	}
	return nil
}

// teamOf refuses numbers of devices and bytes that no multicast object can have.
func teamOf(devices, n int) error {
	if devices < 1 || devices > 1<<16 || n <= 0 {
		return fmt.Errorf("multicast object of %d bytes for %d devices: %w", n, devices, fault.ErrArgument)
	}
	return nil
}

// ErrBuiltWithout is why HaveMulticast says no in builds without tag nvls.
var ErrBuiltWithout = fmt.Errorf("this build has no multicast (make build NVLS=1, or -tags nvls, makes one that has): %w",
	hw.ErrNotSupported)

// multicastPermitted returns why multicast objects may not be made, or nil: ours is UBCOLL_NVLS, theirs
// NCCL_NVLS_ENABLE, by which operators of a host forbid them, in their file or, if that is "", the environment.
func multicastPermitted(emulated bool, ours, theirs, file string) error {
	if emulated {
		return nil
	}
	if ours != "on" {
		return fmt.Errorf("multicast is off unless UBCOLL_NVLS=on: %w", hw.ErrNotSupported)
	}
	if n, err := strconv.ParseInt(strings.TrimSpace(theirs), 0, 64); theirs != "" && (err != nil || n == 0) {
		where := ""
		if file != "" {
			where = " in " + file
		}
		return fmt.Errorf("NCCL_NVLS_ENABLE=%s%s forbids multicast: %w", theirs, where, hw.ErrNotSupported)
	}
	return nil
}

// IPCHandle names memory, made by Alloc (or the runtime's cudaMalloc), for other processes of this host.
type IPCHandle [64]byte

// Context is a device's primary context. A process has one per device, and shares it with the CUDA runtime and
// everything built on that.
type Context struct {
	h      uintptr
	device hw.Device
	rdma   bool // network cards can access memory that Create makes
	early  bool
}

// handle returns c's handle, or 0 if c, or the object it belonged to, was closed. No driver call accepts 0.
func (c *Context) handle() uintptr {
	if c == nil {
		return 0
	}
	return c.h
}

// Device returns the context's device.
func (c *Context) Device() hw.Device { return c.device }

// Early reports whether Launch.Early is supported, also in captures: from compute capability 9.0 and CUDA 12.3 on.
func (c *Context) Early() bool { return c.early }

// Stream is a queue of work on a device, in order.
type Stream struct {
	c        *Context // nil once closed, also in the types below
	h        uintptr
	device   hw.Device
	borrowed bool
	nodes    bool // Last was called in the current capture
}

// Device returns the stream's device.
func (s *Stream) Device() hw.Device { return s.device }

// Handle returns the driver's CUstream, which is also the runtime's cudaStream_t.
func (s *Stream) Handle() uintptr { return s.h }

// Event marks a place in a stream.
type Event struct {
	c *Context
	h uintptr
}

// Graph is work captured from a stream, to be launched any number of times.
type Graph struct {
	c    *Context
	h    uintptr
	kept uintptr // the graph it was made from, which has the nodes; 0 if Last was not called
}

// Node is a kernel's place in a capture, and in the graph made from it.
type Node struct{ h uintptr }

// Module is code on a device.
type Module struct {
	c *Context
	h uintptr
}

// Function is a kernel. It is valid as long as its Module.
type Function struct {
	module     *Module
	h          uintptr
	name       string
	MaxThreads int // most threads of a block
	Registers  int // per thread
}

// Launch is the shape of a kernel launch, in one dimension.
type Launch struct {
	Grid   int  // blocks
	Block  int  // threads per block
	Shared int  // bytes of dynamic shared memory for each block
	Early  bool // the kernel may start before the previous one has ended: see Function.Launch
}

// size refuses a number of bytes that is not positive, and would become huge on its way to C.
func size(what string, n int) error {
	if n <= 0 {
		return fmt.Errorf("%s of %d bytes: %w", what, n, fault.ErrArgument)
	}
	return nil
}

// both returns a, or nil if b or its owner was closed.
func both(a, b *Context) *Context {
	if b.handle() == 0 {
		return nil
	}
	return a
}
