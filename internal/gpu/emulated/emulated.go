// Package emulated lets tests of what stands on hw/cuda run where there is no GPU, over an emulated one: a library in
// place of the driver's libcuda.so.1 which runs the kernels' own source on the host's processors and memory, each
// thread of a grid as a fiber. Processes share its memory as they share a GPU's, also under mpirun.
//
// What it is good for: that the logic of kernels, and of everything above them, is right in whatever order threads and
// ranks come to run, since fibers take turns at random; that errors of the driver are dealt with; that freed memory is
// not touched, which faults. What it says nothing about: how fast a GPU is, how its memory is ordered (the host's order
// is stricter), and whether PTX is right, which is not read beyond the kernels' names. That a device was given access to
// memory is checked of what copies and launches name, not of what kernels find in tables.
//
// Its devices are named "Emulated GPU (tests only)". The library takes these variables:
//
//	UBCOLL_EMULATE_DEVICES=4            how many devices there are
//	UBCOLL_EMULATE_MEMORY=4294967296    bytes of each device, for each process by itself; looked at with each allocation
//	UBCOLL_EMULATE_SMS=10               multiprocessors of each device; looked at when it is described, and with each launch.
//	                                    If it is set, the kernels that run on a device at a time share them: a block takes
//	                                    what its .minnctapersm says, and waits while there is no room
//	UBCOLL_EMULATE_ATOMICS=1            whether devices say that atomic operations on each other's memory work
//	UBCOLL_EMULATE_SEED=1               order of turns; it repeats as far as threads and processes do
//	UBCOLL_EMULATE_FAIL=cuMemCreate:3   fails the third such call of the process, from when the variable was set on, out
//	                                    of memory or unknown; "cuMemMap:1=1,cuEventRecord" fails two calls, one with
//	                                    that code of the driver's
//
// It is for 64-bit Linux with cgo and needs a C++ compiler (CXX, c++, g++ or clang++) and this source tree, where it is
// built at the first use and kept in the user's cache folder.
package emulated

import (
	"fmt"
	"os"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/env"
)

// Variables by which Main and whoever starts tests agree.
const (
	choice  = "UBCOLL_EMULATE"  // 0: never emulate. 1: also where there is a GPU
	started = "UBCOLL_EMULATED" // set by Main in what it starts
)

// Main is for a package's TestMain: it exits with what run (m.Run, say) returns. Where there is no GPU it first starts
// the test program again, once, so that it and its children find the emulated driver; the library's variables are set
// before, by os.Setenv say. Without a compiler it says so, and the tests run as they do without a GPU; so they do where
// UBCOLL_REQUIRE has cuda, which wants a real one. UBCOLL_EMULATE=1 emulates whatever there is, UBCOLL_EMULATE=0 never.
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

// Active reports whether this process was started with the emulated driver by Main.
func Active() bool { return os.Getenv(started) != "" }
