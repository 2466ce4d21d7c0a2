package coll_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestAcrossLanes: whether peers can access the buffers or not, on all hosts or on some, in place or not: the hosts
// exchange the same slices.
func TestAcrossLanes(t *testing.T) {
	sizes := []int{2100, 20_000, 70_001, 300_007, 1<<20 + 1}
	if race.Enabled || testing.Short() {
		sizes = []int{2100, 70_001, 300_007}
	}
	layouts := []string{"aabb", "abababcbac", "aaabbbccc", "aabbbbcc", "aaaaaaaaabbbbbbbbbbb"}
	if testkit.Daily() {
		layouts = layouts[2:4]
	}
	for i, hosts := range layouts {
		for j, k := range []struct{ name, registered, inPlace string }{ // on which hosts
			{"registered", "abc", ""}, {"in place", "abc", "abc"}, {"Go slices", "", "a"}, {"mixed", "b", "bc"},
		} {
			t.Run(hosts+"/"+k.name, func(t *testing.T) {
				testkit.Turn(t, i+j, 3)
				requireAll(t, onHosts(t, hosts, func(c *ubcoll.Comm) (err error) {
					for turn, n := range sizes[:len(sizes)-len(hosts)/10] {
						on := hosts[c.Rank() : c.Rank()+1]
						direct := strings.Contains(k.registered, on)
						src, dst, free, err := twoBuffers(c, n, direct, strings.Contains(k.inPlace, on))
						if err == nil {
							err = errors.Join(checkBuffers(c, src, dst, turn, direct), checkBuffers(c, src, dst, turn+3, direct), free())
						}
						if err != nil {
							return fmt.Errorf("rank %d, %d elements: %w", c.Rank(), n, err)
						}
					}
					return coll.Barrier(context.Background(), c)
				}))
			})
		}
	}
}

// twoBuffers returns a source and a destination.
func twoBuffers(c *ubcoll.Comm, n int, registered, inPlace bool) (src, dst []float32, free func() error, err error) {
	if !registered {
		src = make([]float32, n)
		if dst = make([]float32, n); inPlace {
			dst = src
		}
		return src, dst, func() error { return nil }, nil
	}
	var all [2]*ubcoll.Buffer[float32]
	var errs []error
	var undo []func() error
	free = func() error {
		for _, f := range undo {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	for i := range all {
		if inPlace && i == 1 {
			break
		}
		if all[i], err = ubcoll.Alloc[float32](c, ubcoll.Host, n); err != nil {
			return nil, nil, free, err
		}
		r, err := all[i].Register(c)
		if err != nil {
			return nil, nil, free, err
		}
		undo = append(undo, r.Close, all[i].Free)
	}
	src = all[0].Slice()
	if dst = src; !inPlace {
		dst = all[1].Slice()
	}
	return src, dst, free, nil
}

// checkBuffers runs an all-reduce and a broadcast with these buffers, and checks the results, and that the source is as
// it was. direct says that the ranks of this host write the result to each other's buffers.
func checkBuffers(c *ubcoll.Comm, src, dst []float32, turn int, direct bool) error {
	ctx, size := context.Background(), c.Size()
	at := func(k int) float32 { return float32((k*7 + turn) % 1000) }
	for k := range src {
		src[k] = at(k) + float32(c.Rank())
	}
	if err := coll.AllReduce(ctx, c, ubcoll.Of(dst), ubcoll.Of(src), ubcoll.Sum); err != nil {
		return err
	}
	if l := c.LastOp().Levels[0]; (l.Algorithm == "push") != direct {
		return fmt.Errorf("all-reduce: %+v", l)
	}
	for k := range dst {
		if want := at(k)*float32(size) + float32(size*(size-1)/2); dst[k] != want {
			return fmt.Errorf("all-reduce: [%d] = %v, not %v: %v", k, dst[k], want, c.LastOp().String())
		}
		if want := at(k) + float32(c.Rank()); &src[0] != &dst[0] && src[k] != want {
			return fmt.Errorf("all-reduce: its source [%d] = %v, not %v", k, src[k], want)
		}
	}
	root := (turn * 5) % size
	if c.Rank() == root {
		for k := range dst {
			dst[k] = -at(k)
		}
	}
	if err := coll.Broadcast(ctx, c, ubcoll.Of(dst), root); err != nil {
		return err
	}
	for k := range dst {
		if want := -at(k); dst[k] != want {
			return fmt.Errorf("broadcast from %d: [%d] = %v, not %v: %v", root, k, dst[k], want, c.LastOp().String())
		}
	}
	return nil
}

// between is how the data of the last operation went between hosts.
func between(c *ubcoll.Comm) string {
	all := c.LastOp().Levels
	return all[len(all)-1].Algorithm
}

// TestAcrossWays: every way between hosts can be asked for, at any size beyond that of contributions, and LastOp names it.
func TestAcrossWays(t *testing.T) {
	layouts := []string{"aabb", "ab", "abc", "abcde", "abcdef", "aabbccdddeeffgg"}
	if testkit.Daily() {
		layouts = layouts[3:5]
	}
	counts := []int{17_000, 40_001, 300_000}
	if race.Enabled && testing.Short() { // the last one takes ten times as long, and the detector sees the same
		counts = counts[:2]
	}
	for i, hosts := range layouts {
		for j, a := range []struct {
			name    string
			reduces bool
		}{{"ring", true}, {"doubling", true}, {"halving", true}, {"chain", false}, {"tree", false}, {"scatter", false}} {
			t.Run(hosts+"/"+a.name, func(t *testing.T) {
				testkit.Turn(t, i+j, 3)
				o := engine.Options{Algorithm: a.name}
				requireAll(t, onHostsWith(t, hosts, inside.Providers.Network, o, func(c *ubcoll.Comm) error {
					for turn, n := range counts {
						if err := checkAcross(c, n, turn); err != nil {
							return err
						}
						if !a.reduces && between(c) != a.name {
							return fmt.Errorf("%v", c.LastOp())
						}
						v := ubcoll.Of(make([]int64, n))
						if err := coll.AllReduce(context.Background(), c, v, v, ubcoll.Max); err != nil {
							return err
						}
						if a.reduces && between(c) != a.name {
							return fmt.Errorf("%v", c.LastOp())
						}
					}
					return nil
				}))
			})
		}
	}
}
