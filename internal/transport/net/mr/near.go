package mr

import (
	"path/filepath"
	"strings"
)

// near says how two PCI devices are connected, the nearest first.
type near int

const (
	together near = iota // by a PCI switch
	apart                // through a processor
	unknown              // one of them is no PCI device, as RDMA devices in software
)

// closeness says how an RDMA device is connected with the GPU at a PCI address.
func closeness(name, pci string) near {
	nic, err1 := filepath.EvalSymlinks(filepath.Join(sysfs, "class/infiniband", name, "device"))
	gpu, err2 := filepath.EvalSymlinks(filepath.Join(sysfs, "bus/pci/devices", strings.ToLower(pci)))
	if pci == "" || err1 != nil || err2 != nil {
		return unknown
	}
	// A path is like /sys/devices/pci0000:5d/0000:5d:01.0/0000:5e:00.0/0000:5f:00.0: host bridge, root port, switch, device.
	x, y := bridges(nic), bridges(gpu)
	if len(x) < 2 || len(y) < 2 {
		return unknown
	}
	if x[0] == y[0] && x[1] == y[1] {
		return together
	}
	return apart
}

// bridges returns the host bridge of a PCI device, and what is behind it on the way to the device, which is the last.
func bridges(path string) []string {
	all := strings.Split(path, "/")
	for i, part := range all {
		if strings.HasPrefix(part, "pci") && strings.Contains(part, ":") {
			return all[i:]
		}
	}
	return nil
}

// sysfs is where the system describes its devices. Tests change it.
var sysfs = "/sys"
