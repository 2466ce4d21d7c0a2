package ofi

import (
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/register"
)

// readOnly reports whether m is host memory that this process may not write. Devices that pin memory find out for themselves,
// but soft providers do not, and would crash the process for a peer that writes there. The kernel populates page tables for
// writing, which takes the access for granted that it is asked about (since Linux 5.14; before that, memory counts as writable).
func readOnly(m register.Memory) bool {
	if m.Device != hw.Host {
		return false
	}
	page := uintptr(unix.Getpagesize())
	begin := m.Base &^ (page - 1)
	end := (m.Base + uintptr(m.Bytes) + page - 1) &^ (page - 1)
	fails := func(advice uintptr) bool { // by numbers: Go checks pointers to the pages around memory of its own heap, as tests have
		_, _, e := unix.Syscall(unix.SYS_MADVISE, begin, end-begin, advice)
		return e != 0
	}
	return fails(unix.MADV_POPULATE_WRITE) && !fails(unix.MADV_POPULATE_READ)
}
