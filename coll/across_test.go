package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// onHosts runs do on goroutine ranks, and returns their errors. hosts has a letter for each rank: its host.
func onHosts(t testing.TB, hosts string, do func(c *ubcoll.Comm) error) []error {
	t.Helper()
	return onHostsOver(t, hosts, inside.Providers.Network, do)
}

// onHostsOver is onHosts over a network of the test's own.
func onHostsOver(t testing.TB, hosts string, network engine.NewNode, do func(c *ubcoll.Comm) error) []error {
	t.Helper()
	providers := inside.Providers
	providers.Network = network
	bs := enginetest.Hosts(bootstrap.Local(len(hosts)), func(r int) string { return "host-" + hosts[r:r+1] })
	errs := make([]error, len(bs))
	var wg sync.WaitGroup
	for r, b := range bs {
		wg.Go(func() {
			in, err := inside.OpenOn(context.Background(), b, engine.Options{}, nil, providers)
			if err == nil {
				c := (*ubcoll.Comm)(in)
				err = errors.Join(do(c), c.Close())
			}
			errs[r] = errors.Join(err, b.Close())
		})
	}
	wg.Wait()
	return errs
}

func requireAll(t *testing.T, errs []error) {
	t.Helper()
	require.NoError(t, errors.Join(errs...))
}

// checkAcross runs an all-reduce and a broadcast of n elements, and checks the results.
func checkAcross(c *ubcoll.Comm, n, turn int) error {
	src, dst, size := make([]float32, n), make([]float32, n), c.Size()
	at := func(k int) float32 { return float32((k + turn) % 100) }
	for k := range src {
		src[k] = at(k) + float32(c.Rank())
	}
	if err := coll.AllReduce(context.Background(), c, ubcoll.Of(dst), ubcoll.Of(src), ubcoll.Sum); err != nil {
		return err
	}
	for k := range dst {
		if want := at(k)*float32(size) + float32(size*(size-1)/2); dst[k] != want {
			return fmt.Errorf("rank %d: all-reduce of %d: [%d] = %v, not %v", c.Rank(), n, k, dst[k], want)
		}
	}
	root := turn % size
	if c.Rank() == root {
		copy(dst, src)
	}
	if err := coll.Broadcast(context.Background(), c, ubcoll.Of(dst), root); err != nil {
		return err
	}
	for k := range dst {
		if want := at(k) + float32(root); dst[k] != want {
			return fmt.Errorf("rank %d: broadcast of %d from %d: [%d] = %v, not %v", c.Rank(), n, root, k, dst[k], want)
		}
	}
	return nil
}

func TestAcross(t *testing.T) {
	layouts := []string{"ab", "aabb", "abab", "aaab", "abc", "aabbc", "abcde", "aaaaaaaaaaaaaaaaaaaab"}
	sizes, turns := []int{0, 1, 5, 1000, 30000, 1 << 20, 3<<20 + 17}, 3
	if race.Enabled || testing.Short() { // the same code runs for fewer sizes
		layouts, sizes, turns = []string{"abab", "aabbc"}, []int{0, 5, 1000, 30000, 300000}, 2
	}
	if testkit.Daily() {
		layouts, turns = layouts[1:], 1
	}
	for _, hosts := range layouts {
		t.Run(hosts, func(t *testing.T) {
			requireAll(t, onHosts(t, hosts, func(c *ubcoll.Comm) error {
				for turn := range turns {
					if err := coll.Barrier(context.Background(), c); err != nil {
						return err
					}
					for _, n := range sizes[:len(sizes)-len(hosts)/8] {
						if err := checkAcross(c, n, turn); err != nil {
							return err
						}
					}
				}
				return nil
			}))
		})
	}
}

// letters returns n different letters, one for each host.
func letters(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteByte(byte('0' + i))
	}
	return b.String()
}

