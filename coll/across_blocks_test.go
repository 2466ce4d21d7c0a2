package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
)

// blockOps are the collectives whose data consist of blocks.
var blockOps = []string{"reduce_scatter", "reduce", "all_gather", "gather", "scatter", "all_to_all", "all_gather_v", "gather_v",
	"scatter_v", "all_to_all_v"}

// blockCall is one call of them: of count elements to a block, or, with counts, up to twice that.
type blockCall struct {
	op              string
	count, root     int
	inPlace, direct bool
}

// counted is how many elements rank s sends to rank d: by its own, the sender's, or the receiver's.
func (k blockCall) counted(s, d int) int {
	switch k.op {
	case "all_gather_v", "gather_v":
		return k.count * (s % 3)
	case "scatter_v":
		return k.count * ((d + 1) % 3)
	case "all_to_all_v":
		return k.count * ((s + 2*d) % 3)
	}
	return k.count
}

// is element i of what rank s has for rank d.
func elementOf(s, d, i int) float32 { return float32((s*31+d*7+i)%1000 + 1) }

// call makes the call, and checks the result.
func (k blockCall) call(c *ubcoll.Comm) (err error) {
	ctx, n, me := context.Background(), c.Size(), c.Rank()
	toAll := k.op == "all_gather" || k.op == "gather" || k.op == "all_gather_v" || k.op == "gather_v" // the same block for each
	reduces := k.op == "reduce" || k.op == "reduce_scatter"
	rooted := k.op != "reduce_scatter" && k.op != "all_gather" && k.op != "all_to_all" && k.op != "all_gather_v" && k.op != "all_to_all_v"
	fromRoot := k.op == "scatter" || k.op == "scatter_v"
	toRoot := rooted && !fromRoot
	var source, want []float32
	sendCounts, recvCounts := make([]int, n), make([]int, n)
	before := 0 // this rank's block in the larger buffer
	for r := range n {
		sendCounts[r], recvCounts[r] = k.counted(me, r), k.counted(r, me)
		if r < me {
			before += recvCounts[r]
			if fromRoot || reduces {
				before += sendCounts[r] - recvCounts[r]
			}
		}
	}
	block := func(to []float32, s, d int) []float32 {
		for i := range k.counted(s, d) {
			to = append(to, elementOf(s, d, i))
		}
		return to
	}
	switch {
	case toAll || k.op == "reduce":
		source = block(nil, me, 0)
	case !fromRoot || me == k.root:
		for d := range n {
			source = block(source, me, d)
		}
	}
	switch {
	case toRoot && me != k.root:
	case reduces:
		want = make([]float32, k.count)
		for i := range want {
			for s := range n {
				if d := me; k.op == "reduce" {
					want[i] += elementOf(s, 0, i)
				} else {
					want[i] += elementOf(s, d, i)
				}
			}
		}
	case fromRoot:
		want = block(nil, k.root, me)
	case toAll:
		for s := range n {
			want = block(want, s, 0)
		}
	default:
		for s := range n {
			want = block(want, s, me)
		}
	}
	size := max(len(source), len(want))
	src, dst, free, err := twoBuffers(c, size+1, k.direct, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, free()) }()
	copy(src, source)
	src, dst = src[:len(source)], dst[:len(want)]
	if k.inPlace && k.op != "all_to_all" && k.op != "all_to_all_v" {
		switch {
		case k.op == "reduce" && me == k.root:
			dst = src
		case fromRoot && me == k.root, k.op == "reduce_scatter":
			dst = src[before:][:len(want)]
		case toAll && (!toRoot || me == k.root):
			copy(dst[before:], src)
			src = dst[before:][:len(src)]
		}
	}
	from, to := ubcoll.Of(src), ubcoll.Of(dst)
	if me != k.root && toRoot && k.count%2 == 1 {
		to = ubcoll.Vec{}
	}
	switch k.op {
	case "reduce_scatter":
		err = coll.ReduceScatter(ctx, c, to, from, ubcoll.Sum)
	case "reduce":
		err = coll.Reduce(ctx, c, to, from, ubcoll.Sum, k.root)
	case "all_gather":
		err = coll.AllGather(ctx, c, to, from)
	case "gather":
		err = coll.Gather(ctx, c, to, from, k.root)
	case "scatter":
		err = coll.Scatter(ctx, c, to, from, k.root)
	case "all_to_all":
		err = coll.AllToAll(ctx, c, to, from)
	case "all_gather_v":
		err = coll.AllGatherV(ctx, c, to, recvCounts, from)
	case "gather_v":
		err = coll.GatherV(ctx, c, to, recvCounts, from, k.root)
	case "scatter_v":
		err = coll.ScatterV(ctx, c, to, from, sendCounts, k.root)
	case "all_to_all_v":
		err = coll.AllToAllV(ctx, c, to, recvCounts, from, sendCounts)
	}
	if err != nil {
		return err
	}
	for i := range want {
		if dst[i] != want[i] {
			return fmt.Errorf("rank %d: %+v: [%d of %d] is %v, not %v (%s)", me, k, i, len(want), dst[i], want[i], c.LastOp().String())
		}
	}
	return nil
}

