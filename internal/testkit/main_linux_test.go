package testkit_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// told is a test that keeps its errors.
type told struct {
	testing.TB
	errors string
}

func (t *told) Error(args ...any) { t.errors += fmt.Sprint(args...) }

// openForgotten opens a descriptor that nobody closes.
func openForgotten() (*shm.File, error) { return shm.Create("forgotten", 1) }

// What is said of a descriptor that stays behind names who opened it, and not who has closed theirs.
func TestNoLeaksNamesWhoOpened(t *testing.T) {
	before, err := openForgotten()
	require.NoError(t, err)
	defer func() { require.NoError(t, before.Close()) }()
	leaky := &told{TB: t}
	check := testkit.NoLeaks(leaky)
	check()
	require.Empty(t, leaky.errors)

	closed, err := shm.Create("closed", 1)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	f, err := openForgotten()
	require.NoError(t, err)
	check()
	require.Contains(t, leaky.errors, fmt.Sprintf("descriptor %d, a memory file, was opened by\n", f.FD()))
	require.Contains(t, leaky.errors, "internal/testkit_test.openForgotten\n")
	require.Regexp(t, `^descriptors stay behind:\ndescriptor[^;]*main_linux_test.go:\d+\n`, leaky.errors)
	require.NotContains(t, leaky.errors, fmt.Sprintf("descriptor %d,", before.FD()))

	leaky.errors = ""
	require.NoError(t, f.Close())
	check()
	require.Empty(t, leaky.errors)
}
