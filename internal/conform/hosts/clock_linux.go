package hosts

import (
	"syscall"
	"unsafe"
)

// clock is the time since the machine was started.
func clock() uint64 {
	const monotonic = 1
	var t syscall.Timespec
	if _, _, e := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&t)), 0); e != 0 {
		panic(e) // Linux always has it
	}
	return uint64(t.Nano())
}
