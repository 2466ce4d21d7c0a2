package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
)

type coded int

func (e coded) Error() string { return "an error with a code" }
func (e coded) ExitCode() int { return int(e) }

func TestExitCode(t *testing.T) {
	for _, k := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{errors.New("something else"), 1},
		{ubcoll.ErrLimit, 1},
		{ubcoll.ErrPeerLost, 3},
		{ubcoll.ErrAborted, 3},
		{ubcoll.ErrMismatch, 3},
		{context.Canceled, 3},
		{context.DeadlineExceeded, 3},
		{ubcoll.ErrTimeout, 4},
		{ubcoll.ErrNotSupported, 5},
		{ubcoll.ErrArgument, 6},
		{coded(7), 7},
		{coded(200), 200},
		{coded(255), 255},
		{coded(0), 1},
		{coded(-1), 1}, // as os/exec reports it for a child that a signal killed
		{coded(256), 1},
	} {
		require.Equal(t, k.code, ubcoll.ExitCode(k.err), "%v", k.err)
		if k.err != nil {
			require.Equal(t, k.code, ubcoll.ExitCode(fmt.Errorf("more: %w", &ubcoll.Error{Op: "test", Err: k.err})), "%v", k.err)
		}
	}
	require.Equal(t, 7, ubcoll.ExitCode(errors.Join(ubcoll.ErrArgument, coded(7))), "its own comes first")
	require.Equal(t, 6, ubcoll.ExitCode(errors.Join(ubcoll.ErrArgument, coded(-1))), "if it is one")
	err := ubcoll.Local(t.Context(), 1, ubcoll.Options{}, func(context.Context, *ubcoll.Comm) error { panic("on purpose") })
	require.Equal(t, 2, ubcoll.ExitCode(err))
}
