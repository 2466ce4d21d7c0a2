//go:build cgo

package net

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// gpuBytes is how much memory a test's GPU has.
const gpuBytes = 2 << 20

// gpuMemory stands for memory of a device: RDMA devices get it from a file, and the processor faults at its addresses. It implements
// mr.GPU.
type gpuMemory struct {
	fd        int
	addresses []byte // which may not be touched
	memory    register.Memory
	cache     *register.Cache
}

// Reachable implements mr.GPU.
func (g *gpuMemory) Reachable() error { return nil }

// Ordered implements mr.GPU.
func (g *gpuMemory) Ordered() bool { return true }

// DMABuf implements mr.GPU.
func (g *gpuMemory) DMABuf(register.Memory) (int, uint64, error) {
	fd, err := unix.FcntlInt(uintptr(g.fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, 0, err
}

// at is where the memory has an offset.
func (g *gpuMemory) at(off int) unsafe.Pointer { return unsafe.Add(at(g.addresses), off) }

// fill and read do what the device would do.
func (g *gpuMemory) fill(t testing.TB, off int, b []byte) {
	t.Helper()
	_, err := unix.Pwrite(g.fd, b, int64(off))
	require.NoError(t, err)
}

func (g *gpuMemory) read(t testing.TB, off, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := unix.Pread(g.fd, b, int64(off))
	require.NoError(t, err)
	return b
}

// hidden is memory that is not registered.
type hidden struct {
	mu  sync.Mutex
	all map[uintptr]bool
}

func (h *hidden) make(n int) []byte {
	b := make([]byte, n)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[uintptr(at(b))] = true
	return b
}

// side is a rank with RDMA devices and memory of a device. Memory of Go's heap is registered, unless it is hidden.
type side struct {
	transport.Config
	gpu    *gpuMemory
	hidden *hidden
}

func newSide(t testing.TB) side {
	t.Helper()
	s := side{Config: withThese(t, transport.Config{}, mr.Config{}), gpu: &gpuMemory{}, hidden: &hidden{all: map[uintptr]bool{}}}
	var err error
	s.gpu.fd, err = unix.MemfdCreate("stands for a device's memory", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(s.gpu.fd) })
	require.NoError(t, unix.Ftruncate(s.gpu.fd, gpuBytes))
	s.gpu.addresses, err = unix.Mmap(-1, 0, gpuBytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(s.gpu.addresses)) })
	s.gpu.memory = register.Memory{ID: 2, Generation: 1, Base: uintptr(s.gpu.at(0)), Bytes: gpuBytes, Device: hw.CUDA(0), Kind: "adopted"}
	s.NICs.UseGPU(s.gpu)
	s.gpu.cache, err = register.New(register.Config{Backends: []register.Backend{s.NICs}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.gpu.cache.End()) })
	heap := s.Find
	s.Find = func(addr uintptr, n int) *register.Claim {
		if m := s.gpu.memory; addr >= m.Base && addr-m.Base < gpuBytes {
			cl, err := s.gpu.cache.RegisterAuto(m, addr, n)
			if err != nil {
				panic(err)
			}
			return cl
		}
		s.hidden.mu.Lock()
		defer s.hidden.mu.Unlock()
		if s.hidden.all[addr] {
			return nil
		}
		return heap(addr, n)
	}
	return s
}

// sees waits until la has the grant of a sequence.
func (p *pair) sees(t testing.TB, place int, seq uint64) {
	t.Helper()
	testkit.Eventually(t, func() bool { p.lb.Poll(); p.la.Poll(); return p.la.Granted(place).Load() == seq })
}

// TestDevicePuts: puts of and to memory of a device, whose addresses the processor does not touch at either end, in any mixture with
// memory of the host that is registered or not. Neighbours are left alone, and the memory of a put is free when it counts as sent.
func TestDevicePuts(t *testing.T) {
	for _, nics := range []string{"1", "2"} {
		t.Run(nics, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"SILENT": "1", "DEVICES": nics, "DMABUF": "1"}, func(t *testing.T) {
				a, b := newSide(t), newSide(t)
				p := pairOf(t, 2, a.Config, b.Config)
				seq := uint64(0)
				for _, n := range []int{frame.Short + 1, 64 << 10, 256 << 10, 256<<10 + 10, 1<<20 + 64, 1<<20 + 5} {
					for _, from := range []string{"registered", "hidden", "device"} {
						for _, to := range []string{"registered", "device"} {
							what := fmt.Sprintf("%d bytes from %s to %s memory", n, from, to)
							seq++
							data := bytes.Repeat([]byte{byte(seq), 2, 3, 5, 7}, n/5+1)[:n]
							host := bytes.Repeat([]byte{9}, n+20)
							b.gpu.fill(t, 4096, host)
							if to == "device" {
								require.True(t, p.lb.GrantDevice(1, seq, b.gpu.at(4096+10), n), what)
							} else {
								p.lb.Grant(1, seq, at(host[10:]), n)
							}
							p.sees(t, 1, seq)
							require.Equal(t, n, p.la.Room(1))
							queued := p.la.Queued()
							switch from {
							case "device":
								a.gpu.fill(t, 8192+2, data)
								require.True(t, p.la.PutDevice(1, seq, a.gpu.at(8192+2), n), what)
							case "hidden":
								source := a.hidden.make(n)
								copy(source, data)
								p.la.Put(1, seq, at(source), n)
								defer func() { require.Equal(t, data, source) }()
							default:
								p.la.Put(1, seq, at(data), n)
							}
							require.Equal(t, queued+1, p.la.Queued())
							testkit.Eventually(t, func() bool { p.lb.Poll(); p.la.Poll(); return p.la.Sent() == p.la.Queued() })
							p.lb.until(t, 1, seq)
							require.Equal(t, n, p.lb.Landed(1), what)
							got := host
							if to == "device" {
								got = b.gpu.read(t, 4096, n+20)
							}
							require.Equal(t, append(append(bytes.Repeat([]byte{9}, 10), data...), bytes.Repeat([]byte{9}, 10)...), got, what)
						}
					}
				}
				p.close(t)
			})
		})
	}
}

