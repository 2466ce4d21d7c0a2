package coll_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/model"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// The model says which way data take, and how many bytes the messages of the agreement have on the host that sends most. (What
// it says of schedules is held by theirs.)
func TestAcrossModel(t *testing.T) {
	kinds := map[string]team.OpKind{"reduce_scatter": team.KindReduceScatter, "reduce": team.KindReduce, "all_gather": team.KindAllGather,
		"gather": team.KindGather, "scatter": team.KindScatter, "all_to_all": team.KindAllToAll, "all_reduce": team.KindAllReduce,
		"broadcast": team.KindBroadcast}
	for i, hosts := range []string{"ab", "abc", "abcd", "abcdef", "aabb", "aabbc"} {
		t.Run(hosts, func(t *testing.T) {
			testkit.Turn(t, i, 3)
			ranks := len(hosts)
			names := slices.Sorted(maps.Keys(kinds))
			sent, ways := make([]map[string]float64, ranks), make([]map[string]string, ranks) // of each rank, by call
			var layout team.Layout
			requireAll(t, onHostsWith(t, hosts, inside.Providers.Network, engine.Options{}, func(c *ubcoll.Comm) error {
				me := c.Rank()
				sent[me], ways[me] = map[string]float64{}, map[string]string{}
				if me == 0 {
					layout = *(*inside.Comm)(c).View().Team().Hosts.Layout()
				}
				for _, name := range names {
					for _, count := range []int{64, 512, 40_000} {
						key := fmt.Sprint(name, count)
						sent[me][key] = math.Inf(1)
						for range 3 { // what a call leaves queued may leave with the next
							if err := coll.Barrier(context.Background(), c); err != nil {
								return err
							}
							before := sentBy(c)
							if err := collectiveOf(c, name, count); err != nil {
								return err
							}
							sent[me][key] = min(sent[me][key], float64(sentBy(c)-before))
						}
						ways[me][key], _, _ = strings.Cut(c.LastOp().Algorithm, " ")
					}
				}
				return nil
			}))
			for _, name := range names {
				for _, count := range []int{64, 512, 40_000} {
					key := fmt.Sprint(name, count)
					o := model.Op{Kind: kinds[name], Count: count, Size: 4}
					way := model.Chosen(&layout, &schedule.Default, "", o)
					most := 0.0
					for r := range ranks {
						require.Equal(t, ways[r][key], way.String(), key)
						most = max(most, sent[r][key])
					}
					if model.Small(&layout, o) == 0 {
						continue
					}
					bytes := model.Terms(&layout, &schedule.Default, o, way).Swapped
					heads := bits.Len(uint(layout.Hosts-1)) * 88 // of frames and proposals
					low := bytes
					if name == "gather" && way == schedule.Routed {
						low = 0 // the root has most to do, and sends none
					}
					require.GreaterOrEqual(t, most, low, key)
					require.LessOrEqual(t, most, bytes+float64(heads), key)
				}
			}
		})
	}
}

// sentBy is how many bytes this rank has sent to other hosts.
func sentBy(c *ubcoll.Comm) (n uint64) {
	for _, h := range c.Stats().Hosts {
		n += h.SentBytes
	}
	return n
}

func collectiveOf(c *ubcoll.Comm, name string, count int) error {
	ctx, all := context.Background(), count*c.Size()
	x, y := ubcoll.Of(make([]float32, all)), ubcoll.Of(make([]float32, all))
	one, other := ubcoll.Of(make([]float32, count)), ubcoll.Of(make([]float32, count))
	switch name {
	case "all_reduce":
		return coll.AllReduce(ctx, c, one, other, ubcoll.Sum)
	case "broadcast":
		return coll.Broadcast(ctx, c, one, 0)
	case "reduce":
		return coll.Reduce(ctx, c, one, other, ubcoll.Sum, 0)
	case "all_gather":
		return coll.AllGather(ctx, c, x, one)
	case "reduce_scatter":
		return coll.ReduceScatter(ctx, c, one, x, ubcoll.Sum)
	case "gather":
		return coll.Gather(ctx, c, x, one, 0)
	case "scatter":
		return coll.Scatter(ctx, c, one, x, 0)
	}
	return coll.AllToAll(ctx, c, x, y)
}
