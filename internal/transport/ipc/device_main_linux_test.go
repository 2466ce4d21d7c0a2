package ipc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// gpu is a rank that uses a device.
type gpu struct {
	*rank
	ctx *cuda.Context
}

// somePeers is how many peers ranks have room for by default.
const somePeers = 3

func newGPU(t testing.TB, i int, goHeap bool) *gpu {
	t.Helper()
	return newGPUOf(t, i, goHeap, somePeers)
}

// newGPUOf is newGPU with room for that many peers.
func newGPUOf(t testing.TB, i int, goHeap bool, peers int) *gpu {
	t.Helper()
	ctx := emulated.Primary(t, i)
	s := emulated.Stream(t, ctx)
	r := newRank(t, goHeap, secret) // closed before the stream and the context
	r.heap.UseDevice(ctx, s)
	require.NoError(t, r.UseDevice(ctx, s, peers))
	return &gpu{r, ctx}
}

// meet attaches two ranks to each other. It returns a's view of b, and b's view of a.
func meet(t testing.TB, a, b *rank) (*peer, *peer) {
	t.Helper()
	return a.attach(t, b.card(t)), b.attach(t, a.card(t))
}

// make allocates n bytes that begin with text; if legacy, as cudaMalloc does.
func (g *gpu) make(t testing.TB, n int, text string, legacy bool) *mem.Allocation {
	t.Helper()
	a, err := makeDevice(g.heap, g.ctx, n, text, legacy)
	require.NoError(t, err)
	if legacy {
		t.Cleanup(func() { g.ctx.Free(cuda.Addr(a.Base())) }) // a test may have freed it
	}
	return a
}

func makeDevice(h *mem.Heap, ctx *cuda.Context, n int, text string, legacy bool) (a *mem.Allocation, err error) {
	if legacy {
		var p cuda.Addr
		if p, err = ctx.Alloc(n); err == nil {
			a, err = h.AdoptDevice(p, n, nil)
		}
	} else {
		a, err = h.AllocDevice(n)
	}
	if err != nil {
		return nil, err
	}
	return a, put(ctx, cuda.Addr(a.Base()), text)
}

func put(ctx *cuda.Context, at cuda.Addr, text string) error {
	s, err := ctx.NewStream()
	if err != nil {
		return err
	}
	return errors.Join(s.Upload(at, []byte(text)), s.Close())
}

func take(ctx *cuda.Context, at cuda.Addr, n int) (string, error) {
	s, err := ctx.NewStream()
	if err != nil {
		return "", err
	}
	b := make([]byte, n)
	err = errors.Join(s.Download(b, at), s.Close())
	return string(b), err
}

func (g *gpu) put(t testing.TB, at cuda.Addr, text string) {
	t.Helper()
	require.NoError(t, put(g.ctx, at, text))
}

func (g *gpu) take(t testing.TB, at cuda.Addr, n int) string {
	t.Helper()
	text, err := take(g.ctx, at, n)
	require.NoError(t, err)
	return text
}

// row returns what kernels find in the table for p's extents.
func (g *gpu) row(t testing.TB, p engine.DevicePeer, extent uint32) cuda.Addr {
	t.Helper()
	return cuda.Addr(binary.LittleEndian.Uint64([]byte(g.take(t, p.Row()+cuda.Addr(8*extent), 8))))
}

// imported waits until all peers have imported the extent.
func (g *gpu) imported(t testing.TB, extent uint32) {
	t.Helper()
	testkit.Eventually(t, func() bool {
		peer, why := g.Missing(extent)
		if peer >= 0 && why != "has not imported it yet" {
			t.Error(why)
		}
		return peer < 0
	})
}

// childDevice is the device part of childPeer.
type childDevice struct {
	ctx  *cuda.Context
	peer team.PeerMemory
	last *mem.Allocation
}

func (c *childDevice) close() error {
	if c.ctx == nil {
		return nil
	}
	return c.ctx.Close()
}

func (c *childDevice) do(h *mem.Heap, tr engine.IPC, what []string) (r report, err error) {
	n := 0
	if len(what) > 1 {
		if n, err = strconv.Atoi(what[1]); err != nil {
			return r, err
		}
	}
	switch what[0] {
	case "use": // use device n
		if c.ctx, err = cuda.Primary(hw.CUDA(n)); err != nil {
			return r, err
		}
		s, err := c.ctx.NewStream()
		if err != nil {
			return r, err
		}
		h.UseDevice(c.ctx, s)
		return r, tr.UseDevice(c.ctx, s, somePeers)
	case "alloc", "legacy": // n bytes that begin with a text
		c.last, err = makeDevice(h, c.ctx, n, what[2], what[0] == "legacy")
	case "export":
		r.Extent, err = tr.Export(c.last)
	case "withdraw": // the error is part of the answer
		if err := tr.Withdraw(testkit.Limit, c.last); err != nil {
			r.Text = err.Error()
		}
	case "free":
		legacy := c.last.Origin == mem.DeviceAdopted
		if err = h.Retire(c.last); err == nil && legacy {
			err = c.ctx.Free(cuda.Addr(c.last.Base()))
		}
	case "missing": // which peer has not imported extent n
		_, r.Text = tr.Missing(uint32(n))
	case "read", "write": // extent n of the peer: a number of bytes, or a text
		var at cuda.Addr
		if at, err = c.peer.(engine.DevicePeer).Import(context.Background(), uint32(n), 0, 0); err != nil {
			return r, err
		}
		if what[0] == "write" {
			return r, put(c.ctx, at, what[2])
		}
		size, err := strconv.Atoi(what[2])
		if err != nil {
			return r, err
		}
		r.Text, err = take(c.ctx, at, size)
		return r, err
	default:
		err = fmt.Errorf("what is %q", what)
	}
	return r, err
}
