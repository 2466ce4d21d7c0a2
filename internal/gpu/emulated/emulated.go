// Package emulated lets tests of code above hw/cuda run on machines without a GPU. Its emulated driver is a library
// that replaces libcuda.so.1 and runs the kernels' own source on the host's processors and memory, each thread of a
// grid as a fiber. Processes share its memory as they share a GPU's, also under mpirun.
//
// Calls and work wait where they do with a real driver (580, on an H100):
//
//   - cuMemFree, cuMemHostUnregister, the first cuKernelGetFunction of a library on a device, cuLibraryUnload after
//     that, and the last cuDevicePrimaryCtxRelease wait until the work that the context has by then is done. Besides
//     them, only calls that wait for a stream or an event do.
//   - A context has CUDA_DEVICE_MAX_CONNECTIONS hardware queues (1 to 32, 8 if it is not set; read at cuInit). A
//     stream that gets work and has none takes the queue that the fewest streams with work have, and keeps it until
//     all its work is done. A queue passes on kernels, copies, fills, launches of graphs and records of events with
//     timing, in the order of the calls. Each leaves the queue when it may begin: the stream's work before it has
//     ended, and so has what the stream was told to wait for. What is behind it in the queue waits until then. The
//     nodes of a graph use no queue, and neither do waits for events and records without timing. Of calls in two
//     threads at the same time that each make a stream take a queue, the second does not see that the first has taken
//     one, and both may take the same.
//   - cuStreamCreate waits likewise when the context has 35 streams, and then for every 43 more: it makes room for so
//     many, and keeps that.
//   - Not emulated: that driver also holds up launches, copies, records, allocations and new streams of other threads
//     in a context where such a call waits. The first launch of a kernel that needs more local memory than any before
//     waits there, and so may the first launches of many graphs.
//
// TestQueues, TestWaits and TestReturns show this, on a real device where there is one.
//
// Multicast objects follow the rules of the driver's documentation, which no real device was asked about: binding and
// mapping wait until all devices are added; a device binds memory of its own, made by cuMemCreate, at multiples of the
// granularity, one piece at each offset; only devices of the object get access. Where the documentation says "undefined",
// calls fail here: to unbind other numbers than were bound, to free memory or release the last reference to the object
// while something is bound, to add a device twice. Copies and fills to a multicast address store to the memory of all
// devices; kernels store and reduce by the functions emu_multimem_... (testdata/fiber.h), and fault by plain
// loads and stores there, or where not every device has memory bound. Copies from a multicast address fault.
//
// It can show that the logic of the kernels, and of everything above them, is right in whatever order threads and ranks
// run, because fibers take turns at random; that errors of the driver are handled; that nobody touches freed memory,
// because that faults. It says nothing about the speed of a GPU, about its memory ordering (the host's is stricter), or
// about the PTX, of which it reads only the kernels' names. It checks access to another device's memory for the
// addresses in copies and launches, but not for those that kernels find in tables.
//
// Its devices are named "Emulated GPU (tests only)". The library takes these variables:
//
//	UBCOLL_EMULATE_DEVICES=4            number of devices
//	UBCOLL_EMULATE_MEMORY=4294967296    bytes of each device, for each process separately; read at each allocation
//	UBCOLL_EMULATE_SMS=10               multiprocessors of each device; read when it is described, and at each launch. If
//	                                    it is set, the kernels that run on a device share them: a block takes the room
//	                                    that its .minnctapersm says, and waits until there is so much
//	UBCOLL_EMULATE_ATOMICS=1            whether devices report atomic operations on each other's memory
//	UBCOLL_EMULATE_MPS=0                whether devices report that NVIDIA's MPS lets processes share them
//	UBCOLL_EMULATE_DMABUF=1             whether memory can be exported as dma-bufs. One is a memory file, positioned where
//	                                    its memory begins, for the double of libibverbs (verbstest)
//	UBCOLL_EMULATE_RDMA=2               what devices report about writes of network cards: 2, they are visible in order;
//	                                    1, once the driver has been asked to; 0, neither
//	UBCOLL_EMULATE_MULTICAST=1          whether devices have multicast
//	UBCOLL_EMULATE_MULTICAST_GRANULARITY=2097152  the least one, a power of two from 2 MiB on; twice that is for speed
//	UBCOLL_EMULATE_MULTICAST_WAIT=10000 milliseconds for which binding and mapping wait for the other devices; a real
//	                                    driver waits for ever
//	UBCOLL_EMULATE_COUNT=FILE           each call first writes there how many objects the process has: see Count
//	UBCOLL_EMULATE_SEED=1               order of turns; repeatable as far as the threads and processes are
//	UBCOLL_EMULATE_FAIL=cuMemCreate:3   makes the third such call in the process after the variable was set fail, as out
//	                                    of memory or unknown; "cuMemMap:1=1,cuEventRecord" makes two calls fail, the
//	                                    first with the driver's code 1
//
// It needs 64-bit Linux with cgo, a C++ compiler (CXX, c++, g++ or clang++), and this source tree. It is built at the
// first use, and kept in the user's cache folder.
package emulated

import (
	"fmt"
	"os"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/env"
)

// Variables through which Main and programs that start tests agree.
const (
	choice  = "UBCOLL_EMULATE"  // 0: never emulate. 1: emulate even if there is a GPU
	started = "UBCOLL_EMULATED" // Main sets it in the process that it starts
)

// Main is for a package's TestMain. It exits with the result of run, which is m.Run, say. If there is no GPU, it first
// restarts the test program once, so that it and its children find the emulated driver; set the library's variables
// before, with os.Setenv, say. Without a compiler it says so, and the tests run as on a machine without a GPU. They
// also do if UBCOLL_REQUIRE has cuda, which demands a real one. UBCOLL_EMULATE=1 emulates always, UBCOLL_EMULATE=0
// never.
func Main(run func() int) {
	if os.Getenv(started) == "" && wanted() {
		if err := restart(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(run())
}

func wanted() bool {
	switch os.Getenv(choice) {
	case "0":
		return false
	case "1":
		return true
	}
	return cuda.Have().Err != nil && !env.Requires("cuda")
}

// Active reports whether Main started this process with the emulated driver.
func Active() bool { return os.Getenv(started) != "" }
