package engine_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestClosedSidesAreForgotten makes channels and windows and closes them, repeatedly: a rank watches a peer's channels
// once, however many there are, and closed windows no longer.
func TestClosedSidesAreForgotten(t *testing.T) {
	for _, k := range []struct {
		name string
		make func(c *engine.Comm, v team.Vec, r *engine.Registration) (io.Closer, error)
		most int
	}{
		{"channels", func(c *engine.Comm, _ team.Vec, r *engine.Registration) (io.Closer, error) {
			return onesided.SpaceOf(c).Connect(background, 1-c.Rank(), r, nil)
		}, 1},
		{"semaphores", func(c *engine.Comm, _ team.Vec, r *engine.Registration) (io.Closer, error) {
			return onesided.SpaceOf(c).NewSemaphore(background, 1-c.Rank(), hw.Host)
		}, 1},
		{"windows", func(c *engine.Comm, v team.Vec, _ *engine.Registration) (io.Closer, error) {
			return onesided.SpaceOf(c).RegisterWindow(background, &engine.View{Comm: c}, v, 0)
		}, 100},
	} {
		t.Run(k.name, func(t *testing.T) {
			comms := enginetest.Open(t, 2, engine.Options{})
			require.NoError(t, errors.Join(testkit.Each(comms, func(c *engine.Comm) error {
				v, r := enginetest.Registered(t, c, 100)
				for range 300 {
					l, err := k.make(c, v, r)
					if err == nil {
						err = errors.Join(l.Close(), enginetest.Barrier(c)) // so that the next one gets the same slot
					}
					if err != nil {
						return err
					}
				}
				return nil // not r's Close, which would forget closed windows
			})...))
			for _, c := range comms {
				require.LessOrEqual(t, c.Domain().Watched(), k.most)
			}
		})
	}
}
