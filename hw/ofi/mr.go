//go:build linux && cgo && (amd64 || arm64)

package ofi

// #include "lib.h"
import "C"

import (
	"fmt"
	"math"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// MR is memory that is registered with a domain.
type MR struct {
	domain *Domain
	end    *Endpoint // that it belongs to, or nil
	mr     *C.uof_mr
	base   uint64
	bytes  int
	access Access
	key    Key
	desc   Desc
	closed atomic.Bool
}

// Register registers [address, address+bytes) of the device's memory for access. The memory stays the caller's, who must keep
// it mapped until Close. e is the endpoint for whose operations it is, which providers with [MREndpoint] need; others ignore
// it. It may block for as long as pinning the memory takes. Host memory of any address and length will do; memory of a CUDA
// device needs [Devices]. (fi_mr_regattr)
func (d *Domain) Register(address uintptr, bytes int, access Access, device hw.Device, e *Endpoint) (*MR, error) {
	what := fmt.Sprintf("%d bytes at %#x of %v, %v", bytes, address, device, access)
	if err := d.refuse(address, bytes, access, device, e); err != nil {
		return nil, fmt.Errorf("%v cannot register %s: %w", d.info, what, err)
	}
	var key Key
	if d.keys != nil {
		var err error
		if key, err = d.keys.make(); err != nil {
			return nil, fmt.Errorf("%v cannot register %s: %w", d.info, what, err)
		}
	}
	if err := d.make(&d.regions); err != nil {
		return nil, err
	}
	m := &MR{domain: d, base: uint64(address), bytes: bytes, access: access}
	register := func(bind *C.uof_end) C.int {
		d.enter()
		defer d.leave()
		return C.uof_register(d.domain, bind, C.uintptr_t(address), C.size_t(bytes), C.uint64_t(access), C.uint64_t(key), C.int(device.Index()),
			&m.mr)
	}
	var code C.int
	var err error
	if d.info.MRMode.Has(MREndpoint) {
		m.end = e
		code, err = e.bind(register)
	} else {
		code = register(nil)
	}
	switch {
	case code == C.int(syscall.ENOMEM) || code == C.int(syscall.EPERM):
		what += ": the system has no memory for it, or lets no more be pinned (RLIMIT_MEMLOCK, ulimit -l)"
	case code == C.int(NoKey):
		what += ": the provider has a registration of that key already (some allow but one without a right for peers)"
	}
	if err == nil {
		err = d.check("fi_mr_regattr", what, code)
	}
	if err != nil {
		d.unmake(&d.regions)
		return nil, err
	}
	m.key, m.desc = Key(m.mr.key), Desc(uintptr(m.mr.mem_desc))
	return m, nil
}

// refuse returns an error for arguments that no registration can have.
func (d *Domain) refuse(address uintptr, bytes int, access Access, device hw.Device, e *Endpoint) error {
	switch {
	case bytes <= 0:
		return fmt.Errorf("there is nothing to register: %w", fault.ErrArgument)
	case address == 0 || uint64(address) > math.MaxUint64-uint64(bytes):
		return fmt.Errorf("no memory is there: %w", fault.ErrArgument)
	case access&^(Local|Peers) != 0 || access == 0:
		return fmt.Errorf("want some access, of those that this package knows: %w", fault.ErrArgument)
	case !device.Valid():
		return fmt.Errorf("%v is no device: %w", device, fault.ErrArgument)
	case !device.IsHost() && !d.info.MRMode.Has(MRDevices):
		return fmt.Errorf("the domain was not opened for memory of devices: %w", hw.ErrNotSupported)
	case d.info.MRMode.Has(MREndpoint) && (e == nil || e.domain != d):
		return fmt.Errorf("the provider wants an endpoint of the domain for it: %w", fault.ErrArgument)
	}
	return nil
}

// Key is what peers need. With the provider's own keys ([MRKey]) it may be that of a later registration once this one has
// ended; the others are never used again.
func (m *MR) Key() Key { return m.key }

// Desc is for this process's own operations, until Close.
func (m *MR) Desc() Desc { return m.desc }

// Remote is by what peers name the registration's byte at offset in their operations.
func (m *MR) Remote(offset int) uint64 {
	if m.domain.info.MRMode.Has(MRVirtual) {
		return m.base + uint64(offset)
	}
	return uint64(offset)
}

// Address is where the registration begins here.
func (m *MR) Address() uint64 { return m.base }

// Bytes is its length.
func (m *MR) Bytes() int { return m.bytes }

// Access is the access that was asked for.
func (m *MR) Access() Access { return m.access }

// Close deregisters the memory. Operations of peers that begin later fail at the peers, with most providers; one that has
// begun may go on and change the memory: make peers stop first. It may block for as long as unpinning takes. After an error
// the registration is still there. (fi_close)
func (m *MR) Close() error {
	d := m.domain
	if m.closed.Swap(true) {
		return fmt.Errorf("registration with %v: %w", d.info, fault.ErrClosed)
	}
	d.enter()
	code := C.uof_close(unsafe.Pointer(m.mr))
	d.leave()
	if err := d.check("fi_close", fmt.Sprintf("registration of %d bytes at %#x", m.bytes, m.base), code); err != nil {
		m.closed.Store(false)
		return err
	}
	if m.end != nil {
		m.end.unbind()
	}
	d.unmake(&d.regions)
	return nil
}
