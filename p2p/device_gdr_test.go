//go:build cgo

package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/p2p"
	"github.com/ubcoll/ubcoll/register"
)

// overDouble runs f on ranks of hosts with emulated devices, over the double of libibverbs. module says whether the kernel has
// nvidia_peermem. In short runs without UBCOLL_TEST_DEVICES it skips.
func overDouble(t *testing.T, knobs verbstest.Knobs, module bool, hosts string, o ubcoll.Options,
	f func(context.Context, *ubcoll.Comm, ubcoll.Device) error) {
	t.Helper()
	t.Setenv("UBCOLL_IB", "on")
	t.Setenv("UBCOLL_REQUIRE", "verbs")
	if knobs == nil {
		knobs = verbstest.Knobs{}
	}
	knobs["SILENT"] = "1"
	verbstest.Over(t, knobs, func(t *testing.T) {
		mr.PeerModules = nil
		if module {
			mr.PeerModules = []string{t.TempDir()}
		}
		gputest.Across(t, hosts, o, f)
	})
}

const (
	viaHost   = "copied through page-locked host memory"
	viaBuffer = "direct: GPUDirect RDMA by a dma-buf"
	viaModule = "direct: GPUDirect RDMA by nvidia_peermem"
)

// TestDirectRDMA: RDMA devices read and write memory of devices by a dma-buf, else by nvidia_peermem, and else messages are copied.
// LastOp says which, and why.
func TestDirectRDMA(t *testing.T) {
	all := strings.Repeat("cuMemGetHandleForAddressRange,", 20)
	for name, k := range map[string]struct {
		env          map[string]string
		knobs        verbstest.Knobs
		module       bool
		source, dest string // as LastOp has them, or parts of that
		stream       string // dest on a stream, if that is another
	}{
		"dma-buf":                  {source: viaBuffer, dest: viaBuffer},
		"on":                       {env: map[string]string{"UBCOLL_GDR": "on"}, source: viaBuffer, dest: viaBuffer},
		"off":                      {env: map[string]string{"UBCOLL_GDR": "off"}, module: true, source: "UBCOLL_GDR=off", dest: "UBCOLL_GDR=off"},
		"the module":               {knobs: verbstest.Knobs{"DMABUF": "0"}, module: true, source: viaModule, dest: viaModule},
		"not exported, the module": {env: map[string]string{"UBCOLL_EMULATE_DMABUF": "0"}, module: true, source: viaModule, dest: viaModule},
		"neither":                  {knobs: verbstest.Knobs{"DMABUF": "0"}, source: "nvidia_peermem is not loaded", dest: "no dma-buf (RDMA device double0, 1 of 1"},
		"not exported":             {env: map[string]string{"UBCOLL_EMULATE_DMABUF": "0"}, source: "exports none", dest: "nvidia_peermem is not loaded"},
		"an old libibverbs": {knobs: verbstest.Knobs{"WITHOUT": "ibv_reg_dmabuf_mr"}, source: "older than ibv_reg_dmabuf_mr",
			dest: "nvidia_peermem is not loaded"},
		"the export fails": {env: map[string]string{"UBCOLL_EMULATE_FAIL": all}, source: "cuMemGetHandleForAddressRange", dest: "cuMemGetHandleForAddressRange"},
		"the NIC has no room": {knobs: verbstest.Knobs{"FAIL": "reg_dmabuf_mr:*:ENOMEM"}, source: "ibv_reg_dmabuf_mr",
			dest: "RDMA device double0, 1 of 1"},
		"no order":      {env: map[string]string{"UBCOLL_EMULATE_RDMA": "0"}, source: "no way to see", dest: "no way to see"},
		"after a flush": {env: map[string]string{"UBCOLL_EMULATE_RDMA": "1"}, source: viaBuffer, dest: viaBuffer, stream: "streams make none"},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "dma-buf" && name != "the module" && name != "neither" && name != "after a flush" {
				testkit.Long(t)
			}
			for name, value := range k.env {
				t.Setenv(name, value)
			}
			knobs := verbstest.Knobs{"DMABUF": "1"}
			for name, value := range k.knobs {
				knobs[name] = value
			}
			if k.stream == "" {
				k.stream = k.dest
			}
			overDouble(t, knobs, k.module, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				src, dst, err := sourceAndDest(ctx, c, dev, 3<<20+12345)
				if err != nil {
					return err
				}
				s, err := ubcoll.NewStream(dev)
				if err != nil {
					return err
				}
				for round, on := range []*ubcoll.Comm{c, c.On(s), c} {
					want := [2]string{k.source, k.dest}
					if round == 1 {
						want[1] = k.stream
					}
					if err := oneWay(ctx, c, on, s, src, dst, want); err != nil {
						return fmt.Errorf("round %d: %w", round, err)
					}
				}
				return errors.Join(src.all.Free(), dst.all.Free(), s.Close(), coll.Barrier(ctx, c))
			})
		})
	}
}

