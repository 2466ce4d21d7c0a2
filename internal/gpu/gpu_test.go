package gpu

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
)

func TestAssignGPUs(t *testing.T) {
	// sees is what a process reports that sees these devices, one letter for each
	sees := func(letters string) gpus {
		var g gpus
		for _, l := range letters {
			g.Devices = append(g.Devices, gpu{string(l), 100 + strings.IndexRune("abcdefghij", l)})
		}
		if letters == "" {
			g.Why = "no driver"
		}
		return g
	}
	for _, k := range []struct {
		name  string
		ranks []string
		index []int
		least int
		err   string
	}{
		{"one", []string{"a"}, []int{0}, 100, ""},
		{"all see all", []string{"abcd", "abcd", "abcd"}, []int{0, 1, 2}, 100, ""},
		{"each its own", []string{"c", "b"}, []int{0, 0}, 101, ""},
		{"eight", strings.Split(strings.Repeat("abcdefgh ", 8), " ")[:8], []int{0, 1, 2, 3, 4, 5, 6, 7}, 100, ""},
		{"73", strings.Split(strings.Repeat("a ", 73), " ")[:73], nil, 0, "73 ranks on a host, and devices work together for up to 72"},
		{"too many", []string{"ab", "ab", "ab"}, nil, 0, "3 ranks and 2 CUDA devices"},
		{"the same", []string{"ab", "ca"}, []int{0, 1}, 0, "ranks 1 and 3 have the same CUDA device"},
		{"none", []string{"a", ""}, nil, 0, "rank 3 has no CUDA device: no driver"},
	} {
		t.Run(k.name, func(t *testing.T) {
			var all []gpus
			for _, s := range k.ranks {
				all = append(all, sees(s))
			}
			index, least, err := assignGPUs(all, func(r int) int { return 2*r + 1 })
			if k.err != "" {
				require.ErrorIs(t, err, fault.ErrNotSupported)
				require.ErrorContains(t, err, k.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, k.index, index)
			require.Equal(t, k.least, least)
		})
	}
}
