//go:build linux && cgo && (amd64 || arm64)

package emulated_test

import (
	"os"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// side is a device, real or emulated, and streams with kernels that wait for its word 0. Nothing that would wait for
// kernels may be called while they do, so all that it needs is made before.
type side struct {
	t               *testing.T
	c               *cuda.Context
	m               *cuda.Module
	waits, nop, add *cuda.Function
	page            unsafe.Pointer
	at              cuda.Addr // of the page, on the device
	memory          cuda.Addr // 4096 bytes on the device
	streams         []*cuda.Stream
	events          []*cuda.Event
	graphs          []*cuda.Graph
	awaited         *cuda.Event // behind a kernel that waits; if await was called
}

type addParams struct {
	p    cuda.Addr
	n, x uint32
}

type waitParams struct {
	flag  cuda.Addr
	limit uint64 // nanoseconds
}

var one = cuda.Launch{Grid: 1, Block: 1}

func bytesOf[T any](p T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&p)), unsafe.Sizeof(p)) }

func testModule(t *testing.T, c *cuda.Context) *cuda.Module {
	ptx, err := os.ReadFile("../../../hw/cuda/testdata/kernels.ptx")
	require.NoError(t, err)
	m, err := c.LoadModule(string(ptx))
	require.NoError(t, err)
	return m
}

func newSide(t *testing.T) *side {
	s := &side{t: t, c: emulated.Primary(t, 0)}
	s.m = testModule(t, s.c)
	for name, f := range map[string]**cuda.Function{"wait": &s.waits, "none": &s.nop, "add": &s.add} {
		var err error
		*f, err = s.m.Function(name)
		require.NoError(t, err)
	}
	s.page = mapping(t)
	var err error
	s.end()
	s.at, err = s.c.HostRegister(s.page, 4096)
	require.NoError(t, err)
	s.memory, err = s.c.Alloc(4096)
	require.NoError(t, err)
	t.Cleanup(func() {
		s.end()
		for _, x := range s.streams {
			require.NoError(t, x.Sync())
			require.NoError(t, x.Close())
		}
		for _, x := range s.events {
			require.NoError(t, x.Close())
		}
		for _, x := range s.graphs {
			require.NoError(t, x.Close())
		}
		require.NoError(t, s.m.Close())
		require.NoError(t, s.c.Free(s.memory))
		require.NoError(t, s.c.HostUnregister(s.page))
	})
	return s
}

// word is a word of the page.
func (s *side) word(i int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Add(s.page, 4*i)) }

// begin makes kernels wait from now on; before, they end at once. end ends all that wait.
func (s *side) begin() { s.word(0).Store(0) }
func (s *side) end()   { s.word(0).Store(1) }

func (s *side) stream() *cuda.Stream {
	x, err := s.c.NewStream()
	require.NoError(s.t, err)
	s.streams = append(s.streams, x)
	return x
}

// wait queues a kernel that waits. If end is never called, it ends by itself.
func (s *side) wait(x *cuda.Stream) {
	require.NoError(s.t, s.waits.Launch(x, one, bytesOf(waitParams{s.at, uint64(testkit.Limit)})))
}

func (s *side) none(x *cuda.Stream) { require.NoError(s.t, s.nop.Launch(x, one, nil)) }
func (s *side) fill(x *cuda.Stream) { require.NoError(s.t, x.Fill(s.memory, 7, 64)) }
func (s *side) copy(x *cuda.Stream) { require.NoError(s.t, x.Copy(s.memory, s.at+64, 64)) }

func (s *side) record(x *cuda.Stream, timing bool) *cuda.Event {
	e, err := s.c.NewEvent(timing)
	require.NoError(s.t, err)
	s.events = append(s.events, e)
	require.NoError(s.t, e.Record(x))
	return e
}

// await queues a wait for an event behind a kernel that waits, on a stream of its own.
func (s *side) await(x *cuda.Stream) {
	if s.awaited == nil {
		other := s.stream()
		s.wait(other)
		s.awaited = s.record(other, false)
	}
	require.NoError(s.t, x.Wait(s.awaited))
}

// capture makes a graph of what f queues, and launches it once, since its first launch may wait for kernels.
func (s *side) capture(x *cuda.Stream, f func(*side, *cuda.Stream)) *cuda.Graph {
	require.NoError(s.t, x.BeginCapture())
	f(s, x)
	g, err := x.EndCapture()
	require.NoError(s.t, err)
	s.graphs = append(s.graphs, g)
	require.NoError(s.t, g.Launch(x))
	require.NoError(s.t, x.Sync())
	return g
}
