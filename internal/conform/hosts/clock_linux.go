package hosts

import (
	"syscall"
	"unsafe"
)

// clock is the machine's time since it was started.
func clock() uint64 {
	const monotonic = 1
	var t syscall.Timespec
	if _, _, e := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&t)), 0); e != 0 {
		panic(e) // Linux has it
	}
	return uint64(t.Nano())
}
