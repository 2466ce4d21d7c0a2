//go:build linux && cgo && (amd64 || arm64)

package verbs_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
)

// TestRereg: a region's access changes, and what it does not allow any more is refused.
func TestRereg(t *testing.T) {
	a, b := pair(t, config{})
	src, dst := memory(t, 4096), memory(t, 4096)
	mine, theirs := a.register(t, src, verbs.LocalWrite), b.register(t, dst, verbs.RemoteRead)
	pattern(src, 1)
	require.ErrorIs(t, theirs.Rereg(verbs.RemoteWrite), fault.ErrArgument)
	require.Equal(t, verbs.RemoteRead, theirs.Access())
	err := theirs.Rereg(verbs.LocalWrite | verbs.RemoteWrite)
	if errors.Is(err, hw.ErrNotSupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.Equal(t, verbs.LocalWrite|verbs.RemoteWrite, theirs.Access())
	require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, 4096)))
	require.Equal(t, src, dst)
	var e *verbs.CompletionError
	require.ErrorAs(t, a.do(t, work(verbs.Read, mine, theirs, 8)), &e)
	require.Equal(t, verbs.RemoteAccess, e.Status)
	require.NoError(t, theirs.Close())
	require.ErrorIs(t, theirs.Rereg(verbs.LocalWrite), fault.ErrClosed)
}
