//go:build linux && cgo && (amd64 || arm64)

package emulated_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestWaits makes each call that waits until no kernel of the context runs, real or emulated, while one does.
func TestWaits(t *testing.T) {
	for _, x := range []struct {
		name    string
		prepare func(s *side) func() error // returns the call
	}{
		{"Free of little", func(s *side) func() error {
			p, err := s.c.Alloc(4)
			require.NoError(s.t, err)
			return func() error { return s.c.Free(p) }
		}},
		{"Free of much", func(s *side) func() error {
			p, err := s.c.Alloc(64 << 20)
			require.NoError(s.t, err)
			return func() error { return s.c.Free(p) }
		}},
		{"HostUnregister", func(s *side) func() error {
			p := mapping(s.t)
			_, err := s.c.HostRegister(p, 4096)
			require.NoError(s.t, err)
			return func() error { return s.c.HostUnregister(p) }
		}},
		{"Function, the first of a module", func(s *side) func() error {
			m := testModule(s.t, s.c)
			s.t.Cleanup(func() { require.NoError(s.t, m.Close()) })
			return func() error { return testkit.ErrOf(m.Function("none")) }
		}},
		{"Close of a module with a function", func(s *side) func() error {
			m := testModule(s.t, s.c)
			_, err := m.Function("none")
			require.NoError(s.t, err)
			return m.Close
		}},
		{"NewStream, more than ever", func(s *side) func() error {
			const first, step = 35, 43
			for range first - 1 { // begin makes one, too
				s.stream()
			}
			more := make([]*cuda.Stream, 0, step)
			s.t.Cleanup(func() {
				for _, x := range more {
					require.NoError(s.t, x.Close())
				}
			})
			return func() error {
				for range step { // an earlier test may have made room for these
					x, err := s.c.NewStream()
					if err != nil {
						return err
					}
					more = append(more, x)
				}
				return nil
			}
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := newSide(t)
			call := x.prepare(s)
			s.begin()
			on := s.stream()
			s.wait(on)
			s.wait(on) // it waits for what was queued before, too
			done := make(chan error, 1)
			go func() { done <- call() }()
			select {
			case err := <-done:
				require.Fail(t, "it returned while a kernel ran", "%v", err)
			case <-time.After(20 * time.Millisecond): // time to do what it must not do
			}
			s.end()
			require.NoError(t, <-done)
		})
	}
}

