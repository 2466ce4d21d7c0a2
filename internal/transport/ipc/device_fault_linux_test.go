package ipc

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// A peer that dies counts as having unmapped everything.
func TestDevicePeerDies(t *testing.T) {
	for _, when := range []string{"before", "during"} {
		t.Run(when, func(t *testing.T) {
			emulated.Primary(t, 1)
			a := newGPU(t, 0, false)
			c, _ := startPeer(t, nil)
			r := c.tell(t, "device use 1")
			a.attach(t, r.Card)
			c.tell(t, "attach "+string(a.card(t)))
			x := a.make(t, 1, "", false)
			extent, err := a.Export(x)
			require.NoError(t, err)
			a.imported(t, extent)
			if when == "during" {
				testkit.Stop(t, c.Cmd)
				time.AfterFunc(100*time.Millisecond, func() { c.Cmd.Process.Kill() })
			} else {
				require.NoError(t, c.Cmd.Process.Kill())
				c.Cmd.Wait()
			}
			begin := time.Now()
			require.NoError(t, a.Withdraw(time.Minute, x))
			t.Logf("seen after %v", time.Since(begin))
			again, err := a.Export(a.make(t, 1, "", false))
			require.NoError(t, err)
			require.Equal(t, extent, again, "its number is free")
		})
	}
}

// If a peer neither follows nor dies, the number stays taken until the peer follows, and the owner of adopted memory gets
// it back when the heap closes.
func TestDevicePeerLags(t *testing.T) {
	emulated.Primary(t, 1)
	back := 0
	t.Cleanup(func() { require.Equal(t, 1, back) }) // after the heap has closed
	a := newGPU(t, 0, false)
	c, _ := startPeer(t, nil)
	r := c.tell(t, "device use 1")
	a.attach(t, r.Card)
	c.tell(t, "attach "+string(a.card(t)))
	var made []*mem.Allocation
	for i := range 3 {
		x := a.make(t, 1, "", false)
		extent, err := a.Export(x)
		require.NoError(t, err)
		require.Equal(t, uint32(i), extent)
		a.imported(t, extent)
		made = append(made, x)
	}
	theirs, err := a.ctx.Alloc(4096)
	require.NoError(t, err)
	t.Cleanup(func() { a.ctx.Free(theirs) })
	adopted, err := a.heap.AdoptDevice(theirs, 4096, func() { back++ })
	require.NoError(t, err)
	extent, err := a.Export(adopted)
	require.NoError(t, err)
	a.imported(t, extent)
	testkit.Stop(t, c.Cmd)
	err = a.Withdraw(50*time.Millisecond, made[0])
	require.ErrorIs(t, err, fault.ErrTimeout)
	require.ErrorContains(t, err, fmt.Sprintf("peer 0 (pid %d) has not unmapped extent 0", c.Cmd.Process.Pid))
	require.ErrorIs(t, a.Withdraw(time.Minute, made[1]), fault.ErrTimeout, "it hardly waits for a peer that has failed it")
	require.ErrorIs(t, a.Withdraw(0, made[2]), fault.ErrTimeout)
	require.NoError(t, a.heap.Retire(made[0]), "the memory is this rank's to give back")
	require.ErrorIs(t, a.Deregister(engine.Memory(adopted), nil), fault.ErrTimeout)
	require.NoError(t, a.heap.Retire(adopted))
	a.heap.Return(adopted)
	require.Zero(t, back)
	extent, err = a.Export(a.make(t, 1, "", false))
	require.NoError(t, err)
	require.Equal(t, uint32(4), extent, "the numbers are taken")

	require.NoError(t, c.Cmd.Process.Signal(syscall.SIGCONT))
	a.imported(t, extent)
	extent, err = a.Export(a.make(t, 1, "", false))
	require.NoError(t, err)
	require.Equal(t, uint32(0), extent, "it has followed")
	a.imported(t, extent)
	require.NoError(t, a.Withdraw(time.Minute, made[0]), "it is over")
}

