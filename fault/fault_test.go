package fault

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestError(t *testing.T) {
	for _, c := range []struct {
		name string
		err  *Error
		want string
	}{
		{"full", &Error{Op: "all_reduce", Seq: 3, Rank: 1, Peer: 2, Host: "a", Step: "agree", Err: fmt.Errorf("count 5, not 6: %w", ErrMismatch)},
			"all_reduce #3: rank 1 (host a): agree: peer rank 2: count 5, not 6: ranks disagree"},
		{"no rank yet", &Error{Op: "open", Rank: -1, Peer: -1, Err: ErrTimeout}, "open: timed out"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, c.err.Error())
			require.True(t, errors.Is(c.err, c.err.Err))
		})
	}
}