// checkBlocks makes calls of all operations with so many elements, of which some ranks' buffers are direct: all, none, or
// every other one's.
func checkBlocks(c *ubcoll.Comm, count, turn int) error {
	for i, op := range blockOps {
		k := blockCall{op: op, count: count, root: (turn*5 + i) % c.Size(), inPlace: (turn+i)%2 == 1}
		switch turn % 3 {
		case 0:
			k.direct = true
		case 1:
			k.direct = c.Rank()%2 == 0
		}
		if err := k.call(c); err != nil {
			return fmt.Errorf("%v, %d elements, turn %d: %w", op, count, turn, err)
		}
	}
	return nil
}

// TestAcrossBlocks: all operations are right in any layout, order and memory, over TCP and over networks that delay.
func TestAcrossBlocks(t *testing.T) {
	layouts, sizes, turns := []string{"ab", "aaab", "abc", "aabbc", "abcd"}, []int{0, 1, 300, 9000, 60001}, 3
	if testkit.Full() {
		layouts, sizes, turns = append(layouts, "aabb", "abab", "abcde", "abcabcabc", "aaaaaaaaaab"), append(sizes, 5, 1000, 400001), 4
	}
	if race.Enabled || testing.Short() {
		layouts, sizes = []string{"abab", "aabbc"}, []int{0, 5, 300, 9000}
	}
	if testkit.Daily() {
		layouts = layouts[1:]
	}
	networks := []transporttest.Options{transporttest.Kinds[3], transporttest.Kinds[0]}
	for k, hosts := range layouts {
		for i, name := range []string{"tcp", networks[0].String(), networks[1].String()} {
			if !testkit.Full() && i == 1+k%2 { // one of the others
				continue
			}
			t.Run(hosts+"/"+name, func(t *testing.T) {
				testkit.Turn(t, k+i, 3)
				network := inside.Providers.Network
				if i > 0 {
					network = transporttest.New(t, networks[i-1]).Node
				}
				requireAll(t, onHostsOver(t, hosts, network, func(c *ubcoll.Comm) error {
					for turn := range turns {
						for _, n := range sizes {
							if err := checkBlocks(c, n, turn); err != nil {
								return err
							}
						}
					}
					return checkAcross(c, 3000, 0)
				}))
			})
		}
	}
}

