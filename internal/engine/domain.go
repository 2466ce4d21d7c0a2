package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/faults"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/invariants"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport/collnet"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/internal/transport/net/ofi"
	"github.com/ubcoll/ubcoll/internal/transport/nvls"
	"github.com/ubcoll/ubcoll/register"
)

// Domain has what a rank's communicators share: memory, registration cache, transports. It ends with the last of them.
type Domain struct {
	Heap    *mem.Heap
	Cache   *register.Cache
	IPC     team.Transport
	Exports DeviceTransport // the same transport as IPC

	network *hosts.Network   // nil in jobs of one host
	hosts   []string         // by rank of the job: the name of its host; likewise nil
	nics    *mr.Backend      // registers memory with RDMA devices; nil unless the environment asks for it
	ofi     *ofi.Backend     // registers memory with libfabric's domains instead; nil unless the environment asks for it
	fabric  *collnet.Backend // registers memory with groups of a CollNet plugin; nil unless the environment names one

	NVLS *nvls.Backend // binds memory of devices to multicast objects; nil unless the environment asks for it

	id       roster.Identity // identifies this rank in handles
	copiers  copiers
	served   served
	rank     int                // in its first communicator
	log      *slog.Logger       // the first communicator's
	failures atomic.Uint64      // see Failed
	faults   *faults.Rank       // which UBCOLL_FAULT asks of this rank; nil: none
	device   DomainDevice       // nil without one
	survivor bootstrap.Survivor // nil: the bootstrap's Close waits for nobody
	ends     team.Gate          // counts Closes and Frees that are not finished: the domain's end waits for them

	closeTimeout atomic.Int64  // how long Close and Free wait at most, in nanoseconds
	copyTimeout  time.Duration // see Options

	job, size uint64     // its first communicator: the number and the size
	dumping   sync.Mutex // held while a dump is written

	mu        sync.Mutex
	comms     int
	open      []*Comm // those that dumps are of
	closed    bool
	attached  []Attachment // see NewAttachment
	advancers []Advancer   // those of attached that are
	retired   []retiree    // areas of closed communicators that peers may still read
}

// retiree is a closed communicator's shared memory. It is freed once every peer has closed the communicator, too. If
// the communicator had broken, lift then ends the quarantine, because no peer lags any more.
type retiree struct {
	allocs []*mem.Allocation
	peers  []team.Reader
	lift   func() // or nil
}

// NewIPC makes the transport. Open gets it as an argument because the transport's device side imports the engine.
type NewIPC func(h *mem.Heap, secret []byte) (IPC, error)

// survive tells the bootstrap that ranks have died, and this one goes on.
func (d *Domain) survive() {
	if d.survivor != nil {
		d.survivor.Survive()
	}
}

// SetDevice sets what the domain has on its device.
func (d *Domain) SetDevice(on DomainDevice) { d.device = on }

// Device is this rank's device; nil without one.
func (d *Domain) Device() DomainDevice { return d.device }

// UseGPU has RDMA devices ask g about memory of this rank's device.
func (d *Domain) UseGPU(g mr.GPU) {
	if d.nics != nil {
		d.nics.UseGPU(g)
	}
}

// IPC reaches the memory of the ranks of this host, and their devices.
type IPC interface {
	team.Transport
	DeviceTransport
}

