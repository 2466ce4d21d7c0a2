package hosts

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// spread returns the ranks of hosts. The first ones have one more, unless all have as many.
func spread(hosts, ranks int) (all [][]int) {
	for h := range hosts {
		on := ranks / hosts
		if h < ranks%hosts {
			on++
		}
		all = append(all, make([]int, on))
	}
	return all
}

// What the formula says of messages is what they have, on the host that has most of them.
func TestMemoryOfMessages(t *testing.T) {
	for _, k := range []struct{ hosts, ranks int }{{2, 2}, {2, 80}, {3, 3}, {5, 15}, {8, 64}, {64, 64}, {64, 512}, {65, 65}, {65, 100},
		{200, 300}, {256, 256}, {512, 4095}, {4095, 4095}} {
		t.Run(fmt.Sprintf("%d hosts, %d ranks", k.hosts, k.ranks), func(t *testing.T) {
			s := &Stage{Config: Config{Hosts: spread(k.hosts, k.ranks)}, n: k.hosts}
			on := make([]int, k.hosts)
			for h := range on {
				on[h] = s.On(h)
			}
			s.layout = LayoutOf(on)
			s.agreement = newAgreement(s.n, 0, s.layout.Ranks, s.rooms(), s.layout.Contribution)
			s.lay()
			got := 0
			for _, b := range slices.Concat(s.full[:], s.out, s.slots) {
				got += cap(b)
				require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8)
			}
			want := Sum(PerComm(k.hosts, k.ranks)[:2])
			if k.ranks%k.hosts == 0 {
				require.Equal(t, want, got)
			}
			require.LessOrEqual(t, got, want)
			require.InEpsilon(t, want, got, 0.02) // the host that does not count may be a fuller one
		})
	}
}

// The limits that docs/clusters.md tells.
func TestMemoryLimits(t *testing.T) {
	step := 16
	if testkit.Full() {
		step = 512
	}
	var all []int
	for hosts := 2; hosts <= team.MaxRanks; hosts += 1 + hosts/step {
		all = append(all, hosts, min(1<<bits.Len(uint(hosts)), team.MaxRanks))
	}
	for _, hosts := range all {
		limit := 8 << 20
		if hosts > 512 {
			limit = 16 << 20
		}
		for _, on := range []int{1, 2, 4, 8, team.MaxRanks/hosts + 1} {
			ranks := min(on*hosts, team.MaxRanks)
			rank, comm := Sum(PerRank(hosts, ranks)), Sum(PerComm(hosts, ranks))
			require.Less(t, rank+comm, limit, "%d ranks on %d hosts", ranks, hosts)
			if hosts <= 512 && on <= 4 || hosts <= 256 && on <= 8 {
				require.Less(t, comm, 256<<10, "%d ranks on %d hosts", ranks, hosts)
			}
			require.Less(t, comm, 1<<20, "%d ranks on %d hosts", ranks, hosts)
		}
	}
}

func TestMemoryText(t *testing.T) {
	require.Equal(t, "between 64 hosts: 2.4 MiB a rank that leads its host, 237 KiB for each further communicator", MemoryText(64, 64))
}

// Two hosts may contribute 64 KiB each, other powers of two what slots have room for. What is not folded has 64 KiB for all
// hosts together, or, if they are many, half as much. Hosts of several ranks are limited by what their teams share.
func TestContribution(t *testing.T) {
	for _, k := range []struct{ hosts, most, want int }{
		{2, 1, 65536}, {3, 1, 32768}, {4, 1, 37888}, {5, 1, 16384}, {8, 1, 28672}, {63, 1, 1057}, {64, 1, 14336}, {65, 1, 512}, {512, 1, 3072}, {4095, 1, 8}, {2, 2, 8192}, {64, 8, 8192}, {63, 8, 1057},
	} {
		require.Equal(t, k.want, contribution(k.hosts, k.most), "%d hosts of %d", k.hosts, k.most)
	}
}

// Records of all ranks always fit: Split's, and in staging memory.
func TestRecordsFit(t *testing.T) {
	for ranks := 2; ranks <= team.MaxRanks; ranks++ {
		require.GreaterOrEqual(t, recordBytes(ranks), recordHead+16)
		require.LessOrEqual(t, 8+ranks*recordBytes(ranks), team.StagingBytes)
	}
}

// Rounds share places because no host is heard in two of them. Two messages of a peer land in one place only if they
// are two operations apart.
func TestPlaces(t *testing.T) {
	for hosts := 2; hosts <= 200; hosts++ {
		a := newAgreement(hosts, hosts/3, hosts, nil, 0)
		heard := map[int]bool{}
		for _, h := range a.from {
			require.False(t, heard[h], "%d hosts: host %d is heard twice", hosts, h)
			heard[h] = true
		}
	}
	a := newAgreement(5, 1, 5, nil, 0)
	seen := map[int]bool{}
	for _, d := range []transfer{a.heard(0, 6), a.heard(0, 7), a.reported(2, 6), a.reported(2, 7)} {
		require.Less(t, a.place(d), agreementPlaces)
		require.False(t, seen[a.place(d)])
		seen[a.place(d)] = true
	}
	require.Equal(t, a.place(a.heard(0, 6)), a.place(a.heard(2, 8)))
}
