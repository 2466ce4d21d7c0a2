package rdma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/stats"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

const (
	leastRegion   = 4 << 10
	defaultRegion = 256 << 20
)

// lives returns how many regions of a size are made and closed.
func (c *Config) lives(bytes int) int {
	switch {
	case c.Iterations > 0:
		return c.Iterations
	case bytes <= 1<<20:
		return 200
	case bytes <= 16<<20:
		return 50
	}
	return 10
}

// registrations measures regions of 4 KiB and more, each four times as large as the one before. If the user has not
// asked for a size, they end with the largest that can be registered.
func (r *runner) registrations(ctx context.Context) error {
	most, asked := r.cfg.MaxRegion, r.cfg.MaxRegion > 0
	if !asked {
		most = defaultRegion
	}
	r.text.registrations()
	for n := leastRegion; n <= most; n *= 4 {
		reg, err := r.registration(ctx, n)
		if errors.Is(err, fault.ErrLimit) && !asked && n > leastRegion {
			r.rep.Limit = err.Error()
			r.text.printf("# no larger region: %s\n", r.rep.Limit)
			return nil
		}
		if err != nil {
			return err
		}
		r.rep.Registration = append(r.rep.Registration, reg)
		r.text.registration(&reg)
	}
	return nil
}

// registration measures regions of n bytes, on a memory file like the memory of ubcoll.Alloc.
func (r *runner) registration(ctx context.Context, n int) (reg Registration, err error) {
	if free := shm.FreeMemory(); n > free {
		return reg, fmt.Errorf("a region of %d bytes (-max), where %d can be had (MemAvailable, or the control group's limit): %w", n,
			free, ubcoll.ErrLimit)
	}
	f, err := shm.Create("ubcoll-bench", n)
	if err != nil {
		return reg, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	p, err := f.Map(0, n, true)
	if err != nil {
		return reg, err
	}
	defer func() { err = errors.Join(err, shm.Unmap(p, n)) }()
	reg.Bytes = n
	if reg.Resident, err = r.cost(ctx, p, n, func() error { return nil }); err != nil {
		return reg, err
	}
	if reg.Hit, err = r.hits(p, n); err != nil {
		return reg, err
	}
	reg.Untouched, err = r.cost(ctx, p, n, func() error { return f.Punch(0, n) })
	return reg, err
}

// cost registers the n bytes at p and closes the region, again and again.
func (r *runner) cost(ctx context.Context, p unsafe.Pointer, n int, before func() error) (c Cost, err error) {
	lives := r.cfg.lives(n)
	register, deregister := make([]float64, 0, lives), make([]float64, 0, lives)
	for i := range lives + 1 { // the first one does not count
		if err := errors.Join(before(), context.Cause(ctx)); err != nil {
			return c, err
		}
		start := now()
		mr, err := r.end.pd.Register(uintptr(p), n, access)
		if err != nil {
			return c, err
		}
		registered := now()
		if err := mr.Close(); err != nil {
			return c, err
		}
		closed := now()
		if i > 0 {
			register = append(register, micros(registered-start))
			deregister = append(deregister, micros(closed-registered))
		}
	}
	return Cost{stats.SpreadOf(register), stats.SpreadOf(deregister)}, nil
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

const access = verbs.LocalWrite | verbs.Remote

const (
	hitBatch   = 64 // lookups between two readings of the clock, which cost as much as a lookup
	hitBatches = 1000
)

// hits looks up the n bytes at p in a cache that has them, and their keys: what a transfer does instead of registering.
func (r *runner) hits(p unsafe.Pointer, n int) (t Times, err error) {
	only, err := verbs.ParseSelection("=" + r.end.pd.Device().Name())
	if err != nil {
		return t, err
	}
	nic, err := mr.Open(mr.Config{Select: only})
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	cache, err := register.New(register.Config{Backends: []register.Backend{nic}})
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, cache.Close()) }()
	ref, err := cache.Register(register.Memory{ID: 1, Generation: 1, Base: uintptr(p), Bytes: n, Kind: "memory file"}, uintptr(p), n)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(ref.Close(), err) }()
	ns := make([]float64, hitBatches)
	for i := range ns {
		start := now()
		for range hitBatch {
			claim := cache.FindLocal(uintptr(p), n, 0)
			if claim == nil {
				return t, errors.New("the cache has forgotten a region that is registered")
			}
			handle, err := claim.Handle(register.NET)
			if err == nil {
				_, err = handle.(*mr.Region).For(verbs.LocalWrite | verbs.RemoteWrite)
			}
			if claim.Release(); err != nil {
				return t, err
			}
		}
		ns[i] = float64(now()-start) / hitBatch
	}
	slices.Sort(ns)
	return Times{ns[len(ns)/2], ns[len(ns)*99/100]}, nil
}
