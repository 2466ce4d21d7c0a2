package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/hw/verbs"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	mr "github.com/ubcoll/ubcoll/internal/bench/rdma"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestParseMR(t *testing.T) {
	cfg, job, output, err := parseMR(strings.Fields("-b 64 -e 8M -n 7 -max 1G -dev =mlx5_0:2 -gid 3 -T 90s -J a.json"), io.Discard)
	require.NoError(t, err)
	require.Equal(t, mr.Config{MinBytes: 64, MaxBytes: 8 << 20, Iterations: 7, MaxRegion: 1 << 30, Devices: "=mlx5_0:2", GID: 3}, cfg)
	require.Equal(t, ubcoll.Options{Timeout: 90 * time.Second, Register: ubcoll.RegisterExplicit, Devices: ubcoll.DevicesOff}, job)
	require.Equal(t, "a.json", output)
	cfg, _, _, err = parseMR(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, mr.Default(), cfg)

	var help bytes.Buffer
	_, _, _, err = parseMR([]string{"-h"}, &help)
	require.ErrorIs(t, err, flag.ErrHelp)
	require.Contains(t, help.String(), "Usage: ubcoll bench mr [flags]")
}

// Without a device nothing is measured, and no table begun.
func TestNoDeviceMR(t *testing.T) {
	if verbs.Have().Err == nil {
		t.Skip("there is an RDMA device")
	}
	stdout, stderr, code := testkit.Program(t, nil, "bench", "mr")
	require.Equal(t, 5, code, stderr)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "not supported")
}

func TestWriteMR(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.json")
	rep := &mr.Report{Schema: 1, Latency: []mr.Latency{{Op: "put", Bytes: 8}}}
	rep.Latency[0].Median = 1.5
	require.NoError(t, measure.WriteJSON(rep, name))
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	var got mr.Report
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, *rep, got)
	require.Contains(t, string(b), `"p50_us": 1.5`)
	require.ErrorIs(t, measure.WriteJSON(rep, name), os.ErrExist)
}

// Two processes have one table, and one file.
func TestMR(t *testing.T) {
	if p := verbs.Have(); p.Err != nil {
		testkit.Missing(t, "verbs", p.Err)
	}
	file := filepath.Join(t.TempDir(), "x.json")
	var out, errOut [2]string
	var codes [2]int
	var wait sync.WaitGroup
	name := rand.Text()
	for r := range 2 {
		wait.Go(func() {
			out[r], errOut[r], codes[r] = testkit.Program(t, bootstrap.EnvVars(r, 2, "unix:@"+name, name), "bench", "mr", "-n", "10",
				"-e", "64", "-max", "16K", "-J", file)
		})
	}
	wait.Wait()
	require.Equal(t, [2]int{}, codes, "%s", errOut)
	require.Empty(t, out[1])
	require.Contains(t, out[0], "# Wrong words          : 0 OK\n# RDMA test concluded: mr\n# Results written to "+file+"\n")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var rep mr.Report
	require.NoError(t, json.Unmarshal(b, &rep))
	require.NotEqual(t, rep.Ranks[0].PID, rep.Ranks[1].PID)
	require.Len(t, rep.Registration, 2)
	require.Len(t, rep.Latency, 2*4+2)
	require.Len(t, rep.Bandwidth, 2*4+2)
}
