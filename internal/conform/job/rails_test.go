//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Jobs whose hosts are on two networks, and use both.

const bothNets = "eth0,eth1"

// TestHostsRails: data go over all networks that both hosts of a pair name, and over no others, and are right.
func TestHostsRails(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	bin := program(t)
	for _, k := range []struct {
		name    string
		hosts   int
		options []string
		second  string // hosts that use the second network
		full    bool
	}{
		{"2 hosts", 2, nil, "ab", false},
		{"3 hosts, of which one has one", 3, []string{"-set", "c:" + env.Net.Name + "=eth0"}, "ab", false},
		{"unequal", 2, []string{"-rate", "1gbit,100mbit"}, "ab", false},
		{"3 hosts of 2 ranks", 3, []string{"-ranks", "2,2,2", "-map", "cyclic"}, "abc", true},
	} {
		if k.full && !testkit.Full() {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "bytes")
			options := append([]string{"-nets", "2", "-bytes", file}, k.options...)
			across(t, k.hosts, options, []string{env.Net.Name + "=" + bothNets}, bin, "moves", "order").succeed(t)
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			for line := range strings.Lines(string(b)) {
				var host, name string
				var in, out int
				_, err := fmt.Sscan(line, &host, &name, &in, &out)
				require.NoError(t, err, line)
				if name == "eth1" && !strings.Contains(k.second, host) {
					require.Less(t, in+out, 100_000, "%s", b)
				} else {
					require.Greater(t, min(in, out), 1_000_000, "%s", b)
				}
			}
		})
	}
}

// TestHostsRailLost cuts the second network of a host: all ranks must say so, within the net timeout and 2 seconds.
func TestHostsRailLost(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	bin := program(t)
	dir := t.TempDir()
	h := across(t, 2, []string{"-nets", "2", "-ranks", "2,1"}, []string{env.Net.Name + "=" + bothNets, env.NetTimeout.Name + "=2s",
		conform.DirVar + "=" + dir}, bin, "kill-hosts")
	awaitReady(t, dir, 3, func(int) string { return h.out.String() })
	h.do(t, "cut", "b", "1")
	at := time.Now()
	want := regexp.MustCompile(fmt.Sprintf(`hosts %[1]s-hosta and %[1]s-hostb do not reach each other: no answer over eth1, between 10\.77\.1\.1 and 10\.77\.1\.2, for 2s \(UBCOLL_NET_TIMEOUT\)`, h.id))
	for r := range 3 {
		var report endings.Report
		var err error
		testkit.Eventually(t, func() bool { report, err = endings.ReadReport(dir, r); return err == nil })
		require.True(t, report.Lost, report.Text)
		require.Regexp(t, want, report.Text)
		require.Less(t, report.At.Sub(at), 4*time.Second+busy)
		t.Logf("rank %d knows after %v", r, report.At.Sub(at))
	}
	require.NoError(t, os.WriteFile(endings.EnoughFile(dir), nil, 0o600))
	require.Error(t, h.wait(t), "a job that lost a rail must not exit 0")
	require.NotContains(t, h.out.String(), "panic")
}

// TestHostsRailsStopped stops a host's processes for longer than the net timeout, while both networks carry data: that
// kills no rank.
func TestHostsRailsStopped(t *testing.T) {
	if race.Enabled {
		t.Skip("takes long")
	}
	outlast(t, []string{"-nets", "2"}, func(h *hostsJob) {
		h.do(t, "signal", "b", "STOP")
		time.Sleep(4 * time.Second)
		h.do(t, "signal", "b", "CONT")
	}, env.Net.Name+"="+bothNets, env.NetTimeout.Name+"=1s")
}
