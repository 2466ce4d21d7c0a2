//go:build cgo

package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/p2p"
	"github.com/ubcoll/ubcoll/register"
)

// overDouble runs f on ranks of hosts with emulated devices, over the double of libibverbs. module says whether the kernel has
// nvidia_peermem.
func overDouble(t *testing.T, knobs verbstest.Knobs, module bool, hosts string, o ubcoll.Options,
	f func(context.Context, *ubcoll.Comm, ubcoll.Device) error) {
	t.Helper()
	overRDMA(t)
	knobs["SILENT"] = "1"
	verbstest.Over(t, knobs, func(t *testing.T) {
		mr.PeerModules = nil
		if module {
			mr.PeerModules = []string{t.TempDir()}
		}
		gputest.Across(t, hosts, o, f)
	})
}

// overRDMA has ranks of several hosts use RDMA devices alone. It skips the test unless devices are emulated: the double does not know
// memory of real ones.
func overRDMA(t *testing.T) {
	if !emulated.Active() {
		t.Skip("there is no emulated GPU")
	}
	t.Setenv("UBCOLL_IB", "on")
	t.Setenv("UBCOLL_REQUIRE", "verbs")
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
		if race.Enabled && !strings.Contains(want[1], "direct") { // memory of the host is on the Go heap, which RDMA devices do not reach
			says = "rendezvous"
		}
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
		if text := o.Levels[0].String(); !strings.Contains(text, says) || strings.Contains(says, "direct") && strings.Contains(text, viaHost) {
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

// TestDirectRDMAFlush: where the driver has to be asked to show what RDMA devices have written, a blocking receive does, and fails if that
// fails. A send does not ask.
func TestDirectRDMAFlush(t *testing.T) {
	t.Setenv("UBCOLL_EMULATE_RDMA", "1")
	t.Setenv("UBCOLL_EMULATE_FAIL", "cuFlushGPUDirectRDMAWrites")
	overDouble(t, verbstest.Knobs{"DMABUF": "1"}, false, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		src, dst, err := sourceAndDest(ctx, c, dev, 1<<20)
		if err != nil {
			return err
		}
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if c.Rank() == 0 { // perhaps the receiver has failed before the send returns
			if err := p2p.Send(ctx, d, 1, src.vec); err != nil && !errors.Is(err, ubcoll.ErrAborted) {
				return err
			}
		} else if _, err := p2p.Recv(ctx, d, 0, dst.vec); err == nil || !strings.Contains(err.Error(), "cuFlushGPUDirectRDMAWrites") {
			return fmt.Errorf("the receive returned %v", err)
		}
		if err := d.Close(); err != nil && !errors.Is(err, ubcoll.ErrAborted) && !strings.Contains(err.Error(), "cuFlushGPUDirectRDMAWrites") {
			return err
		}
		return coll.Barrier(ctx, c)
	})
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

// TestDirectRDMAOneSided: puts and gets of channels and windows go from memory to memory in chunks of 256 KiB, blocking and on streams,
// once the peer has been asked for the key and the queue pair is made. The driver then copies nothing.
func TestDirectRDMAOneSided(t *testing.T) {
	overDouble(t, verbstest.Knobs{"DMABUF": "1"}, false, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		const n = 4 << 20
		peer := 1 - c.Rank()
		e, err := openEnd(ctx, c, dev, peer, 2*n)
		if err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, e.buf.Vec(), ubcoll.WindowDefault)
		if err != nil {
			return err
		}
		s, err := ubcoll.NewStream(dev)
		if err != nil {
			return err
		}
		ch, win, v := e.ch.On(s), w.On(s), e.buf.Vec()
		for _, k := range []struct {
			name string
			f    func() error
		}{
			{"channel put", func() error { return errors.Join(e.ch.Put(ctx, n, 0, n), e.ch.Flush(ctx)) }},
			{"channel get", func() error { return e.ch.Get(ctx, n, 0, n) }},
			{"window put", func() error { return errors.Join(w.Put(ctx, peer, n, v.Slice(0, n)), w.Flush(ctx)) }},
			{"window get", func() error { return w.Get(ctx, peer, v.Slice(n, 2*n), 0) }},
			{"channel put on a stream", func() error { return errors.Join(ch.Put(ctx, n, 0, n), ch.Flush(ctx), s.Sync(ctx)) }},
			{"channel get on a stream", func() error { return errors.Join(ch.Get(ctx, n, 0, n), s.Sync(ctx)) }},
			{"window put on a stream", func() error { return errors.Join(win.Put(ctx, peer, n, v.Slice(0, n)), win.Flush(ctx), s.Sync(ctx)) }},
			{"window get on a stream", func() error { return errors.Join(win.Get(ctx, peer, v.Slice(n, 2*n), 0), s.Sync(ctx)) }},
		} {
			if err := e.buf.CopyFrom(ctx, append(bytes.Repeat([]byte{byte(1 + c.Rank())}, n), make([]byte, n)...)); err != nil {
				return err
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if c.Rank() == 0 {
				for first := range 2 {
					before := verbstest.Count(t, "work")
					if first > 0 {
						os.Setenv("UBCOLL_EMULATE_FAIL", "cuMemcpyDtoHAsync,cuMemcpyHtoDAsync")
					}
					err := k.f()
					os.Unsetenv("UBCOLL_EMULATE_FAIL")
					if err != nil {
						return fmt.Errorf("%s: %w", k.name, err)
					}
					if work := verbstest.Count(t, "work") - before; first > 0 && work > n/(256<<10)+8 {
						return conform.Fail(c, "%s takes %d work requests", k.name, work)
					}
				}
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			got := make([]byte, 2*n)
			if err := e.buf.CopyTo(ctx, got); err != nil {
				return err
			}
			want := [2]byte{0, 1} // what is in the second half: of a put at the peer
			if strings.Contains(k.name, "get") {
				want = [2]byte{2, 0}
			}
			if bytes.Count(got[n:], want[c.Rank():][:1]) != n || bytes.Count(got[:n], []byte{byte(1 + c.Rank())}) != n {
				return conform.Fail(c, "%s: wrong bytes", k.name)
			}
		}
		return errors.Join(s.Close(), w.Close(), e.close(), coll.Barrier(ctx, c))
	})
}

// TestDirectRDMAGroup: LastOp says of each message of a group how it went, blocking and on a stream.
func TestDirectRDMAGroup(t *testing.T) {
	overDouble(t, verbstest.Knobs{"DMABUF": "1"}, false, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		src, dst, err := sourceAndDest(ctx, c, dev, 1<<20)
		if err != nil {
			return err
		}
		s, err := ubcoll.NewStream(dev)
		if err != nil {
			return err
		}
		peer := 1 - c.Rank()
		for _, on := range []*ubcoll.Comm{c, c.On(s)} {
			err := ubcoll.Group(ctx, on, func(g *ubcoll.Comm) error {
				_, err1 := p2p.Recv(ctx, g, peer, dst.vec)
				_, err2 := p2p.Recv(ctx, g, peer, dst.vec.Slice(0, 1000))
				return errors.Join(err1, err2, p2p.Send(ctx, g, peer, src.vec), p2p.Send(ctx, g, peer, src.vec.Slice(0, 1000)))
			})
			if err == nil && on != c {
				err = s.Sync(ctx)
			}
			if err != nil {
				return err
			}
			for i, m := range c.LastOp().Members {
				want := []string{viaBuffer, "as are all messages of up to 262144 bytes"}[i%2]
				if text := m.Levels[0].String(); !strings.Contains(text, want) {
					return conform.Fail(c, "message %d: LastOp says %q, not %q", i, text, want)
				}
			}
			if n := len(c.LastOp().Members); n != 4 {
				return conform.Fail(c, "LastOp has %d messages", n)
			}
		}
		return errors.Join(src.all.Free(), dst.all.Free(), s.Close(), coll.Barrier(ctx, c))
	})
}

// TestDirectRDMAAll runs the tests of device memory between hosts where RDMA devices reach it: also those that take memory back, close
// and abort in the middle.
func TestDirectRDMAAll(t *testing.T) {
	which := "^(TestDeviceBetween(Random|TakenBack|Closed|Aborted)|TestDeviceChannelsBetween)$/^(ab|)$"
	if testkit.Full() {
		which = "^(TestDeviceBetween(Random|Sizes|TakenBack|Closed|Aborted)|TestDeviceChannels|TestChannelOnDevices|TestMessages|TestSemaphore|TestWindow)"
	}
	overRDMA(t)
	out := verbstest.Again(t, verbstest.Knobs{"SILENT": "1", "DMABUF": "1"}, "-test.run="+which)
	for _, name := range []string{"BetweenRandom", "BetweenTakenBack", "BetweenClosed", "BetweenAborted", "ChannelsBetween"} {
		require.Contains(t, out, "--- PASS: TestDevice"+name)
	}
}

// TestDirectRDMADevice: soft-RoCE takes no dma-bufs, but addresses, as devices do whose kernel has nvidia_peermem.
func TestDirectRDMADevice(t *testing.T) {
	names, err := verbs.Devices()
	if err == nil && len(names) == 0 {
		err = ubcoll.ErrNotSupported
	}
	if err != nil {
		testkit.Missing(t, "verbs", err)
	}
	overRDMA(t)
	seed := testkit.Seed(t)
	for _, k := range []struct {
		name, source, dest string
		modules            []string
	}{
		{"the module", viaModule, viaModule, []string{t.TempDir()}},
		{"neither", "ibv_reg_dmabuf_mr", "nvidia_peermem is not loaded", nil},
	} {
		t.Run(k.name, func(t *testing.T) {
			before := mr.PeerModules
			defer func() { mr.PeerModules = before }()
			mr.PeerModules = k.modules
			gputest.Across(t, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				src, dst, err := sourceAndDest(ctx, c, dev, 3<<20+12345)
				if err == nil {
					err = oneWay(ctx, c, c, nil, src, dst, [2]string{k.source, k.dest})
				}
				if err == nil {
					err = messagesAround(ctx, c, dev)
				}
				if err == nil {
					err = farTrades(ctx, c, dev, 1-c.Rank(), seed, testkit.Often(20))
				}
				return errors.Join(err, src.all.Free(), dst.all.Free(), coll.Barrier(ctx, c))
			})
		})
	}
}