// wrong makes a call that differs from k, in a way: another count, root or operation, a refusal, or counts of a pair
// that do not match. dst and src have room for any.
func (k blockCall) wrong(c *ubcoll.Comm, way int, dst, src []float32) error {
	n := c.Size()
	ctx := context.Background()
	switch way {
	case 1:
		k.count++
	case 2:
		k.root = (k.root + 1) % n
	case 3:
		k.op = blockOps[(slices.Index(blockOps, k.op)+1)%len(blockOps)]
	case 4: // refused
		return coll.AllGather(ctx, c, ubcoll.Of(dst[:n]), ubcoll.Of(src[:2]))
	case 5:
		return coll.Barrier(ctx, c)
	case 6:
		ended, cancel := context.WithCancel(ctx)
		cancel()
		ctx = ended
	}
	size := k.count
	if way == 1 && strings.HasSuffix(k.op, "_v") {
		size-- // only what it says of the first rank differs
	}
	sends, receives, send, receive := make([]int, n), make([]int, n), 0, 0
	for r := range n {
		sends[r], receives[r] = size, size
		if r == 0 {
			sends[r], receives[r] = k.count, k.count
		}
		send, receive = send+sends[r], receive+receives[r]
	}
	of := func(b []float32, n int) ubcoll.Vec { return ubcoll.Of(b[:n]) }
	switch all := n * k.count; k.op {
	case "reduce_scatter":
		return coll.ReduceScatter(ctx, c, of(dst, k.count), of(src, all), ubcoll.Sum)
	case "reduce":
		return coll.Reduce(ctx, c, of(dst, k.count), of(src, k.count), ubcoll.Sum, k.root)
	case "all_gather":
		return coll.AllGather(ctx, c, of(dst, all), of(src, k.count))
	case "gather":
		return coll.Gather(ctx, c, of(dst, all), of(src, k.count), k.root)
	case "scatter":
		return coll.Scatter(ctx, c, of(dst, k.count), of(src, all), k.root)
	case "all_to_all":
		return coll.AllToAll(ctx, c, of(dst, all), of(src, all))
	case "all_gather_v":
		return coll.AllGatherV(ctx, c, of(dst, receive), receives, of(src, receives[c.Rank()]))
	case "gather_v":
		if c.Rank() != k.root {
			return coll.GatherV(ctx, c, ubcoll.Vec{}, nil, of(src, k.count), k.root)
		}
		return coll.GatherV(ctx, c, of(dst, receive), receives, of(src, receives[c.Rank()]), k.root)
	case "scatter_v":
		if c.Rank() != k.root {
			return coll.ScatterV(ctx, c, of(dst, k.count), ubcoll.Vec{}, nil, k.root)
		}
		return coll.ScatterV(ctx, c, of(dst, sends[c.Rank()]), of(src, send), sends, k.root)
	}
	return coll.AllToAllV(ctx, c, of(dst, receive), receives, of(src, send), sends)
}

// TestAcrossBlocksMismatches: if ranks make a wrong call, all ranks return the same error, in the same operation, and
// nothing is written later; so do they if the counts of a pair of ranks do not match, which are named. TEST_PROGRAMS says how
// many calls of each seed are wrong.
func TestAcrossBlocksMismatches(t *testing.T) {
	count := programs(t, 60)
	for _, seed := range testkit.Seeds(t) {
		t.Logf("%d calls of seed %d", count, seed)
		for i, hosts := range []string{"ab", "abcdabcc", "ababb", "abc"} {
			blockMismatches(t, hosts, inside.Providers.Network, seed, max(count/8, 1))
			blockMismatches(t, hosts, transporttest.New(t, transporttest.Kinds[i]).Node, seed+uint64(i), max(count/8, 1))
		}
	}
}

