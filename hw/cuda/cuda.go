// Package cuda binds the part of NVIDIA's CUDA driver API that collectives need: devices, primary contexts, memory and
// its export to other processes, streams, events, graphs, modules and launches. The driver, libcuda.so.1, is loaded when
// the first call needs it, so that a program built here starts, and says what is missing, on a machine without one.
//
// Everything here is local. Handles of the driver are wrapped one to one: nothing is counted, cached or freed behind
// the caller's back, and whoever made a thing closes it, before the Context that it belongs to. A closed thing answers
// fault.ErrClosed; closing it while another goroutine calls it is the caller's error. Otherwise everything may be
// called from several goroutines and from any thread: each call makes its context current, and puts back what was, within
// one C function. Calls return when the driver does, those that queue on a Stream before the work is done; errors of
// queued work may come from any later call, as the driver has it.
//
// The driver's errors are of type *Error. They wrap hw.ErrNotSupported where they say that this device or driver cannot
// do it, fault.ErrLimit where memory ran out, fault.ErrArgument and fault.ErrClosed where they mean that. Where the
// package is built without cgo or not for 64-bit Linux, every call returns an error that wraps hw.ErrNotSupported.
package cuda

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// Addr is an address in the unified address space of the host and all devices. Most are not the host's to follow, so
// that they are no Go pointers.
type Addr uintptr

// isDevice refuses a number that no device can have, whatever this build supports.
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
	SharedMemory    int // the most that a block can ask for, bytes

	VMM           bool // virtual memory management: Create, Reserve, Map
	PosixFD       bool // its memory can be exported as a file descriptor
	Fabric        bool // ... and as a fabric handle
	Pools         bool // stream-ordered memory pools
	DirectRDMA    bool // network cards can reach its memory
	DirectRDMAVMM bool // ... also that which Create made
	DMABuf        bool // its memory can be had as a dma-buf
	HostAtomics   bool // the link to the host carries atomic operations
	Multicast     bool // multicast objects could be made; this package makes none
}

// String is "cuda:0 NVIDIA H200, 0000:1b:00.0, compute 9.0, 139 GiB".
func (i Info) String() string {
	return fmt.Sprintf("%v %s, %s, compute %d.%d, %d GiB", i.Device, i.Name, i.PCI, i.Major, i.Minor, i.Memory>>30)
}

// Link is how one device reaches another's memory.
type Link struct {
	Access      bool // it can, once peer access is enabled or set
	Atomics     bool // all atomic operations work across
	Performance int  // the driver's rank of the link among this machine's; 0 is the best
}

// MemoryType is what memory is to the driver.
type MemoryType int

// The types of memory.
const (
	Unknown  MemoryType = iota // not the driver's: pageable host memory, or freed
	HostSide                   // page-locked host memory
	OnDevice                   // of one device
	Managed                    // moves between host and devices
)

// String is "device memory" and the like.
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

// Memory is what the driver knows about an address. LegacyIPC and PosixFD say how it can be exported: by IPCHandle, or
// by Retain and Export. Memory with neither stays in its process.
type Memory struct {
	Type       MemoryType
	Device     hw.Device // whose, or through which host memory was page-locked
	Base       Addr      // the allocation, or what is mapped, around the address
	Size       int
	ID         uint64 // never used again in this process: tells an allocation from a later one at its address
	LegacyIPC  bool
	PosixFD    bool
	Pool       bool // from a stream-ordered pool
	DirectRDMA bool
}

// Allocation is physical device memory, which Create, Import or Retain made; it has no address until it is mapped. It is
// one reference, which Release gives back. The memory goes with the last reference and mapping, in all processes.
type Allocation uint64

// IPCHandle names memory that Alloc (or the runtime's cudaMalloc) made, for other processes of this host.
type IPCHandle [64]byte

// Context is a device's primary context, which a process has one of and shares with the CUDA runtime and whatever is
// built on it.
type Context struct {
	h      uintptr
	device hw.Device
	rdma   bool // Create makes memory that network cards can reach
	early  bool
}

// handle is 0, which no driver call gets past, if c or what belonged to it was closed.
func (c *Context) handle() uintptr {
	if c == nil {
		return 0
	}
	return c.h
}

// Device is the context's device.
func (c *Context) Device() hw.Device { return c.device }

// Early reports whether kernels can be launched with Launch.Early, also in captures: from compute capability 9.0 and
// CUDA 12.3 on.
func (c *Context) Early() bool { return c.early }

// Stream is a queue of work on a device, in order.
type Stream struct {
	c        *Context // nil once closed, as below
	h        uintptr
	device   hw.Device
	borrowed bool
	nodes    bool // Last was asked in the capture that is going on
}

// Device is the stream's device.
func (s *Stream) Device() hw.Device { return s.device }

// Handle is the driver's CUstream, which is the runtime's cudaStream_t as well.
func (s *Stream) Handle() uintptr { return s.h }

// Event marks a place in a stream.
type Event struct {
	c *Context
	h uintptr
}

// Graph is work that was captured from a stream, ready to be launched again and again.
type Graph struct {
	c    *Context
	h    uintptr
	kept uintptr // what it was made of, which has the nodes; 0 if nobody asked for one
}

// Node is a kernel's place in a capture, and in the graph that is made of it.
type Node struct{ h uintptr }

// Module is code on a device.
type Module struct {
	c *Context
	h uintptr
}

// Function is a kernel. It goes with its Module.
type Function struct {
	module     *Module
	h          uintptr
	name       string
	MaxThreads int // the most threads that a block of it can have
	Registers  int // that each thread takes
}

// Launch says how many threads run a kernel, in one dimension.
type Launch struct {
	Grid   int  // blocks
	Block  int  // threads of each
	Shared int  // bytes of dynamic shared memory for each block
	Early  bool // may start before the kernel before it has ended: see Function.Launch
}

// size refuses what would become a huge number of bytes on its way to C.
func size(what string, n int) error {
	if n <= 0 {
		return fmt.Errorf("%s of %d bytes: %w", what, n, fault.ErrArgument)
	}
	return nil
}

// both is a, or nil if something of b's was closed.
func both(a, b *Context) *Context {
	if b.handle() == 0 {
		return nil
	}
	return a
}
