package coll_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
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
	layouts, sizes, turns := []string{"ab", "aabb", "abab", "aaab", "abc", "aabbc", "abcd", "abcabcabc", "aaaaaaaaaab"}, []int{0, 1, 5, 300, 1000, 9000, 100003}, 4
	if race.Enabled || testing.Short() {
		layouts, sizes, turns = []string{"abab", "aabbc"}, []int{0, 5, 300, 9000}, 3
	}
	if testkit.Daily() {
		layouts, turns = layouts[1:6], 3
	}
	networks := append(wires[:0:0], wires[3], wires[0])
	for _, hosts := range layouts {
		for i, name := range []string{"tcp", networks[0].name, networks[1].name} {
			t.Run(hosts+"/"+name, func(t *testing.T) {
				network := inside.Providers.Network
				if i > 0 {
					network = transporttest.New(t, networks[i-1].o).Node
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