// TestReturns makes all other calls while a kernel runs.
func TestReturns(t *testing.T) {
	if os.Getenv("CUDA_MODULE_LOADING") == "EAGER" {
		t.Skip("then LoadModule waits for kernels")
	}
	s := newSide(t)
	granule, err := s.c.Granularity()
	require.NoError(t, err)
	other := s.stream()
	s.none(other)
	require.NoError(t, other.Sync())
	unused := testModule(t, s.c) // no function of it was asked for
	module := testModule(t, s.c)
	_, err = module.Function("none")
	require.NoError(t, err)
	busy := s.stream()
	s.begin()
	s.wait(busy)
	var (
		p, at   cuda.Addr
		m, m2   cuda.Allocation
		fd      int
		stream  *cuda.Stream
		event   *cuda.Event
		running *cuda.Event
		graph   *cuda.Graph
		node    cuda.Node
		more    *cuda.Module
		ctx     *cuda.Context
		host    = mapping(t)
		data    = make([]byte, 64)
	)
	for _, x := range []struct {
		name string
		call func() error
	}{
		{"Alloc", func() (err error) { p, err = s.c.Alloc(1 << 20); return err }},
		{"Available", func() error { _, _, err := s.c.Available(); return err }},
		{"Inspect", func() error { return testkit.ErrOf(cuda.Inspect(p)) }},
		{"IPCHandle", func() error { return testkit.ErrOf(s.c.IPCHandle(p)) }},
		{"Create", func() (err error) { m, err = s.c.Create(granule); return err }},
		{"Export", func() (err error) { fd, err = s.c.Export(m); return err }},
		{"Import", func() (err error) { m2, err = s.c.Import(fd); return err }},
		{"Reserve", func() (err error) { at, err = s.c.Reserve(granule); return err }},
		{"Map", func() error { return s.c.Map(at, granule, m2) }},
		{"Access", func() error { return s.c.Access(at, granule, s.c.Device()) }},
		{"Retain", func() error {
			again, err := s.c.Retain(at)
			require.NoError(t, err)
			return s.c.Release(again)
		}},
		{"Unmap", func() error { return s.c.Unmap(at, granule) }},
		{"Unreserve", func() error { return s.c.Unreserve(at, granule) }},
		{"Release", func() error {
			return testkit.InOrder(func() error { return s.c.Release(m) }, func() error { return s.c.Release(m2) })
		}},
		{"HostRegister", func() error { return testkit.ErrOf(s.c.HostRegister(host, 4096)) }},
		{"NewStream", func() (err error) { stream, err = s.c.NewStream(); return err }},
		{"NewEvent", func() (err error) { event, err = s.c.NewEvent(true); return err }},
		{"Record", func() error { return event.Record(stream) }},
		{"Record behind the kernel", func() error { running = s.record(busy, false); return nil }},
		{"Done", func() error {
			done, err := running.Done()
			require.False(t, done)
			return err
		}},
		{"Wait", func() error { return stream.Wait(event) }},
		{"Launch", func() error { return s.nop.Launch(stream, one, nil) }},
		{"Copy", func() error { return stream.Copy(s.memory, p, 64) }},
		{"Fill", func() error { return stream.Fill(s.memory, 1, 64) }},
		{"Upload of pageable memory", func() error { return stream.Upload(s.memory, data) }},
		{"Download", func() error { return stream.Download(data, s.memory) }},
		{"Sync", func() error { return stream.Sync() }},
		{"Sync of an event", func() error { return event.Sync() }},
		{"AllowShared", func() error { return s.nop.AllowShared(64 << 10) }},
		{"Resident", func() error { return testkit.ErrOf(s.nop.Resident(one)) }},
		{"Function, not the first", func() error { return testkit.ErrOf(module.Function("add")) }},
		{"BeginCapture", func() error { return stream.BeginCapture() }},
		{"Launch in a capture", func() (err error) {
			require.NoError(t, s.nop.Launch(stream, one, nil))
			node, err = stream.Last()
			return err
		}},
		{"EndCapture", func() (err error) { graph, err = stream.EndCapture(); return err }},
		{"Launch of a graph", func() error {
			return testkit.InOrder(func() error { return graph.Launch(stream) }, stream.Sync)
		}},
		{"SetKernel", func() error { return graph.SetKernel(node, s.nop, one, nil) }},
		{"Close of a graph", func() error { return graph.Close() }},
		{"Close of an event", func() error { return event.Close() }},
		{"Close of a stream", func() error { return stream.Close() }},
		{"LoadModule", func() error { more = testModule(t, s.c); return nil }},
		{"Close of modules without functions", func() error { return testkit.InOrder(unused.Close, more.Close) }},
		{"Primary", func() (err error) { ctx, err = cuda.Primary(hw.CUDA(0)); return err }},
		{"Close of a context that is still in use", func() error { return ctx.Close() }},
	} {
		require.NoError(t, x.call(), x.name)
		// A call that waits for the kernel returns at the latest when that has ended by itself.
		done, err := busy.Done()
		require.NoError(t, err, x.name)
		require.False(t, done, "%s waited for the kernel", x.name)
	}
	s.end()
	require.NoError(t, module.Close())
	require.NoError(t, unix.Close(fd))
	require.NoError(t, s.c.Free(p))
	require.NoError(t, s.c.HostUnregister(host))
}

// TestNoPeerOfItself has the driver's code for access of a device to itself.
func TestNoPeerOfItself(t *testing.T) {
	s := newSide(t)
	err := s.c.EnablePeer(s.c)
	var e *cuda.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 217, e.Code)
	require.Equal(t, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", e.Name)
	require.ErrorIs(t, err, hw.ErrNotSupported)
}
