//go:build linux

package main

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestShrink kills random processes of a job one after the other, so that some die while the others shrink the communicator: those
// that are left end well, agree on the members of each communicator that they made, and leave nothing behind.
func TestShrink(t *testing.T) {
	var mu sync.Mutex
	took := map[int][]time.Duration{} // by the number of ranks
	t.Cleanup(func() {
		for _, n := range slices.Sorted(maps.Keys(took)) {
			all := took[n]
			slices.Sort(all)
			t.Logf("%d ranks: %d times, median %v, the longest %v", n, len(all), all[len(all)/2], all[len(all)-1])
		}
	})
	for _, seed := range testkit.Seeds(t) {
		pick := rand.New(rand.NewPCG(seed, 3))
		for k := range testkit.Often(100) {
			own := rand.New(rand.NewPCG(pick.Uint64(), 0))
			t.Run(fmt.Sprint(k), func(t *testing.T) {
				t.Parallel()
				n, all := shrinkOne(t, own)
				mu.Lock()
				defer mu.Unlock()
				took[n] = append(took[n], all...)
			})
		}
	}
}

// shrinkOne returns the number of ranks, and how long each Shrink took each survivor.
func shrinkOne(t *testing.T, pick *rand.Rand) (n int, took []time.Duration) {
	n = 2 + pick.IntN(7)
	dir, tmp := t.TempDir(), t.TempDir()
	victims := pick.Perm(n)[:1+pick.IntN(n-1)]
	left := n - len(victims)
	require.NoError(t, os.WriteFile(endings.LeftFile(dir), fmt.Append(nil, left), 0o600))
	j := start(t, n, []string{conform.DirVar + "=" + dir, "TMPDIR=" + tmp}, "shrink")
	awaitReady(t, dir, n, j.said)
	for _, v := range victims {
		time.Sleep(time.Duration(pick.IntN(40_000)) * time.Microsecond)
		require.NoError(t, j.cmds[v].Process.Kill())
	}
	errs := j.wait()
	said := ""
	for r := range n {
		if slices.Contains(victims, r) {
			continue
		}
		require.NoError(t, errs[r], "rank %d of %d, victims %v: %s", r, n, victims, j.said(r))
		b, err := os.ReadFile(endings.ShrunkFile(dir, r))
		require.NoError(t, err)
		text := string(bytes.TrimSpace(b))
		if said == "" {
			said = text
		}
		require.Equal(t, said, text, "rank %d of %d, victims %v", r, n, victims)
		_, members, _ := strings.Cut(text, " | ")
		require.Len(t, strings.Fields(members), left, "rank %d of %d, victims %v: %s", r, n, victims, text)
		b, err = os.ReadFile(endings.TookFile(dir, r))
		require.NoError(t, err)
		for _, s := range strings.Fields(string(b)) {
			d, err := time.ParseDuration(s)
			require.NoError(t, err)
			took = append(took, d)
		}
	}
	require.Empty(t, leftovers(t, tmp))
	return n, took
}
