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
// Errors of the driver have type *Error. They wrap hw.ErrNotSupported if this device or driver cannot do the call,
// fault.ErrLimit if memory ran out, and fault.ErrArgument and fault.ErrClosed for these causes. In builds without cgo
// or not for 64-bit Linux, every call returns an error that wraps hw.ErrNotSupported.
package cuda

import (
	"fmt"

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
	DMABuf        bool // its memory can be exported as a dma-buf
	HostAtomics   bool // the link to the host carries atomic operations
	Multicast     bool // multicast objects can be made; this package makes none
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