func blockMismatches(t *testing.T, hosts string, network engine.NewNode, seed uint64, count int) {
	ranks, most := len(hosts), 60000
	if race.Enabled || testing.Short() {
		most = 3000
	}
	said, what := make([][]error, count), make([]string, count)
	for i := range said {
		said[i] = make([]error, ranks)
	}
	requireAll(t, onHostsOver(t, hosts, network, func(c *ubcoll.Comm) error {
		draw := rand.New(rand.NewPCG(seed, 7))
		var of [2][2][]float32 // staged and direct
		for i := range of {
			src, dst, free, err := twoBuffers(c, ranks*(most+1), i == 1, false)
			if err != nil {
				return err
			}
			defer free()
			of[i] = [2][]float32{src, dst}
		}
		for i := range count {
			k := blockCall{op: blockOps[draw.IntN(len(blockOps))], count: []int{1, 10, 1000, most}[draw.IntN(4)], root: draw.IntN(ranks)}
			wrong := make([]int, ranks)
			counts := strings.HasSuffix(k.op, "_v")
			for range 1 + draw.IntN(2) {
				way := 1 + draw.IntN(6)
				if way == 2 && (k.op == "all_gather" || k.op == "all_to_all" || k.op == "reduce_scatter" || k.op == "all_gather_v" || k.op == "all_to_all_v") {
					way = 3
				}
				at := draw.IntN(ranks)
				if way == 1 && (k.op == "gather_v" || k.op == "scatter_v") && draw.IntN(2) == 0 {
					at = k.root
				}
				wrong[at] = way
				if draw.IntN(2) == 0 && !counts {
					for r := range wrong {
						if hosts[r] == hosts[at] {
							wrong[r] = way
						}
					}
				}
			}
			if len(slices.Compact(slices.Clone(wrong))) == 1 || counts && slices.Index(wrong, 1) == 0 && !slices.ContainsFunc(wrong, func(w int) bool { return w > 1 }) {
				wrong = make([]int, ranks)
				wrong[ranks-1] = 5
			}
			src, dst := of[draw.IntN(8)>>(c.Rank()%3)&1][0], of[draw.IntN(8)>>(c.Rank()%3)&1][1]
			if c.Rank() == 0 {
				what[i] = fmt.Sprintf("%s: %+v, %v", hosts, k, wrong)
			}
			err := k.wrong(c, wrong[c.Rank()], dst, src)
			said[i][c.Rank()] = err
			for j := range dst {
				dst[j] = float32(c.Rank())
			}
			k = blockCall{op: blockOps[i%len(blockOps)], count: []int{3, 700, 20000}[i%3], root: i % ranks, direct: i%2 == 0}
			if err := k.call(c); err != nil {
				return fmt.Errorf("after wrong call %d (%s): %w", i, what[i], err)
			}
			for j, is := range dst {
				if is != float32(c.Rank()) {
					return fmt.Errorf("rank %d: after wrong call %d (%s) had returned, it wrote [%d] = %v", c.Rank(), i, what[i], j, is)
				}
			}
		}
		return nil
	}))
	for i, errs := range said {
		about, text := -2, ""
		for r, err := range errs {
			require.Error(t, err, "call %d, %s, rank %d: %v", i, what[i], r, errs)
			e, ok := errors.AsType[*fault.Error](err)
			require.True(t, ok)
			if e.Step == "" {
				continue // the rank's own refusal
			}
			if about == -2 {
				about, text = e.Peer, e.Err.Error()
			}
			require.Equal(t, about, e.Peer, "call %d, %s: %v", i, what[i], errs)
			require.Equal(t, text, e.Err.Error(), "call %d, %s: %v", i, what[i], errs)
		}
	}
}

// TestAcrossBlocksManyHosts: all operations are right between 24 hosts, in the full run between 64, by data that travel with
// the agreement, and by data for which all hosts make pairs.
func TestAcrossBlocksManyHosts(t *testing.T) {
	testkit.LongOrRace(t)
	n, sizes := 24, []int{1, 300, 5000}
	if testkit.Full() {
		n = 64
	}
	if race.Enabled || testing.Short() {
		n, sizes = 12, sizes[:2]
	}
	requireAll(t, onHosts(t, letters(n), func(c *ubcoll.Comm) error {
		for turn, count := range sizes {
			if err := checkBlocks(c, count, turn); err != nil {
				return err
			}
		}
		return nil
	}))
}

// TestAcrossBlocksSlots: what is gathered, or combined and sent on, in more items than there is memory for at once arrives
// as it was, though the network reads it late.
func TestAcrossBlocksSlots(t *testing.T) {
	testkit.Long(t)
	testkit.SkipRace(t) // much data
	for _, k := range []struct{ hosts, way string }{{"abc", "chain"}, {"abc", "tree"}, {"aabb", "pairwise"}} {
		t.Run(k.hosts+"/"+k.way, func(t *testing.T) {
			network := transporttest.New(t, transporttest.Options{Delays: true}).Node
			requireAll(t, onHostsWith(t, k.hosts, network, engine.Options{Algorithm: k.way}, func(c *ubcoll.Comm) error {
				for root := range 2 {
					for _, op := range []string{"reduce", "reduce_scatter", "all_to_all"} {
						if err := (blockCall{op: op, count: 1<<20 + 3, root: root, direct: true}).call(c); err != nil {
							return err
						}
					}
				}
				return nil
			}))
		})
	}
}
