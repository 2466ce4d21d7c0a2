//go:build linux && cgo && (amd64 || arm64)

package verbs_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestABI compares abi.h with rdma-core's header, if that is installed.
func TestABI(t *testing.T) {
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("no infiniband/verbs.h (libibverbs-dev)")
	}
	cc := testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang")
	out, err := exec.Command(cc, "-std=gnu11", "-Wall", "-fsyntax-only", "testdata/abi.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