// Each call of the driver fails once: the owner learns it, nothing leaks, and a second try succeeds.
func TestDeviceImportFails(t *testing.T) {
	one := emulated.Primary(t, 0)
	emulated.Primary(t, 1)
	emulated.Only(t)
	a, b := newGPU(t, 0, false), newGPU(t, 1, false)
	ab, _ := meet(t, a.rank, b.rank)
	foot := measure(t)
	for _, call := range []string{"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
		"cuMemcpyHtoDAsync"} {
		t.Run(call, func(t *testing.T) {
			x := b.make(t, 4, "text", false)
			memory := emulated.Used(t, one)
			t.Setenv("UBCOLL_EMULATE_FAIL", call+":1=2")
			extent, err := b.Export(x)
			require.NoError(t, err)
			var why string
			testkit.Eventually(t, func() bool {
				_, why = b.Missing(extent)
				return why != "has not imported it yet"
			})
			t.Setenv("UBCOLL_EMULATE_FAIL", "")
			require.Contains(t, why, "could not import it: ")
			require.Contains(t, why, call)
			require.Contains(t, why, "OUT_OF_MEMORY")
			requireFoot(t, left{foot.descriptors + 2, foot.mappings}) // the emulated memory's descriptor, and the export's
			require.Equal(t, memory, emulated.Used(t, one))
			require.Zero(t, a.row(t, ab, extent))

			at, err := ab.Import(background, extent, 0, 0)
			require.NoError(t, err)
			require.Equal(t, "text", a.take(t, at, 4))
			b.imported(t, extent)
			require.NoError(t, b.Withdraw(time.Minute, x))
			require.NoError(t, b.heap.Retire(x))
			requireFoot(t, foot) // the service closes its side of a connection after its client
		})
	}
}

// The older kind of export: within one process the peer's device must be accessible, between two the handle is opened.
func TestDeviceHandleFails(t *testing.T) {
	emulated.Primary(t, 1)
	emulated.Only(t)
	failed := func(t *testing.T, a *gpu, extent uint32) (why string) {
		testkit.Eventually(t, func() bool {
			_, why = a.Missing(extent)
			return why != "has not imported it yet"
		})
		return why
	}
	t.Run("one process", func(t *testing.T) {
		a, b := newGPU(t, 0, false), newGPU(t, 1, false)
		ab, _ := meet(t, a.rank, b.rank)
		t.Setenv("UBCOLL_EMULATE_FAIL", "cuCtxEnablePeerAccess:1=217")
		extent, err := b.Export(b.make(t, 4, "text", true))
		require.NoError(t, err)
		require.Contains(t, failed(t, b, extent), "cuCtxEnablePeerAccess: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED")
		t.Setenv("UBCOLL_EMULATE_FAIL", "")
		at, err := ab.Import(background, extent, 0, 0)
		require.NoError(t, err)
		require.Equal(t, "text", a.take(t, at, 4))
	})
	t.Run("two processes", func(t *testing.T) {
		t.Setenv("UBCOLL_EMULATE_FAIL", "cuIpcOpenMemHandle_v2:1=2")
		c, _ := startPeer(t, nil)
		t.Setenv("UBCOLL_EMULATE_FAIL", "")
		a := newGPU(t, 0, false)
		r := c.tell(t, "device use 1")
		a.attach(t, r.Card)
		c.tell(t, "attach "+string(a.card(t)))
		x := a.make(t, 1<<20, "text", true)
		extent, err := a.Export(x)
		require.NoError(t, err)
		require.Contains(t, failed(t, a, extent), "cuIpcOpenMemHandle_v2: CUDA_ERROR_OUT_OF_MEMORY")
		require.Equal(t, "text", c.tell(t, fmt.Sprint("device read ", extent, " 4")).Text)
		a.imported(t, extent)
		require.NoError(t, a.Withdraw(time.Minute, x))
	})
}

func TestDeviceExportFails(t *testing.T) {
	emulated.Primary(t, 0)
	emulated.Only(t)
	a := newGPU(t, 0, false)
	for call, legacy := range map[string]bool{"cuMemRetainAllocationHandle": false, "cuMemExportToShareableHandle": false,
		"cuIpcGetMemHandle": true} {
		t.Run(call, func(t *testing.T) {
			x := a.make(t, 1, "", legacy)
			foot, memory := measure(t), emulated.Used(t, a.ctx)
			t.Setenv("UBCOLL_EMULATE_FAIL", call+":1=2")
			_, err := a.Export(x)
			t.Setenv("UBCOLL_EMULATE_FAIL", "")
			require.ErrorIs(t, err, fault.ErrLimit)
			require.ErrorContains(t, err, call)
			requireFoot(t, foot)
			require.Equal(t, memory, emulated.Used(t, a.ctx))
			extent, err := a.Export(x)
			require.NoError(t, err)
			require.Zero(t, extent)
			require.NoError(t, a.Withdraw(time.Minute, x))
			requireFoot(t, foot)
		})
	}
}

