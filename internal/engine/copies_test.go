package engine_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestClosedEndsAreForgotten connects and closes repeatedly: earlier uses of a slot are no longer watched while the
// slot is in use again.
func TestClosedEndsAreForgotten(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{})
	require.NoError(t, errors.Join(testkit.Each(comms, func(c *engine.Comm) error {
		_, r := enginetest.Registered(t, c, 100)
		for range 300 {
			l, err := onesided.SpaceOf(c).Connect(background, 1-c.Rank(), r, nil)
			if err == nil {
				err = errors.Join(l.Close(), enginetest.Barrier(c)) // so that the next connection gets the same slot
			}
			if err != nil {
				return err
			}
		}
		return nil // not r's Close, which would forget closed ends
	})...))
	for _, c := range comms {
		require.Less(t, c.Domain().Watched(), 100)
	}
}
