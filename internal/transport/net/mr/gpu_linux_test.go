//go:build cgo

package mr_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// onGPU returns memory that counts as that of a device. A GPU exports it from a file, in which it begins at 4096.
func onGPU(t testing.TB, n int) (register.Memory, []byte, *gpu, int) {
	t.Helper()
	fd, err := unix.MemfdCreate("stands for a device's memory", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, int64(n+4096)))
	m, mem := memory(t, n)
	m.Device = hw.CUDA(0)
	return m, mem, &gpu{export: func(register.Memory) (int, uint64, error) {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return dup, 4096, err
	}}, fd
}

// putAndSee puts a byte by each NIC at an offset of a region of a token, and returns what is there then.
func putAndSee(t testing.TB, b *mr.Backend, to mr.Token, off int, see func(i int) byte) {
	t.Helper()
	for i := range b.NICs() {
		p := newPeer(t, b, i)
		p.local[0] = byte(20 + i)
		require.NoError(t, p.do(t, verbs.Write, to, off+i, 1))
		require.Equal(t, byte(20+i), see(i), "NIC %d", i)
	}
}

// TestDoubleGPU: which way NICs get to memory of a device, or why none does. If a NIC fails, those before it keep nothing, and no
// descriptor stays open.
func TestDoubleGPU(t *testing.T) {
	const byBuffer, byModule = "a dma-buf", "nvidia_peermem"
	noExport := errors.New("the driver exports nothing")
	type ways struct {
		gdr     string // else auto
		dmabuf  string // the NICs take none if "0"
		fail    string // rules of the double
		module  bool   // the kernel has the module
		export  error  // of the GPU
		reach   error  // of the GPU
		untold  bool   // no GPU is known
		way     string // "": there is none
		is      error
		says    []string
		exports int // how often the GPU is asked
	}
	for name, c := range map[string]ways{
		"dma-buf":                           {way: byBuffer, exports: 1},
		"dma-buf rather than module":        {module: true, way: byBuffer, exports: 1},
		"on":                                {gdr: "on", way: byBuffer, exports: 1},
		"not exported, module":              {module: true, export: noExport, way: byModule, exports: 1},
		"refused by the NICs, module":       {dmabuf: "0", module: true, way: byModule, exports: 1},
		"refused by the second NIC, module": {fail: "reg_dmabuf_mr:2:ENOMEM", module: true, way: byModule, exports: 1},
		"not exported": {export: noExport, is: noExport, exports: 1,
			says: []string{"no dma-buf (a dma-buf of ", "the driver exports nothing", "the kernel's module nvidia_peermem is not loaded"}},
		"no exporter": {export: hw.ErrNotSupported, is: fault.ErrNotSupported, exports: 1, says: []string{"nvidia_peermem is not loaded"}},
		"refused by the NICs": {dmabuf: "0", is: fault.ErrNotSupported, exports: 1,
			says: []string{"no dma-buf (RDMA device double0, 1 of 2: ", "ibv_reg_dmabuf_mr", "nvidia_peermem is not loaded"}},
		"refused by the second NIC": {fail: "reg_dmabuf_mr:2:ENOMEM", is: fault.ErrLimit, exports: 1,
			says: []string{"no dma-buf (RDMA device double1, 2 of 2, with room for ", "nvidia_peermem is not loaded"}},
		"not exported, the module refuses": {export: noExport, fail: "reg_mr:1:EFAULT", module: true, is: noExport, exports: 1,
			says: []string{"and by nvidia_peermem: RDMA device double0, 1 of 2: ", "ibv_reg_mr"}},
		"both refused by the second NIC": {fail: "reg_dmabuf_mr:2:EIO,reg_mr:2:ENOMEM", module: true, is: fault.ErrLimit, exports: 1,
			says: []string{"no dma-buf (RDMA device double1, 2 of 2: ", "and by nvidia_peermem: RDMA device double1, 2 of 2, "}},
		"off":         {gdr: "off", module: true, is: fault.ErrNotSupported, says: []string{"cuda:0: UBCOLL_GDR=off"}},
		"no GPU":      {untold: true, module: true, is: fault.ErrNotSupported, says: []string{"cuda:0: ", "told of no GPU"}},
		"unreachable": {reach: hw.ErrNotSupported, module: true, is: fault.ErrNotSupported, says: []string{"cuda:0: "}},
	} {
		t.Run(name, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"DEVICES": "2", "DMABUF": "1"}, func(t *testing.T) {
				var kept []register.Memory
				b := open(t, mr.Config{GDR: c.gdr, Keep: func(m register.Memory) { kept = append(kept, m) }})
				peerModule(t, c.module)
				m, mem, g, fd := onGPU(t, 4*4096)
				g.reach = c.reach
				if c.export != nil {
					g.export = func(register.Memory) (int, uint64, error) { return -1, 0, c.export }
				}
				if !c.untold {
					b.UseGPU(g)
				}
				if c.dmabuf != "" {
					verbstest.Set(t, "DMABUF", c.dmabuf)
				}
				for what, register := range map[string]func() (*mr.Region, func() error, error){
					"whole": func() (*mr.Region, func() error, error) {
						h, err := b.Register(m)
						if err != nil {
							return nil, nil, err
						}
						return h.(*mr.Region), func() error { return b.Deregister(m, h) }, nil
					},
					"exact": func() (*mr.Region, func() error, error) {
						e, err := b.Exact(m, m.Base+4096+10, 100, all)
						if err != nil {
							return nil, nil, err
						}
						return e.Region, e.Close, nil
					},
				} {
					verbstest.Set(t, "FAIL", c.fail)
					g.asked = 0
					idle, open := left(t), testkit.Descriptors(t)
					r, end, err := register()
					verbstest.Set(t, "FAIL", "")
					require.Equal(t, open, testkit.Descriptors(t), what)
					require.Equal(t, c.exports, g.asked, what)
					if c.way == "" {
						require.ErrorIs(t, err, c.is, what)
						for _, says := range c.says {
							require.ErrorContains(t, err, says, what)
						}
						require.Equal(t, idle, left(t), what)
						continue
					}
					require.NoError(t, err, what)
					require.Equal(t, "GPUDirect RDMA by "+c.way, r.Way())
					require.Regexp(t, "^double0, double1: .*, by "+c.way+"$", r.String())
					require.Equal(t, idle[2]+2, verbstest.Count(t, "mr"), "one on each NIC")
					require.Len(t, r.Token().Keys, 2)
					off := int(r.Address() - uint64(m.Base))
					putAndSee(t, b, r.Token(), 50, func(i int) byte {
						if c.way == byModule {
							return mem[off+50+i]
						}
						got := make([]byte, 1)
						_, err := unix.Pread(fd, got, int64(4096+off+50+i))
						require.NoError(t, err)
						require.Zero(t, mem[off+50+i])
						return got[0]
					})
					require.NoError(t, end())
				}
				require.Empty(t, kept)
			})
		})
	}
}

