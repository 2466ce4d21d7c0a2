package hosts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/roster"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// stageOf returns a stage of one of so many hosts, without links.
func stageOf(hosts, me int) *Stage {
	s := &Stage{n: hosts, me: me, ranks: hosts, most: 1}
	for h := range hosts {
		s.Hosts = append(s.Hosts, []int{h})
	}
	s.pipe.window = pipeWindow(hosts)
	s.pipe.chunk = max(landing/s.pipe.window, minChunk) &^ 63
	return s
}

// item is what travels: its elements, and whose sources are combined in it.
type item struct {
	off, n int
	from   map[int]bool
}

// player is a host that does the steps of a plan.
type player struct {
	steps walk
	next  *step
	have  map[int]map[int]bool // by chunk: whose sources are combined in this host's data
	in    []item               // at most window of them are granted
	over  bool
}

// play does the steps on all hosts, in a varying order, with queues of window items, until no host can proceed.
func play(t *testing.T, hosts int, at func(me int) (*Stage, plan), do func(s *Stage, p *player, k step, in *item) (out *item)) []*player {
	var all []*player
	var stages []*Stage
	for me := range hosts {
		s, p := at(me)
		stages = append(stages, s)
		all = append(all, &player{steps: p.walk(), have: map[int]map[int]bool{}})
	}
	for moved := true; moved; {
		moved = false
		for i := range hosts {
			me := (i * 7) % hosts
			if hosts%7 == 0 {
				me = i
			}
			p, behind := all[me], all[(me+1)%hosts]
			for range 1 + me%3 {
				if p.next == nil {
					k, ok := p.steps.next()
					if !ok {
						p.over = true
						break
					}
					p.next = &k
				}
				k := *p.next
				if k.receives && len(p.in) == 0 || k.sends && len(behind.in) == stages[me].pipe.window {
					break
				}
				var in *item
				if k.receives {
					in = &p.in[0]
					p.in = p.in[1:]
					require.Equal(t, []int{k.off, k.n}, []int{in.off, in.n}, "host %d of %d, step %+v", me, hosts, k)
				}
				if out := do(stages[me], p, k, in); k.sends {
					behind.in = append(behind.in, *out)
				}
				p.next, moved = nil, true
			}
		}
	}
	for me, p := range all {
		require.True(t, p.over, "host %d of %d waits for ever in %+v", me, hosts, p.next)
		require.Empty(t, p.in, "host %d of %d", me, hosts)
	}
	return all
}

// TestVersion: ranks of two builds must cut items the same way, and contribute alike, or Open must tell them that they do not.
func TestVersion(t *testing.T) {
	s := stageOf(5, 0)
	require.Equal(t, []int{11, 16, 128 << 10, 2 << 20, 4 << 10, 128 << 10, 1 << 10},
		[]int{roster.Version, s.pipe.window, s.pipe.chunk, landing, minChunk, smallBytes, recordBytes(5)},
		"who changes one of these raises roster.Version, and the numbers here")
}

// TestReductionSchedule: for any number of hosts and elements, each host ends with every source exactly once in each
// element, combined in the same order on all; and with the windows as they are, no host waits forever.
func TestReductionSchedule(t *testing.T) {
	testkit.SkipRace(t)
	for _, hosts := range testkit.Sample(3, []int{2, 3, 4, 5, 7, 8, 13, 16, 64, 31}) {
		chunk := stageOf(hosts, 0).pipe.chunk / 4
		for _, count := range []int{1, 15, 16, 17, hosts * 16, hosts*16 + 1, hosts * chunk, hosts*chunk + 1, 3*hosts*chunk - 7,
			5*hosts*chunk + chunk} {
			for _, piece := range []int{count, chunk*hosts + 16, 1000} {
				if count/piece > 50 {
					continue
				}
				w := &team.Work{Type: dtype.Float32, Count: count}
				all := play(t, hosts, func(me int) (*Stage, plan) {
					s := stageOf(hosts, me)
					return s, &reduction{s: s, w: w, piece: piece, size: 4}
				}, func(s *Stage, p *player, k step, in *item) *item {
					from := map[int]bool{}
					if in != nil {
						for h := range in.from {
							from[h] = true
						}
					}
					if k.t < hosts {
						require.False(t, from[s.me], "host %d of %d adds its source twice: %+v", s.me, hosts, k)
						from[s.me] = true
					}
					p.have[k.off] = from
					return &item{k.off, k.n, from}
				})
				covered := 0
				for off := range all[0].have {
					for me, p := range all {
						require.Len(t, p.have[off], hosts, "host %d of %d, element %d of %d", me, hosts, off, count)
					}
				}
				steps := (&reduction{s: stageOf(hosts, 0), w: w, piece: piece, size: 4}).walk()
				for k, ok := steps.next(); ok; k, ok = steps.next() {
					if k.t >= hosts-1 { // finished chunks
						covered += k.n
					}
				}
				require.Equal(t, count, covered, "%d hosts, %d elements", hosts, count)
			}
		}
	}
}

func TestBroadcastSchedule(t *testing.T) {
	for _, hosts := range []int{2, 3, 5, 8, 64} {
		chunk := stageOf(hosts, 0).pipe.chunk / 4
		for root := range min(hosts, 6) {
			for _, count := range []int{1, chunk, chunk + 1, 40*chunk + 3} {
				w := &team.Work{Type: dtype.Float32, Count: count, Root: root}
				all := play(t, hosts, func(me int) (*Stage, plan) {
					s := stageOf(hosts, me)
					return s, &chain{s: s, w: w, piece: 3*chunk + 5, size: 4, root: root}
				}, func(s *Stage, p *player, k step, in *item) *item {
					p.have[k.off] = map[int]bool{k.n: true}
					return &item{off: k.off, n: k.n}
				})
				for me, p := range all {
					n := 0
					for _, k := range p.have {
						for bytes := range k {
							n += bytes
						}
					}
					require.Equal(t, count, n, "host %d of %d", me, hosts)
				}
			}
		}
	}
}
