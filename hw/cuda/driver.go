//go:build linux && cgo && (amd64 || arm64)

package cuda

/*
#cgo CFLAGS: -std=c11 -O2 -Wall
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// library is the file to load; tests set another one before the first call.
var library = "libcuda.so.1"

// state is the result of loading and starting the driver, once per process.
type state struct {
	devices int
	version int // 13000 is 13.0
	err     error
}

var driver = sync.OnceValue(func() state {
	path := C.CString(library)
	defer C.free(unsafe.Pointer(path))
	var why [512]C.char
	var missing *C.char
	if C.ubc_load(path, &why[0], C.size_t(len(why)), &missing) == 0 {
		if missing != nil {
			return state{err: fmt.Errorf("the CUDA driver is too old: %s has no %s: %w",
				library, C.GoString(missing), hw.ErrNotSupported)}
		}
		return state{err: fmt.Errorf("no CUDA driver: %s: %w", C.GoString(&why[0]), hw.ErrNotSupported)}
	}
	r := C.ubc_init()
	err := check(r)
	switch {
	case errors.Is(err, hw.ErrNotSupported):
		err = fmt.Errorf("the CUDA driver is there but no device that it can use: %w", err)
	case err == nil && r.a == 0:
		err = fmt.Errorf("the CUDA driver is there but no device: %w", hw.ErrNotSupported)
	}
	return state{int(r.a), int(r.b), err}
})

// check turns a call's result into an error.
func check(r C.ubc_result) error {
	if r.code == 0 {
		return nil
	}
	return failed(r)
}

func failed(r C.ubc_result) *Error {
	e := &Error{Call: C.GoString(r.call), Code: int(r.code)}
	if e.Code != closedCode {
		e.Name, e.Text = C.GoString(C.ubc_error_name(r.code)), C.GoString(C.ubc_error_string(r.code))
	}
	return e
}

// Have reports whether there are a driver and a device.
func Have() hw.Probe { return hw.Probe{Name: "CUDA", Err: driver().err} }

// Version returns the newest version of CUDA that the driver supports.
func Version() (major, minor int, err error) {
	d := driver()
	return d.version / 1000, d.version % 1000 / 10, d.err
}

// ordinal returns d's number for the driver.
func ordinal(d hw.Device) (C.int, error) {
	if err := isDevice(d); err != nil {
		return 0, err
	}
	s := driver()
	switch {
	case s.err != nil:
		return 0, s.err
	case d.IsHost():
		return 0, fmt.Errorf("the host is no CUDA device: %w", fault.ErrArgument)
	case d.Index() >= s.devices:
		return 0, fmt.Errorf("%v: there are %d CUDA devices: %w", d, s.devices, fault.ErrArgument)
	}
	return C.int(d.Index()), nil
}

// Devices describes the devices that this process may use, in the driver's order. The caller owns the slice.
func Devices() ([]Info, error) {
	s := driver()
	if s.err != nil {
		return nil, s.err
	}
	all := make([]Info, s.devices)
	for i := range all {
		var err error
		if all[i], err = Describe(hw.CUDA(i)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Describe describes one device.
func Describe(d hw.Device) (Info, error) {
	i, err := ordinal(d)
	if err != nil {
		return Info{}, err
	}
	var x C.ubc_device
	if err := check(C.ubc_describe(i, &x)); err != nil {
		return Info{}, fmt.Errorf("%v: %w", d, err)
	}
	return Info{
		Device: d, Name: C.GoString(&x.name[0]), PCI: C.GoString(&x.pci[0]),
		UUID: *(*[16]byte)(unsafe.Pointer(&x.uuid)), Memory: int(x.memory),
		Major: int(x.major), Minor: int(x.minor), Multiprocessors: int(x.sms), CopyEngines: int(x.copy_engines),
		SharedMemory: int(x.shared), VMM: x.vmm != 0, PosixFD: x.posix_fd != 0, Fabric: x.fabric != 0,
		Pools: x.pools != 0, DirectRDMA: x.rdma != 0, DirectRDMAVMM: x.rdma_vmm != 0, DMABuf: x.dma_buf != 0,
		OrderedRDMA: x.rdma_order >= C.UBC_RDMA_ORDER_OWNER, FlushRDMA: x.rdma_flush&C.UBC_RDMA_FLUSH_HOST != 0,
		HostAtomics: x.host_atomics != 0, Multicast: x.multicast != 0, MPS: x.mps != 0,
	}, nil
}

// P2P describes how device from accesses the memory of device to; they must differ.
func P2P(from, to hw.Device) (Link, error) {
	i, err := ordinal(from)
	if err != nil {
		return Link{}, err
	}
	j, err := ordinal(to)
	if err != nil {
		return Link{}, err
	}
	if i == j {
		return Link{}, fmt.Errorf("the link from %v to itself: %w", from, fault.ErrArgument)
	}
	var l C.ubc_link
	if err := check(C.ubc_p2p(i, j, &l)); err != nil {
		return Link{}, fmt.Errorf("from %v to %v: %w", from, to, err)
	}
	return Link{Access: l.access != 0, Atomics: l.atomics != 0, Performance: int(l.rank)}, nil
}

// Primary takes a reference to d's primary context. It makes the context if there is none, which takes about 0.2 s. The
// caller closes it.
func Primary(d hw.Device) (*Context, error) {
	i, err := ordinal(d)
	if err != nil {
		return nil, err
	}
	info, err := Describe(d)
	if err != nil {
		return nil, err
	}
	r := C.ubc_retain(i)
	if err := check(r); err != nil {
		return nil, fmt.Errorf("primary context of %v: %w", d, err)
	}
	early := info.Major >= 9 && driver().version >= 12030
	return &Context{uintptr(r.a), d, info.DirectRDMAVMM, early}, nil
}

// Close gives the reference back. When the process closes its last reference, the driver destroys all that was made in
// the context.
func (c *Context) Close() error {
	if c.h == 0 {
		return nil
	}
	c.h = 0
	return check(C.ubc_release(C.int(c.device.Index())))
}

// EnablePeer lets kernels and copies of c's device access memory that Alloc made on peer's device. Repeating it is
// harmless.
func (c *Context) EnablePeer(peer *Context) error {
	if err := check(C.ubc_enable_peer(C.uintptr_t(both(c, peer).handle()), C.uintptr_t(peer.h))); err != nil {
		return fmt.Errorf("access of %v to %v: %w", c.device, peer.device, err)
	}
	return nil
}