// TestDoubleGPUStubborn: a NIC that does not give back what it has by a dma-buf is asked once again, when the backend closes. What it
// has is not registered in another way.
func TestDoubleGPUStubborn(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"DEVICES": "2", "DMABUF": "1"}, func(t *testing.T) {
		var kept []register.Memory
		b, err := mr.Open(mr.Config{Keep: func(m register.Memory) { kept = append(kept, m) }})
		require.NoError(t, err)
		peerModule(t, true)
		m, _, g, _ := onGPU(t, 4096)
		b.UseGPU(g)
		verbstest.Set(t, "FAIL", "reg_dmabuf_mr:2:ENOMEM,dereg_mr:1:EBUSY")
		_, err = b.Register(m)
		require.ErrorIs(t, err, fault.ErrLimit)
		require.ErrorContains(t, err, "RDMA device double1, 2 of 2")
		require.ErrorIs(t, err, unix.EBUSY)
		require.ErrorContains(t, err, "RDMA device double0, 1 of 2: ibv_dereg_mr")
		require.Equal(t, []register.Memory{m}, kept)
		require.Equal(t, 1, verbstest.Count(t, "mr"))
		require.NoError(t, b.Close())
		require.Equal(t, nothing, left(t))
	})
}

// TestDoubleLate: where a device shows only after a call of the driver what peers have written, peers get no key to write what is
// exported; nobody would make that call. All else is registered.
func TestDoubleLate(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"DMABUF": "1"}, func(t *testing.T) {
		b := open(t, mr.Config{})
		m, _, g, _ := onGPU(t, 4096)
		g.late = true
		b.UseGPU(g)
		for _, access := range []verbs.Access{verbs.LocalWrite | verbs.RemoteWrite, all} {
			_, err := b.Exact(m, m.Base, 100, access)
			require.ErrorIs(t, err, fault.ErrNotSupported)
			require.ErrorContains(t, err, "cuda:0: it shows only after a call of the driver what peers have written")
		}
		require.Zero(t, g.asked)
		for _, access := range []verbs.Access{0, verbs.LocalWrite, verbs.RemoteRead} {
			require.NoError(t, export(t, b, m, 0, 100, access).Close())
		}
		require.NoError(t, b.Deregister(m, registered(t, b, m)))
		g.late = false
		require.NoError(t, export(t, b, m, 0, 100, all).Close())
	})
}

