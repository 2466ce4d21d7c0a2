package gpu

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

func TestAssignGPUs(t *testing.T) {
	// sees is what a process reports that sees these devices, one letter for each; a * in front lets it share them
	sees := func(letters string) gpus {
		letters, share := strings.CutPrefix(letters, "*")
		g := gpus{Share: share}
		for _, l := range letters {
			g.Devices = append(g.Devices, gpu{UUID: string(l), Multiprocessors: 100 + strings.IndexRune("abcdefghij", l)})
		}
		if letters == "" {
			g.Why = "no driver"
		}
		return g
	}
	times := func(n int, letters string) (all []string) {
		for range n {
			all = append(all, letters)
		}
		return all
	}
	for _, k := range []struct {
		name  string
		ranks []string
		want  assignment
		err   string
	}{
		{"one", []string{"a"}, assignment{[]int{0}, map[string][]int{"a": {0}}, 1, 100}, ""},
		{"all see all", []string{"abcd", "abcd", "abcd"}, assignment{[]int{0, 1, 2}, map[string][]int{"a": {0}, "b": {1}, "c": {2}}, 1, 100}, ""},
		{"each its own", []string{"c", "b"}, assignment{[]int{0, 0}, map[string][]int{"c": {0}, "b": {1}}, 1, 101}, ""},
		{"eight", times(8, "abcdefgh"), assignment{[]int{0, 1, 2, 3, 4, 5, 6, 7}, map[string][]int{"a": {0}, "b": {1}, "c": {2}, "d": {3}, "e": {4}, "f": {5}, "g": {6}, "h": {7}}, 1, 100}, ""},
		{"73", times(73, "a"), assignment{}, "73 ranks on a host, and devices work together for up to 72"},
		{"too many", []string{"ab", "ab", "ab"}, assignment{},
			"3 ranks and 2 CUDA devices, where each rank needs one of its own (UBCOLL_CUDA=share lets ranks share them)"},
		{"two on one", []string{"a", "a"}, assignment{}, "2 ranks and 1 CUDA device, where"},
		{"the same", []string{"ab", "ca"}, assignment{},
			"ranks 1 and 3 have the same CUDA device (let all processes see all devices, or each its own; UBCOLL_CUDA=share"},
		{"none", []string{"a", ""}, assignment{}, "rank 3 has no CUDA device: no driver"},
		{"shared by all", times(8, "*a"), assignment{make([]int, 8), map[string][]int{"a": {0, 1, 2, 3, 4, 5, 6, 7}}, 8, 100}, ""},
		{"shared in turn", times(5, "*ba"), assignment{[]int{0, 1, 0, 1, 0}, map[string][]int{"b": {0, 2, 4}, "a": {1, 3}}, 3, 100}, ""},
		{"enough for all that may share", times(2, "*ab"), assignment{[]int{0, 1}, map[string][]int{"a": {0}, "b": {1}}, 1, 100}, ""},
		{"shared, each task sees one", []string{"*a", "*b", "*b", "*a"}, assignment{[]int{0, 0, 0, 0}, map[string][]int{"a": {0, 3}, "b": {1, 2}}, 2, 100}, ""},
		{"shared, the same device has two numbers", []string{"*ab", "*ca"}, assignment{[]int{0, 1}, map[string][]int{"a": {0, 1}}, 2, 100}, ""},
		{"not all share", []string{"*a", "a"}, assignment{}, "2 ranks and 1 CUDA device"},
		{"shared by 73", times(73, "*a"), assignment{}, "73 ranks on a host"},
		{"shared, one has none", []string{"*a", "*"}, assignment{}, "rank 3 has no CUDA device: no driver"},
	} {
		t.Run(k.name, func(t *testing.T) {
			var all []gpus
			for _, s := range k.ranks {
				all = append(all, sees(s))
			}
			got, err := assignGPUs(all, func(r int) int { return 2*r + 1 })
			if k.err != "" {
				require.ErrorIs(t, err, fault.ErrNotSupported)
				require.ErrorContains(t, err, k.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, k.want, got)
		})
	}
}

// TestHolders asks which ranks have each of the devices that one of them sees.
func TestHolders(t *testing.T) {
	tell := func(devices ...gpu) json.RawMessage {
		b, err := json.Marshal(gpus{Devices: devices, Share: true})
		require.NoError(t, err)
		return b
	}
	a, b := gpu{UUID: "a"}, gpu{UUID: "b"}
	name := func(r int) int { return 10 + r }
	got, err := Holders([]json.RawMessage{tell(a, b), tell(b), tell(a, b)}, 0, name)
	require.NoError(t, err)
	require.Equal(t, [][]int{{10, 12}, {11}}, got)
	got, err = Holders([]json.RawMessage{tell(a, b), tell(b), tell(a, b)}, 1, name)
	require.NoError(t, err)
	require.Equal(t, [][]int{{11}}, got)
	_, err = Holders([]json.RawMessage{tell(a), tell()}, 0, name)
	require.ErrorContains(t, err, "rank 11 has no CUDA device")
	_, err = Holders([]json.RawMessage{tell(a), nil}, 0, name)
	require.ErrorIs(t, err, fault.ErrMismatch)
}

// TestTurns asks when ranks take turns on a device: where two processes have it, and MPS does not run.
func TestTurns(t *testing.T) {
	for _, k := range []struct {
		name   string
		pids   []int // of the ranks
		owners []int
		mps    bool
		turns  bool
	}{
		{"alone", []int{1, 2, 3}, []int{1}, false, false},
		{"one process", []int{1, 2, 2}, []int{1, 2}, false, false},
		{"two processes", []int{1, 2, 3}, []int{1, 2}, false, true},
		{"two processes, which MPS joins", []int{1, 2, 3}, []int{1, 2}, true, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			var m team.Team
			m.Init(nil, team.Ranks{Rank: 5, Size: 9, Local: []int{4, 5, 7}})
			for r, pid := range k.pids {
				m.Peers[r].Proc.PID = pid
			}
			var g Domain
			g.meet(&m, k.owners, k.mps)
			require.Equal(t, k.turns, g.Turns())
			require.Equal(t, 5, g.Ranks()[0])
			require.Len(t, g.Ranks(), len(k.owners))
		})
	}
}
