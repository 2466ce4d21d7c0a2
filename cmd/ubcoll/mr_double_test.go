//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	mr "github.com/ubcoll/ubcoll/internal/bench/rdma"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestDoubleMR runs the command as users do, over a double of a device, which has both ranks in one process.
func TestDoubleMR(t *testing.T) {
	testkit.LongOrRace(t)
	environ := verbstest.Environ(t, nil)
	file := filepath.Join(t.TempDir(), "x.json")
	args := []string{"bench", "mr", "-n", "10", "-e", "64", "-max", "16K", "-J", file}
	stdout, stderr, code := testkit.Program(t, environ, args...)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "# Wrong words          : 0 OK\n# RDMA test concluded: mr\n# Results written to "+file+"\n")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var rep mr.Report
	require.NoError(t, json.Unmarshal(b, &rep))
	require.Len(t, rep.Registration, 2)
	require.Len(t, rep.Latency, 2*4+2)
	require.Len(t, rep.Bandwidth, 2*4+2)

	// A run that fails leaves its numbers all the same.
	require.NoError(t, os.Remove(file))
	_, stderr, code = testkit.Program(t, verbstest.Environ(t, verbstest.Knobs{"STATUS": "READ:1:REM_ACCESS_ERR"}), args...)
	require.NotZero(t, code)
	require.Contains(t, stderr, "get of 8 bytes: ")
	b, err = os.ReadFile(file)
	require.NoError(t, err)
	rep = mr.Report{}
	require.NoError(t, json.Unmarshal(b, &rep))
	require.Len(t, rep.Latency, 4)
	require.Len(t, rep.Errors, 1)

	_, stderr, code = testkit.Program(t, verbstest.Environ(t, verbstest.Knobs{"DEVICES": "0"}), args[:2]...)
	require.Equal(t, 5, code, stderr)
}
