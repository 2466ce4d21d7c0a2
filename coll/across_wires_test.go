package coll_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
)

// Results are right whatever the network delays and reorders, and where nothing moves without the ranks.
func TestAcrossWires(t *testing.T) {
	layouts, sizes, turns := []string{"ab", "abc", "aabbc", "abcde"}, []int{0, 1, 5, 1000, 30000, 300000, 1<<20 + 3}, 4
	if race.Enabled || testing.Short() {
		layouts, sizes, turns = []string{"ab", "aabbc"}, []int{0, 5, 1000, 30000, 300000}, 2
	}
	if testkit.Daily() {
		turns = 1
	}
	for i, w := range transporttest.Kinds {
		for j, hosts := range layouts {
			t.Run(w.String()+"/"+hosts, func(t *testing.T) {
				testkit.Turn(t, i+j, 3)
				requireAll(t, onHostsOver(t, hosts, transporttest.New(t, w).Node, func(c *ubcoll.Comm) error {
					for turn := range turns {
						if err := coll.Barrier(context.Background(), c); err != nil {
							return err
						}
						for _, n := range sizes {
							if err := checkAcross(c, n, turn); err != nil {
								return err
							}
						}
					}
					half, err := c.Split(context.Background(), c.Rank()%2, 0)
					if err != nil {
						return err
					}
					return errors.Join(checkAcross(half, 3000, 0), half.Close(), checkAcross(c, 3000, 0))
				}))
			})
		}
	}
}

// Errors are the same on all ranks, and the next call works: what a refused call had granted is revoked first.
func TestAcrossWiresMismatches(t *testing.T) {
	for _, w := range transporttest.Kinds {
		t.Run(w.String(), func(t *testing.T) {
			for _, seed := range testkit.Seeds(t) {
				for _, hosts := range mismatching {
					mismatches(t, hosts, transporttest.New(t, w).Node, seed, testkit.Often(100)/len(mismatching), 20000)
				}
			}
		})
	}
}

// TestAcrossWiresEnds: a rank that dies, or a link that is cut, during traffic is named by all: of a cut, both
// hosts.
func TestAcrossWiresEnds(t *testing.T) {
	const hosts = "aabbc"
	for _, w := range transporttest.Kinds {
		for _, cut := range []bool{false, true} {
			name := "death"
			if cut {
				name = "cut"
			}
			t.Run(w.String()+"/"+name, func(t *testing.T) {
				for _, n := range []int{10, 100000} {
					f := transporttest.New(t, w)
					var begun sync.WaitGroup
					begun.Add(len(hosts))
					requireAll(t, onHostsOver(t, hosts, f.Node, func(c *ubcoll.Comm) error {
						err := checkAcross(c, n, 0)
						begun.Done()
						if err != nil {
							return err
						}
						if c.Rank() == 4 {
							begun.Wait() // no rank is in the operations before the end any more
							time.AfterFunc(5*time.Millisecond, func() {
								if cut {
									f.Cut(2, 4)
								} else {
									f.Kill(4)
								}
							})
						}
						err = untilError(context.Background(), c, n)
						e, ok := errors.AsType[*fault.Error](err)
						switch {
						case c.Rank() == 4 && !cut:
							return nil
						case !ok || !errors.Is(err, fault.ErrPeerLost):
							return err
						case !cut && e.Peer != 4, cut && (!strings.Contains(err.Error(), "host-b") || !strings.Contains(err.Error(), "host-c")):
							t.Errorf("rank %d: %v", c.Rank(), err)
						}
						return nil
					}))
				}
			})
		}
	}
}
