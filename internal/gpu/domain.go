package gpu

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// gpu is a device that a rank's process may use.
type gpu struct {
	UUID            string `json:"uuid"`
	Multiprocessors int    `json:"multiprocessors"`
}

// accelerators implements Accelerators.
type accelerators struct{}

// Accelerators makes the device sides of communicators.
var Accelerators engine.Accelerators = accelerators{}

// gpus is what a rank tells the others about its process's devices. It names all, because ranks are not assigned yet.
type gpus struct {
	Devices []gpu  `json:"devices,omitempty"`
	Why     string `json:"why,omitempty"` // why there is none
}

// visibleGPUs asks the driver for devices, unless they are off. To have none is no error.
func visibleGPUs(off bool) gpus {
	if mode, err := env.CUDA.Get(); err != nil || mode == "off" {
		return gpus{Why: env.CUDA.Name + " is off"}
	}
	if off {
		return gpus{Why: "Options.Devices is off"}
	}
	infos, err := cuda.Devices()
	if err != nil {
		return gpus{Why: err.Error()}
	}
	var g gpus
	for _, i := range infos {
		g.Devices = append(g.Devices, gpu{hex.EncodeToString(i.UUID[:]), i.Multiprocessors})
	}
	if len(infos) == 0 {
		g.Why = "the CUDA driver has no device"
	}
	return g
}

// assignGPUs assigns each rank of a host one of the devices that it sees, in order. It returns each rank's device
// index, and the least number of multiprocessors. If the ranks cannot have one device each, all of them get the same
// error. name maps a rank to the communicator's name for it.
func assignGPUs(all []gpus, name func(rank int) int) (index []int, multiprocessors int, err error) {
	bad := func(format string, args ...any) ([]int, int, error) { // a driver's reason ends in "not supported" itself
		return nil, 0, reason.As(fmt.Sprintf(format, args...), fault.ErrNotSupported)
	}
	owner := map[string]int{} // rank by UUID
	seen := map[string]bool{}
	for r, g := range all {
		if len(g.Devices) == 0 {
			return bad("rank %d has no CUDA device: %s", name(r), g.Why)
		}
		for _, d := range g.Devices {
			seen[d.UUID] = true
		}
	}
	if len(all) > kernels.MaxRanks {
		return bad("%d ranks on a host, and devices work together for up to %d", len(all), kernels.MaxRanks)
	}
	if len(all) > len(seen) {
		return bad("%d ranks and %d CUDA devices, where each rank needs one of its own", len(all), len(seen))
	}
	for r, g := range all {
		i := r % len(g.Devices)
		d := g.Devices[i]
		if other, taken := owner[d.UUID]; taken {
			return bad("ranks %d and %d have the same CUDA device (let all processes see all devices, or each its own)",
				name(other), name(r))
		}
		owner[d.UUID] = r
		index = append(index, i)
		if r == 0 || d.Multiprocessors < multiprocessors {
			multiprocessors = d.Multiprocessors
		}
	}
	return index, multiprocessors, nil
}

// noAtomics returns why kernels on device mine cannot do atomics on rank r's device, or nil. If this process does not
// see that device, it cannot ask the driver, and returns nil.
func noAtomics(r int, mine hw.Device, seen gpus, theirs gpu) error {
	for i, d := range seen.Devices {
		if d.UUID != theirs.UUID {
			continue
		}
		l, err := cuda.P2P(mine, hw.CUDA(i))
		if err == nil && !l.Atomics {
			err = fmt.Errorf("the link from %v to %v, rank %d's device, has no native atomic operations, by which channels and "+
				"windows count signals (messages work): %w", mine, hw.CUDA(i), r, fault.ErrNotSupported)
		}
		return err
	}
	return nil
}

// Domain is the state that all communicators of a domain share on its device.
type Domain struct {
	Context *cuda.Context
	Kernels *kernels.Set

	mu      sync.Mutex
	streams map[*Stream]bool // see all

	copying sync.Mutex   // held during copies
	copies  *cuda.Stream // for copies between host and device; made when first used
}