func newDomain(r *roster.Roster, log *slog.Logger, o *Options, goHeap bool, gpu string, p *Providers) (*Domain, error) {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	d := &Domain{rank: r.Rank(), job: r.Comm, size: uint64(r.Size()), log: log, copyTimeout: cmp.Or(o.CopyTimeout, time.Second)}
	d.closeTimeout.Store(int64(CloseTimeout))
	var err error
	if d.id, err = r.Identity(); err != nil {
		return nil, err
	}
	h, err := mem.New(binary.LittleEndian.Uint64(id[:]), goHeap)
	if err != nil {
		return nil, err
	}
	ipc, err := p.IPC(h, r.Secret)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	d.Heap, d.IPC, d.Exports = h, ipc, ipc
	regions, err1 := env.MaxRegions.Get()
	pinned, err2 := env.MaxPinned.Get()
	config := register.Config{MaxRegions: regions, MaxBytes: int64(pinned), Pin: o.Pin,
		Locker: &locker{heap: h, log: log, pin: o.Pin}, Backends: []register.Backend{d.IPC}, OnError: d.cacheFailed}
	if on, err := env.NVLS.Get(); err == nil && on == "on" {
		d.NVLS = nvls.New(h)
		config.Backends = append(config.Backends, d.NVLS)
	}
	var err3 error
	if len(r.Hosts) > 1 {
		keep := func(m register.Memory) { d.Heap.Abandon(m.Base, m.Bytes, m.Generation) }
		if d.fabric, err3 = collnet.FromEnv(log, r.Comm, keep); d.fabric != nil {
			config.Backends = append(config.Backends, d.fabric)
		}
	}
	net, none, err := d.openNet(p, len(r.Hosts) > 1, o.Net, gpu)
	if net != nil {
		config.Backends = append(config.Backends, net)
	}
	config.NoNet = none
	if err = errors.Join(err, err1, err2, err3); err == nil {
		d.Cache, err = register.New(config)
	}
	if err != nil {
		return nil, errors.Join(err, d.nics.Close(), d.ofi.Close(), d.IPC.Close(), h.Close())
	}
	return d, nil
}

// openNet opens what moves registered memory between hosts, if anything does: libfabric's domains or RDMA devices, never both.
// If there is nothing, b is nil, and none says why. wanted is Options.Net, gpu the PCI address of this rank's device, or "".
func (d *Domain) openNet(p *Providers, several bool, wanted, gpu string) (b register.Backend, none, err error) {
	keep := func(m register.Memory) { d.Heap.Keep(m.Base, m.Bytes, m.Generation) }
	var noFabric error
	if d.ofi, noFabric, err = ofi.FromEnv(d.log, several, wanted, p.Interfaces, keep); err != nil {
		return nil, nil, err
	}
	if d.ofi != nil {
		_, err = mr.ConfigFromEnv() // malformed variables are errors even if nobody uses them
		return d.ofi, nil, err
	}
	if d.nics, none, err = mr.FromEnv(d.log, several, wanted, gpu, keep); err != nil {
		return nil, nil, err
	}
	if d.nics != nil {
		return d.nics, nil, nil
	}
	if ofi.Asked(wanted) {
		none = fmt.Errorf("%w; %w", noFabric, none)
	}
	return nil, none, nil
}

// locker locks registered host memory, as far as RLIMIT_MEMLOCK allows.
type locker struct {
	heap   *mem.Heap
	log    *slog.Logger
	pin    register.Pin
	logged sync.Once
}

// Lock implements register.Locker. It logs the first failure.
func (l *locker) Lock(m register.Memory) error {
	a := l.heap.Lookup(m.Base, m.Bytes)
	if a == nil || a.At.Generation != m.Generation {
		return fmt.Errorf("%v is no allocation of this rank: %w", m, fault.ErrStale)
	}
	err := a.Lock()
	if err != nil && !errors.Is(err, fault.ErrNotSupported) {
		l.logged.Do(func() {
			what := "registered memory is not locked, and may be paged out"
			if l.pin == register.PinRequired {
				what = "memory cannot be locked, and is not registered"
			}
			l.log.Info("ubcoll: "+what, "memory", m, "error", err)
		})
	}
	return err
}

// Unlock implements register.Locker.
func (l *locker) Unlock(m register.Memory) error {
	if a := l.heap.Lookup(m.Base, m.Bytes); a != nil && a.At.Generation == m.Generation {
		return a.Unlock()
	}
	return nil // the lock ended with the memory
}

// Memory describes a to the cache.
func Memory(a *mem.Allocation) register.Memory {
	return register.Memory{ID: uint64(a.At.Slot) + 1, Generation: a.At.Generation, Base: a.Base(), Bytes: a.Bytes,
		Device: a.Dev, Kind: a.Origin.String()}
}

