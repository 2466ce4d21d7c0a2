//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// bootstrapLoop starts ranks that make all-gathers on Env() until the file is there, as ranks in Open do, and returns
// once they do.
func bootstrapLoop(t *testing.T, p place, extra ...string) (h *hostsJob, enough string) {
	t.Helper()
	testkit.LongOrRace(t)
	dir := t.TempDir()
	bin := filepath.Join(dir, "bootstrap")
	out, err := exec.Command("go", "build", "-o", bin, "../bootstraps/job").CombinedOutput()
	require.NoError(t, err, "%s", out)
	enough = filepath.Join(dir, "enough")
	h = across(t, len(p.ranks), p.options(), extra, bin, "loop", enough)
	h.goesOn(t)
	return h, enough
}

// goesOn waits for two more rounds of rank 0.
func (h *hostsJob) goesOn(t *testing.T) {
	t.Helper()
	rounds := func() int { return strings.Count(h.out.String(), "round") }
	before := rounds()
	testkit.Eventually(t, func() bool { return rounds() > before+1 || len(h.ended) > 0 }, "%v", &h.out)
	require.Empty(t, h.ended, h.out.String())
}

// TestHostsCutInBootstrap cuts a host off while data is on its way to it: all survivors must say which one soon.
func TestHostsCutInBootstrap(t *testing.T) {
	t.Parallel()
	p := place{[]int{2, 1, 2}, "block"} // ranks 3 and 4 on host c
	for _, k := range []struct {
		name, host, signal string
		lost               string // what the others name
		survivors          []int
	}{
		{"host", "c", "", `peer rank [34]`, []int{0, 1, 2}},
		{"rank 0's host", "a", "", `peer rank 0`, []int{2, 3, 4}},
		{"host of stopped ranks", "c", "STOP", `peer rank [34]`, []int{0, 1, 2}},
	} {
		t.Run(k.name, func(t *testing.T) {
			const limit = 3 * time.Second
			h, _ := bootstrapLoop(t, p, env.NetTimeout.Name+"="+limit.String())
			if k.signal != "" {
				h.do(t, "signal", k.host, k.signal)
				time.Sleep(2 * limit) // until sockets are full, and probes are rare
				require.NotContains(t, h.out.String(), "lost")
			}
			h.do(t, "cut", k.host)
			at := time.Now()
			for _, rank := range k.survivors {
				said := regexp.MustCompile(fmt.Sprintf(`rank %d at (\d+): .*%s: its host has not answered for 3s \(UBCOLL_NET_TIMEOUT\): peer lost`,
					rank, k.lost))
				var words []string
				testkit.Eventually(t, func() bool { words = said.FindStringSubmatch(h.out.String()); return words != nil }, "%v", &h.out)
				ms, err := strconv.ParseInt(words[1], 10, 64)
				require.NoError(t, err)
				after := time.UnixMilli(ms).Sub(at)
				t.Logf("rank %d knows after %v", rank, after)
				require.Less(t, after, limit+2*time.Second+busy)
			}
		})
	}
}

// TestHostsLinkReturns: ranks outlast a link that is away for less than the limit, and any time for which a rank is
// stopped, whether it holds data up or not.
func TestHostsLinkReturns(t *testing.T) {
	t.Parallel()
	p := place{[]int{1, 1, 1}, "block"}
	for _, k := range []struct {
		name, limit, host, away, back string
		lasts                         time.Duration
	}{
		{"link of another rank", "10s", "b", "cut", "restore", 4 * time.Second},
		{"link of rank 0", "10s", "a", "cut", "restore", 4 * time.Second},
		{"stopped rank", "2s", "b", "STOP", "CONT", 10 * time.Second},
		{"stopped rank 0", "2s", "a", "STOP", "CONT", 10 * time.Second},
	} {
		t.Run(k.name, func(t *testing.T) {
			h, enough := bootstrapLoop(t, p, env.NetTimeout.Name+"="+k.limit)
			do := func(word string) {
				if word == strings.ToUpper(word) {
					h.do(t, "signal", k.host, word)
				} else {
					h.do(t, word, k.host)
				}
			}
			do(k.away)
			time.Sleep(k.lasts)
			do(k.back)
			h.goesOn(t)
			require.NoError(t, os.WriteFile(enough, nil, 0o600))
			h.succeed(t)
			require.NotContains(t, h.out.String(), "lost")
		})
	}
}
