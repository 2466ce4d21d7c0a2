//go:build !linux

package shm

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw"
)

var errOther = fmt.Errorf("shared memory on %s: %w", runtime.GOOS, hw.ErrNotSupported)

// PageSize is the size of a page.
var PageSize = os.Getpagesize()

// RoundUp rounds n up to whole pages.
func RoundUp(n int) int { return (n + PageSize - 1) &^ (PageSize - 1) }

// Self is not supported here.
func Self() (Process, error) { return Process{}, errOther }

// Check is not supported here.
func (p Process) Check() error { return errOther }

// Create is not supported here.
func Create(name string, n int) (*File, error) { return nil, errOther }

// Open is not supported here.
func Open(r Ref) (*File, error) { return nil, errOther }

// Adopt is not supported here.
func Adopt(fd int, r Ref) (*File, error) { return nil, errOther }

// Close is not supported here.
func (f *File) Close() error { return errOther }

// Map is not supported here.
func (f *File) Map(off, n int, populate bool) (unsafe.Pointer, error) { return nil, errOther }

// MapReadOnly is not supported here.
func (f *File) MapReadOnly(off, n int) (unsafe.Pointer, error) { return nil, errOther }

// MapAt is not supported here.
func (f *File) MapAt(addr unsafe.Pointer, off, n int) error { return errOther }

// Fill is not supported here.
func (f *File) Fill(off, n int) error { return errOther }

// Punch is not supported here.
func (f *File) Punch(off, n int) error { return errOther }

// Unmap is not supported here.
func Unmap(p unsafe.Pointer, n int) error { return errOther }

// Reserve is not supported here.
func Reserve(n int) (unsafe.Pointer, error) { return nil, errOther }

// Retire is not supported here.
func Retire(p unsafe.Pointer, n int) error { return errOther }

// Lock is not supported here.
func Lock(p unsafe.Pointer, n int) error { return errOther }

// Unlock is not supported here.
func Unlock(p unsafe.Pointer, n int) error { return errOther }

// Populate does nothing here.
func Populate(p unsafe.Pointer, n int) {}

// FreeMemory returns no limit here.
func FreeMemory() int { return math.MaxInt }

// MaxMappings returns no limit here.
func MaxMappings() int { return math.MaxInt }

// Watch is not supported here.
type Watch struct{}

// Watched is not supported here.
type Watched struct{}

// Dead is not supported here.
func (p *Watched) Dead() bool { return false }

// Add is not supported here.
func (w *Watch) Add(p Process) (*Watched, error) { return nil, errOther }

// Adopt is not supported here.
func (w *Watch) Adopt(p Process, fd int) (*Watched, error) { return nil, errOther }

// Look does nothing here.
func (w *Watch) Look() {}

// Close does nothing here.
func (w *Watch) Close() error { return nil }

// OwnPIDFD is not supported here.
func OwnPIDFD() (int, error) { return -1, errOther }

// SameUser is not supported here.
func SameUser(conn syscall.Conn) error { return errOther }

// Yield does nothing here.
func Yield() {}

// Nap does nothing here.
func Nap() {}

// Group is "" here.
func Group() string { return "" }

// FutexWait does nothing here.
func FutexWait(word *uint32, val uint32, d int64) {}

// FutexWake does nothing here.
func FutexWake(word *uint32) {}

// HostID is not supported here.
func HostID() (string, error) { return "", errOther }

// Have says that shared memory is not supported here.
func Have() hw.Probe { return hw.Probe{Name: "shared memory files", Err: errOther} }

var started = time.Now()

// Monotonic is the time since this process started, in nanoseconds.
func Monotonic() uint64 { return uint64(time.Since(started)) }
