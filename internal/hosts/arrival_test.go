package hosts

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/team"
)

func TestArrival(t *testing.T) {
	for _, k := range []struct {
		rank   int
		waited uint64
		class  int
	}{{0, 0, 0}, {3, 8191, 0}, {3, 8192, 1}, {7, 1 << 20, 8}, {team.MaxRanks - 1, math.MaxUint64, 14}} {
		a := newArrival(k.rank, k.waited)
		require.NotZero(t, a)
		require.Equal(t, []int{k.rank, k.class}, []int{a.rank(), a.class()})
	}
	soon, late := newArrival(9, 10_000), newArrival(2, 1_000_000)
	for _, k := range []struct{ a, b, want arrival }{{soon, late, soon}, {late, soon, soon}, {0, late, late}, {soon, 0, soon}, {0, 0, 0}} {
		require.Equal(t, k.want, k.a.earliest(k.b))
	}
}

// TestJudge: who came last in the operation before, as leaders find out and tell the ranks of their hosts. Ranks 2 and 3 are
// on this host.
func TestJudge(t *testing.T) {
	const ms = 1_000_000
	mates := team.Late{Rank: 1, For: 5 * time.Millisecond}
	for name, k := range map[string]struct {
		waited uint64 // by this leader
		least  arrival
		want   team.Late // on the leader
		told   team.Late // on a rank that follows it
	}{
		"another host's":                {3 * ms, newArrival(4, 20_000), team.Late{Rank: 4, For: 3 * ms}, team.Late{Rank: 4, For: 3 * ms}},
		"of this host":                  {20_000, newArrival(3, 20_000), team.Late{Rank: 3, For: mates.For}, team.Late{Rank: 3, For: mates.For}},
		"all waited for the network":    {30_000, newArrival(4, 20_000), team.Late{}, team.Late{}},
		"nobody knows":                  {3 * ms, 0, team.Late{}, team.Late{}},
		"a rank that there is not":      {3 * ms, newArrival(77, 20_000), team.Late{}, team.Late{}},
		"this leader does not know its": {0, newArrival(4, 20_000), team.Late{}, team.Late{}},
	} {
		t.Run(name, func(t *testing.T) {
			side := func() *Stage {
				x := &team.Team{}
				x.Init(nil, team.Ranks{Rank: 2, Size: 6, Local: []int{2, 3}})
				s := &Stage{Config: Config{Team: x}}
				s.arrivals.mates = mates
				return s
			}
			s := side()
			if s.arrivals.waited = k.waited; k.waited != 0 {
				s.arrivals.own = newArrival(2, k.waited)
			}
			s.judge(k.least)
			word := s.word()
			require.Zero(t, word&verdictBits)
			require.Equal(t, k.want, s.Last())
			require.Zero(t, s.Last(), "it is said once")
			require.Zero(t, s.word(), "so is this")
			s = side()
			s.told(word | 2)
			require.Equal(t, k.told, s.Last())
		})
	}
}
