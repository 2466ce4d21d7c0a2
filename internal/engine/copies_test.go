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

// TestClosedEndsAreForgotten connects and closes again and again: what a slot was used for before is not looked at for as
// long as the slot is in use.
func TestClosedEndsAreForgotten(t *testing.T) {
	comms := enginetest.Open(t, 2, engine.Options{})
	require.NoError(t, errors.Join(testkit.Each(comms, func(c *engine.Comm) error {
		_, r := enginetest.Registered(t, c, 100)
		for range 300 {
			l, err := onesided.SpaceOf(c).Connect(background, 1-c.Rank(), r, nil)
			if err == nil {
				err = errors.Join(l.Close(), enginetest.Barrier(c)) // so that the next one has the same slot
			}
			if err != nil {
				return err
			}
		}
		return nil // r's Close would forget what has been closed
	})...))
	for _, c := range comms {
		require.Less(t, c.Domain().Watched(), 100)
	}
}