func sourceAndDest(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, n int) (src, dst *cell, err error) {
	src, err1 := newCell(ctx, c, dev, n, 5, pattern(n, uint64(c.Rank())))
	dst, err2 := newCell(ctx, c, dev, n, 3, nil)
	return src, dst, errors.Join(err1, err2)
}

// oneWay sends from rank 0 to rank 1 and back, and compares the bytes, and what LastOp says.
func oneWay(ctx context.Context, c, on *ubcoll.Comm, s *ubcoll.Stream, src, dst *cell, want [2]string) error {
	for sender := range 2 {
		var err error
		says, recv := want[0], c.Rank() != sender
		if recv {
			says = want[1]
			_, err = p2p.Recv(ctx, on, sender, dst.vec)
		} else {
			err = p2p.Send(ctx, on, 1-sender, src.vec)
		}
		if err == nil && on != c {
			err = s.Sync(ctx)
		}
		if err != nil {
			return err
		}
		o := c.LastOp()
		if text := o.Levels[0].String(); !strings.Contains(text, says) || strings.Contains(says, "direct") == strings.Contains(text, viaHost) {
			return conform.Fail(c, "LastOp says %q, not %q", text, says)
		}
		if recv {
			if err := dst.is(ctx, 3, pattern(dst.n, uint64(sender))); err != nil {
				return err
			}
		}
	}
	return coll.Barrier(ctx, c)
}

// TestDirectRDMAHalf: each end does without copies or with them by itself.
func TestDirectRDMAHalf(t *testing.T) {
	overDouble(t, verbstest.Knobs{"DMABUF": "1"}, false, "ab", ubcoll.Options{Register: register.Explicit},
		func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
			src, dst, err := sourceAndDest(ctx, c, dev, 5<<20+77)
			if err != nil {
				return err
			}
			for _, registered := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
				var refs []*ubcoll.Registration
				want := [2]string{"it is not registered", "it is not registered"}
				for i, b := range []*cell{src, dst} {
					if !registered[i] {
						continue
					}
					r, err := c.RegisterBuffer(b.all.Vec())
					if err != nil {
						return err
					}
					refs, want[i] = append(refs, r), viaBuffer
				}
				if err := oneWay(ctx, c, c, nil, src, dst, want); err != nil {
					return fmt.Errorf("registered: %v: %w", registered, err)
				}
				for _, r := range refs {
					if err := r.Close(); err != nil {
						return err
					}
				}
			}
			return errors.Join(src.all.Free(), dst.all.Free(), coll.Barrier(ctx, c))
		})
}

// TestDirectRDMASizes and TestDirectRDMARandom are TestDeviceBetweenSizes and TestDeviceBetweenRandom where RDMA devices reach memory
// of devices.
func TestDirectRDMASizes(t *testing.T) {
	overDouble(t, verbstest.Knobs{"DMABUF": "1"}, false, "abc", ubcoll.Options{}, messagesAround)
}

func TestDirectRDMARandom(t *testing.T) {
	seed := testkit.Seed(t)
	for i, hosts := range []string{"ab", "aabb", "aab"} {
		t.Run(hosts, func(t *testing.T) {
			testkit.Turn(t, i, 3)
			overDouble(t, verbstest.Knobs{"DMABUF": "1"}, false, hosts, ubcoll.Options{}, randomMessages(seed, testkit.Often(40)))
		})
	}
}

// TestDirectRDMAInPlace: nothing is copied: as many bytes as are sent go in writes from memory to memory.
func TestDirectRDMAInPlace(t *testing.T) {
	overDouble(t, verbstest.Knobs{"DMABUF": "1"}, false, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		const n = 16 << 20
		src, dst, err := sourceAndDest(ctx, c, dev, n)
		if err != nil {
			return err
		}
		for round := range 2 {
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			before := verbstest.Count(t, "work")
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if err := oneWay(ctx, c, c, nil, src, dst, [2]string{viaBuffer, viaBuffer}); err != nil {
				return err
			}
			if work := verbstest.Count(t, "work") - before; round > 0 && work > 2*n/(256<<10)*4+100 {
				return conform.Fail(c, "%d work requests for %d parts", work, 2*n/(256<<10))
			}
		}
		require.NotZero(t, verbstest.Count(t, "mr"))
		return errors.Join(src.all.Free(), dst.all.Free(), coll.Barrier(ctx, c))
	})
}