// free ends an allocation. It returns fault.ErrInUse while a registration, window or graph holds it, and, for adopted
// host memory, while an operation uses it. Otherwise it returns at once, and completes when operations in flight have
// ended. pass waits for operations that use memory without holding it; within limits how long the call waits for the
// rest. Other errors are those of the work done so far; the memory is freed all the same.
func (d *Domain) free(a *mem.Allocation, pass func(), within func(func() error) error) error {
	if d.Heap.Quarantined() {
		d.IPC.Look()
	}
	var end ending
	var late error
	var finish func()
	held := false // held until pass has returned
	err := a.Leave(func() (err error) {
		finish, err = d.Cache.Leave(Memory(a), func() error {
			if a.Origin != mem.Adopted {
				held = a.Hold()
			} else if held = a.HoldLast(); !held { // after Free the owner may do anything with it
				return fmt.Errorf("a copy or an operation under way, or a message that is posted, uses it, and it is not this "+
					"library's to keep (wait for that first): %w", fault.ErrInUse)
			}
			return nil
		}, func(failed error) {
			a.WhenIdle(func() {
				if end.set(d, errors.Join(failed, d.Heap.Retire(a))) {
					d.returnLater(a)
				}
			})
		})
		return err
	})
	if err != nil {
		return err
	}
	rest := func() error {
		finish()
		if a.Dev.IsHost() {
			pass()
			late = d.Cache.Invalidate(a.Base(), a.Bytes) // registrations that such operations have made meanwhile
		}
		if held {
			a.Release()
		}
		if a.Origin == mem.DeviceAdopted { // after Free the owner may give it back to the driver
			team.PauseUntil(func() bool { return a.Holders() == 0 })
		}
		defer d.sweep(!a.Dev.IsHost())
		over, err := end.soFar(late)
		if over && err == nil {
			d.Heap.Return(a)
		}
		return err
	}
	if a.Dev.IsHost() {
		return rest()
	}
	return within(rest)
}

// ending is the error of an ending, for a call that may return before the end.
type ending struct {
	mu       sync.Mutex
	returned bool
	over     bool
	err      error
}

// set records that the end has come, and its error. If the call has returned already, the domain logs the error. late
// reports whether it has, and neither it nor the end has failed.
func (e *ending) set(d *Domain, err error) (late bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.returned {
		d.Failed(err)
	}
	e.over, e.err = true, errors.Join(e.err, err)
	return e.returned && e.err == nil
}

// soFar adds err, and returns whether the end has come, and the error so far, for the call to return.
func (e *ending) soFar(err error) (over bool, all error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.returned = true
	e.err = errors.Join(err, e.err)
	return e.over, e.err
}

// returnLater is Heap.Return after a Free that has returned. The caller may hold locks, or be a device's callback. The
// domain's end waits for it, or does it.
func (d *Domain) returnLater(a *mem.Allocation) {
	if a.Origin != mem.Adopted && a.Origin != mem.DeviceAdopted {
		return
	}
	if !d.ends.Enter() {
		d.ends.Leave()
		return
	}
	go func() {
		defer d.ends.Leave()
		d.Heap.Return(a)
	}()
}

// Failed counts and logs err, a failure to free something that no call can return, unless it is nil.
func (d *Domain) Failed(err error) { d.failedTo("give memory back", err) }

// cacheFailed is Failed for what the cache reports.
func (d *Domain) cacheFailed(err error) {
	if invariants.Enabled && errors.Is(err, fault.ErrArgument) {
		invariants.Violated("%v", err)
	}
	d.Failed(err)
}

func (d *Domain) failedTo(do string, err error) {
	if err == nil {
		return
	}
	d.failures.Add(1)
	d.log.Warn("ubcoll: failed to "+do, "rank", d.rank, "error", err)
}

func (d *Domain) card() (json.RawMessage, error) { return d.IPC.Card() }

func (d *Domain) attach(ctx context.Context, card json.RawMessage) (team.PeerMemory, error) {
	return d.IPC.Attach(ctx, card)
}

func (d *Domain) hold() {
	d.mu.Lock()
	d.comms++
	d.mu.Unlock()
}

