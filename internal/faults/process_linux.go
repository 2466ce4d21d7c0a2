package faults

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// Check returns why this process cannot do what all want of it, or nil.
func Check(all []Fault, rank int) error {
	for _, f := range all {
		if f.Rank == rank && (f.Action == Kill || f.Action == Stop) && os.Getpid() == 1 {
			return fmt.Errorf("entry %q: this process is number 1 of its container, which its own signals do not end or stop (docker "+
				"run --init starts it as another): %w", f.String(), fault.ErrNotSupported)
		}
	}
	return nil
}

// kill ends this process as kill -9 does. Other threads may run for some microseconds.
func kill() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// stop stops this process as kill -STOP does. Something else continues it or, unless d is 0, a timer of the kernel does after d:
// a process that is stopped can do nothing itself. The timer repeats until the process has gone on, since the process might be
// stopped only after the timer has expired.
func stop(d time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if d > 0 {
		t, err := continueAfter(d)
		if err != nil {
			return err
		}
		defer syscall.Syscall(syscall.SYS_TIMER_DELETE, uintptr(t), 0, 0)
	}
	// A signal to this very thread has stopped the process before the call returns.
	return syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}

// continueAfter makes a timer that sends SIGCONT to this process after d, and again and again.
func continueAfter(d time.Duration) (timer int32, err error) {
	const monotonic, repeat = 1, 50 * time.Millisecond
	event := struct { // struct sigevent
		value          uint64
		signal, notify int32
		_              [48]byte
	}{signal: int32(syscall.SIGCONT)}
	if _, _, e := syscall.Syscall(syscall.SYS_TIMER_CREATE, monotonic, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&timer))); e != 0 {
		return 0, fmt.Errorf("timer_create: %w", e)
	}
	when := [2]syscall.Timespec{syscall.NsecToTimespec(int64(repeat)), syscall.NsecToTimespec(int64(d))}
	if _, _, e := syscall.Syscall6(syscall.SYS_TIMER_SETTIME, uintptr(timer), 0, uintptr(unsafe.Pointer(&when)), 0, 0, 0); e != 0 {
		_, _, _ = syscall.Syscall(syscall.SYS_TIMER_DELETE, uintptr(timer), 0, 0)
		return 0, fmt.Errorf("timer_settime: %w", e)
	}
	return timer, nil
}
