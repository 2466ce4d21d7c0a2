package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
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
	"github.com/ubcoll/ubcoll/internal/schedule"
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
	return onHostsWith(t, hosts, network, engine.Options{}, do)
}

// onHostsWith is onHostsOver with options.
func onHostsWith(t testing.TB, hosts string, network engine.NewNode, o engine.Options, do func(c *ubcoll.Comm) error) []error {
	t.Helper()
	providers := inside.Providers
	providers.Network = network
	bs := enginetest.Hosts(bootstrap.Local(len(hosts)), func(r int) string { return "host-" + hosts[r:r+1] })
	errs := make([]error, len(bs))
	var wg sync.WaitGroup
	for r, b := range bs {
		wg.Go(func() {
			in, err := inside.OpenOn(context.Background(), b, o, nil, providers)
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
	layouts := []string{"aabbc", "ab", "aabb", "abab", "aaab", "abc", "abcde", "aaaaaaaaaaaaaaaaaaaab"}
	sizes, turns := []int{0, 1, 5, 1000, 30000, 1 << 20, 3<<20 + 17}, 3
	if race.Enabled || testing.Short() { // the same code runs for fewer sizes
		layouts, sizes, turns = []string{"abab", "aabbc"}, []int{0, 5, 1000, 30000, 300000}, 2
	}
	if testkit.Daily() {
		layouts, turns = layouts[1:], 1
	}
	for i, hosts := range layouts {
		t.Run(hosts, func(t *testing.T) {
			testkit.Turn(t, i, 3)
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

// sending is a rank that sends to other hosts: its host, and its lane, of how many.
type sending struct{ hosts, host, most, lanes, lane int }

// sends returns what a rank sends in a layout; hosts are numbered in the order of their letters.
func sends(layout string, rank int) (s sending) {
	names, least := map[byte]int{}, len(layout)
	for i := range layout {
		names[layout[i]]++
	}
	s.hosts, s.host, s.lane = len(names), int(layout[rank]-'a'), -1
	for _, n := range names {
		least, s.most = min(least, n), max(s.most, n)
	}
	s.lanes = min(least, 8)
	local := strings.Count(layout[:rank], layout[rank:rank+1])
	for l := range s.lanes {
		if l*names[layout[rank]]/s.lanes == local {
			s.lane = l
		}
	}
	return s
}

// wantPuts is how many messages a rank must send in an operation on that many bytes, with elements of 4 bytes. Proposals
// take ceil(log2 hosts) messages of leaders, which own lane 0; small operations send nothing else. Larger ones send
// items. The grants for these are no puts. After a wrong call a leader reports to another one, and passes what it hears
// then on to those that report to it.
func (s sending) wantPuts(kind string, root, bytes int) int {
	hosts, host := s.hosts, s.host
	rounds := bits.Len(uint(hosts - 1))
	if s.lane != 0 {
		rounds = 0
	}
	small := 64 << 10 / (hosts - 1)
	if hosts > 64 {
		small /= 2
	}
	if k := bits.Len(uint(hosts - 1)); hosts == 1<<k {
		small = min(64<<10, (228<<10-512*hosts)/(2*k+2)/1024*1024)
	}
	if s.most > 1 {
		small = min(small, 8<<10)
	}
	switch {
	case s.lane < 0:
		return 0
	case kind == "wrong" && s.lane > 0:
		return 0
	case kind == "wrong":
		reports := min(host, 1)
		for k := 1; k < hosts && (host == 0 || k < host&-host) && host+k < hosts; k *= 2 {
			reports++
		}
		return rounds + reports
	case bytes <= small:
		return rounds
	}
	slice := ((bytes/4+s.lanes-1)/s.lanes + 15) / 16 * 16 * 4
	n := min(slice, bytes-min(bytes, s.lane*slice))
	if n == 0 {
		return rounds
	}
	items := func(bytes, item int) int { return (bytes + item - 1) / item }
	levels := bits.Len(uint(hosts)) - 1
	if kind == "broadcast" {
		behind := (host - root + hosts) % hosts
		switch schedule.Default.Best(schedule.Sending, hosts, slice) {
		case schedule.Tree:
			children := 0
			for k := 1; (behind == 0 || k < behind&-behind) && behind+k < hosts; k *= 2 {
				children++
			}
			return rounds + children*items(n, 512<<10)
		case schedule.Scatter:
			part, sent := ((n/4+hosts-1)/hosts+15)/16*16*4, 0
			run := func(lo, hi int) { // parts
				sent += items(max(0, min(hi*part, n)-lo*part), 512<<10)
			}
			has := func(h int) int { // the end of its parts after the scatter
				if h == 0 {
					return hosts
				}
				return min(h+h&-h, hosts)
			}
			for k := 1; k < hosts; k *= 2 {
				if child := behind + k; child < has(behind) {
					run(child, has(child))
				}
				to := (behind - k + hosts) % hosts
				for i, first := to+k, -1; to > 0 && i <= to+min(2*k, hosts); i++ { // what it lacks, up to the last part, and from 0 on
					wanted := i < to+min(2*k, hosts) && i >= has(to)
					if first >= 0 && (!wanted || i == hosts) {
						run(first%hosts, (i-1)%hosts+1)
						first = -1
					}
					if wanted && first < 0 {
						first = i
					}
				}
			}
			return rounds + sent
		default:
			item := n
			if k := int(math.Sqrt(float64(hosts-2) * float64(n) * 0.255 / 16000)); k > 1 {
				item /= k
			}
			if behind == hosts-1 {
				return rounds
			}
			return rounds + items(n, min((item+63)/64*64, 512<<10))
		}
	}
	switch schedule.Default.Best(schedule.Reducing, hosts, slice) {
	case schedule.Doubling:
		switch folded := hosts - 1<<levels; {
		case host >= 2*folded:
			return rounds + levels*items(n, 512<<10)
		case host%2 == 1:
			return rounds + (levels+1)*items(n, 512<<10)
		}
		return rounds + items(n, 512<<10)
	case schedule.Halving: // of 2 and 4 hosts
		sent, lo, hi := 0, 0, n/4
		for k := range levels {
			half := min(lo+((hi-lo+1)/2+15)/16*16, hi)
			sent += items(4*(hi-half), 512<<10) + items(4*(half-lo), 512<<10) // one half at first, and the other one at last
			if host>>k&1 == 0 {
				hi = half
			} else {
				lo = half
			}
		}
		return rounds + sent
	}
	part, sent := ((n/4+hosts-1)/hosts+15)/16*16*4, 0
	for hop := range 2*hosts - 2 {
		of := ((host-hop)%hosts + hosts) % hosts
		sent += items(max(0, min(part, n-of*part)), 512<<10)
	}
	return rounds + sent
}

// wrongCall is what some ranks call; the others make the call of kind 0. dst and src have some elements more than n.
func wrongCall(c *ubcoll.Comm, kind, n, root int, dst, src []float32) error {
	ctx, v, from := context.Background(), ubcoll.Of(dst[:n]), ubcoll.Of(src[:n])
	ended, cancel := context.WithCancel(ctx)
	cancel()
	switch kind {
	case 1:
		return coll.AllReduce(ctx, c, v, from, ubcoll.Max)
	case 2:
		return coll.AllReduce(ctx, c, ubcoll.Of(dst[:n+1]), ubcoll.Of(src[:n+1]), ubcoll.Sum)
	case 3:
		return coll.Broadcast(ctx, c, v, root)
	case 4:
		return coll.Barrier(ctx, c)
	case 5: // refused
		return coll.AllReduce(ctx, c, v, ubcoll.Of(src[:n+3]), ubcoll.Sum)
	case 6:
		return coll.AllReduce(ended, c, v, from, ubcoll.Sum)
	case 7:
		return coll.AllGather(ctx, c, ubcoll.Of(make([]float32, n*c.Size())), from)
	}
	return coll.AllReduce(ctx, c, v, from, ubcoll.Sum)
}

// programs is how many random programs a test runs: as many as TEST_PROGRAMS says.
func programs(t *testing.T, usually int) int {
	s := os.Getenv("TEST_PROGRAMS")
	if s == "" {
		return testkit.Often(usually)
	}
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

// TestAcrossMismatches: if any ranks of any host make a wrong call, all ranks return the same error, and the next call
// works. TEST_PROGRAMS says how many calls of each seed are wrong.
func TestAcrossMismatches(t *testing.T) {
	count := programs(t, 100)
	for _, seed := range testkit.Seeds(t) {
		t.Logf("%d calls of seed %d", count, seed)
		most := 3 << 20
		if race.Enabled || testing.Short() {
			most = 50000
		}
		for _, hosts := range mismatching {
			mismatches(t, hosts, inside.Providers.Network, seed, count/len(mismatching), most)
		}
	}
}

// mismatching are layouts for wrong calls. In the first, reports of host d go through host c. The others have several
// lanes, of all or of some ranks.
var mismatching = []string{"abcdabcc", "ababb"}

// mismatches makes count wrong calls on some ranks or hosts over a network. After each come right ones, of most elements
// at most. Peers can access the buffers of half of the hosts' ranks.
func mismatches(t *testing.T, hosts string, network engine.NewNode, seed uint64, count, most int) {
	ranks := len(hosts)
	var mu sync.Mutex
	said := make([][]error, count)
	for i := range said {
		said[i] = make([]error, ranks)
	}
	requireAll(t, onHostsOver(t, hosts, network, func(c *ubcoll.Comm) error {
		draw := rand.New(rand.NewPCG(seed, 0))
		me, of := hosts[c.Rank()], [2][2][]float32{} // staged and direct
		for i := range of {
			src, dst, free, err := twoBuffers(c, 50003, i == 1, false)
			if err != nil {
				return err
			}
			defer free()
			of[i] = [2][]float32{src, dst}
		}
		for i := range count {
			wrong := make([]int, ranks)
			for k := 1 + draw.IntN(3); k > 0; k-- {
				at, kind := draw.IntN(ranks), 1+draw.IntN(7)
				wrong[at] = kind
				if whole := draw.IntN(2) == 0; whole {
					for r := range wrong {
						if hosts[r] == hosts[at] {
							wrong[r] = kind
						}
					}
				}
			}
			if len(slices.Compact(slices.Clone(wrong))) == 1 { // all alike is right
				wrong[0] = 0
			}
			n := []int{0, 1, 10, 3000, 50000}[draw.IntN(5)]
			root := draw.IntN(ranks)
			direct := draw.IntN(16) >> (me % 4) & 1
			src, dst := of[direct][0], of[direct][1]
			before := putsOf(c)
			err := wrongCall(c, wrong[c.Rank()], n, root, dst, src)
			for k := range dst {
				dst[k] = float32(c.Rank())
			}
			mu.Lock()
			said[i][c.Rank()] = err
			mu.Unlock()
			sent, more := putsOf(c)-before, []int{1, 2000, 2100, 20000, 400000, most}[draw.IntN(6)]
			if err := checkAcross(c, more, i); err != nil {
				return fmt.Errorf("after wrong call %d (%v, %d elements): %w", i, wrong, n, err)
			}
			for k, is := range dst {
				if is != float32(c.Rank()) {
					return fmt.Errorf("rank %d: after wrong call %d (%v, %d elements) had returned, it wrote [%d] = %v", c.Rank(), i, wrong, n, k, is)
				}
			}
			after := putsOf(c) - before - sent
			to, root := sends(hosts, c.Rank()), int(hosts[i%ranks]-'a')
			wantSent := to.wantPuts("wrong", 0, 0)
			wantAfter := to.wantPuts("all_reduce", 0, 4*more) + to.wantPuts("broadcast", root, 4*more)
			if direct == 1 || strings.Count(hosts, hosts[c.Rank():c.Rank()+1]) == 1 { // it may have sent data before the verdict
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
