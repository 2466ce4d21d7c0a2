package coll_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// TestLastArrivals: a rank that comes late to each call is the one that all others have waited for most often: on one host,
// by group, and between hosts, however these agree.
func TestLastArrivals(t *testing.T) {
	const (
		calls = 6
		late  = 60 * time.Millisecond // long beside what a busy machine makes others wait
	)
	for name, k := range map[string]struct {
		hosts string
		late  int
		n     int // elements
	}{
		"one host":                        {"aaaa", 2, 4},
		"one host, a large operation":     {"aaaa", 1, 1 << 18},
		"groups":                          {strings.Repeat("a", 20), 13, 4},
		"groups, the leader of one":       {strings.Repeat("a", 20), 10, 4},
		"two hosts":                       {"aabb", 3, 4},
		"two hosts, a leader":             {"aabb", 2, 4},
		"two hosts, a large operation":    {"aabb", 1, 1 << 18},
		"three hosts":                     {"abbcc", 4, 4},
		"three hosts, one rank on a host": {"abc", 0, 4},
		"four hosts":                      {"aabbccdd", 5, 4},
	} {
		t.Run(name, func(t *testing.T) {
			last := make([][]ubcoll.LastArrival, len(k.hosts))
			requireAll(t, onHosts(t, k.hosts, func(c *ubcoll.Comm) error {
				x, y := make([]float32, k.n), make([]float32, k.n)
				for range calls + 1 { // hosts tell each other of an operation in the next one
					if c.Rank() == k.late {
						time.Sleep(late)
					}
					if err := coll.AllReduce(context.Background(), c, ubcoll.Of(y), ubcoll.Of(x), ubcoll.Sum); err != nil {
						return err
					}
				}
				last[c.Rank()] = c.Stats().LastArrivals
				return nil
			}))
			for r, all := range last {
				if r == k.late {
					continue // it has waited for nobody, or little
				}
				require.NotEmpty(t, all, "rank %d", r)
				require.Equal(t, k.late, all[0].Rank, "rank %d: %v", r, all)
				require.GreaterOrEqual(t, all[0].Calls, uint64(calls)/2, "rank %d: %v", r, all)
				require.GreaterOrEqual(t, all[0].Longest, late/2, "rank %d: %v", r, all)
				require.GreaterOrEqual(t, all[0].Longest, all[0].Median)
			}
		})
	}
}
