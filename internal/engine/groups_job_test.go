package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// many is the number of ranks in these tests: groups of 6, 7 and 7, with leaders 0, 6 and 13.
const many = 20

// All ranks name the missing rank, whether it leads a group or not, and whoever gives up first: its own group or the
// others.
func TestMissingOfGroup(t *testing.T) {
	testkit.LongOrRace(t)
	for _, k := range []struct {
		name    string
		missing int
	}{{"a member", 9}, {"the first rank", 0}, {"a leader", 6}, {"the last rank", many - 1}} {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/own group first=%v", k.name, own), func(t *testing.T) {
				comms := enginetest.Open(t, many, engine.Options{})
				result := without(comms, k.missing, enginetest.Barrier)
				enginetest.RequireWaiting(t, comms, 1, k.missing)
				for _, c := range comms {
					if own == (c.Team().Group() == comms[k.missing].Team().Group()) {
						c.SetTimeout(time.Millisecond)
					}
				}
				for r, err := range <-result {
					if r == k.missing {
						continue
					}
					require.ErrorIs(t, err, fault.ErrTimeout)
					var e *fault.Error
					require.ErrorAs(t, err, &e)
					require.Equal(t, []int{r, k.missing}, []int{e.Rank, e.Peer})
				}
			})
		}
	}
}

// A member that closes instead of calling is lost to all ranks, and so is one that aborts.
func TestLostOfGroup(t *testing.T) {
	testkit.LongOrRace(t)
	for _, k := range []struct {
		name string
		lose func(c *engine.Comm)
		want error
	}{
		{"close", func(c *engine.Comm) { c.Close() }, fault.ErrPeerLost},
		{"abort", func(c *engine.Comm) { c.Abort(errors.New("stop")) }, fault.ErrAborted},
	} {
		for _, lost := range []int{6, 9} {
			t.Run(fmt.Sprintf("%s/rank=%d", k.name, lost), func(t *testing.T) {
				comms := enginetest.Open(t, many, engine.Options{})
				requireUsable(t, comms)
				start := time.Now()
				errs := testkit.Each(comms, func(c *engine.Comm) error {
					if c.Rank() == lost {
						k.lose(c)
						return nil
					}
					return enginetest.Barrier(c)
				})
				require.Less(t, time.Since(start), testkit.Limit)
				for r, err := range errs {
					if r == lost {
						continue
					}
					require.ErrorIs(t, err, k.want)
					var e *fault.Error
					require.ErrorAs(t, err, &e)
					require.Equal(t, lost, e.Peer)
				}
			})
		}
	}
}

// If a waiting rank's context ends, its error names the missing rank, and the other ranks' waits end.
func TestCancelInGroup(t *testing.T) {
	testkit.LongOrRace(t)
	comms := enginetest.Open(t, many, engine.Options{})
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	result := without(comms, 15, func(c *engine.Comm) error {
		if c.Rank() == 2 {
			return enginetest.Run(ctx, c, reduce(5))
		}
		return enginetest.Run(background, c, reduce(5))
	})
	enginetest.RequireWaiting(t, comms, 1, 15)
	cancel()
	errs := <-result
	var e *fault.Error
	require.ErrorIs(t, errs[2], context.Canceled)
	require.ErrorAs(t, errs[2], &e)
	require.Equal(t, 15, e.Peer)
	require.ErrorIs(t, errs[3], fault.ErrAborted)
	require.ErrorContains(t, errs[3], "rank 2 gave up")
}

// The report of a long wait names the member, not its leader.
func TestReportNamesMember(t *testing.T) {
	testkit.LongOrRace(t)
	out := reports(t, many, 9)
	require.Equal(t, many-1, strings.Count(out, "still waiting"), out)
	require.Equal(t, many-1, strings.Count(out, "missing=9"), out)
	require.Contains(t, out, "rank=0 ")
}

// What members offered, and their leaders combined, is there after agreement, in every operation, on all ranks.
func TestCombine(t *testing.T) {
	comms := enginetest.Open(t, many, engine.Options{})
	large := team.PartialBytes
	rounds := 100
	if testkit.Daily() {
		rounds = 20
	}
	for i := range rounds {
		errs := testkit.Each(comms, func(c *engine.Comm) error {
			w := reduce(5)
			odd := i%10 == 9 && c.Rank() == 7
			if odd {
				w = reduce(6)
			}
			w.Eager.Bytes = large
			w.Path.Offer = func(c *team.Team, _ *team.Work) {
				*(*uint64)(c.Payload(c.Rank())) = uint64(1000*i + c.Rank())
				*(*uint64)(c.Eager(c.Rank())) = uint64(1000*i + c.Rank())
			}
			w.Path.Combine = func(c *team.Team, _ *team.Work) {
				var small, sum uint64
				for _, r := range c.Members() {
					small += *(*uint64)(c.Payload(r))
					sum += *(*uint64)(c.Eager(r))
				}
				*(*uint64)(c.Partial(c.Group(), 8)) = small
				*(*uint64)(c.Partial(c.Group(), large)) = sum
			}
			w.Path.Run = func(_ context.Context, c *team.Team, _ *team.Work) error {
				var small, sum uint64
				for g := range c.Groups() {
					small += *(*uint64)(c.Partial(g, 8))
					sum += *(*uint64)(c.Partial(g, large))
				}
				if want := uint64(1000*i*many + many*(many-1)/2); small != want || sum != want {
					return fmt.Errorf("operation %d: %d and %d, not %d", i, small, sum, want)
				}
				return nil
			}
			return enginetest.Run(background, c, w)
		})
		for _, err := range errs {
			if i%10 != 9 {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, fault.ErrMismatch)
			require.ErrorContains(t, err, "rank 7 called")
		}
	}
	requireUsable(t, comms)
}

// Communicators of some ranks of a large one have groups of their own, or none.
func TestGroupsOfFamily(t *testing.T) {
	testkit.LongOrRace(t)
	comms := enginetest.Open(t, 2*many, engine.Options{})
	errs := testkit.Each(comms, func(c *engine.Comm) error {
		half, err := c.Split(background, c.Rank()%2, 0, c.Options())
		if err != nil {
			return err
		}
		defer half.Close()
		few, err := half.Split(background, half.Rank()/16, 0, half.Options())
		if err != nil {
			return err
		}
		defer few.Close()
		if c.Team().Groups() != 5 || half.Team().Groups() != 3 || few.Team().Groups() != 0 {
			return fmt.Errorf("%d, %d and %d groups", c.Team().Groups(), half.Team().Groups(), few.Team().Groups())
		}
		for range 10 {
			if err := errors.Join(enginetest.Barrier(c), enginetest.Barrier(half), enginetest.Barrier(few)); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, errors.Join(errs...))
}
