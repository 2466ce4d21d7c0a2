package schedule

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// pointsOf returns what a network with costs like m would measure, but for an error of up to noise.
func pointsOf(m Model, hosts int, noise float64, r *rand.Rand) (all []Point) {
	add := func(t Terms) { all = append(all, Point{t, m.Price(t) * (1 + noise*(2*r.Float64()-1))}) }
	for _, ways := range [][]Way{Reducing, Sending, ToRoot, {GatherDoubling, Pairwise}, {Linear, GatherTree}} {
		for _, way := range ways {
			for bytes := 16 << 10; bytes <= 16<<20; bytes *= 4 {
				add(Default.Terms(way, hosts, bytes)) // items are cut by the default
			}
		}
	}
	for bytes := 0; bytes <= 16<<10; bytes = 4*bytes + 64 {
		add(Default.Terms(Shared, hosts, (hosts-1)*bytes))
	}
	return all
}

// A fit chooses almost as the model does that the measurements come from: what it chooses costs 2% more at most, or a little
// more than measurements are wrong.
func TestFit(t *testing.T) {
	for _, k := range []struct {
		name string
		m    Model
	}{
		{"the default", Default},
		{"1 Gbit/s", Model{Agree: 50_000, Message: 40_000, Send: 8200, Swap: 8200, Combine: 75, Relay: 8400, Around: 8300}},
		{"far away", Model{Agree: 5_000_000, Message: 5_000_000, Send: 800, Swap: 800, Combine: 80, Relay: 850, Around: 820}},
		{"fast", Model{Agree: 3000, Message: 3000, Send: 50, Swap: 50, Combine: 60, Relay: 60, Around: 55}},
		{"combining is slow", Model{Agree: 9000, Message: 20_000, Send: 200, Swap: 200, Combine: 900, Relay: 250, Around: 260}},
	} {
		for _, hosts := range []int{2, 3, 4, 8, 16} {
			for _, noise := range []float64{0, 0.1} {
				r := rand.New(rand.NewPCG(7, uint64(hosts)))
				got := Default.Fit(pointsOf(k.m, hosts, noise, r))
				for bytes := 16 << 10; bytes <= 16<<20; bytes *= 2 {
					for _, ways := range [][]Way{Reducing, Sending, ToRoot} {
						chosen, best := got.Best(ways, hosts, bytes), k.m.Best(ways, hosts, bytes)
						loss := k.m.Cost(chosen, hosts, bytes) / k.m.Cost(best, hosts, bytes)
						require.LessOrEqual(t, loss, 1.02+1.3*noise, "%s, %d hosts, noise %v, %d bytes: %v, best %v; %+v", k.name, hosts, noise,
							bytes, chosen, best, got)
						if noise == 0 {
							require.InEpsilon(t, k.m.Cost(best, hosts, bytes), got.Cost(best, hosts, bytes), 0.1,
								"%s, %d hosts, %d bytes, %v: %+v", k.name, hosts, bytes, best, got)
						}
					}
				}
			}
		}
	}
}

// Too little to tell prices apart leaves the ratios as they were.
func TestFitFew(t *testing.T) {
	ns := 3 * Default.Cost(Doubling, 2, 1<<20)
	got := Default.Fit([]Point{{Default.Terms(Doubling, 2, 1<<20), ns}})
	for i, p := range got.prices() {
		require.InEpsilon(t, 3, float64(*p)/float64(*Default.prices()[i]), 0.02, "price %d", i)
	}
	require.Equal(t, Default, Default.Fit(nil))
	require.Equal(t, 4<<10, Model{Relay: math.MaxInt}.Item(Chain, 4096, 1<<20), "odd costs")
	require.False(t, math.IsNaN(got.Cost(Ring, 2, 1<<20)))
}

// A reduce costs what the broadcast along the same hosts does, and combining: what a host sends has been combined.
func TestCostToRoot(t *testing.T) {
	free := Default
	free.Combine = 0
	for hosts := 2; hosts < 70; hosts++ {
		for bytes := 1 << 10; bytes <= 64<<20; bytes *= 4 {
			require.Equal(t, free.Cost(Tree, hosts, bytes), free.Cost(ToTree, hosts, bytes))
			require.Equal(t, free.Cost(Chain, hosts, bytes), free.Cost(ToChain, hosts, bytes))
			for _, way := range ToRoot {
				terms := Default.Terms(way, hosts, bytes)
				require.InEpsilon(t, terms.Sent+terms.Relayed, terms.Combined, 1e-9, "%v, %d hosts, %d bytes", way, hosts, bytes)
			}
		}
		if hosts > 3 {
			require.Equal(t, ToTree, Default.Best(ToRoot, hosts, 16<<10), "%d hosts", hosts)
			require.Equal(t, ToChain, Default.Best(ToRoot, hosts, 64<<20), "%d hosts", hosts)
		}
	}
}
