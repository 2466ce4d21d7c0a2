//go:build linux && cgo && (amd64 || arm64)

package verbs

// #include "lib.h"
import "C"

import (
	"fmt"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// PD is a protection domain: a queue pair reaches only the regions of its own domain.
type PD struct {
	owner
	device *Device
	pd     *C.ubv_pd
}

// AllocPD makes a protection domain. (ibv_alloc_pd)
func (d *Device) AllocPD() (*PD, error) {
	if err := d.make("protection domain"); err != nil {
		return nil, fmt.Errorf("%s: %w", d.name, err)
	}
	var pd *C.ubv_pd
	if err := d.check("ibv_alloc_pd", "", C.ubv_alloc_pd(d.context, &pd)); err != nil {
		d.unmake("protection domain")
		return nil, err
	}
	return &PD{device: d, pd: pd}, nil
}

// Device is the domain's device.
func (p *PD) Device() *Device { return p.device }

// Close frees the domain. (ibv_dealloc_pd)
func (p *PD) Close() error {
	if err := p.end("protection domain of "+p.device.name, "ibv_dealloc_pd", p.device.name, func() C.int {
		return C.ubv_dealloc_pd(p.pd)
	}); err != nil {
		return err
	}
	p.device.unmake("protection domain")
	return nil
}

// MR is a memory region: memory that the device may use.
type MR struct {
	pd     *PD
	mr     *C.ubv_mr
	base   uint64
	bytes  int
	access Access
	lkey   LKey
	rkey   RKey
	closed atomic.Bool
}

// Register pins [address, address+bytes) and lets the device use it as access allows. Any address and length will do.
// It may block as long as pinning takes: the kernel touches every page. The memory stays the caller's, who must keep it
// mapped until Close. Peers name the memory by its address here: regions are never zero-based. (ibv_reg_mr)
func (p *PD) Register(address uintptr, bytes int, access Access) (*MR, error) {
	d := p.device
	what := fmt.Sprintf("%d bytes at %#x, %v", bytes, address, access)
	if err := p.refuse(uint64(address), bytes, access); err != nil {
		return nil, fmt.Errorf("%s cannot register %s: %w", d.name, what, err)
	}
	pins := uint64(0)
	if !access.Has(OnDemand) {
		page := uint64(os.Getpagesize())
		pins = (uint64(address)+uint64(bytes)-1)/page*page + page - uint64(address)/page*page
	}
	return p.region("ibv_reg_mr", what, uint64(address), bytes, pins, access, func(mr **C.ubv_mr) C.int {
		return C.ubv_reg(p.pd, C.uintptr_t(address), C.size_t(bytes), C.unsigned(access), mr)
	})
}

// RegisterDMABuf registers [offset, offset+bytes) of a dma-buf: memory of another device, given as a descriptor. Peers
// and work requests name it by address, which must have the same offset within a page as offset. The descriptor stays
// the caller's, who may close it afterwards. It may block as long as the memory's driver takes. If the processor cannot
// read the memory, use queue pairs without Inline ([QPConfig]). (ibv_reg_dmabuf_mr)
func (p *PD) RegisterDMABuf(fd int, offset uint64, address uintptr, bytes int, access Access) (*MR, error) {
	d := p.device
	what := fmt.Sprintf("%d bytes at %d of dma-buf %d as %#x, %v", bytes, offset, fd, address, access)
	err := p.refuse(uint64(address), bytes, access)
	switch {
	case err != nil:
	case offset > math.MaxUint64-uint64(bytes):
		err = fmt.Errorf("it ends beyond all offsets: %w", fault.ErrArgument)
	case !d.limits.DMABuf:
		err = fmt.Errorf("libibverbs is older than ibv_reg_dmabuf_mr (rdma-core 34): %w", hw.ErrNotSupported)
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot register %s: %w", d.name, what, err)
	}
	return p.region("ibv_reg_dmabuf_mr", what, uint64(address), bytes, 0, access, func(mr **C.ubv_mr) C.int {
		return C.ubv_reg_dmabuf(p.pd, C.uint64_t(offset), C.size_t(bytes), C.uint64_t(address), C.int(fd), C.unsigned(access), mr)
	})
}

// refuse returns an error for arguments that no registration can have.
func (p *PD) refuse(address uint64, bytes int, access Access) error {
	l := p.device.limits
	switch {
	case bytes <= 0:
		return fmt.Errorf("there is nothing to register: %w", fault.ErrArgument)
	case address == 0 || address > math.MaxUint64-uint64(bytes):
		return fmt.Errorf("no memory is there: %w", fault.ErrArgument)
	case uint64(bytes) > l.MaxMRBytes:
		return fmt.Errorf("a region has %d bytes at most: %w", l.MaxMRBytes, fault.ErrLimit)
	case access.Has(OnDemand) && !l.OnDemand:
		return fmt.Errorf("it offers no on-demand paging: leave out ON_DEMAND: %w", hw.ErrNotSupported)
	}
	return access.Check()
}

// region makes a region by calling register, which pins up to pins bytes of this process's memory.
func (p *PD) region(call, what string, base uint64, bytes int, pins uint64, access Access, register func(**C.ubv_mr) C.int) (*MR, error) {
	if err := p.make("memory region"); err != nil {
		return nil, fmt.Errorf("protection domain of %s: %w", p.device.name, err)
	}
	var mr *C.ubv_mr
	if code := register(&mr); code != 0 {
		p.unmake("memory region")
		switch syscall.Errno(code) {
		case syscall.ENOMEM:
			what += ": " + noMemory(pins)
		case syscall.EFAULT:
			what += ": not mapped, or not as access wants it, or a GPU's (for RegisterDMABuf, or its driver's peer memory module)"
		}
		return nil, p.device.check(call, what, code)
	}
	return &MR{pd: p, mr: mr, base: base, bytes: bytes, access: access, lkey: LKey(mr.lkey), rkey: RKey(mr.rkey)}, nil
}

// noMemory says what ENOMEM means for a call that pins that many bytes: the kernel returns it at RLIMIT_MEMLOCK, and if
// it has no memory.
func noMemory(pins uint64) string {
	const none = "the system has no memory, or the device no room, for it"
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); pins == 0 || err != nil {
		return none
	}
	if r.Cur == unix.RLIM_INFINITY {
		return "RLIMIT_MEMLOCK is unlimited: " + none
	}
	now := pinned()
	if now+pins <= r.Cur {
		return fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes, of which %d are pinned, and has room for it: %s", r.Cur, now, none)
	}
	return fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes, of which %d are pinned: raise it to %d or more (ulimit -l, LimitMEMLOCK= of a "+
		"systemd unit, memlock in limits.conf), or register less", r.Cur, now, now+pins)
}

