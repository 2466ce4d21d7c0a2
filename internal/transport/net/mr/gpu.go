package mr

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/fdtrace"
	"github.com/ubcoll/ubcoll/register"
)

// GPU is what a backend asks about the rank's device.
type GPU interface {
	// Reachable returns why RDMA devices cannot use memory of the device, or nil.
	Reachable() error
	// Ordered reports whether the device shows what RDMA devices have written once the host knows of it, without a call of the driver.
	Ordered() bool
	// DMABuf makes a descriptor for m, of the device; m begins at offset in it. The backend closes the descriptor.
	DMABuf(m register.Memory) (fd int, offset uint64, err error)
}

// UseGPU says what to ask about memory of the rank's device. Without it, and after nil, registering such memory is
// fault.ErrNotSupported.
func (b *Backend) UseGPU(g GPU) {
	b.mu.Lock()
	b.gpu = g
	b.mu.Unlock()
}

// Ways in which NICs reach memory of a device.
const (
	byDMABuf = "a dma-buf"
	byPeer   = "nvidia_peermem"
)

// PeerModules is where the kernel has its module by which ibv_reg_mr takes addresses of GPUs, by either of its names. Tests
// change it.
var PeerModules = []string{"/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem"}

// pinDevice is pin for memory of the rank's device: by a dma-buf or, if that fails, by its address, which needs a module of the
// kernel.
func (b *Backend) pinDevice(r *Region, access *verbs.Access) error {
	b.mu.Lock()
	g := b.gpu
	b.mu.Unlock()
	err := b.reaches(g)
	if err == nil && access != nil && access.Has(verbs.RemoteWrite) && !g.Ordered() {
		err = fmt.Errorf("it shows only after a call of the driver what peers have written: %w", hw.ErrNotSupported)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", r.memory.Device, err)
	}
	noBuffer := b.pinDMABuf(g, r, access)
	if noBuffer == nil {
		r.way = byDMABuf
		return nil
	}
	err = b.unpin(r)
	r.mrs, r.keys = nil, nil // what a NIC has not given back, the backend has
	if err != nil {
		return errors.Join(noBuffer, err)
	}
	if !peerModule() {
		return fmt.Errorf("no dma-buf (%w), and the kernel's module nvidia_peermem is not loaded", noBuffer)
	}
	if err = b.pinAddress(r, access); err != nil {
		return fmt.Errorf("no dma-buf (%w), and by nvidia_peermem: %w", noBuffer, err)
	}
	r.way = byPeer
	return nil
}

// peerModule reports whether the kernel has the module.
func peerModule() bool {
	return slices.ContainsFunc(PeerModules, func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// reaches returns why the NICs do not use memory of the rank's device, or nil.
func (b *Backend) reaches(g GPU) error {
	switch {
	case b.config.GDR == "off":
		return fmt.Errorf("%s=off: %w", env.GDR.Name, hw.ErrNotSupported)
	case g == nil:
		return fmt.Errorf("RDMA devices were told of no GPU of this rank: %w", hw.ErrNotSupported)
	}
	for _, n := range b.nics {
		if b.config.GDR != "on" && closeness(n.Device.Name(), b.config.GPU) == apart {
			return fmt.Errorf("RDMA device %s shares no PCI switch with it, so that copies through the host are faster (%s=on does "+
				"without them): %w", n.Device.Name(), env.GDR.Name, hw.ErrNotSupported)
		}
	}
	return g.Reachable()
}

// pinDMABuf registers r by a descriptor of its memory.
func (b *Backend) pinDMABuf(g GPU, r *Region, access *verbs.Access) error {
	fd, offset, err := g.DMABuf(r.memory)
	if err != nil {
		return fmt.Errorf("a dma-buf of %v: %w", r.memory, err)
	}
	defer func() {
		fdtrace.Close(fd)
		os.NewFile(uintptr(fd), "dma-buf").Close()
	}()
	offset += r.address - uint64(r.memory.Base)
	return b.pinEach(r, access, func(n NIC, a verbs.Access) (*verbs.MR, error) {
		return n.PD.RegisterDMABuf(fd, offset, uintptr(r.address), r.bytes, a)
	})
}

// Describe says, for users, how RDMA devices reach memory of the GPU at a PCI address: which of them are near, and by what. buffers
// says that the driver exports dma-bufs of it. It is "" if there are no RDMA devices.
func Describe(pci string, buffers bool) string {
	names, err := verbs.Devices()
	if err != nil || len(names) == 0 {
		return ""
	}
	ways := "no dma-bufs"
	if buffers {
		ways = "dma-bufs"
	}
	if peerModule() {
		ways += ", nvidia_peermem is loaded"
	} else {
		ways += ", nvidia_peermem is not loaded"
	}
	for _, name := range names {
		ways += "; " + name + " " + [...]string{together: "shares a PCI switch with it", apart: "shares none",
			unknown: "has an unknown place"}[closeness(name, pci)]
	}
	return ways
}
