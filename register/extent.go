package register

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// extent is the registration of a whole allocation with the backends. It lives as long as claims in it do. An extent
// that could not be registered is kept without claims, to remember the failure.
type extent struct {
	cache  *Cache
	mem    Memory
	pinned int64       // bytes, rounded to pages
	gone   atomic.Bool // freed, unmapped or replaced: takes no new claim; set under the cache's mutex

	// Guarded by the cache's mutex.
	place   Claim              // stands for the allocation's exact bytes in the cache's index of extents
	claims  int                // number of claims, until their last use has left; registering ones included
	pending int                // of these, the ones that register for a local or graph reference
	ready   bool               // register has returned
	done    func(failed error) // the function that Forget promised to call

	// Set by the first register, then constant.
	once     sync.Once
	states   []state // one for each of Cache.backends; nil if unpinned
	failed   error   // it is unpinned, or no backend could register it and at least one error is not "not supported"
	loose    error   // why it is not locked in memory; nil if it is
	unpinned bool    // it could not be locked, which Config.Pin requires; later registrations try again: see worthless
	tried    time.Time
}

var errNoLocker = fmt.Errorf("nobody locks it: %w", fault.ErrNotSupported)

// state is the result of one backend for an extent.
type state struct {
	handle any
	err    error // nil: complete
	why    error // the backend's own error, which err wraps
}

// errAbsent is the error for a backend that the cache does not have.
var errAbsent [kinds]error

func init() {
	for k := range errAbsent {
		errAbsent[k] = fmt.Errorf("there is no %v backend: %w", BackendKind(k), fault.ErrNotSupported)
	}
}

// absent returns why the cache has no backend of a kind.
func (c *Cache) absent(k BackendKind) error {
	if k == NET && c.config.NoNet != nil {
		return c.config.NoNet
	}
	return errAbsent[k]
}

func (e *extent) handle(k BackendKind) (any, error) {
	if k < 0 || k >= kinds {
		return nil, fmt.Errorf("%v is not a kind of backend: %w", k, fault.ErrArgument)
	}
	i := e.cache.slot[k]
	if i < 0 {
		return nil, e.cache.absent(k)
	}
	return e.states[i].handle, e.states[i].err
}

// register locks the memory and asks every backend, once. It is called without the cache's mutex; concurrent calls wait
// for the first.
func (e *extent) register() error {
	e.once.Do(func() {
		e.lock()
		if e.cache.config.Pin == PinRequired && e.loose != nil && !errors.Is(e.loose, fault.ErrNotSupported) {
			e.unpinned, e.tried = true, time.Now()
			e.failed = fmt.Errorf("it cannot be locked in memory, and Options.Pin is required: %w", e.loose)
			return
		}
		if e.failed = e.ask(); e.failed != nil {
			e.failed = errors.Join(e.failed, e.unlock())
			e.loose = errNoLocker
		}
	})
	return e.failed
}

// relock is how long automatic registrations wait before they try again to lock memory. A failure costs system calls,
// and operations on such memory would have one each.
const relock = time.Second

// worthless reports whether a registration of that purpose would fail again.
func (e *extent) worthless(why purpose) bool {
	return why == forUse && (!e.unpinned || time.Since(e.tried) < relock)
}

// ask asks every backend. Registration succeeds if a backend is complete, if there is none, or if all of them say "not
// supported" (transports then stage, with that reason). If one backend fails but another is complete, that is no
// failure: data goes the other way, and Handle, Explain and Stats tell.
func (e *extent) ask() error {
	var failures []error
	complete, unsupported := 0, 0
	e.states = make([]state, len(e.cache.backends))
	for i, b := range e.cache.backends {
		begin := time.Now()
		h, err := b.Register(e.mem)
		s := &e.states[i]
		s.why = err
		e.cache.counters.registerTime.Add(int64(time.Since(begin)))
		count := &e.cache.counters.kinds[b.Kind()]
		switch {
		case err == nil:
			s.handle = h
			complete++
			count.complete.Add(1)
			count.registered.Add(1)
		case errors.Is(err, fault.ErrNotSupported):
			s.err = fmt.Errorf("memory at %#x: %w", e.mem.Base, err)
			unsupported++
			count.unsupported.Add(1)
		default:
			s.err = fmt.Errorf("%v could not register %v: %w", b.Kind(), e.mem, err)
			failures = append(failures, s.err)
			count.failures.Add(1)
		}
	}
	e.cache.counters.failures.Add(int64(len(failures)))
	if complete == 0 && unsupported < len(e.states) {
		return errors.Join(failures...)
	}
	return nil
}

// lock locks the extent in memory, if it is the host's and somebody locks it.
func (e *extent) lock() {
	l := e.cache.config.Locker
	if l == nil || !e.mem.Device.IsHost() {
		return
	}
	begin := time.Now()
	if e.loose = l.Lock(e.mem); e.loose == nil {
		e.cache.counters.locked.Add(e.pinned)
	}
	e.cache.counters.registerTime.Add(int64(time.Since(begin)))
}

// unlock undoes lock.
func (e *extent) unlock() error {
	if e.loose != nil {
		return nil
	}
	e.cache.counters.locked.Add(-e.pinned)
	if err := e.cache.config.Locker.Unlock(e.mem); err != nil {
		return fmt.Errorf("could not unlock %v: %w", e.mem, err)
	}
	return nil
}

// deregister deregisters from the complete backends, in the order of BackendKind, unlocks the memory, and tells the
// owner of forgotten memory. It is called once, without the cache's mutex. A failure does not keep the next backend
// from its turn. deregister returns the failures, unless it has told them to the owner.
func (e *extent) deregister() (failures []error) {
	begin := time.Now()
	for i, b := range e.cache.backends {
		if i >= len(e.states) || e.states[i].err != nil {
			continue
		}
		count := &e.cache.counters.kinds[b.Kind()]
		count.complete.Add(-1)
		if err := b.Deregister(e.mem, e.states[i].handle); err != nil {
			count.failures.Add(1)
			failures = append(failures, fmt.Errorf("%v could not deregister %v: %w", b.Kind(), e.mem, err))
		}
	}
	if invariants.Enabled {
		e.poison()
	}
	if err := e.unlock(); err != nil {
		failures = append(failures, err)
	}
	e.cache.counters.deregisterTime.Add(int64(time.Since(begin)))
	e.cache.counters.failures.Add(int64(len(failures)))
	if done := e.cache.left(e); done != nil {
		done(errors.Join(failures...))
		return nil
	}
	return failures
}
