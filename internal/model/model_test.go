package model_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/model"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

var kinds = []team.OpKind{team.KindAllReduce, team.KindReduceScatter, team.KindReduce, team.KindAllGather, team.KindBroadcast,
	team.KindGather, team.KindScatter, team.KindAllToAll}

func TestChosen(t *testing.T) {
	m := schedule.Default
	for _, k := range []struct {
		on    []int
		kind  team.OpKind
		asked string
		count int
		want  schedule.Way
	}{
		{[]int{1, 1}, team.KindAllReduce, "", 16 << 10, schedule.Folded},
		{[]int{1, 1}, team.KindAllReduce, "ring", 16 << 10, schedule.Folded},
		{[]int{1, 1}, team.KindAllReduce, "", 16<<10 + 1, schedule.Doubling},
		{[]int{1, 1}, team.KindAllReduce, "ring", 16<<10 + 1, schedule.Ring},
		{[]int{1, 1}, team.KindAllReduce, "chain", 16<<10 + 1, schedule.Doubling},
		{[]int{1, 1, 1}, team.KindAllReduce, "", 1 << 20, schedule.Ring},
		{[]int{2, 2}, team.KindAllReduce, "", 2 << 10, schedule.Folded},
		{[]int{2, 2}, team.KindAllReduce, "", 2<<10 + 1, schedule.Doubling},
		{[]int{1, 1, 1}, team.KindReduce, "", 100, schedule.Folded},
		{[]int{1, 1}, team.KindReduce, "", 100, schedule.Shared},
		{[]int{1, 1, 1, 1}, team.KindReduceScatter, "", 100, schedule.Routed},
		{[]int{1, 1, 1, 1}, team.KindReduceScatter, "", 0, schedule.Shared},
		{[]int{1, 1, 1}, team.KindReduceScatter, "", 100, schedule.Folded},
		{[]int{1, 1, 1, 1}, team.KindReduceScatter, "", 100_000, schedule.ScatterHalving},
		{[]int{1, 1, 1, 1}, team.KindReduceScatter, "pairwise", 100_000, schedule.Pairwise},
		{[]int{1, 1, 1, 1}, team.KindReduceScatter, "halving", 1 << 20, schedule.Pairwise},
		{[]int{1, 1, 1}, team.KindReduceScatter, "halving", 100_000, schedule.Pairwise},
		{[]int{1, 1, 1}, team.KindGather, "tree", 40_000, schedule.GatherTree},
		{[]int{1, 1, 1}, team.KindGather, "tree", 1 << 20, schedule.Linear},
		{[]int{1, 1, 1}, team.KindScatter, "pairwise", 40_000, schedule.Linear},
		{[]int{2, 1, 1}, team.KindAllToAll, "", 10, schedule.Shared},
		{[]int{1, 1, 1}, team.KindAllToAll, "", 10, schedule.Routed},
		{[]int{2, 1, 1}, team.KindAllToAll, "doubling", 100_000, schedule.Pairwise},
		{[]int{2, 1, 1}, team.KindAllToAllV, "", 1, schedule.Pairwise},
	} {
		t.Run(fmt.Sprint(k.on, k.kind, k.asked, k.count), func(t *testing.T) {
			l := hosts.LayoutOf(k.on)
			o := model.Op{Kind: k.kind, Count: k.count, Size: 4}
			way := schedule.Way(0)
			if k.kind == team.KindAllToAllV {
				way = model.Way(&l, &m, k.asked, o) // those with counts have no small ones
			} else {
				way = model.Chosen(&l, &m, k.asked, o)
			}
			require.Equal(t, k.want, way, "%v", way)
		})
	}
}

// Whatever is asked of the model, it has an answer that makes sense: a positive time, more for more bytes, less for none, and
// no less on a slow link; and what is chosen costs least.
func TestTimes(t *testing.T) {
	m := schedule.Default
	for _, on := range []int{1, 8} {
		for _, n := range []int{2, 3, 4, 7, 16, 100, 1024, 4096} {
			l := hosts.LayoutOf(slices.Repeat([]int{on}, n))
			for _, kind := range kinds {
				none := model.Time(&l, &m, 0, model.Op{Kind: kind, Size: 4}, model.Chosen(&l, &m, "", model.Op{Kind: kind, Size: 4}))
				require.Positive(t, none)
				before := map[schedule.Way]float64{}
				for count := 1; count <= 1<<20; count *= 32 {
					o := model.Op{Kind: kind, Count: count, Size: 4}
					ways := model.Ways(&l, o)
					if way := model.Small(&l, o); way != 0 {
						ways = append(slices.Clone(ways), way)
					} else {
						chosen, bytes := model.Way(&l, &m, "", o), model.Bytes(&l, o)
						for _, way := range ways {
							require.LessOrEqual(t, m.Cost(chosen, n, bytes), m.Cost(way, n, bytes))
						}
					}
					for _, way := range ways {
						ns := model.Time(&l, &m, 0, o, way)
						slow := model.Time(&l, &m, 80_000, o, way)
						require.GreaterOrEqual(t, ns, none)
						require.GreaterOrEqual(t, ns, before[way], "%d hosts of %d, %v of %d by %v", n, on, kind, count, way)
						require.GreaterOrEqual(t, slow, ns)
						before[way] = ns
					}
				}
			}
		}
	}
}

// The lanes of a host share its link: an all-reduce of 8 ranks on hosts with links of 1 Gbit/s takes what its bytes take there.
func TestLink(t *testing.T) {
	l := hosts.LayoutOf([]int{8, 8})
	m := schedule.Default
	o := model.Op{Kind: team.KindAllReduce, Count: 4 << 20, Size: 4}
	want := float64(16<<20) * 8 // nanoseconds
	require.InEpsilon(t, want, model.Time(&l, &m, 8000, o, schedule.Halving), 0.2)
	require.Less(t, model.Time(&l, &m, 0, o, schedule.Halving), want/10)
}
