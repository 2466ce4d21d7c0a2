package bench

import (
	"context"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/stats"
)

const (
	hitBatch   = 64 // lookups between two readings of the clock; reading it costs as much as a lookup
	hitBatches = 1000
	churnBytes = 64 << 10
	churns     = 50
)

// cacheTimes measures the registration cache. If m is registered, it also measures looking m up and registering it
// again. Collective.
func cacheTimes(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, m *memory) (*CacheTimes, error) {
	s := c.Stats().Cache // before the lookups made here
	t := &CacheTimes{Hits: s.Hits, Misses: s.Misses, Regions: s.Regions, RegisteredBytes: s.RegisteredBytes, PinnedBytes: s.PinnedBytes,
		RegisterTime: float64(s.RegisterTime) / 1e3, ChurnBytes: churnBytes}
	if n := s.Hits + s.Misses; n > 0 {
		t.HitRate = float64(s.Hits) / float64(n)
	}
	if m.reg != nil {
		hitTimes(c, m, t)
		us := make([]float64, churns)
		for i := range us {
			start := time.Since(epoch)
			r, err := c.RegisterBuffer(m.vec)
			if err != nil {
				return nil, err
			}
			if err := r.Close(); err != nil {
				return nil, err
			}
			us[i] = float64(time.Since(epoch)-start) / 1e3
		}
		t.Again = stats.SpreadOf(us)
	}
	us := make([]float64, churns)
	for i := range us {
		if err := coll.Barrier(ctx, c); err != nil {
			return nil, err
		}
		start := time.Since(epoch)
		if err := churn(ctx, c, dev); err != nil {
			return nil, err
		}
		us[i] = float64(time.Since(epoch)-start) / 1e3
	}
	if err := combine(ctx, c, us, Max); err != nil {
		return nil, err
	}
	t.Churn = stats.SpreadOf(us)
	return t, nil
}

// hitTimes measures how long the cache takes to find m, and sets t's times of hits.
func hitTimes(c *ubcoll.Comm, m *memory, t *CacheTimes) {
	cache, v := (*inside.Comm)(c).View().Domain().Cache, (*inside.Vec)(&m.vec).Team()
	ns := make([]float64, hitBatches)
	for i := range ns {
		start := time.Since(epoch)
		for range hitBatch {
			if claim := cache.FindLocal(uintptr(v.Ptr), v.Bytes(), 0); claim != nil {
				claim.Release()
			}
		}
		ns[i] = float64(time.Since(epoch)-start) / hitBatch
	}
	slices.Sort(ns)
	t.HitP50, t.HitP99, t.HitMax = stats.Percentile(ns, 500), stats.Percentile(ns, 990), ns[len(ns)-1]
}

// churn allocates and registers a buffer, uses it for one all-reduce, and frees it.
func churn(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
	m, err := newMemory(c, dev, Registered, churnBytes)
	if err != nil {
		return err
	}
	if err := coll.AllReduce(ctx, c, m.vec, m.vec, ubcoll.Sum); err != nil {
		return err
	}
	return m.close()
}
