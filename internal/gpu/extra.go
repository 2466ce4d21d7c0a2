package gpu

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Extra is memory of this rank's device that peers write, beside the area. It is made when first needed, is used once
// all peers have mapped it, and lives until the communicator ends. The zero Extra is not made. If it cannot be made,
// operations use the areas instead.
type Extra struct {
	begin  sync.Once
	made   atomic.Bool // or could not be made
	at     *mem.Allocation
	extent uint32
	offset uint64
	ready  atomic.Bool
}

// Ready reports whether all peers have mapped x. It returns the address here, and the extent and offset for peers.
func (x *Extra) Ready() (at uint64, extent uint32, offset int, ok bool) {
	if !x.ready.Load() {
		return 0, 0, 0, false
	}
	return uint64(x.at.Base()), x.extent, int(x.offset), true
}

// Make makes x, of that many bytes, in the background, because the driver may wait for running work. It reports whether
// x is not ready yet but may be later. Any goroutine may call it.
func (d *Device) Make(x *Extra, bytes int) (pending bool) {
	x.begin.Do(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.gone {
			x.made.Store(true)
			return
		}
		d.making.Go(func() {
			if err := d.makeExtra(x, bytes); err != nil {
				d.noExtra.Do(func() {
					d.c.Log().Warn("ubcoll: what is copied on devices takes more rounds, since there is no memory for staging",
						"rank", d.c.Rank(), "bytes", bytes, "error", err)
				})
			}
			x.made.Store(true)
		})
	})
	switch {
	case x.ready.Load():
		return false
	case !x.made.Load():
		return true
	case x.at == nil:
		return false
	}
	x.ready.Store(d.mapped(x.extent))
	return !x.ready.Load()
}

// mapped reports whether all peers have mapped an extent of this rank.
func (d *Device) mapped(extent uint32) bool {
	peer, _ := d.c.Domain().Exports.Missing(extent)
	return peer < 0
}

// Await is Make, but waits until peers have mapped x, or are late.
func (d *Device) Await(x *Extra, bytes int) { d.await(func() bool { return !d.Make(x, bytes) }) }

// await waits until there returns true, that is, until peers have mapped something. This takes them a millisecond or
// two, whatever else they do. If it takes longer than Patience, await never waits again.
func (d *Device) await(there func() bool) {
	for start := time.Now(); !there() && !d.hurries.Load(); time.Sleep(importPoll) {
		d.c.Domain().IPC.Progress()
		if time.Since(start) > Patience {
			d.hurries.Store(true)
		}
	}
}

// Patience is how long an operation waits for peers to map what it uses, before it goes another way. A variable for tests.
var Patience = 200 * time.Millisecond

func (d *Device) makeExtra(x *Extra, bytes int) error {
	dom := d.c.Domain()
	a, err := dom.Heap.AllocDevicePart(bytes)
	if err != nil {
		return err
	}
	extent, offset, err := export(dom, a)
	if err != nil {
		return errors.Join(fmt.Errorf("export: %w", err), dom.Heap.Retire(a))
	}
	d.mu.Lock()
	d.extras = append(d.extras, a)
	d.mu.Unlock()
	x.at, x.extent, x.offset = a, extent, offset
	return nil
}

// export exports a, and returns the extent and offset where peers find it.
func export(dom *engine.Domain, a *mem.Allocation) (extent uint32, offset uint64, err error) {
	m, err := a.Inspect()
	if err != nil {
		return 0, 0, err
	}
	extent, err = dom.Exports.Export(a)
	return extent, uint64(cuda.Addr(a.Base()) - m.Base), err
}

// makeStaging makes the communicator's extra staging memory if w is likely to need it, and reports whether it may be
// ready later. Until then operations use the staging memory in areas, in many rounds. The caller has the turn, and has
// acquired w's buffers.
func (d *Device) makeStaging(w *team.Work, wait bool) (pending bool) {
	staged := func(v *team.Vec, b *team.Buf) bool { return v.Bytes() > 0 && b.Claim == nil && !b.NotImported }
	switch {
	case !w.Kernel.DirectAccess || w.Kernel.Multicast || d.c.Team().Size() == 1 || max(w.Src.Bytes(), w.Dst.Bytes()) <= stagedLeast*d.Layout.Little:
		return false
	case w.Kernel.Push, w.Kernel.Name == kernels.Ring:
	case staged(&w.Src, &w.SrcBuf), staged(&w.Dst, &w.DstBuf):
	case d.status.Narrow.Load() != 0: // some rank's buffers are staged
	default:
		return false
	}
	if wait {
		d.Await(&d.staging, kernels.StagingBytes)
		return false
	}
	return d.Make(&d.staging, kernels.StagingBytes)
}

// stagedLeast: staging memory is made for operations of more than that many of an area's staging buffers.
const stagedLeast = 8
