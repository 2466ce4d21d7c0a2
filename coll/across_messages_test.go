package coll_test

import (
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// blockPuts is how many messages a host of one rank sends in a collective of blocks that are not small, and no longer than an
// item, by an algorithm: one in each round of agreeing, twice if there are counts, and those with counts and data.
func blockPuts(op, way string, hosts, me, root int) int {
	n := bits.Len(uint(hosts - 1))
	behind := (me - root + hosts) % hosts
	vector := strings.HasSuffix(op, "_v")
	if vector {
		n *= 2
	}
	data := hosts - 1 // to each other host
	children := 0     // in a binomial tree
	for k := 1; (behind == 0 || k < behind&-behind) && behind+k < hosts; k *= 2 {
		children++
	}
	switch strings.TrimSuffix(op, "_v") {
	case "gather", "reduce":
		if data = min(behind, 1); way == "chain" {
			item := schedule.Default.Item(schedule.ToChain, hosts, 160_000)
			data *= (160_000 + item - 1) / item
		}
	case "scatter":
		if data = 0; behind == 0 {
			data = hosts - 1
		}
		if way == "tree" {
			data = children
		}
	case "all_gather":
		if way != "doubling" {
			break
		}
		data = 0
		for k := 1; k < hosts; k *= 2 {
			data++
			if hosts&(hosts-1) != 0 && me+min(k, hosts-k) > hosts { // the parts go on at that of host 0
				data++
			}
		}
	case "reduce_scatter":
		if way == "halving" && hosts&(hosts-1) == 0 {
			data = bits.Len(uint(hosts - 1))
		}
	}
	if vector {
		data *= 2
	}
	return n + data
}

// The number of messages of each collective is what its algorithm says, and no more.
func TestAcrossBlocksMessages(t *testing.T) {
	for i, hosts := range []string{"abc", "ab", "abcd", "abcdef"} {
		for j, way := range []string{"pairwise", "doubling", "halving", "tree", "chain"} {
			t.Run(hosts+"/"+way, func(t *testing.T) {
				testkit.Turn(t, i+j, 3)
				requireAll(t, onHostsWith(t, hosts, inside.Providers.Network, engine.Options{Algorithm: way}, func(c *ubcoll.Comm) error {
					for i, op := range blockOps {
						k := blockCall{op: op, count: 40_000, root: i % c.Size()}
						by := way
						switch {
						case op == "all_gather" && way == "doubling", op == "reduce_scatter" && way == "halving",
							op == "gather" && way == "tree", op == "scatter" && way == "tree", op == "reduce" && (way == "tree" || way == "chain"):
						case op == "reduce":
							by = "tree"
						default:
							by = "pairwise"
						}
						if way != by && op != "reduce" && !strings.HasSuffix(op, "_v") && op != "all_to_all" {
							continue // the model chooses
						}
						if strings.HasSuffix(op, "_v") {
							k.count = 20_000
						}
						if op == "gather" && way == "tree" {
							k.root = 0 // otherwise parts that come together may not belong together
						}
						before := putsOf(c)
						if err := k.call(c); err != nil {
							return err
						}
						got, want := int(putsOf(c)-before), blockPuts(op, by, c.Size(), c.Rank(), k.root)
						if strings.HasSuffix(op, "_v") { // pairs without elements send none
							for d := range c.Size() {
								if n := k.counted(c.Rank(), d); d != c.Rank() && n == 0 && (op != "gather_v" || d == k.root) && (op != "scatter_v" || c.Rank() == k.root) {
									want--
								}
							}
						}
						if got != want {
							return fmt.Errorf("rank %d: %s by %s, root %d: %d messages, not %d (%v)", c.Rank(), op, by, k.root, got, want, c.LastOp())
						}
					}
					return nil
				}))
			})
		}
	}
}
