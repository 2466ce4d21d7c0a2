package team

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/shm"
)

// A communicator is crowded if its ranks have fewer processors than there are ranks, by affinity or by a quota.
func TestCrowded(t *testing.T) {
	quota := func(group string, cpus float64) []cpu.Quota { return []cpu.Quota{{Group: group, CPUs: cpus}} }
	for _, k := range []struct {
		name    string
		cpus    [][]int // by rank
		quotas  [][]cpu.Quota
		crowded bool
	}{
		{"enough", [][]int{{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}, nil, false},
		{"too few", [][]int{{0, 1}, {0, 1}, {0, 1}}, nil, true},
		{"not known", [][]int{nil, nil, nil}, nil, false},
		{"a quota for all that is enough", [][]int{{0, 1, 2}, {}, {}},
			[][]cpu.Quota{quota("a", 3), quota("a", 3), quota("a", 3)}, false},
		{"a quota for all", [][]int{{0, 1, 2}, {}, {}}, [][]cpu.Quota{quota("a", 2.5), quota("a", 2.5), quota("a", 2.5)}, true},
		{"a quota for each", [][]int{{0, 1, 2}, {}, {}}, [][]cpu.Quota{quota("a", 1), quota("b", 1), quota("c", 1)}, false},
		{"a part of a processor for one", [][]int{{0, 1, 2}, {}, {}}, [][]cpu.Quota{nil, quota("b", 0.5), nil}, true},
		{"a group above", [][]int{{0, 1, 2}, {}, {}}, [][]cpu.Quota{append(quota("a", 1), quota("top", 2)...),
			append(quota("b", 1), quota("top", 2)...), append(quota("c", 1), quota("top", 2)...)}, true},
	} {
		t.Run(k.name, func(t *testing.T) {
			var c Team
			hs := make([]Member, len(k.cpus))
			for r := range hs {
				hs[r].CPUs, hs[r].Process = k.cpus[r], shm.Process{PID: r}
				if k.quotas != nil {
					hs[r].Quotas = k.quotas[r]
				}
			}
			c.Gather(nil, allOf(0, len(hs)), hs, Config{})
			require.Equal(t, k.crowded, c.Crowded, "GOMAXPROCS is %d", runtime.GOMAXPROCS(0))
		})
	}
}
