//go:build invariants

package team

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// What a rank publishes has the numbers 1, 2, 3 and so on, in the two slots in turns.
func TestNumbersAreDense(t *testing.T) {
	x := newHosts(&strings.Builder{}) // has published 6 and 7
	x.Publish(&Work{Kind: KindBarrier, Path: &Path{}}, nil)
	testkit.Violation(t, "descriptor 8 takes the slot of 8", func() { x.Publish(&Work{Path: &Path{}}, nil) })
	x.Seq = 10
	testkit.Violation(t, "descriptor 10 is published after 7", func() { x.Publish(&Work{Path: &Path{}}, nil) })
	x.Seq = 9
	x.Me.Desc[1].Seq.Store(5)
	testkit.Violation(t, "descriptor 9 takes the slot of 5", func() { x.PublishFused(nil, 0) })
	testkit.Violation(t, "leader's word 2 is published after 0", func() { checkNext("leader's word", &x.Me.Group, 2) })
	checkNext("leader's word", &x.Me.Group, 1)
}

func TestStepsRise(t *testing.T) {
	x := newHosts(&strings.Builder{})
	x.Progress(1)
	x.Progress(1)
	x.Progress(3)
	testkit.Violation(t, "step 2 of operation 8 is published after step 3 of operation 8", func() { x.Progress(2) })
	x.Seq = 7
	testkit.Violation(t, "step 9 of operation 7 is published after step 3 of operation 8", func() { x.Progress(9) })
}

// What an operation holds is released once.
func TestWorkReleasesOnce(t *testing.T) {
	h, err := mem.New(1<<40, false)
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Close()) }()
	a, err := h.Alloc(64)
	require.NoError(t, err)
	w := Work{Src: Vec{Ptr: a.Ptr, Alloc: a}}
	require.NoError(t, w.Hold())
	w.Release()
	testkit.Violation(t, "released more often than held", w.Release)
	require.True(t, a.Hold(), "back to 0")
}