// TestDeviceRefused: where RDMA devices do not reach memory, GrantDevice and PutDevice do nothing, and the place takes other grants
// and puts.
func TestDeviceRefused(t *testing.T) {
	const n = 64 << 10
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1", "DMABUF": "1"}, func(t *testing.T) {
		a, b := newSide(t), newSide(t)
		b.Rank = 1
		var p pair
		p.a, p.toldA = nodeWith(t, a.Config)
		p.b, p.toldB = nodeWith(t, b.Config)
		p.ab, p.ba = connect(t, p.a, p.b)
		var err error
		p.lb, err = p.ba.Link(commID, 2)
		require.NoError(t, err)
		require.False(t, p.lb.GrantDevice(0, 1, b.gpu.at(0), n), "the peer has not made its side")
		require.False(t, p.lb.PutDevice(0, 1, b.gpu.at(0), n))
		p.la, err = p.ab.Link(commID, 2)
		require.NoError(t, err)
		require.NoError(t, p.la.Ready(within(t)))
		require.NoError(t, p.lb.Ready(within(t)))

		require.False(t, p.lb.GrantDevice(0, 1, b.gpu.at(0), frame.Short), "it would go in a message")
		to := b.hidden.make(n)
		require.False(t, p.lb.GrantDevice(0, 1, at(to), n), "it is not registered")
		require.False(t, p.la.PutDevice(0, 1, a.gpu.at(0), n), "nothing is granted")
		p.lb.Grant(0, 1, at(to), n)
		p.sees(t, 0, 1)
		queued := p.la.Queued()
		require.False(t, p.la.PutDevice(0, 1, a.gpu.at(0), n), "what is granted is not registered")
		require.Equal(t, queued, p.la.Queued())
		from := bytes.Repeat([]byte{7}, n)
		p.la.Put(0, 1, at(from), n)
		p.lb.until(t, 0, 1)
		require.Equal(t, from, to)

		require.True(t, p.lb.GrantDevice(0, 2, b.gpu.at(100), n))
		p.sees(t, 0, 2)
		source := a.hidden.make(n)
		copy(source, bytes.Repeat([]byte{8}, n))
		require.False(t, p.la.PutDevice(0, 2, at(source), n), "it is not registered")
		require.False(t, p.la.PutDevice(0, 3, a.gpu.at(0), n), "another sequence is granted")
		require.False(t, p.la.PutDevice(1, 2, a.gpu.at(0), n), "another place is granted")
		p.la.Put(0, 2, at(source), n)
		p.lb.until(t, 0, 2)
		require.Equal(t, source, b.gpu.read(t, 100, n))

		clear(to)
		p.lb.Grant(0, 3, at(to), n) // what the place had before does not matter
		p.sees(t, 0, 3)
		p.la.Put(0, 3, at(from), n)
		p.lb.until(t, 0, 3)
		require.Equal(t, from, to)

		p.lb.Grant(1, 1, at(make([]byte, n)), n)
		p.sees(t, 1, 1)
		p.lb.Revoke(1, 1)
		testkit.Eventually(t, func() bool { p.la.Poll(); p.lb.Poll(); return p.lb.Revoking() == 0 })
		require.False(t, p.la.PutDevice(1, 1, a.gpu.at(0), n), "it was revoked")
		p.close(t)
		require.False(t, p.lb.GrantDevice(0, 4, b.gpu.at(0), n), "it is closed")
		require.False(t, p.la.PutDevice(0, 4, a.gpu.at(0), n), "it is closed")
	})
	t.Run("TCP", func(t *testing.T) {
		p := newPair(t, 1)
		b := make([]byte, n)
		require.False(t, p.lb.GrantDevice(0, 1, at(b), n))
		p.lb.Grant(0, 1, at(b), n)
		p.sees(t, 0, 1)
		require.False(t, p.la.PutDevice(0, 1, at(b), n))
		require.Zero(t, p.la.Queued())
		p.close(t)
	})
}

// TestDeviceMessage: a peer that puts by messages into memory of a device ends the wire, and nothing of that is touched.
func TestDeviceMessage(t *testing.T) {
	for _, n := range []int{100, 64 << 10} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"SILENT": "1", "DMABUF": "1"}, func(t *testing.T) {
				a, b := newSide(t), newSide(t)
				p := pairOf(t, 1, a.Config, b.Config)
				require.True(t, p.lb.GrantDevice(0, 1, b.gpu.at(0), 64<<10))
				p.sees(t, 0, 1)
				p.la.places[0].theirs.landing = frame.Landing{} // as if it were an earlier build
				p.la.Put(0, 1, at(bytes.Repeat([]byte{7}, n)), n)
				testkit.Eventually(t, func() bool { return p.la.Err() != nil && p.lb.Err() != nil })
				require.Equal(t, transport.Broken, p.lb.Err().Kind)
				require.ErrorIs(t, p.lb.Err(), frame.ErrFrame)
				require.ErrorContains(t, p.lb.Err(), "it is for memory of a device, where messages do not go")
				require.Equal(t, make([]byte, gpuBytes), b.gpu.read(t, 0, gpuBytes))
				require.False(t, p.lb.GrantDevice(0, 2, b.gpu.at(0), 64<<10), "the wire has ended")
				p.close(t)
			})
		})
	}
}
