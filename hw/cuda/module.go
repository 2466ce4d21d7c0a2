//go:build linux && cgo && (amd64 || arm64)

package cuda

/*
#include <stdlib.h>
#include "driver.h"
#cgo noescape ubc_launch
#cgo nocallback ubc_launch
*/
import "C"

import (
	"fmt"
	"math"
	"strings"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// LoadModule assembles PTX text for the context's device. The driver takes time for that, and caches the result on
// disk. Several goroutines may load at the same time, each on its own processor, also while kernels run. The caller
// closes the module. The error contains the assembler's messages.
func (c *Context) LoadModule(ptx string) (*Module, error) {
	text := C.CString(ptx)
	defer C.free(unsafe.Pointer(text))
	var log [4096]C.char
	r := C.ubc_module_load(C.uintptr_t(c.h), text, &log[0], C.size_t(len(log)-1))
	if r.code != 0 {
		e := failed(r)
		e.Log = strings.TrimSpace(C.GoString(&log[0]))
		return nil, fmt.Errorf("a module for %v: %w", c.device, e)
	}
	return &Module{c, uintptr(r.a)}, nil
}

// Close unloads the module. If a function of it was asked for, it waits until the work that is queued in the context is
// done.
func (m *Module) Close() error {
	c := m.c
	m.c = nil
	if c == nil {
		return nil
	}
	return check(C.ubc_module_unload(C.uintptr_t(c.handle()), C.uintptr_t(m.h)))
}

// Function finds a kernel by its name and loads it, so that its first launch waits for nothing. For the module's first
// function the driver waits until the work that is queued in the context is done.
func (m *Module) Function(name string) (*Function, error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	var threads, registers C.int
	r := C.ubc_function(C.uintptr_t(m.c.handle()), C.uintptr_t(m.h), text, &threads, &registers)
	if err := check(r); err != nil {
		return nil, fmt.Errorf("kernel %q: %w", name, err)
	}
	return &Function{m, uintptr(r.a), name, int(threads), int(registers)}, nil
}

// AllowShared lets launches use up to n bytes of dynamic shared memory. Without it the limit is 48 KiB.
func (f *Function) AllowShared(n int) error {
	if n < 0 || n > math.MaxInt32 {
		return fmt.Errorf("kernel %q: %d bytes of shared memory: %w", f.name, n, fault.ErrArgument)
	}
	return f.check(C.ubc_function_shared(C.uintptr_t(f.module.c.handle()), C.uintptr_t(f.h), C.int(n)))
}

// Resident returns how many blocks of l's shape fit on one multiprocessor at a time. If blocks wait for each other, a
// grid must not have more than that for each multiprocessor.
func (f *Function) Resident(l Launch) (int, error) {
	if err := f.shape(l); err != nil {
		return 0, err
	}
	r := C.ubc_occupancy(C.uintptr_t(f.module.c.handle()), C.uintptr_t(f.h), C.int(l.Block), C.size_t(l.Shared))
	return int(r.a), f.check(r)
}

// Launch queues the kernel on s, a stream of its device. params is a struct of plain words: the kernel's parameters in
// order, each at its natural alignment, which is how both Go and PTX lay them out. The driver has copied params when
// Launch returns. It does not check the size: missing parameters have arbitrary values.
//
// With l.Early, which needs Context.Early, the kernel may start while the kernel before it in the stream still runs, if
// that kernel permits it. It must then wait for that kernel itself (griddepcontrol.wait in PTX) before it touches
// memory. All other work before it, in this stream or awaited from others, ends first as always.
func (f *Function) Launch(s *Stream, l Launch, params []byte) error {
	if err := f.shape(l); err != nil {
		return err
	}
	var early C.int
	if l.Early {
		early = 1
	}
	return f.check(C.ubc_launch(C.uintptr_t(both(f.module.c, s.c).handle()), C.uintptr_t(f.h), C.uintptr_t(s.h),
		C.uint(l.Grid), C.uint(l.Block), C.uint(l.Shared), early, (*C.uint8_t)(unsafe.SliceData(params)),
		C.size_t(len(params))))
}

// shape refuses numbers that C would truncate; the driver refuses the rest.
func (f *Function) shape(l Launch) error {
	for _, n := range []int{l.Grid, l.Block, l.Shared} {
		if n < 0 || n > math.MaxInt32 {
			return fmt.Errorf("kernel %q: launch %+v: %w", f.name, l, fault.ErrArgument)
		}
	}
	return nil
}

func (f *Function) check(r C.ubc_result) error {
	if err := check(r); err != nil {
		return fmt.Errorf("kernel %q: %w", f.name, err)
	}
	return nil
}
