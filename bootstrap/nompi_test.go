//go:build !mpi || !cgo

package bootstrap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
)

func TestMPIWithoutTheTag(t *testing.T) {
	clearLaunchers(t)
	_, err := bootstrap.MPI()
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.ErrorContains(t, err, "-tags mpi")

	t.Setenv("PMI_SIZE", "4")
	_, err = bootstrap.MPI()
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.ErrorContains(t, err, "started 4 ranks")
}

func TestGompiWithoutTheTag(t *testing.T) {
	b, err := bootstrap.Gompi(nil)
	require.Nil(t, b)
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.ErrorContains(t, err, "-tags mpi")
	require.False(t, bootstrap.UsesMPI())
}
