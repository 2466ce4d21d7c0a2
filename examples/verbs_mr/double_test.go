//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"bytes"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
)

// TestDouble runs the walk over a double of a device, with both ends in one process.
func TestDouble(t *testing.T) {
	for name, knobs := range map[string]verbstest.Knobs{"InfiniBand": nil, "Ethernet": {"LINK": "Ethernet"},
		"keys that come back at once": {"TAGS": "1"}} {
		t.Run(name, func(t *testing.T) {
			verbstest.Again(t, knobs, "-test.run=^(TestOneProcess|TestPeerGone|TestUnknownRequest)$")
		})
	}
}

// TestOneProcess runs A and B in one process.
func TestOneProcess(t *testing.T) {
	need(t)
	var out transcript
	o := options{gid: -1}
	require.NoError(t, beA(o, "127.0.0.1:0", func(at net.Addr) (func() error, error) {
		done := make(chan error, 1)
		go func() { done <- beB(options{connect: at.String(), gid: -1}, &out) }()
		return func() error { return <-done }, nil
	}, &out))
	require.Equal(t, golden(t), lines(out.b.String()))
}

// transcript is written to by both A and B.
type transcript struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

// A wrong status ends the walk. A device without atomic operations does not.
func TestDoubleStatus(t *testing.T) {
	verbstest.Over(t, nil, func(t *testing.T) {
		walk := func() (string, error) {
			var out transcript
			err := beA(options{gid: -1}, "127.0.0.1:0", func(at net.Addr) (func() error, error) {
				done := make(chan error, 1)
				go func() { done <- beB(options{connect: at.String(), gid: -1}, &out) }()
				return func() error { <-done; return nil }, nil
			}, &out)
			return out.b.String(), err
		}
		verbstest.Set(t, "STATUS", "WRITE:2:REM_OP_ERR") // the first write that should be refused
		_, err := walk()
		require.ErrorContains(t, err, "WRITE with a wrong rkey: want a remote access error")
		verbstest.Set(t, "STATUS", "READ:1:REM_ACCESS_ERR")
		_, err = walk()
		require.ErrorContains(t, err, "A: remote access error")
		verbstest.Set(t, "STATUS", "")
		for _, what := range []string{"context", "pd", "mr", "qp", "cq"} {
			require.Zero(t, verbstest.Count(t, what), what)
		}
		verbstest.Set(t, "ATOMICS", "0")
		out, err := walk()
		require.NoError(t, err)
		require.Contains(t, out, "A: has a device without atomic operations\n")
	})
}