func TestAcross64Hosts(t *testing.T) {
	testkit.LongOrRace(t)
	sizes, n := []int{1, 100, 5000, 100000, 2}, 64
	if race.Enabled || testing.Short() {
		sizes = sizes[:3]
	}
	if race.Enabled { // all connections of 64 hosts, at its speed, can take longer than Open waits
		n = 32
	}
	requireAll(t, onHosts(t, letters(n), func(c *ubcoll.Comm) error {
		for turn, n := range sizes {
			if err := checkAcross(c, n, turn*17); err != nil {
				return err
			}
		}
		return coll.Barrier(context.Background(), c)
	}))
}

// putsOf returns how many messages a rank has sent to other hosts.
func putsOf(c *ubcoll.Comm) uint64 {
	return (*inside.Comm)(c).View().Team().Hosts.(*hosts.Stage).Puts()
}

// wantPuts is how many messages a host must send in an operation on that many bytes, with elements of 4 bytes. Proposals
// take ceil(log2 hosts) messages; small operations send nothing else. Larger ones send items. The grants for these are no
// puts. After a wrong call a host reports to another one, and passes what it hears then on to those that report to it.
func wantPuts(kind string, hosts, host, root, bytes, most int) int {
	rounds := bits.Len(uint(hosts - 1))
	small := 64 << 10 / (hosts - 1)
	if hosts > 64 {
		small /= 2
	}
	if most > 1 {
		small = min(small, 8<<10)
	}
	switch {
	case kind == "wrong":
		reports := min(host, 1)
		for k := 1; k < hosts && (host == 0 || k < host&-host) && host+k < hosts; k *= 2 {
			reports++
		}
		return rounds + reports
	case bytes <= small:
		return rounds
	case kind == "all_reduce" && bytes <= 512<<10:
		levels := bits.Len(uint(hosts)) - 1
		switch folded := hosts - 1<<levels; {
		case host >= 2*folded:
			return rounds + levels
		case host%2 == 1:
			return rounds + levels + 1
		}
		return rounds + 1
	}
	sends := 0
	for piece := bytes; piece > 0; {
		n := piece
		if most > 1 {
			n = min(piece, 4<<20)
		}
		piece -= n
		items := func(bytes, item int) int { return (bytes + item - 1) / item }
		if kind == "broadcast" {
			item := n
			if k := int(math.Sqrt(float64(hosts-2) * float64(n) / (64 << 10))); k > 1 {
				item /= k
			}
			if (host+1)%hosts != root {
				sends += items(n, min((item+63)/64*64, 512<<10))
			}
			continue
		}
		part := ((n/4+hosts-1)/hosts + 15) / 16 * 16 * 4
		for hop := range 2*hosts - 2 {
			of := ((host-hop)%hosts + hosts) % hosts
			sends += items(max(0, min(part, n-of*part)), 512<<10)
		}
	}
	return rounds + sends
}

// wrongCall is what one rank calls; the others make the call of kind 0.
func wrongCall(c *ubcoll.Comm, kind, n, root int) error {
	ctx, v := context.Background(), ubcoll.Of(make([]int32, n))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	switch kind {
	case 1:
		return coll.AllReduce(ctx, c, v, ubcoll.Of(make([]int32, n)), ubcoll.Max)
	case 2:
		return coll.AllReduce(ctx, c, ubcoll.Of(make([]int32, n+1)), ubcoll.Of(make([]int32, n+1)), ubcoll.Sum)
	case 3:
		return coll.Broadcast(ctx, c, v, root)
	case 4:
		return coll.Barrier(ctx, c)
	case 5: // refused
		return coll.AllReduce(ctx, c, v, ubcoll.Of(make([]int32, n+3)), ubcoll.Sum)
	case 6:
		return coll.AllReduce(ended, c, v, ubcoll.Of(make([]int32, n)), ubcoll.Sum)
	case 7:
		return coll.AllGather(ctx, c, ubcoll.Of(make([]int32, n*c.Size())), v)
	}
	return coll.AllReduce(ctx, c, v, ubcoll.Of(make([]int32, n)), ubcoll.Sum)
}