// sweep frees the areas that no peer reads any more; those on devices only if wait is set, because that may wait for
// peers. The domain is not locked meanwhile, so other calls do not wait.
func (d *Domain) sweep(wait bool) {
	defer d.ends.Leave()
	if !d.ends.Enter() {
		return // the domain's end frees all
	}
	for _, r := range d.reclaimable(wait) {
		for _, a := range r.allocs {
			d.giveBack(a)
		}
		if r.lift != nil {
			r.lift()
		}
	}
}

// reclaimable takes the memory that sweep can free out of d.retired.
func (d *Domain) reclaimable(wait bool) (free []retiree) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var rest []retiree
	for _, r := range d.retired {
		open := false
		for _, p := range r.peers {
			open = open || !p.Done()
		}
		if open {
			rest = append(rest, r)
			continue
		}
		if !wait {
			var later []*mem.Allocation
			r.allocs = slices.DeleteFunc(slices.Clone(r.allocs), func(a *mem.Allocation) bool {
				if !a.Dev.IsHost() {
					later = append(later, a)
				}
				return !a.Dev.IsHost()
			})
			if later != nil {
				rest = append(rest, retiree{allocs: later})
			}
		}
		free = append(free, r)
	}
	d.retired = rest
	return free
}

// giveBack frees memory of the library. What a peer does not unmap in time, a later sweep or the domain's end frees.
func (d *Domain) giveBack(a *mem.Allocation) {
	if !a.Dev.IsHost() {
		if err := d.Exports.Withdraw(withdrawTime, a); err != nil {
			d.Failed(err)
			d.mu.Lock()
			d.retired = append(d.retired, retiree{allocs: []*mem.Allocation{a}})
			d.mu.Unlock()
			return
		}
	}
	d.Failed(d.Heap.Retire(a))
}

const withdrawTime = 2 * time.Second

// Retire frees allocs when no peer reads them any more.
func (d *Domain) Retire(allocs []*mem.Allocation, peers []team.Reader) {
	d.mu.Lock()
	d.retired = append(d.retired, retiree{allocs, peers, nil})
	d.mu.Unlock()
	d.sweep(true)
}

// drop ends one communicator's hold; the last one ends the domain.
func (d *Domain) drop(allocs []*mem.Allocation, peers []team.Reader, lift func()) error {
	d.mu.Lock()
	d.comms--
	if d.comms > 0 {
		d.retired = append(d.retired, retiree{allocs, peers, lift})
		d.mu.Unlock()
		d.sweep(true)
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	d.faults.End()
	d.ends.Drain() // everything that they wait for still exists
	d.copiers.close()
	var errs []error
	if d.network != nil {
		errs = append(errs, d.network.Close())
	}
	errs = append(errs, d.Cache.End(), d.nics.Close(), d.ofi.Close(), d.NVLS.Close(withdrawTime, d.IPC.Look), d.IPC.Close())
	if d.device != nil {
		errs = append(errs, d.device.Unpin())
	}
	errs = append(errs, d.Heap.Close())
	if d.device != nil {
		errs = append(errs, d.device.Close())
	}
	if invariants.Enabled {
		d.checkClosed()
	}
	return errors.Join(errs...)
}

// checkClosed checks that nothing uses registered memory any more.
func (d *Domain) checkClosed() {
	if s := d.Cache.Stats(); s.Regions > 0 || s.Extents > 0 {
		invariants.Violated("the domain is closed, and uses of %d registrations of %d pieces of memory have not ended", s.Regions,
			s.Extents)
	}
}

// traffic is what this rank has exchanged with each other host.
func (d *Domain) traffic() []hosts.Traffic {
	if d.network == nil {
		return nil
	}
	return d.network.Traffic(func(rank int) string { return d.hosts[rank] })
}

// Identity is what this rank's handles say about it.
func (d *Domain) Identity() *roster.Identity { return &d.id }

// NICs are the RDMA devices that have this rank's registrations, or nil.
func (d *Domain) NICs() *mr.Backend { return d.nics }

// Closed reports whether the rank's last communicator has closed.
func (d *Domain) Closed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}
