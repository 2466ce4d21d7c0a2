//go:build linux && cgo && (amd64 || arm64)

package verbs

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O2 -Wall
#cgo LDFLAGS: -ldl
#cgo noescape ubv_post
#cgo nocallback ubv_post
#cgo noescape ubv_post_receive
#cgo nocallback ubv_post_receive
#cgo noescape ubv_poll
#cgo nocallback ubv_poll
#include <stdlib.h>
#include "lib.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// library names the library to load; tests set another before the first call.
var library = "libibverbs.so.1"

// load loads the library, once per process. Where the kernel does not make fork safe (before 5.12), load does, as UCX
// and NCCL do: else a child of fork would take registered pages away from the parent. If that fails, load goes on: Go
// itself starts programs without copying memory.
var load = sync.OnceValue(func() error {
	path := C.CString(library)
	defer C.free(unsafe.Pointer(path))
	var why [512]C.char
	var missing *C.char
	if C.ubv_load(path, &why[0], C.size_t(len(why)), &missing) == 0 {
		if missing != nil {
			return fmt.Errorf("%s has no %s: it is older than rdma-core 33: %w", library, C.GoString(missing),
				hw.ErrNotSupported)
		}
		return fmt.Errorf("no RDMA library: %s: %w", C.GoString(&why[0]), hw.ErrNotSupported)
	}
	C.ubv_fork_init()
	return nil
})

// Have says whether this host has libibverbs and an RDMA device.
func Have() hw.Probe {
	names, err := Devices()
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no RDMA device (of %s): %w", library, hw.ErrNotSupported)
	}
	return hw.Probe{Name: "RDMA verbs", Err: err}
}

// Devices lists the names of this host's RDMA devices in order. (ibv_get_device_list)
func Devices() ([]string, error) {
	var names []string
	err := each(func(d *C.ubv_device) bool {
		names = append(names, C.GoString(&d.name[0]))
		return true
	})
	slices.Sort(names)
	return names, err
}

// each calls do for each device until it returns false.
func each(do func(d *C.ubv_device) bool) error {
	if err := load(); err != nil {
		return err
	}
	var list **C.ubv_device
	var n C.int
	if code := C.ubv_devices(&list, &n); code != 0 {
		if code == C.int(syscall.ENOSYS) || code == C.int(syscall.ENOENT) {
			return fmt.Errorf("the kernel has no RDMA (ib_uverbs is not loaded): %w", hw.ErrNotSupported)
		}
		return &Error{Call: "ibv_get_device_list", Errno: syscall.Errno(code)}
	}
	defer C.ubv_free_devices(list)
	for i := range n {
		if !do(C.ubv_device_at(list, i)) {
			break
		}
	}
	return nil
}

// owner is embedded in objects that others are made from. It counts those, and refuses to close while there are any.
type owner struct {
	mu     sync.Mutex
	made   map[string]int // by kind
	closed bool
}

// make counts an object of this kind that is about to be made from o.
func (o *owner) make(kind string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return fault.ErrClosed
	}
	if o.made == nil {
		o.made = map[string]int{}
	}
	o.made[kind]++
	return nil
}

func (o *owner) unmake(kind string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.made[kind]--
}

// use calls do unless o is closed. o cannot close meanwhile.
func (o *owner) use(do func() C.int) (C.int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return 0, fault.ErrClosed
	}
	return do(), nil
}

// end closes o by destroy, unless an object made from it is still open.
func (o *owner) end(what, call, device string, destroy func() C.int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return fmt.Errorf("%s: %w", what, fault.ErrClosed)
	}
	var errs []error
	for kind, n := range o.made {
		if n > 0 {
			errs = append(errs, fmt.Errorf("%s still has a %s (%d): close it first: %w", what, kind, n, fault.ErrInUse))
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	if code := destroy(); code != 0 {
		return &Error{Call: call, Device: device, What: what, Errno: syscall.Errno(code)}
	}
	o.closed = true
	return nil
}