func TestUseDeviceFails(t *testing.T) {
	ctx := emulated.Primary(t, 0)
	emulated.Only(t)
	stream := emulated.Stream(t, ctx)
	foot, memory := measure(t), emulated.Used(t, ctx)
	for _, call := range []string{"cuMemCreate:1=2", "cuMemMap:1=2"} {
		r := newRank(t, false, secret)
		r.heap.UseDevice(ctx, stream)
		t.Setenv("UBCOLL_EMULATE_FAIL", call)
		err := r.UseDevice(ctx, stream, somePeers)
		t.Setenv("UBCOLL_EMULATE_FAIL", "")
		require.ErrorIs(t, err, fault.ErrLimit, call)
		require.Nil(t, r.device.Load())
		require.ErrorIs(t, r.UseDevice(ctx, stream, engine.MaxRanks), fault.ErrLimit)
		require.NoError(t, r.UseDevice(ctx, stream, somePeers), "again")
		require.ErrorIs(t, r.UseDevice(ctx, stream, somePeers), fault.ErrInUse)
		r.close()
	}
	requireFoot(t, foot)
	require.Equal(t, memory, emulated.Used(t, ctx))
}

func TestDeviceTooMany(t *testing.T) {
	a := newGPU(t, 0, false)
	base, err := a.ctx.Alloc(4 << 20)
	require.NoError(t, err)
	x, err := a.heap.AdoptDevice(base, 4<<20, nil)
	require.NoError(t, err)
	d := a.device.Load()
	for i := range d.exports.numbers { // as if all numbers were taken
		d.exports.numbers[i] = &export{number: uint32(i), version: 1, fd: -1}
	}
	_, err = a.Export(x)
	require.ErrorIs(t, err, fault.ErrLimit)
	require.ErrorContains(t, err, "1024 exports")
	clear(d.exports.numbers[:])
	require.NoError(t, a.ctx.Free(base))

	for range somePeers {
		a.attach(t, newGPU(t, 0, false).card(t))
	}
	b := newGPU(t, 0, false)
	_, err = a.Attach(background, b.card(t))
	require.ErrorIs(t, err, fault.ErrLimit)
}

// The service hands out current exports only, and only to peers with the secret.
func TestDeviceService(t *testing.T) {
	a := newGPU(t, 0, false)
	x := a.make(t, 1, "", false)
	extent, err := a.Export(x)
	require.NoError(t, err)
	legacy, err := a.Export(a.make(t, 1, "", true))
	require.NoError(t, err)
	for _, c := range []struct {
		name   string
		secret []byte
		req    fdRequest
		ok     bool
	}{
		{"it", secret, exportRequest(extent, 1), true},
		{"a wrong secret", []byte("another"), exportRequest(extent, 1), false},
		{"version 0", secret, exportRequest(extent, 0), false},
		{"another version", secret, exportRequest(extent, 3), false},
		{"one that has a handle", secret, exportRequest(legacy, 1), false},
		{"another extent", secret, exportRequest(5, 1), false},
		{"the first beyond all", secret, exportRequest(maxExtents, 1), false},
		{"far beyond all", secret, fdRequest{math.MaxUint64, 1, 0}, false},
		{"one that wraps around", secret, fdRequest{1 << 32, 1, 0}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			fd, err := requestFD(background, a.server.name, c.secret, c.req)
			if !c.ok {
				require.ErrorIs(t, err, os.ErrPermission)
				return
			}
			require.NoError(t, err)
			require.NoError(t, closeFD(fd))
		})
	}
	require.NoError(t, a.Withdraw(time.Minute, x))
	_, err = requestFD(background, a.server.name, secret, exportRequest(extent, 1))
	require.ErrorIs(t, err, os.ErrPermission, "withdrawn")
	_, err = requestFD(background, a.server.name, secret, exportRequest(extent, 2))
	require.ErrorIs(t, err, os.ErrPermission, "withdrawn")
}

func TestForgedCard(t *testing.T) {
	a, b := newGPU(t, 0, false), newGPU(t, 1, false)
	var good card
	require.NoError(t, json.Unmarshal(b.card(t), &good))
	for name, forge := range map[string]func(l *mem.Location){
		"not a ledger":      func(l *mem.Location) { *l = b.alloc(t, ledgerBytes(somePeers), "").At },
		"not aligned":       func(l *mem.Location) { l.Offset += 8 },
		"beyond the arena":  func(l *mem.Location) { l.Offset = 1 << 40 },
		"in no arena":       func(l *mem.Location) { l.Arena = 77 },
		"an old generation": func(l *mem.Location) { l.Generation += 1000 },
	} {
		t.Run(name, func(t *testing.T) {
			forged, at := good, *good.Ledger
			forge(&at)
			forged.Ledger = &at
			raw, err := json.Marshal(forged)
			require.NoError(t, err)
			_, err = a.Attach(background, raw)
			require.ErrorIs(t, err, fault.ErrStale)
		})
	}
	ab := a.attach(t, b.card(t))
	require.Equal(t, 0, ab.remote.slot, "what failed takes no place")
}

