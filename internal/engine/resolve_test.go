package engine_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// Memory that cannot be found any more went with its owner, if that has died, failed or left: the error says so, and
// names the rank with which it began.
func TestResolveAfterTheEnd(t *testing.T) {
	for _, k := range []struct {
		name  string
		end   func(comms []*engine.Comm)
		want  error
		about int
	}{
		{"nothing", func([]*engine.Comm) {}, fault.ErrStale, 0},
		{"abort", func(comms []*engine.Comm) { comms[0].Abort(errors.New("enough")) }, fault.ErrAborted, 0},
		{"abort, close", func(comms []*engine.Comm) {
			comms[0].Abort(errors.New("enough"))
			require.NoError(t, comms[0].Close())
		}, fault.ErrAborted, 0},
		{"close", func(comms []*engine.Comm) { require.NoError(t, comms[0].Close()) }, fault.ErrPeerLost, 0},
		{"another rank was lost first", func(comms []*engine.Comm) {
			comms[0].Fail(&fault.Error{Op: "test", Rank: 0, Peer: 2, Err: fmt.Errorf("it died: %w", fault.ErrPeerLost)})
		}, fault.ErrPeerLost, 2},
		{"another rank tells", func(comms []*engine.Comm) {
			comms[2].Fail(&fault.Error{Op: "test", Rank: 2, Peer: 0, Err: fmt.Errorf("it died: %w", fault.ErrPeerLost)})
		}, fault.ErrPeerLost, 0},
	} {
		t.Run(k.name, func(t *testing.T) {
			comms := enginetest.Open(t, 3, engine.Options{})
			k.end(comms)
			_, err := comms[1].Team().Resolve("test", 0, mem.Location{Arena: mem.MaxArenas, Slot: mem.MaxSlots}, 1)
			require.ErrorIs(t, err, k.want)
			e, ok := errors.AsType[*fault.Error](err)
			require.True(t, ok)
			require.Equal(t, k.about, e.Peer, e)
			require.Equal(t, 1, e.Rank)
		})
	}
}

// A process that is seen to have died counts, whatever the transport says of its memory.
func TestResolveOfTheDead(t *testing.T) {
	comms := enginetest.OpenHooked(t, engine.Options{},
		enginetest.Hooks{Look: func() {}, Live: func() {}, Dead: func() bool { return true }})
	_, err := comms[1].Team().Resolve("test", 0, mem.Location{Arena: mem.MaxArenas, Slot: mem.MaxSlots}, 1)
	require.ErrorIs(t, err, fault.ErrPeerLost)
}
