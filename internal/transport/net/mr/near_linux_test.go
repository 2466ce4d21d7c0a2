package mr_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
)

// sysfs makes a tree like /sys, which the package uses until the test ends. rdma has RDMA devices by name, pci has PCI devices by
// address; their values are paths below /sys/devices.
func sysfs(t testing.TB, rdma, pci map[string]string) {
	t.Helper()
	root := t.TempDir()
	link := func(to, from string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(from), 0o700))
		to, err := filepath.Rel(filepath.Dir(from), to)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(to, from))
	}
	for address, path := range pci {
		path = filepath.Join(root, "devices", path)
		require.NoError(t, os.MkdirAll(path, 0o700))
		link(path, filepath.Join(root, "bus/pci/devices", address))
	}
	for name, path := range rdma {
		path = filepath.Join(root, "devices", path)
		own := filepath.Join(path, "infiniband", name)
		require.NoError(t, os.MkdirAll(own, 0o700))
		link(own, filepath.Join(root, "class/infiniband", name))
		if filepath.Base(filepath.Dir(path)) != "virtual" {
			link(path, filepath.Join(own, "device"))
		}
	}
	t.Cleanup(mr.SetSysfs(root))
}

// Places in a tree of sysfs.
const (
	gpuAddress = "0000:5f:00.0"
	gpuPath    = "pci0000:5d/0000:5d:01.0/0000:5e:00.0/0000:5f:00.0"
	sameSwitch = "pci0000:5d/0000:5d:01.0/0000:5e:01.0/0000:60:00.0"
	otherPort  = "pci0000:5d/0000:5d:03.0/0000:70:00.0"
	otherHost  = "pci0000:ba/0000:ba:01.0/0000:bb:00.0"
	software   = "virtual/net0"
)

// TestCloseness: how RDMA devices are connected with a GPU.
func TestCloseness(t *testing.T) {
	sysfs(t, map[string]string{
		"switch": sameSwitch, "far": otherPort, "farther": otherHost, "rxe0": software,
		"farm":       "platform/soc/" + sameSwitch,
		"part":       sameSwitch + "/mlx5_core.sf.4",
		"integrated": "pci0000:5d/0000:5d:1f.0",
		"vmbus":      "LNXSYSTM:00/VMBUS:01/mana",
		"bridge":     "pci0000:5d",
	}, map[string]string{gpuAddress: gpuPath, "0000:ff:00.0": "pci0000:ff/0000:ff:00.0", "0001:00:00.0": "platform/gpu"})
	for name, c := range map[string]struct {
		nic, gpu string
		want     any
	}{
		"one switch":                    {"switch", gpuAddress, mr.Together},
		"a function of a NIC":           {"part", gpuAddress, mr.Together},
		"below other devices":           {"farm", gpuAddress, mr.Together},
		"upper case":                    {"switch", "0000:5F:00.0", mr.Together},
		"another root port":             {"far", gpuAddress, mr.Apart},
		"another host bridge":           {"farther", gpuAddress, mr.Apart},
		"no port":                       {"integrated", gpuAddress, mr.Apart},
		"a GPU without port":            {"switch", "0000:ff:00.0", mr.Apart},
		"in software":                   {"rxe0", gpuAddress, mr.Unknown},
		"another bus":                   {"vmbus", gpuAddress, mr.Unknown},
		"a bridge":                      {"bridge", gpuAddress, mr.Unknown},
		"no such NIC":                   {"mlx5_9", gpuAddress, mr.Unknown},
		"no such GPU":                   {"switch", "0000:01:00.0", mr.Unknown},
		"a GPU on no bus":               {"switch", "0001:00:00.0", mr.Unknown},
		"no GPU":                        {"switch", "", mr.Unknown},
		"nothing of either":             {"", "", mr.Unknown},
		"no such NIC, no such GPU":      {"mlx5_9", "0000:01:00.0", mr.Unknown},
		"in software, and no such GPU":  {"rxe0", "0000:01:00.0", mr.Unknown},
		"another host bridge, in upper": {"farther", "0000:5F:00.0", mr.Apart},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, mr.Closeness(c.nic, c.gpu)) })
	}
}