// A peer is refused if its ledger claims to be larger than is possible, or than its memory.
func TestForgedLedgerSize(t *testing.T) {
	a, b := newGPU(t, 0, false), newGPU(t, 1, false)
	peers := &b.device.Load().ledger.peers
	for _, forged := range []uint64{0, engine.MaxRanks, 1 << 40, math.MaxUint64} {
		peers.Store(forged)
		_, err := a.Attach(background, b.card(t))
		require.ErrorIs(t, err, fault.ErrStale)
		require.ErrorContains(t, err, fmt.Sprintf("room for %d peers, not 1 to 71", forged))
	}
	peers.Store(somePeers)
	last := b.alloc(t, ledgerBytes(1), "")
	for x := last; x.At.Arena == last.At.Arena; x = b.alloc(t, ledgerBytes(1), "") {
		last = x
	}
	h := (*ledgerHead)(last.Ptr)
	h.magic, h.domain = ledgerMagic, b.heap.Domain
	h.peers.Store(engine.MaxRanks - 1)
	var k card
	require.NoError(t, json.Unmarshal(b.card(t), &k))
	k.Ledger = &last.At
	raw, err := json.Marshal(k)
	require.NoError(t, err)
	_, err = a.Attach(background, raw)
	require.ErrorIs(t, err, fault.ErrStale)
	require.ErrorContains(t, err, "of 71 peers", "its arena ends before")
	a.attach(t, b.card(t))
}

// Whatever a peer writes to its ledger, only imports from that peer can fail.
func TestForgedLedger(t *testing.T) {
	emulated.Primary(t, 0)
	emulated.Only(t)
	random := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	a, b := newGPU(t, 0, false), newGPU(t, 1, false)
	ab, _ := meet(t, a.rank, b.rank)
	own, err := a.Export(a.make(t, 1, "", false))
	require.NoError(t, err)
	a.imported(t, own)
	stopImporter(a.rank)
	stopImporter(b.rank)
	l := b.device.Load().ledger
	words := unsafe.Slice((*uint64)(unsafe.Pointer(l.ledgerHead)), ledgerBytes(somePeers)/8)
	before := append([]uint64(nil), words...)
	value := func() uint64 {
		switch random.IntN(4) {
		case 0:
			return random.Uint64N(4)
		case 1:
			return random.Uint64()
		case 2:
			return uint64(a.make(t, 1, "", false).Base())
		}
		return math.MaxUint64 - random.Uint64N(3)
	}
	for range 300 {
		e := &l.exports[random.IntN(5)]
		e.how.Store(1 + random.Uint64N(3))
		for _, w := range []interface{ Store(uint64) }{&e.base, &e.size, &e.id, &e.device, &e.version, &l.extents,
			&e.handle[0], &e.handle[3], &l.acks[random.IntN(somePeers)][random.IntN(5)], &l.attached[random.IntN(somePeers)],
			&l.failures[0].text[random.IntN(4)], &l.failures[0].ack, &l.peers} {
			if random.IntN(2) == 0 {
				w.Store(value())
			}
		}
		a.heap.Directory().Doorbell.Add(1)
		a.Progress()
		for i := range uint32(5) {
			if at := a.row(t, ab, i); at != 0 {
				m, err := cuda.Inspect(at)
				require.NoError(t, err)
				require.Equal(t, cuda.OnDevice, m.Type, "what kernels are told is mapped")
			}
			_, err := ab.Import(background, i, 0, 0)
			if err != nil {
				require.NotEmpty(t, err.Error())
			}
			a.Missing(i)
		}
	}
	copy(words, before)
	a.heap.Directory().Doorbell.Add(1)
	a.Progress()
}

func TestFailureText(t *testing.T) {
	var f failure
	require.Empty(t, f.read(1))
	f.write(5, "why")
	require.Equal(t, "why", f.read(5))
	require.Empty(t, f.read(7), "of another one")
	f.write(7, strings.Repeat("long ", 100))
	require.Equal(t, strings.Repeat("long ", 100)[:8*len(f.text)], f.read(7))
	f.write(9, "a\x1b[0m\xff\n")
	require.Equal(t, "a?[0m\uFFFD?", f.read(9))
}
