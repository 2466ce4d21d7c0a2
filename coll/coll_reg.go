package coll

import (
	"github.com/ubcoll/ubcoll/internal/team"
)

// acquire finds the registrations of a call's buffers, or makes them if the policy allows, and holds them until the
// call ends. A buffer without one is staged; that is no error.
func acquire(t *team.Team, w *team.Work) error {
	return w.AcquireBuffers(func(v *team.Vec, b *team.Buf) error { return t.Acquire(v, b, w.Graph) })
}
