package engine

import (
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

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// Domain is what one rank has once, whatever the number of its communicators: its memory, its registration cache, its
// transports. It lives until its last communicator closes.
type Domain struct {
	Heap    *mem.Heap
	Cache   *register.Cache
	IPC     team.Transport
	Exports DeviceTransport // the same

	network *hosts.Network // nil in jobs of one host
	nics    *mr.Backend    // what registers with them; nil unless the environment asks for it

	id       roster.Identity // of what this rank exports
	copiers  copiers
	rank     int           // of its first communicator
	log      *slog.Logger  // of all of them
	failures atomic.Uint64 // see Failed
	device   DomainDevice  // nil without one
	ends     team.Gate     // what a Close or Free still does, without its caller or with: the domain's end waits for it

	mu       sync.Mutex
	comms    int
	closed   bool
	attached []Attachment // see NewAttachment
	retired  []retiree    // areas of closed communicators that peers may still read
}

// retiree is a closed communicator's shared memory, given back once every peer has closed it too. If it had broken,
// lift ends the quarantine then: no peer lags any more.
type retiree struct {
	allocs []*mem.Allocation
	peers  []team.Reader
	lift   func() // or nil
}

// NewIPC makes the transport; the root passes it to Open, since the side of it that reaches devices imports the engine.
type NewIPC func(h *mem.Heap, secret []byte) (IPC, error)

// SetDevice gives the domain what it has on its device.
func (d *Domain) SetDevice(on DomainDevice) { d.device = on }

// IPC reaches the memory of the ranks of this host, and their devices.
type IPC interface {
	team.Transport
	DeviceTransport
}

func newDomain(r *roster.Roster, log *slog.Logger, goHeap bool, newIPC NewIPC) (*Domain, error) {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	d := &Domain{rank: r.Rank(), log: log}
	var err error
	if d.id, err = r.Identity(); err != nil {
		return nil, err
	}
	h, err := mem.New(binary.LittleEndian.Uint64(id[:]), goHeap)
	if err != nil {
		return nil, err
	}
	ipc, err := newIPC(h, r.Secret)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	d.Heap, d.IPC, d.Exports = h, ipc, ipc
	regions, err1 := env.MaxRegions.Get()
	pinned, err2 := env.MaxPinned.Get()
	config := register.Config{MaxRegions: regions, MaxBytes: int64(pinned), Locker: &locker{heap: h, log: log},
		Backends: []register.Backend{d.IPC}, OnError: d.Failed}
	d.nics, config.NoNet, err = mr.FromEnv(log, func(m register.Memory) { h.Keep(m.Base, m.Bytes, m.Generation) })
	if d.nics != nil {
		config.Backends = append(config.Backends, d.nics)
	}
	if err = errors.Join(err, err1, err2); err == nil {
		d.Cache, err = register.New(config)
	}
	if err != nil {
		return nil, errors.Join(err, d.nics.Close(), d.IPC.Close(), h.Close())
	}
	return d, nil
}

// locker locks registered host memory, as far as RLIMIT_MEMLOCK goes.
type locker struct {
	heap *mem.Heap
	log  *slog.Logger
	told sync.Once
}

// Lock implements register.Locker. Why the first one failed is logged.
func (l *locker) Lock(m register.Memory) error {
	a := l.heap.Lookup(m.Base, m.Bytes)
	if a == nil || a.At.Generation != m.Generation {
		return fmt.Errorf("%v is no allocation of this rank: %w", m, fault.ErrStale)
	}
	err := a.Lock()
	if err != nil && !errors.Is(err, fault.ErrNotSupported) {
		l.told.Do(func() {
			l.log.Info("ubcoll: registered memory is not locked, and may be paged out", "memory", m, "error", err)
		})
	}
	return err
}

// Unlock implements register.Locker.
func (l *locker) Unlock(m register.Memory) error {
	if a := l.heap.Lookup(m.Base, m.Bytes); a != nil && a.At.Generation == m.Generation {
		return a.Unlock()
	}
	return nil // the lock went with the memory
}

// Memory describes a to the cache.
func Memory(a *mem.Allocation) register.Memory {
	return register.Memory{ID: uint64(a.At.Slot) + 1, Generation: a.At.Generation, Base: a.Base(), Bytes: a.Bytes,
		Device: a.Dev, Kind: a.Origin.String()}
}

// free ends an allocation: fault.ErrInUse while a registration, window or graph is open, and of adopted memory of the
// host while an operation uses it; else it returns at once and completes when operations in flight leave. pass waits
// for what uses it without holding it, and within bounds how long the call waits for the rest. Other errors are of what
// was done with it so far, and do not keep it from being freed.
func (d *Domain) free(a *mem.Allocation, pass func(), within func(func() error) error) error {
	if d.Heap.Quarantined() {
		d.IPC.Look()
	}
	var end ending
	var finish func()
	held := false // until the messages that come and go without holding it are over
	err := a.Leave(func() (err error) {
		if a.Origin == mem.Adopted && a.Holders() > 0 { // after Free its owner may do anything with it
			return fmt.Errorf("an operation under way, or a message that is posted, uses it, and it is not this library's to "+
				"keep (wait for that first): %w", fault.ErrInUse)
		}
		held = a.Hold()
		finish, err = d.Cache.Leave(Memory(a), func(failed error) {
			a.WhenIdle(func() { end.set(d, errors.Join(failed, d.Heap.Retire(a))) })
		})
		return err
	})
	if err != nil {
		if held {
			a.Release()
		}
		return err
	}
	rest := func() error {
		finish()
		var late error
		if a.Dev.IsHost() {
			pass()
			late = d.Cache.Invalidate(a.Base(), a.Bytes) // what they have registered meanwhile
		}
		if held {
			a.Release()
		}
		defer d.sweep(!a.Dev.IsHost())
		return errors.Join(late, end.soFar())
	}
	if a.Dev.IsHost() {
		return rest()
	}
	return within(rest)
}

// ending is what the end of something said, which a call may wait for, or not.
type ending struct {
	mu       sync.Mutex
	returned bool
	err      error
}

// set says that it has come. Where the call has returned already, the domain tells what failed.
func (e *ending) set(d *Domain, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.returned {
		d.Failed(err)
	}
	e.err = err
}

// soFar is for the call to return.
func (e *ending) soFar() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.returned = true
	return e.err
}

