package coll

import (
	"context"
	"testing"

	"github.com/ubcoll/ubcoll/internal/team"
)

// SkipWait makes the ring read data that its left neighbour may not have written yet.
func SkipWait() {
	waitLeft = func(context.Context, *team.Team, int, uint64, string) error { return nil }
}

// RingChunks is the largest number of items in a step of the ring.
const RingChunks = ringChunks

// AfterWaitLeft makes each rank of a ring call f when its left neighbour has done that many items, until undo.
func AfterWaitLeft(f func(ctx context.Context, t *team.Team, left int, items uint64) error) (undo func()) {
	was := waitLeft
	waitLeft = func(ctx context.Context, t *team.Team, left int, items uint64, step string) error {
		if err := was(ctx, t, left, items, step); err != nil {
			return err
		}
		return f(ctx, t, left, items)
	}
	return func() { waitLeft = was }
}

// SetPhased sets how many bytes on devices go by phases between hosts, and the least slice of those of several parts.
func SetPhased(t testing.TB, from, slice int) {
	was, least := phasedFrom, phasedSlice
	phasedFrom, phasedSlice = from, slice
	t.Cleanup(func() { phasedFrom, phasedSlice = was, least })
}

// SetStagedPart sets how many bytes go in a part of what is on devices, between hosts.
func SetStagedPart(t testing.TB, bytes int) {
	was := stagedPart
	stagedPart = bytes
	t.Cleanup(func() { stagedPart = was })
}
