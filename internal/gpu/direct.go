package gpu

import (
	"fmt"
	"os"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/register"
)

// What RDMA devices need to read and write memory of the rank's device: implements mr.GPU.

// Reachable implements mr.GPU.
func (d *Domain) Reachable() error {
	switch info := &d.shared.info; {
	case !info.DirectRDMA && !info.DMABuf:
		return fmt.Errorf("%v has no GPUDirect RDMA: %w", d.Device(), hw.ErrNotSupported)
	case !info.OrderedRDMA && !info.FlushRDMA:
		return fmt.Errorf("the driver has no way to see on %v what RDMA devices have written there: %w", d.Device(), hw.ErrNotSupported)
	}
	return nil
}

// DMABuf implements mr.GPU.
func (d *Domain) DMABuf(m register.Memory) (fd int, offset uint64, err error) {
	if !d.shared.info.DMABuf {
		return -1, 0, fmt.Errorf("%v exports none (CUDA 11.7 and the open kernel modules do): %w", d.Device(), hw.ErrNotSupported)
	}
	page := uintptr(os.Getpagesize())
	begin, end := m.Base&^(page-1), (m.Base+uintptr(m.Bytes)+page-1)&^(page-1)
	fd, err = d.Context.DMABuf(cuda.Addr(begin), int(end-begin))
	return fd, uint64(m.Base - begin), err
}

// Ordered implements mr.GPU. It makes no call of the driver.
func (d *Domain) Ordered() bool { return d.shared.info.OrderedRDMA }
