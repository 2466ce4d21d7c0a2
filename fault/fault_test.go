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
			"all_reduce #3: rank 1 (host a): peer rank 2: count 5, not 6: ranks disagree"},
		{"a reason that names the peer", &Error{Op: "barrier", Rank: 1, Peer: 2, Err: fmt.Errorf("rank 2 closed: %w", ErrPeerLost)},
			"barrier: rank 1: rank 2 closed: peer lost"},
		{"a reason that names another rank", &Error{Op: "barrier", Rank: 1, Peer: 2, Err: fmt.Errorf("not rank 23: %w", ErrPeerLost)},
			"barrier: rank 1: peer rank 2: not rank 23: peer lost"},
		{"about itself", &Error{Op: "abort", Rank: 1, Peer: 1, Err: fmt.Errorf("rank 1: no luck: %w", ErrAborted)},
			"abort: rank 1: no luck: aborted"},
		{"an error inside of it", &Error{Op: "capture", Rank: 1, Peer: -1, Host: "a",
			Err: &Error{Op: "send", Rank: 1, Peer: 2, Host: "a", Err: ErrArgument}},
			"capture: rank 1 (host a): send: peer rank 2: invalid argument"},
		{"one of the same call", &Error{Op: "send", Rank: 1, Peer: -1, Host: "a",
			Err: fmt.Errorf("call 2: %w", &Error{Op: "send", Rank: 1, Peer: -1, Host: "a", Err: ErrArgument})},
			"send: rank 1 (host a): call 2: invalid argument"},
		{"another rank's", &Error{Op: "send", Rank: 1, Peer: -1, Err: &Error{Op: "send", Rank: 2, Peer: -1, Err: ErrArgument}},
			"send: rank 1: send: rank 2: invalid argument"},
		{"no rank yet", &Error{Op: "open", Rank: -1, Peer: -1, Err: ErrTimeout}, "open: timed out"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, c.err.Error())
			require.True(t, errors.Is(c.err, c.err.Err))
		})
	}
}
