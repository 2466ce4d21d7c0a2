//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestHostsDeathsInMaking kills a rank or a host or cuts a link while communicators are opened, split, duplicated and
// closed. Every survivor must name it, and nobody a firewall or the MTU.
func TestHostsDeathsInMaking(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	deaths, err := conform.Number("CONFORM_KILLS", 3)
	require.NoError(t, err)
	if race.Enabled {
		deaths = min(deaths, 1)
	}
	seed := testkit.Seed(t)
	pick := rand.New(rand.NewPCG(seed, 0))
	for k := range deaths {
		own := rand.New(rand.NewPCG(pick.Uint64(), 0))
		t.Run(fmt.Sprint(k), func(t *testing.T) { deathInMaking(t, []int{killRank, killHost, cutLink}[k%3], own) })
	}
}

var misled = regexp.MustCompile(`firewall|MTU`)

func deathInMaking(t *testing.T, kind int, pick *rand.Rand) {
	p := place{[]int{2, 1, 2}, "block"}
	if pick.IntN(2) == 0 {
		p.mapping = "cyclic"
	}
	within := []time.Duration{2 * time.Second, 7 * time.Second, 7 * time.Second}[kind] // docs/clusters.md
	bin := program(t)
	dir, tmp := t.TempDir(), t.TempDir()
	h := across(t, len(p.ranks), p.options(), []string{conform.DirVar + "=" + dir, "TMPDIR=" + tmp}, bin, making)
	awaitReady(t, dir, p.size(), func(int) string { return h.out.String() })
	testkit.Eventually(t, func() bool { _, err := os.Stat(endings.RoundsFile(dir)); return err == nil })
	time.Sleep(time.Duration(pick.IntN(300_000)) * time.Microsecond)
	victim := pick.IntN(p.size())
	host := p.host(victim)
	letter := string(rune('a' + host))
	var pid int
	b, err := os.ReadFile(endings.ReadyFile(dir, victim))
	require.NoError(t, err)
	_, err = fmt.Sscan(string(b), &pid)
	require.NoError(t, err)
	dead := func(rank int) bool { return rank == victim }
	at := time.Now()
	switch kind {
	case killRank:
		h.do(t, "signal", letter, "KILL", fmt.Sprint(pid))
	case killHost:
		dead = func(rank int) bool { return p.host(rank) == host }
		h.do(t, "kill", letter)
	case cutLink:
		dead = func(int) bool { return false }
		h.do(t, "cut", letter)
	}
	var late time.Duration
	for r := range p.size() {
		if dead(r) {
			continue
		}
		var report endings.Report
		if !testkit.Until(func() (ok bool) { report, err = endings.ReadReport(dir, r); return err == nil }) {
			t.Fatalf("rank %d says nothing: %v: %s", r, err, h.out.String())
		}
		require.True(t, report.Lost, report.Text)
		require.NotRegexp(t, misled, report.Text)
		if after := report.At.Sub(at); after > within {
			t.Logf("rank %d knows after %v: %s", r, after, report.Text)
		}
		late = max(late, report.At.Sub(at))
		switch {
		case kind == killRank:
			require.Equal(t, victim, report.About, report.Text)
		case p.host(r) == host: // cut off: it misses all others, and names one of them
			require.NotEqual(t, host, p.host(max(report.About, 0)), report.Text)
			require.GreaterOrEqual(t, report.About, 0, report.Text)
		default:
			require.Equal(t, host, p.host(max(report.About, 0)), report.Text)
			require.GreaterOrEqual(t, report.About, 0, report.Text)
		}
	}
	t.Logf("%v: %s, rank %d on host %s: all know after %v", p, []string{"rank", "host", "link"}[kind], victim, letter, late)
	require.Less(t, late, within+busy, "and within %v on a machine that has nothing else to do", within)
	require.NoError(t, os.WriteFile(endings.EnoughFile(dir), nil, 0o600))
	require.Error(t, h.wait(t), "a job that lost a rank must not exit 0")
	require.NotContains(t, h.out.String(), "panic")
	require.Empty(t, leftovers(t, tmp))
}

// TestHostsStopsInMaking stops a host's processes again and again, each time for longer than the net timeout, while
// communicators are opened, split, duplicated and closed. Nobody is lost.
func TestHostsStopsInMaking(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	if race.Enabled {
		t.Skip("takes long")
	}
	seconds, err := conform.Number("CONFORM_STOPPED", 4)
	require.NoError(t, err)
	stops, err := conform.Number("CONFORM_STOPS", 2)
	require.NoError(t, err)
	pick := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	bin, dir := program(t), t.TempDir()
	h := across(t, 3, []string{"-ranks", "2,1,2"}, []string{conform.DirVar + "=" + dir, env.NetTimeout.Name + "=2s",
		"CONFORM_STOPS=" + fmt.Sprint(stops)}, bin, making)
	rounds := func() (k int) {
		b, _ := os.ReadFile(endings.RoundsFile(dir))
		_, _ = fmt.Sscan(string(b), &k)
		return k
	}
	beyond := func(k int) {
		testkit.Eventually(t, func() bool { return len(h.ended) > 0 || rounds() > k }, "%v", &h.out)
		require.Empty(t, h.ended, "%v", &h.out)
	}
	for range stops {
		beyond(rounds() + 1)
		time.Sleep(time.Duration(pick.IntN(100_000)) * time.Microsecond)
		host := string(rune('a' + pick.IntN(3)))
		h.do(t, "signal", host, "STOP")
		time.Sleep(time.Duration(seconds) * time.Second)
		h.do(t, "signal", host, "CONT")
	}
	beyond(rounds() + 1)
	require.NoError(t, os.WriteFile(endings.EnoughFile(dir), nil, 0o600))
	h.succeed(t)
}
