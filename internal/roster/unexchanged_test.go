package roster

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// If an exchange fails because a rank has died, a rank that meanwhile does not reach another one, which has left for the
// same reason, blames the dead one. Its own faults come first.
func TestUnexchanged(t *testing.T) {
	died := reason.About(3, fmt.Errorf("rank 3 has died: %w", fault.ErrPeerLost))
	for _, k := range []struct {
		name  string
		own   error
		about int
		text  string
	}{
		{"nothing of its own", nil, 3, "rank 3 has died: peer lost"},
		{"the memory of another is gone", reason.About(4, fmt.Errorf("reach rank 4: %w", fault.ErrStale)), 3,
			"rank 3 has died: peer lost\nreach rank 4: stale memory or handle"},
		{"another is gone", reason.About(4, fmt.Errorf("rank 4: %w", fault.ErrPeerLost)), 3,
			"rank 3 has died: peer lost\nrank 4: peer lost"},
		{"a fault of its own", reason.About(1, fmt.Errorf("bad: %w", fault.ErrArgument)), 1,
			"bad: invalid argument\nrank 3 has died: peer lost"},
	} {
		t.Run(k.name, func(t *testing.T) {
			err := unexchanged(k.own, died)
			require.EqualError(t, err, k.text)
			require.Equal(t, k.about, reason.Blamed(err, -1))
		})
	}
}
