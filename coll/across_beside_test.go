package coll_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/ubcoll/ubcoll"
)

// TestAcrossSideBySide: operations of several communicators at the same time share a rank's landing memory. One that
// finds it taken has other memory, and neither waits for the other.
func TestAcrossSideBySide(t *testing.T) {
	for _, hosts := range []string{"ab", "aabbc", "abcd"} {
		t.Run(hosts, func(t *testing.T) {
			requireAll(t, onHosts(t, hosts, func(c *ubcoll.Comm) error {
				cs := []*ubcoll.Comm{c}
				for range 2 {
					d, err := c.Dup(context.Background())
					if err != nil {
						return err
					}
					cs = append(cs, d)
				}
				var all sync.WaitGroup
				errs := make([]error, len(cs))
				for i, c := range cs {
					all.Go(func() {
						for turn := 0; turn < 6 && errs[i] == nil; turn++ {
							n := 200000 // by ring and chain
							if turn%2 == 1 {
								n = 100000 // by recursive doubling
							}
							errs[i] = checkAcross(c, n+10000*i, turn)
						}
					})
				}
				all.Wait()
				return errors.Join(errors.Join(errs...), cs[1].Close(), cs[2].Close())
			}))
		})
	}
}