// Visible implements Accelerators.
func (accelerators) Visible(off bool) (told json.RawMessage, why string) {
	g := visibleGPUs(off)
	told, _ = json.Marshal(g) // only strings and numbers: it cannot fail
	return told, g.Why
}

// New implements Accelerators.
func (accelerators) New(c *engine.Comm, told []json.RawMessage) (engine.Accelerator, error) {
	all := make([]gpus, len(told))
	for r := range told {
		if err := json.Unmarshal(told[r], &all[r]); err != nil {
			return nil, fmt.Errorf("what rank %d told of its devices: %w: %w", c.Team().Name(r), err, fault.ErrMismatch)
		}
	}
	t := c.Team()
	index, n, err := assignGPUs(all, t.Name)
	if err != nil {
		return nil, err
	}
	mine := index[t.Rank()]
	layout := kernels.First(t.Size())
	g, err := useGPU(c.Domain(), mine, t.Size()-1, layout.Bytes())
	if err != nil {
		return nil, fmt.Errorf("rank %d could not use cuda:%d: %w", c.Rank(), mine, err)
	}
	d := newDevice(c, g, layout)
	d.Multiprocessors, d.Atomics = n, make([]error, t.Size())
	for r := range all {
		if r != t.Rank() {
			d.Atomics[r] = noAtomics(t.Name(r), hw.CUDA(mine), all[t.Rank()], all[r].Devices[index[r]])
		}
	}
	return d, nil
}

// useGPU makes dom's side of device i, with room for that many peers and an area of that many bytes. After an error the
// domain owns what was made, and frees it when it closes.
func useGPU(dom *engine.Domain, i, peers, area int) (*Domain, error) {
	ctx, err := cuda.Primary(hw.CUDA(i))
	if err != nil {
		return nil, err
	}
	g := &Domain{Context: ctx, Kernels: kernels.New(ctx), streams: map[*Stream]bool{}}
	dom.SetDevice(g)
	dom.Heap.UseDevice(ctx)
	dom.Heap.OnQuiesce(g.quiesce)
	if err := dom.Heap.ReserveDevice(area + peers*engine.RowBytes); err != nil {
		return g, err
	}
	return g, dom.Exports.UseDevice(ctx, peers)
}

// quiesce waits until all work that communicators of the domain have queued has ended. Kernels end by themselves, at
// the latest after their timeout.
func (g *Domain) quiesce() {
	for _, s := range g.all() {
		s.Quiet()
	}
}

// all returns the streams on which communicators of the domain have queued work.
func (g *Domain) all() (all []*Stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.streams {
		all = append(all, s)
	}
	return all
}

// idle reports whether all work that communicators of the domain have queued has ended.
func (g *Domain) idle() bool {
	for _, s := range g.all() {
		if done, err := s.Done(); !done && err == nil {
			return false
		}
	}
	return true
}

// Add says that communicators of the domain queue on s.
func (g *Domain) Add(s *Stream) {
	g.mu.Lock()
	g.streams[s] = true
	g.mu.Unlock()
}

// Remove says that communicators of the domain no longer queue on s.
func (g *Domain) Remove(s *Stream) {
	g.mu.Lock()
	delete(g.streams, s)
	g.mu.Unlock()
}

// Device implements DomainDevice.
func (g *Domain) Device() hw.Device { return g.Context.Device() }

// Copy implements DomainDevice.
func (g *Domain) Copy(a cuda.Addr, b []byte, in bool) error {
	g.copying.Lock()
	defer g.copying.Unlock()
	if g.copies == nil {
		s, err := g.Context.NewStream()
		if err != nil {
			return err
		}
		g.copies = s
	}
	if in {
		return g.copies.Upload(a, b)
	}
	return g.copies.Download(b, a)
}

// Close implements DomainDevice.
func (g *Domain) Close() error {
	var errs []error
	if g.copies != nil {
		errs = append(errs, g.copies.Close())
	}
	return errors.Join(append(errs, g.Kernels.Close(), g.Context.Close())...)
}