// Failed counts and logs a failure to give something back, unless it is nil: no call is there to return it.
func (d *Domain) Failed(err error) { d.failedTo("give memory back", err) }

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

// sweep gives back the areas that no peer reads any more: those on devices, too, if it may wait for peers. Nobody else
// waits for that: the domain is not locked meanwhile.
func (d *Domain) sweep(wait bool) {
	defer d.ends.Leave()
	if !d.ends.Enter() {
		return // all goes with the domain
	}
	for _, r := range d.ripe(wait) {
		for _, a := range r.allocs {
			d.giveBack(a)
		}
		if r.lift != nil {
			r.lift()
		}
	}
}

// ripe takes what sweep gives back.
func (d *Domain) ripe(wait bool) (ripe []retiree) {
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
		ripe = append(ripe, r)
	}
	d.retired = rest
	return ripe
}

// giveBack retires memory of the library's own: what of a device a peer has not unmapped after a while, in a later sweep,
// or with the domain.
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

// Retire gives allocs back when no peer reads them any more.
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
	d.ends.Drain() // what they wait for is still there
	d.copiers.close()
	var errs []error
	if d.network != nil {
		errs = append(errs, d.network.Close())
	}
	errs = append(errs, d.Cache.End(), d.nics.Close(), d.IPC.Close(), d.Heap.Close())
	if d.device != nil {
		errs = append(errs, d.device.Close())
	}
	return errors.Join(errs...)
}

// Identity is what handles of this rank say of it.
func (d *Domain) Identity() *roster.Identity { return &d.id }

// Closed reports whether the rank's last communicator has closed.
func (d *Domain) Closed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}