// TestDoubleHost: memory of the host has no such way, whatever is known of a GPU.
func TestDoubleHost(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"DMABUF": "1"}, func(t *testing.T) {
		b := open(t, mr.Config{GDR: "off"})
		_, _, g, _ := onGPU(t, 4096)
		b.UseGPU(g)
		m, _ := memory(t, 4096)
		r := registered(t, b, m)
		require.Empty(t, r.Way())
		require.NotContains(t, r.String(), ", by")
		require.Zero(t, g.asked)
		require.NoError(t, b.Deregister(m, r))
	})
}

// TestDoubleNearGPU: the NICs nearest to the GPU are opened, and of those as near as each other the ones nearest to the processors.
// Far ones are told to register memory of the GPU only with UBCOLL_GDR=on.
func TestDoubleNearGPU(t *testing.T) {
	gpus := map[string]string{gpuAddress: gpuPath}
	far := map[string]int{"double0": 10, "double1": 21, "double2": 10, "double3": 31}
	for name, c := range map[string]struct {
		places    map[string]string
		gpu       string
		want      []string
		unrelated bool // auto does not use memory of the GPU
	}{
		"two at the switch": {map[string]string{"double0": otherPort, "double1": sameSwitch, "double2": otherHost, "double3": sameSwitch + "/0000:01:00.0"}, gpuAddress,
			[]string{"double1"}, false},
		"one at the switch":      {map[string]string{"double0": otherHost, "double2": otherHost, "double3": sameSwitch}, gpuAddress, []string{"double3"}, false},
		"none at the switch":     {map[string]string{"double0": otherPort, "double1": otherPort, "double2": otherHost, "double3": otherHost}, gpuAddress, []string{"double0", "double2"}, true},
		"far ones, and software": {map[string]string{"double0": software, "double1": otherPort, "double2": software, "double3": otherHost}, gpuAddress, []string{"double1"}, true},
		"software":               {nil, gpuAddress, []string{"double0", "double2"}, false},
		"no such GPU":            {map[string]string{"double1": sameSwitch}, "0000:01:00.0", []string{"double0", "double2"}, false},
		"no GPU":                 {map[string]string{"double1": sameSwitch}, "", []string{"double0", "double2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"DEVICES": "4", "DMABUF": "1"}, func(t *testing.T) {
				sysfs(t, c.places, gpus)
				defer mr.SetDistance(func(name string) int { return far[name] })()
				peerModule(t, false)
				m, _, g, _ := onGPU(t, 4096)
				for _, gdr := range []string{"auto", "on", "off", ""} {
					b, err := mr.Open(mr.Config{GDR: gdr, GPU: c.gpu})
					require.NoError(t, err)
					require.Equal(t, c.want, names(b), gdr)
					b.UseGPU(g)
					h, err := b.Register(m)
					switch {
					case gdr == "off":
						require.ErrorIs(t, err, fault.ErrNotSupported)
						require.ErrorContains(t, err, "UBCOLL_GDR=off")
					case c.unrelated && gdr != "on":
						require.ErrorIs(t, err, fault.ErrNotSupported)
						require.ErrorContains(t, err, fmt.Sprintf("cuda:0: RDMA device %s shares no PCI switch with it", c.want[0]))
						require.ErrorContains(t, err, "UBCOLL_GDR=on")
					default:
						require.NoError(t, err)
						require.NoError(t, b.Deregister(m, h))
					}
					require.NoError(t, b.Close())
					require.Equal(t, nothing, left(t))
				}
				t.Setenv("UBCOLL_IB", "on")
				for gdr, want := range map[string][]string{"": c.want, "auto": c.want, "on": c.want, "off": {"double0", "double2"}} {
					t.Setenv("UBCOLL_GDR", gdr)
					b, _, err := mr.FromEnv(slog.Default(), true, "", c.gpu, nil)
					require.NoError(t, err)
					require.Equal(t, want, names(b), "UBCOLL_GDR=%s", gdr)
					require.NoError(t, b.Close())
				}
			})
		})
	}
}

func names(b *mr.Backend) (names []string) {
	for _, n := range b.NICs() {
		names = append(names, n.Device.Name())
	}
	return names
}