// TestAcrossMismatches: if any ranks of any host make a wrong call, all ranks return the same error, and the next call
// works. TEST_PROGRAMS says how many calls of each seed are wrong.
func TestAcrossMismatches(t *testing.T) {
	count := testkit.Often(100)
	if s := os.Getenv("TEST_PROGRAMS"); s != "" {
		var err error
		count, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	for _, seed := range testkit.Seeds(t) {
		t.Logf("%d calls of seed %d", count, seed)
		most := 3 << 20
		if race.Enabled || testing.Short() {
			most = 50000
		}
		mismatches(t, inside.Providers.Network, seed, count, most)
	}
}

// mismatches makes count wrong calls on some ranks over a network. After each come right ones, of most elements at most.
func mismatches(t *testing.T, network engine.NewNode, seed uint64, count, most int) {
	const hosts, names = "abcdabcc", "abcd" // reports of host d go through host c
	ranks := len(hosts)
	var mu sync.Mutex
	said := make([][]error, count)
	for i := range said {
		said[i] = make([]error, ranks)
	}
	requireAll(t, onHostsOver(t, hosts, network, func(c *ubcoll.Comm) error {
		draw := rand.New(rand.NewPCG(seed, 0))
		for i := range count {
			wrong := make([]int, ranks)
			for k := 1 + draw.IntN(3); k > 0; k-- {
				wrong[draw.IntN(ranks)] = 1 + draw.IntN(7)
			}
			n := []int{0, 1, 10, 3000, 50000}[draw.IntN(5)]
			root := draw.IntN(ranks)
			before := putsOf(c)
			err := wrongCall(c, wrong[c.Rank()], n, root)
			mu.Lock()
			said[i][c.Rank()] = err
			mu.Unlock()
			sent, more := putsOf(c)-before, []int{1, 2000, 2100, 20000, 400000, most}[draw.IntN(6)]
			if err := checkAcross(c, more, i); err != nil {
				return fmt.Errorf("after wrong call %d (%v, %d elements): %w", i, wrong, n, err)
			}
			after := putsOf(c) - before - sent
			wantSent, wantAfter := 0, 0
			if host := strings.IndexByte(names, hosts[c.Rank()]); strings.IndexByte(hosts, hosts[c.Rank()]) == c.Rank() {
				root := strings.IndexByte(names, hosts[i%ranks])
				wantSent = wantPuts("wrong", len(names), host, 0, 0, 3)
				wantAfter = wantPuts("all_reduce", len(names), host, 0, 4*more, 3) + wantPuts("broadcast", len(names), host, root, 4*more, 3)
			}
			if c.Rank() == strings.IndexByte(hosts, 'd') { // alone on its host, it may have sent data before it heard that they are not wanted
				sent = min(sent, uint64(wantSent))
			}
			if int(sent) != wantSent || int(after) != wantAfter {
				return fmt.Errorf("rank %d sent %d messages in a call that was wrong, and %d with %d elements; expected %d and %d",
					c.Rank(), sent, after, more, wantSent, wantAfter)
			}
		}
		return nil
	}))
	for i, errs := range said {
		about, text := -2, ""
		for r, err := range errs {
			require.Error(t, err, "call %d, rank %d", i, r)
			e, ok := errors.AsType[*fault.Error](err)
			require.True(t, ok)
			require.Equal(t, r, e.Rank)
			if e.Step == "" {
				continue // the rank's own refusal
			}
			if about == -2 {
				about, text = e.Peer, e.Err.Error()
			}
			require.Equal(t, about, e.Peer, "call %d: %v", i, errs)
			require.Equal(t, text, e.Err.Error(), "call %d: %v", i, errs)
		}
	}
}
