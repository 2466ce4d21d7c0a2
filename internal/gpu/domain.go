package gpu

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/plural"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// gpu is a device that a rank's process may use.
type gpu struct {
	UUID            string `json:"uuid"`
	Multiprocessors int    `json:"multiprocessors"`
	MPS             bool   `json:"mps,omitempty"`
}

// accelerators implements Accelerators.
type accelerators struct{}

// Accelerators makes the device sides of communicators.
var Accelerators engine.Accelerators = accelerators{}

// gpus is what a rank tells the others about its process's devices. It names all, because ranks are not assigned yet.
type gpus struct {
	Devices []gpu  `json:"devices,omitempty"`
	Share   bool   `json:"share,omitempty"` // ranks may have the same one
	Why     string `json:"why,omitempty"`   // why there is none
}

// visibleGPUs asks the driver for devices, unless they are off. To have none is no error.
func visibleGPUs(policy team.DevicePolicy) gpus {
	mode, err := env.CUDA.Get()
	if err != nil || mode == "off" {
		return gpus{Why: env.CUDA.Name + " is off"}
	}
	if policy == team.DevicesOff {
		return gpus{Why: "Options.Devices is off"}
	}
	infos, err := cuda.Devices()
	if err != nil {
		return gpus{Why: err.Error()}
	}
	g := gpus{Share: mode == "share" || policy == team.DevicesShare}
	for _, i := range infos {
		g.Devices = append(g.Devices, gpu{hex.EncodeToString(i.UUID[:]), i.Multiprocessors, i.MPS})
	}
	if len(infos) == 0 {
		g.Why = "the CUDA driver has no device"
	}
	return g
}

// assignment is which device each rank of a host has.
type assignment struct {
	index           []int            // by rank, among the devices that its process sees
	owners          map[string][]int // ranks by the device's UUID
	sharers         int              // most ranks that have the same device
	multiprocessors int              // the least of all devices
}

// assignGPUs assigns each rank of a host one of the devices that it sees, in turn. If the ranks cannot have one device
// each, and may not share, all of them get the same error. name maps a rank to the communicator's name for it.
func assignGPUs(all []gpus, name func(rank int) int) (as assignment, err error) {
	bad := func(format string, args ...any) (assignment, error) { // a driver's reason ends in "not supported" itself
		return assignment{}, reason.As(fmt.Sprintf(format, args...), fault.ErrNotSupported)
	}
	as.owners = map[string][]int{}
	seen := map[string]bool{}
	share := true
	for r, g := range all {
		if len(g.Devices) == 0 {
			return bad("rank %d has no CUDA device: %s", name(r), g.Why)
		}
		for _, d := range g.Devices {
			seen[d.UUID] = true
		}
		share = share && g.Share
	}
	if len(all) > kernels.MaxRanks {
		return bad("%d ranks on a host, and devices work together for up to %d", len(all), kernels.MaxRanks)
	}
	if len(all) > len(seen) && !share {
		return bad("%d ranks and %s, where each rank needs one of its own (%s=share lets ranks share them)", len(all),
			plural.Count(len(seen), "CUDA device"), env.CUDA.Name)
	}
	for r, g := range all {
		i := r % len(g.Devices)
		d := g.Devices[i]
		if others := as.owners[d.UUID]; len(others) > 0 && !share {
			return bad("ranks %d and %d have the same CUDA device (let all processes see all devices, or each its own; "+
				"%s=share lets ranks share them)", name(others[0]), name(r), env.CUDA.Name)
		}
		as.owners[d.UUID] = append(as.owners[d.UUID], r)
		as.index = append(as.index, i)
		as.sharers = max(as.sharers, len(as.owners[d.UUID]))
		if r == 0 || d.Multiprocessors < as.multiprocessors {
			as.multiprocessors = d.Multiprocessors
		}
	}
	return as, nil
}

