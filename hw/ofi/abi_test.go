//go:build linux && cgo && (amd64 || arm64)

package ofi_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestABI compares abi.h with libfabric's headers, if those are installed.
func TestABI(t *testing.T) {
	if _, err := os.Stat("/usr/include/rdma/fabric.h"); err != nil {
		t.Skip("no rdma/fabric.h (libfabric-dev)")
	}
	cc := testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang")
	out, err := exec.Command(cc, "-std=gnu11", "-Wall", "-fsyntax-only", "testdata/abi.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