// checkQueue is check for calls that make queues. Drivers allocate and pin queue memory as they like.
func (d *Device) checkQueue(call, what string, code C.int) error {
	var r unix.Rlimit
	if syscall.Errno(code) == syscall.ENOMEM && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) == nil && r.Cur != unix.RLIM_INFINITY {
		what += fmt.Sprintf(": RLIMIT_MEMLOCK is %d bytes, of which %d are pinned; a queue's memory may count, too: raise it "+
			"(ulimit -l)", r.Cur, pinned())
	}
	return d.check(call, what, code)
}

// pinned is how much of this process's memory the kernel counts as pinned for devices, in bytes.
func pinned() uint64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		var kib uint64
		if _, err := fmt.Sscanf(line, "VmPin: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return 0
}

// Address is where the region begins. Peers use the same address.
func (m *MR) Address() uint64 { return m.base }

// Bytes is the region's length.
func (m *MR) Bytes() int { return m.bytes }

// Access is the access that was asked for.
func (m *MR) Access() Access { return m.access }

// LKey is for this process's own work requests on this device.
func (m *MR) LKey() LKey { return m.lkey }

// RKey is for peers. It is invalid after Close, until a later region happens to get the same number.
func (m *MR) RKey() RKey { return m.rkey }

// PD is the region's protection domain.
func (m *MR) PD() *PD { return m.pd }

// Rereg changes the access of the region, and perhaps its keys: give peers RKey again. No work may use it meanwhile, here or at
// a peer, and no other method be called. After an error the region is of no use, but for Close; [hw.ErrNotSupported] says that the
// device cannot, and then nothing has changed. (ibv_rereg_mr)
func (m *MR) Rereg(access Access) error {
	d := m.pd.device
	what := fmt.Sprintf("%d bytes at %#x, %v, for %v", m.bytes, m.base, m.rkey, access)
	if m.closed.Load() {
		return fmt.Errorf("%v of %s: %w", m.rkey, d.name, fault.ErrClosed)
	}
	if err := m.pd.refuse(m.base, m.bytes, access); err != nil {
		return fmt.Errorf("%s cannot register %s: %w", d.name, what, err)
	}
	if err := d.check("ibv_rereg_mr", what, C.ubv_rereg(m.mr, C.unsigned(access))); err != nil {
		return err
	}
	m.access, m.lkey, m.rkey = access, LKey(m.mr.lkey), RKey(m.mr.rkey)
	return nil
}

// Close takes the memory from the device and unpins it. Work that still uses it fails; at the peer, with RemoteAccess.
// It may block as long as unpinning takes. After an error the region is still there. (ibv_dereg_mr)
func (m *MR) Close() error {
	if m.closed.Swap(true) {
		return fmt.Errorf("%v of %s: %w", m.rkey, m.pd.device.name, fault.ErrClosed)
	}
	if err := m.pd.device.check("ibv_dereg_mr", fmt.Sprintf("%d bytes at %#x, %v", m.bytes, m.base, m.rkey),
		C.ubv_dereg(m.mr)); err != nil {
		m.closed.Store(false)
		return err
	}
	m.pd.unmake("memory region")
	return nil
}