// noAtomics returns why kernels on device mine cannot do atomics on rank r's device, or nil. If this process does not
// see that device, it cannot ask the driver, and returns nil.
func noAtomics(r int, mine hw.Device, seen gpus, theirs gpu) error {
	for i, d := range seen.Devices {
		if d.UUID != theirs.UUID || hw.CUDA(i) == mine {
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
	Sharers int // most ranks that have the same device: with more than one, ranks divide a device's room

	dom    *engine.Domain
	pinned pinned

	own   int   // the rank in the domain's first communicator
	ranks []int // see Ranks
	turns bool  // see Turns

	shared *shared

	mu      sync.Mutex
	streams map[*Stream]bool // see all
}

// Holders returns which ranks of a host have each of the devices that rank mine's process sees, if told is what the ranks
// tell by Visible. The error says why no rank uses devices. name maps a rank to its number in the job.
func Holders(visible []json.RawMessage, mine int, name func(rank int) int) (ranks [][]int, err error) {
	all, err := parseVisible(visible, name)
	if err != nil {
		return nil, err
	}
	as, err := assignGPUs(all, name)
	if err != nil {
		return nil, err
	}
	for _, d := range all[mine].Devices {
		var of []int
		for _, r := range as.owners[d.UUID] {
			of = append(of, name(r))
		}
		ranks = append(ranks, of)
	}
	return ranks, nil
}

// parseVisible reads what ranks have told by Visible.
func parseVisible(visible []json.RawMessage, name func(rank int) int) ([]gpus, error) {
	all := make([]gpus, len(visible))
	for r := range visible {
		if err := json.Unmarshal(visible[r], &all[r]); err != nil {
			return nil, fmt.Errorf("what rank %d told of its devices: %w: %w", name(r), err, fault.ErrMismatch)
		}
	}
	return all, nil
}

// Visible implements Accelerators.
func (accelerators) Visible(policy team.DevicePolicy) (visible json.RawMessage, why string) {
	g := visibleGPUs(policy)
	visible, _ = json.Marshal(g) // only strings and numbers: it cannot fail
	return visible, g.Why
}

// PCI implements Accelerators.
func (accelerators) PCI(visible []json.RawMessage, rank int) string {
	name := func(rank int) int { return rank }
	all, err := parseVisible(visible, name)
	if err != nil {
		return ""
	}
	as, err := assignGPUs(all, name)
	if err != nil {
		return ""
	}
	info, err := cuda.Describe(hw.CUDA(as.index[rank]))
	if err != nil {
		return ""
	}
	return info.PCI
}

// New implements Accelerators.
func (accelerators) New(c *engine.Comm, visible []json.RawMessage) (engine.Accelerator, error) {
	t := c.Team()
	all, err := parseVisible(visible, t.Name)
	if err != nil {
		return nil, err
	}
	as, err := assignGPUs(all, t.Name)
	if err != nil {
		return nil, err
	}
	first := RoomOf(as.multiprocessors, t.Size())
	if as.sharers > 1 {
		if first = firstShare(as.multiprocessors, as.sharers, t.Size()); first.Collectives == 0 {
			return nil, fmt.Errorf("%d ranks share a device of %s: that leaves no room for a rank's collectives: %w", as.sharers,
				plural.Count(as.multiprocessors, "multiprocessor"), fault.ErrLimit)
		}
	}
	mine := as.index[t.Rank()]
	layout := kernels.First(t.Size())
	g := &Domain{Sharers: as.sharers, streams: map[*Stream]bool{}}
	g.own = c.Rank()
	g.meet(t, as.owners[all[t.Rank()].Devices[mine].UUID], all[t.Rank()].Devices[mine].MPS)
	err = g.use(c.Domain(), mine, t.Size()-1, layout.Bytes())
	if err != nil {
		return nil, fmt.Errorf("rank %d could not use cuda:%d%s: %w", c.Rank(), mine, g.sharing(), err)
	}
	if err := g.bindable(c.Domain(), t.Size()); err != nil {
		c.Log().Warn("ubcoll: memory of Alloc on devices is not rounded to what multicast takes, though UBCOLL_NVLS=on", "rank", c.Rank(),
			"error", err)
	}
	d := newDevice(c, g, layout)
	d.Multiprocessors, d.Atomics = as.multiprocessors, make([]error, t.Size())
	d.Room = first
	for r := range all {
		if r != t.Rank() {
			d.Atomics[r] = noAtomics(t.Name(r), hw.CUDA(mine), all[t.Rank()], all[r].Devices[as.index[r]])
		}
	}
	return d, nil
}

// sharing says, where ranks share d's device, which of them this one is.
func (d *Domain) sharing() string {
	if len(d.ranks) < 2 {
		return ""
	}
	return fmt.Sprintf(", as number %d of the %d ranks that share it", slices.Index(d.ranks, d.own)+1, len(d.ranks))
}

// meet notes which ranks of t have d's device, and whether they take turns on it, which those of one process do not.
func (d *Domain) meet(t *team.Team, owners []int, mps bool) {
	for _, r := range owners {
		d.ranks = append(d.ranks, t.Name(r))
		d.turns = d.turns || !mps && t.Peers[r].Proc != t.Peers[t.Rank()].Proc
	}
}

// use makes d dom's side of device i, with room for peers and an area of that many bytes. After an error dom owns what
// was made, and frees it when it closes.
func (d *Domain) use(dom *engine.Domain, i, peers, area int) error {
	streams, more := streamsOf(d.Sharers, peers+1)
	if err := d.join(i, streams, more); err != nil {
		if d.shared != nil {
			err = errors.Join(err, d.leave())
		}
		return err
	}
	d.dom = dom
	dom.SetDevice(d)
	dom.UseGPU(d)
	dom.Heap.UseDevice(d.Context, choresOf{d.shared})
	dom.Heap.OnQuiesce(d.quiesce)
	if err := dom.Heap.ReserveDevice(area + peers*engine.RowBytes); err != nil {
		return err
	}
	return dom.Exports.UseDevice(d.Context, choresOf{d.shared}, peers)
}

// bindable has the heap round device memory to what can be bound to a multicast object of that many ranks, and the cache
// take it, if UBCOLL_NVLS asks for it.
func (d *Domain) bindable(dom *engine.Domain, ranks int) error {
	if dom.NVLS == nil {
		return nil
	}
	least, err := d.multicastUnit(ranks)
	if err == nil {
		err = dom.Heap.RoundDevice(least)
	}
	if err != nil {
		dom.NVLS.Refuse(err)
		return err
	}
	dom.NVLS.Use(d.Context, least)
	return nil
}

// multicastUnit is the granularity of multicast objects.
func (d *Domain) multicastUnit(ranks int) (int, error) {
	if d.Sharers > 1 {
		return 0, fmt.Errorf("ranks share %v, which can be in a multicast object once: %w", d.Context.Device(), fault.ErrNotSupported)
	}
	grain, err := d.Context.Granularity()
	if err != nil {
		return 0, err
	}
	least, _, err := d.Context.MulticastGranularity(ranks, grain)
	return least, err
}

// quiesce waits until all work that communicators of the domain have queued has ended. Kernels end by themselves, at
// the latest after their timeout.
func (d *Domain) quiesce() {
	for _, s := range d.all() {
		s.Quiet()
	}
}

// all returns the streams on which communicators of the domain have queued work.
func (d *Domain) all() (all []*Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.streams {
		all = append(all, s)
	}
	return all
}

// idle reports whether all work that communicators of the domain have queued has ended.
func (d *Domain) idle() bool {
	for _, s := range d.all() {
		if done, err := s.Done(); !done && err == nil {
			return false
		}
	}
	return true
}

// Add says that communicators of the domain queue on s.
func (d *Domain) Add(s *Stream) {
	d.mu.Lock()
	d.streams[s] = true
	d.mu.Unlock()
}

// Remove says that communicators of the domain no longer queue on s.
func (d *Domain) Remove(s *Stream) {
	d.mu.Lock()
	delete(d.streams, s)
	d.mu.Unlock()
}

// Device implements DomainDevice.
func (d *Domain) Device() hw.Device { return d.Context.Device() }

// Ranks implements DomainDevice.
func (d *Domain) Ranks() []int { return d.ranks }

// Turns implements DomainDevice.
func (d *Domain) Turns() bool { return d.turns }

// Copy implements DomainDevice.
func (d *Domain) Copy(a cuda.Addr, b []byte, in bool) error { return d.shared.copy(a, b, in) }

// Close implements DomainDevice.
func (d *Domain) Close() error { return d.leave() }
