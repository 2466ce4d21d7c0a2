package engine_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestExchange gathers records of different lengths, and too long ones.
func TestExchange(t *testing.T) {
	comms := enginetest.Open(t, 3, engine.Options{})
	for _, n := range []int{0, 1, 100, 5000} {
		for _, err := range testkit.Each(comms, func(c *engine.Comm) error {
			all, err := c.Exchange(background, team.KindSplit, make([]byte, n*c.Rank()), nil)
			if err != nil {
				return err
			}
			for r, b := range all {
				if len(b) != n*r {
					return errors.New("wrong length")
				}
			}
			return nil
		}) {
			require.NoError(t, err)
		}
	}
	for _, err := range testkit.Each(comms, func(c *engine.Comm) error {
		n := 0
		if c.Rank() == 1 {
			n = team.EagerBytes
		}
		_, err := c.Exchange(background, team.KindSplit, make([]byte, n), nil)
		return err
	}) {
		require.ErrorIs(t, err, fault.ErrLimit)
	}
	for _, err := range testkit.Each(comms, enginetest.Barrier) {
		require.NoError(t, err)
	}
}
